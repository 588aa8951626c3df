/*
 * layer_gpt2.c - a GPT-2 layer: LayerNorm, attention, LayerNorm, GELU MLP.
 *
 *   mid = x   + dropout(attention(LN1(x) Wqkv) Wproj)
 *   out = mid + dropout(gelu(LN2(mid) Wfc) Wproj2)
 *
 * Block, in floats, with K the width of this rank's heads and F its part of the MLP; what wgrad
 * reads is the last column:
 *
 *     offset    size    after forward    after backward
 *   +---------+-------+----------------+--------------------------------+
 *   | norm1   | N*C   | LN1(x)         | LN1(x)                         |
 *   | qkv     | 3*N*K | q, k, v        | d(qkv)                         |
 *   | mixed   | N*K   | attention      | attention                      |
 *   | mid     | N*C   | mid            | d(attention projection)        |
 *   | norm2   | N*C   | LN2(mid)       | LN2(mid)                       |
 *   | fc      | N*F   | LN2(mid) Wfc   | d(fc)                          |
 *   | act     | N*F   | gelu(fc)       | gelu(fc)                       |
 *   | out     | N*C   | out, if inside | d(MLP projection)              |
 *   | d*1, d*2| C * 4 |                | this microbatch's d(LN params) |
 *   +---------+-------+----------------+--------------------------------+
 *
 * `out` dies when backward of the layer after is over, just before its slot is
 * needed for this layer's gradient; `mid` likewise within the layer.  Of a sequence shared by
 * ranks the stream (x, mid, out) has R of the N rows; the gradients in these slots have all.
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

/* narrow: a gradient (N,C); share: this rank's share of one, where it does not lie in its place;
 * wide: d(qkv), or d(fc). */
typedef struct scratch_offsets {
    uint64_t narrow, share, wide, attention, floats;
} scratch_offsets;

static block_offsets block_of(const rrfp_model_dims *dims)
{
    const uint64_t nc = rrfp_sat_mul(dims->n, dims->c);
    const uint64_t nk = rrfp_sat_mul(dims->n, dims->k);
    const uint64_t nf = rrfp_sat_mul(dims->n, dims->f);
    block_offsets at;
    uint64_t end = 0;
    at.norm1 = rrfp_carve(&end, nc);
    at.qkv = rrfp_carve(&end, rrfp_sat_mul(3, nk));
    at.mixed = rrfp_carve(&end, nk);
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
    at.mean1 = rrfp_carve(&end, dims->r);
    at.rstd1 = rrfp_carve(&end, dims->r);
    at.mean2 = rrfp_carve(&end, dims->r);
    at.rstd2 = rrfp_carve(&end, dims->r);
    at.lse = rrfp_carve(&end, rrfp_sat_mul(dims->n, dims->h));
    at.floats = end;
    return at;
}

static scratch_offsets scratch_of(const rrfp_model_dims *dims)
{
    const uint64_t widest = 3 * dims->k > dims->f ? 3 * dims->k : dims->f;
    const uint64_t nc = rrfp_sat_mul(dims->n, dims->c);
    scratch_offsets at;
    uint64_t end = 0;
    at.narrow = rrfp_carve(&end, nc);
    at.share = rrfp_carve(&end, dims->r < dims->n ? nc : 0);
    at.wide = rrfp_carve(&end, rrfp_sat_mul(dims->n, widest));
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
        .q_stride = 3 * dims->k,
        .kv_stride = 3 * dims->k,
        .y_stride = dims->k,
        .dropout = call->dropout,
        .rng = call->dropout > 0.0f ? key : NULL,
        .first_head = dims->first_head,
        .all_heads = dims->all_heads,
    };
    return shape;
}

static void forward(const rrfp_layer_call *call, const float *x, float *out, float *block,
                    float *stats, float *scratch)
{
    const rrfp_model_dims *dims = call->dims;
    const size_t n = dims->n, r = dims->r, c = dims->c, k = dims->k, f = dims->f;
    const size_t mine = dims->first_row * c;
    const block_offsets at = block_of(dims);
    const stats_offsets st = stats_of(dims);
    const scratch_offsets sc = scratch_of(dims);
    const rrfp_param *p = call->params;
    const float eps = call->config->norm_eps;
    const rrfp_rng_key key = rrfp_dropout_key(call, RRFP_SITE_ATTENTION);
    const rrfp_attention_shape shape = attention_shape(call, &key);
    float *qkv = block + at.qkv;
    float *mid = block + at.mid;
    float *share = scratch + sc.share;

    rrfp_layernorm_fwd(x, p[LN1_WEIGHT].value, p[LN1_BIAS].value, eps, block + at.norm1 + mine,
                       stats + st.mean1, stats + st.rstd1, r, c);
    rrfp_stream_gather(call, block + at.norm1);
    rrfp_linear_fwd(block + at.norm1, p[QKV_WEIGHT].value, p[QKV_BIAS].value, qkv, n, c, 3 * k,
                    false);
    rrfp_attention_fwd(&shape, qkv, qkv + k, qkv + 2 * k, block + at.mixed, stats + st.lse,
                       scratch + sc.attention);
    rrfp_linear_fwd(block + at.mixed, p[PROJ_WEIGHT].value, rrfp_bias_once(call, &p[PROJ_BIAS]),
                    rrfp_stream_partial(call, mid, share), n, k, c, false);
    rrfp_stream_reduce(call, mid, share);
    rrfp_site_dropout(call, RRFP_SITE_ATTENTION_OUT, mid, mid);
    rrfp_add(mid, x, r * c);

    rrfp_layernorm_fwd(mid, p[LN2_WEIGHT].value, p[LN2_BIAS].value, eps, block + at.norm2 + mine,
                       stats + st.mean2, stats + st.rstd2, r, c);
    rrfp_stream_gather(call, block + at.norm2);
    rrfp_linear_fwd(block + at.norm2, p[FC_WEIGHT].value, p[FC_BIAS].value, block + at.fc, n, c,
                    f, false);
    rrfp_gelu_fwd(block + at.fc, block + at.act, n * f);
    if (out != NULL) {
        rrfp_linear_fwd(block + at.act, p[MLP_WEIGHT].value, rrfp_bias_once(call, &p[MLP_BIAS]),
                        rrfp_stream_partial(call, out, share), n, f, c, false);
        rrfp_stream_reduce(call, out, share);
        rrfp_site_dropout(call, RRFP_SITE_MLP_OUT, out, out);
        rrfp_add(out, mid, r * c);
    }
}

static void backward(const rrfp_layer_call *call, const float *x, float *grad, float *block,
                     const float *stats, float *scratch)
{
    const rrfp_model_dims *dims = call->dims;
    const size_t n = dims->n, r = dims->r, c = dims->c, k = dims->k, f = dims->f;
    const size_t mine = dims->first_row * c;
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
    float *share = rrfp_stream_partial(call, narrow, scratch + sc.share);

    memset(block + at.dgamma1, 0, (at.floats - at.dgamma1) * sizeof(float));

    /* MLP: from here the out slot holds the gradient of the projection. */
    rrfp_site_dropout(call, RRFP_SITE_MLP_OUT, grad, block + at.out + mine);
    rrfp_stream_gather(call, block + at.out);
    rrfp_linear_dgrad(block + at.out, p[MLP_WEIGHT].value, wide, n, f, c, false, false);
    rrfp_gelu_dgrad(wide, block + at.fc, wide, n * f);
    memcpy(block + at.fc, wide, n * f * sizeof(float));
    rrfp_linear_dgrad(block + at.fc, p[FC_WEIGHT].value, share, n, c, f, false, false);
    rrfp_stream_reduce(call, narrow, share);
    rrfp_layernorm_wgrad(narrow, mid, stats + st.mean2, stats + st.rstd2, block + at.dgamma2,
                         block + at.dbeta2, r, c);
    rrfp_layernorm_dgrad(narrow, mid, p[LN2_WEIGHT].value, stats + st.mean2, stats + st.rstd2,
                         grad, r, c, true);

    /* Attention: `grad` is d(mid), and the mid slot takes the gradient of the projection. */
    rrfp_site_dropout(call, RRFP_SITE_ATTENTION_OUT, grad, mid + mine);
    rrfp_stream_gather(call, mid);
    rrfp_linear_dgrad(mid, p[PROJ_WEIGHT].value, narrow, n, k, c, false, false);
    rrfp_attention_dgrad(&shape, narrow, qkv, qkv + k, qkv + 2 * k, block + at.mixed,
                         stats + st.lse, wide, wide + k, wide + 2 * k, scratch + sc.attention);
    memcpy(qkv, wide, 3 * n * k * sizeof(float));
    rrfp_linear_dgrad(qkv, p[QKV_WEIGHT].value, share, n, c, 3 * k, false, false);
    rrfp_stream_reduce(call, narrow, share);
    rrfp_layernorm_wgrad(narrow, x, stats + st.mean1, stats + st.rstd1, block + at.dgamma1,
                         block + at.dbeta1, r, c);
    rrfp_layernorm_dgrad(narrow, x, p[LN1_WEIGHT].value, stats + st.mean1, stats + st.rstd1,
                         grad, r, c, true);
    rrfp_norm_reduce(call, block + at.dgamma1, at.floats - at.dgamma1);
}

static void wgrad(const rrfp_layer_call *call, const float *block)
{
    const rrfp_model_dims *dims = call->dims;
    const size_t n = dims->n, c = dims->c, k = dims->k, f = dims->f;
    const block_offsets at = block_of(dims);
    rrfp_param *p = call->params;

    rrfp_add(p[LN1_WEIGHT].grad, block + at.dgamma1, c);
    rrfp_add(p[LN1_BIAS].grad, block + at.dbeta1, c);
    rrfp_linear_wgrad(block + at.norm1, block + at.qkv, p[QKV_WEIGHT].grad, p[QKV_BIAS].grad, n,
                      c, 3 * k, false);
    rrfp_linear_wgrad(block + at.mixed, block + at.mid, p[PROJ_WEIGHT].grad, p[PROJ_BIAS].grad,
                      n, k, c, false);
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
