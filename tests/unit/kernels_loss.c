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

/* Columns cut into parts, exchanged as a tensor-parallel group would: the whole's loss and gradient. */
static void parts_check(size_t n, size_t vocab, size_t parts, float scale)
{
    uint64_t state = TEST_SEED + n + parts;
    float *whole = test_random(n * vocab, &state, 9.0);
    float *part = test_buffer(n * vocab, 0.0f), *max = test_buffer(n, -INFINITY);
    float *row_max = test_buffer(n, NAN);
    int32_t *targets = malloc(n * sizeof *targets);
    rrfp_cross_entropy_sums *sums = malloc(n * sizeof *sums);
    rrfp_cross_entropy_sums *total = calloc(n, sizeof *total);
    assert_true(targets != NULL && sums != NULL && total != NULL);
    for (size_t r = 0; r < n; r++)
        targets[r] = r % 5 == 3 ? -1 : (int32_t)((r * 13) % vocab);
    for (size_t p = 0; p < parts; p++) {
        size_t first = vocab * p / parts, width = vocab * (p + 1) / parts - first;
        for (size_t r = 0; r < n; r++)
            memcpy(part + n * first + r * width, whole + r * vocab + first, width * sizeof *part);
        rrfp_cross_entropy_part_max(part + n * first, n,
                                    (rrfp_vocab_part){(int32_t)first, (int32_t)width}, row_max);
        for (size_t r = 0; r < n; r++)
            max[r] = row_max[r] > max[r] ? row_max[r] : max[r];
    }
    for (size_t p = 0; p < parts; p++) {
        size_t first = vocab * p / parts, width = vocab * (p + 1) / parts - first;
        rrfp_cross_entropy_part_exp(part + n * first, targets, n,
                                    (rrfp_vocab_part){(int32_t)first, (int32_t)width}, max, sums);
        for (size_t r = 0; r < n; r++) {
            total[r].exponentials += sums[r].exponentials;
            total[r].target += sums[r].target;
        }
    }
    double loss = rrfp_cross_entropy(whole, targets, n, vocab, scale);
    for (size_t p = 0; p < parts; p++) {
        size_t first = vocab * p / parts, width = vocab * (p + 1) / parts - first;
        double same = rrfp_cross_entropy_part_finish(
            part + n * first, targets, n, (rrfp_vocab_part){(int32_t)first, (int32_t)width},
            total, scale);
        assert_true(fabs(same - loss) <= 1e-6 * (fabs(loss) + 1.0));
        for (size_t r = 0; r < n; r++) {
            for (size_t j = 0; j < width; j++) {
                double want = (double)whole[r * vocab + first + j];
                assert_true(fabs((double)part[n * first + r * width + j] - want) <=
                            1e-6 * fabs(want) + 1e-7 * (double)scale);
            }
        }
    }
    float *buffers[] = {whole, part, max, row_max};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        free(buffers[i]);
    free(targets);
    free(sums);
    free(total);
}

static void test_parts(void **unused)
{
    (void)unused;
    parts_check(1, 2, 2, 1.0f); /* one token each */
    parts_check(7, 11, 3, 0.25f);
    parts_check(9, 2503, 2, 0.125f);
    parts_check(4, 11, 1, 0.5f);
}

int main(void)
{
    rrfp_kernels_thread_init(1);
    print_message("seed %d\n", TEST_SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_known_values),
        cmocka_unit_test(test_all_ignored),
        cmocka_unit_test(test_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
