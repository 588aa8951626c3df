/* trace.c - the records and sums of every rank. */
#include "trace/trace.h"

#include <stdlib.h>
#include <string.h>

#include "trace/trace_internal.h"

/*
 * Most records of one step, per chunk and microbatch: F, B and W; an activation
 * and a gradient received; a new reason to be idle after each input, each end of
 * a task, each completed send and each decision.  Per step: the meetings, the norm, the update.
 */
enum { STEP_TASKS = 3, STEP_MESSAGES = 2, STEP_GAPS = 10, STEP_MEETINGS = 8, STEP_SPANS = 4 };

const char *rrfp_trace_idle_name(rrfp_trace_idle reason)
{
    switch (reason) {
    case RRFP_TRACE_IDLE_BUDGET:
        return "budget";
    case RRFP_TRACE_IDLE_ORDER:
        return "order";
    case RRFP_TRACE_IDLE_INPUT_F:
        return "no_input_f";
    case RRFP_TRACE_IDLE_INPUT_B:
        return "no_input_b";
    case RRFP_TRACE_IDLE_DRAIN:
        return "drain";
    case RRFP_TRACE_IDLE_GROUP:
        return "group";
    case RRFP_TRACE_IDLE_REDUCTION:
        return "reduction";
    case RRFP_TRACE_IDLE_COLLECTIVE:
        return "collective";
    case RRFP_TRACE_IDLE_COUNT:
        break;
    }
    return "?";
}

rrfp_status rrfp_trace_create(const rrfp_shape *shape, const rrfp_layout *layout, bool record,
                              rrfp_trace **out, rrfp_error *error)
{
    rrfp_status status = rrfp_shape_check(shape, error);
    if (status != RRFP_OK) {
        return status;
    }
    rrfp_layout places = {1, 1, shape->stages};
    if (layout != NULL) {
        places = *layout;
    }
    uint32_t ranks = places.tensor * places.data * shape->stages;
    rrfp_trace *trace = calloc(1, sizeof *trace);
    size_t bytes = ranks * sizeof *trace->logs;
    rrfp_trace_log *logs = aligned_alloc(_Alignof(rrfp_trace_log), bytes);
    if (trace == NULL || logs == NULL) {
        free(trace);
        free(logs);
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for the trace of %u ranks",
                              ranks);
    }
    memset(logs, 0, bytes);
    *trace = (rrfp_trace){
        .shape = *shape, .layout = places, .ranks = ranks, .record = record, .logs = logs};
    *out = trace;
    return RRFP_OK;
}

void rrfp_trace_rank_name(const rrfp_trace *trace, uint32_t rank,
                          char name[RRFP_TRACE_NAME_BYTES])
{
    rrfp_layout_place place = rrfp_layout_place_of(&trace->layout, rank);
    int used = snprintf(name, RRFP_TRACE_NAME_BYTES, "stage %u", place.stage);
    if (trace->layout.tensor > 1) {
        used += snprintf(name + used, RRFP_TRACE_NAME_BYTES - (size_t)used, " tp %u",
                         place.tensor_rank);
    }
    if (trace->layout.data > 1) {
        snprintf(name + used, RRFP_TRACE_NAME_BYTES - (size_t)used, " dp %u", place.data_rank);
    }
}

void rrfp_trace_destroy(rrfp_trace *trace)
{
    if (trace == NULL) {
        return;
    }
    for (uint32_t r = 0; r < trace->ranks; r++) {
        free(trace->logs[r].tasks.items);
        free(trace->logs[r].messages.items);
        free(trace->logs[r].gaps.items);
        free(trace->logs[r].spans.items);
    }
    free(trace->logs);
    free(trace);
}

static bool list_make_room(rrfp_trace_list *list, size_t more, size_t item_bytes)
{
    if (list->capacity - list->count >= more) {
        return true;
    }
    if (more > SIZE_MAX / 4 || list->count > SIZE_MAX / 4) {
        return false;
    }
    size_t capacity = list->count + more;
    if (capacity < 2 * list->capacity) {
        capacity = 2 * list->capacity;
    }
    void *items = reallocarray(list->items, capacity, item_bytes);
    if (items == NULL) {
        return false;
    }
    list->items = items;
    list->capacity = capacity;
    return true;
}

rrfp_status rrfp_trace_make_room(rrfp_trace *trace, uint32_t rank, size_t tasks, size_t messages,
                                 size_t gaps, size_t spans, rrfp_error *error)
{
    rrfp_trace_log *log = &trace->logs[rank];
    if (list_make_room(&log->tasks, tasks, sizeof(rrfp_trace_task)) &&
        list_make_room(&log->messages, messages, sizeof(rrfp_trace_message)) &&
        list_make_room(&log->gaps, gaps, sizeof(rrfp_trace_gap)) &&
        list_make_room(&log->spans, spans, sizeof(rrfp_trace_span))) {
        return RRFP_OK;
    }
    return rrfp_error_set(error, RRFP_ERR_NOMEM,
                          "rank %u: out of memory for the trace; trace fewer steps or turn it off",
                          rank);
}

rrfp_status rrfp_trace_reserve(rrfp_trace *trace, uint32_t rank, rrfp_error *error)
{
    size_t cells = (size_t)trace->shape.chunks * trace->shape.microbatches;
    if (!trace->record) {
        return RRFP_OK;
    }
    return rrfp_trace_make_room(trace, rank, STEP_TASKS * cells, STEP_MESSAGES * cells,
                                STEP_GAPS * cells + STEP_MEETINGS, STEP_SPANS, error);
}

/* The next record, or NULL when there is no room: it is left out, the sums stay complete. */
static void *list_next(const rrfp_trace *trace, rrfp_trace_list *list, size_t item_bytes)
{
    if (!trace->record || list->count == list->capacity) {
        return NULL;
    }
    return (char *)list->items + item_bytes * list->count++;
}

void rrfp_trace_add_task(rrfp_trace *trace, uint32_t rank, const rrfp_trace_task *task)
{
    rrfp_trace_log *log = &trace->logs[rank];
    log->totals.busy_ns += task->end_ns - task->start_ns;
    log->totals.tasks++;
    log->totals.out_of_hint += task->out_of_hint;
    rrfp_trace_task *record = list_next(trace, &log->tasks, sizeof *record);
    if (record != NULL) {
        *record = *task;
    }
}

void rrfp_trace_add_message(rrfp_trace *trace, uint32_t receiving_rank,
                            const rrfp_trace_message *message)
{
    rrfp_trace_log *log = &trace->logs[receiving_rank];
    rrfp_trace_message *record = list_next(trace, &log->messages, sizeof *record);
    if (record != NULL) {
        *record = *message;
    }
}

void rrfp_trace_add_gap(rrfp_trace *trace, uint32_t rank, const rrfp_trace_gap *gap)
{
    rrfp_trace_log *log = &trace->logs[rank];
    log->totals.idle_ns[gap->reason] += gap->end_ns - gap->start_ns;
    rrfp_trace_gap *record = list_next(trace, &log->gaps, sizeof *record);
    if (record != NULL) {
        *record = *gap;
    }
}

void rrfp_trace_add_optimizer(rrfp_trace *trace, uint32_t rank, uint64_t step,
                              uint64_t start_ns, uint64_t end_ns)
{
    rrfp_trace_log *log = &trace->logs[rank];
    log->totals.optimizer_ns += end_ns - start_ns;
    rrfp_trace_span *record = list_next(trace, &log->spans, sizeof *record);
    if (record != NULL) {
        *record = (rrfp_trace_span){start_ns, end_ns, step};
    }
}

const rrfp_trace_totals *rrfp_trace_get_totals(const rrfp_trace *trace, uint32_t rank)
{
    return &trace->logs[rank].totals;
}

bool rrfp_trace_steps(const rrfp_trace *trace, uint64_t *first, uint64_t *last)
{
    bool found = false;
    for (uint32_t r = 0; r < trace->ranks; r++) {
        for (size_t i = 0; i < trace->logs[r].tasks.count; i++) {
            uint64_t step = rrfp_trace_tasks(&trace->logs[r])[i].step;
            *first = !found || step < *first ? step : *first;
            *last = !found || step > *last ? step : *last;
            found = true;
        }
    }
    return found;
}
