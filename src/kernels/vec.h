/*
 * vec.h - what makes the loops of src/kernels run on vector units with one
 * fixed order of operations; private to src/kernels.
 *
 *   - Elementwise loops are plain C marked RRFP_VECTOR_LOOP.  Every element goes
 *     through the same correctly rounded operations whether it falls into the
 *     vector body or the tail, so bits depend on neither position nor length.
 *   - Sums use 16 explicit partial sums (lane l takes elements l, l+16, ...),
 *     folded in one fixed tree.  Compilers may not reorder floating-point sums
 *     by themselves, so the lanes are spelled out with vector types.
 */
#ifndef RRFP_KERNELS_VEC_H
#define RRFP_KERNELS_VEC_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Iterations are independent; pointers are equal or disjoint, never shifted. */
#if defined(__clang__)
#define RRFP_VECTOR_LOOP _Pragma("clang loop vectorize(assume_safety)")
/* Builds without optimisation leave the loops as they are. */
#pragma clang diagnostic ignored "-Wpass-failed"
#else
#define RRFP_VECTOR_LOOP _Pragma("GCC ivdep")
#endif
/* Vectors wider than the target's registers never cross a real call here. */
#pragma GCC diagnostic ignored "-Wpsabi"

/* a*b + c: fused where that is one instruction, never a call of the C library. */
static inline float rrfp_madd(float a, float b, float c)
{
#if defined(__FMA__) || defined(__FP_FAST_FMAF)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/*
 * exp(x).  x = n ln2 + r with n = round(x / ln2), |r| <= ln2/2 (n ln2 taken off
 * in two parts, Cody and Waite), then the Taylor polynomial of degree 7 of
 * exp(r): its remainder is below (ln2/2)^8 / 8! = 5.2e-9, under half a unit in
 * the last place of a float.  Below -87.3 the result is 0 (subnormals are not
 * made), above 88 it stays at exp(88); NaN stays NaN.
 */
static inline float rrfp_exp(float x)
{
    const float round_bias = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float clamped = x > 88.0f ? 88.0f : x;
    clamped = clamped < -87.3f ? -87.3f : clamped;
    float biased = rrfp_madd(clamped, 1.44269504088896341f, round_bias);
    float n = biased - round_bias;
    float r = rrfp_madd(n, -0.693359375f, clamped);
    r = rrfp_madd(n, 2.12194440054690583e-4f, r);
    float p = 1.0f / 5040.0f;
    p = rrfp_madd(p, r, 1.0f / 720.0f);
    p = rrfp_madd(p, r, 1.0f / 120.0f);
    p = rrfp_madd(p, r, 1.0f / 24.0f);
    p = rrfp_madd(p, r, 1.0f / 6.0f);
    p = rrfp_madd(p, r, 0.5f);
    p = rrfp_madd(p, r, 1.0f);
    p = rrfp_madd(p, r, 1.0f);
    /* The low bits of `biased` hold n; moved to the exponent field they are 2^n. */
    uint32_t bits;
    memcpy(&bits, &biased, sizeof bits);
    bits = (bits + 127u) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return x < -87.3f ? 0.0f : p * power;
}

/* 1 / (1 + exp(-x)) */
static inline float rrfp_sigmoid(float x)
{
    return 1.0f / (1.0f + rrfp_exp(-x));
}

typedef float rrfp_v8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t rrfp_v8i __attribute__((vector_size(32)));
typedef double rrfp_v8d __attribute__((vector_size(64)));

static inline float rrfp_v8_sum(rrfp_v8 v)
{
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

static inline double rrfp_v8d_sum(const rrfp_v8d *v)
{
    return (((*v)[0] + (*v)[4]) + ((*v)[2] + (*v)[6])) +
           (((*v)[1] + (*v)[5]) + ((*v)[3] + (*v)[7]));
}

/* Up to eight elements, the missing ones zero. */
static inline rrfp_v8 rrfp_v8_partial(const float *x, size_t count)
{
    rrfp_v8 v = {0};
    memcpy(&v, x, count * sizeof *x);
    return v;
}

/*
 * Sum over EXPRESSION(load) with 16 lanes.  LOAD(i) is an rrfp_v8 of elements
 * i..i+7, TAIL(i, k) the same for the k < 8 elements that are left.
 */
#define RRFP_LANE_SUM(RESULT, COUNT, LOAD, TAIL)                                                   \
    do {                                                                                           \
        rrfp_v8 lane_a_ = {0}, lane_b_ = {0};                                                      \
        size_t i_ = 0;                                                                             \
        for (; i_ + 16 <= (COUNT); i_ += 16) {                                                     \
            lane_a_ += LOAD(i_);                                                                   \
            lane_b_ += LOAD(i_ + 8);                                                               \
        }                                                                                          \
        if (i_ + 8 <= (COUNT)) {                                                                   \
            lane_a_ += LOAD(i_);                                                                   \
            i_ += 8;                                                                               \
        }                                                                                          \
        if (i_ < (COUNT))                                                                          \
            lane_b_ += TAIL(i_, (COUNT)-i_);                                                       \
        (RESULT) = rrfp_v8_sum(lane_a_ + lane_b_);                                                 \
    } while (0)

static inline float rrfp_lane_sum(const float *x, size_t count)
{
    float sum;
#define LOAD(i) (*(const rrfp_v8 *)(x + (i)))
#define TAIL(i, k) rrfp_v8_partial(x + (i), (k))
    RRFP_LANE_SUM(sum, count, LOAD, TAIL);
#undef LOAD
#undef TAIL
    return sum;
}

static inline float rrfp_lane_dot(const float *x, const float *y, size_t count)
{
    float sum;
#define LOAD(i) (*(const rrfp_v8 *)(x + (i)) * *(const rrfp_v8 *)(y + (i)))
#define TAIL(i, k) (rrfp_v8_partial(x + (i), (k)) * rrfp_v8_partial(y + (i), (k)))
    RRFP_LANE_SUM(sum, count, LOAD, TAIL);
#undef LOAD
#undef TAIL
    return sum;
}

static inline rrfp_v8 rrfp_v8_max(rrfp_v8 a, rrfp_v8 b)
{
    rrfp_v8i pick = a > b;
    return (rrfp_v8)(((rrfp_v8i)a & pick) | ((rrfp_v8i)b & ~pick));
}

/* Largest of count >= 1 elements; the order cannot show in a maximum. */
static inline float rrfp_lane_max(const float *x, size_t count)
{
    float max = x[0];
    size_t i = 0;
    if (count >= 16) {
        rrfp_v8 a = *(const rrfp_v8 *)x, b = *(const rrfp_v8 *)(x + 8);
        for (i = 16; i + 16 <= count; i += 16) {
            a = rrfp_v8_max(a, *(const rrfp_v8 *)(x + i));
            b = rrfp_v8_max(b, *(const rrfp_v8 *)(x + i + 8));
        }
        a = rrfp_v8_max(a, b);
        for (int lane = 0; lane < 8; lane++)
            max = a[lane] > max ? a[lane] : max;
    }
    for (; i < count; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

#if defined(__clang__)
#define RRFP_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define RRFP_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (rrfp_v8i){__VA_ARGS__})
#endif

/* out(j,i) = in(i,j): exchanges single elements, then pairs, then halves. */
static inline void rrfp_transpose_8x8(const float *in, size_t in_stride, float *out,
                                      size_t out_stride)
{
    rrfp_v8 r[8], s[8];
    for (size_t i = 0; i < 8; i++)
        r[i] = *(const rrfp_v8 *)(in + i * in_stride);
    for (int i = 0; i < 8; i += 2) {
        s[i] = RRFP_SHUFFLE(r[i], r[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        s[i + 1] = RRFP_SHUFFLE(r[i], r[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
    for (int i = 0; i < 8; i += i % 2 ? 3 : 1) {
        r[i] = RRFP_SHUFFLE(s[i], s[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        r[i + 2] = RRFP_SHUFFLE(s[i], s[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    for (int i = 0; i < 4; i++) {
        s[i] = RRFP_SHUFFLE(r[i], r[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        s[i + 4] = RRFP_SHUFFLE(r[i], r[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
    for (size_t i = 0; i < 8; i++)
        *(rrfp_v8 *)(out + i * out_stride) = s[i];
}

#endif /* RRFP_KERNELS_VEC_H */
