/*
 * optimizer.c - the end of a training step, on every rank's thread.
 *
 *   all tasks done ──A── each rank sums the rest of its slices over replicas ──A'──
 *   tied gradients added, sums of squares per tensor ──B──
 *   one rank: loss, norm, verdict ──C── update or skip ──D── gradients to zero
 *
 * With processes they are passed by one rank each, and the verdict is rank 0's.
 *
 * Every rank passes all of them in every step, whatever it owns and whatever happened.  Sums run
 * in a fixed order (microbatches; parameters by global index, their shards by tensor rank, the
 * slices of those by replica), so they do not depend on the pipeline.  A tied embedding is one
 * tensor: its two gradients are added once, embedding side first, and its norm counts once.  So
 * does that of a parameter which every tensor-parallel rank has.
 */
#include <math.h>
#include <string.h>

#include "train/pipeline_internal.h"

/* The other end of a tied embedding: the rank of the same replica and tensor rank. */
static rrfp_shard *tied_shard(const rrfp_worker *worker, size_t entry)
{
    const rrfp_pipeline *pipeline = worker->pipeline;
    rrfp_worker *end = rrfp_worker_at(pipeline, pipeline->entry_stage[entry],
                                      worker->place.tensor_rank, worker->place.data_rank);
    return &end->shards[entry - end->first_entry];
}

static bool owns(const rrfp_worker *worker, size_t entry)
{
    return entry >= worker->first_entry && entry < worker->first_entry + worker->shard_count;
}

/* What this rank answers for of a gradient: its replica's slice. */
static rrfp_slice slice_of(const rrfp_worker *worker, const rrfp_param *param)
{
    return rrfp_slice_of(param->count, worker->pipeline->layout.data, worker->place.data_rank);
}

/* The embedding's owner adds the head's gradient; both are past their tasks and their sums. */
static void add_tied_gradients(rrfp_worker *worker)
{
    const rrfp_pipeline *pipeline = worker->pipeline;
    if (pipeline->tied_copy == pipeline->entry_count || !owns(worker, pipeline->tied_owner)) {
        return;
    }
    if (pipeline->entries[pipeline->tied_copy].elsewhere !=
        pipeline->entries[pipeline->tied_owner].elsewhere) {
        return; /* in two processes: see rrfp_pipeline_exchange_tied() */
    }
    const rrfp_param *owner = tied_shard(worker, pipeline->tied_owner)->param;
    const rrfp_param *copy = tied_shard(worker, pipeline->tied_copy)->param;
    rrfp_slice slice = slice_of(worker, owner);
    rrfp_add(owner->grad + slice.first, copy->grad + slice.first, slice.count);
}

static void sum_squares(rrfp_worker *worker)
{
    rrfp_pipeline *pipeline = worker->pipeline;
    const rrfp_layout *layout = &pipeline->layout;
    for (size_t i = 0; i < worker->shard_count; i++) {
        const rrfp_param *param = worker->shards[i].param;
        if (param->tied_copy || (!param->sharded && worker->place.tensor_rank > 0)) {
            continue; /* another counts it */
        }
        rrfp_slice slice = slice_of(worker, param);
        pipeline->squares[((size_t)param->global_index * layout->tensor +
                           worker->place.tensor_rank) *
                              layout->data +
                          worker->place.data_rank] =
            rrfp_sum_of_squares(param->grad + slice.first, slice.count);
    }
}

/* What the ranks here did in the task phase, and whether the caller wants to stop. */
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

/* The first rank here, between B and C: the others wait, so plain fields will do. */
static rrfp_status take_verdict(rrfp_pipeline *pipeline, rrfp_error *error)
{
    rrfp_verdict verdict;
    double squares = 0.0, loss = 0.0;
    size_t per_tensor = (size_t)pipeline->layout.tensor * pipeline->layout.data;
    double tokens = (double)pipeline->config.model.micro_batch *
                    pipeline->config.model.seq_length * rrfp_pipeline_microbatches(pipeline);
    note_phase(pipeline, &verdict);
    if (pipeline->config.ranks != NULL) {
        rrfp_status status = rrfp_pipeline_gather_step(pipeline, &verdict, error);
        if (status != RRFP_OK) {
            return status;
        }
    }
    for (size_t i = 0; i < pipeline->tensor_count * per_tensor; i++) {
        squares += pipeline->squares[i];
    }
    for (uint32_t m = 0; m < rrfp_pipeline_microbatches(pipeline); m++) {
        loss += pipeline->microbatch_loss[m];
    }
    verdict.loss = loss / tokens;
    verdict.norm = sqrt(squares);
    verdict.nonfinite = !isfinite(verdict.loss) || !isfinite(verdict.norm);
    pipeline->verdict = verdict;
    return pipeline->config.ranks == NULL ? RRFP_OK
                                          : rrfp_pipeline_spread_verdict(pipeline, error);
}

/* Where the sum of a gradient's slice lies: with its owner, if that is a thread beside this one;
 * else it was brought here.  A tied copy's is its owner's. */
static const float *gradient_of(const rrfp_worker *worker, size_t index, uint32_t data_rank)
{
    const rrfp_pipeline *pipeline = worker->pipeline;
    const rrfp_worker *holder = rrfp_worker_at(pipeline, worker->place.stage,
                                               worker->place.tensor_rank, data_rank);
    if (!rrfp_rank_is_here(pipeline, holder->rank)) {
        holder = worker;
    }
    const rrfp_shard *shard = &holder->shards[index];
    if (holder->first_entry + index == pipeline->tied_copy) {
        const rrfp_shard *owner = tied_shard(holder, pipeline->tied_owner);
        shard = owner->param->grad != NULL ? owner : shard; /* elsewhere: the sum is in both */
    }
    return shard->param->grad;
}

static void update(rrfp_worker *worker)
{
    const rrfp_pipeline *pipeline = worker->pipeline;
    rrfp_adamw adamw = pipeline->step.adamw;
    adamw.grad_scale = 1.0f;
    if (pipeline->step.clip_grad > 0.0 && pipeline->verdict.norm > pipeline->step.clip_grad) {
        /* the 1e-6 is PyTorch's clip_grad_norm_ */
        adamw.grad_scale = (float)(pipeline->step.clip_grad / (pipeline->verdict.norm + 1e-6));
    }
    float decay = adamw.weight_decay;
    for (size_t i = 0; i < worker->shard_count; i++) {
        const rrfp_shard *shard = &worker->shards[i];
        if (shard->exp_avg == NULL) {
            continue;
        }
        adamw.weight_decay = shard->param->decay ? decay : 0.0f;
        for (uint32_t d = 0; d < pipeline->layout.data; d++) {
            rrfp_slice slice = rrfp_slice_of(shard->param->count, pipeline->layout.data, d);
            if (slice.first < shard->kept.first ||
                slice.first + slice.count > shard->kept.first + shard->kept.count) {
                continue; /* its owner updates it */
            }
            uint64_t at = slice.first - shard->kept.first;
            rrfp_adamw_update(&adamw, shard->param->value + slice.first,
                              gradient_of(worker, i, d) + slice.first, shard->exp_avg + at,
                              shard->exp_avg_sq + at, slice.count);
        }
    }
}

/* With ZeRO-1, after all have updated their own: the slices of the other replicas. */
static void copy_updated(rrfp_worker *worker)
{
    const rrfp_pipeline *pipeline = worker->pipeline;
    for (uint32_t d = 0; d < pipeline->layout.data; d++) {
        const rrfp_worker *owner = rrfp_worker_at(pipeline, worker->place.stage,
                                                  worker->place.tensor_rank, d);
        for (size_t i = 0; owner != worker && i < worker->shard_count; i++) {
            const rrfp_shard *from = &owner->shards[i];
            if (from->exp_avg != NULL) {
                memcpy(worker->shards[i].param->value + from->kept.first,
                       from->param->value + from->kept.first,
                       from->kept.count * sizeof(float));
            }
        }
    }
}

/* A meeting of all ranks, recorded as time spent waiting for the others. */
static void meet(rrfp_worker *worker)
{
    rrfp_trace_gap gap = {rrfp_now_ns(), 0, worker->pipeline->step.iteration,
                          RRFP_TRACE_IDLE_COLLECTIVE};
    pthread_barrier_wait(&worker->pipeline->rank_barrier);
    gap.end_ns = rrfp_now_ns();
    rrfp_trace_add_gap(worker->pipeline->trace, worker->rank, &gap);
}

/* False, and the pipeline has failed, when `status` is an error. */
static bool went_well(rrfp_pipeline *pipeline, rrfp_status status, const rrfp_error *error)
{
    if (status != RRFP_OK) {
        rrfp_pipeline_fail(pipeline, error);
    }
    return status == RRFP_OK;
}

static void note_work(rrfp_worker *worker, uint64_t begin)
{
    rrfp_trace_add_optimizer(worker->pipeline->trace, worker->rank,
                             worker->pipeline->step.iteration, begin, rrfp_now_ns());
}

void rrfp_worker_finish_step(rrfp_worker *worker)
{
    rrfp_pipeline *pipeline = worker->pipeline;
    bool first = worker->rank == pipeline->first_here;
    bool sharded = pipeline->config.distributed_optimizer && pipeline->layout.data > 1;
    rrfp_error error;
    if (pipeline->config.ranks != NULL) {
        rrfp_world_set_activity(pipeline->config.ranks->world, pipeline->step.iteration,
                                "at the end of the step");
    }
    meet(worker); /* A */
    bool failed = atomic_load(&pipeline->failed); /* failures come before A: same for all */
    uint64_t begin = rrfp_now_ns();
    if (!failed && pipeline->layout.data > 1) {
        rrfp_gradients_finish(worker);
        note_work(worker, begin);
    }
    meet(worker); /* A' */
    begin = rrfp_now_ns();
    if (!failed && pipeline->config.ranks != NULL) {
        failed = !went_well(pipeline, rrfp_pipeline_exchange_tied(pipeline, &error), &error);
    }
    if (!failed) {
        add_tied_gradients(worker);
        sum_squares(worker);
    }
    note_work(worker, begin);
    meet(worker); /* B */
    if (!failed && first) {
        rrfp_trace_gap gap = {rrfp_now_ns(), 0, pipeline->step.iteration,
                              RRFP_TRACE_IDLE_COLLECTIVE};
        went_well(pipeline, take_verdict(pipeline, &error), &error);
        gap.end_ns = rrfp_now_ns();
        if (pipeline->config.ranks != NULL) {
            rrfp_trace_add_gap(pipeline->trace, worker->rank, &gap);
        }
    }
    meet(worker); /* C */
    failed = atomic_load(&pipeline->failed);
    begin = rrfp_now_ns();
    if (!failed && !pipeline->verdict.nonfinite) {
        update(worker);
    }
    note_work(worker, begin);
    meet(worker); /* D: others read a slice's gradient, and a tied copy its owner's, until here */
    begin = rrfp_now_ns();
    if (!failed && sharded && !pipeline->verdict.nonfinite) {
        copy_updated(worker);
    }
    if (!failed) {
        for (uint32_t v = 0; v < pipeline->shape.chunks; v++) {
            rrfp_chunk_zero_grads(worker->chunks[v]);
        }
    }
    note_work(worker, begin);
}
