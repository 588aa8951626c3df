/* model_config.c - defaults, refusals, parameter and operation counts of published models. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "model/model.h"

static rrfp_model_config gpt2_124m(void)
{
    const rrfp_model_config config = {
        .arch = RRFP_ARCH_GPT2,
        .num_layers = 12,
        .hidden = 768,
        .heads = 12,
        .vocab = 50257,
        .max_positions = 1024,
        .seq_length = 1024,
        .micro_batch = 4,
        .tied = true,
    };
    return config;
}

static rrfp_model_config llama3_8b(void)
{
    const rrfp_model_config config = {
        .arch = RRFP_ARCH_LLAMA,
        .num_layers = 32,
        .hidden = 4096,
        .heads = 32,
        .kv_heads = 8,
        .ffn_hidden = 14336,
        .vocab = 128256,
        .max_positions = 8192,
        .seq_length = 8192,
        .micro_batch = 1,
        .rope_theta = 500000.0f,
    };
    return config;
}

/* Field by field, since padding bytes may differ. */
static bool same(const rrfp_model_config *a, const rrfp_model_config *b)
{
    return a->arch == b->arch && a->num_layers == b->num_layers && a->hidden == b->hidden &&
           a->heads == b->heads && a->kv_heads == b->kv_heads && a->ffn_hidden == b->ffn_hidden &&
           a->vocab == b->vocab && a->max_positions == b->max_positions &&
           a->seq_length == b->seq_length && a->micro_batch == b->micro_batch &&
           memcmp(&a->norm_eps, &b->norm_eps, sizeof a->norm_eps) == 0 &&
           memcmp(&a->rope_theta, &b->rope_theta, sizeof a->rope_theta) == 0 &&
           memcmp(&a->dropout, &b->dropout, sizeof a->dropout) == 0 && a->tied == b->tied &&
           a->recompute == b->recompute && a->seed == b->seed;
}

static void published_parameter_counts(void **state)
{
    (void)state;
    rrfp_model_config gpt2 = gpt2_124m();
    rrfp_model_config llama = llama3_8b();
    rrfp_error error;
    assert_int_equal(rrfp_model_config_finish(&gpt2, &error), RRFP_OK);
    assert_int_equal(rrfp_model_config_finish(&llama, &error), RRFP_OK);
    assert_int_equal(rrfp_model_param_count(&gpt2), 124439808);
    assert_int_equal(rrfp_model_param_count(&llama), 8030261248);
    gpt2.tied = false; /* one more 50257 x 768 */
    assert_int_equal(rrfp_model_param_count(&gpt2), 124439808 + 38597376);
}

static void operation_count(void **state)
{
    (void)state;
    rrfp_model_config gpt2 = gpt2_124m();
    rrfp_model_config llama = llama3_8b();
    rrfp_error error;
    assert_int_equal(rrfp_model_config_finish(&gpt2, &error), RRFP_OK);
    assert_int_equal(rrfp_model_config_finish(&llama, &error), RRFP_OK);
    /*
     * Six per weight of a matrix product and token, plus 6 T C per layer of causal attention:
     * GPT-2   weights 12 (4 + 8) 768^2 + 50257 * 768 = 123532032, attention 12 * 1024 * 768.
     * Llama-3 weights 32 (4096 * (4096 + 2048) + 4096^2 + 3 * 4096 * 14336) + 128256 * 4096
     *         = 7504658432, attention 32 * 8192 * 4096.
     */
    assert_true(rrfp_model_flops_per_token(&gpt2) == 6.0 * (123532032.0 + 9437184.0));
    assert_true(rrfp_model_flops_per_token(&llama) == 6.0 * (7504658432.0 + 1073741824.0));
}

static void defaults(void **state)
{
    (void)state;
    rrfp_error error;
    rrfp_model_config config = gpt2_124m();
    config.max_positions = 0;
    assert_int_equal(rrfp_model_config_finish(&config, &error), RRFP_OK);
    assert_int_equal(config.kv_heads, 12);
    assert_int_equal(config.ffn_hidden, 3072);
    assert_int_equal(config.max_positions, 1024);
    assert_true(config.norm_eps == 1e-5f);
    assert_true(config.rope_theta == 10000.0f);

    config = llama3_8b();
    config.ffn_hidden = 0; /* 8/3 * 4096 = 10922.7 -> 10944 = 342 * 32 */
    assert_int_equal(rrfp_model_config_finish(&config, &error), RRFP_OK);
    assert_int_equal(config.ffn_hidden, 10944);
    config.hidden = 96; /* 8/3 * 96 = 256 exactly */
    config.ffn_hidden = 0;
    config.heads = 8;
    assert_int_equal(rrfp_model_config_finish(&config, &error), RRFP_OK);
    assert_int_equal(config.ffn_hidden, 256);

    const rrfp_model_config once = config;
    assert_int_equal(rrfp_model_config_finish(&config, &error), RRFP_OK);
    assert_true(same(&once, &config)); /* finishing again changes nothing */
}

/* Refused with a line that has `words`, and left as it was. */
static void assert_refused(const rrfp_model_config *config, const char *words)
{
    rrfp_error error = {RRFP_OK, ""};
    rrfp_model_config tried = *config;
    assert_int_equal(rrfp_model_config_finish(&tried, &error), RRFP_ERR_INVALID);
    assert_int_equal(error.status, RRFP_ERR_INVALID);
    if (strstr(error.text, words) == NULL) {
        fail_msg("\"%s\" lacks \"%s\"", error.text, words);
    }
    assert_null(strchr(error.text, '\n'));
    assert_true(same(&tried, config));
}

#define REFUSED(base, field, bad, words)                                                           \
    do {                                                                                           \
        rrfp_model_config wrong = base();                                                          \
        wrong.field = (bad);                                                                       \
        assert_refused(&wrong, words);                                                             \
    } while (0)

static void refusals(void **state)
{
    (void)state;
    REFUSED(gpt2_124m, arch, (rrfp_arch)7, "architecture 7");
    REFUSED(gpt2_124m, num_layers, 0, "layers is 0");
    REFUSED(gpt2_124m, num_layers, 100001, "layers is 100001");
    REFUSED(gpt2_124m, hidden, 0, "hidden size is 0");
    REFUSED(gpt2_124m, hidden, 770, "770 is not a multiple of the 12 heads");
    REFUSED(gpt2_124m, heads, 0, "heads is 0");
    REFUSED(gpt2_124m, kv_heads, 4, "not 4");
    REFUSED(gpt2_124m, vocab, 0, "vocabulary size is 0");
    REFUSED(gpt2_124m, vocab, UINT32_MAX, "vocabulary size is 4294967295");
    REFUSED(gpt2_124m, seq_length, 0, "sequence length is 0");
    REFUSED(gpt2_124m, seq_length, 1025, "1025 is more than the model's 1024 positions");
    REFUSED(gpt2_124m, micro_batch, 0, "microbatch size is 0");
    REFUSED(gpt2_124m, micro_batch, 1 << 22, "more than 2147483647 tokens");
    REFUSED(gpt2_124m, dropout, 1.0f, "dropout is 1");
    REFUSED(gpt2_124m, dropout, -0.1f, "dropout is -0.1");
    REFUSED(gpt2_124m, dropout, NAN, "dropout is");
    REFUSED(gpt2_124m, norm_eps, -1e-5f, "norm_eps is -1e-05");
    REFUSED(gpt2_124m, norm_eps, INFINITY, "norm_eps is inf");
    REFUSED(llama3_8b, kv_heads, 5, "32 heads is not a multiple of 5");
    REFUSED(llama3_8b, kv_heads, 64, "32 heads is not a multiple of 64");
    REFUSED(llama3_8b, hidden, 32 * 3, "head size 3");
    REFUSED(llama3_8b, rope_theta, 0.5f, "rope_theta is 0.5");
    REFUSED(llama3_8b, ffn_hidden, UINT32_MAX, "hidden size of the MLP is 4294967295");
}

static void larger_than_the_address_space(void **state)
{
    (void)state;
    rrfp_model_config config = llama3_8b();
    config.num_layers = 100000;
    config.hidden = 1 << 24;
    config.heads = 1 << 10;
    config.ffn_hidden = 1 << 26;
    assert_refused(&config, "larger than the address space");
    config = gpt2_124m();
    config.vocab = INT32_MAX; /* the logits, not the matrix: 2^31 * 2^31 * 4 bytes */
    config.seq_length = config.max_positions = 1 << 24;
    config.micro_batch = 127;
    assert_refused(&config, "larger than the address space");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_parameter_counts),
        cmocka_unit_test(operation_count),
        cmocka_unit_test(defaults),
        cmocka_unit_test(refusals),
        cmocka_unit_test(larger_than_the_address_space),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
