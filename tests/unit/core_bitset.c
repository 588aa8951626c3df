/* core_bitset.c - sets against an array of bool, at sizes around every level. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "core/bitset.h"

static uint32_t next_member(const bool *plain, uint32_t size, uint32_t from)
{
    for (uint32_t i = from; i < size; i++) {
        if (plain[i]) {
            return i;
        }
    }
    return RRFP_BITSET_NONE;
}

static void check_size(uint32_t size, uint32_t rounds)
{
    rrfp_bitset_layout layout = rrfp_bitset_layout_make(size);
    uint64_t *set = calloc(layout.words, sizeof *set);
    bool *plain = calloc(size, sizeof *plain);
    uint64_t seed = size;
    assert_non_null(set);
    assert_non_null(plain);
    assert_int_equal(rrfp_bitset_first(&layout, set), RRFP_BITSET_NONE);
    for (uint32_t i = 0; i < rounds; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint32_t member = i == 0 ? size - 1 : (uint32_t)((seed >> 33) % size);
        if (seed >> 63 || i == 0) {
            rrfp_bitset_add(&layout, set, member);
            plain[member] = true;
        } else {
            uint32_t first = rrfp_bitset_first(&layout, set);
            member = first == RRFP_BITSET_NONE || i % 3 ? member : first;
            rrfp_bitset_remove(&layout, set, member);
            plain[member] = false;
        }
        assert_int_equal(rrfp_bitset_has(set, member), plain[member]);
        assert_int_equal(rrfp_bitset_first(&layout, set), next_member(plain, size, 0));
        assert_int_equal(rrfp_bitset_next(&layout, set, member),
                         next_member(plain, size, member + 1));
    }
    for (uint32_t i = 0; i < size; i++) {
        rrfp_bitset_remove(&layout, set, i);
    }
    for (uint32_t i = 0; i < layout.words; i++) { /* equal sets have equal bytes */
        assert_int_equal(set[i], 0);
    }
    free(set);
    free(plain);
}

static void test_sizes(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 63, 64, 65, 127, 128, 4095, 4096, 4097, 262144, 262145};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        check_size(sizes[i], sizes[i] > 5000 ? 200 : 3000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
