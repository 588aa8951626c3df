/* report.c - the lines of a run; see report.h. The summary file is in summary.c. */
#include "train/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "train/pipeline_internal.h"

void rrfp_report_begin(rrfp_report *report, FILE *out)
{
    memset(report, 0, sizeof *report);
    report->out = out;
    report->terminal = isatty(fileno(out)) == 1;
    report->begin_ns = rrfp_now_ns();
    report->eval_loss = NAN;
}

void rrfp_report_end(rrfp_report *report)
{
    free(report->steps);
    memset(report, 0, sizeof *report);
}

static void clear_progress(rrfp_report *report)
{
    if (report->progress_shown) {
        fputs("\r\033[K", report->out);
        report->progress_shown = false;
    }
}

void rrfp_report_note(rrfp_report *report, const char *format, ...)
{
    va_list args;
    clear_progress(report);
    va_start(args, format);
    vfprintf(report->out, format, args);
    va_end(args);
    fputc('\n', report->out);
    fflush(report->out);
}

void rrfp_report_header(rrfp_report *report, const rrfp_session *session)
{
    const rrfp_options *options = session->options;
    const rrfp_model_config *model = &session->model;
    const rrfp_hint *hint = rrfp_pipeline_hint(session->pipeline);
    rrfp_report_note(report,
                     "model: %s, %u layers, hidden %u, %u heads, vocabulary %u, %.2f M parameters",
                     model->arch == RRFP_ARCH_LLAMA ? "llama" : "gpt2", model->num_layers,
                     model->hidden, model->heads, model->vocab,
                     (double)rrfp_model_param_count(model) * 1e-6);
    rrfp_report_note(report,
                     "data: %s, %" PRIu64 " tokens, %" PRIu64 " training and %" PRIu64
                     " validation samples, unigram entropy %.4f nats",
                     rrfp_dataset_format(session->dataset), rrfp_dataset_tokens(session->dataset),
                     rrfp_dataset_samples(session->dataset, RRFP_SPLIT_TRAIN),
                     rrfp_dataset_samples(session->dataset, RRFP_SPLIT_VALID),
                     rrfp_dataset_unigram_entropy(session->dataset));
    rrfp_report_note(report,
                     "pipeline: %u stages x %u chunks, %u microbatches, order %s, hint %s%s, "
                     "accumulate %s, at most %u microbatches in flight on stage 0",
                     hint->shape.stages, hint->shape.chunks, hint->shape.microbatches,
                     options->order, hint->name,
                     hint->adapted ? " (re-planned to fit the budget)" : "", options->accumulate,
                     hint->budgets[0].max_inflight);
}

static void print_progress(rrfp_report *report, const rrfp_session *session,
                           const rrfp_step_record *record)
{
    uint64_t total = session->options->train_iters;
    double done = (double)report->step_count;
    double elapsed = (double)(rrfp_now_ns() - report->begin_ns) * 1e-9;
    double left = elapsed / done * (double)(total - record->iteration);
    fprintf(report->out, "\r\033[K%3.0f %%  iteration %" PRIu64 "/%" PRIu64 "  loss %.4f  ETA %.0f s",
            100.0 * (double)record->iteration / (double)total, record->iteration, total,
            (double)record->loss, left);
    fflush(report->out);
    report->progress_shown = true;
}

/* Megatron's line, which people and their parsers grep, with ours at its end. */
static void print_line(rrfp_report *report, const rrfp_session *session,
                       const rrfp_step_record *record)
{
    const rrfp_options *options = session->options;
    char stamp[32];
    struct timespec now;
    struct tm local;
    double seconds = report->interval_s / report->interval_steps;
    double tokens = (double)options->global_batch_size * session->model.seq_length;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", &local);
    rrfp_report_note(
        report,
        " [%s.%06ld] iteration %8" PRIu64 "/%8u | consumed samples: %12" PRIu64
        " | elapsed time per iteration (ms): %.1f | throughput per stage (GFLOP/s): %.1f"
        " | learning rate: %.6E | global batch size: %5u | lm loss: %.6E | loss scale: 1.0"
        " | grad norm: %.3f | number of skipped iterations: %3u"
        " | number of nan iterations: %3u | bubble: %.1f %% | out-of-hint: %.1f %% |",
        stamp, now.tv_nsec / 1000, record->iteration, options->train_iters,
        session->state.consumed_samples, seconds * 1e3,
        tokens * rrfp_model_flops_per_token(&session->model) / seconds * 1e-9 /
            options->pipeline_model_parallel_size,
        record->lr, options->global_batch_size, (double)record->loss, (double)record->grad_norm,
        report->skipped, report->nonfinite, 100.0 * report->interval_bubble / report->interval_steps,
        report->interval_dispatches == 0 ? 0.0
                                         : 100.0 * (double)report->interval_out_of_hint /
                                               (double)report->interval_dispatches);
    report->interval_s = report->interval_bubble = 0.0;
    report->interval_steps = 0;
    report->interval_dispatches = report->interval_out_of_hint = 0;
}

rrfp_status rrfp_report_step(rrfp_report *report, const rrfp_session *session,
                             const rrfp_step_record *record, const rrfp_step_result *result,
                             rrfp_error *error)
{
    if (report->step_count == report->step_capacity) {
        size_t capacity = report->step_capacity == 0 ? 256 : 2 * report->step_capacity;
        rrfp_step_record *steps = realloc(report->steps, capacity * sizeof *steps);
        if (steps == NULL) {
            return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for the step records");
        }
        report->steps = steps;
        report->step_capacity = capacity;
    }
    report->steps[report->step_count++] = *record;
    report->interval_s += record->wall_s;
    report->interval_bubble += result->bubble;
    report->interval_steps++;
    report->interval_dispatches += result->dispatches;
    report->interval_out_of_hint += result->out_of_hint;
    if (record->nonfinite) {
        report->skipped++;
        report->nonfinite++;
        rrfp_report_note(report,
                         "iteration %" PRIu64 ": loss %g or gradient norm %g is not finite: the "
                         "update was skipped on every stage",
                         record->iteration, (double)record->loss, (double)record->grad_norm);
    }
    const rrfp_options *options = session->options;
    if (options->log_interval > 0 && (record->iteration % options->log_interval == 0 ||
                                      record->iteration == options->train_iters)) {
        print_line(report, session, record);
    }
    if (report->terminal && record->iteration < options->train_iters) {
        print_progress(report, session, record);
    }
    return RRFP_OK;
}

void rrfp_report_eval(rrfp_report *report, uint64_t iteration, double loss)
{
    report->eval_loss = loss;
    rrfp_report_note(report,
                     " validation loss at iteration %" PRIu64 " | lm loss value: %.6E | lm loss PPL: "
                     "%.6E |",
                     iteration, loss, exp(loss));
}

void rrfp_report_summary(rrfp_report *report, const rrfp_session *session)
{
    const rrfp_options *options = session->options;
    double wall = 0.0;
    for (size_t i = 0; i < report->step_count; i++) {
        wall += report->steps[i].wall_s;
    }
    double tokens = (double)report->step_count * options->global_batch_size *
                    session->model.seq_length;
    rrfp_report_note(report,
                     "done: %zu iterations in %.1f s, %.0f tokens/s, %.2f GFLOP/s (model)",
                     report->step_count, wall, wall > 0 ? tokens / wall : 0.0,
                     wall > 0 ? tokens * rrfp_model_flops_per_token(&session->model) / wall * 1e-9
                              : 0.0);
    rrfp_report_note(report, "%5s %8s %8s %8s %8s %8s %8s %8s %9s %8s %10s %11s %9s", "stage",
                     "busy s", "update s", "budget", "order", "input F", "input B", "drain",
                     "collect", "tasks", "out-of-hint", "in flight", "peak MiB");
    for (uint32_t s = 0; s < options->pipeline_model_parallel_size; s++) {
        rrfp_rank_totals totals;
        rrfp_pipeline_rank_totals(session->pipeline, s, &totals);
        const uint64_t *idle = totals.time.idle_ns;
        rrfp_report_note(
            report,
            "%5u %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %9.2f %8" PRIu64 " %10" PRIu64
            " %11u %9.1f",
            s, (double)totals.time.busy_ns * 1e-9, (double)totals.time.optimizer_ns * 1e-9,
            (double)idle[RRFP_TRACE_IDLE_BUDGET] * 1e-9, (double)idle[RRFP_TRACE_IDLE_ORDER] * 1e-9,
            (double)idle[RRFP_TRACE_IDLE_INPUT_F] * 1e-9,
            (double)idle[RRFP_TRACE_IDLE_INPUT_B] * 1e-9,
            (double)idle[RRFP_TRACE_IDLE_DRAIN] * 1e-9,
            (double)idle[RRFP_TRACE_IDLE_COLLECTIVE] * 1e-9, totals.time.tasks,
            totals.time.out_of_hint, totals.peak_inflight,
            (double)totals.peak_inflight_bytes / (1024.0 * 1024.0));
    }
}
