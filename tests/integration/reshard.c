/*
 * reshard.c - a checkpoint of any pipeline continues on any other, to the bit.
 * 101 layers, so that h.1, h.10 and h.100 all exist: elsewhere a pattern for
 * one matched the others too.
 */
#include <stdlib.h>

#include "support/tiny_run.h"

static rrfp_error error;
static const rrfp_budget BUDGETS[4] = {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}};

static rrfp_pipeline *make(tiny_run *run, rrfp_arch arch, uint32_t stages, uint32_t chunks)
{
    rrfp_pipeline *pipeline = NULL;
    tiny_defaults(run, arch, 2);
    run->config.model.num_layers = 101;
    run->config.model.hidden = 4;
    run->config.model.heads = 2;
    run->config.model.kv_heads = arch == RRFP_ARCH_LLAMA ? 1 : 2;
    run->config.stages = stages;
    run->config.chunks = chunks;
    run->config.hint = "bfw";
    run->config.budgets = BUDGETS;
    run->config.fetch = tiny_fetch;
    run->config.fetch_context = &run->config.model;
    assert_int_equal(rrfp_model_config_finish(&run->config.model, &error), RRFP_OK);
    if (rrfp_pipeline_create(&run->config, &pipeline, &error) != RRFP_OK) {
        fail_msg("%s", error.text);
    }
    return pipeline;
}

static rrfp_step_result step(rrfp_pipeline *pipeline, uint64_t iteration)
{
    rrfp_step_result result;
    rrfp_train_step s = {.iteration = iteration, .first_sample = (iteration - 1) * 2,
                         .clip_grad = 1.0,
                         .adamw = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                                   .weight_decay = 0.1f, .step = iteration}};
    assert_int_equal(rrfp_pipeline_train_step(pipeline, &s, &result, &error), RRFP_OK);
    return result;
}

static void check_arch(rrfp_arch arch)
{
    char dir[] = "/tmp/rrfp-reshard-XXXXXX", path[256], saved[65], expect[65], got[65];
    char command[64];
    size_t count;
    tiny_run run;
    assert_non_null(mkdtemp(dir));
    rrfp_pipeline *pipeline = make(&run, arch, 4, 1);
    step(pipeline, 1);
    step(pipeline, 2);
    rrfp_checkpoint_state state = {.iteration = 2, .consumed_samples = 4, .adam_step = 2};
    const rrfp_checkpoint_entry *entries = rrfp_pipeline_entries(pipeline, &count);
    assert_int_equal(rrfp_checkpoint_save(dir, &run.config.model, &state, entries, count, &error),
                     RRFP_OK);
    rrfp_pipeline_weights_sha256(pipeline, saved);
    rrfp_step_result third = step(pipeline, 3); /* what an uninterrupted run does */
    rrfp_pipeline_weights_sha256(pipeline, expect);
    rrfp_pipeline_destroy(pipeline);
    assert_int_equal(rrfp_checkpoint_resolve(dir, path, sizeof path, &error), RRFP_OK);
    for (uint32_t stages = 1; stages <= 4; stages++) {
        for (uint32_t chunks = 1; chunks <= 2; chunks++) {
            rrfp_checkpoint_state read;
            pipeline = make(&run, arch, stages, chunks);
            entries = rrfp_pipeline_entries(pipeline, &count);
            if (rrfp_checkpoint_load(path, entries, count, true, &read, &error) != RRFP_OK) {
                fail_msg("%s", error.text);
            }
            assert_int_equal(read.iteration, 2);
            rrfp_pipeline_weights_sha256(pipeline, got);
            assert_string_equal(got, saved);
            rrfp_step_result next = step(pipeline, 3);
            assert_int_equal(tiny_bits(next.loss), tiny_bits(third.loss));
            assert_int_equal(tiny_bits(next.grad_norm), tiny_bits(third.grad_norm));
            rrfp_pipeline_weights_sha256(pipeline, got);
            assert_string_equal(got, expect);
            rrfp_pipeline_destroy(pipeline);
        }
    }
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    assert_int_equal(system(command), 0);
}

static void s23_gpt2(void **state)
{
    (void)state;
    check_arch(RRFP_ARCH_GPT2);
}

static void s23_llama(void **state)
{
    (void)state;
    check_arch(RRFP_ARCH_LLAMA);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(s23_gpt2), cmocka_unit_test(s23_llama)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
