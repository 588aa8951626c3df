/*
 * model_tensor_parallel.c - the layers of a model shared by 2 or 4 ranks (threads) against the
 * same model on one: loss, gradients and initial values, with every option that changes a layer.
 *
 * The ranks add partial products in another order than one rank does, so gradients agree within
 * 1e-5 of the largest of their tensor; replicated parameters must have equal bits on all ranks.
 */
#include "support/model_run.h"

#include <math.h>
#include <pthread.h>

#include "collective/collective.h"

enum { CHUNKS = 2, MICROBATCHES = 2, MOST_RANKS = 4 };

typedef struct rank {
    model_run run;
    rrfp_model_config config;
    rrfp_collective *group;
    pthread_t thread;
} rank;

static void *rank_main(void *argument)
{
    rank *self = argument;
    rrfp_error error;
    run_open(&self->run, &self->config, CHUNKS, MICROBATCHES, false);
    for (uint32_t k = 0; k < CHUNKS; k++) {
        rrfp_chunk_set_tensor_group(self->run.chunk[k], self->group);
    }
    run_plain(&self->run);
    assert_int_equal(rrfp_collective_failure(self->group, &error), RRFP_OK);
    return NULL;
}

static void run_ranks(rank *ranks, const rrfp_model_config *config, uint32_t size)
{
    rrfp_collective *groups[MOST_RANKS];
    rrfp_error error;
    assert_int_equal(rrfp_collective_threads(size, groups, &error), RRFP_OK);
    for (uint32_t t = 0; t < size; t++) {
        ranks[t] = (rank){.config = *config, .group = groups[t]};
        ranks[t].config.tensor_size = size;
        ranks[t].config.tensor_rank = t;
        assert_int_equal(pthread_create(&ranks[t].thread, NULL, rank_main, &ranks[t]), 0);
    }
    for (uint32_t t = 0; t < size; t++) {
        assert_int_equal(pthread_join(ranks[t].thread, NULL), 0);
        rrfp_collective_destroy(groups[t]);
    }
}

/* Everything the ranks have of parameter `index` of chunk k, as one tensor. */
static float *gathered(rank *ranks, uint32_t size, uint32_t k, size_t index)
{
    const rrfp_param *first = rrfp_chunk_param(ranks[0].run.chunk[k], index);
    float *whole = malloc(first->whole_count * sizeof *whole);
    assert_non_null(whole);
    for (uint64_t e = 0; e < first->whole_count; e++) {
        whole[e] = NAN; /* a place that no rank has stays one */
    }
    for (uint32_t t = 0; t < size; t++) {
        const rrfp_param *param = rrfp_chunk_param(ranks[t].run.chunk[k], index);
        rrfp_param_gather(param, param->grad, whole);
        if (!param->sharded) {
            assert_memory_equal(param->grad, first->grad, param->count * sizeof(float));
        }
    }
    return whole;
}

static void compare(rrfp_model_config config, uint32_t size)
{
    model_run alone;
    rank ranks[MOST_RANKS];
    rrfp_model_config one = config;
    one.sequence_parallel = false;
    run_open(&alone, &one, CHUNKS, MICROBATCHES, false);
    run_plain(&alone);
    run_ranks(ranks, &config, size);
    for (uint32_t m = 0; m < MICROBATCHES; m++) {
        for (uint32_t t = 0; t < size; t++) {
            assert_true(fabs(ranks[t].run.loss[m] - alone.loss[m]) <= 1e-5 * fabs(alone.loss[m]));
            assert_true(ranks[t].run.loss[m] == ranks[0].run.loss[m]);
        }
    }
    for (uint32_t k = 0; k < CHUNKS; k++) {
        for (size_t i = 0; i < rrfp_chunk_param_count(alone.chunk[k]); i++) {
            const rrfp_param *want = rrfp_chunk_param(alone.chunk[k], i);
            float *got = gathered(ranks, size, k, i);
            double largest = 0.0, apart = 0.0;
            for (uint64_t e = 0; e < want->count; e++) {
                const double difference = fabs((double)got[e] - (double)want->grad[e]);
                largest = fmax(largest, fabs((double)want->grad[e]));
                apart = difference > apart || isnan(difference) ? difference : apart;
            }
            if (!(apart <= 1e-5 * largest)) {
                fail_msg("%s on %u ranks: a gradient is off by %g of %g", want->name, size, apart,
                         largest);
            }
            free(got);
        }
    }
    for (uint32_t t = 0; t < size; t++) {
        run_close(&ranks[t].run);
    }
    run_close(&alone);
}

static rrfp_model_config config_of(rrfp_arch arch, bool tied, uint32_t size)
{
    rrfp_model_config config = tiny_config(arch, tied);
    config.seq_length = 8;
    if (size == 4) {
        config.kv_heads = 4;
    }
    return config;
}

static void test_matches_one_rank(void **unused)
{
    (void)unused;
    for (int options = 0; options < 32; options++) {
        const uint32_t size = (options & 1) != 0 ? 4 : 2;
        const rrfp_arch arch = (options & 2) != 0 ? RRFP_ARCH_LLAMA : RRFP_ARCH_GPT2;
        rrfp_model_config config = config_of(arch, (options & 4) != 0, size);
        config.sequence_parallel = (options & 8) != 0;
        config.recompute = (options & 16) != 0;
        config.dropout = (options & 16) != 0 ? 0.25f : 0.0f;
        compare(config, size);
    }
}

/* Dropout keeps its places without recomputation too, and one token a rank is enough. */
static void test_dropout_and_smallest_vocabulary(void **unused)
{
    (void)unused;
    for (int sequence = 0; sequence < 2; sequence++) {
        rrfp_model_config config = config_of(RRFP_ARCH_GPT2, true, 4);
        config.dropout = 0.5f;
        config.vocab = 4;
        config.sequence_parallel = sequence != 0;
        compare(config, 4);
    }
}

/* The shards of initial values are parts of what one rank draws; a gather puts them back. */
static void test_initial_values(void **unused)
{
    (void)unused;
    const rrfp_chunk_range range = {0, 2, true, true};
    for (int arch = 0; arch < 2; arch++) {
        rrfp_model_config config = tiny_config((rrfp_arch)arch, false);
        rrfp_chunk *whole, *part[2];
        rrfp_error error;
        assert_int_equal(rrfp_chunk_create(&config, &range, NULL, &whole, &error), RRFP_OK);
        config.tensor_size = 2;
        for (uint32_t t = 0; t < 2; t++) {
            config.tensor_rank = t;
            assert_int_equal(rrfp_chunk_create(&config, &range, NULL, &part[t], &error), RRFP_OK);
        }
        for (size_t i = 0; i < rrfp_chunk_param_count(whole); i++) {
            const rrfp_param *want = rrfp_chunk_param(whole, i);
            float *got = calloc(want->count, sizeof *got);
            uint64_t floats = 0;
            for (uint32_t t = 0; t < 2; t++) {
                const rrfp_param *shard = rrfp_chunk_param(part[t], i);
                rrfp_param_gather(shard, shard->value, got);
                floats += shard->sharded ? shard->count : shard->count / 2;
            }
            assert_int_equal(floats, want->count);
            assert_memory_equal(got, want->value, want->count * sizeof *got);
            free(got);
        }
        rrfp_chunk_destroy(whole);
        rrfp_chunk_destroy(part[0]);
        rrfp_chunk_destroy(part[1]);
    }
}

static void refused(rrfp_model_config config, const char *line)
{
    rrfp_error error;
    assert_int_equal(rrfp_model_config_finish(&config, &error), RRFP_ERR_INVALID);
    assert_string_equal(error.text, line);
}

static void test_what_does_not_divide(void **unused)
{
    (void)unused;
    rrfp_model_config config = tiny_config(RRFP_ARCH_LLAMA, false);
    config.tensor_size = 4;
    refused(config, "2 key/value heads cannot be divided among 4 tensor-parallel ranks; take a "
                    "--tensor-model-parallel-size that divides them");
    config.tensor_size = 3;
    refused(config, "4 heads cannot be divided among 3 tensor-parallel ranks; take a "
                    "--tensor-model-parallel-size that divides them");
    config.tensor_size = 2;
    config.sequence_parallel = true;
    refused(config, "5 positions of a sequence (--sequence-parallel) cannot be divided among 2 "
                    "tensor-parallel ranks; take a --tensor-model-parallel-size that divides them");
    config.sequence_parallel = false;
    config.ffn_hidden = 21;
    refused(config, "21 hidden units of the MLP cannot be divided among 2 tensor-parallel ranks; "
                    "take a --tensor-model-parallel-size that divides them");
    config.ffn_hidden = 20;
    config.vocab = 1;
    refused(config, "a vocabulary of 1 leaves some of 2 tensor-parallel ranks without a token; "
                    "lower --tensor-model-parallel-size");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matches_one_rank),
        cmocka_unit_test(test_dropout_and_smallest_vocabulary),
        cmocka_unit_test(test_initial_values),
        cmocka_unit_test(test_what_does_not_divide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
