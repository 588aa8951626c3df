/*
 * scenarios_scalar.c - situations that broke other pipelines, with results
 * worked out by hand.  Each comment says what went wrong there.
 */
#include "support/scalar_pipeline.h"

static scalar_pipeline pipeline; /* large: not on the stack */

/* Holds every gradient that stage 1 sends until both of its backwards are done. */
static bool hold_gradients(const scalar_pipeline *p, const scalar_event *event)
{
    return event->kind == SCALAR_MESSAGE && event->stage == 1 && event->task.kind != RRFP_F &&
           !(p->done[1][0][1] == 1 && p->done[1][1][1] == 1);
}

/*
 * A stage kept only its latest gradient, so a send that came late sent the
 * wrong one.  x = 1, 10; w = 1, 3; L = a^2/2: a = 3, 30; gradients into stage 0
 * are 3*3 = 9 and 30*3 = 90; dL/dw0 = 9*1 + 90*10 = 909, dL/dw1 = 3*1 + 30*10 = 303.
 */
static void s6_held_gradients_keep_their_microbatch(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed <= 200; seed++) {
        for (int split = 0; split < 2; split++) {
            scalar_defaults(&pipeline, 3, 1, 2);
            pipeline.w[1] = 3.0;
            pipeline.op[2] = SCALAR_QUADRATIC;
            pipeline.x[0] = 1.0;
            pipeline.x[1] = 10.0;
            pipeline.seed = seed;
            pipeline.hold = hold_gradients;
            for (int s = 0; s < 3; s++) {
                pipeline.config[s].split_backward = split == 1;
                pipeline.config[s].rule = split == 1 ? RRFP_RULE_BFW : RRFP_RULE_BF;
            }
            scalar_run(&pipeline);
            assert_true(pipeline.grad_input[1][0] == 9.0);
            assert_true(pipeline.grad_input[1][1] == 90.0);
            assert_true(pipeline.dw[0] == 909.0);
            assert_true(pipeline.dw[1] == 303.0);
        }
    }
}

/* The last stage stored one loss, so any order but F,B,F,B differentiated the wrong one. */
static void s7_losses_belong_to_their_microbatch(void **state)
{
    (void)state;
    for (int reversed = 0; reversed < 2; reversed++) {
        const rrfp_task order[4] = {{RRFP_F, 0, 0, 0},
                                    {RRFP_F, 0, 0, 1},
                                    {RRFP_BW, 0, 0, reversed ? 1 : 0},
                                    {RRFP_BW, 0, 0, reversed ? 0 : 1}};
        scalar_defaults(&pipeline, 3, 1, 2);
        pipeline.w[1] = 3.0;
        pipeline.op[2] = SCALAR_QUADRATIC;
        pipeline.x[0] = 1.0;
        pipeline.x[1] = 10.0;
        for (int s = 0; s < 3; s++) {
            pipeline.config[s].accumulate = RRFP_ACCUMULATE_ARRIVAL;
        }
        pipeline.config[2].rule = RRFP_RULE_LIST;
        pipeline.config[2].order = order;
        pipeline.config[2].order_count = 4;
        pipeline.config[2].hint_distance = 0;
        scalar_run(&pipeline);
        assert_true(pipeline.dw[1] == 303.0);
        assert_true(pipeline.loss[0] == 4.5);
        assert_true(pipeline.loss[1] == 450.0);
    }
}

/* A weight used twice had its split gradient counted wrong: d(x w^2)/dw = 2xw = 12 + 30. */
static void s9_split_backward_of_a_shared_weight(void **state)
{
    (void)state;
    for (int split = 0; split < 2; split++) {
        scalar_defaults(&pipeline, 1, 1, 2);
        pipeline.op[0] = SCALAR_SQUARE;
        pipeline.w[0] = 3.0;
        pipeline.x[0] = 2.0;
        pipeline.x[1] = 5.0;
        pipeline.config[0].split_backward = split == 1;
        pipeline.config[0].rule = split == 1 ? RRFP_RULE_BFW : RRFP_RULE_BF;
        scalar_run(&pipeline);
        assert_true(pipeline.grad_input[0][0] == 9.0 && pipeline.grad_input[0][1] == 9.0);
        assert_true(pipeline.dw[0] == 42.0);
    }
}

/* 1/M was applied at every stage.  y = 8x: dy/dw = 4 at each of the three stages, for any M. */
static void s11_the_loss_is_scaled_once(void **state)
{
    (void)state;
    static const uint32_t counts[] = {1, 2, 4, 8};
    for (size_t i = 0; i < 4; i++) {
        scalar_defaults(&pipeline, 3, 1, counts[i]);
        pipeline.loss_scale = 1.0 / counts[i];
        for (uint32_t m = 0; m < counts[i]; m++) {
            pipeline.x[m] = 1.0;
        }
        pipeline.w[0] = pipeline.w[1] = pipeline.w[2] = 2.0;
        scalar_run(&pipeline);
        for (int g = 0; g < 3; g++) {
            assert_true(pipeline.dw[g] == 4.0);
        }
    }
}

/*
 * A receive placed early blocked the sends behind it.  Two stages with two chunks each,
 * F = 10 ms, the way back to stage 0 takes 40 ms: stage 0 must go on with its own
 * forwards and send at 10, 20, 30 and 40 ms.
 */
static void s3_a_slow_link_does_not_hold_other_sends(void **state)
{
    (void)state;
    scalar_defaults(&pipeline, 2, 2, 4);
    for (int s = 0; s < 2; s++) {
        for (int kind = 0; kind < 4; kind++) {
            pipeline.duration[s][kind] = 10.0;
        }
        pipeline.config[s].budget.max_inflight = 4;
    }
    pipeline.latency[0][1] = 1.0;
    pipeline.latency[1][0] = 40.0;
    scalar_run(&pipeline);
    for (uint32_t m = 0; m < 4; m++) {
        assert_true(pipeline.sent_at[0][m] == 10.0 * (m + 1));
    }
    scalar_defaults(&pipeline, 2, 2, 4); /* one microbatch at a time must still end */
    for (int s = 0; s < 2; s++) {
        pipeline.config[s].budget.max_inflight = 1;
    }
    pipeline.latency[1][0] = 40.0;
    scalar_run(&pipeline);
    assert_true(pipeline.peak_live[0] <= 2 && pipeline.peak_live[1] <= 2);
}

/* Memory grew with M.  Stage 0 is four times faster than the last and must stall at its cap. */
static void s18_memory_does_not_grow_with_the_number_of_microbatches(void **state)
{
    (void)state;
    static const uint32_t counts[] = {16, 64};
    unsigned peak[2][4], peak_w[2][4];
    for (size_t i = 0; i < 2; i++) {
        scalar_defaults(&pipeline, 4, 1, counts[i]);
        for (uint32_t s = 0; s < 4; s++) {
            pipeline.config[s].rule = RRFP_RULE_BFW;
            pipeline.config[s].split_backward = true;
            pipeline.config[s].budget.max_inflight = 4 - s;
            pipeline.config[s].budget.max_pending_w = 2;
            for (int kind = 0; kind < 4; kind++) {
                pipeline.duration[s][kind] = 1.0 + s;
            }
        }
        scalar_run(&pipeline);
        memcpy(peak[i], pipeline.peak_live, sizeof peak[i]);
        memcpy(peak_w[i], pipeline.peak_pending_w, sizeof peak_w[i]);
    }
    for (uint32_t s = 0; s < 4; s++) {
        assert_int_equal(peak[0][s], 4 - s);
        assert_int_equal(peak[1][s], 4 - s);
        assert_true(peak_w[0][s] <= 2 && peak_w[1][s] <= 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(s3_a_slow_link_does_not_hold_other_sends),
        cmocka_unit_test(s6_held_gradients_keep_their_microbatch),
        cmocka_unit_test(s7_losses_belong_to_their_microbatch),
        cmocka_unit_test(s9_split_backward_of_a_shared_weight),
        cmocka_unit_test(s11_the_loss_is_scaled_once),
        cmocka_unit_test(s18_memory_does_not_grow_with_the_number_of_microbatches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
