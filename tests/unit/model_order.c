/*
 * model_order.c - losses and gradients have the same bits however the model is cut, whenever
 * backward and weight gradients run, and whether a layer's forward is run again or kept.
 */
#include "support/model_run.h"

enum { MICROBATCHES = 3, MAX_PARAMS = 80 };

/* How a step is executed; weight gradients always in microbatch order. */
typedef struct execution {
    uint32_t chunks;
    bool share, recompute, deferred;
    uint32_t forward_order[MICROBATCHES], backward_order[MICROBATCHES];
} execution;

typedef struct outcome {
    double loss[MICROBATCHES];
    float *grad[MAX_PARAMS][2]; /* by global index and tied copy */
    uint64_t count[MAX_PARAMS];
} outcome;

static void execute_in_order(model_run *run, const execution *how)
{
    for (uint32_t i = 0; i < MICROBATCHES; i++) {
        for (uint32_t k = 0; k < run->chunks; k++) {
            run_forward(run, k, how->forward_order[i], true);
        }
    }
    uint32_t next = 0;
    bool ready[MICROBATCHES] = {false};
    for (uint32_t i = 0; i < MICROBATCHES; i++) {
        for (uint32_t k = run->chunks; k-- > 0;) {
            run_backward(run, k, how->backward_order[i]);
        }
        ready[how->backward_order[i]] = true;
        for (; !how->deferred && next < MICROBATCHES && ready[next]; next++) {
            for (uint32_t k = 0; k < run->chunks; k++) {
                run_wgrad(run, k, next);
            }
        }
    }
    /* Deferred: chunk by chunk, so that chunks interleave differently too. */
    for (uint32_t k = 0; how->deferred && k < run->chunks; k++) {
        for (uint32_t m = 0; m < MICROBATCHES; m++) {
            run_wgrad(run, k, m);
        }
    }
}

static outcome execute(const rrfp_model_config *config, const execution *how)
{
    model_run run;
    outcome result = {{0}, {{NULL}}, {0}};
    rrfp_model_config used = *config;
    used.recompute = how->recompute;
    run_open(&run, &used, how->chunks, MICROBATCHES, how->share);
    execute_in_order(&run, how);
    memcpy(result.loss, run.loss, sizeof result.loss);
    for (uint32_t i = 0; i < MAX_PARAMS; i++) {
        for (int copy = 0; copy < 2; copy++) {
            const rrfp_param *param = run_param(&run, i, copy == 1);
            if (param != NULL) {
                result.count[i] = param->count;
                result.grad[i][copy] = malloc(param->count * sizeof(float));
                memcpy(result.grad[i][copy], param->grad, param->count * sizeof(float));
            }
        }
    }
    run_close(&run);
    return result;
}

static void release(outcome *result)
{
    for (uint32_t i = 0; i < MAX_PARAMS; i++) {
        free(result->grad[i][0]);
        free(result->grad[i][1]);
    }
}

static void assert_equal_bits(const outcome *a, const outcome *b)
{
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
    for (uint32_t i = 0; i < MAX_PARAMS; i++) {
        assert_int_equal(a->count[i], b->count[i]);
        for (int copy = 0; copy < 2; copy++) {
            assert_int_equal(a->grad[i][copy] == NULL, b->grad[i][copy] == NULL);
            if (a->grad[i][copy] != NULL) {
                assert_memory_equal(a->grad[i][copy], b->grad[i][copy],
                                    a->count[i] * sizeof(float));
            }
        }
    }
}

static void check_all_executions(rrfp_arch arch, bool tied, float dropout)
{
    static const execution ways[] = {
        {1, false, false, true, {0, 1, 2}, {0, 1, 2}},
        {1, false, true, false, {0, 1, 2}, {0, 1, 2}},
        {2, true, false, false, {0, 1, 2}, {0, 1, 2}},
        {2, false, true, true, {2, 0, 1}, {1, 2, 0}},
        {3, true, false, true, {2, 1, 0}, {2, 0, 1}},
        {5, false, false, false, {1, 0, 2}, {0, 2, 1}},
        {5, true, true, false, {0, 1, 2}, {2, 1, 0}},
        {8, true, false, true, {0, 1, 2}, {0, 1, 2}},
        {8, false, true, false, {1, 2, 0}, {1, 0, 2}},
    };
    static const execution plain = {1, false, false, false, {0, 1, 2}, {0, 1, 2}};
    rrfp_model_config config = tiny_config(arch, tied);
    config.num_layers = 5;
    config.dropout = dropout;
    outcome expected = execute(&config, &plain);
    for (size_t i = 0; i < MICROBATCHES; i++) {
        assert_true(expected.loss[i] > 0.0);
    }
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        outcome got = execute(&config, &ways[i]);
        assert_equal_bits(&expected, &got);
        release(&got);
    }
    release(&expected);
}

static void gpt2_tied(void **state)
{
    (void)state;
    check_all_executions(RRFP_ARCH_GPT2, true, 0.0f);
}

static void gpt2_untied_with_dropout(void **state)
{
    (void)state;
    check_all_executions(RRFP_ARCH_GPT2, false, 0.3f);
}

static void llama_tied_with_dropout(void **state)
{
    (void)state;
    check_all_executions(RRFP_ARCH_LLAMA, true, 0.3f);
}

static void llama_untied(void **state)
{
    (void)state;
    check_all_executions(RRFP_ARCH_LLAMA, false, 0.0f);
}

/* Each of seed, step and microbatch index changes the masks: equal keys would hide a bug above. */
static void dropout_depends_on_its_keys(void **state)
{
    (void)state;
    rrfp_model_config config = tiny_config(RRFP_ARCH_GPT2, true);
    config.dropout = 0.3f;
    model_run run;
    double loss[4];
    run_open(&run, &config, 1, 1, false);
    for (uint32_t i = 0; i < 3; i++) {
        rrfp_microbatch microbatch = run_microbatch(&run, 0, true);
        microbatch.step += i == 1;
        microbatch.index += i == 2;
        rrfp_chunk_forward(run.chunk[0], &microbatch, NULL, NULL, run.activation[0][0].memory,
                           run.retained[0][0].memory, run.scratch[0].memory, &loss[i]);
    }
    run_close(&run);
    config.seed++;
    run_open(&run, &config, 1, 1, false);
    run_forward(&run, 0, 0, true);
    loss[3] = run.loss[0];
    run_close(&run);
    for (int i = 1; i < 4; i++) {
        assert_true(loss[i] != loss[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_tied),
        cmocka_unit_test(gpt2_untied_with_dropout),
        cmocka_unit_test(llama_tied_with_dropout),
        cmocka_unit_test(llama_untied),
        cmocka_unit_test(dropout_depends_on_its_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
