/*
 * run.c - what a chunk does with a microbatch: forward, backward, weight gradients, inference.
 *
 * The residual stream has states x0 (embedding, or the caller's input), x1, ...
 * xL, one before each layer and one after the last; xL goes to the head or to
 * the caller's output.  Where each is kept is drawn in internal.h.
 */
#include "model/internal.h"

#include <string.h>

/* One call on a chunk, with the caller's blocks as floats. */
typedef struct pass {
    rrfp_chunk *chunk;
    const rrfp_microbatch *microbatch;
    bool training;
    const float *input;
    float *output;
    float *activation;
    float *retained;
    float *scratch;
} pass;

static rrfp_layer_call layer_call(const pass *run, uint32_t index)
{
    rrfp_chunk *chunk = run->chunk;
    const uint32_t per_layer = rrfp_params_in_layer(&chunk->config);
    rrfp_layer_call call = {
        .config = &chunk->config,
        .dims = &chunk->dims,
        .params = chunk->params + chunk->first_layer_param + (size_t)index * per_layer,
        .tensor = chunk->tensor,
        .microbatch = run->microbatch,
        .layer = chunk->range.first_layer + index,
        .dropout = run->training ? chunk->config.dropout : 0.0f,
    };
    return call;
}

static rrfp_layer_call embedding_call(const pass *run)
{
    rrfp_layer_call call = layer_call(run, 0);
    call.layer = RRFP_EMBEDDING_LAYER;
    return call;
}

/* Of the head: its params are found by head_param. */
static rrfp_layer_call head_call(const pass *run)
{
    return layer_call(run, run->chunk->range.layer_count);
}

rrfp_rng_key rrfp_dropout_key(const rrfp_layer_call *call, uint32_t site)
{
    /* Steps beyond 2^32 would reuse masks, which harms nobody. */
    const rrfp_rng_key key = {
        .seed = call->config->seed,
        .stream = RRFP_RNG_DROPOUT,
        .a = call->layer * 8 + site,
        .b = call->microbatch->index,
        .step = (uint32_t)call->microbatch->step,
    };
    return key;
}

void rrfp_site_dropout(const rrfp_layer_call *call, uint32_t site, const float *x, float *y)
{
    const rrfp_model_dims *dims = call->dims;
    const size_t count = dims->r * dims->c;
    if (call->dropout > 0.0f) {
        const rrfp_rng_key key = rrfp_dropout_key(call, site);
        rrfp_dropout(x, y, count, call->dropout, dims->first_row * dims->c, &key);
    } else if (x != y) {
        memcpy(y, x, count * sizeof(float));
    }
}

static float *block_of(const pass *run, uint32_t index)
{
    const rrfp_chunk_layout *at = &run->chunk->layout;
    return run->retained + at->first_block + index * at->block_floats;
}

/* Where forward puts state `index` of the stream (0 only with the embedding). */
static float *state_place(const pass *run, uint32_t index)
{
    const rrfp_chunk *chunk = run->chunk;
    const rrfp_chunk_layout *at = &chunk->layout;
    if (index == chunk->range.layer_count && !chunk->range.has_head) {
        return run->output;
    }
    if (chunk->config.recompute) {
        const uint32_t slot = index - (chunk->range.has_embedding ? 0 : 1);
        return run->activation + at->first_input + slot * at->input_floats;
    }
    return index == 0 ? run->retained + at->embedding_out
                      : block_of(run, index - 1) + at->block_output;
}

static const float *state(const pass *run, uint32_t index)
{
    return index == 0 && !run->chunk->range.has_embedding ? run->input : state_place(run, index);
}

static float *stats_of(const pass *run, uint32_t index)
{
    const rrfp_chunk_layout *at = &run->chunk->layout;
    return run->activation + at->first_stats + index * at->stats_floats;
}

/* ---- forward ---- */

static rrfp_vocab_part vocab_part(const rrfp_model_dims *dims)
{
    return (rrfp_vocab_part){(int32_t)dims->first_v, (int32_t)dims->v};
}

static void embed(const pass *run)
{
    const rrfp_chunk *chunk = run->chunk;
    const rrfp_model_dims *dims = &chunk->dims;
    const rrfp_layer_call call = embedding_call(run);
    const float *wpe =
        chunk->config.arch == RRFP_ARCH_GPT2 ? rrfp_bias_once(&call, &chunk->params[1]) : NULL;
    float *x = state_place(run, 0);
    rrfp_embedding_part_fwd(run->microbatch->tokens, chunk->params[0].value, wpe,
                            rrfp_stream_partial(&call, x, run->scratch), dims->b, dims->t,
                            dims->c, vocab_part(dims));
    rrfp_stream_reduce(&call, x, run->scratch);
    rrfp_site_dropout(&call, RRFP_SITE_EMBEDDING, x, x);
}

static void forward_to_head(const pass *run)
{
    const rrfp_chunk *chunk = run->chunk;
    const rrfp_chunk_layout *at = &chunk->layout;
    const uint32_t layers = chunk->range.layer_count;
    if (chunk->range.has_embedding) {
        embed(run);
    } else if (layers == 0 && !chunk->range.has_head) {
        memcpy(run->output, run->input, chunk->dims.r * chunk->dims.c * sizeof(float));
    }
    for (uint32_t i = 0; i < layers; i++) {
        const rrfp_layer_call call = layer_call(run, i);
        const bool again = chunk->config.recompute;
        float *block = again ? run->scratch : block_of(run, i);
        float *stats = again ? run->scratch + at->forward_stats : stats_of(run, i);
        chunk->ops->forward(&call, state(run, i), state_place(run, i + 1), block, stats,
                            run->scratch + at->forward_scratch);
    }
}

/* The head's matrix is the last parameter, after the final norm. */
static rrfp_param *head_matrix(const rrfp_chunk *chunk)
{
    return &chunk->params[chunk->param_count - 1];
}

static void head_logits(const pass *run, float *logits)
{
    const rrfp_chunk *chunk = run->chunk;
    const rrfp_chunk_layout *at = &chunk->layout;
    const rrfp_model_dims *dims = &chunk->dims;
    const rrfp_param *p = chunk->params + chunk->head_param;
    const float *x = state(run, chunk->range.layer_count);
    const rrfp_layer_call call = head_call(run);
    float *norm = run->retained + at->head_norm;
    float *mine = norm + dims->first_row * dims->c;
    float *rstd = run->activation + at->head_rstd;
    if (chunk->config.arch == RRFP_ARCH_GPT2) {
        rrfp_layernorm_fwd(x, p[0].value, p[1].value, chunk->config.norm_eps, mine,
                           run->activation + at->head_mean, rstd, dims->r, dims->c);
    } else {
        rrfp_rmsnorm_fwd(x, p[0].value, chunk->config.norm_eps, mine, rstd, dims->r, dims->c);
    }
    rrfp_stream_gather(&call, norm);
    rrfp_linear_fwd(norm, head_matrix(chunk)->value, NULL, logits, dims->n, dims->c, dims->v,
                    true);
}

void rrfp_chunk_forward(rrfp_chunk *chunk, const rrfp_microbatch *microbatch,
                        const float *input, float *output, void *activation, void *retained,
                        void *scratch, double *loss_sum)
{
    const pass run = {chunk, microbatch, microbatch->training, input, output, activation,
                      retained, scratch};
    forward_to_head(&run);
    if (!chunk->range.has_head) {
        return;
    }
    float *logits = run.retained + chunk->layout.head_logits;
    head_logits(&run, logits);
    if (chunk->config.tensor_size > 1) {
        const rrfp_layer_call call = head_call(&run);
        *loss_sum = rrfp_vocab_loss(&call, logits, run.scratch);
    } else if (run.training) {
        *loss_sum = rrfp_cross_entropy(logits, microbatch->targets, chunk->dims.n, chunk->dims.v,
                                       microbatch->loss_scale);
    } else {
        *loss_sum = rrfp_cross_entropy_loss(logits, microbatch->targets, chunk->dims.n,
                                            chunk->dims.v);
    }
}

void rrfp_chunk_infer(rrfp_chunk *chunk, const rrfp_microbatch *microbatch, const float *input,
                      float *output, void *scratch_activation, void *scratch_retained,
                      void *scratch, float *logits)
{
    const pass run = {chunk, microbatch, false, input, output, scratch_activation,
                      scratch_retained, scratch};
    forward_to_head(&run);
    if (chunk->range.has_head) {
        head_logits(&run, logits);
    }
}

/* ---- backward ---- */

/* grad = d(xL); the logits hold d(logits) since forward. */
static void head_backward(const pass *run, float *grad)
{
    const rrfp_chunk *chunk = run->chunk;
    const rrfp_chunk_layout *at = &chunk->layout;
    const rrfp_model_dims *dims = &chunk->dims;
    const rrfp_param *p = chunk->params + chunk->head_param;
    const float *x = state(run, chunk->range.layer_count);
    const float *mean = run->activation + at->head_mean;
    const float *rstd = run->activation + at->head_rstd;
    const rrfp_layer_call call = head_call(run);
    float *dnorm = run->scratch + at->backward_scratch;
    float *partial = rrfp_stream_partial(&call, dnorm, dnorm + dims->n * dims->c);
    float *dgamma = run->retained + at->head_dgamma;
    float *dbeta = run->retained + at->head_dbeta;
    memset(dgamma, 0, dims->c * sizeof(float));
    memset(dbeta, 0, dims->c * sizeof(float));
    rrfp_linear_dgrad(run->retained + at->head_logits, head_matrix(chunk)->value, partial, dims->n,
                      dims->c, dims->v, true, false);
    rrfp_stream_reduce(&call, dnorm, partial);
    if (chunk->config.arch == RRFP_ARCH_GPT2) {
        rrfp_layernorm_wgrad(dnorm, x, mean, rstd, dgamma, dbeta, dims->r, dims->c);
        rrfp_layernorm_dgrad(dnorm, x, p[0].value, mean, rstd, grad, dims->r, dims->c, false);
        rrfp_norm_reduce(&call, dbeta, dims->c);
    } else {
        rrfp_rmsnorm_wgrad(dnorm, x, rstd, dgamma, dims->r, dims->c);
        rrfp_rmsnorm_dgrad(dnorm, x, p[0].value, rstd, grad, dims->r, dims->c, false);
    }
    rrfp_norm_reduce(&call, dgamma, dims->c);
}

static void layer_backward(const pass *run, uint32_t index, float *grad)
{
    const rrfp_chunk *chunk = run->chunk;
    const rrfp_chunk_layout *at = &chunk->layout;
    const rrfp_layer_call call = layer_call(run, index);
    const float *x = state(run, index);
    float *block = block_of(run, index);
    float *scratch = run->scratch + at->backward_scratch;
    float *stats;
    if (chunk->config.recompute) {
        stats = run->scratch + at->backward_stats;
        chunk->ops->forward(&call, x, NULL, block, stats, scratch);
    } else {
        stats = stats_of(run, index);
    }
    chunk->ops->backward(&call, x, grad, block, stats, scratch);
}

void rrfp_chunk_backward(rrfp_chunk *chunk, const rrfp_microbatch *microbatch,
                         const float *input, const float *grad_output, float *grad_input,
                         void *activation, void *retained, void *scratch)
{
    const pass run = {chunk, microbatch, microbatch->training, input, NULL, activation, retained,
                      scratch};
    /* The stream's gradient is carried through the layers in one place. */
    float *grad = grad_input != NULL ? grad_input : run.scratch + chunk->layout.stream;
    if (chunk->range.has_head) {
        head_backward(&run, grad);
    } else if (grad != grad_output) {
        memcpy(grad, grad_output, chunk->dims.r * chunk->dims.c * sizeof(float));
    }
    for (uint32_t i = chunk->range.layer_count; i-- > 0;) {
        layer_backward(&run, i, grad);
    }
    if (chunk->range.has_embedding) {
        const rrfp_layer_call call = embedding_call(&run);
        float *rows = run.retained + chunk->layout.embedding_out;
        rrfp_site_dropout(&call, RRFP_SITE_EMBEDDING, grad,
                          rows + chunk->dims.first_row * chunk->dims.c);
        rrfp_stream_gather(&call, rows);
    }
}

/* ---- weight gradients ---- */

static void head_wgrad(rrfp_chunk *chunk, const float *retained)
{
    const rrfp_chunk_layout *at = &chunk->layout;
    const rrfp_model_dims *dims = &chunk->dims;
    rrfp_param *p = chunk->params + chunk->head_param;
    rrfp_add(p[0].grad, retained + at->head_dgamma, dims->c);
    if (chunk->config.arch == RRFP_ARCH_GPT2) {
        rrfp_add(p[1].grad, retained + at->head_dbeta, dims->c);
    }
    rrfp_linear_wgrad(retained + at->head_norm, retained + at->head_logits,
                      head_matrix(chunk)->grad, NULL, dims->n, dims->c, dims->v, true);
}

static void unit_done(const rrfp_microbatch *microbatch, uint32_t unit)
{
    if (microbatch->unit_done != NULL) {
        microbatch->unit_done(microbatch->unit_context, unit);
    }
}

void rrfp_chunk_wgrad(rrfp_chunk *chunk, const rrfp_microbatch *microbatch,
                      const void *retained, void *scratch)
{
    const rrfp_chunk_layout *at = &chunk->layout;
    const rrfp_model_dims *dims = &chunk->dims;
    const float *kept = retained;
    const pass run = {.chunk = chunk, .microbatch = microbatch, .scratch = scratch};
    uint32_t unit = 0;
    if (chunk->range.has_head) {
        head_wgrad(chunk, kept);
        unit_done(microbatch, unit++);
    }
    for (uint32_t i = chunk->range.layer_count; i-- > 0;) {
        const rrfp_layer_call call = layer_call(&run, i);
        chunk->ops->wgrad(&call, kept + at->first_block + i * at->block_floats);
        unit_done(microbatch, unit++);
    }
    if (chunk->range.has_embedding) {
        float *dwpe = chunk->config.arch == RRFP_ARCH_GPT2 ? chunk->params[1].grad : NULL;
        rrfp_embedding_part_wgrad(microbatch->tokens, kept + at->embedding_out,
                                  chunk->params[0].grad, dwpe, dims->b, dims->t, dims->c,
                                  vocab_part(dims));
        unit_done(microbatch, unit);
    }
}
