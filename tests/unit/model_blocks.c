/*
 * model_blocks.c - sizes of the caller's blocks, evaluation, inference and empty chunks.
 * That nothing is written behind a block is checked by model_run.h wherever it is used.
 */
#include "support/model_run.h"
#include "support/ref_model.h"

/* Worked out by hand for N = 10 rows, C = 16, H = 4, V = 11, rounded to 16 floats each. */
static void sizes(void **state)
{
    (void)state;
    rrfp_error error;
    rrfp_chunk_sizes got;
    rrfp_chunk *chunk;
    rrfp_model_config config = tiny_config(RRFP_ARCH_GPT2, true);
    const rrfp_chunk_range middle = {0, 2, false, false}, last = {1, 1, false, true};
    const rrfp_chunk_range first = {0, 1, true, false};
    assert_int_equal(rrfp_chunk_create(&config, &middle, NULL, &chunk, &error), RRFP_OK);
    rrfp_chunk_get_sizes(chunk, &got);
    rrfp_chunk_destroy(chunk);
    assert_int_equal(got.message_floats, 160);
    /* 8 times N*C (q, k, v count thrice), 2 of N*F = 240, 4 of C */
    assert_int_equal(got.retained_bytes, 2 * 4 * (8 * 160 + 2 * 240 + 4 * 16));
    /* 4 of N, one of N*H = 40 -> 48 */
    assert_int_equal(got.activation_bytes, 2 * 4 * (4 * 16 + 48));
    assert_true(got.forward_retains);

    assert_int_equal(rrfp_chunk_create(&config, &last, NULL, &chunk, &error), RRFP_OK);
    rrfp_chunk_get_sizes(chunk, &got);
    rrfp_chunk_destroy(chunk);
    /* The head adds N*C, N*V = 110 -> 112, 2 of C; mean and rstd. */
    assert_int_equal(got.retained_bytes, 4 * (1824 + 160 + 112 + 2 * 16));
    assert_int_equal(got.activation_bytes, 4 * (112 + 2 * 16));

    config.recompute = true;
    assert_int_equal(rrfp_chunk_create(&config, &middle, NULL, &chunk, &error), RRFP_OK);
    rrfp_chunk_get_sizes(chunk, &got);
    rrfp_chunk_destroy(chunk);
    assert_int_equal(got.activation_bytes, 4 * 160); /* x1; x0 is the caller's */
    assert_false(got.forward_retains);
    assert_int_equal(rrfp_chunk_create(&config, &first, NULL, &chunk, &error), RRFP_OK);
    rrfp_chunk_get_sizes(chunk, &got);
    rrfp_chunk_destroy(chunk);
    assert_int_equal(got.activation_bytes, 4 * 160); /* x0 */
    assert_false(got.forward_retains);
    assert_int_equal(rrfp_chunk_create(&config, &last, NULL, &chunk, &error), RRFP_OK);
    rrfp_chunk_get_sizes(chunk, &got);
    rrfp_chunk_destroy(chunk);
    assert_int_equal(got.activation_bytes, 4 * (160 + 2 * 16)); /* x1 -> head; mean, rstd */
    assert_true(got.forward_retains);

    config = tiny_config(RRFP_ARCH_LLAMA, true);
    assert_int_equal(rrfp_chunk_create(&config, &middle, NULL, &chunk, &error), RRFP_OK);
    rrfp_chunk_get_sizes(chunk, &got);
    rrfp_chunk_destroy(chunk);
    /* norm1, q, mixed, mid, norm2, out; k and v of N*8; gate, up, act of N*20 -> 208; 2 of C */
    assert_int_equal(got.retained_bytes, 2 * 4 * (6 * 160 + 2 * 80 + 3 * 208 + 2 * 16));
    assert_int_equal(got.activation_bytes, 2 * 4 * (2 * 16 + 48));
}

static ref_model reference_of(const model_run *run)
{
    ref_model ref = {.config = run->config};
    const rrfp_param *param;
    for (uint32_t i = 0; (param = run_param(run, i, false)) != NULL; i++) {
        ref_add_param(&ref, param->name, param->value, param->count);
    }
    return ref;
}

/* Outside training: no dropout, no change of gradients, the loss and logits of the reference. */
static void check_evaluation(rrfp_arch arch, bool recompute, uint32_t chunks)
{
    rrfp_model_config config = tiny_config(arch, true);
    config.dropout = 0.4f;
    config.recompute = recompute;
    model_run run;
    run_open(&run, &config, chunks, 1, true);
    ref_model ref = reference_of(&run);
    const ref_input in = {run.tokens[0], run.targets[0], 9, 0, false};
    const size_t count = 10 * 11;
    double *expected = malloc(count * sizeof *expected);
    float *logits = malloc(count * sizeof *logits);
    const double loss = ref_loss(&ref, &in, expected);
    for (uint32_t k = 0; k < chunks; k++) {
        run_forward(&run, k, 0, false);
    }
    assert_true(fabs(run.loss[0] - loss) < 1e-5 * loss);

    /* Inference takes tokens alone, and ignores a wish to train. */
    rrfp_microbatch microbatch = run_microbatch(&run, 0, true);
    microbatch.targets = NULL;
    for (uint32_t k = 0; k < chunks; k++) {
        const bool head = k + 1 == chunks;
        rrfp_chunk_infer(run.chunk[k], &microbatch,
                         k > 0 ? floats_of(&run.message[k - 1][0]) : NULL,
                         head ? NULL : floats_of(&run.message[k][0]), run.activation[k][0].memory,
                         run.retained[k][0].memory, run.scratch[k].memory, head ? logits : NULL);
    }
    for (size_t i = 0; i < count; i++) {
        assert_true(fabs((double)logits[i] - expected[i]) < 1e-4);
    }
    for (uint32_t i = 0; i < ref.count; i++) {
        const rrfp_param *param = run_param(&run, i, false);
        for (uint64_t e = 0; e < param->count; e++) {
            assert_true(param->grad[e] == 0.0f);
        }
    }
    free(expected);
    free(logits);
    ref_free(&ref);
    run_close(&run);
}

static void evaluation(void **state)
{
    (void)state;
    check_evaluation(RRFP_ARCH_GPT2, false, 1);
    check_evaluation(RRFP_ARCH_GPT2, true, 4);
    check_evaluation(RRFP_ARCH_LLAMA, true, 1);
    check_evaluation(RRFP_ARCH_LLAMA, false, 3);
}

static void empty_chunk_passes_through(void **state)
{
    (void)state;
    const rrfp_model_config config = tiny_config(RRFP_ARCH_LLAMA, false);
    const rrfp_chunk_range range = {2, 0, false, false};
    rrfp_error error;
    rrfp_chunk *chunk;
    rrfp_chunk_sizes got;
    assert_int_equal(rrfp_chunk_create(&config, &range, NULL, &chunk, &error), RRFP_OK);
    assert_int_equal(rrfp_chunk_param_count(chunk), 0);
    rrfp_chunk_get_sizes(chunk, &got);
    assert_int_equal(got.activation_bytes, 0);
    assert_int_equal(got.retained_bytes, 0);
    assert_int_equal(rrfp_chunk_get_range(chunk)->first_layer, 2);

    float input[160], output[160], grad[160], back[160];
    for (int i = 0; i < 160; i++) {
        input[i] = (float)i;
        grad[i] = (float)-i;
    }
    guarded scratch = guarded_new(got.scratch_bytes);
    const rrfp_microbatch microbatch = {.training = true, .loss_scale = 1.0f};
    rrfp_chunk_forward(chunk, &microbatch, input, output, NULL, NULL, scratch.memory, NULL);
    assert_memory_equal(output, input, sizeof input);
    rrfp_chunk_backward(chunk, &microbatch, input, grad, back, NULL, NULL, scratch.memory);
    assert_memory_equal(back, grad, sizeof grad);
    rrfp_chunk_backward(chunk, &microbatch, input, grad, grad, NULL, NULL, scratch.memory);
    assert_memory_equal(back, grad, sizeof grad);
    rrfp_chunk_wgrad(chunk, &microbatch, NULL, scratch.memory);
    rrfp_chunk_zero_grads(chunk);
    guarded_free(&scratch);
    rrfp_chunk_destroy(chunk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(evaluation),
        cmocka_unit_test(empty_chunk_passes_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
