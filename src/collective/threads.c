/*
 * threads.c - collectives of threads of one process; see collective.h.
 *
 *   publish my arguments ── all have ── work on everybody's buffers ── all are done ──► return
 *
 * Both meetings are one barrier: a count of those who came, and a number of the round on which the
 * early ones sleep.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/futex.h"
#include "collective/collective.h"

enum { MOST_MEMBERS = 1024, SPINS = 2000, CACHE_LINE = 64 };

typedef enum call_kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER } call_kind;

typedef struct call {
    call_kind kind;
    size_t count;
    const void *in;
    void *out;
} call;

typedef struct shared shared;

typedef struct member {
    rrfp_collective base;
    shared *group;
    _Alignas(CACHE_LINE) call now;
} member;

struct shared {
    uint32_t size;
    uint32_t spins;
    atomic_uint handles;
    atomic_uint inside; /* members at work on the others' arguments */
    atomic_bool aborted, disagree;
    _Alignas(CACHE_LINE) _Atomic uint32_t came;
    _Alignas(CACHE_LINE) _Atomic uint32_t round;
    member *members;
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* False when the group has failed. */
static bool meet(shared *group)
{
    uint32_t round = atomic_load(&group->round);
    if (atomic_load(&group->aborted)) {
        return false;
    }
    if (atomic_fetch_add(&group->came, 1) + 1 == group->size) {
        atomic_store(&group->came, 0);
        atomic_fetch_add(&group->round, 1);
        rrfp_futex_wake(&group->round, INT32_MAX);
    }
    for (uint32_t i = 0; i < group->spins && atomic_load(&group->round) == round; i++) {
        relax();
    }
    while (atomic_load(&group->round) == round && !atomic_load(&group->aborted)) {
        rrfp_futex_wait(&group->round, round, NULL);
    }
    return !atomic_load(&group->aborted);
}

static void abort_group(shared *group)
{
    atomic_store(&group->aborted, true);
    atomic_fetch_add(&group->round, 1); /* a sleeper wakes, one about to sleep does not */
    rrfp_futex_wake(&group->round, INT32_MAX);
}

/* What a member may do with the others' arguments ends here. */
static void leave(shared *group)
{
    atomic_fetch_sub(&group->inside, 1);
}

/* After an abort a member is out once no other uses its arguments; nobody enters any more. */
static bool get_out(const shared *group)
{
    while (atomic_load(&group->inside) > 0) {
        sched_yield();
    }
    return false;
}

/* Publishes the call; true when all have come with the same. Then the caller is inside. */
static bool begin(member *self, call_kind kind, size_t count, const void *in, void *out)
{
    shared *group = self->group;
    if (atomic_load(&group->aborted)) {
        return false;
    }
    self->now = (call){kind, count, in, out};
    if (!meet(group)) {
        return get_out(group);
    }
    atomic_fetch_add(&group->inside, 1); /* first, so that who leaves after an abort sees it */
    for (uint32_t m = 0; m < group->size && !atomic_load(&group->aborted); m++) {
        if (group->members[m].now.kind != kind || group->members[m].now.count != count) {
            atomic_store(&group->disagree, true);
            abort_group(group);
        }
    }
    if (atomic_load(&group->aborted)) {
        leave(group);
        return get_out(group);
    }
    return true;
}

/* Until all have their results. */
static void end(member *self)
{
    leave(self->group);
    if (!meet(self->group)) {
        get_out(self->group);
    }
}

/* to[0..count) = the sum of all members' in[first..first+count), in member order. */
static void sum(const shared *group, size_t first, size_t count, float *to)
{
    const float *parts[MOST_MEMBERS];
    for (uint32_t m = 0; m < group->size; m++) {
        parts[m] = (const float *)group->members[m].now.in + first;
    }
    rrfp_sum_in_order(parts, group->size, to, count);
}

static void all_reduce(rrfp_collective *handle, float *data, size_t count)
{
    member *self = (member *)handle;
    shared *group = self->group;
    if (group->size == 1 || !begin(self, ALL_REDUCE, count, data, data)) {
        return;
    }
    /* My part of the elements is read and written by nobody else. */
    size_t first = count * self->base.rank / group->size;
    size_t last = count * (self->base.rank + 1) / group->size;
    sum(group, first, last - first, data + first);
    for (uint32_t m = 0; m < group->size; m++) {
        if (m != self->base.rank) {
            memcpy((float *)group->members[m].now.out + first, data + first,
                   (last - first) * sizeof *data);
        }
    }
    end(self);
}

static void reduce_scatter(rrfp_collective *handle, const float *in, float *out, size_t count)
{
    member *self = (member *)handle;
    if (begin(self, REDUCE_SCATTER, count, in, out)) {
        sum(self->group, self->base.rank * count, count, out);
        end(self);
    }
}

static void all_gather(rrfp_collective *handle, const void *mine, void *all, size_t bytes)
{
    member *self = (member *)handle;
    if (!begin(self, ALL_GATHER, bytes, mine, all)) {
        return;
    }
    for (uint32_t m = 0; m < self->group->size; m++) {
        char *place = (char *)all + m * bytes;
        if (self->group->members[m].now.in != place) {
            memcpy(place, self->group->members[m].now.in, bytes);
        }
    }
    end(self);
}

static rrfp_status failure(rrfp_collective *handle, rrfp_error *error)
{
    const shared *group = ((member *)handle)->group;
    if (!atomic_load(&group->aborted)) {
        return RRFP_OK;
    }
    if (atomic_load(&group->disagree)) {
        return rrfp_error_set(error, RRFP_ERR_INTERNAL,
                              "the %u ranks of a group made different collective calls",
                              group->size);
    }
    return rrfp_error_set(error, RRFP_ERR_PEER, "a rank of a group of %u has given up",
                          group->size);
}

static void give_up(rrfp_collective *handle)
{
    abort_group(((member *)handle)->group);
}

static void destroy(rrfp_collective *handle)
{
    shared *group = ((member *)handle)->group;
    if (atomic_fetch_sub(&group->handles, 1) == 1) {
        free(group->members);
        free(group);
    }
}

static const rrfp_collective_ops ops = {
    .all_reduce = all_reduce,
    .reduce_scatter = reduce_scatter,
    .all_gather = all_gather,
    .failure = failure,
    .abort = give_up,
    .destroy = destroy,
};

rrfp_status rrfp_collective_threads(uint32_t members, rrfp_collective **handles,
                                    rrfp_error *error)
{
    if (members < 1 || members > MOST_MEMBERS) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "a group of %u threads; there may be 1 to %d", members,
                              (int)MOST_MEMBERS);
    }
    shared *group = aligned_alloc(CACHE_LINE, sizeof *group);
    member *list = aligned_alloc(CACHE_LINE, members * sizeof *list);
    if (group == NULL || list == NULL) {
        free(group);
        free(list);
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for a group of %u threads",
                              members);
    }
    memset(group, 0, sizeof *group);
    memset(list, 0, members * sizeof *list);
    group->size = members;
    group->members = list;
    /* Spinning takes the processor from the very member one waits for when there are few. */
    group->spins = sysconf(_SC_NPROCESSORS_ONLN) > (long)members ? SPINS : 0;
    atomic_init(&group->handles, members);
    for (uint32_t m = 0; m < members; m++) {
        list[m].base = (rrfp_collective){&ops, m, members};
        list[m].group = group;
        handles[m] = &list[m].base;
    }
    return RRFP_OK;
}
