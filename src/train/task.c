/* task.c - the kernels of one task, and whose buffers they read and write. */
#include "train/pipeline_internal.h"

static bool fail(rrfp_worker *worker, const rrfp_error *error)
{
    rrfp_pipeline_fail(worker->pipeline, error);
    return false;
}

/* An empty pool means that a budget was exceeded: the machine's bug, said and not survived. */
static void *take(rrfp_worker *worker, rrfp_block_pool *pool, const char *what, bool *ok)
{
    void *block = rrfp_block_pool_take(pool);
    if (block == NULL && pool->count > 0) {
        rrfp_error error;
        rrfp_error_set(&error, RRFP_ERR_INTERNAL, "stage %u: no free block for %s", worker->place.stage,
                       what);
        *ok = fail(worker, &error);
    }
    return block;
}

static float *take_output(rrfp_worker *worker, rrfp_slot *slot, rrfp_kind kind, bool *ok)
{
    slot->output[kind] = take(worker, &worker->message_pool, "a message", ok);
    return slot->output[kind];
}

static bool run_forward(rrfp_worker *worker, rrfp_task task, const rrfp_chunk_range *range,
                        rrfp_microbatch *microbatch, rrfp_slot *slot)
{
    bool ok = true;
    double loss_sum = 0.0;
    slot->activation =
        take(worker, &worker->activation_pools[task.chunk], "activations", &ok);
    if (worker->sizes[task.chunk].forward_retains || !microbatch->training) {
        slot->retained = take(worker, &worker->retained_pools[task.chunk], "activations", &ok);
    }
    float *output = range->has_head || !ok ? NULL : take_output(worker, slot, RRFP_F, &ok);
    if (!ok) {
        return false;
    }
    rrfp_chunk_forward(worker->chunks[task.chunk], microbatch, slot->input, output,
                       slot->activation, slot->retained, worker->scratch, &loss_sum);
    if (range->has_head && worker->place.tensor_rank == 0) { /* the same on all */
        worker->pipeline->microbatch_loss[microbatch->index] = loss_sum;
    }
    return true;
}

static bool run_backward(rrfp_worker *worker, rrfp_task task, const rrfp_chunk_range *range,
                         const rrfp_microbatch *microbatch, rrfp_slot *slot)
{
    bool ok = true;
    float *grad = range->has_embedding ? NULL : take_output(worker, slot, RRFP_B, &ok);
    if (!worker->sizes[task.chunk].forward_retains) { /* recomputed now */
        slot->retained = take(worker, &worker->retained_pools[task.chunk], "activations", &ok);
    }
    if (!ok) {
        return false;
    }
    rrfp_chunk_backward(worker->chunks[task.chunk], microbatch, slot->input, slot->grad_input,
                        grad, slot->activation, slot->retained, worker->scratch);
    return true;
}

/* What the wgrad of a chunk tells when a unit is done. */
typedef struct unit_listener {
    rrfp_worker *worker;
    uint32_t chunk;
} unit_listener;

static void unit_done(void *context, uint32_t unit)
{
    const unit_listener *listener = context;
    rrfp_gradients_unit_done(listener->worker, listener->chunk, unit);
}

/* Collectives keep their failure; asked for once a task. */
static bool group_went_well(rrfp_worker *worker)
{
    rrfp_error error;
    if (worker->tensor_group == NULL ||
        rrfp_collective_failure(worker->tensor_group, &error) == RRFP_OK) {
        return true;
    }
    return fail(worker, &error);
}

bool rrfp_worker_run_task(rrfp_worker *worker, rrfp_task task)
{
    rrfp_pipeline *pipeline = worker->pipeline;
    const rrfp_pipeline_config *config = &pipeline->config;
    const rrfp_chunk_range *range =
        &pipeline->ranges[rrfp_shape_global_chunk(&pipeline->shape, worker->place.stage, task.chunk)];
    rrfp_slot *slot =
        &worker->slots[(size_t)task.chunk * pipeline->shape.microbatches + task.microbatch];
    bool evaluation = pipeline->phase == RRFP_PHASE_EVAL;
    double token_count = (double)config->model.micro_batch * config->model.seq_length *
                         rrfp_pipeline_microbatches(pipeline);
    unit_listener listener = {worker, task.chunk};
    rrfp_microbatch microbatch = {
        .step = pipeline->step.iteration,
        /* replicas take turns, so the batch is the same samples however many there are */
        .index = task.microbatch * pipeline->layout.data + worker->place.data_rank,
        .training = !evaluation,
        .tokens = worker->tokens,
        .targets = worker->targets,
        .loss_scale = (float)(1.0 / token_count),
        .unit_done = worker->bucket_count > 0 ? unit_done : NULL,
        .unit_context = &listener,
    };

    if (range->has_embedding || range->has_head) {
        rrfp_error error;
        uint64_t sample = pipeline->first_sample +
                          (uint64_t)microbatch.index * config->model.micro_batch;
        if (config->fetch(config->fetch_context, evaluation, sample, worker->tokens,
                          worker->targets, &error) != RRFP_OK) {
            return fail(worker, &error);
        }
    }
    rrfp_kind output = task.kind == RRFP_F ? RRFP_F : RRFP_B;
    switch ((rrfp_kind)task.kind) {
    case RRFP_F:
        if (!run_forward(worker, task, range, &microbatch, slot)) {
            return false;
        }
        break;
    case RRFP_W:
        rrfp_chunk_wgrad(worker->chunks[task.chunk], &microbatch, slot->retained, worker->scratch);
        return group_went_well(worker);
    case RRFP_B:
    case RRFP_BW:
        if (!run_backward(worker, task, range, &microbatch, slot)) {
            return false;
        }
        if (task.kind == RRFP_BW) {
            rrfp_chunk_wgrad(worker->chunks[task.chunk], &microbatch, slot->retained,
                             worker->scratch);
        }
        break;
    }
    if (!group_went_well(worker)) {
        return false;
    }
    if (config->hook != NULL) {
        config->hook(config->hook_context, worker->rank, task, pipeline->step.iteration,
                     slot->output[output], pipeline->message_floats);
    }
    return true;
}
