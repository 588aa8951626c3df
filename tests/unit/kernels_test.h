/*
 * kernels_test.h - what the kernel tests share: buffers, random fill, closeness
 * and finite differences of a double reference.
 */
#ifndef RRFP_KERNELS_TEST_H
#define RRFP_KERNELS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEST_SEED = 20251 };

/* xorshift64*: independent of the generator under test. */
static inline double test_uniform(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (double)((*state * 2685821657736338717ull) >> 11) * 0x1p-53 * 2.0 - 1.0;
}

/* 64-byte aligned, filled with `value`. */
static inline float *test_buffer(size_t count, float value)
{
    size_t bytes = (count * sizeof(float) + 64 + 63) / 64 * 64;
    float *x = aligned_alloc(64, bytes);
    assert_non_null(x);
    for (size_t i = 0; i < count; i++)
        x[i] = value;
    return x;
}

static inline float *test_random(size_t count, uint64_t *state, double range)
{
    float *x = test_buffer(count, 0.0f);
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(test_uniform(state) * range);
    return x;
}

static inline double *test_doubles(size_t count)
{
    double *x = calloc(count + 1, sizeof *x);
    assert_non_null(x);
    return x;
}

static inline double *test_widen(const float *x, size_t count)
{
    double *y = test_doubles(count);
    for (size_t i = 0; i < count; i++)
        y[i] = (double)x[i];
    return y;
}

/*
 * |got - want| <= tolerance * (|want| + largest |want| + 1e-3), element by element;
 * the last term lets values that cancel to zero keep their rounding.
 */
static inline void test_close(const char *what, const float *got, const double *want,
                              size_t count, double tolerance)
{
    double largest = 0.0;
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(want[i]));
    for (size_t i = 0; i < count; i++) {
        double bound = tolerance * (fabs(want[i]) + largest + 1e-3);
        if (!(fabs((double)got[i] - want[i]) <= bound))
            fail_msg("%s[%zu] = %.9g, expected %.9g (bound %.2g)", what, i, (double)got[i],
                     want[i], bound);
    }
}

/* A scalar function of `variables`, evaluated in double. */
typedef double (*test_objective)(const double *variables, void *context);

/*
 * Central differences of the objective against `got`, every `stride`-th variable;
 * step 1e-4: truncation and rounding stay below 1e-7 of these smooth functions.
 */
static inline void test_gradient(const char *what, test_objective objective, void *context,
                                 double *variables, size_t count, const float *got,
                                 size_t stride, double tolerance)
{
    const double step = 1e-4;
    size_t checked = 0;
    double *want = test_doubles(count);
    float *sampled = test_buffer(count, 0.0f);
    for (size_t i = 0; i < count; i += stride) {
        double kept = variables[i];
        variables[i] = kept + step;
        double above = objective(variables, context);
        variables[i] = kept - step;
        double below = objective(variables, context);
        variables[i] = kept;
        want[checked] = (above - below) / (2.0 * step);
        sampled[checked++] = got[i];
    }
    test_close(what, sampled, want, checked, tolerance);
    free(want);
    free(sampled);
}

static inline double test_dot(const double *x, const double *y, size_t count)
{
    double sum = 0.0;
    for (size_t i = 0; i < count; i++)
        sum += x[i] * y[i];
    return sum;
}

/* got must be base + delta where `plain` holds delta: "adds to the gradient". */
static inline void test_added(const char *what, const float *got, const float *plain,
                              const float *base, size_t count)
{
    double *want = test_doubles(count);
    for (size_t i = 0; i < count; i++)
        want[i] = (double)plain[i] + (double)base[i];
    test_close(what, got, want, count, 2e-6);
    free(want);
}

#endif /* RRFP_KERNELS_TEST_H */
