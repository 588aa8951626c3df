/*
 * kernels_linear.c - GEMM and the linear layer against triple loops in double.
 * Tolerances: forward 1e-5, gradients 1e-4, relative to the largest element.
 */
#include "unit/kernels_test.h"

#include "kernels/kernels.h"

static void gemm_case(bool trans_a, bool trans_b, size_t m, size_t n, size_t k, float beta)
{
    uint64_t state = TEST_SEED + m * 100 + n * 10 + k;
    /* Leading dimensions larger than the rows; 507 + 5 and 1019 + 5 stride by 2 KiB. */
    size_t lda = (trans_a ? m : k) + 3, ldb = (trans_b ? k : n) + 5, ldc = n + 2;
    float *a = test_random((trans_a ? k : m) * lda + 1, &state, 1.0);
    float *b = test_random((trans_b ? n : k) * ldb + 1, &state, 1.0);
    float *c = test_random(m * ldc + 1, &state, 1.0);
    double *want = test_widen(c, m * ldc);
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n; j++) {
            double sum = (double)beta * (double)c[i * ldc + j];
            for (size_t l = 0; l < k; l++)
                sum += (double)a[trans_a ? l * lda + i : i * lda + l] *
                       (double)b[trans_b ? j * ldb + l : l * ldb + j];
            want[i * ldc + j] = sum;
        }
    }
    rrfp_gemm(trans_a, trans_b, m, n, k, a, lda, b, ldb, beta, c, ldc);
    test_close("gemm", c, want, m * ldc, 1e-5); /* the gap columns too: untouched */
    free(a);
    free(b);
    free(c);
    free(want);
}

static void test_gemm(void **unused)
{
    (void)unused;
    static const size_t sizes[][3] = {{1, 1, 1},   {1, 7, 5},   {3, 1, 9},  {7, 5, 3},
                                      {64, 48, 33}, {65, 17, 64}, {4, 4, 0}, {0, 4, 4},
                                      {4, 0, 4},   {1, 300, 64}, {128, 64, 200},
                                      {133, 71, 300}, {70, 507, 68}, {261, 1019, 130}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int form = 0; form < 4; form++)
            for (int beta = 0; beta < 3; beta++)
                gemm_case(form & 1, form >> 1, sizes[s][0], sizes[s][1], sizes[s][2],
                          (float)beta * 0.5f);
}

/* beta = 0 must not read C: it may be fresh memory that holds NaN. */
static void test_gemm_ignores_old_values(void **unused)
{
    (void)unused;
    float a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8}, c[4] = {NAN, NAN, NAN, NAN};
    rrfp_gemm(false, false, 2, 2, 2, a, 2, b, 2, 0.0f, c, 2);
    double want[4] = {19, 22, 43, 50};
    test_close("c", c, want, 4, 0.0);
    float empty[2] = {NAN, NAN};
    rrfp_gemm(false, false, 1, 2, 0, a, 1, b, 2, 0.0f, empty, 2);
    assert_true(empty[0] == 0.0f && empty[1] == 0.0f);
}

typedef struct linear_case {
    size_t n, in, out;
    bool transposed;
    double *x, *w, *bias, *weights;
} linear_case;

static double *linear_reference(const linear_case *a)
{
    double *y = test_doubles(a->n * a->out);
    for (size_t r = 0; r < a->n; r++) {
        for (size_t o = 0; o < a->out; o++) {
            double sum = a->bias[o];
            for (size_t i = 0; i < a->in; i++)
                sum += a->x[r * a->in + i] * a->w[a->transposed ? o * a->in + i : i * a->out + o];
            y[r * a->out + o] = sum;
        }
    }
    return y;
}

/* The caller perturbs a->x, a->w or a->bias in place. */
static double linear_objective(const double *variables, void *context)
{
    (void)variables;
    const linear_case *a = context;
    double *y = linear_reference(a);
    double value = test_dot(y, a->weights, a->n * a->out);
    free(y);
    return value;
}

static void linear_check(size_t n, size_t in, size_t out, bool transposed)
{
    uint64_t state = TEST_SEED + n + in + out;
    float *x = test_random(n * in, &state, 1.0), *w = test_random(in * out, &state, 1.0);
    float *bias = test_random(out, &state, 1.0), *dy = test_random(n * out, &state, 1.0);
    float *y = test_buffer(n * out, NAN), *dx = test_buffer(n * in, NAN);
    float *dw = test_buffer(in * out, 0.0f), *dbias = test_buffer(out, 0.0f);
    linear_case a = {n, in, out, transposed, test_widen(x, n * in), test_widen(w, in * out),
                     test_widen(bias, out), test_widen(dy, n * out)};

    double *want = linear_reference(&a);
    rrfp_linear_fwd(x, w, bias, y, n, in, out, transposed);
    test_close("y", y, want, n * out, 1e-5);
    free(want);
    rrfp_linear_dgrad(dy, w, dx, n, in, out, transposed, false);
    test_gradient("dx", linear_objective, &a, a.x, n * in, dx, 1, 1e-4);
    rrfp_linear_wgrad(x, dy, dw, dbias, n, in, out, transposed);
    test_gradient("dw", linear_objective, &a, a.w, in * out, dw, 1, 1e-4);
    test_gradient("dbias", linear_objective, &a, a.bias, out, dbias, 1, 1e-4);

    /* Accumulating forms and absent biases. */
    float *base = test_random(n * in, &state, 1.0), *sum = test_buffer(n * in, 0.0f);
    memcpy(sum, base, n * in * sizeof *sum);
    rrfp_linear_dgrad(dy, w, sum, n, in, out, transposed, true);
    test_added("dx +=", sum, dx, base, n * in);
    float *dw2 = test_buffer(in * out, 0.0f);
    memcpy(dw2, dw, in * out * sizeof *dw);
    rrfp_linear_wgrad(x, dy, dw2, NULL, n, in, out, transposed);
    test_added("dw +=", dw2, dw, dw, in * out);
    float *dbias2 = test_buffer(out, 0.0f);
    memcpy(dbias2, dbias, out * sizeof *dbias);
    rrfp_linear_wgrad(x, dy, dw2, dbias2, n, in, out, transposed);
    test_added("dbias +=", dbias2, dbias, dbias, out);
    memset(a.bias, 0, out * sizeof *a.bias);
    want = linear_reference(&a);
    rrfp_linear_fwd(x, w, NULL, y, n, in, out, transposed);
    test_close("y without bias", y, want, n * out, 1e-5);
    free(want);

    float *buffers[] = {x, w, bias, dy, y, dx, dw, dbias, base, sum, dw2, dbias2};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        free(buffers[i]);
    free(a.x);
    free(a.w);
    free(a.bias);
    free(a.weights);
}

static void test_linear(void **unused)
{
    (void)unused;
    static const size_t sizes[][3] = {{1, 1, 1}, {1, 7, 5}, {3, 7, 21}, {11, 16, 9}, {6, 33, 66}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int transposed = 0; transposed < 2; transposed++)
            linear_check(sizes[s][0], sizes[s][1], sizes[s][2], transposed);
}

static void test_name(void **unused)
{
    (void)unused;
    const char *name = rrfp_kernels_gemm_name();
    print_message("GEMM library: %s\n", name);
    assert_true(strstr(name, "oneDNN ") || strstr(name, "OpenBLAS ") || strstr(name, "BLIS "));
    assert_non_null(strpbrk(name, "0123456789"));
}

int main(void)
{
    rrfp_kernels_thread_init(1);
    print_message("seed %d\n", TEST_SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemm),
        cmocka_unit_test(test_gemm_ignores_old_values),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
