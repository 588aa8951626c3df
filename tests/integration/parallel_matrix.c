/*
 * parallel_matrix.c - stages x tensor-parallel ranks x replicas.
 *
 * Of one (tp, dp) all pipelines, hints, orders, coordinations and delays give the same bits.  A
 * tensor- or data-parallel sum is in another order than that of one rank, so across (tp, dp)
 * losses and norms agree to rounding, 1e-5.
 */
#include <math.h>
#include <stdlib.h>

#include "support/tiny_run.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const uint32_t SIZES[] = {1, 2, 4};
static rrfp_error error;

/* 8 heads in 4 groups, so that 4 ranks share both; 33 tokens, so that no rank has as many as
 * another. */
static void defaults(tiny_run *run, rrfp_arch arch, uint32_t pp, uint32_t tp, uint32_t dp)
{
    tiny_defaults(run, arch, 4 / dp);
    run->config.model.heads = 8;
    run->config.model.kv_heads = arch == RRFP_ARCH_LLAMA ? 4 : 8;
    run->config.model.vocab = 33;
    run->config.model.tensor_size = tp;
    run->config.stages = pp;
    run->config.data_size = dp;
}

static tiny_result execute(tiny_run *run, const char *label)
{
    tiny_result result;
    if (tiny_execute(run, &result, &error) != RRFP_OK) {
        fail_msg("%s: %s", label, error.text);
    }
    return result;
}

static void check_same_bits(const tiny_result *expect, const tiny_result *got, const char *label)
{
    for (int i = 0; i < TINY_STEPS; i++) {
        if (expect->loss_bits[i] != got->loss_bits[i] ||
            expect->norm_bits[i] != got->norm_bits[i]) {
            fail_msg("%s: step %d: loss %.9g norm %.9g, expected %.9g and %.9g", label, i + 1,
                     (double)got->loss[i], (double)got->norm[i], (double)expect->loss[i],
                     (double)expect->norm[i]);
        }
    }
    if (expect->eval_bits != got->eval_bits || strcmp(expect->sha256, got->sha256) != 0) {
        fail_msg("%s: evaluation or weights differ", label);
    }
}

/* One of the many runs of a shape: `index` picks hint, order, coordination, chunks and delays. */
static tiny_result run_variant(rrfp_arch arch, uint32_t pp, uint32_t tp, uint32_t dp,
                               unsigned index, char *label, size_t label_bytes)
{
    tiny_run run;
    defaults(&run, arch, pp, tp, dp);
    const rrfp_hint_info *hint = rrfp_hint_at(index % rrfp_hint_count());
    run.config.hint = hint->name;
    run.config.chunks = hint->chunks != 0          ? hint->chunks
                        : hint->min_chunks > 1     ? hint->min_chunks
                                                   : 1 + index % 2;
    bool fixed = index / 2 % 2 == 1, all_gather = index / 4 % 2 == 1;
    run.config.hint_distance = fixed ? 0 : RRFP_DISTANCE_UNBOUNDED;
    run.config.coordination = all_gather ? RRFP_COORDINATION_ALL_GATHER : RRFP_COORDINATION_LEAD;
    run.config.distributed_optimizer = index % 3 == 1;
    run.budget.max_inflight = index % 5 == 4 ? 1 : 0;
    assert_int_equal(rrfp_jitter_parse(index % 3 == 2 ? "none" : "lognormal:1.0,scale:0.2", index,
                                       &run.config.jitter, &error),
                     RRFP_OK);
    snprintf(label, label_bytes,
             "arch %d pp %u tp %u dp %u v %u hint %s order %s coordination %s%s", (int)arch, pp,
             tp, dp, run.config.chunks, hint->name, fixed ? "fixed" : "ready",
             all_gather ? "allgather" : "lead",
             run.config.distributed_optimizer ? " zero-1" : "");
    tiny_result result = execute(&run, label);
    if (!all_gather && result.retries != 0) {
        fail_msg("%s: %llu retries", label, (unsigned long long)result.retries);
    }
    return result;
}

static void run_matrix(rrfp_arch arch)
{
    unsigned index = arch == RRFP_ARCH_LLAMA ? 1 : 0, runs = 0;
#ifdef RRFP_SANITIZED
    const unsigned variants = 1;
#else
    const unsigned variants = 5;
#endif
    for (uint32_t dp = 1; dp <= 2; dp++) {
        for (size_t t = 0; t < COUNT(SIZES); t++) {
            tiny_run one;
            char label[200];
            defaults(&one, arch, 1, SIZES[t], dp);
            tiny_result expect = execute(&one, "reference");
            for (size_t p = 0; p < COUNT(SIZES); p++) {
                for (unsigned i = 0; i < variants; i++, runs++) {
                    tiny_result got = run_variant(arch, SIZES[p], SIZES[t], dp, index++, label,
                                                  sizeof label);
                    check_same_bits(&expect, &got, label);
                }
            }
        }
    }
    print_message("%u runs of 18 shapes, bit-equal within each (tp, dp)\n", runs);
}

static void gpt2_gives_the_same_bits_whatever_the_order(void **state)
{
    (void)state;
    run_matrix(RRFP_ARCH_GPT2);
}

static void llama_gives_the_same_bits_whatever_the_order(void **state)
{
    (void)state;
    run_matrix(RRFP_ARCH_LLAMA);
}

static void check_close(const tiny_result *expect, const tiny_result *got, const char *label)
{
    for (int i = 0; i < TINY_STEPS; i++) {
        double loss = fabs((double)got->loss[i] / (double)expect->loss[i] - 1.0);
        double norm = fabs((double)got->norm[i] / (double)expect->norm[i] - 1.0);
        if (!(loss < 1e-5) || !(norm < 1e-5)) {
            fail_msg("%s: step %d: loss off by %.2g, norm by %.2g", label, i + 1, loss, norm);
        }
    }
}

/* Of the same global batch; dropout's draws are those of the whole model. */
static void shapes_agree_to_rounding(void **state)
{
    (void)state;
    for (int arch = RRFP_ARCH_GPT2; arch <= RRFP_ARCH_LLAMA; arch++) {
        tiny_run run;
        defaults(&run, (rrfp_arch)arch, 1, 1, 1);
        tiny_result expect = execute(&run, "one rank");
        for (unsigned i = 0; i < 12; i++) {
            uint32_t tp = SIZES[i % 3], dp = SIZES[i / 3 % 2];
            char label[80];
            defaults(&run, (rrfp_arch)arch, 2, tp, dp);
            run.config.model.sequence_parallel = tp > 1 && i >= 6;
            snprintf(label, sizeof label, "arch %d tp %u dp %u%s", arch, tp, dp,
                     run.config.model.sequence_parallel ? " sequence-parallel" : "");
            tiny_result got = execute(&run, label);
            check_close(&expect, &got, label);
        }
    }
}

static void sequence_parallel_ranks_give_the_same_bits_whatever_the_order(void **state)
{
    (void)state;
    tiny_run run;
    defaults(&run, RRFP_ARCH_GPT2, 1, 4, 1);
    run.config.model.sequence_parallel = true;
    tiny_result expect = execute(&run, "one stage");
    for (unsigned i = 0; i < rrfp_hint_count(); i++) {
        const rrfp_hint_info *hint = rrfp_hint_at(i);
        defaults(&run, RRFP_ARCH_GPT2, 2, 4, 1);
        run.config.model.sequence_parallel = true;
        run.config.hint = hint->name;
        run.config.chunks = hint->chunks != 0 ? hint->chunks : hint->min_chunks;
        run.config.chunks += run.config.chunks == 0;
        tiny_result got = execute(&run, hint->name);
        check_same_bits(&expect, &got, hint->name);
    }
}

/* Every gradient element is summed by one replica, once a step. */
static void every_gradient_is_summed_once(void **state)
{
    (void)state;
    for (uint32_t dp = 2; dp <= 4; dp += 2) {
        tiny_run run;
        defaults(&run, RRFP_ARCH_LLAMA, 2, 1, dp);
        run.config.model.tied = false;
        tiny_result got = execute(&run, "dp");
        assert_int_equal(got.summed_floats,
                         TINY_STEPS * rrfp_model_param_count(&run.config.model));
    }
}

static void what_ranks_cannot_share_is_refused(void **state)
{
    (void)state;
    const struct {
        uint32_t heads, kv_heads, vocab, tp;
        const char *says;
    } rows[] = {
        {8, 8, 32, 3, "8 heads cannot be divided among 3 tensor-parallel ranks"},
        {8, 2, 32, 4, "2 key/value heads cannot be divided among 4 tensor-parallel ranks"},
        {8, 8, 3, 4, "a vocabulary of 3 leaves some of 4 tensor-parallel ranks without a token"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        tiny_run run;
        tiny_result result;
        defaults(&run, RRFP_ARCH_LLAMA, 1, rows[i].tp, 1);
        run.config.model.heads = rows[i].heads;
        run.config.model.kv_heads = rows[i].kv_heads;
        run.config.model.vocab = rows[i].vocab;
        assert_int_not_equal(tiny_execute(&run, &result, &error), RRFP_OK);
        assert_non_null(strstr(error.text, rows[i].says));
    }
}

/* A task that fails on one rank ends them all, with that rank's reason. */
static rrfp_status fetch_or_fail(void *context, bool evaluation, uint64_t first_sample,
                                 int32_t *tokens, int32_t *targets, rrfp_error *why)
{
    if (first_sample == 3) {
        return rrfp_error_set(why, RRFP_ERR_IO, "sample 3 cannot be read");
    }
    return tiny_fetch(context, evaluation, first_sample, tokens, targets, why);
}

static void a_failing_rank_ends_all(void **state)
{
    (void)state;
    for (int how = 0; how < 2; how++) {
        tiny_run run;
        tiny_result result;
        defaults(&run, RRFP_ARCH_GPT2, 2, 2, 2);
        run.config.coordination = how == 0 ? RRFP_COORDINATION_LEAD : RRFP_COORDINATION_ALL_GATHER;
        run.config.fetch = fetch_or_fail;
        run.config.fetch_context = &run.config.model;
        assert_int_equal(tiny_execute(&run, &result, &error), RRFP_ERR_IO);
        assert_string_equal(error.text, "sample 3 cannot be read");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_gives_the_same_bits_whatever_the_order),
        cmocka_unit_test(llama_gives_the_same_bits_whatever_the_order),
        cmocka_unit_test(shapes_agree_to_rounding),
        cmocka_unit_test(sequence_parallel_ranks_give_the_same_bits_whatever_the_order),
        cmocka_unit_test(every_gradient_is_summed_once),
        cmocka_unit_test(what_ranks_cannot_share_is_refused),
        cmocka_unit_test(a_failing_rank_ends_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
