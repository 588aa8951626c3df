/* task_shape.c - who owns which piece of the model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "rrfp/stage.h"

static void test_looped(void **state)
{
    (void)state;
    const rrfp_shape shape = {.stages = 4, .chunks = 3, .microbatches = 1};
    assert_int_equal(rrfp_shape_global_chunk(&shape, 0, 0), 0);
    assert_int_equal(rrfp_shape_global_chunk(&shape, 3, 0), 3);
    assert_int_equal(rrfp_shape_global_chunk(&shape, 0, 1), 4);
    assert_int_equal(rrfp_shape_global_chunk(&shape, 2, 2), 10);
}

static void test_v(void **state)
{
    (void)state;
    const rrfp_shape shape = {
        .stages = 4, .chunks = 2, .microbatches = 1, .placement = RRFP_PLACEMENT_V};
    static const uint32_t pieces[4][2] = {{0, 7}, {1, 6}, {2, 5}, {3, 4}};
    for (uint32_t s = 0; s < 4; s++) {
        for (uint32_t c = 0; c < 2; c++) {
            assert_int_equal(rrfp_shape_global_chunk(&shape, s, c), pieces[s][c]);
        }
    }
}

static void test_owner_inverts(void **state)
{
    (void)state;
    for (uint32_t P = 1; P <= 5; P++) {
        for (uint32_t V = 1; V <= 3; V++) {
            for (int v_shaped = 0; v_shaped <= (V == 2); v_shaped++) {
                const rrfp_shape shape = {.stages = P,
                                          .chunks = V,
                                          .microbatches = 1,
                                          .placement = (rrfp_placement)v_shaped};
                for (uint32_t g = 0; g < P * V; g++) {
                    uint32_t s = 99;
                    uint32_t c = 99;
                    rrfp_shape_owner(&shape, g, &s, &c);
                    assert_true(s < P && c < V);
                    assert_int_equal(rrfp_shape_global_chunk(&shape, s, c), g);
                }
            }
        }
    }
}

static void test_check(void **state)
{
    (void)state;
    const rrfp_shape good = {.stages = 2, .chunks = 2, .microbatches = 8};
    rrfp_error error;
    rrfp_shape shape = good;
    assert_int_equal(rrfp_shape_check(&shape, &error), RRFP_OK);
    shape.stages = 0;
    assert_int_equal(rrfp_shape_check(&shape, &error), RRFP_ERR_INVALID);
    assert_non_null(strstr(error.text, "stages is 0"));
    shape.stages = RRFP_MAX_STAGES + 1;
    assert_int_equal(rrfp_shape_check(&shape, NULL), RRFP_ERR_INVALID);
    shape = good;
    shape.chunks = RRFP_MAX_CHUNKS + 1;
    assert_int_equal(rrfp_shape_check(&shape, &error), RRFP_ERR_INVALID);
    assert_non_null(strstr(error.text, "chunks per stage is 65"));
    shape = good;
    shape.microbatches = RRFP_MAX_MICROBATCHES + 1;
    assert_int_equal(rrfp_shape_check(&shape, &error), RRFP_ERR_INVALID);
    assert_non_null(strstr(error.text, "65537"));
    shape = good;
    shape.placement = RRFP_PLACEMENT_V;
    assert_int_equal(rrfp_shape_check(&shape, &error), RRFP_OK);
    shape.chunks = 3;
    assert_int_equal(rrfp_shape_check(&shape, &error), RRFP_ERR_INVALID);
    assert_non_null(strstr(error.text, "V placement needs 2 chunks"));
    shape = good;
    shape.placement = (rrfp_placement)5;
    assert_int_equal(rrfp_shape_check(&shape, &error), RRFP_ERR_INVALID);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(rrfp_kind_name(RRFP_F), "F");
    assert_string_equal(rrfp_kind_name(RRFP_B), "B");
    assert_string_equal(rrfp_kind_name(RRFP_W), "W");
    assert_string_equal(rrfp_kind_name(RRFP_BW), "BW");
    assert_string_equal(rrfp_kind_name((rrfp_kind)9), "?");
    for (int reason = 0; reason < RRFP_IDLE_REASON_COUNT; reason++) {
        assert_string_not_equal(rrfp_idle_reason_name((rrfp_idle_reason)reason), "?");
    }
    assert_string_equal(rrfp_idle_reason_name(RRFP_IDLE_REASON_COUNT), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_looped),        cmocka_unit_test(test_v),
        cmocka_unit_test(test_owner_inverts), cmocka_unit_test(test_check),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
