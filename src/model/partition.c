/* partition.c - which layers go to which global chunk. */
#include "model/internal.h"

static rrfp_status check_chunks(uint32_t chunks, rrfp_error *error)
{
    if (chunks == 0) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "a model cannot be cut into 0 chunks; use at least 1");
    }
    return RRFP_OK;
}

rrfp_status rrfp_model_partition(const rrfp_model_config *config, uint32_t chunks,
                                 rrfp_chunk_range *ranges, rrfp_error *error)
{
    rrfp_status status = check_chunks(chunks, error);
    if (status != RRFP_OK) {
        return status;
    }
    /* The remainder is less than `chunks`, so the last chunk never gets an extra layer. */
    const uint32_t share = config->num_layers / chunks;
    const uint32_t extra = config->num_layers % chunks;
    uint32_t first = 0;
    for (uint32_t i = 0; i < chunks; i++) {
        const uint32_t count = share + (i < extra ? 1 : 0);
        ranges[i] = (rrfp_chunk_range){first, count, i == 0, i == chunks - 1};
        first += count;
    }
    return RRFP_OK;
}

rrfp_status rrfp_model_partition_explicit(const rrfp_model_config *config, uint32_t chunks,
                                          const uint32_t *layer_counts,
                                          rrfp_chunk_range *ranges, rrfp_error *error)
{
    rrfp_status status = check_chunks(chunks, error);
    if (status != RRFP_OK) {
        return status;
    }
    uint64_t sum = 0;
    for (uint32_t i = 0; i < chunks; i++) {
        sum += layer_counts[i];
    }
    if (sum != config->num_layers) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "the layer counts of the %u chunks add up to %llu, but the model has "
                              "%u layers; correct the counts",
                              chunks, (unsigned long long)sum, config->num_layers);
    }
    uint32_t first = 0;
    for (uint32_t i = 0; i < chunks; i++) {
        ranges[i] = (rrfp_chunk_range){first, layer_counts[i], i == 0, i == chunks - 1};
        first += layer_counts[i];
    }
    return RRFP_OK;
}
