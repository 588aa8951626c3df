/*
 * tiny_run.h - a tiny model through a real pipeline, for tests: deterministic
 * tokens, a few steps, and what must not depend on the pipeline.
 */
#ifndef RRFP_TINY_RUN_H
#define RRFP_TINY_RUN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "train/pipeline.h"

enum { TINY_STEPS = 2, TINY_MAX_STAGES = 16 };

typedef struct tiny_result {
    uint32_t loss_bits[TINY_STEPS], norm_bits[TINY_STEPS];
    uint64_t eval_bits;
    char sha256[65];
    float loss[TINY_STEPS], norm[TINY_STEPS];
    uint32_t peak_inflight[TINY_MAX_STAGES], peak_pending_w[TINY_MAX_STAGES]; /* of any rank */
    uint64_t tasks, out_of_hint, retries, summed_floats;
} tiny_result;

typedef struct tiny_run {
    rrfp_pipeline_config config;
    rrfp_budget budget; /* of every stage */
    double clip_grad;
} tiny_run;

static inline rrfp_status tiny_fetch(void *context, bool evaluation, uint64_t first_sample,
                                     int32_t *tokens, int32_t *targets, rrfp_error *error)
{
    const rrfp_model_config *model = context;
    (void)error;
    for (uint32_t b = 0; b < model->micro_batch; b++) {
        for (uint32_t t = 0; t <= model->seq_length; t++) {
            uint64_t x = (first_sample + b) * 1000003u + t * 7919u + (evaluation ? 17u : 0u);
            x ^= x >> 13;
            x *= 0x9E3779B97F4A7C15u;
            int32_t token = (int32_t)((x >> 40) % model->vocab);
            if (t < model->seq_length) {
                tokens[b * model->seq_length + t] = token;
            }
            if (t > 0) {
                targets[b * model->seq_length + t - 1] = token;
            }
        }
    }
    return RRFP_OK;
}

/* 5 layers so that 2, 4 and 8 chunks are uneven; dropout and clipping are on.  `microbatches`
 * are of one replica. */
static inline void tiny_defaults(tiny_run *run, rrfp_arch arch, uint32_t microbatches)
{
    memset(run, 0, sizeof *run);
    run->config.model = (rrfp_model_config){
        .arch = arch,
        .num_layers = 5,
        .hidden = 16,
        .heads = 2,
        .kv_heads = arch == RRFP_ARCH_LLAMA ? 1 : 2,
        .vocab = 32,
        .max_positions = 8,
        .seq_length = 8,
        .micro_batch = 1,
        .norm_eps = 1e-5f,
        .rope_theta = 10000.0f,
        .dropout = 0.1f,
        .tied = true,
        .seed = 1234,
    };
    run->config.hint = "1f1b";
    run->config.stages = 1;
    run->config.chunks = 1;
    run->config.microbatches = microbatches;
    run->config.hint_distance = RRFP_DISTANCE_UNBOUNDED;
    run->config.accumulate = RRFP_ACCUMULATE_ORDERED;
    run->config.threads_per_stage = 1;
    run->clip_grad = 0.5;
}

static inline uint32_t tiny_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline void tiny_note_ranks(rrfp_pipeline *pipeline, tiny_result *result)
{
    const rrfp_layout *layout = rrfp_pipeline_layout(pipeline);
    for (uint32_t r = 0; r < layout->tensor * layout->data * layout->pipeline; r++) {
        uint32_t s = rrfp_layout_place_of(layout, r).stage;
        rrfp_rank_totals totals;
        rrfp_pipeline_rank_totals(pipeline, r, &totals);
        if (result->peak_inflight[s] < totals.peak_inflight) {
            result->peak_inflight[s] = totals.peak_inflight;
        }
        if (result->peak_pending_w[s] < totals.peak_pending_w) {
            result->peak_pending_w[s] = totals.peak_pending_w;
        }
        result->retries += totals.retries;
        result->summed_floats += totals.summed_floats;
    }
}

static inline rrfp_status tiny_execute(tiny_run *run, tiny_result *result, rrfp_error *error)
{
    rrfp_budget budgets[TINY_MAX_STAGES];
    rrfp_pipeline *pipeline = NULL;
    memset(result, 0, sizeof *result);
    for (uint32_t s = 0; s < run->config.stages && s < TINY_MAX_STAGES; s++) {
        budgets[s] = run->budget;
    }
    rrfp_status status = rrfp_model_config_finish(&run->config.model, error);
    if (status != RRFP_OK) {
        return status;
    }
    run->config.budgets = budgets;
    if (run->config.fetch == NULL) {
        run->config.fetch = tiny_fetch;
        run->config.fetch_context = &run->config.model;
    }
    status = rrfp_pipeline_create(&run->config, &pipeline, error);
    for (uint64_t i = 0; status == RRFP_OK && i < TINY_STEPS; i++) {
        rrfp_train_step step = {
            .iteration = i + 1,
            .first_sample = i * run->config.microbatches * run->config.model.micro_batch *
                            (run->config.data_size == 0 ? 1 : run->config.data_size),
            .adamw = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                      .weight_decay = 0.1f, .step = i + 1},
            .clip_grad = run->clip_grad,
        };
        rrfp_step_result out;
        status = rrfp_pipeline_train_step(pipeline, &step, &out, error);
        if (status == RRFP_OK) {
            result->loss_bits[i] = tiny_bits(out.loss);
            result->norm_bits[i] = tiny_bits(out.grad_norm);
            result->loss[i] = out.loss;
            result->norm[i] = out.grad_norm;
            result->tasks += out.dispatches;
            result->out_of_hint += out.out_of_hint;
        }
        if (status == RRFP_OK && i == 0) {
            double loss = 0.0;
            status = rrfp_pipeline_eval_step(pipeline, 0, &loss, error);
            memcpy(&result->eval_bits, &loss, sizeof loss);
        }
    }
    if (status == RRFP_OK) {
        status = rrfp_pipeline_collect(pipeline, RRFP_COLLECT_WEIGHTS, error);
    }
    if (status == RRFP_OK) {
        rrfp_pipeline_weights_sha256(pipeline, result->sha256);
        tiny_note_ranks(pipeline, result);
    }
    rrfp_pipeline_destroy(pipeline);
    return status;
}

#endif /* RRFP_TINY_RUN_H */
