/*
 * collective.h - what the ranks of a tensor- or data-parallel group do together.
 *
 *   all-reduce       every member gets the sum of all members' floats
 *   reduce-scatter   member r gets the r-th part of the sum
 *   all-gather       every member gets all members' bytes, in member order
 *
 * Sums are taken element by element in member order, ((x0 + x1) + x2) + ..., whatever member or
 * transport computes them: the same floats give the same bits in every run, with threads and with
 * processes, alone or in parts.
 *
 * All members make the same calls in the same order; a call returns when the caller's result is
 * there and its arguments are the caller's again.  Members that make different calls are told
 * apart and end all of them.
 *
 * Failure is kept, like a stream's: after it every call returns at once, buffers hold anything,
 * and rrfp_collective_failure() says why.  So a task that makes many calls asks once, at its end.
 *
 * Thread-safety: a handle belongs to one thread at a time; rrfp_collective_abort() may come from any.
 */
#ifndef RRFP_COLLECTIVE_H
#define RRFP_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rrfp/status.h"

typedef struct rrfp_collective rrfp_collective; /* one member's handle */

typedef struct rrfp_collective_ops {
    void (*all_reduce)(rrfp_collective *, float *data, size_t count);
    void (*reduce_scatter)(rrfp_collective *, const float *in, float *out, size_t count);
    void (*all_gather)(rrfp_collective *, const void *mine, void *all, size_t bytes);
    rrfp_status (*failure)(rrfp_collective *, rrfp_error *);
    void (*abort)(rrfp_collective *);
    void (*destroy)(rrfp_collective *);
} rrfp_collective_ops;

struct rrfp_collective {
    const rrfp_collective_ops *ops;
    uint32_t rank, size;
};

/* `data`: `count` floats, the caller's part before and the sum after. */
static inline void rrfp_all_reduce(rrfp_collective *group, float *data, size_t count)
{
    group->ops->all_reduce(group, data, count);
}

/* `in`: size x count floats; `out`: the count floats that are part `rank` of the sum.  They must
 * not overlap. */
static inline void rrfp_reduce_scatter(rrfp_collective *group, const float *in, float *out,
                                       size_t count)
{
    group->ops->reduce_scatter(group, in, out, count);
}

/* `mine`: `bytes` bytes; `all`: size x bytes.  `mine` may be its own place in `all`. */
static inline void rrfp_all_gather(rrfp_collective *group, const void *mine, void *all,
                                   size_t bytes)
{
    group->ops->all_gather(group, mine, all, bytes);
}

/* RRFP_OK, or why no call has a result any more. */
static inline rrfp_status rrfp_collective_failure(rrfp_collective *group, rrfp_error *error)
{
    return group->ops->failure(group, error);
}

/* From any thread: ends every call of every member here, now and from now on. */
static inline void rrfp_collective_abort(rrfp_collective *group)
{
    group->ops->abort(group);
}

static inline void rrfp_collective_destroy(rrfp_collective *group) /* NULL is fine */
{
    if (group != NULL) {
        group->ops->destroy(group);
    }
}

/* to[i] = ((parts[0][i] + parts[1][i]) + parts[2][i]) + ..., `count` floats; `to` may be one of the
 * parts. */
void rrfp_sum_in_order(const float *const *parts, uint32_t part_count, float *to, size_t count);

/*
 * Handles of all members of a group of threads: `members` (1 to 1,024) pointers.  Destroying the
 * last handle frees what they share.  Nothing is copied but results: every member sums its part of
 * the elements out of the others' buffers.  Waiting members spin briefly if each can have a
 * processor, then sleep.
 */
rrfp_status rrfp_collective_threads(uint32_t members, rrfp_collective **handles,
                                    rrfp_error *error);

#endif /* RRFP_COLLECTIVE_H */
