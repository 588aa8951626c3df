/*
 * gradients.c - sums of gradients over data-parallel replicas, while and after tasks run.
 *
 *   W of every microbatch done on every replica ──► bucket complete ──► each replica sums its slice
 *
 * A bucket is what one unit of a chunk adds at once (model.h).  It is complete by count, whatever
 * the order in which microbatches came.  The replicas' ranks of one stage and tensor rank share
 * its count; each owns a slice of every parameter, sums it over the replicas in their order, and
 * does so a piece at a time whenever it is free for tasks; what is left then, at the step's end.
 * Nobody else reads or writes the slice of a replica's own gradients that it owns, so nothing is
 * copied and nothing locked; who needs another's slice reads it there after the ranks have met.
 */
#include <stdlib.h>

#include "train/pipeline_internal.h"

enum { PIECE = 1 << 16, ALIGNMENT = 16, MOST_REPLICAS = 1024 };

rrfp_slice rrfp_slice_of(uint64_t count, uint32_t parts, uint32_t index)
{
    uint64_t first = (count * index / parts + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    uint64_t end = (count * (index + 1) / parts + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    first = first < count ? first : count;
    end = end < count ? end : count;
    return (rrfp_slice){first, end - first};
}

static rrfp_status no_memory(const rrfp_worker *worker, rrfp_error *error)
{
    return rrfp_error_set(error, RRFP_ERR_NOMEM, "rank %u: out of memory for %u buckets",
                          worker->rank, worker->bucket_count);
}

rrfp_status rrfp_gradients_init(rrfp_worker *worker, rrfp_error *error)
{
    const rrfp_pipeline *pipeline = worker->pipeline;
    uint32_t chunk_count = pipeline->shape.chunks, count = 0;
    if (pipeline->layout.data == 1) {
        return RRFP_OK;
    }
    worker->first_bucket = calloc(chunk_count, sizeof *worker->first_bucket);
    if (worker->first_bucket == NULL) {
        return no_memory(worker, error);
    }
    for (uint32_t v = 0; v < chunk_count; v++) {
        worker->first_bucket[v] = count;
        count += rrfp_chunk_unit_count(worker->chunks[v]);
    }
    worker->bucket_count = count;
    worker->progress = calloc(count > 0 ? count : 1, sizeof *worker->progress);
    if (worker->progress == NULL) {
        return no_memory(worker, error);
    }
    const rrfp_worker *first =
        rrfp_worker_at(pipeline, worker->place.stage, worker->place.tensor_rank, 0);
    if (worker != first) {
        worker->buckets = first->buckets; /* made before: replica 0 has the smaller rank */
        return RRFP_OK;
    }
    worker->buckets = calloc(count > 0 ? count : 1, sizeof *worker->buckets);
    if (worker->buckets == NULL) {
        return no_memory(worker, error);
    }
    size_t chunk_shard = 0;
    for (uint32_t v = 0; v < chunk_count; v++) {
        const rrfp_chunk *chunk = worker->chunks[v];
        for (uint32_t u = 0; u < rrfp_chunk_unit_count(chunk); u++) {
            rrfp_bucket *bucket = &worker->buckets[worker->first_bucket[v] + u];
            size_t first_param;
            rrfp_chunk_unit(chunk, u, &first_param, &bucket->shard_count);
            bucket->first_shard = chunk_shard + first_param;
        }
        chunk_shard += rrfp_chunk_param_count(chunk);
    }
    return RRFP_OK;
}

void rrfp_gradients_free(rrfp_worker *worker)
{
    if (worker->place.data_rank == 0) {
        free(worker->buckets);
    }
    free(worker->progress);
    free(worker->first_bucket);
}

void rrfp_gradients_begin(rrfp_worker *worker)
{
    for (uint32_t b = 0; b < worker->bucket_count; b++) {
        worker->progress[b] = (rrfp_bucket_progress){.shard = worker->buckets[b].first_shard};
    }
    worker->training_steps++;
}

static void wake_replicas(const rrfp_worker *worker)
{
    const rrfp_pipeline *pipeline = worker->pipeline;
    for (uint32_t d = 0; d < pipeline->layout.data; d++) {
        rrfp_transport *transport =
            rrfp_worker_at(pipeline, worker->place.stage, worker->place.tensor_rank, d)->transport;
        transport->ops->wake(transport);
    }
}

void rrfp_gradients_unit_done(rrfp_worker *worker, uint32_t chunk, uint32_t unit)
{
    uint32_t b = worker->first_bucket[chunk] + unit, replicas = worker->pipeline->layout.data;
    if (++worker->progress[b].microbatches < worker->pipeline->shape.microbatches) {
        return;
    }
    /* Counted over all steps, so that nobody has to set it back. */
    if (atomic_fetch_add(&worker->buckets[b].complete, 1) + 1 ==
        replicas * worker->training_steps) {
        wake_replicas(worker);
    }
}

/* A piece of the slice; false when the bucket's are all summed. */
static bool sum_piece(rrfp_worker *worker, uint32_t b)
{
    const rrfp_pipeline *pipeline = worker->pipeline;
    const rrfp_bucket *bucket = &worker->buckets[b];
    rrfp_bucket_progress *progress = &worker->progress[b];
    uint32_t replicas = pipeline->layout.data;
    while (progress->shard < bucket->first_shard + bucket->shard_count) {
        const rrfp_param *param = worker->shards[progress->shard].param;
        rrfp_slice slice = rrfp_slice_of(param->count, replicas, worker->place.data_rank);
        if (progress->at == slice.count) {
            progress->shard++;
            progress->at = 0;
            continue;
        }
        uint64_t left = slice.count - progress->at, count = left < PIECE ? left : PIECE;
        const float *parts[MOST_REPLICAS];
        for (uint32_t d = 0; d < replicas; d++) {
            const rrfp_worker *replica =
                rrfp_worker_at(pipeline, worker->place.stage, worker->place.tensor_rank, d);
            parts[d] = replica->shards[progress->shard].param->grad + slice.first + progress->at;
        }
        rrfp_sum_in_order(parts, replicas, param->grad + slice.first + progress->at, count);
        progress->at += count;
        worker->summed_floats += count;
        return true;
    }
    return false;
}

bool rrfp_gradients_sum_some(rrfp_worker *worker)
{
    uint32_t all = worker->pipeline->layout.data * worker->training_steps;
    uint64_t before = worker->summed_floats;
    for (uint32_t b = 0; b < worker->bucket_count; b++) {
        if (atomic_load(&worker->buckets[b].complete) == all && sum_piece(worker, b)) {
            worker->summed_hidden += worker->summed_floats - before;
            return true;
        }
    }
    return false;
}

void rrfp_gradients_finish(rrfp_worker *worker)
{
    for (uint32_t b = 0; b < worker->bucket_count; b++) {
        while (sum_piece(worker, b)) {
        }
    }
}
