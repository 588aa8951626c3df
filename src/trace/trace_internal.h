/* trace_internal.h - the records behind a trace, for the files of this folder. */
#ifndef RRFP_TRACE_INTERNAL_H
#define RRFP_TRACE_INTERNAL_H

#include "trace/trace.h"

typedef struct rrfp_trace_span { /* norm or update at the end of a step */
    uint64_t start_ns, end_ns, step;
} rrfp_trace_span;

typedef struct rrfp_trace_list {
    void *items;
    size_t count, capacity;
} rrfp_trace_list;

typedef struct rrfp_trace_log { /* of one rank, written by its thread alone */
    _Alignas(64) rrfp_trace_totals totals;
    rrfp_trace_list tasks;    /* rrfp_trace_task, in the order they ran */
    rrfp_trace_list messages; /* rrfp_trace_message received here, in order of arrival */
    rrfp_trace_list gaps;     /* rrfp_trace_gap */
    rrfp_trace_list spans;    /* rrfp_trace_span */
} rrfp_trace_log;

struct rrfp_trace {
    rrfp_shape shape;
    rrfp_layout layout; /* its `pipeline` is the shape's stages */
    uint32_t ranks;
    bool record;
    rrfp_trace_log *logs; /* [ranks] */
};

enum { RRFP_TRACE_NAME_BYTES = 64 };
/* "stage 3", or "stage 3 tp 1 dp 0" where there are several. */
void rrfp_trace_rank_name(const rrfp_trace *trace, uint32_t rank,
                          char name[RRFP_TRACE_NAME_BYTES]);

/* Room for so many more records of each sort. */
rrfp_status rrfp_trace_make_room(rrfp_trace *trace, uint32_t rank, size_t tasks, size_t messages,
                                 size_t gaps, size_t spans, rrfp_error *error);

static inline const rrfp_trace_task *rrfp_trace_tasks(const rrfp_trace_log *log)
{
    return log->tasks.items;
}

static inline const rrfp_trace_message *rrfp_trace_messages(const rrfp_trace_log *log)
{
    return log->messages.items;
}

static inline const rrfp_trace_gap *rrfp_trace_gaps(const rrfp_trace_log *log)
{
    return log->gaps.items;
}

static inline const rrfp_trace_span *rrfp_trace_spans(const rrfp_trace_log *log)
{
    return log->spans.items;
}

#endif /* RRFP_TRACE_INTERNAL_H */
