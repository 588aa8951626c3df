/* trace_report.c - what every rank did, as a table for people. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "trace/trace_internal.h"

typedef struct stage_sums {
    uint64_t busy_ns, optimizer_ns, idle_ns[RRFP_TRACE_IDLE_COUNT];
    uint64_t tasks, out_of_hint;
    double wait_ms[4]; /* p50, p90, p99, longest */
} stage_sums;

static bool chosen(int64_t wanted, uint64_t step)
{
    return wanted == RRFP_TRACE_ALL_STEPS || step == (uint64_t)wanted;
}

static int compare_times(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Nearest rank: the smallest wait that at least `percent` of the tasks do not exceed. */
static double quantile_ms(const uint64_t *sorted, size_t count, unsigned percent)
{
    size_t rank = (count * percent + 99) / 100;
    return (double)sorted[rank > 0 ? rank - 1 : 0] * 1e-6;
}

static void add_up(const rrfp_trace_log *log, int64_t step, uint64_t *waits, stage_sums *sums)
{
    size_t count = 0;
    *sums = (stage_sums){0};
    for (size_t i = 0; i < log->tasks.count; i++) {
        const rrfp_trace_task *task = &rrfp_trace_tasks(log)[i];
        if (chosen(step, task->step)) {
            sums->busy_ns += task->end_ns - task->start_ns;
            sums->out_of_hint += task->out_of_hint;
            waits[count++] =
                task->start_ns > task->ready_ns ? task->start_ns - task->ready_ns : 0;
        }
    }
    for (size_t i = 0; i < log->gaps.count; i++) {
        const rrfp_trace_gap *gap = &rrfp_trace_gaps(log)[i];
        if (chosen(step, gap->step)) {
            sums->idle_ns[gap->reason] += gap->end_ns - gap->start_ns;
        }
    }
    for (size_t i = 0; i < log->spans.count; i++) {
        const rrfp_trace_span *span = &rrfp_trace_spans(log)[i];
        if (chosen(step, span->step)) {
            sums->optimizer_ns += span->end_ns - span->start_ns;
        }
    }
    sums->tasks = count;
    if (count > 0) {
        qsort(waits, count, sizeof *waits, compare_times);
        sums->wait_ms[0] = quantile_ms(waits, count, 50);
        sums->wait_ms[1] = quantile_ms(waits, count, 90);
        sums->wait_ms[2] = quantile_ms(waits, count, 99);
        sums->wait_ms[3] = quantile_ms(waits, count, 100);
    }
}

/* Idle share of the phase in which tasks run. */
static double bubble_percent(const stage_sums *sums)
{
    uint64_t idle_ns = 0;
    for (int reason = 0; reason < RRFP_TRACE_IDLE_COUNT; reason++) {
        idle_ns += reason == RRFP_TRACE_IDLE_COLLECTIVE ? 0 : sums->idle_ns[reason];
    }
    uint64_t phase_ns = idle_ns + sums->busy_ns;
    return phase_ns > 0 ? 100.0 * (double)idle_ns / (double)phase_ns : 0.0;
}

/* Wide enough for the longest name; with one rank per stage its number does. */
static int name_width(const rrfp_trace *trace)
{
    return trace->ranks == trace->shape.stages ? 5 : 17;
}

static void write_head(const rrfp_trace *trace, const rrfp_trace_labels *labels, int64_t step,
                       uint64_t first, uint64_t last, FILE *out)
{
    fprintf(out, "%s: order %s, hint %s, ", labels->title != NULL ? labels->title : "",
            labels->order != NULL ? labels->order : "", labels->hint != NULL ? labels->hint : "");
    if (step == RRFP_TRACE_ALL_STEPS) {
        fprintf(out, "steps %" PRIu64 " to %" PRIu64 ", times in ms\n", first, last);
    } else {
        fprintf(out, "step %" PRId64 ", times in ms\n", step);
    }
    fprintf(out, "%*s %6s %10s %9s", name_width(trace),
            trace->ranks == trace->shape.stages ? "stage" : "rank", "tasks", "busy", "optimizer");
    for (int reason = 0; reason < RRFP_TRACE_IDLE_COUNT; reason++) {
        fprintf(out, " %10s", rrfp_trace_idle_name((rrfp_trace_idle)reason));
    }
    fprintf(out, " %8s %9s %9s %9s %9s %11s\n", "bubble %", "wait p50", "p90", "p99", "max",
            "out-of-hint");
}

rrfp_status rrfp_trace_write_report(const rrfp_trace *trace, const rrfp_trace_labels *labels,
                                    int64_t step, FILE *out, rrfp_error *error)
{
    uint64_t first = 0, last = 0, tasks = 0;
    size_t most = 1;
    if (!rrfp_trace_steps(trace, &first, &last)) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "the trace has no tasks");
    }
    for (uint32_t r = 0; r < trace->ranks; r++) {
        const rrfp_trace_log *log = &trace->logs[r];
        most = log->tasks.count > most ? log->tasks.count : most;
        for (size_t i = 0; i < log->tasks.count; i++) {
            tasks += chosen(step, rrfp_trace_tasks(log)[i].step);
        }
    }
    if (tasks == 0) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "step %" PRId64 " is not in the trace; it has steps %" PRIu64
                              " to %" PRIu64,
                              step, first, last);
    }
    uint64_t *waits = calloc(most, sizeof *waits);
    if (waits == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for %zu tasks", most);
    }
    write_head(trace, labels, step, first, last, out);
    for (uint32_t r = 0; r < trace->ranks; r++) {
        stage_sums sums;
        add_up(&trace->logs[r], step, waits, &sums);
        char name[RRFP_TRACE_NAME_BYTES];
        rrfp_trace_rank_name(trace, r, name);
        const char *shown = trace->ranks == trace->shape.stages ? name + strlen("stage ") : name;
        fprintf(out, "%*s %6" PRIu64 " %10.3f %9.3f", name_width(trace), shown, sums.tasks,
                (double)sums.busy_ns * 1e-6, (double)sums.optimizer_ns * 1e-6);
        for (int reason = 0; reason < RRFP_TRACE_IDLE_COUNT; reason++) {
            fprintf(out, " %10.3f", (double)sums.idle_ns[reason] * 1e-6);
        }
        fprintf(out, " %8.2f %9.3f %9.3f %9.3f %9.3f %11" PRIu64 "\n", bubble_percent(&sums),
                sums.wait_ms[0], sums.wait_ms[1], sums.wait_ms[2], sums.wait_ms[3],
                sums.out_of_hint);
    }
    free(waits);
    return RRFP_OK;
}
