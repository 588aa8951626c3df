/* stage_budgets.c - backpressure, pending W and bytes, worked out by hand. */
#include "support/script.h"

static void test_backpressure(void **state)
{
    (void)state;
    script x = script_make(2, 1, 3, 0, RRFP_RULE_BF);
    x.config.budget.max_inflight = 1;
    expect_begin(&x, "F0.0");
    expect_end(&x, "F0.0", ">F0.0@1.0 idle:budget");
    expect_sent(&x, "F0.0", "-oF0.0 idle:budget");
    expect_input(&x, "B0.0", "BW0.0");
    expect_end(&x, "BW0.0", "-aF0.0 -rF0.0 F0.1");
    assert_int_equal(rrfp_stage_get_counters(x.stage)->peak_inflight, 1);
    script_finish(&x);
}

/* Two chunks, two slots: F(0,1) would leave none for F(1,0) of the oldest. */
static void test_slots_kept_for_the_oldest(void **state)
{
    (void)state;
    script x = script_make(2, 2, 2, 0, RRFP_RULE_BF);
    x.config.budget.max_inflight = 1;
    expect_begin(&x, "F0.0");
    expect_end(&x, "F0.0", ">F0.0@1.0 idle:budget");
    expect_input(&x, "F1.0", "F1.0");
    expect_end(&x, "F1.0", ">F1.0@1.1 idle:budget");
    expect_input(&x, "B1.0", "BW1.0");
    expect_end(&x, "BW1.0", "-aF1.0 -rF1.0 >B1.0@1.0 F0.1"); /* 0 will give back one more */
    expect_end(&x, "F0.1", ">F0.1@1.0 idle:input-f");
    script_finish(&x);
}

/*
 * Three chunks, three slots, on one stage.  Microbatch 2 may not take the slot that
 * microbatch 0 gives back: after F(0,1), 1 needs two more and 0 gives back two.
 */
static void test_slots_kept_for_the_next_oldest(void **state)
{
    (void)state;
    script x = script_make(1, 3, 3, 0, RRFP_RULE_F_PRIO);
    x.config.budget.max_inflight = 1;
    expect_begin(&x, "F0.0");
    expect_end(&x, "F0.0", "=F0.0@1 F1.0");
    expect_end(&x, "F1.0", "-oF0.0 =F1.0@2 F2.0");
    expect_end(&x, "F2.0", "-oF1.0 BW2.0");
    expect_end(&x, "BW2.0", "-aF2.0 -rF2.0 =B2.0@1 F0.1");
    expect_end(&x, "F0.1", "=F0.1@1 BW1.0"); /* F(0,2), F(1,1): no slot is free */
    expect_end(&x, "BW1.0", "-oB2.0 -aF1.0 -rF1.0 =B1.0@0 F1.1"); /* not F(0,2) */
    script_finish(&x);
}

/* One of two pending-W slots is for the B whose W can run next. */
static void test_pending_w_kept_for_the_oldest(void **state)
{
    (void)state;
    script x = script_make(2, 1, 3, 0, RRFP_RULE_BFW);
    x.config.budget.max_pending_w = 2;
    expect_begin(&x, "F0.0");
    expect_end(&x, "F0.0", ">F0.0@1.0 F0.1");
    expect_end(&x, "F0.1", ">F0.1@1.0 F0.2");
    expect_end(&x, "F0.2", ">F0.2@1.0 idle:input-b");
    expect_input(&x, "B0.2", "B0.2*");
    expect_end(&x, "B0.2", "-aF0.2 idle:input-b");
    expect_input(&x, "B0.1", "idle:budget");
    expect_input(&x, "B0.0", "B0.0");
    expect_end(&x, "B0.0", "-aF0.0 W0.0"); /* B(1) is ready: W makes room for it */
    expect_end(&x, "W0.0", "-rF0.0 B0.1");
    expect_end(&x, "B0.1", "-aF0.1 W0.1");
    expect_end(&x, "W0.1", "-rF0.1 W0.2");
    expect_end(&x, "W0.2", "-rF0.2 idle:drain");
    assert_int_equal(rrfp_stage_get_counters(x.stage)->peak_pending_w, 2);
    script_finish(&x);
}

/* W takes the rank of the B it makes room for, before an F that ranks lower. */
static void test_w_makes_room_before_f(void **state)
{
    (void)state;
    script x = script_make(2, 1, 3, 0, RRFP_RULE_B_PRIO);
    x.config.split_backward = true;
    x.config.budget.max_inflight = 2;
    x.config.budget.max_pending_w = 1;
    expect_begin(&x, "F0.0");
    expect_end(&x, "F0.0", ">F0.0@1.0 F0.1");
    expect_input(&x, "B0.0", "");
    expect_end(&x, "F0.1", ">F0.1@1.0 B0.0");
    expect_input(&x, "B0.1", "");
    expect_end(&x, "B0.0", "-aF0.0 W0.0"); /* F(2) fits too */
    expect_end(&x, "W0.0", "-rF0.0 B0.1");
    script_finish(&x);

    x.config.rule = RRFP_RULE_LIST;
    script_order(&x, "F0.0 F0.1 B0.0 B0.1 F0.2 B0.2 W0.0 W0.1 W0.2");
    expect_begin(&x, "F0.0");
    expect_end(&x, "F0.0", ">F0.0@1.0 F0.1");
    expect_input(&x, "B0.0", "");
    expect_end(&x, "F0.1", ">F0.1@1.0 B0.0");
    expect_input(&x, "B0.1", "");
    expect_end(&x, "B0.0", "-aF0.0 W0.0*");
    expect_end(&x, "W0.0", "-rF0.0 B0.1");
    script_finish(&x);
}

/* Owed W count as pending; the BW in turn needs no slot. */
static void test_owed_w(void **state)
{
    (void)state;
    script x = script_make(2, 1, 3, 0, RRFP_RULE_BF);
    x.config.budget.max_pending_w = 1;
    expect_begin(&x, "F0.0");
    expect_end(&x, "F0.0", ">F0.0@1.0 F0.1");
    expect_end(&x, "F0.1", ">F0.1@1.0 F0.2");
    expect_end(&x, "F0.2", ">F0.2@1.0 idle:input-b");
    expect_input(&x, "B0.1", "B0.1*");
    assert_int_equal(rrfp_stage_get_counters(x.stage)->pending_w, 1);
    expect_end(&x, "B0.1", "-aF0.1 idle:input-b");
    expect_input(&x, "B0.2", "idle:budget");
    assert_true(rrfp_stage_is_ready(x.stage, script_task("BW0.2")));
    assert_false(rrfp_stage_is_ready(x.stage, script_task("W0.1")));
    expect_input(&x, "B0.0", "BW0.0");
    expect_end(&x, "BW0.0", "-aF0.0 -rF0.0 W0.1"); /* makes room for B(2) */
    expect_end(&x, "W0.1", "-rF0.1 BW0.2");        /* whose turn it now is */
    expect_end(&x, "BW0.2", "-aF0.2 -rF0.2 idle:drain");
    script_finish(&x);
}

/* 10 bytes until B ends, 5 until W ends; 20 bytes hold one whole and one kept. */
static void test_bytes(void **state)
{
    (void)state;
    const uint64_t activation = 10;
    const uint64_t retained = 5;
    script x = script_make(2, 1, 2, 0, RRFP_RULE_BFW);
    x.config.activation_bytes = &activation;
    x.config.retained_bytes = &retained;
    x.config.budget.max_inflight_bytes = 20;
    expect_begin(&x, "F0.0");
    expect_end(&x, "F0.0", ">F0.0@1.0 idle:budget");
    expect_input(&x, "B0.0", "B0.0");
    assert_int_equal(rrfp_stage_get_counters(x.stage)->live_bytes, 15);
    expect_end(&x, "B0.0", "-aF0.0 F0.1");
    assert_int_equal(rrfp_stage_get_counters(x.stage)->live_bytes, 20);
    expect_end(&x, "F0.1", ">F0.1@1.0 W0.0");
    expect_end(&x, "W0.0", "-rF0.0 idle:input-b");
    assert_int_equal(rrfp_stage_get_counters(x.stage)->live_bytes, 15);
    assert_int_equal(rrfp_stage_get_counters(x.stage)->peak_live_bytes, 20);
    script_finish(&x);
}

static void test_least_bytes(void **state)
{
    (void)state;
    const uint64_t activation[] = {100, 200};
    const uint64_t retained[] = {10, 20};
    script x = script_make(2, 2, 4, 0, RRFP_RULE_BF);
    x.config.activation_bytes = activation;
    x.config.retained_bytes = retained;
    x.config.budget.max_inflight_bytes = 329;
    expect_refused(&x, RRFP_ERR_INFEASIBLE,
                   "max_inflight_bytes 329 is less than one microbatch takes; it must be at least "
                   "330");
    x.config.budget.max_inflight_bytes = 330;
    expect_begin(&x, "F0.0");
    script_finish(&x);
    const uint64_t huge[] = {UINT64_MAX, 1};
    x.config.activation_bytes = huge;
    expect_refused(&x, RRFP_ERR_INVALID, "too large to count");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backpressure),
        cmocka_unit_test(test_slots_kept_for_the_oldest),
        cmocka_unit_test(test_slots_kept_for_the_next_oldest),
        cmocka_unit_test(test_pending_w_kept_for_the_oldest),
        cmocka_unit_test(test_w_makes_room_before_f),
        cmocka_unit_test(test_owed_w),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_least_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
