/*
 * layer_llama.c - a Llama layer: RMSNorm, rotary grouped-query attention, RMSNorm, SwiGLU MLP.
 *
 *   mid = x   + dropout(attention(rope(RMS1(x) Wq), rope(RMS1(x) Wk), RMS1(x) Wv) Wo)
 *   out = mid + dropout((silu(RMS2(mid) Wgate) * RMS2(mid) Wup) Wdown)
 *
 * Block, in floats, with Q and K the widths of this rank's queries and keys and F its part of the
 * MLP; wgrad reads the last column:
 *
 *     offset    size    after forward    after backward
 *   +---------+-------+----------------+---------------------------------+
 *   | norm1   | N*C   | RMS1(x)        | RMS1(x)                         |
 *   | q       | N*Q   | rotated q      | d(q before rotation)            |
 *   | k       | N*K   | rotated k      | d(k before rotation)            |
 *   | v       | N*K   | v              | d(v)                            |
 *   | mixed   | N*Q   | attention      | attention                       |
 *   | mid     | N*C   | mid            | d(attention projection)         |
 *   | norm2   | N*C   | RMS2(mid)      | RMS2(mid)                       |
 *   | gate    | N*F   | gate           | d(gate)                         |
 *   | up      | N*F   | up             | d(up)                           |
 *   | act     | N*F   | silu(gate)*up  | silu(gate)*up                   |
 *   | out     | N*C   | out, if inside | d(MLP projection)               |
 *   | dgamma* | C * 2 |                | this microbatch's d(RMS params) |
 *   +---------+-------+----------------+---------------------------------+
 *
 * Stats: rstd of both norms, log-sum-exp of attention.
 */
#include "model/internal.h"

#include <string.h>

enum { NORM1, Q_PROJ, K_PROJ, V_PROJ, O_PROJ, NORM2, GATE_PROJ, UP_PROJ, DOWN_PROJ };

typedef struct block_offsets {
    uint64_t norm1, q, k, v, mixed, mid, norm2, gate, up, act, out, dgamma1, dgamma2, floats;
} block_offsets;

typedef struct stats_offsets {
    uint64_t rstd1, rstd2, lse, floats;
} stats_offsets;

/* narrow: a gradient (N,C); share: this rank's share of one, where it does not lie in its place;
 * then either d(gate), d(up) or d(q), d(k), d(v). */
typedef struct scratch_offsets {
    uint64_t narrow, share, dgate, dup, dq, dk, dv, attention, floats;
} scratch_offsets;

static block_offsets block_of(const rrfp_model_dims *dims)
{
    const uint64_t nc = rrfp_sat_mul(dims->n, dims->c);
    const uint64_t nq = rrfp_sat_mul(dims->n, dims->k);
    const uint64_t nk = rrfp_sat_mul(dims->n, dims->g * dims->d);
    const uint64_t nf = rrfp_sat_mul(dims->n, dims->f);
    block_offsets at;
    uint64_t end = 0;
    at.norm1 = rrfp_carve(&end, nc);
    at.q = rrfp_carve(&end, nq);
    at.k = rrfp_carve(&end, nk);
    at.v = rrfp_carve(&end, nk);
    at.mixed = rrfp_carve(&end, nq);
    at.mid = rrfp_carve(&end, nc);
    at.norm2 = rrfp_carve(&end, nc);
    at.gate = rrfp_carve(&end, nf);
    at.up = rrfp_carve(&end, nf);
    at.act = rrfp_carve(&end, nf);
    at.out = rrfp_carve(&end, nc);
    at.dgamma1 = rrfp_carve(&end, dims->c);
    at.dgamma2 = rrfp_carve(&end, dims->c);
    at.floats = end;
    return at;
}

static stats_offsets stats_of(const rrfp_model_dims *dims)
{
    stats_offsets at;
    uint64_t end = 0;
    at.rstd1 = rrfp_carve(&end, dims->r);
    at.rstd2 = rrfp_carve(&end, dims->r);
    at.lse = rrfp_carve(&end, rrfp_sat_mul(dims->n, dims->h));
    at.floats = end;
    return at;
}

static scratch_offsets scratch_of(const rrfp_model_dims *dims)
{
    const uint64_t nc = rrfp_sat_mul(dims->n, dims->c);
    const uint64_t nq = rrfp_sat_mul(dims->n, dims->k);
    const uint64_t nk = rrfp_sat_mul(dims->n, dims->g * dims->d);
    const uint64_t nf = rrfp_sat_mul(dims->n, dims->f);
    scratch_offsets at;
    uint64_t end = 0;
    at.narrow = rrfp_carve(&end, nc);
    at.share = rrfp_carve(&end, dims->r < dims->n ? nc : 0);
    uint64_t mlp_end = end;
    at.dgate = rrfp_carve(&mlp_end, nf);
    at.dup = rrfp_carve(&mlp_end, nf);
    at.dq = rrfp_carve(&end, nq);
    at.dk = rrfp_carve(&end, nk);
    at.dv = rrfp_carve(&end, nk);
    at.attention = rrfp_carve(&end, rrfp_attention_scratch_floats(dims->t, dims->d));
    at.floats = end > mlp_end ? end : mlp_end;
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
        .kv_heads = dims->g,
        .d = dims->d,
        .q_stride = dims->k,
        .kv_stride = dims->g * dims->d,
        .y_stride = dims->k,
        .dropout = call->dropout,
        .rng = call->dropout > 0.0f ? key : NULL,
        .first_head = dims->first_head,
        .all_heads = dims->all_heads,
    };
    return shape;
}

static void rotate(const rrfp_layer_call *call, float *q, float *k, bool inverse)
{
    const rrfp_model_dims *dims = call->dims;
    const float theta = call->config->rope_theta;
    rrfp_rope(q, dims->b, dims->t, dims->h, dims->d, dims->k, theta, inverse);
    rrfp_rope(k, dims->b, dims->t, dims->g, dims->d, dims->g * dims->d, theta, inverse);
}

static void forward(const rrfp_layer_call *call, const float *x, float *out, float *block,
                    float *stats, float *scratch)
{
    const rrfp_model_dims *dims = call->dims;
    const size_t n = dims->n, r = dims->r, c = dims->c, f = dims->f;
    const size_t width = dims->k, kv = dims->g * dims->d, mine = dims->first_row * c;
    const block_offsets at = block_of(dims);
    const stats_offsets st = stats_of(dims);
    const scratch_offsets sc = scratch_of(dims);
    const rrfp_param *p = call->params;
    const float eps = call->config->norm_eps;
    const rrfp_rng_key key = rrfp_dropout_key(call, RRFP_SITE_ATTENTION);
    const rrfp_attention_shape shape = attention_shape(call, &key);
    float *q = block + at.q, *k = block + at.k, *v = block + at.v;
    float *mid = block + at.mid;
    float *share = scratch + sc.share;

    rrfp_rmsnorm_fwd(x, p[NORM1].value, eps, block + at.norm1 + mine, stats + st.rstd1, r, c);
    rrfp_stream_gather(call, block + at.norm1);
    rrfp_linear_fwd(block + at.norm1, p[Q_PROJ].value, NULL, q, n, c, width, true);
    rrfp_linear_fwd(block + at.norm1, p[K_PROJ].value, NULL, k, n, c, kv, true);
    rrfp_linear_fwd(block + at.norm1, p[V_PROJ].value, NULL, v, n, c, kv, true);
    rotate(call, q, k, false);
    rrfp_attention_fwd(&shape, q, k, v, block + at.mixed, stats + st.lse,
                       scratch + sc.attention);
    rrfp_linear_fwd(block + at.mixed, p[O_PROJ].value, NULL,
                    rrfp_stream_partial(call, mid, share), n, width, c, true);
    rrfp_stream_reduce(call, mid, share);
    rrfp_site_dropout(call, RRFP_SITE_ATTENTION_OUT, mid, mid);
    rrfp_add(mid, x, r * c);

    rrfp_rmsnorm_fwd(mid, p[NORM2].value, eps, block + at.norm2 + mine, stats + st.rstd2, r, c);
    rrfp_stream_gather(call, block + at.norm2);
    rrfp_linear_fwd(block + at.norm2, p[GATE_PROJ].value, NULL, block + at.gate, n, c, f, true);
    rrfp_linear_fwd(block + at.norm2, p[UP_PROJ].value, NULL, block + at.up, n, c, f, true);
    rrfp_swiglu_fwd(block + at.gate, block + at.up, block + at.act, n * f);
    if (out != NULL) {
        rrfp_linear_fwd(block + at.act, p[DOWN_PROJ].value, NULL,
                        rrfp_stream_partial(call, out, share), n, f, c, true);
        rrfp_stream_reduce(call, out, share);
        rrfp_site_dropout(call, RRFP_SITE_MLP_OUT, out, out);
        rrfp_add(out, mid, r * c);
    }
}

static void backward(const rrfp_layer_call *call, const float *x, float *grad, float *block,
                     const float *stats, float *scratch)
{
    const rrfp_model_dims *dims = call->dims;
    const size_t n = dims->n, r = dims->r, c = dims->c, f = dims->f;
    const size_t width = dims->k, kv = dims->g * dims->d, mine = dims->first_row * c;
    const block_offsets at = block_of(dims);
    const stats_offsets st = stats_of(dims);
    const scratch_offsets sc = scratch_of(dims);
    const rrfp_param *p = call->params;
    const rrfp_rng_key key = rrfp_dropout_key(call, RRFP_SITE_ATTENTION);
    const rrfp_attention_shape shape = attention_shape(call, &key);
    float *narrow = scratch + sc.narrow;
    float *dgate = scratch + sc.dgate, *dup = scratch + sc.dup;
    float *dq = scratch + sc.dq, *dk = scratch + sc.dk, *dv = scratch + sc.dv;
    float *q = block + at.q, *k = block + at.k, *v = block + at.v;
    float *mid = block + at.mid;
    float *share = rrfp_stream_partial(call, narrow, scratch + sc.share);

    memset(block + at.dgamma1, 0, (at.floats - at.dgamma1) * sizeof(float));

    /* MLP: from here the out slot holds the gradient of the projection. */
    rrfp_site_dropout(call, RRFP_SITE_MLP_OUT, grad, block + at.out + mine);
    rrfp_stream_gather(call, block + at.out);
    rrfp_linear_dgrad(block + at.out, p[DOWN_PROJ].value, dgate, n, f, c, true, false);
    rrfp_swiglu_dgrad(dgate, block + at.gate, block + at.up, dgate, dup, n * f);
    memcpy(block + at.gate, dgate, n * f * sizeof(float));
    memcpy(block + at.up, dup, n * f * sizeof(float));
    rrfp_linear_dgrad(block + at.gate, p[GATE_PROJ].value, share, n, c, f, true, false);
    rrfp_linear_dgrad(block + at.up, p[UP_PROJ].value, share, n, c, f, true, true);
    rrfp_stream_reduce(call, narrow, share);
    rrfp_rmsnorm_wgrad(narrow, mid, stats + st.rstd2, block + at.dgamma2, r, c);
    rrfp_rmsnorm_dgrad(narrow, mid, p[NORM2].value, stats + st.rstd2, grad, r, c, true);

    /* Attention: `grad` is d(mid), and the mid slot takes the gradient of the projection. */
    rrfp_site_dropout(call, RRFP_SITE_ATTENTION_OUT, grad, mid + mine);
    rrfp_stream_gather(call, mid);
    rrfp_linear_dgrad(mid, p[O_PROJ].value, narrow, n, width, c, true, false);
    rrfp_attention_dgrad(&shape, narrow, q, k, v, block + at.mixed, stats + st.lse, dq, dk, dv,
                         scratch + sc.attention);
    rotate(call, dq, dk, true);
    memcpy(q, dq, n * width * sizeof(float));
    memcpy(k, dk, n * kv * sizeof(float));
    memcpy(v, dv, n * kv * sizeof(float));
    rrfp_linear_dgrad(q, p[Q_PROJ].value, share, n, c, width, true, false);
    rrfp_linear_dgrad(k, p[K_PROJ].value, share, n, c, kv, true, true);
    rrfp_linear_dgrad(v, p[V_PROJ].value, share, n, c, kv, true, true);
    rrfp_stream_reduce(call, narrow, share);
    rrfp_rmsnorm_wgrad(narrow, x, stats + st.rstd1, block + at.dgamma1, r, c);
    rrfp_rmsnorm_dgrad(narrow, x, p[NORM1].value, stats + st.rstd1, grad, r, c, true);
    rrfp_norm_reduce(call, block + at.dgamma1, at.floats - at.dgamma1);
}

static void wgrad(const rrfp_layer_call *call, const float *block)
{
    const rrfp_model_dims *dims = call->dims;
    const size_t n = dims->n, c = dims->c, f = dims->f;
    const size_t width = dims->k, kv = dims->g * dims->d;
    const block_offsets at = block_of(dims);
    const float *norm1 = block + at.norm1, *norm2 = block + at.norm2;
    rrfp_param *p = call->params;

    rrfp_add(p[NORM1].grad, block + at.dgamma1, c);
    rrfp_linear_wgrad(norm1, block + at.q, p[Q_PROJ].grad, NULL, n, c, width, true);
    rrfp_linear_wgrad(norm1, block + at.k, p[K_PROJ].grad, NULL, n, c, kv, true);
    rrfp_linear_wgrad(norm1, block + at.v, p[V_PROJ].grad, NULL, n, c, kv, true);
    rrfp_linear_wgrad(block + at.mixed, block + at.mid, p[O_PROJ].grad, NULL, n, width, c,
                      true);
    rrfp_add(p[NORM2].grad, block + at.dgamma2, c);
    rrfp_linear_wgrad(norm2, block + at.gate, p[GATE_PROJ].grad, NULL, n, c, f, true);
    rrfp_linear_wgrad(norm2, block + at.up, p[UP_PROJ].grad, NULL, n, c, f, true);
    rrfp_linear_wgrad(block + at.act, block + at.out, p[DOWN_PROJ].grad, NULL, n, f, c, true);
}

const rrfp_layer_ops rrfp_layer_llama = {
    .block_floats = block_floats,
    .stats_floats = stats_floats,
    .scratch_floats = scratch_floats,
    .output_offset = output_offset,
    .forward = forward,
    .backward = backward,
    .wgrad = wgrad,
};
