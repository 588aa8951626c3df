/*
 * tensor_parallel.c - where the ranks that share a layer meet: the residual stream between its
 * products, and the loss over the vocabulary.
 */
#include "model/internal.h"

#include <string.h>

void rrfp_stream_gather(const rrfp_layer_call *call, float *rows)
{
    const rrfp_model_dims *dims = call->dims;
    if (call->tensor != NULL && call->config->sequence_parallel) {
        rrfp_all_gather(call->tensor, rows + dims->first_row * dims->c, rows,
                        dims->r * dims->c * sizeof(float));
    }
}

float *rrfp_stream_partial(const rrfp_layer_call *call, float *stream, float *partial)
{
    return call->config->sequence_parallel ? partial : stream;
}

void rrfp_stream_reduce(const rrfp_layer_call *call, float *stream, float *partial)
{
    const rrfp_model_dims *dims = call->dims;
    if (call->tensor == NULL) {
        return;
    }
    if (call->config->sequence_parallel) {
        rrfp_reduce_scatter(call->tensor, partial, stream, dims->r * dims->c);
    } else {
        rrfp_all_reduce(call->tensor, stream, dims->n * dims->c);
    }
}

void rrfp_norm_reduce(const rrfp_layer_call *call, float *gradients, size_t count)
{
    if (call->tensor != NULL && call->config->sequence_parallel) {
        rrfp_all_reduce(call->tensor, gradients, count);
    }
}

const float *rrfp_bias_once(const rrfp_layer_call *call, const rrfp_param *bias)
{
    return call->config->tensor_rank == 0 ? bias->value : NULL;
}

uint64_t rrfp_vocab_loss_floats(const rrfp_model_config *config, const rrfp_model_dims *dims)
{
    const uint64_t row = 1 + sizeof(rrfp_cross_entropy_sums) / sizeof(float);
    return rrfp_sat_mul(rrfp_sat_mul(1 + (uint64_t)config->tensor_size, dims->n), row);
}

double rrfp_vocab_loss(const rrfp_layer_call *call, float *logits, float *scratch)
{
    const rrfp_model_dims *dims = call->dims;
    const rrfp_microbatch *microbatch = call->microbatch;
    const rrfp_vocab_part part = {(int32_t)dims->first_v, (int32_t)dims->v};
    const size_t n = dims->n, ranks = call->config->tensor_size;
    rrfp_cross_entropy_sums *sums = (rrfp_cross_entropy_sums *)(void *)scratch;
    rrfp_cross_entropy_sums *all_sums = sums + n;
    float *max = (float *)(void *)(all_sums + ranks * n);
    float *all_max = max + n;

    rrfp_cross_entropy_part_max(logits, n, part, max);
    rrfp_all_gather(call->tensor, max, all_max, n * sizeof *max);
    for (size_t rank = 0; rank < ranks; rank++) {
        for (size_t row = 0; row < n; row++) {
            const float other = all_max[rank * n + row];
            max[row] = other > max[row] ? other : max[row];
        }
    }
    rrfp_cross_entropy_part_exp(logits, microbatch->targets, n, part, max, sums);
    rrfp_all_gather(call->tensor, sums, all_sums, n * sizeof *sums);
    memset(sums, 0, n * sizeof *sums);
    for (size_t rank = 0; rank < ranks; rank++) {
        for (size_t row = 0; row < n; row++) {
            sums[row].exponentials += all_sums[rank * n + row].exponentials;
            sums[row].target += all_sums[rank * n + row].target;
        }
    }
    return rrfp_cross_entropy_part_finish(logits, microbatch->targets, n, part, sums,
                                          microbatch->loss_scale);
}
