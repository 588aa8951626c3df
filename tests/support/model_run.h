/*
 * model_run.h - a model cut into chunks, with the blocks of several microbatches.
 *
 * Every block is exactly as large as reported, is filled with NaN before use
 * and after the call that frees it, and has canary bytes behind it.
 */
#ifndef RRFP_TESTS_MODEL_RUN_H
#define RRFP_TESTS_MODEL_RUN_H

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/rng.h"
#include "model/model.h"

enum { RUN_CHUNKS = 8, RUN_MICROBATCHES = 4, RUN_CANARY = 64 };

typedef struct guarded {
    unsigned char *memory;
    uint64_t bytes;
} guarded;

typedef struct model_run {
    rrfp_model_config config;
    uint32_t chunks, microbatches;
    rrfp_chunk_range ranges[RUN_CHUNKS];
    rrfp_chunk *chunk[RUN_CHUNKS];
    rrfp_chunk_sizes sizes[RUN_CHUNKS];
    guarded activation[RUN_CHUNKS][RUN_MICROBATCHES], retained[RUN_CHUNKS][RUN_MICROBATCHES];
    guarded message[RUN_CHUNKS][RUN_MICROBATCHES]; /* output of the chunk */
    guarded gradient[RUN_CHUNKS][RUN_MICROBATCHES]; /* gradient of its input */
    guarded scratch[RUN_CHUNKS];
    int32_t *tokens[RUN_MICROBATCHES], *targets[RUN_MICROBATCHES];
    double loss[RUN_MICROBATCHES];
    float loss_scale;
} model_run;

static inline void guarded_poison(guarded *block)
{
    memset(block->memory, 0xff, block->bytes); /* NaN in every float */
}

static inline guarded guarded_new(uint64_t bytes)
{
    guarded block = {NULL, bytes};
    const uint64_t whole = (bytes + 63) / 64 * 64 + RUN_CANARY;
    block.memory = aligned_alloc(64, whole);
    assert_non_null(block.memory);
    memset(block.memory + bytes, 0xc5, whole - bytes);
    guarded_poison(&block);
    return block;
}

static inline void guarded_free(guarded *block)
{
    for (int i = 0; i < RUN_CANARY; i++) {
        assert_int_equal(block->memory[block->bytes + (size_t)i], 0xc5);
    }
    free(block->memory);
    block->memory = NULL;
}

static inline rrfp_model_config tiny_config(rrfp_arch arch, bool tied)
{
    rrfp_model_config config = {
        .arch = arch,
        .num_layers = 2,
        .hidden = 16,
        .heads = 4,
        .kv_heads = arch == RRFP_ARCH_LLAMA ? 2 : 4,
        .ffn_hidden = arch == RRFP_ARCH_LLAMA ? 20 : 24,
        .vocab = 11,
        .max_positions = 8,
        .seq_length = 5,
        .micro_batch = 2,
        .norm_eps = 1e-5f,
        .rope_theta = 100.0f,
        .tied = tied,
        .seed = 1234,
    };
    return config;
}

/* Larger weights than the initial ones, so that no gradient hides behind another. */
static inline void randomise_params(rrfp_chunk *chunk)
{
    for (size_t i = 0; i < rrfp_chunk_param_count(chunk); i++) {
        rrfp_param *param = rrfp_chunk_param(chunk, i);
        const rrfp_rng_key key = {77, RRFP_RNG_SAMPLE, param->global_index, 0, 0};
        const char *end = strrchr(param->name, '.');
        const bool scale = param->ndim == 1 && strcmp(end, ".weight") == 0;
        float *whole = malloc(param->whole_count * sizeof *whole);
        assert_non_null(whole);
        for (uint64_t e = 0; e < param->whole_count; e++) {
            whole[e] = (float)((scale ? 1.0 : 0.0) + 0.3 * rrfp_rng_normal(&key, e));
        }
        rrfp_param_scatter(param, whole, param->value);
        free(whole);
    }
}

static inline void run_open(model_run *run, const rrfp_model_config *config, uint32_t chunks,
                     uint32_t microbatches, bool share)
{
    rrfp_error error;
    *run = (model_run){.config = *config, .chunks = chunks, .microbatches = microbatches,
                       .loss_scale = 0.125f};
    rrfp_kernels_thread_init(1);
    assert_int_equal(rrfp_model_config_finish(&run->config, &error), RRFP_OK);
    assert_int_equal(rrfp_model_partition(&run->config, chunks, run->ranges, &error), RRFP_OK);
    for (uint32_t k = 0; k < chunks; k++) {
        assert_int_equal(rrfp_chunk_create(&run->config, &run->ranges[k],
                                           share ? run->chunk[0] : NULL, &run->chunk[k], &error),
                         RRFP_OK);
        randomise_params(run->chunk[k]);
        rrfp_chunk_get_sizes(run->chunk[k], &run->sizes[k]);
        run->scratch[k] = guarded_new(run->sizes[k].scratch_bytes);
        for (uint32_t m = 0; m < microbatches; m++) {
            const uint64_t message = run->sizes[k].message_floats * sizeof(float);
            run->activation[k][m] = guarded_new(run->sizes[k].activation_bytes);
            run->retained[k][m] = guarded_new(run->sizes[k].retained_bytes);
            run->message[k][m] = guarded_new(message);
            run->gradient[k][m] = guarded_new(message);
        }
    }
    const size_t n = (size_t)run->config.micro_batch * run->config.seq_length;
    for (uint32_t m = 0; m < microbatches; m++) {
        run->tokens[m] = malloc(n * sizeof(int32_t));
        run->targets[m] = malloc(n * sizeof(int32_t));
        const rrfp_rng_key key = {78, RRFP_RNG_DATA, m, 0, 0};
        for (size_t i = 0; i < n; i++) {
            run->tokens[m][i] = (int32_t)(rrfp_rng_u32(&key, i) % run->config.vocab);
            run->targets[m][i] = (int32_t)(rrfp_rng_u32(&key, n + i) % run->config.vocab);
        }
        run->targets[m][3] = -1; /* one ignored position */
    }
}

static inline void run_close(model_run *run)
{
    for (uint32_t k = 0; k < run->chunks; k++) {
        rrfp_chunk_destroy(run->chunk[k]);
        guarded_free(&run->scratch[k]);
        for (uint32_t m = 0; m < run->microbatches; m++) {
            guarded_free(&run->activation[k][m]);
            guarded_free(&run->retained[k][m]);
            guarded_free(&run->message[k][m]);
            guarded_free(&run->gradient[k][m]);
        }
    }
    for (uint32_t m = 0; m < run->microbatches; m++) {
        free(run->tokens[m]);
        free(run->targets[m]);
    }
}

static inline rrfp_microbatch run_microbatch(const model_run *run, uint32_t m, bool training)
{
    rrfp_microbatch microbatch = {
        .step = 9,
        .index = m,
        .training = training,
        .tokens = run->tokens[m],
        .targets = run->targets[m],
        .loss_scale = run->loss_scale,
    };
    return microbatch;
}

static inline float *floats_of(const guarded *block)
{
    return (float *)(void *)block->memory;
}

static inline void run_forward(model_run *run, uint32_t k, uint32_t m, bool training)
{
    const rrfp_microbatch microbatch = run_microbatch(run, m, training);
    guarded_poison(&run->scratch[k]);
    rrfp_chunk_forward(run->chunk[k], &microbatch,
                       k > 0 ? floats_of(&run->message[k - 1][m]) : NULL,
                       k + 1 < run->chunks ? floats_of(&run->message[k][m]) : NULL,
                       run->activation[k][m].memory,
                       run->sizes[k].forward_retains ? run->retained[k][m].memory : NULL,
                       run->scratch[k].memory, &run->loss[m]);
}

/* Odd microbatches use one buffer for both gradients, as a runtime may. */
static inline void run_backward(model_run *run, uint32_t k, uint32_t m)
{
    const rrfp_microbatch microbatch = run_microbatch(run, m, true);
    const float *after = k + 1 < run->chunks ? floats_of(&run->gradient[k + 1][m]) : NULL;
    float *before = k > 0 ? floats_of(&run->gradient[k][m]) : NULL;
    if (m % 2 == 1 && after != NULL && before != NULL) {
        memcpy(before, after, run->gradient[k][m].bytes);
        after = before;
    }
    guarded_poison(&run->scratch[k]);
    rrfp_chunk_backward(run->chunk[k], &microbatch,
                        k > 0 ? floats_of(&run->message[k - 1][m]) : NULL, after, before,
                        run->activation[k][m].memory, run->retained[k][m].memory,
                        run->scratch[k].memory);
    guarded_poison(&run->activation[k][m]);
    if (k > 0) {
        guarded_poison(&run->message[k - 1][m]);
    }
}

static inline void run_wgrad(model_run *run, uint32_t k, uint32_t m)
{
    const rrfp_microbatch microbatch = run_microbatch(run, m, true);
    guarded_poison(&run->scratch[k]);
    rrfp_chunk_wgrad(run->chunk[k], &microbatch, run->retained[k][m].memory,
                     run->scratch[k].memory);
    guarded_poison(&run->retained[k][m]);
}

/* All microbatches one after another, weight gradients at once. */
static inline void run_plain(model_run *run)
{
    for (uint32_t m = 0; m < run->microbatches; m++) {
        for (uint32_t k = 0; k < run->chunks; k++) {
            run_forward(run, k, m, true);
        }
        for (uint32_t k = run->chunks; k-- > 0;) {
            run_backward(run, k, m);
            run_wgrad(run, k, m);
        }
    }
}

/* The parameter of a global index anywhere in the model; NULL if there is none. */
static inline rrfp_param *run_param(const model_run *run, uint32_t global_index, bool tied_copy)
{
    for (uint32_t k = 0; k < run->chunks; k++) {
        for (size_t i = 0; i < rrfp_chunk_param_count(run->chunk[k]); i++) {
            rrfp_param *param = rrfp_chunk_param(run->chunk[k], i);
            if (param->global_index == global_index && param->tied_copy == tied_copy) {
                return param;
            }
        }
    }
    return NULL;
}

#endif /* RRFP_TESTS_MODEL_RUN_H */
