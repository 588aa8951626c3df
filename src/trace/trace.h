/*
 * trace.h - what every rank did, when, and why it did nothing.
 *
 * Each rank appends to its own buffers (no lock, no allocation in a step);
 * with one rank per stage its number is the stage's, else see launch/layout.h.  Reading is allowed while no step runs.  Times are CLOCK_MONOTONIC ns.
 */
#ifndef RRFP_TRACE_H
#define RRFP_TRACE_H

#include <stdio.h>

#include "launch/layout.h"
#include "rrfp/stage.h"

typedef struct rrfp_trace_task {
    uint64_t ready_ns, start_ns, end_ns; /* ready: all inputs here */
    uint64_t step;
    rrfp_task task;
    uint32_t global_chunk;
    bool out_of_hint;
} rrfp_trace_task;

typedef struct rrfp_trace_message {
    uint64_t sent_ns, arrived_ns;
    uint64_t step;
    uint32_t source_stage, destination_stage;
    uint32_t source_global_chunk, destination_global_chunk;
    uint32_t microbatch;
    uint32_t bytes;
    uint8_t kind; /* RRFP_F or RRFP_B */
} rrfp_trace_message;

/* Idle reasons of the machine, and those only the driver knows. */
typedef enum rrfp_trace_idle {
    RRFP_TRACE_IDLE_BUDGET = 0, /* RRFP_IDLE_BUDGET */
    RRFP_TRACE_IDLE_ORDER,
    RRFP_TRACE_IDLE_INPUT_F,
    RRFP_TRACE_IDLE_INPUT_B,
    RRFP_TRACE_IDLE_DRAIN,
    RRFP_TRACE_IDLE_GROUP,      /* RRFP_IDLE_GROUP */
    RRFP_TRACE_IDLE_REDUCTION,  /* free for tasks, and summing gradients over replicas */
    RRFP_TRACE_IDLE_COLLECTIVE, /* waits for other ranks at the end of a step */
    RRFP_TRACE_IDLE_COUNT
} rrfp_trace_idle;
const char *rrfp_trace_idle_name(rrfp_trace_idle reason); /* "no_input_f", ... stable JSON keys */

typedef struct rrfp_trace_gap {
    uint64_t start_ns, end_ns, step;
    rrfp_trace_idle reason;
} rrfp_trace_gap;

typedef struct rrfp_trace rrfp_trace;

typedef struct rrfp_trace_totals { /* per rank, over all steps, kept even when not recording */
    uint64_t busy_ns;      /* in tasks */
    uint64_t optimizer_ns; /* norm + update */
    uint64_t idle_ns[RRFP_TRACE_IDLE_COUNT];
    uint64_t tasks, out_of_hint;
} rrfp_trace_totals;

/* `layout`: NULL for one rank per stage.  `record` false keeps totals only.  The buffers grow in
 * rrfp_trace_reserve() alone. */
rrfp_status rrfp_trace_create(const rrfp_shape *shape, const rrfp_layout *layout, bool record,
                              rrfp_trace **out, rrfp_error *error);
void rrfp_trace_destroy(rrfp_trace *trace);
/* Between steps, on the rank's own thread: makes room for one more step.  Records beyond the
 * room are left out of the files, the totals stay complete. */
rrfp_status rrfp_trace_reserve(rrfp_trace *trace, uint32_t rank, rrfp_error *error);
void rrfp_trace_add_task(rrfp_trace *trace, uint32_t rank, const rrfp_trace_task *task);
void rrfp_trace_add_message(rrfp_trace *trace, uint32_t receiving_rank,
                            const rrfp_trace_message *message);
void rrfp_trace_add_gap(rrfp_trace *trace, uint32_t rank, const rrfp_trace_gap *gap);
void rrfp_trace_add_optimizer(rrfp_trace *trace, uint32_t rank, uint64_t step,
                              uint64_t start_ns, uint64_t end_ns);
const rrfp_trace_totals *rrfp_trace_get_totals(const rrfp_trace *trace, uint32_t rank);

/*
 * The records of one rank as bytes, for a process of the same build; freed by the caller.  Adding
 * them puts them behind what the rank has; bytes that are no such records are refused.
 */
rrfp_status rrfp_trace_pack(const rrfp_trace *trace, uint32_t rank, void **data, size_t *bytes,
                            rrfp_error *error);
rrfp_status rrfp_trace_add_packed(rrfp_trace *trace, uint32_t rank, const void *data,
                                  size_t bytes, rrfp_error *error);

/* Labels for the files below; all borrowed during the call. */
typedef struct rrfp_trace_labels { const char *order, *hint, *title; } rrfp_trace_labels;

/*
 * Chrome trace events that Perfetto opens: pid 0, one track per rank plus one
 * for its idle gaps; complete slices named like "F 3" with kind, chunk,
 * microbatch, step, ready time and wait in args; flow arrows for messages;
 * counters of the activations in flight.  Written to a temporary file and renamed.
 */
rrfp_status rrfp_trace_write_chrome(const rrfp_trace *trace, const rrfp_trace_labels *labels,
                                    const char *path, rrfp_error *error);

/* Labels that came out of a file. */
typedef struct rrfp_trace_file_labels { char order[64], hint[256], title[256]; }
    rrfp_trace_file_labels;

/*
 * Reads such a file back (*given*; the caller destroys it).  Times count from the
 * earliest record.  Hostile files give an error, never more.
 */
rrfp_status rrfp_trace_read_chrome(const char *path, rrfp_trace **out,
                                   rrfp_trace_file_labels *labels, rrfp_error *error);

/* First and last step that has a task; false when nothing was recorded. */
bool rrfp_trace_steps(const rrfp_trace *trace, uint64_t *first, uint64_t *last);

/* A picture of one step: a row per rank, F blue, B green, W orange, microbatch in the box,
 * lighter for later chunks, idle white.  RRFP_ERR_INVALID if the step was not recorded. */
rrfp_status rrfp_trace_write_svg(const rrfp_trace *trace, const rrfp_trace_labels *labels,
                                 uint64_t step, const char *path, rrfp_error *error);

typedef struct rrfp_trace_picture {
    const rrfp_trace *trace;
    rrfp_trace_labels labels;
    uint64_t step;
} rrfp_trace_picture;
/* Steps of `count` traces, one above the other on the same time axis. */
rrfp_status rrfp_trace_write_svg_compare(const rrfp_trace_picture *pictures, size_t count,
                                         const char *path, rrfp_error *error);

enum { RRFP_TRACE_ALL_STEPS = -1 };
/*
 * A table for people, a line per rank, of one step or of all: time in tasks and
 * in the optimizer, idle time by reason, bubble (idle share of the task phase:
 * all but optimizer and collective), how long tasks that were ready waited for
 * their start (quantiles), and tasks started out of the hint's order.
 */
rrfp_status rrfp_trace_write_report(const rrfp_trace *trace, const rrfp_trace_labels *labels,
                                    int64_t step, FILE *out, rrfp_error *error);

#endif /* RRFP_TRACE_H */
