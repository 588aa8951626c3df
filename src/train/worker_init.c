/* worker_init.c - making and freeing the state of one rank. */
#include <stdlib.h>
#include <string.h>

#include "train/pipeline_internal.h"

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static rrfp_status no_memory(uint32_t rank, rrfp_error *error)
{
    return rrfp_error_set(error, RRFP_ERR_NOMEM, "rank %u: out of memory for its tables", rank);
}

/* The chunks come first: their sizes are what the hint and the budgets are built from. */
rrfp_status rrfp_worker_init(rrfp_worker *worker, rrfp_pipeline *pipeline, uint32_t rank,
                             rrfp_error *error)
{
    const rrfp_shape *shape = &pipeline->shape;
    uint32_t chunk_count = shape->chunks;
    size_t tokens = (size_t)pipeline->config.model.micro_batch * pipeline->config.model.seq_length;
    size_t scratch_bytes = 64;
    const rrfp_chunk *embedding = NULL;

    bool here = rrfp_rank_is_here(pipeline, rank);

    worker->pipeline = pipeline;
    worker->rank = rank;
    worker->place = rrfp_layout_place_of(&pipeline->layout, rank);
    worker->model = pipeline->config.model;
    worker->model.tensor_rank = worker->place.tensor_rank;
    worker->chunks = calloc(chunk_count, sizeof *worker->chunks);
    worker->sizes = calloc(chunk_count, sizeof *worker->sizes);
    worker->activation_pools = calloc(chunk_count, sizeof *worker->activation_pools);
    worker->retained_pools = calloc(chunk_count, sizeof *worker->retained_pools);
    worker->slots = calloc((size_t)chunk_count * shape->microbatches, sizeof *worker->slots);
    worker->tokens = malloc(tokens * sizeof *worker->tokens);
    worker->targets = malloc(tokens * sizeof *worker->targets);
    if (worker->chunks == NULL || worker->sizes == NULL || worker->activation_pools == NULL ||
        worker->retained_pools == NULL || worker->slots == NULL || worker->tokens == NULL ||
        worker->targets == NULL) {
        return no_memory(rank, error);
    }
    for (uint32_t v = 0; v < chunk_count; v++) {
        const rrfp_chunk_range *range =
            &pipeline->ranges[rrfp_shape_global_chunk(shape, worker->place.stage, v)];
        const rrfp_chunk *shared = range->has_head ? embedding : NULL;
        rrfp_status status =
            here ? rrfp_chunk_create(&worker->model, range, shared, &worker->chunks[v], error)
                 : rrfp_chunk_create_elsewhere(&worker->model, range, shared, &worker->chunks[v],
                                               error);
        if (status != RRFP_OK) {
            return status;
        }
        if (range->has_embedding) {
            embedding = worker->chunks[v];
        }
        rrfp_chunk_get_sizes(worker->chunks[v], &worker->sizes[v]);
        if (worker->sizes[v].scratch_bytes > scratch_bytes) {
            scratch_bytes = worker->sizes[v].scratch_bytes;
        }
    }
    if (!here) {
        return RRFP_OK;
    }
    worker->scratch = aligned_alloc(64, (scratch_bytes + 63) / 64 * 64);
    return worker->scratch == NULL ? no_memory(rank, error) : RRFP_OK;
}

static rrfp_status init_pools(rrfp_worker *worker, const rrfp_budget *budget, rrfp_error *error)
{
    const rrfp_pipeline *pipeline = worker->pipeline;
    size_t microbatches = pipeline->shape.microbatches;
    size_t in_flight = (size_t)budget->max_inflight * pipeline->shape.chunks;
    size_t retained = budget->max_pending_w == 0 ? microbatches : in_flight + budget->max_pending_w;
    size_t message_count = 3 * microbatches * pipeline->shape.chunks;
    rrfp_status status;

    for (uint32_t v = 0; v < pipeline->shape.chunks; v++) {
        status = rrfp_block_pool_init(&worker->activation_pools[v],
                                      worker->sizes[v].activation_bytes,
                                      smaller(microbatches, in_flight), "activations", error);
        if (status == RRFP_OK) {
            status = rrfp_block_pool_init(&worker->retained_pools[v],
                                          worker->sizes[v].retained_bytes,
                                          smaller(microbatches, retained),
                                          "activations kept for weight gradients", error);
        }
        if (status != RRFP_OK) {
            return status;
        }
    }
    /* Outputs of F, inputs held by F and outputs of B, each at most once per (chunk, microbatch);
     * the budgets keep the blocks in use far fewer. */
    status = rrfp_block_pool_init(&worker->message_pool, pipeline->message_floats * sizeof(float),
                                  message_count, "messages", error);
    if (status == RRFP_OK && pipeline->config.bf16_messages) {
        status = rrfp_block_pool_init(&worker->packed_pool,
                                      pipeline->message_floats * sizeof(uint16_t), message_count,
                                      "packed messages", error);
    }
    return status;
}

rrfp_status rrfp_worker_init_machines(rrfp_worker *worker, rrfp_error *error)
{
    const rrfp_pipeline *pipeline = worker->pipeline;
    const rrfp_hint *hint = pipeline->hint;
    uint32_t chunk_count = pipeline->shape.chunks;
    uint64_t *bytes = calloc(2 * (size_t)chunk_count, sizeof *bytes);
    if (bytes == NULL) {
        return no_memory(worker->rank, error);
    }
    for (uint32_t v = 0; v < chunk_count; v++) {
        const rrfp_chunk_sizes *sizes =
            &pipeline->sizes[(size_t)worker->place.stage * chunk_count + v];
        bytes[v] = sizes->activation_bytes;
        bytes[chunk_count + v] = sizes->retained_bytes;
    }
    rrfp_stage_config config = {
        .struct_size = sizeof config,
        .shape = pipeline->shape,
        .stage = worker->place.stage,
        .rule = hint->rule,
        .split_backward = hint->split_backward,
        .accumulate = pipeline->config.accumulate,
        .hint_distance = hint->hint_distance,
        .budget = hint->budgets[worker->place.stage],
        .activation_bytes = bytes,
        .retained_bytes = bytes + chunk_count,
        .order = hint->orders == NULL ? NULL : hint->orders[worker->place.stage],
        .order_count = hint->order_counts == NULL ? 0 : hint->order_counts[worker->place.stage],
    };
    rrfp_coordination how = pipeline->config.coordination;
    uint32_t tensor_rank = worker->place.tensor_rank, tensor_size = pipeline->layout.tensor;
    rrfp_status status =
        rrfp_decider_init(&worker->train, &config, how, tensor_rank, tensor_size, error);
    if (status == RRFP_OK) {
        config.forward_only = true;
        config.rule = RRFP_RULE_F_PRIO;
        config.split_backward = false;
        config.hint_distance = RRFP_DISTANCE_UNBOUNDED;
        config.order = NULL;
        config.order_count = 0;
        /* One forward runs at a time whatever the budget; a tight one would only ask for
         * microbatch order while later microbatches fill the receive buffers. */
        config.budget = (rrfp_budget){.max_inflight = pipeline->shape.microbatches};
        status = rrfp_decider_init(&worker->eval, &config, how, tensor_rank, tensor_size, error);
    }
    free(bytes);
    return status == RRFP_OK ? init_pools(worker, &hint->budgets[worker->place.stage], error) : status;
}

void rrfp_worker_free(rrfp_worker *worker)
{
    uint32_t chunk_count = worker->pipeline == NULL ? 0 : worker->pipeline->shape.chunks;
    rrfp_decider_free(&worker->train);
    rrfp_decider_free(&worker->eval);
    rrfp_collective_destroy(worker->tensor_group);
    rrfp_gradients_free(worker);
    for (uint32_t v = 0; v < chunk_count; v++) {
        /* The head may borrow the embedding's matrix: free it first. */
        uint32_t reversed = chunk_count - 1 - v;
        if (worker->chunks != NULL) {
            rrfp_chunk_destroy(worker->chunks[reversed]);
        }
        if (worker->activation_pools != NULL) {
            rrfp_block_pool_free(&worker->activation_pools[reversed]);
        }
        if (worker->retained_pools != NULL) {
            rrfp_block_pool_free(&worker->retained_pools[reversed]);
        }
    }
    rrfp_block_pool_free(&worker->message_pool);
    rrfp_block_pool_free(&worker->packed_pool);
    free(worker->chunks);
    free(worker->sizes);
    free(worker->activation_pools);
    free(worker->retained_pools);
    free(worker->slots);
    free(worker->tokens);
    free(worker->targets);
    free(worker->scratch);
    memset(worker, 0, sizeof *worker);
}
