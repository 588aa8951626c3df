/*
 * kernels_elementwise.c - dropout by element index, add, sum of squares, bfloat16.
 */
#include "unit/kernels_test.h"

#include "kernels/kernels.h"
#include "kernels/rng.h"

static void test_dropout(void **unused)
{
    (void)unused;
    static const size_t counts[] = {0, 1, 3, 4, 5, 255, 256, 257, 259, 4096, 10007};
    static const float rates[] = {0.0f, 0.1f, 0.5f, 0.9f};
    rrfp_rng_key key = {.seed = 99, .stream = RRFP_RNG_DROPOUT, .a = 12, .b = 3, .step = 7};
    uint64_t state = TEST_SEED;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        size_t count = counts[c];
        for (size_t r = 0; r < sizeof rates / sizeof *rates; r++) {
            float p = rates[r];
            float *x = test_random(count, &state, 1.0), *y = test_buffer(count, NAN);
            rrfp_dropout(x, y, count, p, 0, &key);
            for (size_t i = 0; i < count; i++) {
                /* The per-element definition of rng.h decides. */
                double want = rrfp_rng_uniform(&key, i) >= p ? (double)x[i] / (1.0 - (double)p)
                                                             : 0.0;
                assert_true(fabs((double)y[i] - want) <= 3e-7 * fabs(want));
            }
            rrfp_dropout(x, x, count, p, 0, &key);
            assert_memory_equal(x, y, count * sizeof *x);
            free(x);
            free(y);
        }
    }
}

/* A dropped element is zero whatever it was; another key drops others. */
static void test_dropout_zero_and_key(void **unused)
{
    (void)unused;
    enum { COUNT = 1000 };
    rrfp_rng_key key = {.seed = 1, .stream = RRFP_RNG_DROPOUT}, other = key;
    other.step = 1;
    float *x = test_buffer(COUNT, INFINITY), *y = test_buffer(COUNT, NAN);
    float *z = test_buffer(COUNT, NAN);
    rrfp_dropout(x, y, COUNT, 0.5f, 0, &key);
    rrfp_dropout(x, z, COUNT, 0.5f, 0, &other);
    size_t dropped = 0, differ = 0;
    for (size_t i = 0; i < COUNT; i++) {
        assert_true(y[i] == 0.0f || isinf(y[i]));
        dropped += y[i] == 0.0f;
        differ += y[i] != z[i];
    }
    assert_in_range(dropped, 400, 600);
    assert_in_range(differ, 400, 600);
    free(x);
    free(y);
    free(z);
}

static void test_add(void **unused)
{
    (void)unused;
    uint64_t state = TEST_SEED;
    for (size_t count = 0; count < 40; count++) {
        float *x = test_random(count, &state, 1.0), *y = test_random(count, &state, 1.0);
        float *kept = test_buffer(count, 0.0f);
        memcpy(kept, y, count * sizeof *y);
        rrfp_add(y, x, count);
        for (size_t i = 0; i < count; i++)
            assert_true(y[i] == kept[i] + x[i]);
        free(x);
        free(y);
        free(kept);
    }
}

static void test_sum_of_squares(void **unused)
{
    (void)unused;
    uint64_t state = TEST_SEED;
    for (size_t count = 0; count < 2000; count = count * 2 + 1) {
        float *x = test_random(count, &state, 100.0);
        double want = 0.0;
        for (size_t i = 0; i < count; i++)
            want += (double)x[i] * (double)x[i];
        assert_true(fabs(rrfp_sum_of_squares(x, count) - want) <= 1e-13 * want);
        free(x);
    }
    /* Squares beyond float's range are summed in double. */
    float large[2] = {1e30f, 1e30f};
    assert_true(fabs(rrfp_sum_of_squares(large, 2) / 2e60 - 1.0) < 1e-6);
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void test_bf16_known(void **unused)
{
    (void)unused;
    static const struct {
        uint32_t from;
        uint16_t to;
    } known[] = {
        {0x3F800000, 0x3F80}, /* 1 */
        {0x80000000, 0x8000}, /* -0 */
        {0x3F808000, 0x3F80}, /* tie, kept place even: down */
        {0x3F818000, 0x3F82}, /* tie, kept place odd: up */
        {0x3F808001, 0x3F81}, /* just above the tie */
        {0x3F817FFF, 0x3F81}, /* just below the tie */
        {0x3FFFFFFF, 0x4000}, /* carry into the exponent */
        {0x7F7FFFFF, 0x7F80}, /* the largest float rounds to infinity */
        {0x7F800000, 0x7F80}, /* infinity */
        {0xFF800000, 0xFF80},
        {0x00000001, 0x0000}, /* subnormals */
        {0x00018000, 0x0002},
        {0x7FC00000, 0x7FC0}, /* NaN */
        {0x7F800001, 0x7FC0}, /* NaN whose payload is dropped */
        {0xFFFFFFFF, 0xFFFF}, /* NaN that rounding would carry to zero */
    };
    enum { COUNT = sizeof known / sizeof *known };
    float x[COUNT];
    uint16_t y[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        x[i] = float_of(known[i].from);
    rrfp_bf16_from_float(x, y, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(y[i], known[i].to);
}

/* Every bfloat16 survives the way up and down. */
static void test_bf16_round_trip(void **unused)
{
    (void)unused;
    static uint16_t all[65536], back[65536];
    static float wide[65536];
    for (uint32_t i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    rrfp_bf16_to_float(all, wide, 65536);
    rrfp_bf16_from_float(wide, back, 65536);
    for (uint32_t i = 0; i < 65536; i++) {
        assert_int_equal(bits_of(wide[i]), i << 16);
        if (isnan(wide[i]))
            assert_true((back[i] & 0x7FFF) > 0x7F80);
        else
            assert_int_equal(back[i], i);
    }
}

int main(void)
{
    rrfp_kernels_thread_init(1);
    print_message("seed %d\n", TEST_SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dropout),        cmocka_unit_test(test_dropout_zero_and_key),
        cmocka_unit_test(test_add),            cmocka_unit_test(test_sum_of_squares),
        cmocka_unit_test(test_bf16_known),     cmocka_unit_test(test_bf16_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
