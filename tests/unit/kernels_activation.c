/*
 * kernels_activation.c - exp, GELU and SwiGLU against the C library in double.
 * Tolerances: exp 1.5e-7 relative, forward 1e-6, gradients 1e-4.
 */
#include "unit/kernels_test.h"

#include "kernels/kernels.h"
#include "kernels/vec.h"

static void test_exp(void **unused)
{
    (void)unused;
    double worst = 0.0;
    for (int i = -8730; i <= 8800; i++) {
        for (int part = 0; part < 20; part++) {
            float x = (float)(i * 0.01 + part * 0.000499);
            if (x > 88.0f)
                continue;
            double want = exp((double)x);
            if (x >= -87.3f)
                worst = fmax(worst, fabs((double)rrfp_exp(x) - want) / want);
        }
    }
    print_message("largest relative error of exp: %.3g\n", worst);
    assert_true(worst < 1.5e-7);
    assert_true(rrfp_exp(0.0f) == 1.0f);
    assert_true(rrfp_exp(-88.0f) == 0.0f && rrfp_exp(-INFINITY) == 0.0f);
    assert_true(rrfp_exp(1000.0f) == rrfp_exp(88.0f) && isfinite(rrfp_exp(INFINITY)));
    assert_true(isnan(rrfp_exp(NAN)));
}

static double gelu_reference(double x)
{
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

static double swiglu_reference(double gate, double up)
{
    return gate / (1.0 + exp(-gate)) * up;
}

enum { COUNT = 4099 }; /* past one team cut, no multiple of any vector width */

static void test_gelu(void **unused)
{
    (void)unused;
    const double step = 1e-4;
    uint64_t state = TEST_SEED;
    for (size_t count = 1; count <= COUNT; count = count < 20 ? count + 1 : count * 3 + 1) {
        float *x = test_random(count, &state, 6.0), *dy = test_random(count, &state, 1.0);
        float *y = test_buffer(count, NAN), *dx = test_buffer(count, NAN);
        double *want = test_doubles(count);
        rrfp_gelu_fwd(x, y, count);
        rrfp_gelu_dgrad(dy, x, dx, count);
        for (size_t i = 0; i < count; i++)
            want[i] = gelu_reference((double)x[i]);
        test_close("gelu", y, want, count, 1e-6);
        for (size_t i = 0; i < count; i++)
            want[i] = (double)dy[i] *
                      (gelu_reference((double)x[i] + step) - gelu_reference((double)x[i] - step)) /
                      (2.0 * step);
        test_close("dgelu", dx, want, count, 1e-4);
        rrfp_gelu_dgrad(dy, x, dy, count);
        assert_memory_equal(dy, dx, count * sizeof *dx);
        free(x);
        free(dy);
        free(y);
        free(dx);
        free(want);
    }
}

/* Far out the function is x or 0, its slope 1 or 0; nothing overflows. */
static void test_gelu_limits(void **unused)
{
    (void)unused;
    float x[6] = {0.0f, -0.0f, 30.0f, -30.0f, 1e4f, -1e4f}, ones[6] = {1, 1, 1, 1, 1, 1};
    float y[6], dx[6];
    rrfp_gelu_fwd(x, y, 6);
    rrfp_gelu_dgrad(ones, x, dx, 6);
    double want_y[6] = {0, 0, 30, 0, 1e4, 0}, want_dx[6] = {0.5, 0.5, 1, 0, 1, 0};
    for (int i = 0; i < 6; i++) {
        assert_true(fabs((double)y[i] - want_y[i]) < 1e-30);
        assert_true(fabs((double)dx[i] - want_dx[i]) < 1e-7);
    }
}

static void test_swiglu(void **unused)
{
    (void)unused;
    const double step = 1e-4;
    uint64_t state = TEST_SEED;
    for (size_t count = 1; count <= COUNT; count = count < 20 ? count + 1 : count * 3 + 1) {
        float *gate = test_random(count, &state, 8.0), *up = test_random(count, &state, 2.0);
        float *dy = test_random(count, &state, 1.0), *y = test_buffer(count, NAN);
        float *dgate = test_buffer(count, NAN), *dup = test_buffer(count, NAN);
        float *dup2 = test_buffer(count, NAN);
        double *want = test_doubles(count);
        rrfp_swiglu_fwd(gate, up, y, count);
        rrfp_swiglu_dgrad(dy, gate, up, dgate, dup, count);
        for (size_t i = 0; i < count; i++)
            want[i] = swiglu_reference((double)gate[i], (double)up[i]);
        test_close("swiglu", y, want, count, 1e-6);
        for (size_t i = 0; i < count; i++)
            want[i] = (double)dy[i] *
                      (swiglu_reference((double)gate[i] + step, (double)up[i]) -
                       swiglu_reference((double)gate[i] - step, (double)up[i])) /
                      (2.0 * step);
        test_close("dgate", dgate, want, count, 1e-4);
        for (size_t i = 0; i < count; i++)
            want[i] = (double)dy[i] *
                      (swiglu_reference((double)gate[i], (double)up[i] + step) -
                       swiglu_reference((double)gate[i], (double)up[i] - step)) /
                      (2.0 * step);
        test_close("dup", dup, want, count, 1e-4);
        rrfp_swiglu_dgrad(dy, gate, up, dy, dup2, count);
        assert_memory_equal(dy, dgate, count * sizeof *dy);
        assert_memory_equal(dup2, dup, count * sizeof *dup);
        float *buffers[] = {gate, up, dy, y, dgate, dup, dup2};
        for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
            free(buffers[i]);
        free(want);
    }
}

int main(void)
{
    rrfp_kernels_thread_init(1);
    print_message("seed %d\n", TEST_SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_gelu),
        cmocka_unit_test(test_gelu_limits),
        cmocka_unit_test(test_swiglu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
