/*
 * kernels_rng.c - Philox4x32-10 against the published vectors; element addressing,
 * uniform and normal draws.
 */
#include "unit/kernels_test.h"

#include "kernels/philox.h"
#include "kernels/rng.h"

/* Known answers distributed with Random123 (Salmon et al.). */
static void test_published_vectors(void **unused)
{
    (void)unused;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t out[4];
        rrfp_philox4x32(known[i].counter, known[i].key, out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
}

static const rrfp_rng_key base_key = {.seed = 0x123456789abcdef0ull, .stream = 1, .a = 2,
                                      .b = 3, .step = 4};

/* Four elements share a block; runs give the same bits as single elements. */
static void test_runs_equal_elements(void **unused)
{
    (void)unused;
    static const uint64_t blocks[] = {0, 1, 77, 0xFFFFFFFFull - 3, 0x100000000ull, 1ull << 61};
    rrfp_rng_stream stream = rrfp_rng_stream_of(&base_key);
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++) {
        uint32_t run[RRFP_RNG_RUN];
        rrfp_rng_fill(&stream, blocks[b], run);
        for (uint64_t i = 0; i < RRFP_RNG_RUN; i++)
            assert_int_equal(run[i], rrfp_rng_u32(&base_key, blocks[b] * 4 + i));
    }
}

/* Every field of the key matters, in both halves where it has two. */
static void test_keys_differ(void **unused)
{
    (void)unused;
    rrfp_rng_key keys[7];
    for (int i = 0; i < 7; i++)
        keys[i] = base_key;
    keys[1].seed ^= 1;
    keys[2].seed ^= 1ull << 63;
    keys[3].stream++;
    keys[4].a++;
    keys[5].b++;
    keys[6].step++;
    for (int i = 0; i < 7; i++) {
        for (int j = 0; j < i; j++) {
            int equal = 0;
            for (uint64_t e = 0; e < 64; e++)
                equal += rrfp_rng_u32(&keys[i], e) == rrfp_rng_u32(&keys[j], e);
            assert_true(equal <= 1);
        }
    }
    assert_int_equal(rrfp_rng_u32(&base_key, 9), rrfp_rng_u32(&base_key, 9));
}

static void test_uniform_draws(void **unused)
{
    (void)unused;
    enum { COUNT = 100000 };
    double sum = 0.0;
    int bins[10] = {0};
    for (uint64_t i = 0; i < COUNT; i++) {
        float u = rrfp_rng_uniform(&base_key, i);
        assert_true(u >= 0.0f && u < 1.0f);
        assert_true(u == (float)(rrfp_rng_u32(&base_key, i) >> 8) / 16777216.0f);
        sum += (double)u;
        bins[(int)(u * 10.0f)]++;
    }
    /* Fixed key: five standard deviations, 1/sqrt(12 COUNT) and sqrt(COUNT .1 .9). */
    assert_true(fabs(sum / COUNT - 0.5) < 5.0 * 0.2887 / sqrt(COUNT));
    for (int i = 0; i < 10; i++)
        assert_true(abs(bins[i] - COUNT / 10) < 5.0 * sqrt(COUNT * 0.09));
}

static void test_normal_draws(void **unused)
{
    (void)unused;
    enum { COUNT = 100000 };
    double sum = 0.0, square = 0.0, fourth = 0.0, pairs = 0.0;
    for (uint64_t i = 0; i < COUNT; i += 2) {
        double even = rrfp_rng_normal(&base_key, i), odd = rrfp_rng_normal(&base_key, i + 1);
        /* Box-Muller: the pair's length depends on one of its two uniforms alone. */
        double u = ((double)rrfp_rng_u32(&base_key, i) + 1.0) / 4294967296.0;
        assert_true(fabs(even * even + odd * odd + 2.0 * log(u)) < 1e-9);
        sum += even + odd;
        square += even * even + odd * odd;
        fourth += pow(even, 4.0) + pow(odd, 4.0);
        pairs += even * odd;
    }
    assert_true(fabs(sum / COUNT) < 5.0 / sqrt(COUNT));
    assert_true(fabs(square / COUNT - 1.0) < 5.0 * sqrt(2.0 / COUNT));
    assert_true(fabs(fourth / COUNT - 3.0) < 5.0 * sqrt(96.0 / COUNT));
    assert_true(fabs(pairs / (COUNT / 2)) < 5.0 / sqrt(COUNT / 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_vectors), cmocka_unit_test(test_runs_equal_elements),
        cmocka_unit_test(test_keys_differ),       cmocka_unit_test(test_uniform_draws),
        cmocka_unit_test(test_normal_draws),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
