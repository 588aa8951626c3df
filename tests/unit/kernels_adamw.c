/*
 * kernels_adamw.c - AdamW over five steps against its formula in double.
 * Tolerance 2e-6 relative to the largest element.
 */
#include "unit/kernels_test.h"

#include "kernels/kernels.h"

static void adamw_check(rrfp_adamw opt, size_t count)
{
    uint64_t state = TEST_SEED + count;
    float *param = test_random(count, &state, 1.0);
    float *m = test_buffer(count, 0.0f), *v = test_buffer(count, 0.0f);
    double *p = test_widen(param, count);
    double *dm = test_doubles(count), *dv = test_doubles(count);
    double b1 = (double)opt.beta1, b2 = (double)opt.beta2, lr = (double)opt.lr;
    for (opt.step = 1; opt.step <= 5; opt.step++) {
        float *grad = test_random(count, &state, 3.0);
        grad[0] = 0.0f; /* eps alone in the divisor at the first step */
        rrfp_adamw_update(&opt, param, grad, m, v, count);
        for (size_t i = 0; i < count; i++) {
            double g = (double)grad[i] * (double)opt.grad_scale;
            dm[i] = b1 * dm[i] + (1.0 - b1) * g;
            dv[i] = b2 * dv[i] + (1.0 - b2) * g * g;
            double m_hat = dm[i] / (1.0 - pow(b1, (double)opt.step));
            double v_hat = dv[i] / (1.0 - pow(b2, (double)opt.step));
            p[i] = p[i] * (1.0 - lr * (double)opt.weight_decay) -
                   lr * m_hat / (sqrt(v_hat) + (double)opt.eps);
        }
        test_close("m", m, dm, count, 2e-6);
        test_close("v", v, dv, count, 2e-6);
        test_close("param", param, p, count, 2e-6);
        free(grad);
    }
    free(param);
    free(m);
    free(v);
    free(p);
    free(dm);
    free(dv);
}

static void test_five_steps(void **unused)
{
    (void)unused;
    for (size_t count = 1; count < 5000; count = count * 3 + 2) {
        adamw_check((rrfp_adamw){1e-3f, 0.9f, 0.999f, 1e-8f, 0.01f, 1.0f, 0}, count);
        adamw_check((rrfp_adamw){3e-2f, 0.9f, 0.95f, 1e-5f, 0.1f, 0.125f, 0}, count);
        adamw_check((rrfp_adamw){1e-1f, 0.0f, 0.5f, 1e-3f, 0.0f, 2.0f, 0}, count);
    }
}

/* The first step moves by lr against the sign of the gradient, whatever its size. */
static void test_first_step(void **unused)
{
    (void)unused;
    rrfp_adamw opt = {0.5f, 0.9f, 0.999f, 0.0f, 0.0f, 1.0f, 1};
    float param[3] = {1, 1, 1}, grad[3] = {1e-3f, -7.0f, 100.0f}, m[3] = {0}, v[3] = {0};
    rrfp_adamw_update(&opt, param, grad, m, v, 3);
    double want[3] = {0.5, 1.5, 0.5};
    test_close("param", param, want, 3, 1e-6);
}

int main(void)
{
    rrfp_kernels_thread_init(1);
    print_message("seed %d\n", TEST_SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_five_steps),
        cmocka_unit_test(test_first_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
