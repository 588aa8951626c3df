/* summary.c - the summary file; keys are stable, see docs/summary.md. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic_file.h"
#include "train/report.h"

static json_t *bits(float value)
{
    char text[16];
    uint32_t raw;
    memcpy(&raw, &value, sizeof raw);
    snprintf(text, sizeof text, "%08" PRIx32, raw);
    return json_string(text);
}

/* JSON has no NaN: a non-finite number is null, its bits tell which. */
static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *steps_json(const rrfp_report *report)
{
    json_t *steps = json_array();
    for (size_t i = 0; i < report->step_count; i++) {
        const rrfp_step_record *record = &report->steps[i];
        json_array_append_new(
            steps, json_pack("{s:I,s:o,s:o,s:o,s:o,s:f,s:f,s:b}", "iteration",
                             (json_int_t)record->iteration, "loss", number((double)record->loss),
                             "loss_bits", bits(record->loss), "grad_norm",
                             number((double)record->grad_norm), "grad_norm_bits",
                             bits(record->grad_norm), "learning_rate", record->lr, "wall_s",
                             record->wall_s, "nonfinite", record->nonfinite));
    }
    return steps;
}

static json_t *stages_json(const rrfp_session *session)
{
    json_t *stages = json_array();
    const rrfp_hint *hint = rrfp_pipeline_hint(session->pipeline);
    for (uint32_t s = 0; s < hint->shape.stages; s++) {
        rrfp_rank_totals totals;
        rrfp_pipeline_rank_totals(session->pipeline, s, &totals);
        json_t *idle = json_object();
        for (int reason = 0; reason < RRFP_TRACE_IDLE_COUNT; reason++) {
            json_object_set_new(idle, rrfp_trace_idle_name((rrfp_trace_idle)reason),
                                json_real((double)totals.time.idle_ns[reason] * 1e-9));
        }
        json_array_append_new(
            stages,
            json_pack("{s:I,s:f,s:f,s:f,s:o,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "stage", (json_int_t)s,
                      "busy_s", (double)totals.time.busy_ns * 1e-9, "optimizer_s",
                      (double)totals.time.optimizer_ns * 1e-9, "machine_s",
                      (double)totals.machine_ns * 1e-9, "idle_s", idle, "peak_inflight",
                      (json_int_t)totals.peak_inflight, "peak_inflight_bytes",
                      (json_int_t)totals.peak_inflight_bytes, "peak_pending_w",
                      (json_int_t)totals.peak_pending_w, "max_inflight",
                      (json_int_t)hint->budgets[s].max_inflight, "max_pending_w",
                      (json_int_t)hint->budgets[s].max_pending_w, "dispatches",
                      (json_int_t)totals.time.tasks, "out_of_hint",
                      (json_int_t)totals.time.out_of_hint));
    }
    return stages;
}

rrfp_status rrfp_report_write_json(const rrfp_report *report, const rrfp_session *session,
                                   const char *path, rrfp_error *error)
{
    const rrfp_options *options = session->options;
    const rrfp_hint *hint = rrfp_pipeline_hint(session->pipeline);
    char sha256[65];
    double wall = 0.0;
    for (size_t i = 0; i < report->step_count; i++) {
        wall += report->steps[i].wall_s;
    }
    double tokens = (double)report->step_count * options->global_batch_size *
                    session->model.seq_length;
    rrfp_pipeline_weights_sha256(session->pipeline, sha256);
    json_t *root = json_pack(
        "{s:s,s:s,s:b,s:I,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:s,s:f,s:f,s:f,s:o,s:o,s:o}", "order",
        options->order, "hint", hint->name, "hint_adapted", hint->adapted, "hint_distance",
        hint->hint_distance == RRFP_DISTANCE_UNBOUNDED ? (json_int_t)-1
                                                       : (json_int_t)hint->hint_distance,
        "accumulate", options->accumulate, "jitter", options->jitter,
        "pipeline_model_parallel_size", (json_int_t)hint->shape.stages, "virtual_stages",
        (json_int_t)hint->shape.chunks, "microbatches", (json_int_t)hint->shape.microbatches,
        "iteration", (json_int_t)session->state.iteration, "consumed_samples",
        (json_int_t)session->state.consumed_samples, "weights_sha256", sha256, "wall_s", wall,
        "tokens_per_s", wall > 0 ? tokens / wall : 0.0, "flops_per_s",
        wall > 0 ? tokens * rrfp_model_flops_per_token(&session->model) / wall : 0.0, "eval_loss",
        number(report->eval_loss), "steps", steps_json(report), "stages", stages_json(session));
    char *text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    json_decref(root);
    if (text == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for the summary %s", path);
    }
    rrfp_status status = rrfp_atomic_file_write(path, text, strlen(text), error);
    free(text);
    return status;
}
