/*
 * delay_line.h - items that become due later: one thread and a heap of times.
 *
 * add() comes from any thread; `deliver` is called on the line's own thread,
 * one item at a time, earliest due first, never before it is due.
 */
#ifndef RRFP_TRANSPORT_DELAY_LINE_H
#define RRFP_TRANSPORT_DELAY_LINE_H

#include <stddef.h>
#include <stdint.h>

#include "rrfp/status.h"

typedef void (*rrfp_delay_deliver_fn)(void *item);

typedef struct rrfp_delay_line rrfp_delay_line;

/* Starts the thread. `capacity` items fit before the heap must grow. */
rrfp_status rrfp_delay_line_create(size_t capacity, rrfp_delay_deliver_fn deliver,
                                   rrfp_delay_line **out, rrfp_error *error);
/* Stops the thread; items not yet due are forgotten, not delivered.  NULL is fine. */
void rrfp_delay_line_destroy(rrfp_delay_line *line);
/* `due_ns` is a CLOCK_MONOTONIC time. */
rrfp_status rrfp_delay_line_add(rrfp_delay_line *line, uint64_t due_ns, void *item,
                                rrfp_error *error);

#endif /* RRFP_TRANSPORT_DELAY_LINE_H */
