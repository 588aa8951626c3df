/*
 * ref_model.h - the two architectures once more, in double, with plain loops.
 *
 * Written from the published formulas (GPT-2: pre-LayerNorm, tanh GELU; Llama:
 * RMSNorm, rotate-half RoPE, grouped queries, SwiGLU); it shares nothing with
 * the library but the random numbers that form dropout masks.  Parameters are
 * looked up by their Hugging Face names.  Slow and meant for tiny models.
 */
#ifndef RRFP_TESTS_REF_MODEL_H
#define RRFP_TESTS_REF_MODEL_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/rng.h"
#include "model/model.h"

enum { REF_MAX_PARAMS = 128 };

typedef struct ref_param {
    char name[96];
    double *value;
    uint64_t count;
} ref_param;

typedef struct ref_model {
    rrfp_model_config config;
    ref_param params[REF_MAX_PARAMS];
    size_t count;
} ref_model;

static inline void ref_add_param(ref_model *model, const char *name, const float *value,
                                 uint64_t count)
{
    ref_param *param = &model->params[model->count++];
    snprintf(param->name, sizeof param->name, "%s", name);
    param->value = malloc(count * sizeof *param->value);
    param->count = count;
    for (uint64_t i = 0; i < count; i++) {
        param->value[i] = (double)value[i];
    }
}

static inline void ref_free(ref_model *model)
{
    for (size_t i = 0; i < model->count; i++) {
        free(model->params[i].value);
    }
    model->count = 0;
}

static inline const double *ref_get(const ref_model *model, const char *format, ...)
{
    char name[96];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    for (size_t i = 0; i < model->count; i++) {
        if (strcmp(model->params[i].name, name) == 0) {
            return model->params[i].value;
        }
    }
    fprintf(stderr, "the model has no parameter %s\n", name);
    abort();
}

typedef struct ref_input {
    const int32_t *tokens, *targets;
    uint64_t step;
    uint32_t index;
    bool training;
} ref_input;

static inline double ref_mask(const ref_model *model, const ref_input *in, uint32_t layer,
                              uint32_t site, uint64_t element)
{
    const rrfp_rng_key key = {model->config.seed, RRFP_RNG_DROPOUT, layer * 8 + site, in->index,
                              (uint32_t)in->step};
    const double p = in->training ? (double)model->config.dropout : 0.0;
    if (p == 0.0) {
        return 1.0;
    }
    return (double)rrfp_rng_uniform(&key, element) < p ? 0.0 : 1.0 / (1.0 - p);
}

static inline void ref_norm(const ref_model *model, const double *x, const double *gamma,
                     const double *beta, double *y)
{
    const size_t c = model->config.hidden;
    const double eps = (double)model->config.norm_eps;
    double mean = 0.0, square = 0.0;
    if (model->config.arch == RRFP_ARCH_GPT2) {
        for (size_t i = 0; i < c; i++) {
            mean += x[i] / (double)c;
        }
    }
    for (size_t i = 0; i < c; i++) {
        square += (x[i] - mean) * (x[i] - mean) / (double)c;
    }
    for (size_t i = 0; i < c; i++) {
        y[i] = (x[i] - mean) / sqrt(square + eps) * gamma[i] + (beta != NULL ? beta[i] : 0.0);
    }
}

/* One row; w is (in, out), or (out, in) when transposed. */
static inline void ref_linear(const double *x, const double *w, const double *bias, double *y,
                              size_t in, size_t out, bool transposed)
{
    for (size_t o = 0; o < out; o++) {
        y[o] = bias != NULL ? bias[o] : 0.0;
    }
    if (transposed) {
        for (size_t o = 0; o < out; o++) {
            for (size_t i = 0; i < in; i++) {
                y[o] += x[i] * w[o * in + i];
            }
        }
    } else {
        for (size_t i = 0; i < in; i++) {
            for (size_t o = 0; o < out; o++) {
                y[o] += x[i] * w[i * out + o];
            }
        }
    }
}

static inline void ref_rope(double *x, size_t d, size_t position, double theta)
{
    for (size_t i = 0; i < d / 2; i++) {
        const double angle = (double)position * pow(theta, -2.0 * (double)i / (double)d);
        const double a = x[i], b = x[i + d / 2];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + d / 2] = b * cos(angle) + a * sin(angle);
    }
}

/* q (B,T,H,D); k, v (B,T,G,D); y (B,T,H,D). */
static inline void ref_attention(const ref_model *model, const ref_input *in, uint32_t layer,
                          const double *q, const double *k, const double *v, double *y)
{
    const rrfp_model_config *cf = &model->config;
    const size_t t = cf->seq_length, h = cf->heads, g = cf->kv_heads, d = cf->hidden / cf->heads;
    double *p = malloc(t * sizeof *p);
    for (size_t b = 0; b < cf->micro_batch; b++) {
        for (size_t head = 0; head < h; head++) {
            const size_t kv = head / (h / g);
            for (size_t i = 0; i < t; i++) {
                double sum = 0.0;
                double *out = y + ((b * t + i) * h + head) * d;
                for (size_t j = 0; j <= i; j++) {
                    double score = 0.0;
                    for (size_t e = 0; e < d; e++) {
                        score += q[((b * t + i) * h + head) * d + e] *
                                 k[((b * t + j) * g + kv) * d + e];
                    }
                    p[j] = exp(score / sqrt((double)d));
                    sum += p[j];
                }
                for (size_t e = 0; e < d; e++) {
                    out[e] = 0.0;
                }
                for (size_t j = 0; j <= i; j++) {
                    const uint64_t element = ((b * h + head) * t + i) * t + j;
                    const double weight = p[j] / sum * ref_mask(model, in, layer, 1, element);
                    for (size_t e = 0; e < d; e++) {
                        out[e] += weight * v[((b * t + j) * g + kv) * d + e];
                    }
                }
            }
        }
    }
    free(p);
}

typedef struct ref_weights {
    const double *ln1, *ln1_bias, *qkv, *qkv_bias, *q, *k, *v, *proj, *proj_bias;
    const double *ln2, *ln2_bias, *fc, *fc_bias, *gate, *up, *down, *down_bias;
} ref_weights;

static inline ref_weights ref_layer_weights(const ref_model *model, uint32_t layer)
{
    if (model->config.arch == RRFP_ARCH_GPT2) {
        const ref_weights gpt2 = {
            .ln1 = ref_get(model, "h.%u.ln_1.weight", layer),
            .ln1_bias = ref_get(model, "h.%u.ln_1.bias", layer),
            .qkv = ref_get(model, "h.%u.attn.c_attn.weight", layer),
            .qkv_bias = ref_get(model, "h.%u.attn.c_attn.bias", layer),
            .proj = ref_get(model, "h.%u.attn.c_proj.weight", layer),
            .proj_bias = ref_get(model, "h.%u.attn.c_proj.bias", layer),
            .ln2 = ref_get(model, "h.%u.ln_2.weight", layer),
            .ln2_bias = ref_get(model, "h.%u.ln_2.bias", layer),
            .fc = ref_get(model, "h.%u.mlp.c_fc.weight", layer),
            .fc_bias = ref_get(model, "h.%u.mlp.c_fc.bias", layer),
            .down = ref_get(model, "h.%u.mlp.c_proj.weight", layer),
            .down_bias = ref_get(model, "h.%u.mlp.c_proj.bias", layer),
        };
        return gpt2;
    }
    const ref_weights llama = {
        .ln1 = ref_get(model, "model.layers.%u.input_layernorm.weight", layer),
        .q = ref_get(model, "model.layers.%u.self_attn.q_proj.weight", layer),
        .k = ref_get(model, "model.layers.%u.self_attn.k_proj.weight", layer),
        .v = ref_get(model, "model.layers.%u.self_attn.v_proj.weight", layer),
        .proj = ref_get(model, "model.layers.%u.self_attn.o_proj.weight", layer),
        .ln2 = ref_get(model, "model.layers.%u.post_attention_layernorm.weight", layer),
        .gate = ref_get(model, "model.layers.%u.mlp.gate_proj.weight", layer),
        .up = ref_get(model, "model.layers.%u.mlp.up_proj.weight", layer),
        .down = ref_get(model, "model.layers.%u.mlp.down_proj.weight", layer),
    };
    return llama;
}

/* The rows of q, k and v of one position. */
static inline void ref_qkv(const ref_model *model, const ref_weights *w, const double *norm,
                           size_t position, double *q, double *k, double *v)
{
    const rrfp_model_config *cf = &model->config;
    const size_t c = cf->hidden, d = c / cf->heads, kv = cf->kv_heads * d;
    if (cf->arch == RRFP_ARCH_GPT2) {
        double *all = malloc(3 * c * sizeof *all);
        ref_linear(norm, w->qkv, w->qkv_bias, all, c, 3 * c, false);
        memcpy(q, all, c * sizeof *q);
        memcpy(k, all + c, c * sizeof *q);
        memcpy(v, all + 2 * c, c * sizeof *q);
        free(all);
        return;
    }
    ref_linear(norm, w->q, NULL, q, c, c, true);
    ref_linear(norm, w->k, NULL, k, c, kv, true);
    ref_linear(norm, w->v, NULL, v, c, kv, true);
    for (size_t e = 0; e < c; e += d) {
        ref_rope(q + e, d, position, (double)cf->rope_theta);
    }
    for (size_t e = 0; e < kv; e += d) {
        ref_rope(k + e, d, position, (double)cf->rope_theta);
    }
}

static inline void ref_mlp(const ref_model *model, const ref_weights *w, const double *norm,
                           double *out)
{
    const size_t c = model->config.hidden, f = model->config.ffn_hidden;
    double *wide = malloc(f * sizeof *wide), *up = malloc(f * sizeof *up);
    if (model->config.arch == RRFP_ARCH_GPT2) {
        const double root = sqrt(2.0 / acos(-1.0));
        ref_linear(norm, w->fc, w->fc_bias, wide, c, f, false);
        for (size_t i = 0; i < f; i++) {
            const double z = wide[i];
            wide[i] = 0.5 * z * (1.0 + tanh(root * (z + 0.044715 * z * z * z)));
        }
        ref_linear(wide, w->down, w->down_bias, out, f, c, false);
    } else {
        ref_linear(norm, w->gate, NULL, wide, c, f, true);
        ref_linear(norm, w->up, NULL, up, c, f, true);
        for (size_t i = 0; i < f; i++) {
            wide[i] = wide[i] / (1.0 + exp(-wide[i])) * up[i];
        }
        ref_linear(wide, w->down, NULL, out, f, c, true);
    }
    free(wide);
    free(up);
}

static inline void ref_layer(const ref_model *model, const ref_input *in, uint32_t layer,
                             double *x)
{
    const rrfp_model_config *cf = &model->config;
    const bool transposed = cf->arch == RRFP_ARCH_LLAMA;
    const ref_weights w = ref_layer_weights(model, layer);
    const size_t t = cf->seq_length, n = cf->micro_batch * t, c = cf->hidden;
    const size_t kv = cf->kv_heads * (c / cf->heads);
    double *q = malloc(n * c * sizeof *q), *y = malloc(n * c * sizeof *y);
    double *k = malloc(n * kv * sizeof *k), *v = malloc(n * kv * sizeof *v);
    double *norm = malloc(c * sizeof *norm), *out = malloc(c * sizeof *out);
    for (size_t r = 0; r < n; r++) {
        ref_norm(model, x + r * c, w.ln1, w.ln1_bias, norm);
        ref_qkv(model, &w, norm, r % t, q + r * c, k + r * kv, v + r * kv);
    }
    ref_attention(model, in, layer, q, k, v, y);
    for (size_t r = 0; r < n; r++) {
        double *row = x + r * c;
        ref_linear(y + r * c, w.proj, w.proj_bias, out, c, c, transposed);
        for (size_t i = 0; i < c; i++) {
            row[i] += out[i] * ref_mask(model, in, layer, 2, r * c + i);
        }
        ref_norm(model, row, w.ln2, w.ln2_bias, norm);
        ref_mlp(model, &w, norm, out);
        for (size_t i = 0; i < c; i++) {
            row[i] += out[i] * ref_mask(model, in, layer, 3, r * c + i);
        }
    }
    free(q);
    free(k);
    free(v);
    free(y);
    free(norm);
    free(out);
}

/* Sum of token losses; `logits_out` (B*T, V) may be NULL. */
static inline double ref_loss(const ref_model *model, const ref_input *in, double *logits_out)
{
    const rrfp_model_config *cf = &model->config;
    const bool gpt2 = cf->arch == RRFP_ARCH_GPT2;
    const size_t n = (size_t)cf->micro_batch * cf->seq_length, c = cf->hidden, vocab = cf->vocab;
    const double *embedding = ref_get(model, gpt2 ? "wte.weight" : "model.embed_tokens.weight");
    const double *matrix = cf->tied ? embedding : ref_get(model, "lm_head.weight");
    double *x = malloc(n * c * sizeof *x), *norm = malloc(c * sizeof *norm);
    double *logits = malloc(vocab * sizeof *logits);
    const double *positions = gpt2 ? ref_get(model, "wpe.weight") : NULL;
    const double *gamma = ref_get(model, gpt2 ? "ln_f.weight" : "model.norm.weight");
    const double *beta = gpt2 ? ref_get(model, "ln_f.bias") : NULL;
    double loss = 0.0;
    for (size_t r = 0; r < n; r++) {
        for (size_t i = 0; i < c; i++) {
            double value = embedding[(size_t)in->tokens[r] * c + i];
            if (gpt2) {
                value += positions[r % cf->seq_length * c + i];
            }
            x[r * c + i] = value * ref_mask(model, in, UINT32_MAX / 8, 0, r * c + i);
        }
    }
    for (uint32_t layer = 0; layer < cf->num_layers; layer++) {
        ref_layer(model, in, layer, x);
    }
    for (size_t r = 0; r < n; r++) {
        double sum = 0.0;
        ref_norm(model, x + r * c, gamma, beta, norm);
        ref_linear(norm, matrix, NULL, logits, c, vocab, true);
        for (size_t o = 0; o < vocab; o++) {
            sum += exp(logits[o]);
        }
        if (in->targets[r] >= 0) {
            loss += log(sum) - logits[in->targets[r]];
        }
        if (logits_out != NULL) {
            memcpy(logits_out + r * vocab, logits, vocab * sizeof *logits);
        }
    }
    free(x);
    free(norm);
    free(logits);
    return loss;
}

#endif /* RRFP_TESTS_REF_MODEL_H */
