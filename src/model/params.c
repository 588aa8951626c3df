/*
 * params.c - names, shapes, canonical order and initial values of parameters.
 *
 *   GPT-2   wte, wpe,      12 per layer,   ln_f.weight, ln_f.bias [, lm_head.weight]
 *   Llama   embed_tokens,   9 per layer,   norm.weight            [, lm_head.weight]
 *
 * in this order over the whole model; the position is the global index.
 */
#include "model/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A dimension of a parameter, as a letter of the configuration. */
typedef enum { NONE, WIDTH, HEADS_WIDTH, HEADS_WIDTH_3, KV_WIDTH, FFN, VOCAB, POSITIONS } dimension;
typedef enum { INIT_NORMAL, INIT_RESIDUAL, INIT_ZERO, INIT_ONE } init_kind;

typedef enum { ON_ALL, BY_0, BY_1 } cut_kind; /* the dimension that tensor-parallel ranks divide */

typedef struct row {
    const char *name;
    dimension dims[2];
    init_kind init;
    cut_kind cut;
} row;

/* Conv1D matrices are (in, out). */
static const row gpt2_embedding[] = {
    {"wte.weight", {VOCAB, WIDTH}, INIT_NORMAL, BY_0},
    {"wpe.weight", {POSITIONS, WIDTH}, INIT_NORMAL, ON_ALL},
};
static const row gpt2_layer[] = {
    {"ln_1.weight", {WIDTH, NONE}, INIT_ONE, ON_ALL},
    {"ln_1.bias", {WIDTH, NONE}, INIT_ZERO, ON_ALL},
    {"attn.c_attn.weight", {WIDTH, HEADS_WIDTH_3}, INIT_NORMAL, BY_1},
    {"attn.c_attn.bias", {HEADS_WIDTH_3, NONE}, INIT_ZERO, BY_0},
    {"attn.c_proj.weight", {HEADS_WIDTH, WIDTH}, INIT_RESIDUAL, BY_0},
    {"attn.c_proj.bias", {WIDTH, NONE}, INIT_ZERO, ON_ALL},
    {"ln_2.weight", {WIDTH, NONE}, INIT_ONE, ON_ALL},
    {"ln_2.bias", {WIDTH, NONE}, INIT_ZERO, ON_ALL},
    {"mlp.c_fc.weight", {WIDTH, FFN}, INIT_NORMAL, BY_1},
    {"mlp.c_fc.bias", {FFN, NONE}, INIT_ZERO, BY_0},
    {"mlp.c_proj.weight", {FFN, WIDTH}, INIT_RESIDUAL, BY_0},
    {"mlp.c_proj.bias", {WIDTH, NONE}, INIT_ZERO, ON_ALL},
};
static const row gpt2_end[] = {
    {"ln_f.weight", {WIDTH, NONE}, INIT_ONE, ON_ALL},
    {"ln_f.bias", {WIDTH, NONE}, INIT_ZERO, ON_ALL},
    {"lm_head.weight", {VOCAB, WIDTH}, INIT_NORMAL, BY_0},
};

/* Linear matrices are (out, in). */
static const row llama_embedding[] = {
    {"model.embed_tokens.weight", {VOCAB, WIDTH}, INIT_NORMAL, BY_0},
};
static const row llama_layer[] = {
    {"input_layernorm.weight", {WIDTH, NONE}, INIT_ONE, ON_ALL},
    {"self_attn.q_proj.weight", {HEADS_WIDTH, WIDTH}, INIT_NORMAL, BY_0},
    {"self_attn.k_proj.weight", {KV_WIDTH, WIDTH}, INIT_NORMAL, BY_0},
    {"self_attn.v_proj.weight", {KV_WIDTH, WIDTH}, INIT_NORMAL, BY_0},
    {"self_attn.o_proj.weight", {WIDTH, HEADS_WIDTH}, INIT_RESIDUAL, BY_1},
    {"post_attention_layernorm.weight", {WIDTH, NONE}, INIT_ONE, ON_ALL},
    {"mlp.gate_proj.weight", {FFN, WIDTH}, INIT_NORMAL, BY_0},
    {"mlp.up_proj.weight", {FFN, WIDTH}, INIT_NORMAL, BY_0},
    {"mlp.down_proj.weight", {WIDTH, FFN}, INIT_RESIDUAL, BY_1},
};
static const row llama_end[] = {
    {"model.norm.weight", {WIDTH, NONE}, INIT_ONE, ON_ALL},
    {"lm_head.weight", {VOCAB, WIDTH}, INIT_NORMAL, BY_0},
};

#define ROWS(table) (uint32_t)(sizeof(table) / sizeof((table)[0]))

static bool is_gpt2(const rrfp_model_config *config)
{
    return config->arch == RRFP_ARCH_GPT2;
}

uint32_t rrfp_params_in_embedding(const rrfp_model_config *config)
{
    return is_gpt2(config) ? ROWS(gpt2_embedding) : ROWS(llama_embedding);
}

uint32_t rrfp_params_in_layer(const rrfp_model_config *config)
{
    return is_gpt2(config) ? ROWS(gpt2_layer) : ROWS(llama_layer);
}

uint32_t rrfp_params_in_final_norm(const rrfp_model_config *config)
{
    return is_gpt2(config) ? 2 : 1;
}

uint32_t rrfp_params_in_model(const rrfp_model_config *config)
{
    return rrfp_params_in_embedding(config) +
           rrfp_params_in_layer(config) * config->num_layers +
           rrfp_params_in_final_norm(config) + (config->tied ? 0 : 1);
}

/* The row of a global index; *layer is UINT32_MAX outside the layers. */
static const row *find_row(const rrfp_model_config *config, uint32_t global_index,
                           uint32_t *layer)
{
    const uint32_t before = rrfp_params_in_embedding(config);
    const uint32_t per_layer = rrfp_params_in_layer(config);
    const uint32_t after = before + per_layer * config->num_layers;
    *layer = UINT32_MAX;
    if (global_index < before) {
        return &(is_gpt2(config) ? gpt2_embedding : llama_embedding)[global_index];
    }
    if (global_index < after) {
        *layer = (global_index - before) / per_layer;
        return &(is_gpt2(config) ? gpt2_layer : llama_layer)[(global_index - before) % per_layer];
    }
    return &(is_gpt2(config) ? gpt2_end : llama_end)[global_index - after];
}

static uint64_t dimension_value(const rrfp_model_config *config, const rrfp_model_dims *dims,
                                dimension dim)
{
    switch (dim) {
    case WIDTH:
        return dims->c;
    case HEADS_WIDTH:
        return dims->k;
    case HEADS_WIDTH_3:
        return 3 * dims->k;
    case KV_WIDTH:
        return dims->g * dims->d;
    case FFN:
        return dims->f;
    case VOCAB:
        return dims->v;
    case POSITIONS:
        return config->max_positions;
    case NONE:
        break;
    }
    return 1;
}

void rrfp_param_describe(const rrfp_model_config *config, uint32_t global_index,
                         rrfp_param *param)
{
    uint32_t layer;
    const row *found = find_row(config, global_index, &layer);
    *param = (rrfp_param){.global_index = global_index};
    if (layer == UINT32_MAX) {
        snprintf(param->name, sizeof param->name, "%s", found->name);
    } else {
        snprintf(param->name, sizeof param->name, "%s.%u.%s",
                 is_gpt2(config) ? "h" : "model.layers", layer, found->name);
    }
    const rrfp_model_config whole_config = rrfp_model_config_whole(config);
    const rrfp_model_dims mine = rrfp_model_dims_of(config);
    const rrfp_model_dims whole = rrfp_model_dims_of(&whole_config);
    param->ndim = found->dims[1] == NONE ? 1 : 2;
    param->count = param->whole_count = 1;
    for (uint32_t d = 0; d < param->ndim; d++) {
        param->dims[d] = dimension_value(config, &mine, found->dims[d]);
        param->whole_dims[d] = dimension_value(config, &whole, found->dims[d]);
        param->count = rrfp_sat_mul(param->count, param->dims[d]);
        param->whole_count = rrfp_sat_mul(param->whole_count, param->whole_dims[d]);
    }
    param->decay = param->ndim == 2;
    param->sharded = found->cut != ON_ALL && config->tensor_size > 1;
    if (param->sharded) {
        const dimension cut = found->dims[found->cut == BY_0 ? 0 : 1];
        param->shard_dim = found->cut == BY_0 ? 0 : 1;
        param->shard_parts = cut == HEADS_WIDTH_3 ? 3 : 1;
        param->shard_first = cut == VOCAB ? mine.first_v
                                          : param->dims[param->shard_dim] / param->shard_parts *
                                                config->tensor_rank;
    }
}

/* Run `index` of consecutive floats that shard and whole share; false after the last. */
typedef struct run {
    uint64_t mine, whole, count;
} run;

static bool find_run(const rrfp_param *param, uint64_t index, run *found)
{
    if (!param->sharded) {
        *found = (run){0, 0, param->count};
        return index == 0;
    }
    const uint32_t dim = param->shard_dim;
    const uint64_t parts = param->shard_parts;
    const uint64_t inner = dim == 0 && param->ndim == 2 ? param->dims[1] : 1;
    const uint64_t outer = dim == 0 ? 1 : param->dims[0];
    const uint64_t width = param->dims[dim] / parts * inner;
    const uint64_t whole_width = param->whole_dims[dim] / parts * inner;
    *found = (run){index * width, index * whole_width + param->shard_first * inner, width};
    return index < outer * parts;
}

void rrfp_param_gather(const rrfp_param *param, const float *shard, float *whole)
{
    run at;
    for (uint64_t i = 0; find_run(param, i, &at); i++) {
        memcpy(whole + at.whole, shard + at.mine, at.count * sizeof(float));
    }
}

void rrfp_param_scatter(const rrfp_param *param, const float *whole, float *shard)
{
    run at;
    for (uint64_t i = 0; find_run(param, i, &at); i++) {
        memcpy(shard + at.mine, whole + at.whole, at.count * sizeof(float));
    }
}

void rrfp_param_init(const rrfp_model_config *config, rrfp_param *param)
{
    uint32_t layer;
    const row *found = find_row(config, param->global_index, &layer);
    if (found->init == INIT_ZERO || found->init == INIT_ONE) {
        const float value = found->init == INIT_ONE ? 1.0f : 0.0f;
        for (uint64_t i = 0; i < param->count; i++) {
            param->value[i] = value;
        }
        return;
    }
    const rrfp_rng_key key = {
        .seed = config->seed, .stream = RRFP_RNG_INIT, .a = param->global_index};
    /* The 2L residual branches add up, so each is scaled to keep the stream's variance. */
    const double deviation =
        found->init == INIT_RESIDUAL ? 0.02 / sqrt(2.0 * config->num_layers) : 0.02;
    run at;
    for (uint64_t i = 0; find_run(param, i, &at); i++) {
        for (uint64_t e = 0; e < at.count; e++) {
            param->value[at.mine + e] = (float)(deviation * rrfp_rng_normal(&key, at.whole + e));
        }
    }
}
