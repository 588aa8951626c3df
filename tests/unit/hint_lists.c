/* The named schedules against orders written by hand and bubbles known in closed form. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/hint_sim.h"

/* Writes "F0 B1" or, with chunks, "F0.1 B1.2" (local chunk first); B is the fused backward. */
static void spell(const rrfp_hint *hint, uint32_t stage, char *text, size_t size)
{
    static const char *const names[] = {"F", "B", "W", "B"};
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < hint->order_counts[stage]; i++) {
        rrfp_task t = hint->orders[stage][i];
        used += (size_t)snprintf(text + used, size - used, "%s%s", i == 0 ? "" : " ",
                                 names[t.kind]);
        if (hint->shape.chunks > 1) {
            used += (size_t)snprintf(text + used, size - used, "%u.", t.chunk);
        }
        used += (size_t)snprintf(text + used, size - used, "%u", t.microbatch);
        assert_true(used < size);
    }
}

static void expect_orders(const char *name, uint32_t stages, uint32_t chunks,
                          uint32_t microbatches, const char *const *expected)
{
    rrfp_hint *hint = NULL;
    rrfp_error error = {0};
    char text[2048];
    assert_int_equal(sim_build(name, stages, chunks, microbatches, RRFP_DISTANCE_UNBOUNDED, 0, 0,
                               &hint, &error),
                     RRFP_OK);
    for (uint32_t s = 0; s < stages; s++) {
        spell(hint, s, text, sizeof text);
        assert_string_equal(text, expected[s]);
    }
    rrfp_hint_destroy(hint);
}

static void test_gpipe(void **state)
{
    (void)state;
    const char *const one[] = {"F0 F1 F2 B0 B1 B2", "F0 F1 F2 B0 B1 B2"};
    const char *const two[] = {"F0.0 F0.1 F1.0 F1.1 B1.0 B1.1 B0.0 B0.1"};
    expect_orders("gpipe", 2, 1, 3, one);
    expect_orders("gpipe", 1, 2, 2, two);
}

static void test_1f1b(void **state)
{
    (void)state;
    const char *const expected[] = {
        "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
    };
    const char *const few[] = {"F0 F1 B0 B1", "F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"};
    expect_orders("1f1b", 4, 1, 8, expected);
    expect_orders("1f1b", 4, 1, 2, few);
}

/* Megatron, P=2 V=2 M=4: warm-up of 2(P-s-1) + (V-1)P = 4 and 2 forwards. */
static void test_interleaved(void **state)
{
    (void)state;
    const char *const expected[] = {
        "F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1 F1.2 B0.0 F1.3 B0.1 B1.2 B1.3 B0.2 B0.3",
        "F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 F0.2 B0.0 F0.3 B0.1 F1.2 B1.2 F1.3 B1.3 B0.2 B0.3",
    };
    expect_orders("interleaved", 2, 2, 4, expected);
}

/* Zero Bubble Pipeline Parallelism, H1: W's of stage s wait for s more B's. */
static void test_zb_h1(void **state)
{
    (void)state;
    const char *const expected[] = {
        "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3",
        "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3",
        "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3",
    };
    expect_orders("zb-h1", 3, 1, 4, expected);
}

static sim_result evaluate(const char *name, uint32_t stages, uint32_t chunks, uint32_t count)
{
    rrfp_hint *hint = NULL;
    rrfp_error error = {0};
    assert_int_equal(
        sim_build(name, stages, chunks, count, RRFP_DISTANCE_UNBOUNDED, 0, 0, &hint, &error),
        RRFP_OK);
    sim_result result = sim_run(hint);
    rrfp_hint_destroy(hint);
    if (!result.feasible) {
        print_error("%s P=%u V=%u M=%u is not feasible\n", name, stages, chunks, count);
    }
    assert_true(result.feasible);
    return result;
}

static void expect_idle(const char *name, uint32_t stages, uint32_t chunks, uint32_t count,
                        bool inside, uint64_t expected)
{
    sim_result result = evaluate(name, stages, chunks, count);
    for (uint32_t s = 0; s < stages; s++) {
        uint64_t idle = inside ? result.inside[s] : result.bubble[s];
        if (idle != expected) {
            print_error("%s P=%u V=%u M=%u stage %u: idle %u, expected %u\n", name, stages, chunks,
                        count, s, (unsigned)idle, (unsigned)expected);
        }
        assert_int_equal(idle, expected);
    }
}

static void test_bubbles(void **state)
{
    (void)state;
    for (uint32_t p = 1; p <= 8; p++) {
        for (uint32_t k = 1; k <= 3; k++) {
            expect_idle("gpipe", p, 1, k * p, false, (uint64_t)(p - 1) * 3);
            expect_idle("1f1b", p, 1, k * p, false, (uint64_t)(p - 1) * 3);
            /* (P-1)(F+B)/V, a chunk's F and B being 1/V of the stage's */
            expect_idle("interleaved", p, 2, k * p, false, (uint64_t)(p - 1) * 3);
            expect_idle("interleaved", p, 3, k * p, false, (uint64_t)(p - 1) * 3);
            expect_idle("zb-h1", p, 1, k * p, false, (uint64_t)(p - 1));
        }
        for (uint32_t more = 0; more <= 4; more++) {
            expect_idle("zb-h2", p, 1, 2 * p - 1 + more, true, 0);
            expect_idle("zb-v", p, 2, 2 * p + more, true, 0);
        }
    }
}

static void test_memory(void **state)
{
    (void)state;
    for (uint32_t p = 1; p <= 8; p++) {
        for (uint32_t m = 1; m <= 17; m += 2) {
            sim_result f1b = evaluate("1f1b", p, 1, m), h1 = evaluate("zb-h1", p, 1, m);
            sim_result h2 = evaluate("zb-h2", p, 1, m), zbv = evaluate("zb-v", p, 2, m);
            sim_result eager = evaluate("eager-1f1b", p, 1, m);
            for (uint32_t s = 0; s < p; s++) {
                uint32_t plain = p - s < m ? p - s : m, deep = 2 * (p - s) - 1;
                deep = deep < m ? deep : m;
                assert_int_equal(f1b.peak[s], plain);
                assert_int_equal(h1.peak[s], plain);
                assert_int_equal(h2.peak[s], deep);
                assert_int_equal(eager.peak[s], deep);
                assert_true(zbv.peak[s] <= 2 * p);
            }
        }
    }
}

static void test_requests(void **state)
{
    (void)state;
    rrfp_hint *hint = NULL;
    rrfp_error error = {0};
    assert_int_equal(sim_build("zb-v", 2, 1, 4, 0, 0, 0, &hint, &error), RRFP_ERR_INFEASIBLE);
    assert_non_null(strstr(error.text, "zb-v needs --virtual-stages 2, not 1"));
    assert_int_equal(sim_build("1f2b", 2, 1, 4, 0, 0, 0, &hint, &error), RRFP_ERR_INVALID);
    assert_non_null(strstr(error.text, "\"1f2b\" is unknown"));
    assert_int_equal(sim_build("1f1b", 2, 1, 0, 0, 0, 0, &hint, &error), RRFP_ERR_INVALID);
    /* Automatic budget: ceil(1.5 P) = 6, or what the list needs. */
    assert_int_equal(
        sim_build("bf", 4, 1, 32, RRFP_DISTANCE_UNBOUNDED, 0, 0, &hint, &error), RRFP_OK);
    assert_null(hint->orders);
    assert_int_equal(hint->budgets[3].max_inflight, 6);
    rrfp_hint_destroy(hint);
    assert_int_equal(
        sim_build("gpipe", 4, 1, 32, RRFP_DISTANCE_UNBOUNDED, 0, 0, &hint, &error), RRFP_OK);
    assert_int_equal(hint->budgets[3].max_inflight, 32);
    assert_false(hint->adapted);
    rrfp_hint_destroy(hint);
    assert_int_equal(sim_build("gpipe", 4, 1, 32, 0, 2, 0, &hint, &error), RRFP_OK);
    assert_true(hint->adapted);
    rrfp_hint_destroy(hint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpipe),       cmocka_unit_test(test_1f1b),
        cmocka_unit_test(test_interleaved), cmocka_unit_test(test_zb_h1),
        cmocka_unit_test(test_bubbles),     cmocka_unit_test(test_memory),
        cmocka_unit_test(test_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
