/*
 * kernels_determinism.c - equal inputs give equal bits: called twice, from two
 * threads at once, at other 64-byte aligned addresses; a team of two repeats
 * itself and agrees with one thread to rounding.
 */
#include "unit/kernels_test.h"

#include <pthread.h>

#include "kernels/kernels.h"
#include "kernels/rng.h"

/* Ragged on purpose; several attention blocks, packed and plain products. */
enum { B = 2, T = 70, H = 4, G = 2, D = 18, C = H * D, N = B * T, HIDDEN = 512, V = 1037 };
enum { OUTPUT_FLOATS = 1 << 20 };

typedef struct tape {
    size_t shift; /* floats between the base of a fresh buffer and its use, 16 k */
    uint64_t state;
    float *output;
    size_t used;
} tape;

typedef struct shifted {
    float *base, *x;
} shifted;

static shifted fresh(tape *tp, size_t count, double range)
{
    shifted s = {.base = test_random(count + tp->shift, &tp->state, range)};
    s.x = s.base + tp->shift;
    /* The values follow the tape, not the address. */
    for (size_t i = 0; i < count; i++)
        s.x[i] = (float)sin((double)(i * 7 + count) * 0.37) * (float)range;
    return s;
}

static void record(tape *tp, const float *x, size_t count)
{
    assert_true(tp->used + count <= OUTPUT_FLOATS);
    memcpy(tp->output + tp->used, x, count * sizeof *x);
    tp->used += count;
}

static void run_linear(tape *tp)
{
    shifted x = fresh(tp, N * C, 1.0), w = fresh(tp, C * HIDDEN, 1.0), b = fresh(tp, HIDDEN, 1.0);
    shifted y = fresh(tp, N * HIDDEN, 1.0), dx = fresh(tp, N * C, 1.0);
    shifted dw = fresh(tp, C * HIDDEN, 1.0), db = fresh(tp, HIDDEN, 1.0);
    for (int transposed = 0; transposed < 2; transposed++) {
        rrfp_linear_fwd(x.x, w.x, b.x, y.x, N, C, HIDDEN, transposed);
        rrfp_linear_dgrad(y.x, w.x, dx.x, N, C, HIDDEN, transposed, true);
        rrfp_linear_wgrad(x.x, y.x, dw.x, db.x, N, C, HIDDEN, transposed);
        record(tp, y.x, N * HIDDEN);
        record(tp, dx.x, N * C);
        record(tp, dw.x, C * HIDDEN);
        record(tp, db.x, HIDDEN);
    }
    shifted all[] = {x, w, b, y, dx, dw, db};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i].base);
}

static void run_rows(tape *tp)
{
    shifted x = fresh(tp, N * C, 1.0), dy = fresh(tp, N * C, 1.0), y = fresh(tp, N * C, 1.0);
    shifted gamma = fresh(tp, C, 1.0), beta = fresh(tp, C, 1.0);
    shifted mean = fresh(tp, N, 1.0), rstd = fresh(tp, N, 1.0);
    rrfp_layernorm_fwd(x.x, gamma.x, beta.x, 1e-5f, y.x, mean.x, rstd.x, N, C);
    record(tp, y.x, N * C);
    rrfp_layernorm_dgrad(dy.x, x.x, gamma.x, mean.x, rstd.x, y.x, N, C, true);
    rrfp_layernorm_wgrad(dy.x, x.x, mean.x, rstd.x, gamma.x, beta.x, N, C);
    record(tp, y.x, N * C);
    rrfp_rmsnorm_fwd(x.x, gamma.x, 1e-5f, y.x, rstd.x, N, C);
    record(tp, y.x, N * C);
    rrfp_rmsnorm_dgrad(dy.x, x.x, gamma.x, rstd.x, y.x, N, C, false);
    rrfp_rmsnorm_wgrad(dy.x, x.x, rstd.x, gamma.x, N, C);
    rrfp_gelu_fwd(y.x, y.x, N * C);
    rrfp_gelu_dgrad(dy.x, x.x, dy.x, N * C);
    rrfp_swiglu_dgrad(dy.x, x.x, y.x, dy.x, x.x, N * C);
    rrfp_rope(x.x, B, T, H, D, C, 10000.0f, false);
    rrfp_add(x.x, y.x, N * C);
    rrfp_rng_key key = {.seed = 5, .stream = RRFP_RNG_DROPOUT};
    rrfp_dropout(dy.x, dy.x, N * C, 0.2f, 0, &key);
    rrfp_adamw opt = {1e-3f, 0.9f, 0.999f, 1e-8f, 0.1f, 1.0f, 3};
    memset(y.x, 0, N * C * sizeof *y.x);
    rrfp_adamw_update(&opt, x.x, dy.x, beta.x, y.x, C);
    float square = (float)rrfp_sum_of_squares(x.x, N * C);
    record(tp, &square, 1);
    shifted all[] = {x, dy, y, gamma, beta, mean, rstd};
    static const size_t counts[] = {N * C, N * C, N * C, C, C, N, N};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        record(tp, all[i].x, counts[i]);
        free(all[i].base);
    }
}

static void run_attention(tape *tp)
{
    rrfp_rng_key key = {.seed = 9, .stream = RRFP_RNG_DROPOUT};
    rrfp_attention_shape shape = {B, T, H, G, D, C, G * D, C, 0.1f, &key, 0, 0};
    shifted q = fresh(tp, N * C, 1.0), k = fresh(tp, N * G * D, 1.0), v = fresh(tp, N * G * D, 1.0);
    shifted y = fresh(tp, N * C, 1.0), dq = fresh(tp, N * C, 1.0), dk = fresh(tp, N * G * D, 1.0);
    shifted dv = fresh(tp, N * G * D, 1.0), lse = fresh(tp, B * H * T, 1.0);
    shifted scratch = fresh(tp, rrfp_attention_scratch_floats(T, D), 1.0);
    rrfp_attention_fwd(&shape, q.x, k.x, v.x, y.x, lse.x, scratch.x);
    record(tp, y.x, N * C);
    rrfp_attention_dgrad(&shape, y.x, q.x, k.x, v.x, y.x, lse.x, dq.x, dk.x, dv.x, scratch.x);
    record(tp, dq.x, N * C);
    record(tp, dk.x, N * G * D);
    record(tp, dv.x, N * G * D);
    shifted all[] = {q, k, v, y, dq, dk, dv, lse, scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i].base);
}

static void run_tokens(tape *tp)
{
    shifted wte = fresh(tp, V * C, 1.0), wpe = fresh(tp, T * C, 1.0), y = fresh(tp, N * C, 1.0);
    shifted logits = fresh(tp, N * V, 5.0);
    int32_t tokens[N];
    for (int i = 0; i < N; i++)
        tokens[i] = i % 9 == 4 ? 0 : i * 37 % V;
    rrfp_embedding_fwd(tokens, wte.x, wpe.x, y.x, B, T, C);
    rrfp_embedding_wgrad(tokens, y.x, wte.x, wpe.x, B, T, C);
    double loss = rrfp_cross_entropy_loss(logits.x, tokens, N, V);
    assert_true(rrfp_cross_entropy(logits.x, tokens, N, V, 0.01f) == loss);
    float halves[2];
    memcpy(halves, &loss, sizeof loss);
    record(tp, halves, 2);
    record(tp, logits.x, N * V);
    record(tp, wte.x, V * C);
    record(tp, wpe.x, T * C);
    shifted all[] = {wte, wpe, y, logits};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i].base);
}

/* Every op once; the outputs one after the other. */
static tape run_all(size_t shift, int threads)
{
    tape tp = {.shift = shift, .state = TEST_SEED, .output = test_buffer(OUTPUT_FLOATS, 0.0f)};
    rrfp_kernels_thread_init(threads);
    run_linear(&tp);
    run_rows(&tp);
    run_attention(&tp);
    run_tokens(&tp);
    return tp;
}

static void assert_same(const tape *a, const tape *b)
{
    assert_int_equal(a->used, b->used);
    for (size_t i = 0; i < a->used; i++)
        if (memcmp(a->output + i, b->output + i, sizeof(float)) != 0)
            fail_msg("output %zu: %.9g and %.9g", i, (double)a->output[i], (double)b->output[i]);
}

static void test_twice(void **unused)
{
    (void)unused;
    tape a = run_all(0, 1), b = run_all(0, 1);
    assert_same(&a, &b);
    free(a.output);
    free(b.output);
}

/* 64-byte aligned is what is promised; a page boundary must not matter. */
static void test_addresses(void **unused)
{
    (void)unused;
    tape a = run_all(0, 1), b = run_all(16, 1), c = run_all(3 * 16, 1);
    assert_same(&a, &b);
    assert_same(&a, &c);
    free(a.output);
    free(b.output);
    free(c.output);
}

static void *thread_main(void *result)
{
    *(tape *)result = run_all(0, 1);
    return NULL;
}

static void test_two_threads_at_once(void **unused)
{
    (void)unused;
    tape alone = run_all(0, 1), both[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, thread_main, &both[i]), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_same(&alone, &both[i]);
        free(both[i].output);
    }
    free(alone.output);
}

static void test_team_of_two(void **unused)
{
    (void)unused;
#if defined(__SANITIZE_THREAD__)
    skip(); /* the OpenMP runtime is not instrumented */
#endif
    tape one = run_all(0, 1), a = run_all(0, 2), b = run_all(0, 2);
    assert_same(&a, &b);
    /* The products may sum in another order; the loss's halves are no numbers. */
    double *want = test_widen(one.output, one.used);
    size_t halves = one.used - (N * V + V * C + T * C) - 2;
    test_close("team", a.output, want, halves, 1e-5);
    test_close("team", a.output + halves + 2, want + halves + 2, one.used - halves - 2, 1e-5);
    free(want);
    free(one.output);
    free(a.output);
    free(b.output);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twice),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_two_threads_at_once),
        cmocka_unit_test(test_team_of_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
