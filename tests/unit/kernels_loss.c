/*
 * kernels_loss.c - cross-entropy against the double formula and its finite
 * differences.  Tolerances: loss 1e-6, gradients 1e-4.
 */
#include "unit/kernels_test.h"

#include "kernels/kernels.h"

typedef struct loss_case {
    size_t n, vocab;
    const int32_t *targets;
    double scale;
} loss_case;

static double loss_objective(const double *logits, void *context)
{
    const loss_case *a = context;
    double loss = 0.0;
    for (size_t r = 0; r < a->n; r++) {
        const double *x = logits + r * a->vocab;
        double max = x[0], sum = 0.0;
        if (a->targets[r] < 0)
            continue;
        for (size_t j = 1; j < a->vocab; j++)
            max = fmax(max, x[j]);
        for (size_t j = 0; j < a->vocab; j++)
            sum += exp(x[j] - max);
        loss += (log(sum) + max - x[a->targets[r]]) * a->scale;
    }
    return loss;
}

static void loss_check(size_t n, size_t vocab, double range, float scale, size_t stride)
{
    uint64_t state = TEST_SEED + n + vocab;
    size_t count = n * vocab;
    float *logits = test_random(count, &state, range), *kept = test_buffer(count, 0.0f);
    double *wide = test_widen(logits, count);
    int32_t *targets = malloc(n * sizeof *targets);
    assert_non_null(targets);
    for (size_t r = 0; r < n; r++)
        targets[r] = r % 4 == 2 ? (r % 8 == 2 ? -1 : -100) : (int32_t)((r * 11 + 1) % vocab);
    memcpy(kept, logits, count * sizeof *kept);
    loss_case a = {n, vocab, targets, 1.0};
    double want = loss_objective(wide, &a);

    double loss = rrfp_cross_entropy_loss(logits, targets, n, vocab);
    assert_memory_equal(logits, kept, count * sizeof *kept);
    assert_true(fabs(loss - want) <= 1e-6 * fabs(want) + 1e-9);
    double again = rrfp_cross_entropy(logits, targets, n, vocab, scale);
    assert_true(again == loss);
    a.scale = (double)scale;
    test_gradient("dlogits", loss_objective, &a, wide, count, logits, stride, 1e-4);
    for (size_t r = 2; r < n; r += 4)
        for (size_t j = 0; j < vocab; j++)
            assert_true(logits[r * vocab + j] == 0.0f);
    free(logits);
    free(kept);
    free(wide);
    free(targets);
}

static void test_loss(void **unused)
{
    (void)unused;
    loss_check(1, 1, 1.0, 1.0f, 1);
    loss_check(1, 5, 1.0, 1.0f, 1);
    loss_check(7, 5, 30.0, 0.25f, 1);
    loss_check(70, 33, 3.0, 1.0f / 70.0f, 5); /* more rows than one run */
    loss_check(3, 2500, 5.0, 0.5f, 13);       /* more logits than one run */
}

/* Hand-worked: two equal logits give log 2; a far target gives the distance. */
static void test_known_values(void **unused)
{
    (void)unused;
    float logits[4] = {3.0f, 3.0f, 1000.0f, -1000.0f};
    int32_t targets[2] = {0, 1};
    double loss = rrfp_cross_entropy(logits, targets, 2, 2, 1.0f);
    assert_true(fabs(loss - (0.69314718055994531 + 2000.0)) < 1e-6);
    double want[4] = {-0.5, 0.5, 1.0, -1.0};
    test_close("dlogits", logits, want, 4, 1e-6);
}

static void test_all_ignored(void **unused)
{
    (void)unused;
    float logits[6] = {1, 2, 3, 4, 5, 6};
    int32_t targets[2] = {-100, -1};
    assert_true(rrfp_cross_entropy_loss(logits, targets, 2, 3) == 0.0);
    assert_true(rrfp_cross_entropy(logits, targets, 2, 3, 1.0f) == 0.0);
    for (int i = 0; i < 6; i++)
        assert_true(logits[i] == 0.0f);
}

int main(void)
{
    rrfp_kernels_thread_init(1);
    print_message("seed %d\n", TEST_SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_known_values),
        cmocka_unit_test(test_all_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
