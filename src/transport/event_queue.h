/*
 * event_queue.h - a lock-free intrusive queue: many producers, one consumer
 * (D. Vyukov's "intrusive MPSC node-based queue").
 *
 *   tail ─► node ─► node ─► node ◄─ head
 *   (oldest, the consumer's)        (newest, exchanged by producers)
 *
 * A producer swings `head` first and links its predecessor afterwards; between
 * the two the nodes behind that gap are not visible yet.  So a pop may return
 * NULL although a push has begun, never after it has returned.
 */
#ifndef RRFP_TRANSPORT_EVENT_QUEUE_H
#define RRFP_TRANSPORT_EVENT_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct rrfp_event_node {
    _Atomic(struct rrfp_event_node *) next;
} rrfp_event_node;

typedef struct rrfp_event_queue {
    _Atomic(rrfp_event_node *) head;
    rrfp_event_node *tail;
    rrfp_event_node stub;
} rrfp_event_queue;

static inline void rrfp_event_queue_init(rrfp_event_queue *queue)
{
    atomic_init(&queue->stub.next, NULL);
    atomic_init(&queue->head, &queue->stub);
    queue->tail = &queue->stub;
}

/* Any thread.  The node is the queue's until it is popped. */
static inline void rrfp_event_queue_push(rrfp_event_queue *queue, rrfp_event_node *node)
{
    atomic_store_explicit(&node->next, NULL, memory_order_relaxed);
    rrfp_event_node *before = atomic_exchange_explicit(&queue->head, node, memory_order_acq_rel);
    atomic_store_explicit(&before->next, node, memory_order_release);
}

/* The consumer. */
static inline rrfp_event_node *rrfp_event_queue_pop(rrfp_event_queue *queue)
{
    rrfp_event_node *tail = queue->tail;
    rrfp_event_node *next = atomic_load_explicit(&tail->next, memory_order_acquire);
    if (tail == &queue->stub) {
        if (next == NULL) {
            return NULL;
        }
        queue->tail = tail = next;
        next = atomic_load_explicit(&tail->next, memory_order_acquire);
    }
    if (next == NULL) {
        if (tail != atomic_load_explicit(&queue->head, memory_order_acquire)) {
            return NULL;
        }
        /* The last node: the stub goes behind it so that it can leave. */
        rrfp_event_queue_push(queue, &queue->stub);
        next = atomic_load_explicit(&tail->next, memory_order_acquire);
        if (next == NULL) {
            return NULL;
        }
    }
    queue->tail = next;
    return tail;
}

/* The consumer: whether a pop is worth trying. */
static inline bool rrfp_event_queue_has(rrfp_event_queue *queue)
{
    return queue->tail != &queue->stub ||
           atomic_load_explicit(&queue->tail->next, memory_order_acquire) != NULL;
}

#endif /* RRFP_TRANSPORT_EVENT_QUEUE_H */
