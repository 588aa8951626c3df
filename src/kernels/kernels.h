/*
 * kernels.h - the math a transformer needs, one op at a time.
 *
 * Conventions
 *   - float32, row-major, 64-byte aligned buffers, no allocation.
 *   - rows N = B*T, width C, heads H, key/value heads G, head size D.
 *   - every op is *_fwd (forward), *_dgrad (input gradient) and *_wgrad (weight
 *     gradient) in separate calls.  dgrad *writes* its result; wgrad *adds* to
 *     the gradient.
 *   - each op does its sums in one fixed order for given shapes, so equal
 *     inputs give equal bits on the same machine and thread count.
 *   - pointers never overlap unless the comment says "in place allowed".
 *   - thread-safe: no globals; the caller's thread does the work, or a team of
 *     `threads` OpenMP threads set once by rrfp_kernels_thread_init.
 */
#ifndef RRFP_KERNELS_H
#define RRFP_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Call once in every thread that runs kernels: size of its team (1 = no team). */
void rrfp_kernels_thread_init(int threads);
/* Name and version of the GEMM library that was built in, e.g. "oneDNN 2.6.3". */
const char *rrfp_kernels_gemm_name(void);

/* C(m,n) = op(A) op(B) + beta C, row-major, leading dimensions in elements. */
void rrfp_gemm(bool trans_a, bool trans_b, size_t m, size_t n, size_t k, const float *a,
               size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc);

/*
 * Linear: y(N,O) = x(N,I) w + bias(O).  Weight is (I,O) as GPT-2's Conv1D
 * stores it, or (O,I) when `transposed` (Llama).  bias, dbias may be NULL.
 */
void rrfp_linear_fwd(const float *x, const float *w, const float *bias, float *y, size_t n,
                     size_t in, size_t out, bool transposed);
/* dx = dy w^T, or dx += when `accumulate`. */
void rrfp_linear_dgrad(const float *dy, const float *w, float *dx, size_t n, size_t in,
                       size_t out, bool transposed, bool accumulate);
void rrfp_linear_wgrad(const float *x, const float *dy, float *dw, float *dbias, size_t n,
                       size_t in, size_t out, bool transposed);

/* LayerNorm; mean(N), rstd(N) are kept for the backward. */
void rrfp_layernorm_fwd(const float *x, const float *gamma, const float *beta, float eps,
                        float *y, float *mean, float *rstd, size_t n, size_t c);
/* dx = d/dx, or dx += when `accumulate` (the residual branch); dx may be dy. */
void rrfp_layernorm_dgrad(const float *dy, const float *x, const float *gamma,
                          const float *mean, const float *rstd, float *dx, size_t n, size_t c,
                          bool accumulate);
void rrfp_layernorm_wgrad(const float *dy, const float *x, const float *mean,
                          const float *rstd, float *dgamma, float *dbeta, size_t n, size_t c);

/* RMSNorm; rstd(N) is kept. */
void rrfp_rmsnorm_fwd(const float *x, const float *gamma, float eps, float *y, float *rstd,
                      size_t n, size_t c);
void rrfp_rmsnorm_dgrad(const float *dy, const float *x, const float *gamma,
                        const float *rstd, float *dx, size_t n, size_t c, bool accumulate);
void rrfp_rmsnorm_wgrad(const float *dy, const float *x, const float *rstd, float *dgamma,
                        size_t n, size_t c);

/* GELU, tanh form (GPT-2 "gelu_new").  dx may be dy. */
void rrfp_gelu_fwd(const float *x, float *y, size_t count);
void rrfp_gelu_dgrad(const float *dy, const float *x, float *dx, size_t count);

/* SwiGLU: y = silu(gate) * up.  dgate may be dy. */
void rrfp_swiglu_fwd(const float *gate, const float *up, float *y, size_t count);
void rrfp_swiglu_dgrad(const float *dy, const float *gate, const float *up, float *dgate,
                       float *dup, size_t count);

/*
 * Rotary position embedding, rotate-half as in Hugging Face Llama, in place on
 * x(B,T,heads,D) with row stride `stride` floats between positions.
 * `inverse` applies the transpose (the input gradient).
 */
void rrfp_rope(float *x, size_t batch, size_t t, size_t heads, size_t d, size_t stride,
               float theta, bool inverse);

/*
 * Causal attention with grouped queries: query head h uses key/value head
 * h*G/H.  q (B,T,H,D), k and v (B,T,G,D), y (B,T,H,D), each with a row stride
 * in floats between positions (so that they may be slices of one qkv buffer).
 * lse(B,H,T) (log-sum-exp) is kept.  At most one block of scores, block x T
 * with block <= 128 rows of one head, is materialised, in
 * `scratch` of rrfp_attention_scratch_floats(t, d).
 * dropout > 0 drops attention probabilities with the counter-based generator:
 * element index ((b*H + h)*T + i)*T + j of `rng` (see rng.h).  Heads that are
 * [first_head, first_head + heads) of `all_heads` draw as those of the whole do.
 */
struct rrfp_rng_key;
typedef struct rrfp_attention_shape {
    size_t batch, t, heads, kv_heads, d;
    size_t q_stride, kv_stride, y_stride;
    float dropout;
    const struct rrfp_rng_key *rng; /* NULL when dropout is 0 */
    size_t first_head, all_heads;   /* 0, 0: these heads are all */
} rrfp_attention_shape;
size_t rrfp_attention_scratch_floats(size_t t, size_t d);
void rrfp_attention_fwd(const rrfp_attention_shape *shape, const float *q, const float *k,
                        const float *v, float *y, float *lse, float *scratch);
/* dq, dk, dv use the strides of q, k, v and must not overlap them. */
void rrfp_attention_dgrad(const rrfp_attention_shape *shape, const float *dy, const float *q,
                          const float *k, const float *v, const float *y, const float *lse,
                          float *dq, float *dk, float *dv, float *scratch);

/* Token (+ position when wpe is not NULL) embedding: y(B,T,C). */
void rrfp_embedding_fwd(const int32_t *tokens, const float *wte, const float *wpe, float *y,
                        size_t batch, size_t t, size_t c);
void rrfp_embedding_wgrad(const int32_t *tokens, const float *dy, float *dwte, float *dwpe,
                          size_t batch, size_t t, size_t c);

/* Tokens [first, first + count) of a vocabulary: what one tensor-parallel rank holds. */
typedef struct rrfp_vocab_part {
    int32_t first, count;
} rrfp_vocab_part;
/* The same with wte (count, C); a token of another part has a row of zeros, and no gradient. */
void rrfp_embedding_part_fwd(const int32_t *tokens, const float *wte, const float *wpe, float *y,
                             size_t batch, size_t t, size_t c, rrfp_vocab_part part);
void rrfp_embedding_part_wgrad(const int32_t *tokens, const float *dy, float *dwte, float *dwpe,
                               size_t batch, size_t t, size_t c, rrfp_vocab_part part);

/*
 * Softmax cross-entropy over logits(N,V), in place: logits become
 * (softmax - onehot) * scale where target >= 0, zero where target < 0 (ignored).
 * Returns the sum over counted rows of -log p(target), in double, row order.
 */
double rrfp_cross_entropy(float *logits, const int32_t *targets, size_t n, size_t vocab,
                          float scale);
/* The same sum without changing logits (evaluation). */
double rrfp_cross_entropy_loss(const float *logits, const int32_t *targets, size_t n,
                               size_t vocab);
/*
 * Softmax cross-entropy over logits(N, part.count), each member of a group with its own part of
 * the vocabulary (Megatron-LM, Shoeybi et al. 2019):
 *
 *   max      row_max(N)              the members take the maximum of each row
 *   exp      logits := exp(l - max)  the members add up `sums` of each row
 *   finish   logits := d(logits) as above, and the loss, the same on every member
 */
typedef struct rrfp_cross_entropy_sums {
    double exponentials, target; /* sum of exp(l - max); l_target - max, 0 in other parts */
} rrfp_cross_entropy_sums;
void rrfp_cross_entropy_part_max(const float *logits, size_t n, rrfp_vocab_part part,
                                 float *row_max);
void rrfp_cross_entropy_part_exp(float *logits, const int32_t *targets, size_t n,
                                 rrfp_vocab_part part, const float *row_max,
                                 rrfp_cross_entropy_sums *sums);
double rrfp_cross_entropy_part_finish(float *logits, const int32_t *targets, size_t n,
                                      rrfp_vocab_part part, const rrfp_cross_entropy_sums *sums,
                                      float scale);

/* Dropout with a counter-based mask: y = x * mask / (1-p); in place allowed; the
 * input gradient is the same call on dy.  Element index of x[i] = first + i. */
void rrfp_dropout(const float *x, float *y, size_t count, float p, uint64_t first,
                  const struct rrfp_rng_key *rng);

/* y += x */
void rrfp_add(float *y, const float *x, size_t count);
/* Sum of squares in double, one fixed order. */
double rrfp_sum_of_squares(const float *x, size_t count);
/* float <-> bfloat16, round to nearest even; NaN stays NaN. */
void rrfp_bf16_from_float(const float *x, uint16_t *y, size_t count);
void rrfp_bf16_to_float(const uint16_t *x, float *y, size_t count);

/*
 * AdamW with decoupled decay (PyTorch's AdamW): per element
 *   m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
 *   p = p (1 - lr wd) - lr (m / bias1) / (sqrt(v / bias2) + eps)
 * with g = grad * grad_scale, bias_i = 1 - b_i^step.
 */
typedef struct rrfp_adamw {
    float lr, beta1, beta2, eps, weight_decay, grad_scale;
    uint64_t step; /* 1 at the first update */
} rrfp_adamw;
void rrfp_adamw_update(const rrfp_adamw *opt, float *param, const float *grad, float *m,
                       float *v, size_t count);

#endif /* RRFP_KERNELS_H */
