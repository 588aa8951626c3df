/* model_params.c - names, shapes, order, initial values and sharing of parameters. */
#include "support/model_run.h"

#include <math.h>

static void open_one(const rrfp_model_config *config, const rrfp_chunk_range *range,
                     const rrfp_chunk *share, rrfp_chunk **chunk)
{
    rrfp_error error;
    assert_int_equal(rrfp_chunk_create(config, range, share, chunk, &error), RRFP_OK);
}

typedef struct expectation {
    const char *name;
    uint32_t ndim;
    uint64_t rows, columns;
} expectation;

static void assert_params(const rrfp_model_config *config, const expectation *expected,
                          size_t count)
{
    const rrfp_chunk_range whole = {0, config->num_layers, true, true};
    rrfp_chunk *chunk;
    uint64_t sum = 0;
    open_one(config, &whole, NULL, &chunk);
    assert_int_equal(rrfp_chunk_param_count(chunk), count + (config->tied ? 1 : 0));
    for (size_t i = 0; i < count; i++) {
        const rrfp_param *param = rrfp_chunk_param(chunk, i);
        assert_string_equal(param->name, expected[i].name);
        assert_int_equal(param->ndim, expected[i].ndim);
        assert_int_equal(param->dims[0], expected[i].rows);
        assert_int_equal(param->dims[1], expected[i].columns);
        assert_int_equal(param->count, expected[i].rows * (param->ndim == 2 ? param->dims[1] : 1));
        assert_int_equal(param->global_index, i);
        assert_int_equal(param->decay, param->ndim == 2);
        assert_false(param->tied_copy);
        assert_int_equal((uintptr_t)param->value % 64, 0);
        assert_int_equal((uintptr_t)param->grad % 64, 0);
        for (uint64_t e = 0; e < param->count; e++) {
            assert_true(param->grad[e] == 0.0f);
        }
        sum += param->count;
    }
    assert_int_equal(sum, rrfp_model_param_count(config));
    rrfp_chunk_destroy(chunk);
}

static void gpt2_names(void **state)
{
    (void)state;
    static const expectation expected[] = {
        {"wte.weight", 2, 11, 16},
        {"wpe.weight", 2, 8, 16},
        {"h.0.ln_1.weight", 1, 16, 0},
        {"h.0.ln_1.bias", 1, 16, 0},
        {"h.0.attn.c_attn.weight", 2, 16, 48},
        {"h.0.attn.c_attn.bias", 1, 48, 0},
        {"h.0.attn.c_proj.weight", 2, 16, 16},
        {"h.0.attn.c_proj.bias", 1, 16, 0},
        {"h.0.ln_2.weight", 1, 16, 0},
        {"h.0.ln_2.bias", 1, 16, 0},
        {"h.0.mlp.c_fc.weight", 2, 16, 24},
        {"h.0.mlp.c_fc.bias", 1, 24, 0},
        {"h.0.mlp.c_proj.weight", 2, 24, 16},
        {"h.0.mlp.c_proj.bias", 1, 16, 0},
        {"ln_f.weight", 1, 16, 0},
        {"ln_f.bias", 1, 16, 0},
        {"lm_head.weight", 2, 11, 16},
    };
    rrfp_model_config config = tiny_config(RRFP_ARCH_GPT2, false);
    config.num_layers = 1;
    assert_params(&config, expected, 17);
    config.tied = true;
    assert_params(&config, expected, 16);
}

static void llama_names(void **state)
{
    (void)state;
    static const expectation expected[] = {
        {"model.embed_tokens.weight", 2, 11, 16},
        {"model.layers.0.input_layernorm.weight", 1, 16, 0},
        {"model.layers.0.self_attn.q_proj.weight", 2, 16, 16},
        {"model.layers.0.self_attn.k_proj.weight", 2, 8, 16},
        {"model.layers.0.self_attn.v_proj.weight", 2, 8, 16},
        {"model.layers.0.self_attn.o_proj.weight", 2, 16, 16},
        {"model.layers.0.post_attention_layernorm.weight", 1, 16, 0},
        {"model.layers.0.mlp.gate_proj.weight", 2, 20, 16},
        {"model.layers.0.mlp.up_proj.weight", 2, 20, 16},
        {"model.layers.0.mlp.down_proj.weight", 2, 16, 20},
        {"model.norm.weight", 1, 16, 0},
        {"lm_head.weight", 2, 11, 16},
    };
    rrfp_model_config config = tiny_config(RRFP_ARCH_LLAMA, false);
    config.num_layers = 1;
    assert_params(&config, expected, 12);
    config.tied = true;
    assert_params(&config, expected, 11);
}

static void initial_values_do_not_depend_on_the_partition(void **state)
{
    (void)state;
    for (int arch = RRFP_ARCH_GPT2; arch <= RRFP_ARCH_LLAMA; arch++) {
        rrfp_model_config config = tiny_config((rrfp_arch)arch, true);
        config.num_layers = 5;
        const rrfp_chunk_range all = {0, 5, true, true};
        rrfp_chunk *whole;
        open_one(&config, &all, NULL, &whole);
        for (uint32_t chunks = 2; chunks <= 8; chunks += 3) {
            rrfp_chunk_range ranges[8];
            size_t seen = 0;
            assert_int_equal(rrfp_model_partition(&config, chunks, ranges, NULL), RRFP_OK);
            for (uint32_t k = 0; k < chunks; k++) {
                rrfp_chunk *part;
                open_one(&config, &ranges[k], NULL, &part);
                for (size_t i = 0; i < rrfp_chunk_param_count(part); i++, seen++) {
                    const rrfp_param *a = rrfp_chunk_param(part, i);
                    const rrfp_param *b = rrfp_chunk_param(whole, seen);
                    assert_string_equal(a->name, b->name);
                    assert_int_equal(a->global_index, b->global_index);
                    assert_int_equal(a->tied_copy, b->tied_copy);
                    assert_memory_equal(a->value, b->value, a->count * sizeof(float));
                }
                rrfp_chunk_destroy(part);
            }
            assert_int_equal(seen, rrfp_chunk_param_count(whole));
        }
        rrfp_chunk_destroy(whole);
    }
}

static double deviation(const rrfp_param *param)
{
    double mean = 0.0, square = 0.0;
    for (uint64_t i = 0; i < param->count; i++) {
        mean += (double)param->value[i] / (double)param->count;
        square += (double)param->value[i] * (double)param->value[i] / (double)param->count;
    }
    return sqrt(square - mean * mean);
}

/* At 16384 values a deviation's own relative error is 0.55 %: 5 % is nine times that. */
static void initial_values_have_the_published_spread(void **state)
{
    (void)state;
    rrfp_model_config config = tiny_config(RRFP_ARCH_GPT2, true);
    config.num_layers = 8;
    config.hidden = config.ffn_hidden = 128;
    const rrfp_chunk_range range = {3, 1, false, false};
    rrfp_chunk *chunk;
    open_one(&config, &range, NULL, &chunk);
    for (size_t i = 0; i < rrfp_chunk_param_count(chunk); i++) {
        const rrfp_param *param = rrfp_chunk_param(chunk, i);
        if (param->ndim == 2) {
            /* 0.02 / sqrt(2 * 8) = 0.005 for what writes to the residual stream. */
            const double expected = strstr(param->name, "c_proj") != NULL ? 0.005 : 0.02;
            assert_true(fabs(deviation(param) / expected - 1.0) < 0.05);
        } else {
            const float expected = strstr(param->name, ".weight") != NULL ? 1.0f : 0.0f;
            for (uint64_t e = 0; e < param->count; e++) {
                assert_true(param->value[e] == expected);
            }
        }
    }
    rrfp_chunk *other;
    config.seed++;
    open_one(&config, &range, NULL, &other);
    assert_memory_not_equal(rrfp_chunk_param(chunk, 2)->value, rrfp_chunk_param(other, 2)->value,
                            sizeof(float) * 128);
    rrfp_chunk_destroy(other);
    rrfp_chunk_destroy(chunk);
}

static rrfp_param *last_param(rrfp_chunk *chunk)
{
    return rrfp_chunk_param(chunk, rrfp_chunk_param_count(chunk) - 1);
}

static void tied_head_shares_or_copies(void **state)
{
    (void)state;
    const rrfp_model_config config = tiny_config(RRFP_ARCH_GPT2, true);
    const rrfp_chunk_range first = {0, 1, true, false}, last = {1, 1, false, true};
    const rrfp_chunk_range whole = {0, 2, true, true};
    rrfp_chunk *front, *sharing, *copying, *single;
    open_one(&config, &first, NULL, &front);
    open_one(&config, &last, front, &sharing);
    open_one(&config, &last, NULL, &copying);
    open_one(&config, &whole, NULL, &single);
    const rrfp_param *matrix = rrfp_chunk_param(front, 0);

    assert_ptr_equal(last_param(sharing)->value, matrix->value);
    assert_ptr_not_equal(last_param(copying)->value, matrix->value);
    assert_memory_equal(last_param(copying)->value, matrix->value, matrix->count * sizeof(float));
    assert_ptr_equal(last_param(single)->value, rrfp_chunk_param(single, 0)->value);
    rrfp_chunk *const heads[] = {sharing, copying, single};
    for (int i = 0; i < 3; i++) {
        const rrfp_param *head = last_param(heads[i]);
        assert_true(head->tied_copy);
        assert_string_equal(head->name, "wte.weight");
        assert_int_equal(head->global_index, 0);
        assert_ptr_not_equal(head->grad, matrix->grad);
        assert_ptr_not_equal(head->grad, rrfp_chunk_param(heads[i], 0)->grad);
    }
    /* The owner survives its borrower. */
    rrfp_chunk_destroy(sharing);
    matrix->value[0] = 1.0f;
    rrfp_chunk_destroy(front);
    rrfp_chunk_destroy(copying);
    rrfp_chunk_destroy(single);
    rrfp_chunk_destroy(NULL);
}

static void refused_chunks(void **state)
{
    (void)state;
    rrfp_model_config config = tiny_config(RRFP_ARCH_GPT2, true);
    const rrfp_chunk_range wrong[] = {
        {1, 2, false, false}, {1, 1, true, false}, {0, 1, false, true},
        {UINT32_MAX, 3, false, false},
    };
    rrfp_chunk *chunk = NULL;
    rrfp_error error;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(rrfp_chunk_create(&config, &wrong[i], NULL, &chunk, &error),
                         RRFP_ERR_INVALID);
        assert_non_null(strstr(error.text, "does not fit a model of 2 layers"));
    }
    const rrfp_chunk_range middle = {0, 1, false, false}, last = {1, 1, false, true};
    rrfp_chunk *without;
    open_one(&config, &middle, NULL, &without);
    assert_int_equal(rrfp_chunk_create(&config, &last, without, &chunk, &error), RRFP_ERR_INVALID);
    assert_non_null(strstr(error.text, "has no embedding"));
    config.heads = 3;
    assert_int_equal(rrfp_chunk_create(&config, &last, NULL, &chunk, &error), RRFP_ERR_INVALID);
    assert_null(chunk);
    rrfp_chunk_destroy(without);
}

static void zero_grads_clears_all_of_them(void **state)
{
    (void)state;
    const rrfp_model_config config = tiny_config(RRFP_ARCH_LLAMA, true);
    model_run run;
    run_open(&run, &config, 1, 1, false);
    run_plain(&run);
    rrfp_chunk_zero_grads(run.chunk[0]);
    for (size_t i = 0; i < rrfp_chunk_param_count(run.chunk[0]); i++) {
        const rrfp_param *param = rrfp_chunk_param(run.chunk[0], i);
        for (uint64_t e = 0; e < param->count; e++) {
            assert_true(param->grad[e] == 0.0f);
        }
    }
    run_close(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_names),
        cmocka_unit_test(llama_names),
        cmocka_unit_test(initial_values_do_not_depend_on_the_partition),
        cmocka_unit_test(initial_values_have_the_published_spread),
        cmocka_unit_test(tied_head_shares_or_copies),
        cmocka_unit_test(refused_chunks),
        cmocka_unit_test(zero_grads_clears_all_of_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
