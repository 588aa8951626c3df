/*
 * model_gradient.c - loss and every gradient of a whole model against central
 * differences of the independent double-precision reference.
 *
 * The reference's differences are exact to about 1e-9 (step 1e-4, double), so
 * what is left is float32 rounding through some 30 operations per path: about
 * 1e-6 of a tensor's norm at most was measured, and 1e-5 is asked for.
 */
#include "support/model_run.h"
#include "support/ref_model.h"

static const double STEP = 1e-4;
static const double TOLERANCE = 1e-5;

static void collect_reference(const model_run *run, ref_model *ref)
{
    *ref = (ref_model){.config = run->config};
    const rrfp_param *param;
    for (uint32_t i = 0; (param = run_param(run, i, false)) != NULL; i++) {
        ref_add_param(ref, param->name, param->value, param->count);
    }
}

/* The reference's loss of all microbatches, scaled. */
static double reference_loss(const model_run *run, const ref_model *ref)
{
    double loss = 0.0;
    for (uint32_t m = 0; m < run->microbatches; m++) {
        const ref_input in = {run->tokens[m], run->targets[m], 9, m, true};
        loss += ref_loss(ref, &in, NULL);
    }
    return loss * (double)run->loss_scale;
}

static void check_gradients(const rrfp_model_config *config, uint32_t chunks)
{
    model_run run;
    ref_model ref;
    run_open(&run, config, chunks, 2, false);
    collect_reference(&run, &ref);
    run_plain(&run);

    for (uint32_t m = 0; m < run.microbatches; m++) {
        const ref_input in = {run.tokens[m], run.targets[m], 9, m, true};
        const double expected = ref_loss(&ref, &in, NULL);
        assert_true(fabs(run.loss[m] - expected) < 1e-5 * expected);
    }
    for (uint32_t i = 0; i < ref.count; i++) {
        const rrfp_param *param = run_param(&run, i, false);
        const rrfp_param *copy = run_param(&run, i, true);
        double error = 0.0, norm = 0.0;
        for (uint64_t e = 0; e < param->count; e++) {
            double *value = &ref.params[i].value[e];
            const double kept = *value;
            *value = kept + STEP;
            const double above = reference_loss(&run, &ref);
            *value = kept - STEP;
            const double below = reference_loss(&run, &ref);
            *value = kept;
            const double expected = (above - below) / (2.0 * STEP);
            double got = (double)param->grad[e];
            if (copy != NULL) {
                got += (double)copy->grad[e];
            }
            error += (got - expected) * (got - expected);
            norm += expected * expected;
        }
        if (!(sqrt(error) <= TOLERANCE * sqrt(norm))) {
            fail_msg("%s: gradient off by %g of its norm %g", param->name, sqrt(error / norm),
                     sqrt(norm));
        }
        assert_true(norm > 0.0);
    }
    ref_free(&ref);
    run_close(&run);
}

static void gpt2_tied(void **state)
{
    (void)state;
    const rrfp_model_config config = tiny_config(RRFP_ARCH_GPT2, true);
    check_gradients(&config, 1);
}

static void gpt2_untied_with_dropout(void **state)
{
    (void)state;
    rrfp_model_config config = tiny_config(RRFP_ARCH_GPT2, false);
    config.dropout = 0.2f;
    check_gradients(&config, 2);
}

static void gpt2_tied_over_chunks_with_dropout_and_recompute(void **state)
{
    (void)state;
    rrfp_model_config config = tiny_config(RRFP_ARCH_GPT2, true);
    config.dropout = 0.1f;
    config.recompute = true;
    check_gradients(&config, 3);
}

static void llama_untied(void **state)
{
    (void)state;
    const rrfp_model_config config = tiny_config(RRFP_ARCH_LLAMA, false);
    check_gradients(&config, 1);
}

static void llama_tied_with_dropout(void **state)
{
    (void)state;
    rrfp_model_config config = tiny_config(RRFP_ARCH_LLAMA, true);
    config.dropout = 0.2f;
    check_gradients(&config, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_tied),
        cmocka_unit_test(gpt2_untied_with_dropout),
        cmocka_unit_test(gpt2_tied_over_chunks_with_dropout_and_recompute),
        cmocka_unit_test(llama_untied),
        cmocka_unit_test(llama_tied_with_dropout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
