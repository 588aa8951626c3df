/* model_partition.c - layers to chunks: rules worked out by hand. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <string.h>

#include "model/model.h"

static rrfp_model_config of_layers(uint32_t layers)
{
    const rrfp_model_config config = {.arch = RRFP_ARCH_GPT2, .num_layers = layers};
    return config;
}

static void assert_counts(uint32_t layers, uint32_t chunks, const uint32_t *expected)
{
    const rrfp_model_config config = of_layers(layers);
    rrfp_chunk_range ranges[16];
    rrfp_error error;
    assert_int_equal(rrfp_model_partition(&config, chunks, ranges, &error), RRFP_OK);
    uint32_t first = 0;
    for (uint32_t i = 0; i < chunks; i++) {
        assert_int_equal(ranges[i].layer_count, expected[i]);
        assert_int_equal(ranges[i].first_layer, first);
        assert_int_equal(ranges[i].has_embedding, i == 0);
        assert_int_equal(ranges[i].has_head, i == chunks - 1);
        first += expected[i];
    }
    assert_int_equal(first, layers);
}

static void known_partitions(void **state)
{
    (void)state;
    assert_counts(12, 1, (const uint32_t[]){12});
    assert_counts(12, 4, (const uint32_t[]){3, 3, 3, 3});
    assert_counts(10, 8, (const uint32_t[]){2, 2, 1, 1, 1, 1, 1, 1});
    assert_counts(5, 4, (const uint32_t[]){2, 1, 1, 1});
    assert_counts(7, 4, (const uint32_t[]){2, 2, 2, 1});
    assert_counts(3, 8, (const uint32_t[]){1, 1, 1, 0, 0, 0, 0, 0});
}

static void rules_hold_everywhere(void **state)
{
    (void)state;
    rrfp_chunk_range ranges[40];
    for (uint32_t layers = 1; layers <= 40; layers++) {
        const rrfp_model_config config = of_layers(layers);
        for (uint32_t chunks = 1; chunks <= 40; chunks++) {
            uint32_t sum = 0, least = UINT32_MAX, most = 0;
            assert_int_equal(rrfp_model_partition(&config, chunks, ranges, NULL), RRFP_OK);
            for (uint32_t i = 0; i < chunks; i++) {
                const uint32_t count = ranges[i].layer_count;
                assert_int_equal(ranges[i].first_layer, sum);
                assert_true(i == 0 || count <= ranges[i - 1].layer_count);
                least = count < least ? count : least;
                most = count > most ? count : most;
                sum += count;
            }
            assert_int_equal(sum, layers);
            assert_true(most - least <= 1);
            assert_int_equal(ranges[chunks - 1].layer_count, least);
        }
    }
}

static void explicit_counts(void **state)
{
    (void)state;
    const rrfp_model_config config = of_layers(6);
    rrfp_chunk_range ranges[3];
    rrfp_error error;
    const uint32_t good[3] = {1, 5, 0};
    assert_int_equal(rrfp_model_partition_explicit(&config, 3, good, ranges, &error), RRFP_OK);
    assert_int_equal(ranges[1].first_layer, 1);
    assert_int_equal(ranges[1].layer_count, 5);
    assert_int_equal(ranges[2].first_layer, 6);
    assert_true(ranges[2].has_head && !ranges[1].has_head && ranges[0].has_embedding);

    const uint32_t short_by_one[3] = {1, 3, 1};
    memset(ranges, 0x55, sizeof ranges);
    assert_int_equal(rrfp_model_partition_explicit(&config, 3, short_by_one, ranges, &error),
                     RRFP_ERR_INVALID);
    assert_non_null(strstr(error.text, "add up to 5"));
    assert_int_equal(ranges[0].layer_count, 0x55555555); /* outputs on success only */

    const uint32_t wrapping[3] = {UINT32_MAX, 4, 3}; /* 6 modulo 2^32 */
    assert_int_equal(rrfp_model_partition_explicit(&config, 3, wrapping, ranges, &error),
                     RRFP_ERR_INVALID);
}

static void no_chunks(void **state)
{
    (void)state;
    const rrfp_model_config config = of_layers(6);
    rrfp_chunk_range range;
    rrfp_error error;
    const uint32_t none = 0;
    assert_int_equal(rrfp_model_partition(&config, 0, &range, &error), RRFP_ERR_INVALID);
    assert_int_equal(rrfp_model_partition_explicit(&config, 0, &none, &range, &error),
                     RRFP_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_partitions),
        cmocka_unit_test(rules_hold_everywhere),
        cmocka_unit_test(explicit_counts),
        cmocka_unit_test(no_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
