/* stage_orders.c - lists, fixed orders and bounded overtaking, worked out by hand. */
#include "support/script.h"

static void test_list_takes_first_ready(void **state)
{
    (void)state;
    script x = script_make(2, 1, 3, 1, RRFP_RULE_LIST);
    script_order(&x, "F0.0 BW0.0 F0.1 BW0.1 F0.2 BW0.2");
    expect_begin(&x, "idle:input-f");
    expect_input(&x, "F0.2", "F0.2*");
    expect_input(&x, "F0.0", "");
    expect_end(&x, "F0.2", "F0.0");
    expect_end(&x, "F0.0", "BW0.0");
    expect_end(&x, "BW0.0", "-aF0.0 -rF0.0 >B0.0@0.0 B0.2*"); /* W(2) waits for W(1) */
    expect_end(&x, "B0.2", "-aF0.2 >B0.2@0.0 idle:input-f");
    expect_input(&x, "F0.1", "F0.1");
    expect_end(&x, "F0.1", "BW0.1");
    expect_end(&x, "BW0.1", "-aF0.1 -rF0.1 >B0.1@0.0 W0.2");
    expect_end(&x, "W0.2", "-rF0.2 idle:drain");
    expect_sent(&x, "B0.0", "-oB0.0 idle:drain");
    expect_sent(&x, "B0.2", "-oB0.2 idle:drain");
    expect_sent(&x, "B0.1", "-oB0.1 done");
    script_finish(&x);
}

/* In a list W has its own rank, before a later F. */
static void test_list_ranks_w(void **state)
{
    (void)state;
    script x = script_make(1, 1, 2, 0, RRFP_RULE_LIST);
    x.config.split_backward = true;
    script_order(&x, "F0.0 B0.0 W0.0 F0.1 B0.1 W0.1");
    expect_begin(&x, "F0.0");
    expect_end(&x, "F0.0", "B0.0");
    expect_end(&x, "B0.0", "-aF0.0 W0.0");
    expect_end(&x, "W0.0", "-rF0.0 F0.1");
    expect_end(&x, "F0.1", "B0.1");
    expect_end(&x, "B0.1", "-aF0.1 W0.1");
    expect_end(&x, "W0.1", "-rF0.1 done");
    script_finish(&x);
}

static void test_fixed_waits(void **state)
{
    (void)state;
    script x = script_make(2, 1, 3, 1, RRFP_RULE_LIST);
    x.config.hint_distance = 0;
    script_order(&x, "F0.0 BW0.0 F0.1 BW0.1 F0.2 BW0.2");
    expect_begin(&x, "idle:input-f");
    expect_input(&x, "F0.2", "idle:order");
    expect_input(&x, "F0.0", "F0.0");
    expect_end(&x, "F0.0", "BW0.0");
    expect_end(&x, "BW0.0", "-aF0.0 -rF0.0 >B0.0@0.0 idle:order");
    expect_input(&x, "F0.1", "F0.1");
    expect_end(&x, "F0.1", "BW0.1");
    expect_end(&x, "BW0.1", "-aF0.1 -rF0.1 >B0.1@0.0 F0.2");
    expect_end(&x, "F0.2", "BW0.2");
    expect_end(&x, "BW0.2", "-aF0.2 -rF0.2 >B0.2@0.0 idle:drain");
    assert_int_equal(rrfp_stage_get_counters(x.stage)->out_of_hint, 0);
    script_finish(&x);
}

/* One entry may be overtaken, two may not. */
static void test_distance_one(void **state)
{
    (void)state;
    script x = script_make(2, 1, 3, 1, RRFP_RULE_LIST);
    x.config.hint_distance = 1;
    script_order(&x, "F0.0 F0.1 BW0.0 BW0.1 F0.2 BW0.2");
    expect_begin(&x, "idle:input-f");
    expect_input(&x, "F0.2", "idle:order");
    expect_input(&x, "F0.1", "F0.1*");
    expect_end(&x, "F0.1", "idle:order"); /* window: F0.0 BW0.0; BW0.1 and F0.2 are ready */
    expect_input(&x, "F0.0", "F0.0");
    expect_end(&x, "F0.0", "BW0.0");
    script_finish(&x);
}

/*
 * max_inflight 2, order F0 F1 BW0 F2 BW1 BW2: at BW0 both slots are taken, so F2
 * may not come before it though it is within the distance.
 */
static void test_overtaking_keeps_the_rest_possible(void **state)
{
    (void)state;
    script x = script_make(2, 1, 3, 0, RRFP_RULE_LIST);
    x.config.hint_distance = 3;
    x.config.budget.max_inflight = 2;
    script_order(&x, "F0.0 F0.1 BW0.0 F0.2 BW0.1 BW0.2");
    expect_begin(&x, "F0.0");
    expect_end(&x, "F0.0", ">F0.0@1.0 F0.1");
    expect_end(&x, "F0.1", ">F0.1@1.0 idle:budget");
    expect_input(&x, "B0.1", "B0.1*"); /* frees a slot; its W keeps the place of BW0.1 */
    expect_end(&x, "B0.1", "-aF0.1 F0.2*");
    expect_input(&x, "B0.0", "");
    expect_end(&x, "F0.2", ">F0.2@1.0 BW0.0");
    expect_end(&x, "BW0.0", "-aF0.0 -rF0.0 W0.1");
    expect_end(&x, "W0.1", "-rF0.1 idle:input-b");
    script_finish(&x);
}

/* Evaluation holds nothing between tasks: one slot never forbids overtaking. */
static void test_overtaking_forward_only(void **state)
{
    (void)state;
    script x = script_make(2, 1, 3, 1, RRFP_RULE_LIST);
    x.config.forward_only = true;
    x.config.hint_distance = 1;
    x.config.budget.max_inflight = 1;
    script_order(&x, "F0.0 BW0.0 F0.1 BW0.1 F0.2 BW0.2"); /* the backwards are ignored */
    expect_begin(&x, "idle:input-f");
    expect_input(&x, "F0.2", "idle:order");
    expect_input(&x, "F0.1", "F0.1*");
    expect_end(&x, "F0.1", "-aF0.1 -rF0.1 F0.2*");
    expect_end(&x, "F0.2", "-aF0.2 -rF0.2 idle:input-f");
    expect_input(&x, "F0.0", "F0.0");
    expect_end(&x, "F0.0", "-aF0.0 -rF0.0 done");
    script_finish(&x);
}

/* Within the window a dynamic rule ranks: B first here, though F is earlier. */
static void test_rule_in_window(void **state)
{
    (void)state;
    script x = script_make(1, 1, 2, 0, RRFP_RULE_B_PRIO);
    x.config.hint_distance = 1;
    script_order(&x, "F0.0 F0.1 BW0.0 BW0.1");
    expect_begin(&x, "F0.0");
    expect_end(&x, "F0.0", "BW0.0*");
    expect_end(&x, "BW0.0", "-aF0.0 -rF0.0 F0.1");
    script_finish(&x);
}

/* The W entries of a chunk are places: sums stay in microbatch order. */
static void test_w_places(void **state)
{
    (void)state;
    script x = script_make(1, 1, 2, 0, RRFP_RULE_LIST);
    x.config.split_backward = true;
    x.config.hint_distance = 0;
    script_order(&x, "F0.0 F0.1 B0.1 W0.1 B0.0 W0.0");
    expect_begin(&x, "F0.0");
    expect_end(&x, "F0.0", "F0.1");
    expect_end(&x, "F0.1", "B0.1");
    expect_end(&x, "B0.1", "-aF0.1 B0.0");
    expect_end(&x, "B0.0", "-aF0.0 W0.0");
    expect_end(&x, "W0.0", "-rF0.0 W0.1");
    expect_end(&x, "W0.1", "-rF0.1 done");
    assert_int_equal(rrfp_stage_get_counters(x.stage)->peak_pending_w, 2);
    script_finish(&x);

    x.config.budget.max_pending_w = 1;
    expect_refused(&x, RRFP_ERR_INFEASIBLE,
                   "entry 5 of the committed order, B of chunk 0, microbatch 0, does not fit "
                   "max_pending_w 1; the order needs 2");

    x.config.accumulate = RRFP_ACCUMULATE_ARRIVAL; /* as it is written */
    expect_begin(&x, "F0.0");
    expect_end(&x, "F0.0", "F0.1");
    expect_end(&x, "F0.1", "B0.1");
    expect_end(&x, "B0.1", "-aF0.1 W0.1");
    script_finish(&x);
}

/* A fused backward out of turn: B now, W right behind the BW before it. */
static void test_fused_out_of_turn(void **state)
{
    (void)state;
    script x = script_make(1, 1, 3, 0, RRFP_RULE_LIST);
    x.config.hint_distance = 0;
    script_order(&x, "F0.0 F0.1 BW0.1 BW0.0 F0.2 BW0.2");
    expect_begin(&x, "F0.0");
    expect_end(&x, "F0.0", "F0.1");
    expect_end(&x, "F0.1", "B0.1");
    expect_end(&x, "B0.1", "-aF0.1 BW0.0");
    expect_end(&x, "BW0.0", "-aF0.0 -rF0.0 W0.1");
    expect_end(&x, "W0.1", "-rF0.1 F0.2");
    script_finish(&x);
}

static void test_refused_orders(void **state)
{
    (void)state;
    script x = script_make(2, 1, 2, 0, RRFP_RULE_LIST);
    expect_refused(&x, RRFP_ERR_INVALID, "the list rule needs an order");
    x.config.hint_distance = 0;
    expect_refused(&x, RRFP_ERR_INVALID, "a finite hint_distance needs an order");
    script_order(&x, "F0.0 BW0.0 F0.1");
    expect_refused(&x, RRFP_ERR_INVALID, "lacks BW of chunk 0, microbatch 1");
    script_order(&x, "F0.0 BW0.0 F0.1 F0.0 BW0.1");
    expect_refused(&x, RRFP_ERR_INVALID, "entry 4 of the order repeats F of chunk 0, microbatch 0");
    script_order(&x, "F0.0 B0.0 F0.1 BW0.1");
    expect_refused(&x, RRFP_ERR_INVALID, "entry 2 of the order has kind B");
    script_order(&x, "F0.0 BW0.0 F0.2 BW0.2");
    expect_refused(&x, RRFP_ERR_INVALID, "entry 3 of the order is F of chunk 0, microbatch 2");
    script_order(&x, "F0.0 BW0.1 F0.1 BW0.0");
    expect_refused(&x, RRFP_ERR_INFEASIBLE,
                   "entry 2 of the committed order, BW of chunk 0, microbatch 1, comes before F of "
                   "chunk 0, microbatch 1");
    script_order(&x, "F0.0 F0.1 BW0.0 BW0.1");
    x.config.budget.max_inflight = 1;
    expect_refused(&x, RRFP_ERR_INFEASIBLE,
                   "entry 2 of the committed order, F of chunk 0, microbatch 1, does not fit "
                   "max_inflight 1; the order needs 2");
    x.config.budget.max_inflight = 2;
    const uint64_t activation = 10;
    x.config.activation_bytes = &activation;
    x.config.budget.max_inflight_bytes = 19;
    expect_refused(&x, RRFP_ERR_INFEASIBLE, "max_inflight_bytes 19; the order needs 20");
    script y = script_make(1, 2, 1, 0, RRFP_RULE_LIST);
    y.config.hint_distance = 4;
    script_order(&y, "F0.0 F1.0 BW0.0 BW1.0");
    expect_refused(&y, RRFP_ERR_INFEASIBLE,
                   "entry 3 of the committed order, BW of chunk 0, microbatch 0, comes before BW "
                   "of chunk 1, microbatch 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_takes_first_ready),
        cmocka_unit_test(test_list_ranks_w),
        cmocka_unit_test(test_fixed_waits),
        cmocka_unit_test(test_distance_one),
        cmocka_unit_test(test_overtaking_keeps_the_rest_possible),
        cmocka_unit_test(test_overtaking_forward_only),
        cmocka_unit_test(test_rule_in_window),
        cmocka_unit_test(test_w_places),
        cmocka_unit_test(test_fused_out_of_turn),
        cmocka_unit_test(test_refused_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
