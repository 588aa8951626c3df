/*
 * kernels_attention.c - causal grouped-query attention against the textbook
 * formula in double: forward, log-sum-exp, finite differences of q, k and v,
 * slices of one qkv buffer, dropout by element index.
 * Tolerances: forward 1e-5, gradients 1e-4, relative to the largest element.
 */
#include "unit/kernels_test.h"

#include "kernels/kernels.h"
#include "kernels/rng.h"

typedef struct attention_case {
    rrfp_attention_shape shape;
    double *q, *k, *v, *weights; /* laid out as the float buffers, same strides */
} attention_case;

/* y and, when wanted, lse; the formula row by row. */
static void attention_reference(const attention_case *a, double *y, double *lse)
{
    const rrfp_attention_shape *s = &a->shape;
    double *p = test_doubles(s->t);
    for (size_t b = 0; b < s->batch; b++) {
        for (size_t h = 0; h < s->heads; h++) {
            size_t g = h * s->kv_heads / s->heads;
            for (size_t i = 0; i < s->t; i++) {
                const double *q = a->q + (b * s->t + i) * s->q_stride + h * s->d;
                double sum = 0.0, max = -INFINITY;
                for (size_t j = 0; j <= i; j++) {
                    const double *k = a->k + (b * s->t + j) * s->kv_stride + g * s->d;
                    p[j] = test_dot(q, k, s->d) / sqrt((double)s->d);
                    max = fmax(max, p[j]);
                }
                for (size_t j = 0; j <= i; j++)
                    sum += exp(p[j] - max);
                for (size_t j = 0; j <= i; j++) {
                    p[j] = exp(p[j] - max) / sum;
                    if (s->dropout > 0.0f) {
                        uint64_t element = ((b * s->heads + h) * s->t + i) * s->t + j;
                        bool kept = rrfp_rng_uniform(s->rng, element) >= s->dropout;
                        p[j] *= kept ? 1.0 / (1.0 - (double)s->dropout) : 0.0;
                    }
                }
                if (lse != NULL)
                    lse[(b * s->heads + h) * s->t + i] = max + log(sum);
                double *out = y + (b * s->t + i) * s->y_stride + h * s->d;
                for (size_t l = 0; l < s->d; l++) {
                    out[l] = 0.0;
                    for (size_t j = 0; j <= i; j++)
                        out[l] += p[j] * a->v[(b * s->t + j) * s->kv_stride + g * s->d + l];
                }
            }
        }
    }
    free(p);
}

static double attention_objective(const double *variables, void *context)
{
    (void)variables;
    const attention_case *a = context;
    size_t count = a->shape.batch * a->shape.t * a->shape.y_stride;
    double *y = test_doubles(count);
    attention_reference(a, y, NULL);
    double value = test_dot(y, a->weights, count);
    free(y);
    return value;
}

/* `stride` thins the finite differences of large cases. */
static void attention_check(rrfp_attention_shape s, size_t stride, double range)
{
    uint64_t state = TEST_SEED + s.t * 31 + s.heads;
    size_t rows = s.batch * s.t;
    size_t nq = rows * s.q_stride, nkv = rows * s.kv_stride, ny = rows * s.y_stride;
    size_t nlse = s.batch * s.heads * s.t;
    float *q = test_random(nq, &state, range), *k = test_random(nkv, &state, range);
    float *v = test_random(nkv, &state, 1.0), *dy = test_random(ny, &state, 1.0);
    float *y = test_buffer(ny, 0.0f), *lse = test_buffer(nlse, NAN);
    float *dq = test_buffer(nq, NAN), *dk = test_buffer(nkv, NAN), *dv = test_buffer(nkv, NAN);
    size_t scratch_floats = rrfp_attention_scratch_floats(s.t, s.d);
    assert_true(scratch_floats <= 128 * s.t);
    float *scratch = test_buffer(scratch_floats, NAN);
    attention_case a = {s, test_widen(q, nq), test_widen(k, nkv), test_widen(v, nkv),
                        test_widen(dy, ny)};

    double *want_y = test_doubles(ny), *want_lse = test_doubles(nlse);
    attention_reference(&a, want_y, want_lse);
    rrfp_attention_fwd(&s, q, k, v, y, lse, scratch);
    test_close("y", y, want_y, ny, 1e-5);
    test_close("lse", lse, want_lse, nlse, 1e-5);

    /* Gaps between the heads and the stride must come back as they were: NaN. */
    rrfp_attention_dgrad(&s, dy, q, k, v, y, lse, dq, dk, dv, scratch);
    for (size_t r = 0; r < rows; r++) {
        for (size_t j = s.heads * s.d; j < s.q_stride; j++) {
            assert_true(isnan(dq[r * s.q_stride + j]));
            dq[r * s.q_stride + j] = 0.0f;
        }
        for (size_t j = s.kv_heads * s.d; j < s.kv_stride; j++) {
            assert_true(isnan(dk[r * s.kv_stride + j]) && isnan(dv[r * s.kv_stride + j]));
            dk[r * s.kv_stride + j] = dv[r * s.kv_stride + j] = 0.0f;
        }
    }
    test_gradient("dq", attention_objective, &a, a.q, nq, dq, stride, 1e-4);
    test_gradient("dk", attention_objective, &a, a.k, nkv, dk, stride, 1e-4);
    test_gradient("dv", attention_objective, &a, a.v, nkv, dv, stride, 1e-4);

    float *buffers[] = {q, k, v, dy, y, lse, dq, dk, dv, scratch};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        free(buffers[i]);
    double *doubles[] = {a.q, a.k, a.v, a.weights, want_y, want_lse};
    for (size_t i = 0; i < sizeof doubles / sizeof *doubles; i++)
        free(doubles[i]);
}

static void test_shapes(void **unused)
{
    (void)unused;
    /* batch, t, heads, kv_heads, d, q_stride, kv_stride, y_stride */
    attention_check((rrfp_attention_shape){1, 1, 1, 1, 1, 1, 1, 1, 0, NULL, 0, 0}, 1, 1.0);
    attention_check((rrfp_attention_shape){3, 1, 2, 2, 5, 10, 10, 10, 0, NULL, 0, 0}, 1, 1.0);
    attention_check((rrfp_attention_shape){3, 5, 3, 1, 7, 21, 7, 21, 0, NULL, 0, 0}, 1, 1.0);
    attention_check((rrfp_attention_shape){2, 6, 4, 2, 3, 12, 6, 12, 0, NULL, 0, 0}, 1, 1.0);
    attention_check((rrfp_attention_shape){2, 9, 2, 2, 8, 20, 19, 18, 0, NULL, 0, 0}, 1, 3.0);
}

/* Sequences that need several blocks, with ragged ends; large scores. */
static void test_several_blocks(void **unused)
{
    (void)unused;
    attention_check((rrfp_attention_shape){1, 64, 1, 1, 4, 4, 4, 4, 0, NULL, 0, 0}, 7, 1.0);
    attention_check((rrfp_attention_shape){1, 65, 1, 1, 4, 4, 4, 4, 0, NULL, 0, 0}, 7, 1.0);
    attention_check((rrfp_attention_shape){1, 150, 2, 1, 4, 8, 4, 8, 0, NULL, 0, 0}, 29, 2.0);
    attention_check((rrfp_attention_shape){1, 257, 1, 1, 2, 2, 2, 2, 0, NULL, 0, 0}, 23, 10.0);
}

static void test_dropout(void **unused)
{
    (void)unused;
    rrfp_rng_key key = {.seed = 7, .stream = RRFP_RNG_DROPOUT, .a = 3, .b = 1, .step = 2};
    attention_check((rrfp_attention_shape){2, 7, 3, 1, 5, 15, 5, 15, 0.3f, &key, 0, 0}, 1, 1.0);
    attention_check((rrfp_attention_shape){1, 133, 1, 1, 3, 3, 3, 3, 0.5f, &key, 0, 0}, 19, 1.0);
}

/* GPT-2 keeps q, k and v side by side in one buffer and so their gradients. */
static void test_one_qkv_buffer(void **unused)
{
    (void)unused;
    enum { B = 2, T = 70, H = 2, D = 4, C = H * D, ROWS = B * T };
    uint64_t state = TEST_SEED;
    float *qkv = test_random(ROWS * 3 * C, &state, 1.0), *dy = test_random(ROWS * C, &state, 1.0);
    float *dqkv = test_buffer(ROWS * 3 * C, NAN), *part[3], *dpart[3];
    for (int i = 0; i < 3; i++) {
        part[i] = test_buffer(ROWS * C, 0.0f);
        dpart[i] = test_buffer(ROWS * C, NAN);
        for (size_t r = 0; r < ROWS; r++)
            memcpy(part[i] + r * C, qkv + r * 3 * C + (size_t)i * C, C * sizeof(float));
    }
    float *y = test_buffer(ROWS * C, NAN), *y2 = test_buffer(ROWS * C, NAN);
    float *lse = test_buffer(B * H * T, NAN);
    float *scratch = test_buffer(rrfp_attention_scratch_floats(T, D), NAN);
    rrfp_attention_shape together = {B, T, H, H, D, 3 * C, 3 * C, C, 0, NULL, 0, 0};
    rrfp_attention_shape apart = {B, T, H, H, D, C, C, C, 0, NULL, 0, 0};
    rrfp_attention_fwd(&together, qkv, qkv + C, qkv + 2 * C, y, lse, scratch);
    rrfp_attention_dgrad(&together, dy, qkv, qkv + C, qkv + 2 * C, y, lse, dqkv, dqkv + C,
                         dqkv + 2 * C, scratch);
    rrfp_attention_fwd(&apart, part[0], part[1], part[2], y2, lse, scratch);
    rrfp_attention_dgrad(&apart, dy, part[0], part[1], part[2], y2, lse, dpart[0], dpart[1],
                         dpart[2], scratch);
    double *want = test_widen(y2, ROWS * C);
    test_close("y", y, want, ROWS * C, 1e-6);
    free(want);
    for (int i = 0; i < 3; i++) {
        float *slice = test_buffer(ROWS * C, 0.0f);
        for (size_t r = 0; r < ROWS; r++)
            memcpy(slice + r * C, dqkv + r * 3 * C + (size_t)i * C, C * sizeof(float));
        want = test_widen(dpart[i], ROWS * C);
        test_close("dqkv", slice, want, ROWS * C, 1e-5);
        free(want);
        free(slice);
        free(part[i]);
        free(dpart[i]);
    }
    float *buffers[] = {qkv, dy, dqkv, y, y2, lse, scratch};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        free(buffers[i]);
}

int main(void)
{
    rrfp_kernels_thread_init(1);
    print_message("seed %d\n", TEST_SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_several_blocks),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_one_qkv_buffer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
