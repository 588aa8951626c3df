/*
 * kernels_norm.c - LayerNorm and RMSNorm against double formulas and their finite
 * differences.  Tolerances: forward 1e-5, gradients 1e-4.
 */
#include "unit/kernels_test.h"

#include "kernels/kernels.h"

typedef struct norm_case {
    size_t n, c;
    bool rms;
    double eps;
    double *x, *gamma, *beta, *weights;
} norm_case;

/* y, and mean and rstd where wanted. */
static void norm_reference(const norm_case *a, double *y, double *means, double *rstds)
{
    for (size_t r = 0; r < a->n; r++) {
        const double *x = a->x + r * a->c;
        double mean = 0.0, variance = 0.0;
        for (size_t j = 0; j < a->c && !a->rms; j++)
            mean += x[j] / (double)a->c;
        for (size_t j = 0; j < a->c; j++)
            variance += (x[j] - mean) * (x[j] - mean) / (double)a->c;
        double rstd = 1.0 / sqrt(variance + a->eps);
        for (size_t j = 0; j < a->c; j++)
            y[r * a->c + j] = a->gamma[j] * (x[j] - mean) * rstd + (a->rms ? 0.0 : a->beta[j]);
        if (means != NULL)
            means[r] = mean;
        if (rstds != NULL)
            rstds[r] = rstd;
    }
}

static double norm_objective(const double *variables, void *context)
{
    (void)variables;
    const norm_case *a = context;
    double *y = test_doubles(a->n * a->c);
    norm_reference(a, y, NULL, NULL);
    double value = test_dot(y, a->weights, a->n * a->c);
    free(y);
    return value;
}

static void norm_check(size_t n, size_t c, bool rms, float eps, double shift)
{
    uint64_t state = TEST_SEED + n * 97 + c;
    size_t count = n * c;
    float *x = test_random(count, &state, 2.0), *dy = test_random(count, &state, 1.0);
    for (size_t i = 0; i < count; i++)
        x[i] += (float)shift;
    float *gamma = test_random(c, &state, 1.5), *beta = test_random(c, &state, 1.0);
    float *y = test_buffer(count, NAN), *dx = test_buffer(count, NAN);
    float *mean = test_buffer(n, NAN), *rstd = test_buffer(n, NAN);
    float *dgamma = test_buffer(c, 0.0f), *dbeta = test_buffer(c, 0.0f);
    norm_case a = {n, c, rms, (double)eps, test_widen(x, count), test_widen(gamma, c),
                   test_widen(beta, c), test_widen(dy, count)};
    double *want = test_doubles(count), *means = test_doubles(n), *rstds = test_doubles(n);
    norm_reference(&a, want, means, rstds);

    if (rms) {
        rrfp_rmsnorm_fwd(x, gamma, eps, y, rstd, n, c);
        rrfp_rmsnorm_dgrad(dy, x, gamma, rstd, dx, n, c, false);
        rrfp_rmsnorm_wgrad(dy, x, rstd, dgamma, n, c);
    } else {
        rrfp_layernorm_fwd(x, gamma, beta, eps, y, mean, rstd, n, c);
        rrfp_layernorm_dgrad(dy, x, gamma, mean, rstd, dx, n, c, false);
        rrfp_layernorm_wgrad(dy, x, mean, rstd, dgamma, dbeta, n, c);
        test_close("mean", mean, means, n, 1e-5);
        test_gradient("dbeta", norm_objective, &a, a.beta, c, dbeta, 1, 1e-4);
    }
    test_close("y", y, want, count, 1e-5);
    test_close("rstd", rstd, rstds, n, 1e-5);
    test_gradient("dx", norm_objective, &a, a.x, count, dx, 1, 1e-4);
    test_gradient("dgamma", norm_objective, &a, a.gamma, c, dgamma, 1, 1e-4);

    /* dx += onto another branch, dx in the place of dy, weight gradients added. */
    float *base = test_random(count, &state, 1.0), *sum = test_buffer(count, 0.0f);
    float *in_place = test_buffer(count, 0.0f);
    float *dgamma2 = test_buffer(c, 0.0f), *dbeta2 = test_buffer(c, 0.0f);
    memcpy(sum, base, count * sizeof *sum);
    memcpy(in_place, dy, count * sizeof *sum);
    memcpy(dgamma2, dgamma, c * sizeof *sum);
    memcpy(dbeta2, dbeta, c * sizeof *sum);
    if (rms) {
        rrfp_rmsnorm_dgrad(dy, x, gamma, rstd, sum, n, c, true);
        rrfp_rmsnorm_dgrad(in_place, x, gamma, rstd, in_place, n, c, false);
        rrfp_rmsnorm_wgrad(dy, x, rstd, dgamma2, n, c);
    } else {
        rrfp_layernorm_dgrad(dy, x, gamma, mean, rstd, sum, n, c, true);
        rrfp_layernorm_dgrad(in_place, x, gamma, mean, rstd, in_place, n, c, false);
        rrfp_layernorm_wgrad(dy, x, mean, rstd, dgamma2, dbeta2, n, c);
        test_added("dbeta +=", dbeta2, dbeta, dbeta, c);
    }
    test_added("dx +=", sum, dx, base, count);
    assert_memory_equal(in_place, dx, count * sizeof *dx);
    test_added("dgamma +=", dgamma2, dgamma, dgamma, c);

    float *buffers[] = {x, dy, gamma, beta, y, dx, mean, rstd, dgamma, dbeta, base, sum, in_place,
                        dgamma2, dbeta2};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        free(buffers[i]);
    double *doubles[] = {a.x, a.gamma, a.beta, a.weights, want, means, rstds};
    for (size_t i = 0; i < sizeof doubles / sizeof *doubles; i++)
        free(doubles[i]);
}

static const size_t shapes[][2] = {{1, 7}, {3, 8}, {2, 16}, {5, 23}, {4, 41}, {3, 128}};

static void test_layernorm(void **unused)
{
    (void)unused;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        norm_check(shapes[s][0], shapes[s][1], false, 1e-5f, 0.0);
    norm_check(3, 31, false, 1e-2f, 0.0);
}

/* A mean far above the spread: one-pass formulas lose all digits here. */
static void test_layernorm_shifted(void **unused)
{
    (void)unused;
    enum { C = 64 };
    float x[C], y[C], ones[C], zeros[C] = {0}, mean, rstd;
    for (int j = 0; j < C; j++) {
        x[j] = 4096.0f + (float)(j % 2); /* mean 4096.5, variance 1/4, both exact */
        ones[j] = 1.0f;
    }
    rrfp_layernorm_fwd(x, ones, zeros, 0.0f, y, &mean, &rstd, 1, C);
    assert_true(mean == 4096.5f && rstd == 2.0f);
    for (int j = 0; j < C; j++)
        assert_true(y[j] == (j % 2 ? 1.0f : -1.0f));
}

static void test_rmsnorm(void **unused)
{
    (void)unused;
    norm_check(2, 1, true, 1e-1f, 0.0);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        norm_check(shapes[s][0], shapes[s][1], true, 1e-6f, 0.5);
}

int main(void)
{
    rrfp_kernels_thread_init(1);
    print_message("seed %d\n", TEST_SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layernorm),
        cmocka_unit_test(test_layernorm_shifted),
        cmocka_unit_test(test_rmsnorm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
