/* stage_rules.c - dispatch of the dynamic rules, sequences worked out by hand. */
#include "support/script.h"

/* A middle stage with F(0), F(1) run, B(0) arriving while F(1) runs. */
static void reach_two_forwards(script *x)
{
    expect_begin(x, "idle:input-f");
    expect_input(x, "F0.0", "F0.0");
    expect_input(x, "F0.1", "");
    expect_input(x, "F0.2", "");
    expect_input(x, "F0.3", "");
    expect_end(x, "F0.0", ">F0.0@2.0 F0.1");
    expect_input(x, "B0.0", "");
}

static void test_bf_alternates(void **state)
{
    (void)state;
    static const rrfp_rule rules[] = {RRFP_RULE_BF, RRFP_RULE_FB}; /* equal while both are ready */
    for (int i = 0; i < 2; i++) {
        script x = script_make(3, 1, 4, 1, rules[i]);
        reach_two_forwards(&x);
        expect_end(&x, "F0.1", ">F0.1@2.0 BW0.0");
        expect_input(&x, "B0.1", "");
        expect_end(&x, "BW0.0", "-aF0.0 -rF0.0 >B0.0@0.0 F0.2");
        expect_end(&x, "F0.2", ">F0.2@2.0 BW0.1");
        expect_end(&x, "BW0.1", "-aF0.1 -rF0.1 >B0.1@0.0 F0.3");
        expect_end(&x, "F0.3", ">F0.3@2.0 idle:input-b");
        expect_input(&x, "B0.3", "B0.3*"); /* not its turn: W is owed */
        expect_end(&x, "B0.3", "-aF0.3 >B0.3@0.0 idle:input-b");
        expect_input(&x, "B0.2", "BW0.2");
        expect_end(&x, "BW0.2", "-aF0.2 -rF0.2 >B0.2@0.0 W0.3");
        expect_end(&x, "W0.3", "-rF0.3 idle:drain");
        script_finish(&x);
    }
}

static void test_b_prio(void **state)
{
    (void)state;
    script x = script_make(3, 1, 4, 1, RRFP_RULE_B_PRIO);
    reach_two_forwards(&x);
    expect_end(&x, "F0.1", ">F0.1@2.0 BW0.0");
    expect_input(&x, "B0.1", "");
    expect_end(&x, "BW0.0", "-aF0.0 -rF0.0 >B0.0@0.0 BW0.1");
    expect_end(&x, "BW0.1", "-aF0.1 -rF0.1 >B0.1@0.0 F0.2");
    script_finish(&x);
}

static void test_f_prio(void **state)
{
    (void)state;
    script x = script_make(3, 1, 4, 1, RRFP_RULE_F_PRIO);
    reach_two_forwards(&x);
    expect_end(&x, "F0.1", ">F0.1@2.0 F0.2");
    expect_end(&x, "F0.2", ">F0.2@2.0 F0.3");
    expect_end(&x, "F0.3", ">F0.3@2.0 BW0.0");
    script_finish(&x);
}

/* F(0), F(1) run, B(0) run, W(0) fills the gap; then B(1) and F(2) are both ready. */
static void reach_gap(script *x)
{
    expect_begin(x, "idle:input-f");
    expect_input(x, "F0.0", "F0.0");
    expect_input(x, "F0.1", "");
    expect_end(x, "F0.0", ">F0.0@2.0 F0.1");
    expect_end(x, "F0.1", ">F0.1@2.0 idle:input-f");
    expect_input(x, "B0.0", "B0.0");
    expect_end(x, "B0.0", "-aF0.0 >B0.0@0.0 W0.0");
    expect_input(x, "F0.2", "");
    expect_input(x, "B0.1", "");
}

static void test_bfw_fills_gaps(void **state)
{
    (void)state;
    script x = script_make(3, 1, 3, 1, RRFP_RULE_BFW);
    reach_gap(&x);
    expect_end(&x, "W0.0", "-rF0.0 B0.1"); /* a new round begins with B */
    expect_end(&x, "B0.1", "-aF0.1 >B0.1@0.0 F0.2");
    expect_end(&x, "F0.2", ">F0.2@2.0 W0.1");
    expect_input(&x, "B0.2", "");
    expect_end(&x, "W0.1", "-rF0.1 B0.2");
    expect_end(&x, "B0.2", "-aF0.2 >B0.2@0.0 W0.2");
    expect_end(&x, "W0.2", "-rF0.2 idle:drain");
    script_finish(&x);
}

static void test_fb_round_begins_with_f(void **state)
{
    (void)state;
    script x = script_make(3, 1, 3, 1, RRFP_RULE_FB);
    x.config.split_backward = true;
    reach_gap(&x);
    expect_end(&x, "W0.0", "-rF0.0 F0.2");
    expect_end(&x, "F0.2", ">F0.2@2.0 B0.1");
    script_finish(&x);
}

/* One stage, two chunks: F from the small chunk, B from the large one; all is delivered. */
static void test_chunks_on_one_stage(void **state)
{
    (void)state;
    script x = script_make(1, 2, 2, 0, RRFP_RULE_BF);
    expect_begin(&x, "F0.0");
    expect_end(&x, "F0.0", "=F0.0@1 F0.1");
    expect_end(&x, "F0.1", "=F0.1@1 F1.0");
    expect_end(&x, "F1.0", "-oF0.0 BW1.0");
    expect_end(&x, "BW1.0", "-aF1.0 -rF1.0 =B1.0@0 F1.1");
    expect_end(&x, "F1.1", "-oF0.1 BW1.1");
    expect_end(&x, "BW1.1", "-aF1.1 -rF1.1 =B1.1@0 BW0.0");
    expect_end(&x, "BW0.0", "-oB1.0 -aF0.0 -rF0.0 BW0.1");
    expect_end(&x, "BW0.1", "-oB1.1 -aF0.1 -rF0.1 done");
    script_finish(&x);
}

/* V placement, two stages: pieces 0 and 3 on stage 0, 1 and 2 on stage 1. */
static void test_v_placement(void **state)
{
    (void)state;
    script x = script_make(2, 2, 1, 1, RRFP_RULE_BF);
    x.config.shape.placement = RRFP_PLACEMENT_V;
    expect_begin(&x, "idle:input-f");
    expect_input(&x, "F0.0", "F0.0");
    expect_end(&x, "F0.0", "=F0.0@1 F1.0");
    expect_end(&x, "F1.0", "-oF0.0 >F1.0@0.1 idle:input-b");
    expect_input(&x, "B1.0", "BW1.0");
    expect_end(&x, "BW1.0", "-aF1.0 -rF1.0 =B1.0@0 BW0.0");
    expect_sent(&x, "F1.0", "-oF1.0");
    expect_end(&x, "BW0.0", "-oB1.0 -aF0.0 -rF0.0 >B0.0@0.0 idle:drain");
    expect_sent(&x, "B0.0", "-oB0.0 done");
    script_finish(&x);
}

static void test_arrival_overtakes(void **state)
{
    (void)state;
    script x = script_make(2, 1, 3, 1, RRFP_RULE_BFW);
    x.config.accumulate = RRFP_ACCUMULATE_ARRIVAL;
    expect_begin(&x, "idle:input-f");
    expect_input(&x, "F0.2", "F0.2*");
    expect_end(&x, "F0.2", "B0.2*");
    expect_end(&x, "B0.2", "-aF0.2 >B0.2@0.0 W0.2*");
    expect_input(&x, "F0.1", "");
    expect_input(&x, "F0.0", "");
    expect_end(&x, "W0.2", "-rF0.2 F0.0");
    assert_int_equal(rrfp_stage_get_counters(x.stage)->dispatches, 4);
    assert_int_equal(rrfp_stage_get_counters(x.stage)->out_of_hint, 3);
    script_finish(&x);
}

static void test_forward_only(void **state)
{
    (void)state;
    script x = script_make(2, 1, 2, 0, RRFP_RULE_BF);
    x.config.forward_only = true;
    x.config.budget.max_inflight = 1;
    expect_begin(&x, "F0.0");
    expect_end(&x, "F0.0", "-aF0.0 -rF0.0 >F0.0@1.0 F0.1");
    expect_end(&x, "F0.1", "-aF0.1 -rF0.1 >F0.1@1.0 idle:drain");
    expect_sent(&x, "F0.1", "-oF0.1 idle:drain");
    expect_sent(&x, "F0.0", "-oF0.0 done");
    script_finish(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf_alternates),
        cmocka_unit_test(test_b_prio),
        cmocka_unit_test(test_f_prio),
        cmocka_unit_test(test_bfw_fills_gaps),
        cmocka_unit_test(test_fb_round_begins_with_f),
        cmocka_unit_test(test_chunks_on_one_stage),
        cmocka_unit_test(test_v_placement),
        cmocka_unit_test(test_arrival_overtakes),
        cmocka_unit_test(test_forward_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
