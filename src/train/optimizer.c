/*
 * optimizer.c - the end of a training step, on every stage's thread.
 *
 *   all tasks done ──A── tied gradients added, sums of squares per tensor ──B──
 *   one stage: loss, norm, verdict ──C── update or skip, gradients to zero
 *
 * With processes A, B and C are passed by one stage each, and the verdict is rank 0's.
 *
 * Every stage passes A, B and C in every step, whatever it owns and whatever
 * happened.  Sums run in a fixed order (microbatches; parameters by global
 * index), so they do not depend on the pipeline.  A tied embedding is one
 * tensor: its two gradients are added once, embedding side first, and its norm
 * counts once.
 */
#include <math.h>
#include <string.h>

#include "train/pipeline_internal.h"

static const rrfp_checkpoint_entry *owner_of(const rrfp_pipeline *pipeline, uint32_t global_index)
{
    for (size_t i = 0; i < pipeline->entry_count; i++) {
        const rrfp_param *param = pipeline->entries[i].param;
        if (!param->tied_copy && param->global_index == global_index) {
            return &pipeline->entries[i];
        }
    }
    return NULL;
}

/* The embedding's owner adds the head's gradient; both stages are past their tasks. */
static void add_tied_gradients(rrfp_worker *worker)
{
    rrfp_pipeline *pipeline = worker->pipeline;
    for (size_t i = 0; i < pipeline->entry_count; i++) {
        const rrfp_param *copy = pipeline->entries[i].param;
        const rrfp_checkpoint_entry *owner =
            copy->tied_copy ? owner_of(pipeline, copy->global_index) : NULL;
        if (owner == NULL || owner->elsewhere != pipeline->entries[i].elsewhere) {
            continue; /* in two processes: see rrfp_pipeline_exchange_tied() */
        }
        if (pipeline->entry_stage[owner - pipeline->entries] == worker->stage) {
            rrfp_add(owner->param->grad, copy->grad, copy->count);
        }
    }
}

static void sum_squares(rrfp_worker *worker)
{
    rrfp_pipeline *pipeline = worker->pipeline;
    for (size_t i = 0; i < pipeline->entry_count; i++) {
        const rrfp_param *param = pipeline->entries[i].param;
        if (pipeline->entry_stage[i] == worker->stage && !param->tied_copy) {
            pipeline->squares[param->global_index] =
                rrfp_sum_of_squares(param->grad, param->count);
        }
    }
}

/* What the stages here did in the task phase, and whether the caller wants to stop. */
static void note_phase(rrfp_pipeline *pipeline, rrfp_verdict *sum)
{
    uint64_t first = UINT64_MAX, last = 0;
    *sum = (rrfp_verdict){0};
    for (uint32_t i = 0; i < pipeline->here; i++) {
        const rrfp_worker *worker = &pipeline->workers[pipeline->first_here + i];
        first = worker->phase_begin_ns < first ? worker->phase_begin_ns : first;
        last = worker->phase_end_ns > last ? worker->phase_end_ns : last;
        sum->busy_ns += worker->phase_busy_ns;
        sum->dispatches += worker->dispatches;
        sum->out_of_hint += worker->out_of_hint;
    }
    sum->span_ns = last - first;
    if (pipeline->config.stop_wanted != NULL) {
        sum->stop = pipeline->config.stop_wanted(pipeline->config.stop_context);
    }
}

/* The first stage here, between B and C: the others wait, so plain fields will do. */
static rrfp_status take_verdict(rrfp_pipeline *pipeline, rrfp_error *error)
{
    rrfp_verdict verdict;
    double squares = 0.0, loss = 0.0;
    double tokens = (double)pipeline->config.model.micro_batch *
                    pipeline->config.model.seq_length * pipeline->shape.microbatches;
    note_phase(pipeline, &verdict);
    if (pipeline->config.ranks != NULL) {
        rrfp_status status = rrfp_pipeline_gather_step(pipeline, &verdict, error);
        if (status != RRFP_OK) {
            return status;
        }
    }
    for (uint32_t i = 0; i < pipeline->tensor_count; i++) {
        squares += pipeline->squares[i];
    }
    for (uint32_t m = 0; m < pipeline->shape.microbatches; m++) {
        loss += pipeline->microbatch_loss[m];
    }
    verdict.loss = loss / tokens;
    verdict.norm = sqrt(squares);
    verdict.nonfinite = !isfinite(verdict.loss) || !isfinite(verdict.norm);
    pipeline->verdict = verdict;
    return pipeline->config.ranks == NULL ? RRFP_OK
                                          : rrfp_pipeline_spread_verdict(pipeline, error);
}

static void update(rrfp_worker *worker)
{
    rrfp_pipeline *pipeline = worker->pipeline;
    rrfp_adamw adamw = pipeline->step.adamw;
    adamw.grad_scale = 1.0f;
    if (pipeline->step.clip_grad > 0.0 && pipeline->verdict.norm > pipeline->step.clip_grad) {
        /* the 1e-6 is PyTorch's clip_grad_norm_ */
        adamw.grad_scale = (float)(pipeline->step.clip_grad / (pipeline->verdict.norm + 1e-6));
    }
    float decay = adamw.weight_decay;
    for (size_t i = 0; i < pipeline->entry_count; i++) {
        const rrfp_checkpoint_entry *entry = &pipeline->entries[i];
        if (pipeline->entry_stage[i] != worker->stage || entry->exp_avg == NULL) {
            continue;
        }
        const float *grad = entry->param->grad;
        if (entry->param->tied_copy) {
            const rrfp_checkpoint_entry *owner = owner_of(pipeline, entry->param->global_index);
            grad = owner->elsewhere ? grad : owner->param->grad; /* the sum was put into both */
        }
        adamw.weight_decay = entry->param->decay ? decay : 0.0f;
        rrfp_adamw_update(&adamw, entry->param->value, grad, entry->exp_avg, entry->exp_avg_sq,
                          entry->param->count);
    }
}

/* A meeting of all stages, recorded as time spent waiting for the others. */
static void meet(rrfp_worker *worker)
{
    rrfp_trace_gap gap = {rrfp_now_ns(), 0, worker->pipeline->step.iteration,
                          RRFP_TRACE_IDLE_COLLECTIVE};
    pthread_barrier_wait(&worker->pipeline->stage_barrier);
    gap.end_ns = rrfp_now_ns();
    rrfp_trace_add_gap(worker->pipeline->trace, worker->stage, &gap);
}

/* False, and the pipeline has failed, when `status` is an error. */
static bool went_well(rrfp_pipeline *pipeline, rrfp_status status, const rrfp_error *error)
{
    if (status != RRFP_OK) {
        rrfp_pipeline_fail(pipeline, error);
    }
    return status == RRFP_OK;
}

void rrfp_worker_finish_step(rrfp_worker *worker)
{
    rrfp_pipeline *pipeline = worker->pipeline;
    bool first = worker->stage == pipeline->first_here;
    rrfp_error error;
    if (pipeline->config.ranks != NULL) {
        rrfp_world_set_activity(pipeline->config.ranks->world, pipeline->step.iteration,
                                "at the end of the step");
    }
    meet(worker); /* A */
    bool failed = atomic_load(&pipeline->failed); /* failures come before A: same for all */
    uint64_t begin = rrfp_now_ns();
    if (!failed && pipeline->config.ranks != NULL) {
        failed = !went_well(pipeline, rrfp_pipeline_exchange_tied(pipeline, &error), &error);
    }
    if (!failed) {
        add_tied_gradients(worker);
        sum_squares(worker);
    }
    rrfp_trace_add_optimizer(pipeline->trace, worker->stage, pipeline->step.iteration, begin,
                             rrfp_now_ns());
    meet(worker); /* B */
    if (!failed && first) {
        rrfp_trace_gap gap = {rrfp_now_ns(), 0, pipeline->step.iteration,
                              RRFP_TRACE_IDLE_COLLECTIVE};
        went_well(pipeline, take_verdict(pipeline, &error), &error);
        gap.end_ns = rrfp_now_ns();
        if (pipeline->config.ranks != NULL) {
            rrfp_trace_add_gap(pipeline->trace, worker->stage, &gap);
        }
    }
    meet(worker); /* C */
    failed = atomic_load(&pipeline->failed);
    begin = rrfp_now_ns();
    if (!failed && !pipeline->verdict.nonfinite) {
        update(worker);
    }
    if (!failed) {
        /* A tied copy's owner has its gradient read by the other stage until here. */
        pthread_barrier_wait(&pipeline->stage_barrier);
        for (uint32_t v = 0; v < pipeline->shape.chunks; v++) {
            rrfp_chunk_zero_grads(worker->chunks[v]);
        }
    }
    rrfp_trace_add_optimizer(pipeline->trace, worker->stage, pipeline->step.iteration, begin,
                             rrfp_now_ns());
}
