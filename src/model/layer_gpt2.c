/*
 * layer_gpt2.c - a GPT-2 layer: LayerNorm, attention, LayerNorm, GELU MLP.
 *
 *   mid = x   + dropout(attention(LN1(x) Wqkv) Wproj)
 *   out = mid + dropout(gelu(LN2(mid) Wfc) Wproj2)
 *
 * Block, in floats; what wgrad reads is the last column:
 *
 *     offset    size    after forward    after backward
 *   +---------+-------+----------------+--------------------------------+
 *   | norm1   | N*C   | LN1(x)         | LN1(x)                         |
 *   | qkv     | 3*N*C | q, k, v        | d(qkv)                         |
 *   | mixed   | N*C   | attention      | attention                      |
 *   | mid     | N*C   | mid            | d(attention projection)        |
 *   | norm2   | N*C   | LN2(mid)       | LN2(mid)                       |
 *   | fc      | N*F   | LN2(mid) Wfc   | d(fc)                          |
 *   | act     | N*F   | gelu(fc)       | gelu(fc)                       |
 *   | out     | N*C   | out, if inside | d(MLP projection)              |
 *   | d*1, d*2| C * 4 |                | this microbatch's d(LN params) |
 *   +---------+-------+----------------+--------------------------------+
 *
 * `out` dies when backward of the layer after is over, just before its slot is
 * needed for this layer's gradient; `mid` likewise within the layer.
 * Stats: mean and rstd of both norms, log-sum-exp of attention.
 */
#include "model/internal.h"

#include <string.h>

enum { LN1_WEIGHT, LN1_BIAS, QKV_WEIGHT, QKV_BIAS, PROJ_WEIGHT, PROJ_BIAS, LN2_WEIGHT, LN2_BIAS,
       FC_WEIGHT, FC_BIAS, MLP_WEIGHT, MLP_BIAS };

typedef struct block_offsets {
    uint64_t norm1, qkv, mixed, mid, norm2, fc, act, out;
    uint64_t dgamma1, dbeta1, dgamma2, dbeta2;
    uint64_t floats;
} block_offsets;

typedef struct stats_offsets {
    uint64_t mean1, rstd1, mean2, rstd2, lse, floats;
} stats_offsets;

/* narrow: a gradient (N,C); wide: d(qkv), or d(fc). */
typedef struct scratch_offsets {
    uint64_t narrow, wide, attention, floats;
} scratch_offsets;

static block_offsets block_of(const rrfp_model_dims *dims)
{
    const uint64_t nc = rrfp_sat_mul(dims->n, dims->c);
    const uint64_t nf = rrfp_sat_mul(dims->n, dims->f);
    block_offsets at;
    uint64_t end = 0;
    at.norm1 = rrfp_carve(&end, nc);
    at.qkv = rrfp_carve(&end, rrfp_sat_mul(3, nc));
    at.mixed = rrfp_carve(&end, nc);
    at.mid = rrfp_carve(&end, nc);
    at.norm2 = rrfp_carve(&end, nc);
    at.fc = rrfp_carve(&end, nf);
    at.act = rrfp_carve(&end, nf);
    at.out = rrfp_carve(&end, nc);
    at.dgamma1 = rrfp_carve(&end, dims->c);
    at.dbeta1 = rrfp_carve(&end, dims->c);
    at.dgamma2 = rrfp_carve(&end, dims->c);
    at.dbeta2 = rrfp_carve(&end, dims->c);
    at.floats = end;
    return at;
}

static stats_offsets stats_of(const rrfp_model_dims *dims)
{
    stats_offsets at;
    uint64_t end = 0;
    at.mean1 = rrfp_carve(&end, dims->n);
    at.rstd1 = rrfp_carve(&end, dims->n);
    at.mean2 = rrfp_carve(&end, dims->n);
    at.rstd2 = rrfp_carve(&end, dims->n);
    at.lse = rrfp_carve(&end, rrfp_sat_mul(dims->n, dims->h));
    at.floats = end;
    return at;
}

static scratch_offsets scratch_of(const rrfp_model_dims *dims)
{
    const uint64_t width = 3 * dims->c > dims->f ? 3 * dims->c : dims->f;
    scratch_offsets at;
    uint64_t end = 0;
    at.narrow = rrfp_carve(&end, rrfp_sat_mul(dims->n, dims->c));
    at.wide = rrfp_carve(&end, rrfp_sat_mul(dims->n, width));
    at.attention = rrfp_carve(&end, rrfp_attention_scratch_floats(dims->t, dims->d));
    at.floats = end;
    return at;
}

static uint64_t block_floats(const rrfp_model_dims *dims)
{
    return block_of(dims).floats;
}

static uint64_t stats_floats(const rrfp_model_dims *dims)
{
    return stats_of(dims).floats;
}

static uint64_t scratch_floats(const rrfp_model_dims *dims)
{
    return scratch_of(dims).floats;
}

static uint64_t output_offset(const rrfp_model_dims *dims)
{
    return block_of(dims).out;
}

static rrfp_attention_shape attention_shape(const rrfp_layer_call *call, const rrfp_rng_key *key)
{
    const rrfp_model_dims *dims = call->dims;
    rrfp_attention_shape shape = {
        .batch = dims->b,
        .t = dims->t,
        .heads = dims->h,
        .kv_heads = dims->h,
        .d = dims->d,
        .q_stride = 3 * dims->c,
        .kv_stride = 3 * dims->c,
        .y_stride = dims->c,
        .dropout = call->dropout,
        .rng = call->dropout > 0.0f ? key : NULL,
    };
    return shape;
}

static void forward(const rrfp_layer_call *call, const float *x, float *out, float *block,
                    float *stats, float *scratch)
{
    const rrfp_model_dims *dims = call->dims;
    const size_t n = dims->n, c = dims->c, f = dims->f;
    const block_offsets at = block_of(dims);
    const stats_offsets st = stats_of(dims);
    const rrfp_param *p = call->params;
    const float eps = call->config->norm_eps;
    const rrfp_rng_key key = rrfp_dropout_key(call, RRFP_SITE_ATTENTION);
    const rrfp_attention_shape shape = attention_shape(call, &key);
    float *qkv = block + at.qkv;
    float *mid = block + at.mid;

    rrfp_layernorm_fwd(x, p[LN1_WEIGHT].value, p[LN1_BIAS].value, eps, block + at.norm1,
                       stats + st.mean1, stats + st.rstd1, n, c);
    rrfp_linear_fwd(block + at.norm1, p[QKV_WEIGHT].value, p[QKV_BIAS].value, qkv, n, c, 3 * c,
                    false);
    rrfp_attention_fwd(&shape, qkv, qkv + c, qkv + 2 * c, block + at.mixed, stats + st.lse,
                       scratch + scratch_of(dims).attention);
    rrfp_linear_fwd(block + at.mixed, p[PROJ_WEIGHT].value, p[PROJ_BIAS].value, mid, n, c, c,
                    false);
    rrfp_site_dropout(call, RRFP_SITE_ATTENTION_OUT, mid, mid);
    rrfp_add(mid, x, n * c);

    rrfp_layernorm_fwd(mid, p[LN2_WEIGHT].value, p[LN2_BIAS].value, eps, block + at.norm2,
                       stats + st.mean2, stats + st.rstd2, n, c);
    rrfp_linear_fwd(block + at.norm2, p[FC_WEIGHT].value, p[FC_BIAS].value, block + at.fc, n, c,
                    f, false);
    rrfp_gelu_fwd(block + at.fc, block + at.act, n * f);
    if (out != NULL) {
        rrfp_linear_fwd(block + at.act, p[MLP_WEIGHT].value, p[MLP_BIAS].value, out, n, f, c,
                        false);
        rrfp_site_dropout(call, RRFP_SITE_MLP_OUT, out, out);
        rrfp_add(out, mid, n * c);
    }
}

static void backward(const rrfp_layer_call *call, const float *x, float *grad, float *block,
                     const float *stats, float *scratch)
{
    const rrfp_model_dims *dims = call->dims;
    const size_t n = dims->n, c = dims->c, f = dims->f;
    const block_offsets at = block_of(dims);
    const stats_offsets st = stats_of(dims);
    const scratch_offsets sc = scratch_of(dims);
    const rrfp_param *p = call->params;
    const rrfp_rng_key key = rrfp_dropout_key(call, RRFP_SITE_ATTENTION);
    const rrfp_attention_shape shape = attention_shape(call, &key);
    float *narrow = scratch + sc.narrow;
    float *wide = scratch + sc.wide;
    float *qkv = block + at.qkv;
    float *mid = block + at.mid;

    memset(block + at.dgamma1, 0, (at.floats - at.dgamma1) * sizeof(float));

    /* MLP: from here the out slot holds the gradient of the projection. */
    rrfp_site_dropout(call, RRFP_SITE_MLP_OUT, grad, block + at.out);
    rrfp_linear_dgrad(block + at.out, p[MLP_WEIGHT].value, wide, n, f, c, false, false);
    rrfp_gelu_dgrad(wide, block + at.fc, wide, n * f);
    memcpy(block + at.fc, wide, n * f * sizeof(float));
    rrfp_linear_dgrad(block + at.fc, p[FC_WEIGHT].value, narrow, n, c, f, false, false);
    rrfp_layernorm_wgrad(narrow, mid, stats + st.mean2, stats + st.rstd2, block + at.dgamma2,
                         block + at.dbeta2, n, c);
    rrfp_layernorm_dgrad(narrow, mid, p[LN2_WEIGHT].value, stats + st.mean2, stats + st.rstd2,
                         grad, n, c, true);

    /* Attention: `grad` is d(mid), and the mid slot takes the gradient of the projection. */
    rrfp_site_dropout(call, RRFP_SITE_ATTENTION_OUT, grad, mid);
    rrfp_linear_dgrad(mid, p[PROJ_WEIGHT].value, narrow, n, c, c, false, false);
    rrfp_attention_dgrad(&shape, narrow, qkv, qkv + c, qkv + 2 * c, block + at.mixed,
                         stats + st.lse, wide, wide + c, wide + 2 * c, scratch + sc.attention);
    memcpy(qkv, wide, 3 * n * c * sizeof(float));
    rrfp_linear_dgrad(qkv, p[QKV_WEIGHT].value, narrow, n, c, 3 * c, false, false);
    rrfp_layernorm_wgrad(narrow, x, stats + st.mean1, stats + st.rstd1, block + at.dgamma1,
                         block + at.dbeta1, n, c);
    rrfp_layernorm_dgrad(narrow, x, p[LN1_WEIGHT].value, stats + st.mean1, stats + st.rstd1,
                         grad, n, c, true);
}

static void wgrad(const rrfp_layer_call *call, const float *block)
{
    const rrfp_model_dims *dims = call->dims;
    const size_t n = dims->n, c = dims->c, f = dims->f;
    const block_offsets at = block_of(dims);
    rrfp_param *p = call->params;

    rrfp_add(p[LN1_WEIGHT].grad, block + at.dgamma1, c);
    rrfp_add(p[LN1_BIAS].grad, block + at.dbeta1, c);
    rrfp_linear_wgrad(block + at.norm1, block + at.qkv, p[QKV_WEIGHT].grad, p[QKV_BIAS].grad, n,
                      c, 3 * c, false);
    rrfp_linear_wgrad(block + at.mixed, block + at.mid, p[PROJ_WEIGHT].grad, p[PROJ_BIAS].grad,
                      n, c, c, false);
    rrfp_add(p[LN2_WEIGHT].grad, block + at.dgamma2, c);
    rrfp_add(p[LN2_BIAS].grad, block + at.dbeta2, c);
    rrfp_linear_wgrad(block + at.norm2, block + at.fc, p[FC_WEIGHT].grad, p[FC_BIAS].grad, n, c,
                      f, false);
    rrfp_linear_wgrad(block + at.act, block + at.out, p[MLP_WEIGHT].grad, p[MLP_BIAS].grad, n, f,
                      c, false);
}

const rrfp_layer_ops rrfp_layer_gpt2 = {
    .block_floats = block_floats,
    .stats_floats = stats_floats,
    .scratch_floats = scratch_floats,
    .output_offset = output_offset,
    .forward = forward,
    .backward = backward,
    .wgrad = wgrad,
};
