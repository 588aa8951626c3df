/* chunk.c - a chunk's parameters, its memory plan, and its life from create to destroy. */
#include "model/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const rrfp_layer_ops *rrfp_layer_ops_of(const rrfp_model_config *config)
{
    return config->arch == RRFP_ARCH_GPT2 ? &rrfp_layer_gpt2 : &rrfp_layer_llama;
}

static uint64_t max_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void plan_retained(const rrfp_model_dims *dims, const rrfp_layer_ops *ops,
                          const rrfp_chunk_range *range, rrfp_chunk_layout *at)
{
    uint64_t end = 0;
    at->embedding_out = rrfp_carve(&end, range->has_embedding ? rrfp_sat_mul(dims->n, dims->c) : 0);
    at->block_floats = ops->block_floats(dims);
    at->block_output = ops->output_offset(dims);
    at->first_block = rrfp_carve(&end, rrfp_sat_mul(range->layer_count, at->block_floats));
    if (range->has_head) {
        at->head_norm = rrfp_carve(&end, rrfp_sat_mul(dims->n, dims->c));
        at->head_logits = rrfp_carve(&end, rrfp_sat_mul(dims->n, dims->v));
        at->head_dgamma = rrfp_carve(&end, dims->c);
        at->head_dbeta = rrfp_carve(&end, dims->c);
    }
    at->retained_floats = end;
}

static void plan_activation(const rrfp_model_config *config, const rrfp_model_dims *dims,
                            const rrfp_layer_ops *ops, const rrfp_chunk_range *range,
                            rrfp_chunk_layout *at)
{
    uint64_t end = 0;
    at->stats_floats = ops->stats_floats(dims);
    if (config->recompute) {
        /* x0 .. x(L-1) and the head's input, less what the caller keeps. */
        uint64_t inputs = (uint64_t)range->layer_count + (range->has_head ? 1 : 0);
        if (inputs > 0 && !range->has_embedding) {
            inputs--;
        }
        rrfp_carve(&at->input_floats, rrfp_sat_mul(dims->r, dims->c));
        at->first_input = rrfp_carve(&end, rrfp_sat_mul(inputs, at->input_floats));
    } else {
        at->first_stats = rrfp_carve(&end, rrfp_sat_mul(range->layer_count, at->stats_floats));
    }
    if (range->has_head) {
        at->head_mean = rrfp_carve(&end, dims->r);
        at->head_rstd = rrfp_carve(&end, dims->r);
    }
    at->activation_floats = end;
}

static void plan_scratch(const rrfp_model_config *config, const rrfp_model_dims *dims,
                         const rrfp_layer_ops *ops, const rrfp_chunk_range *range,
                         rrfp_chunk_layout *at)
{
    const uint64_t layer = range->layer_count > 0 ? ops->scratch_floats(dims) : 0;
    const uint64_t again = config->recompute && range->layer_count > 0 ? UINT64_MAX : 0;
    const uint64_t stream = rrfp_sat_mul(dims->n, dims->c);
    /* A group's exchanges, before or after the layers. */
    const bool shares = config->tensor_size > 1;
    const uint64_t embedding = config->sequence_parallel && range->has_embedding ? stream : 0;
    const uint64_t dnorm = rrfp_sat_mul(config->sequence_parallel ? 2 : 1, stream);
    const uint64_t loss = shares && range->has_head ? rrfp_vocab_loss_floats(config, dims) : 0;
    uint64_t forward = 0;
    uint64_t backward = 0;
    rrfp_carve(&forward, at->block_floats & again);
    at->forward_stats = rrfp_carve(&forward, at->stats_floats & again);
    at->forward_scratch = rrfp_carve(&forward, layer);
    at->stream = rrfp_carve(&backward, stream);
    at->backward_stats = rrfp_carve(&backward, at->stats_floats & again);
    at->backward_scratch = rrfp_carve(&backward, max_of(layer, range->has_head ? dnorm : 0));
    at->scratch_floats = max_of(max_of(forward, backward), max_of(embedding, loss));
}

void rrfp_chunk_plan(const rrfp_model_config *config, const rrfp_chunk_range *range,
                     rrfp_chunk_layout *layout)
{
    const rrfp_model_dims dims = rrfp_model_dims_of(config);
    const rrfp_layer_ops *ops = rrfp_layer_ops_of(config);
    *layout = (rrfp_chunk_layout){0};
    plan_retained(&dims, ops, range, layout);
    plan_activation(config, &dims, ops, range, layout);
    plan_scratch(config, &dims, ops, range, layout);
}

static rrfp_status check_range(const rrfp_model_config *config, const rrfp_chunk_range *range,
                               rrfp_error *error)
{
    const uint64_t end = (uint64_t)range->first_layer + range->layer_count;
    if (end > config->num_layers || (range->has_embedding && range->first_layer != 0) ||
        (range->has_head && end != config->num_layers)) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "a chunk of %u layers from layer %u%s%s does not fit a model of %u "
                              "layers; take the ranges from the partition",
                              range->layer_count, range->first_layer,
                              range->has_embedding ? " with the embedding" : "",
                              range->has_head ? " with the head" : "", config->num_layers);
    }
    return RRFP_OK;
}

/* The chunk whose matrix a tied head uses, or NULL when it keeps a copy. */
static rrfp_status find_shared(rrfp_chunk *chunk, const rrfp_chunk *given,
                               const rrfp_chunk **shared, rrfp_error *error)
{
    *shared = NULL;
    if (!chunk->config.tied || !chunk->range.has_head) {
        return RRFP_OK;
    }
    if (chunk->range.has_embedding) {
        *shared = chunk;
        return RRFP_OK;
    }
    if (given == NULL) {
        return RRFP_OK;
    }
    if (!given->range.has_embedding || given->config.vocab != chunk->config.vocab ||
        given->config.hidden != chunk->config.hidden ||
        given->dims.first_v != chunk->dims.first_v || given->dims.v != chunk->dims.v) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "the chunk whose embedding a tied head shall share has no embedding "
                              "of %u x %u; give the chunk with the embedding, or none",
                              chunk->config.vocab, chunk->config.hidden);
    }
    *shared = given;
    return RRFP_OK;
}

static void describe_params(rrfp_chunk *chunk)
{
    const rrfp_model_config *config = &chunk->config;
    const uint32_t before = rrfp_params_in_embedding(config);
    const uint32_t per_layer = rrfp_params_in_layer(config);
    uint32_t count = 0;
    if (chunk->range.has_embedding) {
        while (count < before) {
            rrfp_param_describe(config, count, &chunk->params[count]);
            count++;
        }
    }
    chunk->first_layer_param = count;
    const uint32_t first = before + per_layer * chunk->range.first_layer;
    for (uint32_t i = 0; i < per_layer * chunk->range.layer_count; i++) {
        rrfp_param_describe(config, first + i, &chunk->params[count++]);
    }
    chunk->head_param = count;
    if (chunk->range.has_head) {
        const uint32_t end = before + per_layer * config->num_layers;
        for (uint32_t i = end; i < rrfp_params_in_model(config); i++) {
            rrfp_param_describe(config, i, &chunk->params[count++]);
        }
        if (config->tied) {
            rrfp_param_describe(config, 0, &chunk->params[count]);
            chunk->params[count++].tied_copy = true;
        }
    }
    chunk->param_count = count;
}

static float *allocate_floats(uint64_t floats, rrfp_error *error)
{
    float *memory = aligned_alloc(64, floats * sizeof(float));
    if (memory == NULL) {
        rrfp_error_set(error, RRFP_ERR_NOMEM,
                       "no memory for %llu MiB of parameters or gradients; use more stages or a "
                       "smaller model",
                       (unsigned long long)(floats * sizeof(float) >> 20));
    }
    return memory;
}

/* A chunk that runs elsewhere has no gradients, and values that nobody has touched. */
static rrfp_status allocate_params(rrfp_chunk *chunk, const rrfp_chunk *shared, bool elsewhere,
                                   rrfp_error *error)
{
    for (uint32_t i = 0; i < chunk->param_count; i++) {
        const rrfp_param *param = &chunk->params[i];
        rrfp_carve(&chunk->grad_floats, param->count);
        rrfp_carve(&chunk->value_floats, param->tied_copy && shared != NULL ? 0 : param->count);
    }
    if (chunk->grad_floats == 0) {
        return RRFP_OK;
    }
    chunk->values = allocate_floats(chunk->value_floats, error);
    if (chunk->values == NULL) {
        return RRFP_ERR_NOMEM;
    }
    if (!elsewhere) {
        chunk->grads = allocate_floats(chunk->grad_floats, error);
        if (chunk->grads == NULL) {
            return RRFP_ERR_NOMEM;
        }
        memset(chunk->grads, 0, chunk->grad_floats * sizeof(float));
        memset(chunk->values, 0, chunk->value_floats * sizeof(float));
    }
    uint64_t grad = 0;
    uint64_t value = 0;
    for (uint32_t i = 0; i < chunk->param_count; i++) {
        rrfp_param *param = &chunk->params[i];
        if (!elsewhere) {
            param->grad = chunk->grads + rrfp_carve(&grad, param->count);
        }
        if (param->tied_copy && shared != NULL) {
            param->value = shared->params[0].value;
        } else {
            param->value = chunk->values + rrfp_carve(&value, param->count);
            if (!elsewhere) {
                rrfp_param_init(&chunk->config, param);
            }
        }
    }
    return RRFP_OK;
}

static rrfp_status create(const rrfp_model_config *config, const rrfp_chunk_range *range,
                          const rrfp_chunk *share_embedding, bool elsewhere,
                          rrfp_chunk **chunk_out, rrfp_error *error)
{
    rrfp_model_config full = *config;
    const rrfp_chunk *shared;
    rrfp_status status = rrfp_model_config_finish(&full, error);
    if (status == RRFP_OK) {
        status = check_range(&full, range, error);
    }
    if (status != RRFP_OK) {
        return status;
    }
    /* A tied head takes the slot of the matrix it does not have; +1 also for an empty chunk. */
    const uint64_t most = (uint64_t)rrfp_params_in_embedding(&full) +
                          (uint64_t)rrfp_params_in_layer(&full) * range->layer_count +
                          rrfp_params_in_final_norm(&full) + 1;
    rrfp_chunk *chunk = calloc(1, sizeof *chunk);
    rrfp_param *params = calloc(most, sizeof *params);
    if (chunk == NULL || params == NULL) {
        free(chunk);
        free(params);
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory for a list of %llu parameters",
                              (unsigned long long)most);
    }
    chunk->config = full;
    chunk->dims = rrfp_model_dims_of(&full);
    chunk->range = *range;
    chunk->ops = rrfp_layer_ops_of(&full);
    chunk->params = params;
    rrfp_chunk_plan(&full, range, &chunk->layout);
    describe_params(chunk);
    status = find_shared(chunk, share_embedding, &shared, error);
    if (status == RRFP_OK) {
        status = allocate_params(chunk, shared, elsewhere, error);
    }
    if (status != RRFP_OK) {
        rrfp_chunk_destroy(chunk);
        return status;
    }
    *chunk_out = chunk;
    return RRFP_OK;
}

rrfp_status rrfp_chunk_create(const rrfp_model_config *config, const rrfp_chunk_range *range,
                              const rrfp_chunk *share_embedding, rrfp_chunk **chunk_out,
                              rrfp_error *error)
{
    return create(config, range, share_embedding, false, chunk_out, error);
}

rrfp_status rrfp_chunk_create_elsewhere(const rrfp_model_config *config,
                                        const rrfp_chunk_range *range,
                                        const rrfp_chunk *share_embedding,
                                        rrfp_chunk **chunk_out, rrfp_error *error)
{
    return create(config, range, share_embedding, true, chunk_out, error);
}

void rrfp_chunk_set_tensor_group(rrfp_chunk *chunk, rrfp_collective *group)
{
    chunk->tensor = group;
}

void rrfp_chunk_forget_values(rrfp_chunk *chunk)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (chunk->values == NULL) {
        return;
    }
    uintptr_t begin = ((uintptr_t)chunk->values + page - 1) / page * page;
    uintptr_t end = (uintptr_t)(chunk->values + chunk->value_floats) / page * page;
    if (begin < end) {
        madvise((void *)begin, end - begin, MADV_DONTNEED); /* failing, it stays in use */
    }
}

void rrfp_chunk_destroy(rrfp_chunk *chunk)
{
    if (chunk == NULL) {
        return;
    }
    free(chunk->values);
    free(chunk->grads);
    free(chunk->params);
    free(chunk);
}

const rrfp_chunk_range *rrfp_chunk_get_range(const rrfp_chunk *chunk)
{
    return &chunk->range;
}

void rrfp_chunk_get_sizes(const rrfp_chunk *chunk, rrfp_chunk_sizes *sizes)
{
    sizes->activation_bytes = chunk->layout.activation_floats * sizeof(float);
    sizes->retained_bytes = chunk->layout.retained_floats * sizeof(float);
    sizes->scratch_bytes = chunk->layout.scratch_floats * sizeof(float);
    sizes->message_floats = chunk->dims.r * chunk->dims.c;
    sizes->forward_retains = !chunk->config.recompute || chunk->range.has_head;
}

size_t rrfp_chunk_param_count(const rrfp_chunk *chunk)
{
    return chunk->param_count;
}

rrfp_param *rrfp_chunk_param(rrfp_chunk *chunk, size_t index)
{
    return &chunk->params[index];
}

uint32_t rrfp_chunk_unit_count(const rrfp_chunk *chunk)
{
    return chunk->range.has_head + chunk->range.layer_count + chunk->range.has_embedding;
}

void rrfp_chunk_unit(const rrfp_chunk *chunk, uint32_t unit, size_t *first_param, size_t *count)
{
    uint32_t layers = chunk->range.layer_count, from_head = chunk->range.has_head;
    uint32_t per_layer = rrfp_params_in_layer(&chunk->config);
    if (unit < from_head) {
        *first_param = chunk->head_param;
        *count = chunk->param_count - chunk->head_param;
    } else if (unit < from_head + layers) {
        *first_param = chunk->first_layer_param + (layers - 1 - (unit - from_head)) * per_layer;
        *count = per_layer;
    } else {
        *first_param = 0;
        *count = chunk->first_layer_param;
    }
}

void rrfp_chunk_zero_grads(rrfp_chunk *chunk)
{
    if (chunk->grad_floats > 0) {
        memset(chunk->grads, 0, chunk->grad_floats * sizeof(float));
    }
}
