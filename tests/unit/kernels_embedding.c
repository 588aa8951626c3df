/*
 * kernels_embedding.c - token, position and rotary embedding against double
 * formulas and their finite differences.  Tolerances: forward 1e-5, gradients 1e-4.
 */
#include "unit/kernels_test.h"

#include "kernels/kernels.h"

static void embedding_check(size_t batch, size_t t, size_t c, size_t vocab, bool positions)
{
    uint64_t state = TEST_SEED + c;
    size_t rows = batch * t;
    float *wte = test_random(vocab * c, &state, 1.0), *wpe = test_random(t * c, &state, 1.0);
    float *dy = test_random(rows * c, &state, 1.0), *y = test_buffer(rows * c, NAN);
    float *dwte = test_random(vocab * c, &state, 1.0), *dwpe = test_random(t * c, &state, 1.0);
    int32_t *tokens = malloc(rows * sizeof *tokens);
    assert_non_null(tokens);
    for (size_t r = 0; r < rows; r++)
        tokens[r] = (int32_t)((r * 7 + 3) % vocab);
    /* y is linear in the weights: the gradient is the sum of dy over the uses. */
    double *want_y = test_doubles(rows * c);
    double *want_dwte = test_widen(dwte, vocab * c), *want_dwpe = test_widen(dwpe, t * c);
    for (size_t r = 0; r < rows; r++) {
        for (size_t j = 0; j < c; j++) {
            size_t token = (size_t)tokens[r] * c + j, position = r % t * c + j;
            want_y[r * c + j] = (double)wte[token] + (positions ? (double)wpe[position] : 0.0);
            want_dwte[token] += (double)dy[r * c + j];
            if (positions)
                want_dwpe[position] += (double)dy[r * c + j];
        }
    }
    rrfp_embedding_fwd(tokens, wte, positions ? wpe : NULL, y, batch, t, c);
    rrfp_embedding_wgrad(tokens, dy, dwte, positions ? dwpe : NULL, batch, t, c);
    test_close("y", y, want_y, rows * c, 1e-6);
    test_close("dwte", dwte, want_dwte, vocab * c, 1e-5);
    test_close("dwpe", dwpe, want_dwpe, t * c, 1e-5);
    float *buffers[] = {wte, wpe, dy, y, dwte, dwpe};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        free(buffers[i]);
    free(tokens);
    free(want_y);
    free(want_dwte);
    free(want_dwpe);
}

static void test_embedding(void **unused)
{
    (void)unused;
    for (int positions = 0; positions < 2; positions++) {
        embedding_check(1, 1, 1, 1, positions);
        embedding_check(3, 5, 7, 5, positions);
        embedding_check(2, 9, 70, 4, positions);
    }
}

/* Parts of the vocabulary, positions with the first: forwards add up, gradients lie side by side. */
static void test_embedding_parts(void **unused)
{
    (void)unused;
    enum { B = 2, T = 5, C = 6, V = 11, PARTS = 3 };
    uint64_t state = TEST_SEED;
    float *wte = test_random(V * C, &state, 1.0), *wpe = test_random(T * C, &state, 1.0);
    float *dy = test_random(B * T * C, &state, 1.0);
    float *y = test_buffer(B * T * C, NAN), *dwte = test_buffer(V * C, 0.0f);
    float *sum = test_buffer(B * T * C, 0.0f), *one = test_buffer(B * T * C, NAN);
    float *parts = test_buffer(V * C, 0.0f);
    int32_t tokens[B * T] = {0, 3, 10, 3, 7, 2, 6, 4, 0, 10};
    rrfp_embedding_fwd(tokens, wte, wpe, y, B, T, C);
    rrfp_embedding_wgrad(tokens, dy, dwte, NULL, B, T, C);
    for (int p = 0; p < PARTS; p++) {
        int32_t first = V * p / PARTS;
        rrfp_vocab_part part = {first, V * (p + 1) / PARTS - first};
        rrfp_embedding_part_fwd(tokens, wte + first * C, p == 0 ? wpe : NULL, one, B, T, C, part);
        rrfp_add(sum, one, B * T * C);
        rrfp_embedding_part_wgrad(tokens, dy, parts + first * C, NULL, B, T, C, part);
    }
    assert_memory_equal(sum, y, B * T * C * sizeof *y);
    assert_memory_equal(parts, dwte, V * C * sizeof *dwte);
    float *buffers[] = {wte, wpe, dy, y, dwte, sum, one, parts};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        free(buffers[i]);
}

/* The rotation of Su et al. in the half-split layout, straight from its definition. */
static void rope_reference(double *x, size_t batch, size_t t, size_t heads, size_t d,
                           size_t stride, double theta)
{
    for (size_t r = 0; r < batch * t; r++) {
        for (size_t h = 0; h < heads; h++) {
            double *head = x + r * stride + h * d;
            for (size_t i = 0; i < d / 2; i++) {
                double angle = (double)(r % t) / pow(theta, 2.0 * (double)i / (double)d);
                double low = head[i], high = head[i + d / 2];
                head[i] = low * cos(angle) - high * sin(angle);
                head[i + d / 2] = high * cos(angle) + low * sin(angle);
            }
        }
    }
}

typedef struct rope_case {
    size_t batch, t, heads, d, stride;
    double theta;
    double *weights;
} rope_case;

static double rope_objective(const double *variables, void *context)
{
    const rope_case *a = context;
    size_t count = a->batch * a->t * a->stride;
    double *x = test_doubles(count);
    memcpy(x, variables, count * sizeof *x);
    rope_reference(x, a->batch, a->t, a->heads, a->d, a->stride, a->theta);
    double value = test_dot(x, a->weights, count);
    free(x);
    return value;
}

static void rope_check(size_t batch, size_t t, size_t heads, size_t d, size_t stride, float theta)
{
    uint64_t state = TEST_SEED + d;
    size_t count = batch * t * stride;
    float *x = test_random(count, &state, 1.0), *y = test_buffer(count, 0.0f);
    float *dy = test_random(count, &state, 1.0), *dx = test_buffer(count, 0.0f);
    double *start = test_widen(x, count), *want = test_widen(x, count);
    rope_case a = {batch, t, heads, d, stride, (double)theta, test_widen(dy, count)};
    memcpy(y, x, count * sizeof *x);
    rrfp_rope(y, batch, t, heads, d, stride, theta, false);
    rope_reference(want, batch, t, heads, d, stride, (double)theta);
    test_close("rope", y, want, count, 1e-5);
    memcpy(dx, dy, count * sizeof *x);
    rrfp_rope(dx, batch, t, heads, d, stride, theta, true);
    test_gradient("drope", rope_objective, &a, start, count, dx, 1, 1e-4);
    /* A rotation: the transpose is the inverse. */
    rrfp_rope(y, batch, t, heads, d, stride, theta, true);
    test_close("rope back", y, start, count, 1e-6);
    float *buffers[] = {x, y, dy, dx};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        free(buffers[i]);
    free(start);
    free(want);
    free(a.weights);
}

static void test_rope(void **unused)
{
    (void)unused;
    rope_check(1, 1, 1, 2, 2, 10000.0f);
    rope_check(3, 5, 3, 6, 20, 10000.0f); /* two floats of each row are not heads */
    rope_check(1, 19, 2, 8, 16, 500000.0f);
    rope_check(1, 3, 1, 140, 140, 10000.0f); /* more frequencies than one run */
}

int main(void)
{
    rrfp_kernels_thread_init(1);
    print_message("seed %d\n", TEST_SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_embedding_parts),
        cmocka_unit_test(test_rope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
