/* config.c - defaults and checks of a model configuration, and what follows from it by counting. */
#include "model/internal.h"

#include <math.h>

/* Far above any model; keeps every index in 32 bits and every GEMM dimension in an int. */
enum { MAX_LAYERS = 100000, MAX_WIDTH = 1 << 24 };

rrfp_model_dims rrfp_model_dims_of(const rrfp_model_config *config)
{
    const uint64_t size = config->tensor_size > 0 ? config->tensor_size : 1;
    const uint64_t rank = config->tensor_rank;
    rrfp_model_dims dims = {
        .b = config->micro_batch,
        .t = config->seq_length,
        .n = (uint64_t)config->micro_batch * config->seq_length,
        .c = config->hidden,
        .h = config->heads / size,
        .g = config->kv_heads / size,
        .d = config->hidden / config->heads,
        .f = config->ffn_hidden / size,
        .all_heads = config->heads,
        .first_head = config->heads / size * rank,
        .first_v = config->vocab * rank / size,
    };
    dims.k = dims.h * dims.d;
    dims.v = config->vocab * (rank + 1) / size - dims.first_v; /* any vocabulary: parts may differ */
    dims.r = config->sequence_parallel ? dims.n / size : dims.n;
    dims.first_row = config->sequence_parallel ? dims.r * rank : 0;
    return dims;
}

rrfp_model_config rrfp_model_config_whole(const rrfp_model_config *config)
{
    rrfp_model_config whole = *config;
    whole.tensor_size = 1;
    whole.tensor_rank = 0;
    whole.sequence_parallel = false;
    return whole;
}

static rrfp_status check_range(const char *name, uint32_t value, uint32_t max, rrfp_error *error)
{
    if (value >= 1 && value <= max) {
        return RRFP_OK;
    }
    return rrfp_error_set(error, RRFP_ERR_INVALID, "%s is %u; it must be between 1 and %u", name,
                          value, max);
}

static rrfp_status check_sizes(const rrfp_model_config *config, rrfp_error *error)
{
    const struct {
        const char *name;
        uint32_t value, max;
    } rows[] = {
        {"the number of layers", config->num_layers, MAX_LAYERS},
        {"the hidden size", config->hidden, MAX_WIDTH},
        {"the number of heads", config->heads, MAX_WIDTH},
        {"the vocabulary size", config->vocab, INT32_MAX},
        {"the sequence length", config->seq_length, MAX_WIDTH},
        {"the microbatch size", config->micro_batch, MAX_WIDTH},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        rrfp_status status = check_range(rows[i].name, rows[i].value, rows[i].max, error);
        if (status != RRFP_OK) {
            return status;
        }
    }
    uint64_t rows_per_microbatch = (uint64_t)config->micro_batch * config->seq_length;
    if (rows_per_microbatch > INT32_MAX) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "microbatch size %u times sequence length %u is more than %d tokens; "
                              "lower either",
                              config->micro_batch, config->seq_length, INT32_MAX);
    }
    return RRFP_OK;
}

static rrfp_status check_heads(rrfp_model_config *config, rrfp_error *error)
{
    if (config->hidden % config->heads != 0) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "hidden size %u is not a multiple of the %u heads; change either",
                              config->hidden, config->heads);
    }
    if (config->kv_heads == 0) {
        config->kv_heads = config->heads;
    }
    if (config->arch == RRFP_ARCH_GPT2 && config->kv_heads != config->heads) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "GPT-2 has as many key/value heads as heads (%u), not %u; leave "
                              "kv_heads out or use Llama",
                              config->heads, config->kv_heads);
    }
    if (config->kv_heads > config->heads || config->heads % config->kv_heads != 0) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "%u heads is not a multiple of %u key/value heads; change either",
                              config->heads, config->kv_heads);
    }
    if (config->arch == RRFP_ARCH_LLAMA && config->hidden / config->heads % 2 != 0) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "head size %u (hidden %u / heads %u) is odd; rotary positions need "
                              "an even one",
                              config->hidden / config->heads, config->hidden, config->heads);
    }
    return RRFP_OK;
}

static rrfp_status check_numbers(rrfp_model_config *config, rrfp_error *error)
{
    if (config->norm_eps == 0.0f) {
        config->norm_eps = 1e-5f;
    }
    if (config->rope_theta == 0.0f) {
        config->rope_theta = 10000.0f;
    }
    if (!isfinite(config->norm_eps) || config->norm_eps < 0.0f) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "norm_eps is %g; it must be a positive number, e.g. 1e-5",
                              (double)config->norm_eps);
    }
    if (!isfinite(config->rope_theta) || config->rope_theta < 1.0f) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "rope_theta is %g; it must be at least 1, e.g. 10000",
                              (double)config->rope_theta);
    }
    if (!(config->dropout >= 0.0f && config->dropout < 1.0f)) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "dropout is %g; it must be at least 0 and less than 1",
                              (double)config->dropout);
    }
    return RRFP_OK;
}

/* What ranks share must come apart evenly, but for the vocabulary. */
static rrfp_status check_tensor_parallel(rrfp_model_config *config, rrfp_error *error)
{
    if (config->tensor_size == 0) {
        config->tensor_size = 1;
    }
    const uint32_t size = config->tensor_size;
    const struct {
        const char *what;
        uint32_t value;
    } rows[] = {
        {"heads", config->heads},
        {"key/value heads", config->kv_heads},
        {"hidden units of the MLP", config->ffn_hidden},
        {"positions of a sequence (--sequence-parallel)",
         config->sequence_parallel ? config->seq_length : size},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].value % size != 0) {
            return rrfp_error_set(error, RRFP_ERR_INVALID,
                                  "%u %s cannot be divided among %u tensor-parallel ranks; take a "
                                  "--tensor-model-parallel-size that divides them",
                                  rows[i].value, rows[i].what, size);
        }
    }
    if (config->vocab < size) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "a vocabulary of %u leaves some of %u tensor-parallel ranks without "
                              "a token; lower --tensor-model-parallel-size",
                              config->vocab, size);
    }
    if (config->tensor_rank >= size) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "there is no tensor-parallel rank %u among %u", config->tensor_rank,
                              size);
    }
    return RRFP_OK;
}

/* The whole model in one chunk must be addressable; then every part of it is. */
static rrfp_status check_memory(const rrfp_model_config *config, rrfp_error *error)
{
    const rrfp_chunk_range whole = {0, config->num_layers, true, true};
    rrfp_chunk_layout layout;
    rrfp_chunk_plan(config, &whole, &layout);
    /* Padding of each parameter to 64 bytes, and the second gradient of a tied matrix. */
    uint64_t parameters = rrfp_sat_add(
        rrfp_model_param_count(config),
        rrfp_sat_add(rrfp_sat_mul(config->vocab, config->hidden),
                     rrfp_sat_mul(rrfp_params_in_model(config), 16)));
    const uint64_t limit = PTRDIFF_MAX / sizeof(float);
    if (parameters > limit || layout.retained_floats > limit || layout.activation_floats > limit ||
        layout.scratch_floats > limit) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "a model of %u layers, hidden size %u, vocabulary %u and %u x %u "
                              "tokens per microbatch is larger than the address space",
                              config->num_layers, config->hidden, config->vocab,
                              config->micro_batch, config->seq_length);
    }
    return RRFP_OK;
}

rrfp_status rrfp_model_config_finish(rrfp_model_config *config, rrfp_error *error)
{
    rrfp_model_config full = *config;
    if (full.arch != RRFP_ARCH_GPT2 && full.arch != RRFP_ARCH_LLAMA) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "unknown architecture %d; known are GPT-2 and Llama", (int)full.arch);
    }
    rrfp_status status = check_sizes(&full, error);
    if (status == RRFP_OK) {
        status = check_heads(&full, error);
    }
    if (status != RRFP_OK) {
        return status;
    }
    if (full.ffn_hidden == 0 && full.arch == RRFP_ARCH_GPT2) {
        full.ffn_hidden = 4 * full.hidden;
    } else if (full.ffn_hidden == 0) {
        full.ffn_hidden = ((8 * full.hidden + 2) / 3 + 31) / 32 * 32;
    }
    status = check_range("the hidden size of the MLP", full.ffn_hidden, 4 * MAX_WIDTH, error);
    if (status != RRFP_OK) {
        return status;
    }
    if (full.max_positions == 0) {
        full.max_positions = full.seq_length;
    }
    if (full.seq_length > full.max_positions) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "sequence length %u is more than the model's %u positions; shorten "
                              "it or raise max_positions",
                              full.seq_length, full.max_positions);
    }
    status = check_numbers(&full, error);
    if (status == RRFP_OK) {
        status = check_tensor_parallel(&full, error);
    }
    if (status == RRFP_OK) {
        status = check_memory(&full, error);
    }
    if (status == RRFP_OK) {
        *config = full;
    }
    return status;
}

uint64_t rrfp_model_param_count(const rrfp_model_config *config)
{
    const uint32_t before = rrfp_params_in_embedding(config);
    const uint32_t per_layer = rrfp_params_in_layer(config);
    const uint32_t total = rrfp_params_in_model(config);
    const uint32_t after = before + per_layer * config->num_layers;
    uint64_t ends = 0;
    uint64_t layer = 0;
    rrfp_param param;
    for (uint32_t i = 0; i < before; i++) {
        rrfp_param_describe(config, i, &param);
        ends = rrfp_sat_add(ends, param.whole_count);
    }
    for (uint32_t i = before; i < before + per_layer; i++) {
        rrfp_param_describe(config, i, &param);
        layer = rrfp_sat_add(layer, param.whole_count);
    }
    for (uint32_t i = after; i < total; i++) {
        rrfp_param_describe(config, i, &param);
        ends = rrfp_sat_add(ends, param.whole_count);
    }
    return rrfp_sat_add(ends, rrfp_sat_mul(layer, config->num_layers));
}

/*
 * Two operations per multiply-add, matrix products only; per token and forward
 *
 *   query, key, value   2 C (C + 2 G D)      output projection   2 C C
 *   scores and values   2 (2 T C) / 2        (a token sees half of T on average)
 *   MLP                 2 C F * 2 (GPT-2) or 3 (SwiGLU)
 *   head                2 C V
 *
 * and backward is twice forward: 3 times the sum.  Recomputation is not counted.
 */
double rrfp_model_flops_per_token(const rrfp_model_config *config)
{
    const rrfp_model_config whole = rrfp_model_config_whole(config);
    const rrfp_model_dims dims = rrfp_model_dims_of(&whole);
    const double c = (double)dims.c;
    const double kv = (double)(dims.g * dims.d);
    const double mlp_matrices = config->arch == RRFP_ARCH_LLAMA ? 3.0 : 2.0;
    const double layer = 2.0 * c * (c + 2.0 * kv) + 2.0 * (double)dims.t * c + 2.0 * c * c +
                         2.0 * mlp_matrices * c * (double)dims.f;
    return 3.0 * (layer * config->num_layers + 2.0 * c * (double)dims.v);
}
