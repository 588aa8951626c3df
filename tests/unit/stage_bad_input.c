/* stage_bad_input.c - events and configurations that cannot be: a clear line, no change. */
#include "support/script.h"

static void expect_bad(script *x, rrfp_event_kind kind, rrfp_task task, const char *text)
{
    size_t bytes = rrfp_stage_snapshot_bytes(x->stage);
    uint8_t *before = malloc(2 * bytes);
    rrfp_action actions[RRFP_MAX_ACTIONS];
    rrfp_event event = {.kind = kind, .task = task};
    rrfp_error error = {.text = ""};
    size_t count = 99;
    assert_non_null(before);
    rrfp_stage_snapshot(x->stage, before);
    assert_int_equal(rrfp_stage_handle(x->stage, &event, actions, &count, &error),
                     RRFP_ERR_INVALID);
    rrfp_stage_snapshot(x->stage, before + bytes);
    assert_memory_equal(before, before + bytes, bytes);
    assert_int_equal(count, 99);
    if (strstr(error.text, text) == NULL) {
        fail_msg("the line '%s' does not say '%s'", error.text, text);
    }
    free(before);
}

static void bad(script *x, rrfp_event_kind kind, const char *word, const char *text)
{
    expect_bad(x, kind, script_task(word), text);
}

static void test_inputs(void **state)
{
    (void)state;
    script x = script_make(2, 2, 2, 0, RRFP_RULE_BF); /* pieces 0 and 2 of 4 */
    expect_begin(&x, "F0.0");
    bad(&x, RRFP_EVENT_INPUT, "F0.1", "the first chunk takes no activation");
    bad(&x, RRFP_EVENT_INPUT, "F1.0", "F of the chunk before it has not ended here");
    bad(&x, RRFP_EVENT_INPUT, "B0.0", "its F has not ended");
    bad(&x, RRFP_EVENT_INPUT, "W0.0", "only F and B take inputs");
    bad(&x, RRFP_EVENT_INPUT, "F2.0", "there is no such task");
    bad(&x, RRFP_EVENT_INPUT, "F1.2",
        "stage 0: event of F of chunk 1, microbatch 2: there is no such task");
    expect_bad(&x, RRFP_EVENT_INPUT, (rrfp_task){.kind = 9}, "there is no such task");
    expect_bad(&x, (rrfp_event_kind)7, script_task("F0.0"), "there is no such event");
    expect_end(&x, "F0.0", ">F0.0@1.0 F0.1");
    expect_input(&x, "F1.0", "");
    bad(&x, RRFP_EVENT_INPUT, "F1.0",
        "stage 0: input of F of chunk 1, microbatch 0: the activation came before");
    expect_end(&x, "F0.1", ">F0.1@1.0 F1.0");
    bad(&x, RRFP_EVENT_INPUT, "B0.0", "B of the chunk after it has not ended here");
    expect_end(&x, "F1.0", ">F1.0@1.1 idle:input-f");
    expect_input(&x, "B1.0", "BW1.0");
    bad(&x, RRFP_EVENT_INPUT, "B1.0", "the gradient came before");
    script_finish(&x);
}

static void test_local_inputs(void **state)
{
    (void)state;
    script x = script_make(1, 2, 1, 0, RRFP_RULE_BF);
    expect_begin(&x, "F0.0");
    bad(&x, RRFP_EVENT_INPUT, "F1.0", "made on the stage itself");
    expect_end(&x, "F0.0", "=F0.0@1 F1.0");
    bad(&x, RRFP_EVENT_INPUT, "B0.0", "made on the stage itself");
    bad(&x, RRFP_EVENT_INPUT, "B1.0", "the last chunk takes no gradient");
    script_finish(&x);
    x.config.forward_only = true;
    expect_begin(&x, "F0.0");
    bad(&x, RRFP_EVENT_INPUT, "B0.0", "no backward in a forward-only step");
    script_finish(&x);
}

static void test_ends(void **state)
{
    (void)state;
    script x = script_make(2, 1, 2, 0, RRFP_RULE_BF);
    expect_begin(&x, "F0.0");
    bad(&x, RRFP_EVENT_TASK_FINISHED, "F0.1", "this task is not running");
    bad(&x, RRFP_EVENT_TASK_FINISHED, "BW0.0", "this task is not running");
    bad(&x, RRFP_EVENT_SEND_COMPLETED, "F0.0", "its output is not being sent");
    expect_end(&x, "F0.0", ">F0.0@1.0 F0.1");
    bad(&x, RRFP_EVENT_TASK_FINISHED, "F0.0", "this task is not running");
    bad(&x, RRFP_EVENT_SEND_COMPLETED, "W0.0", "its output is not being sent");
    expect_sent(&x, "F0.0", "-oF0.0");
    bad(&x, RRFP_EVENT_SEND_COMPLETED, "F0.0", "its output is not being sent");
    script_finish(&x);
}

static void test_before_a_step(void **state)
{
    (void)state;
    script x = script_make(2, 1, 1, 1, RRFP_RULE_BF);
    rrfp_error error;
    assert_int_equal(rrfp_stage_create(&x.config, &x.stage, &error), RRFP_OK);
    bad(&x, RRFP_EVENT_INPUT, "F0.0", "no step has begun");
    script_finish(&x);
}

static void test_steps_are_alike(void **state)
{
    (void)state;
    script x = script_make(2, 1, 1, 1, RRFP_RULE_BF);
    rrfp_action actions[RRFP_MAX_ACTIONS];
    expect_begin(&x, "idle:input-f");
    for (int step = 0; step < 3; step++) {
        expect_input(&x, "F0.0", "F0.0");
        expect_end(&x, "F0.0", "BW0.0");
        expect_end(&x, "BW0.0", "-aF0.0 -rF0.0 >B0.0@0.0 idle:drain");
        expect_sent(&x, "B0.0", "-oB0.0 done");
        assert_int_equal(rrfp_stage_get_counters(x.stage)->dispatches, 2);
        assert_string_equal(script_said(&x, actions, rrfp_stage_begin_step(x.stage, actions)),
                            "idle:input-f");
        assert_int_equal(rrfp_stage_get_counters(x.stage)->dispatches, 0);
    }
    script_finish(&x);
}

static void test_configurations(void **state)
{
    (void)state;
    const script good = script_make(2, 1, 2, 0, RRFP_RULE_BF);
    script x = good;
    x.config.struct_size = 8;
    expect_refused(&x, RRFP_ERR_INVALID, "struct_size 8");
    x = good;
    x.config.stage = 2;
    expect_refused(&x, RRFP_ERR_INVALID, "stage is 2; there are 2 stages");
    x = good;
    x.config.budget.max_inflight = 0;
    expect_refused(&x, RRFP_ERR_INVALID, "max_inflight is 0");
    x = good;
    x.config.rule = (rrfp_rule)17;
    expect_refused(&x, RRFP_ERR_INVALID, "unknown rule 17");
    x = good;
    x.config.accumulate = (rrfp_accumulate)2;
    expect_refused(&x, RRFP_ERR_INVALID, "accumulate is 2");
    x = good;
    x.config.rule = RRFP_RULE_BFW;
    x.config.split_backward = false;
    expect_refused(&x, RRFP_ERR_INVALID, "rule bfw needs split_backward");
    x = good;
    x.config.shape.microbatches = 0;
    expect_refused(&x, RRFP_ERR_INVALID, "microbatches is 0");
    rrfp_stage_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inputs),
        cmocka_unit_test(test_local_inputs),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_before_a_step),
        cmocka_unit_test(test_steps_are_alike),
        cmocka_unit_test(test_configurations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
