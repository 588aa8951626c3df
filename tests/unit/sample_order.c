/* sample_order.c - the order of samples is a permutation, a function of (seed, epoch) alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "data/sample_order.h"

static void check_permutation(uint64_t seed, uint64_t epoch, uint64_t count)
{
    uint8_t *seen = calloc(count, 1);

    assert_non_null(seen);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t sample = rrfp_sample_order(seed, epoch, count, i);
        assert_true(sample < count);
        assert_int_equal(seen[sample], 0);
        seen[sample] = 1;
    }
    free(seen);
}

static void every_small_count_is_permuted(void **state)
{
    (void)state;
    for (uint64_t count = 1; count <= 300; count++) {
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            check_permutation(42, epoch, count);
        }
    }
}

static void larger_counts_are_permuted(void **state)
{
    static const uint64_t counts[] = {1023, 1024, 1025, 4096, 4097, 65535, 65537, 262145};

    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        check_permutation(7, i, counts[i]);
    }
}

static void huge_counts_stay_in_range_and_differ(void **state)
{
    const uint64_t count = (UINT64_C(1) << 62) - 3;

    (void)state;
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t here = rrfp_sample_order(1, 0, count, i);
        assert_true(here < count);
        assert_true(here != rrfp_sample_order(1, 0, count, count - 1 - i));
    }
}

/* Places at which two orders of 100 agree: about one for unrelated permutations. */
static int agreements(uint64_t seed_a, uint64_t epoch_a, uint64_t seed_b, uint64_t epoch_b)
{
    int same = 0;

    for (uint64_t i = 0; i < 100; i++) {
        same += rrfp_sample_order(seed_a, epoch_a, 100, i) ==
                rrfp_sample_order(seed_b, epoch_b, 100, i);
    }
    return same;
}

static void epochs_and_seeds_give_different_orders(void **state)
{
    (void)state;
    for (uint64_t epoch = 0; epoch < 50; epoch++) {
        assert_in_range(agreements(3, epoch, 3, epoch + 1), 0, 10);
        assert_in_range(agreements(epoch, 3, epoch + 1, 3), 0, 10);
        assert_in_range(agreements(epoch, epoch + 1, epoch + 1, epoch), 0, 10);
        assert_int_equal(agreements(epoch, 9, epoch, 9), 100);
    }
}

/*
 * Over 10000 epochs each of ten samples should be first about 1000 times; the
 * standard deviation is sqrt(10000 * 0.1 * 0.9) = 30, and 5 of them are allowed.
 */
static void every_sample_is_first_equally_often(void **state)
{
    int first[10] = {0};
    int pairs[2] = {0};

    (void)state;
    for (uint64_t epoch = 0; epoch < 10000; epoch++) {
        first[rrfp_sample_order(1234, epoch, 10, 0)]++;
        pairs[rrfp_sample_order(1234, epoch, 2, 0)]++;
    }
    for (int i = 0; i < 10; i++) {
        assert_in_range(first[i], 850, 1150);
    }
    assert_in_range(pairs[0], 4750, 5250);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_small_count_is_permuted),
        cmocka_unit_test(larger_counts_are_permuted),
        cmocka_unit_test(huge_counts_stay_in_range_and_differ),
        cmocka_unit_test(epochs_and_seeds_give_different_orders),
        cmocka_unit_test(every_sample_is_first_equally_often),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
