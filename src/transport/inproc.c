/*
 * inproc.c - endpoints of stages that are threads of one process.
 *
 *   sender                                        receiver
 *   send() ─► parcel ──────────────(a buffer is free: copy)──► events ─► poll()
 *               ├─► waiting ─(release() frees a buffer: copy)─►   ▲
 *               └─► delay line ─(due: as above)───────────────────┘
 *   poll() ◄─ events ◄─ SENT, once the copy is made
 *
 * A parcel is one send.  It belongs to its sender's table, lies in at most one
 * queue through `arrival` and one through `departure`, and goes back to the
 * table when both events were taken (a signal has an arrival only).  Free parcels and free buffers are stacks;
 * the stack of parcels is emptied at once by its only taker, the stack of
 * buffers has many takers and therefore a tag against reuse (ABA).
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/futex.h"
#include "transport/buffers.h"
#include "transport/delay_line.h"
#include "transport/event_queue.h"
#include "transport/transport.h"

enum { SPIN_MOST = 2000, SPIN_LEAST = 20 };
enum { SIGNAL_NONE = 0, SIGNAL_SET = 1, SIGNAL_SLEEPING = 2 };
enum { BUFFER_FREE = 0, BUFFER_HELD = 1 };

static const uint32_t NO_BUFFER = UINT32_MAX;
static const double LONGEST_DELAY_S = 1e9;

typedef struct endpoint endpoint;

typedef struct parcel parcel;

typedef struct parcel_event {
    rrfp_event_node node; /* first: a popped node is its parcel_event */
    rrfp_transport_event_kind kind;
    parcel *message;
} parcel_event;

struct parcel {
    parcel_event arrival;   /* in the receiver's waiting queue, then in its events */
    parcel_event departure; /* in the sender's events */
    parcel *next_free;
    endpoint *from, *to;
    const void *payload;
    void *buffer;
    uint64_t sent_ns, delivered_ns;
    atomic_uint events_left;
    rrfp_message_header header;
};

typedef struct parcel_block {
    struct parcel_block *next;
    parcel parcels[];
} parcel_block;

typedef struct hub {
    uint32_t stages, tensor_size, endpoint_count;
    uint64_t payload_bytes;
    size_t buffer_stride;
    bool poison;
    rrfp_link_delay_fn link_delay;
    void *link_delay_context;
    rrfp_delay_line *delay_line;
    atomic_uint references;
    uint32_t spin_most; /* 0 when there are more endpoints than processors */
    endpoint *endpoints;
} hub;

struct endpoint {
    rrfp_transport base;
    hub *hub;
    uint32_t stage;
    uint32_t spin; /* how long the next wait() looks before it sleeps */

    /* parcels of this sender */
    parcel *free_parcels;                /* the owner's */
    _Atomic(parcel *) returned_parcels;  /* anybody's */
    parcel_block *blocks;
    size_t parcel_count;

    /* buffers of this receiver */
    uint32_t buffer_count;
    unsigned char *buffers;
    _Atomic uint32_t *buffer_next;
    atomic_uchar *buffer_state;

    /* what other threads write, away from the rest */
    _Alignas(RRFP_CACHE_LINE_BYTES) rrfp_event_queue events;
    _Alignas(RRFP_CACHE_LINE_BYTES) _Atomic uint32_t signal;
    atomic_bool woken;
    _Alignas(RRFP_CACHE_LINE_BYTES) _Atomic uint64_t free_buffer; /* tag << 32 | index + 1 */
    rrfp_event_queue waiting; /* parcels without a buffer; popped inside `matching` only */
    atomic_uint waiting_count;
    atomic_uint matching;
};

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- sleeping and waking ------------------------------------------------------------- */

static void signal_endpoint(endpoint *self)
{
    if (atomic_exchange(&self->signal, SIGNAL_SET) == SIGNAL_SLEEPING) {
        rrfp_futex_wake(&self->signal, 1);
    }
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static bool has_reason(endpoint *self)
{
    return rrfp_event_queue_has(&self->events) || atomic_load(&self->woken);
}

/* Looks for a while; the while grows when it helps and shrinks when it does not. */
static bool spin_for_reason(endpoint *self)
{
    for (uint32_t i = 0; i < self->spin; i++) {
        if (has_reason(self)) {
            self->spin = 2 * self->spin < self->hub->spin_most ? 2 * self->spin
                                                               : self->hub->spin_most;
            return true;
        }
        relax();
    }
    if (self->spin > SPIN_LEAST) {
        self->spin /= 2;
    }
    return false;
}

static void endpoint_wait(rrfp_transport *transport, uint64_t timeout_ns)
{
    endpoint *self = (endpoint *)transport;
    uint64_t begin = now_ns();
    uint64_t deadline = timeout_ns < UINT64_MAX - begin ? begin + timeout_ns : UINT64_MAX;

    if (!has_reason(self)) {
        spin_for_reason(self);
    }
    while (!has_reason(self)) {
        uint64_t now = now_ns();
        if (now >= deadline) {
            break;
        }
        uint64_t left = deadline - now;
        struct timespec pause = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
        uint32_t expected = SIGNAL_NONE;
        if (atomic_compare_exchange_strong(&self->signal, &expected, SIGNAL_SLEEPING)) {
            rrfp_futex_wait(&self->signal, SIGNAL_SLEEPING,
                            deadline == UINT64_MAX ? NULL : &pause);
        }
        /* An event is pushed before its signal is set: whoever clears the signal sees it. */
        atomic_exchange(&self->signal, SIGNAL_NONE);
    }
    /* An exchange, to see what the waker did before. */
    atomic_exchange(&self->woken, false);
}

static void endpoint_wake(rrfp_transport *transport)
{
    endpoint *self = (endpoint *)transport;
    atomic_store(&self->woken, true);
    signal_endpoint(self);
}

/* ---- buffers of a receiver ------------------------------------------------------------ */

static uint32_t take_buffer(endpoint *self)
{
    uint64_t head = atomic_load(&self->free_buffer);
    for (;;) {
        uint32_t index = (uint32_t)head - 1;
        if ((uint32_t)head == 0) {
            return NO_BUFFER;
        }
        /* May be stale when another taker was faster; the tag then fails the exchange. */
        uint32_t next = atomic_load(&self->buffer_next[index]);
        uint64_t wanted = ((head >> 32) + 1) << 32 | next;
        if (atomic_compare_exchange_weak(&self->free_buffer, &head, wanted)) {
            return index;
        }
    }
}

static void put_buffer(endpoint *self, uint32_t index)
{
    uint64_t head = atomic_load(&self->free_buffer);
    uint64_t wanted;
    do {
        atomic_store(&self->buffer_next[index], (uint32_t)head);
        wanted = ((head >> 32) + 1) << 32 | (index + 1);
    } while (!atomic_compare_exchange_weak(&self->free_buffer, &head, wanted));
}

/* ---- delivery ------------------------------------------------------------------------- */

static void deliver_into(parcel *message, uint32_t index)
{
    endpoint *to = message->to, *from = message->from;
    message->buffer = to->buffers + (size_t)index * to->hub->buffer_stride;
    if (message->header.payload_bytes > 0) {
        memcpy(message->buffer, message->payload, message->header.payload_bytes);
    }
    atomic_store(&to->buffer_state[index], BUFFER_HELD);
    message->delivered_ns = now_ns();
    rrfp_event_queue_push(&to->events, &message->arrival.node);
    signal_endpoint(to);
    /* The parcel stays ours until its second event is out. */
    rrfp_event_queue_push(&from->events, &message->departure.node);
    signal_endpoint(from);
}

/*
 * Pairs waiting parcels with free buffers.  One thread at a time does it; one
 * that finds another at work only counts itself, and the other looks once more.
 */
static void match_waiting(endpoint *to)
{
    unsigned seen = atomic_fetch_add(&to->matching, 1) + 1;
    if (seen != 1) {
        return;
    }
    do {
        uint32_t index;
        while ((index = take_buffer(to)) != NO_BUFFER) {
            rrfp_event_node *node = rrfp_event_queue_pop(&to->waiting);
            if (node == NULL) {
                put_buffer(to, index);
                break;
            }
            atomic_fetch_sub(&to->waiting_count, 1);
            deliver_into(((parcel_event *)node)->message, index);
        }
    } while (!atomic_compare_exchange_strong(&to->matching, &seen, 0));
}

static void deliver(void *item)
{
    parcel *message = item;
    endpoint *to = message->to;
    /* Those who wait already come first. */
    uint32_t index = atomic_load(&to->waiting_count) == 0 ? take_buffer(to) : NO_BUFFER;
    if (index != NO_BUFFER) {
        deliver_into(message, index);
        return;
    }
    /* Counted before it is queued: a release() that misses the count freed its buffer
     * before, and match_waiting() finds that buffer. */
    atomic_fetch_add(&to->waiting_count, 1);
    rrfp_event_queue_push(&to->waiting, &message->arrival.node);
    match_waiting(to);
}

static void deliver_signal(parcel *message)
{
    endpoint *to = message->to;
    message->buffer = NULL;
    message->delivered_ns = message->sent_ns;
    atomic_store_explicit(&message->events_left, 1, memory_order_relaxed);
    rrfp_event_queue_push(&to->events, &message->arrival.node);
    signal_endpoint(to);
}

/* ---- parcels of a sender -------------------------------------------------------------- */

static rrfp_status add_parcels(endpoint *self, size_t count, rrfp_error *error)
{
    parcel_block *block = NULL;
    if (count <= (SIZE_MAX - sizeof *block) / sizeof(parcel)) {
        block = calloc(1, sizeof *block + count * sizeof(parcel));
    }
    if (block == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM,
                              "stage %u: out of memory for %zu messages under way", self->stage,
                              count);
    }
    block->next = self->blocks;
    self->blocks = block;
    self->parcel_count += count;
    for (size_t i = 0; i < count; i++) {
        parcel *fresh = &block->parcels[i];
        fresh->from = self;
        fresh->arrival.kind = RRFP_TRANSPORT_ARRIVED;
        fresh->departure.kind = RRFP_TRANSPORT_SENT;
        fresh->arrival.message = fresh->departure.message = fresh;
        fresh->next_free = self->free_parcels;
        self->free_parcels = fresh;
    }
    return RRFP_OK;
}

static parcel *take_parcel(endpoint *self, rrfp_error *error)
{
    if (self->free_parcels == NULL) {
        self->free_parcels = atomic_exchange(&self->returned_parcels, NULL);
    }
    if (self->free_parcels == NULL &&
        add_parcels(self, self->parcel_count, error) != RRFP_OK) {
        return NULL;
    }
    parcel *message = self->free_parcels;
    self->free_parcels = message->next_free;
    return message;
}

static void finish_event(parcel *message)
{
    if (atomic_fetch_sub(&message->events_left, 1) != 1) {
        return;
    }
    endpoint *from = message->from;
    parcel *head = atomic_load(&from->returned_parcels);
    do {
        message->next_free = head;
    } while (!atomic_compare_exchange_weak(&from->returned_parcels, &head, message));
}

/* ---- the endpoint's functions ---------------------------------------------------------- */

static rrfp_status endpoint_send(rrfp_transport *transport, const rrfp_message_header *header,
                                 const void *payload, rrfp_error *error)
{
    endpoint *self = (endpoint *)transport;
    hub *shared = self->hub;
    if (header->destination_tensor_rank >= shared->tensor_size) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage %u: message to tensor rank %u, but there are %u",
                              self->stage, header->destination_tensor_rank, shared->tensor_size);
    }
    if (header->destination_stage >= shared->stages) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage %u: message to stage %u, but there are %u stages",
                              self->stage, header->destination_stage, shared->stages);
    }
    if (header->payload_bytes > shared->payload_bytes) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage %u: message of %u bytes, but buffers hold %llu", self->stage,
                              header->payload_bytes, (unsigned long long)shared->payload_bytes);
    }
    parcel *message = take_parcel(self, error);
    if (message == NULL) {
        return RRFP_ERR_NOMEM;
    }
    message->to = &shared->endpoints[header->destination_stage * shared->tensor_size +
                                     header->destination_tensor_rank];
    message->header = *header;
    message->payload = payload;
    message->sent_ns = now_ns();
    if (rrfp_message_is_signal(header)) {
        deliver_signal(message);
        return RRFP_OK;
    }
    atomic_store_explicit(&message->events_left, 2, memory_order_relaxed);
    double delay = 0.0;
    if (shared->link_delay != NULL) {
        delay = shared->link_delay(shared->link_delay_context, header);
    }
    if (delay > 0.0) {
        uint64_t delay_ns = (uint64_t)((delay < LONGEST_DELAY_S ? delay : LONGEST_DELAY_S) * 1e9);
        rrfp_status status =
            rrfp_delay_line_add(shared->delay_line, message->sent_ns + delay_ns, message, error);
        if (status != RRFP_OK) {
            message->next_free = self->free_parcels;
            self->free_parcels = message;
        }
        return status;
    }
    deliver(message);
    return RRFP_OK;
}

static bool endpoint_poll(rrfp_transport *transport, rrfp_transport_event *event)
{
    endpoint *self = (endpoint *)transport;
    rrfp_event_node *node = rrfp_event_queue_pop(&self->events);
    if (node == NULL) {
        return false;
    }
    const parcel_event *taken = (const parcel_event *)node;
    parcel *message = taken->message;
    bool arrived = taken->kind == RRFP_TRANSPORT_ARRIVED;
    event->kind = taken->kind;
    event->header = message->header;
    event->payload = arrived ? message->buffer : (void *)(uintptr_t)message->payload;
    event->time_ns = message->delivered_ns;
    event->sent_ns = message->sent_ns;
    finish_event(message);
    return true;
}

/* Nobody can go on safely after this; without RRFP_DEBUG the call is merely ignored. */
static void refuse_release(const endpoint *self, const void *payload, const char *why)
{
    fprintf(stderr, "rrfp: stage %u releases buffer %p, %s\n", self->stage, payload, why);
#ifdef RRFP_DEBUG
    abort();
#endif
}

static void endpoint_release(rrfp_transport *transport, void *payload)
{
    endpoint *self = (endpoint *)transport;
    size_t stride = self->hub->buffer_stride;
    uintptr_t offset = (uintptr_t)payload - (uintptr_t)self->buffers;
    if (offset % stride != 0 || offset / stride >= self->buffer_count) {
        refuse_release(self, payload, "which is not one of its own");
        return;
    }
    uint32_t index = (uint32_t)(offset / stride);
    if (atomic_load(&self->buffer_state[index]) != BUFFER_HELD) {
        refuse_release(self, payload, "which is free already");
        return;
    }
    if (self->hub->poison) {
        memset(payload, 0xff, stride);
    }
    atomic_store(&self->buffer_state[index], BUFFER_FREE);
    put_buffer(self, index);
    if (atomic_load(&self->waiting_count) != 0) {
        match_waiting(self);
    }
}

static size_t count_free(const parcel *list)
{
    size_t count = 0;
    for (; list != NULL; list = list->next_free) {
        count++;
    }
    return count;
}

/* Nothing has to be waited for, and nothing can be early: stages end and begin steps together. */
static rrfp_status endpoint_settle(rrfp_transport *transport, uint64_t step, uint64_t timeout_ns,
                                   rrfp_error *error)
{
    endpoint *self = (endpoint *)transport;
    (void)timeout_ns;
    size_t sends = self->parcel_count - count_free(self->free_parcels) -
                   count_free(atomic_load(&self->returned_parcels));
    uint32_t held = 0;
    for (uint32_t i = 0; i < self->buffer_count; i++) {
        held += atomic_load(&self->buffer_state[i]) == BUFFER_HELD;
    }
    if (held > 0 || sends > 0 || rrfp_event_queue_has(&self->events)) {
        return rrfp_error_set(error, RRFP_ERR_INTERNAL,
                              "stage %u still has %u buffers that nobody has released and %zu "
                              "sends that nobody has polled%s after the end of step %llu",
                              self->stage, held, sends,
                              rrfp_event_queue_has(&self->events) ? ", and events," : "",
                              (unsigned long long)step);
    }
    return RRFP_OK;
}

/* ---- creation and destruction ---------------------------------------------------------- */

static void hub_free(hub *shared)
{
    rrfp_delay_line_destroy(shared->delay_line); /* first: its thread uses the endpoints */
    for (uint32_t i = 0; shared->endpoints != NULL && i < shared->endpoint_count; i++) {
        endpoint *self = &shared->endpoints[i];
        while (self->blocks != NULL) {
            parcel_block *next = self->blocks->next;
            free(self->blocks);
            self->blocks = next;
        }
        free(self->buffers);
        free(self->buffer_next);
        free(self->buffer_state);
    }
    free(shared->endpoints);
    free(shared);
}

static void endpoint_destroy(rrfp_transport *transport)
{
    if (transport == NULL) {
        return;
    }
    hub *shared = ((endpoint *)transport)->hub;
    if (atomic_fetch_sub(&shared->references, 1) == 1) {
        hub_free(shared);
    }
}

static const rrfp_transport_ops inproc_ops = {
    .send = endpoint_send,
    .poll = endpoint_poll,
    .wait = endpoint_wait,
    .release = endpoint_release,
    .settle = endpoint_settle,
    .wake = endpoint_wake,
    .destroy = endpoint_destroy,
};

static rrfp_status endpoint_init(endpoint *self, hub *shared, uint32_t stage, uint32_t slots,
                                 rrfp_error *error)
{
    self->base.ops = &inproc_ops;
    self->hub = shared;
    self->stage = stage;
    self->spin = shared->spin_most < SPIN_LEAST ? shared->spin_most : SPIN_LEAST;
    self->buffer_count = slots > 0 ? slots : 1;
    rrfp_event_queue_init(&self->events);
    rrfp_event_queue_init(&self->waiting);
    if (self->buffer_count <= SIZE_MAX / shared->buffer_stride) {
        size_t bytes = self->buffer_count * shared->buffer_stride;
        self->buffers = rrfp_message_buffers(bytes);
        if (self->buffers != NULL && shared->poison) {
            memset(self->buffers, 0xff, bytes);
        }
    }
    self->buffer_next = calloc(self->buffer_count, sizeof *self->buffer_next);
    self->buffer_state = calloc(self->buffer_count, sizeof *self->buffer_state);
    if (self->buffers == NULL || self->buffer_next == NULL || self->buffer_state == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM,
                              "stage %u: out of memory for %u message buffers of %zu bytes", stage,
                              self->buffer_count, shared->buffer_stride);
    }
    for (uint32_t i = self->buffer_count; i-- > 0;) {
        put_buffer(self, i);
    }
    return add_parcels(self, 2 * (size_t)self->buffer_count, error);
}

static rrfp_status hub_init(hub *shared, const rrfp_inproc_config *config, rrfp_error *error)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    size_t parcels = 0;
    rrfp_status status = RRFP_OK;

    shared->payload_bytes = config->payload_bytes;
    shared->buffer_stride = ((size_t)config->payload_bytes + RRFP_CACHE_LINE_BYTES - 1) /
                            RRFP_CACHE_LINE_BYTES * RRFP_CACHE_LINE_BYTES;
    if (shared->buffer_stride == 0) {
        shared->buffer_stride = RRFP_CACHE_LINE_BYTES;
    }
    shared->poison = config->poison;
    shared->link_delay = config->link_delay;
    shared->link_delay_context = config->link_delay_context;
    /* Spinning takes the processor from the very stage one waits for when there are few. */
    uint32_t tensor_size = config->tensor_size == 0 ? 1 : config->tensor_size;
    uint32_t count = config->stages * tensor_size;
    shared->spin_most = processors > (long)count ? SPIN_MOST : 0;
    atomic_init(&shared->references, count);

    size_t bytes = count * sizeof *shared->endpoints;
    shared->endpoints = aligned_alloc(RRFP_CACHE_LINE_BYTES, bytes);
    if (shared->endpoints == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for %u message endpoints",
                              count);
    }
    memset(shared->endpoints, 0, bytes);
    shared->stages = config->stages;
    shared->tensor_size = tensor_size;
    shared->endpoint_count = count;
    for (uint32_t i = 0; status == RRFP_OK && i < count; i++) {
        uint32_t stage = i / tensor_size;
        status = endpoint_init(&shared->endpoints[i], shared, stage,
                               config->receive_slots[stage], error);
        parcels += shared->endpoints[i].parcel_count;
    }
    if (status == RRFP_OK && config->link_delay != NULL) {
        status = rrfp_delay_line_create(parcels, deliver, &shared->delay_line, error);
    }
    return status;
}

rrfp_status rrfp_inproc_create(const rrfp_inproc_config *config, rrfp_transport **endpoints,
                               rrfp_error *error)
{
    if (config->stages < 1 || config->stages > RRFP_MAX_STAGES) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "message endpoints for %u stages; there must be 1 to %d",
                              config->stages, RRFP_MAX_STAGES);
    }
    if (config->payload_bytes > UINT32_MAX) { /* the header says the size in 32 bits */
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "a message of %llu bytes is too large; use a smaller micro batch or "
                              "sequence length to stay under 4 GiB",
                              (unsigned long long)config->payload_bytes);
    }
    hub *shared = calloc(1, sizeof *shared);
    if (shared == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for message endpoints");
    }
    rrfp_status status = hub_init(shared, config, error);
    if (status != RRFP_OK) {
        hub_free(shared);
        return status;
    }
    for (uint32_t i = 0; i < shared->endpoint_count; i++) {
        endpoints[i] = &shared->endpoints[i].base;
    }
    return RRFP_OK;
}
