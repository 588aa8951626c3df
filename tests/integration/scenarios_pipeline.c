/*
 * scenarios_pipeline.c - situations that broke other pipelines, on the real
 * trainer.  Each comment says what went wrong there.
 */
#include <math.h>

#include "support/tiny_run.h"

static rrfp_error error;

static void execute(tiny_run *run, tiny_result *result)
{
    if (tiny_execute(run, result, &error) != RRFP_OK) {
        fail_msg("%s, %u stages, M %u: %s", run->config.hint, run->config.stages,
                 run->config.microbatches, error.text);
    }
}

/* Fewer microbatches than stages hung, or were refused for everybody. */
static void s4_any_number_of_microbatches(void **state)
{
    (void)state;
    static const uint32_t counts[] = {1, 2, 7, 8, 9};
    for (size_t i = 0; i < 5; i++) {
        tiny_run run;
        tiny_result expect, got;
        tiny_defaults(&run, RRFP_ARCH_LLAMA, counts[i]);
        execute(&run, &expect);
        for (size_t h = 0; h < rrfp_hint_count(); h++) {
            const rrfp_hint_info *hint = rrfp_hint_at(h);
            tiny_defaults(&run, RRFP_ARCH_LLAMA, counts[i]);
            run.config.stages = 8;
            run.config.hint = hint->name;
            run.config.chunks = hint->chunks != 0 ? hint->chunks : 1;
            if (hint->min_chunks > run.config.chunks) {
                run.config.chunks = hint->min_chunks;
            }
            run.config.hint_distance = i % 2 == 0 ? 0 : RRFP_DISTANCE_UNBOUNDED;
            execute(&run, &got);
            assert_memory_equal(expect.loss_bits, got.loss_bits, sizeof expect.loss_bits);
            assert_string_equal(expect.sha256, got.sha256);
        }
    }
}

static void poison_gradient(void *context, uint32_t stage, rrfp_task task, uint64_t iteration,
                            float *output, size_t count)
{
    (void)context;
    (void)count;
    if (stage == 1 && task.kind != RRFP_F && task.microbatch == 2 && iteration == 3) {
        output[0] = NAN;
    }
}

/* The non-finite check ran on logging steps only, after the update, where the loss lives. */
static void s16_one_verdict_before_the_update(void **state)
{
    (void)state;
    tiny_run run;
    rrfp_pipeline *pipeline = NULL;
    rrfp_budget budgets[3] = {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}};
    char before[65], after[65];
    tiny_defaults(&run, RRFP_ARCH_GPT2, 4);
    run.config.stages = 3;
    run.config.hint = "bfw";
    run.config.hook = poison_gradient;
    run.config.fetch = tiny_fetch;
    run.config.fetch_context = &run.config.model;
    run.config.budgets = budgets;
    assert_int_equal(rrfp_model_config_finish(&run.config.model, &error), RRFP_OK);
    assert_int_equal(rrfp_pipeline_create(&run.config, &pipeline, &error), RRFP_OK);
    for (uint64_t i = 1; i <= 4; i++) {
        rrfp_train_step step = {.iteration = i, .first_sample = (i - 1) * 4, .clip_grad = 1.0,
                                .adamw = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f,
                                          .eps = 1e-8f, .step = i}};
        rrfp_step_result result;
        rrfp_pipeline_weights_sha256(pipeline, before);
        assert_int_equal(rrfp_pipeline_train_step(pipeline, &step, &result, &error), RRFP_OK);
        rrfp_pipeline_weights_sha256(pipeline, after);
        if (i == 3) {
            assert_true(result.nonfinite);
            assert_string_equal(before, after);
        } else {
            assert_false(result.nonfinite);
            assert_string_not_equal(before, after);
            assert_true(isfinite(result.loss) && isfinite(result.grad_norm));
        }
    }
    rrfp_pipeline_destroy(pipeline);
}

/* Uneven splits dropped layers, stages without parameters crashed. */
static void s19_uneven_and_empty_chunks(void **state)
{
    (void)state;
    static const struct {
        uint32_t layers, stages, chunks;
    } cases[] = {{10, 4, 2}, {5, 4, 1}, {3, 4, 2}, {1, 8, 1}};
    for (size_t i = 0; i < 4; i++) {
        tiny_run run;
        tiny_result expect, got;
        tiny_defaults(&run, RRFP_ARCH_GPT2, 3);
        run.config.model.num_layers = cases[i].layers;
        execute(&run, &expect);
        tiny_defaults(&run, RRFP_ARCH_GPT2, 3);
        run.config.model.num_layers = cases[i].layers;
        run.config.stages = cases[i].stages;
        run.config.chunks = cases[i].chunks;
        run.config.hint = "bfw";
        execute(&run, &got);
        assert_memory_equal(expect.norm_bits, got.norm_bits, sizeof expect.norm_bits);
        assert_string_equal(expect.sha256, got.sha256);
        /* F, B and W of every chunk and microbatch, in each step */
        assert_int_equal(got.tasks, TINY_STEPS * 3u * 3u * cases[i].stages * cases[i].chunks);
    }
    static const uint32_t wrong[4] = {2, 1, 1, 2};
    tiny_run run;
    tiny_result got;
    tiny_defaults(&run, RRFP_ARCH_GPT2, 3);
    run.config.stages = 4;
    run.config.layer_counts = wrong;
    assert_int_not_equal(tiny_execute(&run, &got, &error), RRFP_OK);
    assert_non_null(strstr(error.text, "6"));
    assert_non_null(strstr(error.text, "5"));
}

/* Dropout masks depended on the partition or on the order of draws. */
static void s20_dropout_does_not_depend_on_the_pipeline(void **state)
{
    (void)state;
    tiny_run run;
    tiny_result expect, got;
    tiny_defaults(&run, RRFP_ARCH_GPT2, 4);
    run.config.model.dropout = 0.5f;
    execute(&run, &expect);
    for (uint32_t stages = 1; stages <= 4; stages *= 2) {
        for (int recompute = 0; recompute < 2; recompute++) {
            for (uint64_t seed = 1; seed <= 5; seed++) {
                tiny_defaults(&run, RRFP_ARCH_GPT2, 4);
                run.config.model.dropout = 0.5f;
                run.config.model.recompute = recompute == 1;
                run.config.stages = stages;
                run.config.hint = "f-prio";
                assert_int_equal(rrfp_jitter_parse("lognormal:2.0", seed, &run.config.jitter,
                                                   &error),
                                 RRFP_OK);
                execute(&run, &got);
                assert_memory_equal(expect.loss_bits, got.loss_bits, sizeof got.loss_bits);
                assert_string_equal(expect.sha256, got.sha256);
            }
        }
    }
}

/* The ends of a tied embedding drifted apart. */
static void s13_tied_copies_stay_equal(void **state)
{
    (void)state;
    tiny_run run;
    rrfp_pipeline *pipeline = NULL;
    rrfp_budget budgets[2] = {{0, 0, 0}, {0, 0, 0}};
    tiny_defaults(&run, RRFP_ARCH_GPT2, 2);
    run.config.stages = 2;
    run.config.fetch = tiny_fetch;
    run.config.fetch_context = &run.config.model;
    run.config.budgets = budgets;
    assert_int_equal(rrfp_model_config_finish(&run.config.model, &error), RRFP_OK);
    assert_int_equal(rrfp_pipeline_create(&run.config, &pipeline, &error), RRFP_OK);
    for (uint64_t i = 1; i <= 50; i++) {
        rrfp_train_step step = {.iteration = i, .first_sample = (i - 1) * 2, .clip_grad = 1.0,
                                .adamw = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f,
                                          .eps = 1e-8f, .weight_decay = 0.1f, .step = i}};
        rrfp_step_result result;
        assert_int_equal(rrfp_pipeline_train_step(pipeline, &step, &result, &error), RRFP_OK);
    }
    size_t count, copies = 0;
    const rrfp_checkpoint_entry *entries = rrfp_pipeline_entries(pipeline, &count);
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < count; j++) {
            if (entries[i].param->tied_copy && !entries[j].param->tied_copy &&
                entries[i].param->global_index == entries[j].param->global_index) {
                copies++;
                assert_ptr_not_equal(entries[i].param->value, entries[j].param->value);
                assert_memory_equal(entries[i].param->value, entries[j].param->value,
                                    entries[i].param->count * sizeof(float));
            }
        }
    }
    assert_int_equal(copies, 1);
    rrfp_pipeline_destroy(pipeline);
}

static rrfp_status failing_fetch(void *context, bool evaluation, uint64_t first_sample,
                                 int32_t *tokens, int32_t *targets, rrfp_error *why)
{
    if (first_sample == 5) {
        return rrfp_error_set(why, RRFP_ERR_IO, "sample 5 cannot be read");
    }
    return tiny_fetch(context, evaluation, first_sample, tokens, targets, why);
}

/* A stage that failed left the others waiting until a timeout. */
static void an_error_on_one_stage_ends_the_step_on_all(void **state)
{
    (void)state;
    for (uint32_t stages = 1; stages <= 4; stages++) {
        tiny_run run;
        tiny_result got;
        tiny_defaults(&run, RRFP_ARCH_GPT2, 4);
        run.config.stages = stages;
        run.config.fetch = failing_fetch;
        run.config.fetch_context = &run.config.model;
        assert_int_equal(tiny_execute(&run, &got, &error), RRFP_ERR_IO);
        assert_string_equal(error.text, "sample 5 cannot be read");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(s4_any_number_of_microbatches),
        cmocka_unit_test(s13_tied_copies_stay_equal),
        cmocka_unit_test(s16_one_verdict_before_the_update),
        cmocka_unit_test(s19_uneven_and_empty_chunks),
        cmocka_unit_test(s20_dropout_does_not_depend_on_the_pipeline),
        cmocka_unit_test(an_error_on_one_stage_ends_the_step_on_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
