/*
 * inproc.c - endpoints of the stages of one process.
 *
 *   send()  ──► (delay heap, with link_delay) ──► deliver ──► copy into a receive slot
 *                                                   │            ├─► ARRIVED to the receiver
 *                     no free slot: blocked list ◄──┘            └─► SENT to the sender
 *                     release() takes from it first
 *
 * Events go through a lock-free list per endpoint: producers push with one
 * compare-and-swap, the consumer takes all with one exchange and turns them
 * round, so there is no ABA problem and no lock between a task's end and the
 * next.  Every event node lies in the receive slot or send record it speaks of:
 * nothing is allocated after create.  A small mutex per endpoint guards its
 * free slots and the messages that wait for one.
 */
#include "transport/transport.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { SPINS = 200 }; /* a message under way often lands within a microsecond or two */

typedef struct node {
    struct node *next;
    rrfp_transport_event event;
} node;

typedef struct send_record { /* belongs to the sending endpoint */
    node sent;
    uint64_t due_ns;
    struct send_record *next; /* free, or waiting for a receive slot */
} send_record;

typedef struct receive_slot {
    node arrived;
    uint32_t next_free;
    bool held; /* between delivery and release */
} receive_slot;

typedef struct shared shared;

typedef struct endpoint {
    rrfp_transport base;
    shared *all;
    uint32_t stage;
    /* events: pushed by anyone, taken by the owner */
    _Atomic(node *) inbox;
    node *taken; /* owner only: what the last exchange brought, oldest first */
    /* sleeping */
    pthread_mutex_t sleep_mutex;
    pthread_cond_t sleep_cond;
    atomic_bool sleeping, woken;
    /* receiving */
    pthread_mutex_t slot_mutex;
    receive_slot *slots;
    unsigned char *buffers;
    uint32_t slot_count, first_free; /* UINT32_MAX: none */
    send_record *blocked, **blocked_end;
    /* sending: owner only */
    send_record *records, *free_record;
    uint32_t record_count;
} endpoint;

struct shared {
    endpoint *endpoints;
    uint32_t stages;
    atomic_uint alive;
    size_t payload_bytes, stride;
    bool poison;
    rrfp_link_delay_fn link_delay;
    void *link_delay_context;
    pthread_t thread;
    bool thread_started, stop;
    pthread_mutex_t heap_mutex;
    pthread_cond_t heap_cond;
    send_record **heap;
    size_t heap_count;
};

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct timespec at_ns(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}

static void wake_up(endpoint *e)
{
    if (atomic_load(&e->sleeping)) {
        pthread_mutex_lock(&e->sleep_mutex);
        pthread_cond_signal(&e->sleep_cond);
        pthread_mutex_unlock(&e->sleep_mutex);
    }
}

static void push(endpoint *e, node *n)
{
    node *head = atomic_load_explicit(&e->inbox, memory_order_relaxed);
    do {
        n->next = head;
    } while (!atomic_compare_exchange_weak(&e->inbox, &head, n)); /* seq_cst: see do_wait */
    wake_up(e);
}

/* The payload lies in a slot of the receiver from here on; the sender gets its buffer back. */
static void deliver_into(endpoint *to, uint32_t index, send_record *record)
{
    receive_slot *slot = &to->slots[index];
    unsigned char *buffer = to->buffers + index * to->all->stride;
    const rrfp_message_header *header = &record->sent.event.header;
    endpoint *from = &to->all->endpoints[header->source_stage];
    memcpy(buffer, record->sent.event.payload, header->payload_bytes);
    slot->arrived.event = record->sent.event;
    slot->arrived.event.kind = RRFP_TRANSPORT_ARRIVED;
    slot->arrived.event.payload = buffer;
    slot->arrived.event.time_ns = record->sent.event.time_ns = now_ns();
    push(to, &slot->arrived);
    push(from, &record->sent); /* last: the record may be used again at once */
}

static void deliver(shared *all, send_record *record)
{
    endpoint *to = &all->endpoints[record->sent.event.header.destination_stage];
    pthread_mutex_lock(&to->slot_mutex);
    uint32_t index = to->first_free;
    if (index != UINT32_MAX) {
        to->first_free = to->slots[index].next_free;
        to->slots[index].held = true;
    } else {
        record->next = NULL;
        *to->blocked_end = record;
        to->blocked_end = &record->next;
    }
    pthread_mutex_unlock(&to->slot_mutex);
    if (index != UINT32_MAX) {
        deliver_into(to, index, record);
    }
}

/* --- delayed delivery: a binary heap by due time and the thread that serves it ---------------- */

static void heap_push(shared *all, send_record *record)
{
    size_t i = all->heap_count++;
    while (i > 0 && all->heap[(i - 1) / 2]->due_ns > record->due_ns) {
        all->heap[i] = all->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    all->heap[i] = record;
}

static send_record *heap_pop(shared *all)
{
    send_record *first = all->heap[0], *last = all->heap[--all->heap_count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= all->heap_count) {
            break;
        }
        if (child + 1 < all->heap_count &&
            all->heap[child + 1]->due_ns < all->heap[child]->due_ns) {
            child++;
        }
        if (all->heap[child]->due_ns >= last->due_ns) {
            break;
        }
        all->heap[i] = all->heap[child];
        i = child;
    }
    all->heap[i] = last;
    return first;
}

static void *delivery_main(void *argument)
{
    shared *all = argument;
    pthread_mutex_lock(&all->heap_mutex);
    while (!all->stop) {
        uint64_t now = now_ns();
        if (all->heap_count == 0) {
            pthread_cond_wait(&all->heap_cond, &all->heap_mutex);
        } else if (all->heap[0]->due_ns > now) {
            struct timespec until = at_ns(all->heap[0]->due_ns);
            pthread_cond_timedwait(&all->heap_cond, &all->heap_mutex, &until);
        } else {
            send_record *record = heap_pop(all);
            pthread_mutex_unlock(&all->heap_mutex);
            deliver(all, record);
            pthread_mutex_lock(&all->heap_mutex);
        }
    }
    pthread_mutex_unlock(&all->heap_mutex);
    return NULL;
}

/* --- the endpoint's operations -------------------------------------------------------------- */

static rrfp_status do_send(rrfp_transport *transport, const rrfp_message_header *header,
                           const void *payload, rrfp_error *error)
{
    endpoint *e = (endpoint *)transport;
    shared *all = e->all;
    if (header->source_stage != e->stage || header->destination_stage >= all->stages ||
        header->payload_bytes > all->payload_bytes) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage %u: cannot send %llu bytes from stage %u to stage %u: the "
                              "transport has %u stages and messages of at most %zu bytes",
                              e->stage, (unsigned long long)header->payload_bytes,
                              header->source_stage, header->destination_stage, all->stages,
                              all->payload_bytes);
    }
    send_record *record = e->free_record;
    if (record == NULL) {
        return rrfp_error_set(error, RRFP_ERR_INTERNAL,
                              "stage %u: more than %u sends under way", e->stage, e->record_count);
    }
    e->free_record = record->next;
    uint64_t now = now_ns();
    record->sent.event = (rrfp_transport_event){RRFP_TRANSPORT_SENT, *header,
                                                (void *)(uintptr_t)payload, now, now};
    if (all->link_delay == NULL) {
        deliver(all, record);
        return RRFP_OK;
    }
    double delay = all->link_delay(all->link_delay_context, header);
    record->due_ns = now + (delay > 0.0 ? (uint64_t)(delay * 1e9) : 0);
    pthread_mutex_lock(&all->heap_mutex);
    heap_push(all, record);
    pthread_cond_signal(&all->heap_cond);
    pthread_mutex_unlock(&all->heap_mutex);
    return RRFP_OK;
}

static void take_inbox(endpoint *e)
{
    node *newest = atomic_exchange_explicit(&e->inbox, NULL, memory_order_acquire);
    while (newest != NULL) { /* newest first: turn round */
        node *next = newest->next;
        newest->next = e->taken;
        e->taken = newest;
        newest = next;
    }
}

static bool do_poll(rrfp_transport *transport, rrfp_transport_event *event)
{
    endpoint *e = (endpoint *)transport;
    if (e->taken == NULL) {
        take_inbox(e);
        if (e->taken == NULL) {
            return false;
        }
    }
    node *n = e->taken;
    e->taken = n->next;
    *event = n->event;
    if (event->kind == RRFP_TRANSPORT_SENT) {
        send_record *record = (send_record *)n; /* its first member */
        record->next = e->free_record;
        e->free_record = record;
    }
    return true;
}

static bool has_event(endpoint *e)
{
    return e->taken != NULL || atomic_load(&e->inbox) != NULL || atomic_load(&e->woken);
}

static void do_wait(rrfp_transport *transport, uint64_t timeout_ns)
{
    endpoint *e = (endpoint *)transport;
    for (int i = 0; i < SPINS; i++) {
        if (has_event(e)) {
            atomic_store(&e->woken, false);
            return;
        }
    }
    struct timespec until = at_ns(now_ns() + timeout_ns);
    pthread_mutex_lock(&e->sleep_mutex);
    /* A producer pushes, then reads `sleeping`; we set it, then look: one of us sees the other. */
    atomic_store(&e->sleeping, true);
    while (!has_event(e) &&
           pthread_cond_timedwait(&e->sleep_cond, &e->sleep_mutex, &until) != ETIMEDOUT) {
    }
    atomic_store(&e->sleeping, false);
    atomic_store(&e->woken, false);
    pthread_mutex_unlock(&e->sleep_mutex);
}

static void do_wake(rrfp_transport *transport)
{
    endpoint *e = (endpoint *)transport;
    atomic_store(&e->woken, true);
    wake_up(e);
}

static void do_release(rrfp_transport *transport, void *payload)
{
    endpoint *e = (endpoint *)transport;
    size_t offset = (size_t)((unsigned char *)payload - e->buffers);
    uint32_t index = (uint32_t)(offset / e->all->stride);
    send_record *record;
    assert(offset % e->all->stride == 0 && index < e->slot_count);
    if (e->all->poison) {
        memset(payload, 0xff, e->all->payload_bytes); /* NaN, as float and as bfloat16 */
    }
    pthread_mutex_lock(&e->slot_mutex);
    assert(e->slots[index].held);
    record = e->blocked;
    if (record != NULL) { /* the slot goes on to the message that has waited longest */
        e->blocked = record->next;
        if (e->blocked == NULL) {
            e->blocked_end = &e->blocked;
        }
    } else {
        e->slots[index].held = false;
        e->slots[index].next_free = e->first_free;
        e->first_free = index;
    }
    pthread_mutex_unlock(&e->slot_mutex);
    if (record != NULL) {
        deliver_into(e, index, record);
    }
}

static void free_shared(shared *all)
{
    if (all->thread_started) {
        pthread_mutex_lock(&all->heap_mutex);
        all->stop = true;
        pthread_cond_signal(&all->heap_cond);
        pthread_mutex_unlock(&all->heap_mutex);
        pthread_join(all->thread, NULL);
    }
    for (uint32_t s = 0; s < all->stages; s++) {
        endpoint *e = &all->endpoints[s];
        pthread_mutex_destroy(&e->sleep_mutex);
        pthread_cond_destroy(&e->sleep_cond);
        pthread_mutex_destroy(&e->slot_mutex);
        if (e->buffers != NULL) {
            munmap(e->buffers, all->stride * e->slot_count);
        }
        free(e->slots);
        free(e->records);
    }
    pthread_mutex_destroy(&all->heap_mutex);
    pthread_cond_destroy(&all->heap_cond);
    free(all->heap);
    free(all->endpoints);
    free(all);
}

static void do_destroy(rrfp_transport *transport)
{
    endpoint *e = (endpoint *)transport;
    if (atomic_fetch_sub(&e->all->alive, 1) == 1) {
        free_shared(e->all);
    }
}

static const rrfp_transport_ops INPROC_OPS = {do_send, do_poll, do_wait,
                                              do_release, do_wake, do_destroy};

/* --- creation ------------------------------------------------------------------------------- */

static void init_monotonic(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

static bool init_endpoint(endpoint *e, uint32_t receive_slots, uint32_t send_slots)
{
    /* Reserved only: a slot costs memory once it has been used. */
    void *buffers = mmap(NULL, e->all->stride * receive_slots, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    e->buffers = buffers == MAP_FAILED ? NULL : buffers;
    e->slot_count = receive_slots;
    e->record_count = send_slots;
    e->slots = calloc(receive_slots, sizeof *e->slots);
    e->records = calloc(send_slots, sizeof *e->records);
    if (e->buffers == NULL || e->slots == NULL || e->records == NULL) {
        return false;
    }
    e->first_free = UINT32_MAX;
    for (uint32_t i = receive_slots; i-- > 0;) {
        e->slots[i].next_free = e->first_free;
        e->first_free = i;
    }
    for (uint32_t i = send_slots; i-- > 0;) {
        e->records[i].next = e->free_record;
        e->free_record = &e->records[i];
    }
    return true;
}

rrfp_status rrfp_inproc_create(const rrfp_inproc_config *config, rrfp_transport **endpoints,
                               rrfp_error *error)
{
    size_t sends = 0;
    shared *all = calloc(1, sizeof *all);
    endpoint *list = calloc(config->stages, sizeof *list);
    if (all == NULL || list == NULL) {
        free(all);
        free(list);
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for %u endpoints",
                              config->stages);
    }
    all->endpoints = list;
    all->stages = config->stages;
    all->payload_bytes = config->payload_bytes;
    all->stride = (config->payload_bytes + 63) / 64 * 64;
    all->stride = all->stride == 0 ? 64 : all->stride;
    all->poison = config->poison;
    all->link_delay = config->link_delay;
    all->link_delay_context = config->link_delay_context;
    atomic_init(&all->alive, config->stages);
    pthread_mutex_init(&all->heap_mutex, NULL);
    init_monotonic(&all->heap_cond);
    bool ok = true;
    for (uint32_t s = 0; s < config->stages; s++) {
        endpoint *e = &list[s];
        e->base.ops = &INPROC_OPS;
        e->all = all;
        e->stage = s;
        atomic_init(&e->inbox, NULL);
        atomic_init(&e->sleeping, false);
        atomic_init(&e->woken, false);
        pthread_mutex_init(&e->sleep_mutex, NULL);
        init_monotonic(&e->sleep_cond);
        pthread_mutex_init(&e->slot_mutex, NULL);
        e->blocked_end = &e->blocked;
        ok = ok && init_endpoint(e, config->receive_slots[s], config->send_slots[s]);
        sends += config->send_slots[s];
    }
    if (ok && config->link_delay != NULL) {
        all->heap = calloc(sends, sizeof(send_record *));
        ok = all->heap != NULL && pthread_create(&all->thread, NULL, delivery_main, all) == 0;
        all->thread_started = ok;
    }
    if (!ok) {
        free_shared(all);
        return rrfp_error_set(error, RRFP_ERR_NOMEM,
                              "cannot make the message buffers of %u stages: lower --max-inflight "
                              "or the micro batch",
                              config->stages);
    }
    for (uint32_t s = 0; s < config->stages; s++) {
        endpoints[s] = &list[s].base;
    }
    return RRFP_OK;
}
