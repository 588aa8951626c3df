/*
 * parameters.c - the parameters of all ranks, and the whole tensors that files have.
 *
 *   shards     of every rank: what it computes with, and the moments that it keeps
 *   entries    every parameter in full, for checkpoints
 *
 * Where one rank has all of a stage the entries are its own memory.  Where several share it they
 * lie in chunks of their own, which take memory between collect() and forget(), or during a load.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "train/pipeline_internal.h"

static rrfp_status out_of_memory(rrfp_error *error)
{
    return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for the list of parameters");
}

/* Pages cost memory once they are used. */
static float *map_floats(uint64_t count)
{
    void *base = mmap(NULL, (count > 0 ? count : 1) * sizeof(float), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return base == MAP_FAILED ? NULL : base;
}

static void unmap_floats(float *base, uint64_t count)
{
    if (base != NULL) {
        munmap(base, (count > 0 ? count : 1) * sizeof(float));
    }
}

static bool is_shared(const rrfp_pipeline *pipeline)
{
    return pipeline->layout.tensor * pipeline->layout.data > 1;
}

/* ---- entries -------------------------------------------------------------------------- */

/* Chunks of whole tensors, if no rank has them. */
static rrfp_status make_whole(rrfp_pipeline *pipeline, rrfp_error *error)
{
    const rrfp_shape *shape = &pipeline->shape;
    rrfp_model_config whole = rrfp_model_config_whole(&pipeline->config.model);
    rrfp_status status = RRFP_OK;
    pipeline->whole = calloc((size_t)shape->stages * shape->chunks, sizeof *pipeline->whole);
    if (pipeline->whole == NULL) {
        return out_of_memory(error);
    }
    for (uint32_t s = 0; s < shape->stages; s++) {
        const rrfp_chunk *embedding = NULL;
        for (uint32_t v = 0; status == RRFP_OK && v < shape->chunks; v++) {
            const rrfp_chunk_range *range = &pipeline->ranges[rrfp_shape_global_chunk(shape, s, v)];
            rrfp_chunk **chunk = &pipeline->whole[(size_t)s * shape->chunks + v];
            status = rrfp_chunk_create_elsewhere(&whole, range, range->has_head ? embedding : NULL,
                                                 chunk, error);
            embedding = status == RRFP_OK && range->has_embedding ? *chunk : embedding;
        }
    }
    return status;
}

static rrfp_chunk *entry_chunk(const rrfp_pipeline *pipeline, uint32_t stage, uint32_t chunk)
{
    return pipeline->whole != NULL
               ? pipeline->whole[(size_t)stage * pipeline->shape.chunks + chunk]
               : pipeline->workers[stage].chunks[chunk];
}

static bool stage_is_here(const rrfp_pipeline *pipeline, uint32_t stage)
{
    uint32_t per_stage = pipeline->ranks / pipeline->shape.stages;
    for (uint32_t r = stage * per_stage; r < (stage + 1) * per_stage; r++) {
        if (rrfp_rank_is_here(pipeline, r)) {
            return true;
        }
    }
    return false;
}

static void find_tied(rrfp_pipeline *pipeline)
{
    pipeline->tied_copy = pipeline->tied_owner = pipeline->entry_count;
    for (size_t i = 0; i < pipeline->entry_count; i++) {
        const rrfp_param *copy = pipeline->entries[i].param;
        for (size_t o = 0; copy->tied_copy && o < pipeline->entry_count; o++) {
            const rrfp_param *owner = pipeline->entries[o].param;
            if (!owner->tied_copy && owner->global_index == copy->global_index) {
                pipeline->tied_copy = i;
                pipeline->tied_owner = o;
            }
        }
    }
}

static rrfp_status list_entries(rrfp_pipeline *pipeline, rrfp_error *error)
{
    size_t count = 0;
    for (uint32_t s = 0; s < pipeline->shape.stages; s++) {
        for (uint32_t v = 0; v < pipeline->shape.chunks; v++) {
            count += rrfp_chunk_param_count(entry_chunk(pipeline, s, v));
        }
    }
    pipeline->entries = calloc(count, sizeof *pipeline->entries);
    pipeline->entry_stage = calloc(count, sizeof *pipeline->entry_stage);
    if (pipeline->entries == NULL || pipeline->entry_stage == NULL) {
        return out_of_memory(error);
    }
    for (uint32_t s = 0; s < pipeline->shape.stages; s++) {
        bool elsewhere = !stage_is_here(pipeline, s);
        for (uint32_t v = 0; v < pipeline->shape.chunks; v++) {
            rrfp_chunk *chunk = entry_chunk(pipeline, s, v);
            for (size_t i = 0; i < rrfp_chunk_param_count(chunk); i++) {
                const rrfp_param *param = rrfp_chunk_param(chunk, i);
                pipeline->entry_stage[pipeline->entry_count] = s;
                pipeline->entries[pipeline->entry_count++] =
                    (rrfp_checkpoint_entry){.param = param, .elsewhere = elsewhere};
                if (param->global_index >= pipeline->tensor_count) {
                    pipeline->tensor_count = param->global_index + 1;
                }
            }
        }
    }
    find_tied(pipeline);
    return RRFP_OK;
}

/* A tied copy in its owner's memory has no moments of its own. */
static bool has_moments(const rrfp_pipeline *pipeline, size_t entry)
{
    return entry != pipeline->tied_copy ||
           pipeline->entries[entry].param->value !=
               pipeline->entries[pipeline->tied_owner].param->value;
}

static rrfp_status make_entry_moments(rrfp_pipeline *pipeline, rrfp_error *error)
{
    for (size_t i = 0; i < pipeline->entry_count; i++) {
        rrfp_checkpoint_entry *entry = &pipeline->entries[i];
        if (!has_moments(pipeline, i)) {
            continue;
        }
        entry->exp_avg = map_floats(entry->param->count);
        entry->exp_avg_sq = map_floats(entry->param->count);
        if (entry->exp_avg == NULL || entry->exp_avg_sq == NULL) {
            return out_of_memory(error);
        }
    }
    return RRFP_OK;
}

/* ---- shards --------------------------------------------------------------------------- */

static rrfp_status make_shards(rrfp_worker *worker, size_t first_entry, rrfp_error *error)
{
    const rrfp_pipeline *pipeline = worker->pipeline;
    const rrfp_layout *layout = &pipeline->layout;
    uint32_t parts = pipeline->config.distributed_optimizer ? layout->data : 1;
    size_t count = 0, at = 0;
    for (uint32_t v = 0; v < pipeline->shape.chunks; v++) {
        count += rrfp_chunk_param_count(worker->chunks[v]);
    }
    worker->first_entry = first_entry;
    worker->shards = calloc(count > 0 ? count : 1, sizeof *worker->shards);
    if (worker->shards == NULL) {
        return out_of_memory(error);
    }
    worker->shard_count = count;
    for (uint32_t v = 0; v < pipeline->shape.chunks; v++) {
        for (size_t i = 0; i < rrfp_chunk_param_count(worker->chunks[v]); i++) {
            rrfp_shard *shard = &worker->shards[at];
            const rrfp_checkpoint_entry *entry = &pipeline->entries[first_entry + at++];
            shard->param = rrfp_chunk_param(worker->chunks[v], i);
            shard->kept = rrfp_slice_of(shard->param->count, parts,
                                        parts == 1 ? 0 : worker->place.data_rank);
            if (!is_shared(pipeline)) {
                shard->exp_avg = entry->exp_avg;
                shard->exp_avg_sq = entry->exp_avg_sq;
            } else if (entry->exp_avg != NULL) {
                shard->exp_avg = map_floats(shard->kept.count);
                shard->exp_avg_sq = map_floats(shard->kept.count);
                if (shard->exp_avg == NULL || shard->exp_avg_sq == NULL) {
                    return out_of_memory(error);
                }
            }
        }
    }
    return RRFP_OK;
}

rrfp_status rrfp_pipeline_make_parameters(rrfp_pipeline *pipeline, rrfp_error *error)
{
    uint32_t per_stage = pipeline->ranks / pipeline->shape.stages;
    rrfp_status status = is_shared(pipeline) ? make_whole(pipeline, error) : RRFP_OK;
    if (status == RRFP_OK) {
        status = list_entries(pipeline, error);
    }
    if (status == RRFP_OK) {
        status = make_entry_moments(pipeline, error);
    }
    size_t entry = 0;
    for (uint32_t r = 0; status == RRFP_OK && r < pipeline->ranks; r++) {
        if (r > 0 && r % per_stage == 0) {
            entry += pipeline->workers[r - 1].shard_count;
        }
        status = make_shards(&pipeline->workers[r], entry, error);
    }
    if (status != RRFP_OK) {
        return status;
    }
    pipeline->squares = calloc((size_t)pipeline->tensor_count * per_stage,
                               sizeof *pipeline->squares);
    pipeline->microbatch_loss =
        calloc(rrfp_pipeline_microbatches(pipeline), sizeof *pipeline->microbatch_loss);
    return pipeline->squares == NULL || pipeline->microbatch_loss == NULL ? out_of_memory(error)
                                                                          : RRFP_OK;
}

void rrfp_pipeline_free_parameters(rrfp_pipeline *pipeline)
{
    for (uint32_t r = 0; r < pipeline->worker_count; r++) {
        rrfp_worker *worker = &pipeline->workers[r];
        for (size_t i = 0; is_shared(pipeline) && i < worker->shard_count; i++) {
            unmap_floats(worker->shards[i].exp_avg, worker->shards[i].kept.count);
            unmap_floats(worker->shards[i].exp_avg_sq, worker->shards[i].kept.count);
        }
        free(worker->shards);
        worker->shards = NULL;
        worker->shard_count = 0;
    }
    for (size_t i = 0; i < pipeline->entry_count; i++) {
        unmap_floats(pipeline->entries[i].exp_avg, pipeline->entries[i].param->count);
        unmap_floats(pipeline->entries[i].exp_avg_sq, pipeline->entries[i].param->count);
    }
    size_t pieces = (size_t)pipeline->shape.stages * pipeline->shape.chunks;
    for (size_t i = pieces; pipeline->whole != NULL && i-- > 0;) { /* a head before what it borrows */
        rrfp_chunk_destroy(pipeline->whole[i]);
    }
    free(pipeline->whole);
    free(pipeline->entries);
    free(pipeline->entry_stage);
    free(pipeline->squares);
    free(pipeline->microbatch_loss);
}

/* ---- whole tensors from shards, and back ------------------------------------------------ */

typedef enum part { EXP_AVG, EXP_AVG_SQ } part;

static float *moments_of(const rrfp_shard *shard, part which)
{
    return which == EXP_AVG ? shard->exp_avg : shard->exp_avg_sq;
}

static float *entry_moments_of(const rrfp_checkpoint_entry *entry, part which)
{
    return which == EXP_AVG ? entry->exp_avg : entry->exp_avg_sq;
}

/* Moments of one tensor rank, out of what its replicas keep. */
static void gather_moments(const rrfp_pipeline *pipeline, const rrfp_worker *first, size_t index,
                           part which, float *scratch)
{
    const rrfp_shard *shard = &first->shards[index];
    const rrfp_checkpoint_entry *entry = &pipeline->entries[first->first_entry + index];
    const float *all = moments_of(shard, which);
    if (pipeline->config.distributed_optimizer) {
        for (uint32_t d = 0; d < pipeline->layout.data; d++) {
            const rrfp_shard *replica = &rrfp_worker_at(pipeline, first->place.stage,
                                                        first->place.tensor_rank, d)
                                             ->shards[index];
            memcpy(scratch + replica->kept.first, moments_of(replica, which),
                   replica->kept.count * sizeof *scratch);
        }
        all = scratch;
    }
    rrfp_param_gather(shard->param, all, entry_moments_of(entry, which));
}

static void scatter_moments(const rrfp_worker *worker, size_t index, part which, float *scratch)
{
    const rrfp_shard *shard = &worker->shards[index];
    const rrfp_checkpoint_entry *entry = &worker->pipeline->entries[worker->first_entry + index];
    rrfp_param_scatter(shard->param, entry_moments_of(entry, which), scratch);
    memcpy(moments_of(shard, which), scratch + shard->kept.first,
           shard->kept.count * sizeof *scratch);
}

/* Room for the largest shard. */
static float *make_scratch(const rrfp_pipeline *pipeline, uint64_t *count)
{
    *count = 0;
    for (uint32_t r = 0; r < pipeline->ranks; r++) {
        for (size_t i = 0; i < pipeline->workers[r].shard_count; i++) {
            uint64_t floats = pipeline->workers[r].shards[i].param->count;
            *count = floats > *count ? floats : *count;
        }
    }
    return map_floats(*count);
}

rrfp_status rrfp_pipeline_gather_shards(rrfp_pipeline *pipeline, unsigned what, rrfp_error *error)
{
    uint64_t scratch_floats;
    if (!is_shared(pipeline)) {
        return RRFP_OK;
    }
    float *scratch = make_scratch(pipeline, &scratch_floats);
    if (scratch == NULL) {
        return out_of_memory(error);
    }
    for (uint32_t r = 0; r < pipeline->ranks; r++) {
        const rrfp_worker *worker = &pipeline->workers[r];
        for (size_t i = 0; worker->place.data_rank == 0 && i < worker->shard_count; i++) {
            const rrfp_checkpoint_entry *entry = &pipeline->entries[worker->first_entry + i];
            if (entry->param->tied_copy) {
                continue; /* its owner's is saved */
            }
            if (what & RRFP_COLLECT_WEIGHTS) {
                rrfp_param_gather(worker->shards[i].param, worker->shards[i].param->value,
                                  entry->param->value);
            }
            if ((what & RRFP_COLLECT_MOMENTS) && entry->exp_avg != NULL) {
                gather_moments(pipeline, worker, i, EXP_AVG, scratch);
                gather_moments(pipeline, worker, i, EXP_AVG_SQ, scratch);
            }
        }
    }
    unmap_floats(scratch, scratch_floats);
    return RRFP_OK;
}

rrfp_status rrfp_pipeline_adopt(rrfp_pipeline *pipeline, bool with_moments, rrfp_error *error)
{
    uint64_t scratch_floats;
    if (!is_shared(pipeline)) {
        return RRFP_OK;
    }
    float *scratch = make_scratch(pipeline, &scratch_floats);
    if (scratch == NULL) {
        return out_of_memory(error);
    }
    for (uint32_t r = pipeline->first_here; r < pipeline->first_here + pipeline->here; r++) {
        const rrfp_worker *worker = &pipeline->workers[r];
        for (size_t i = 0; i < worker->shard_count; i++) {
            const rrfp_checkpoint_entry *entry = &pipeline->entries[worker->first_entry + i];
            rrfp_param_scatter(worker->shards[i].param, entry->param->value,
                               worker->shards[i].param->value);
            if (with_moments && entry->exp_avg != NULL) {
                scatter_moments(worker, i, EXP_AVG, scratch);
                scatter_moments(worker, i, EXP_AVG_SQ, scratch);
            }
        }
    }
    unmap_floats(scratch, scratch_floats);
    rrfp_pipeline_forget(pipeline);
    return RRFP_OK;
}

static void forget_floats(float *base, uint64_t count)
{
    if (base != NULL && count > 0) {
        madvise(base, count * sizeof *base, MADV_DONTNEED); /* failing, it stays in use */
    }
}

/* What a rank of another process gave. */
static void forget_rank(const rrfp_worker *worker)
{
    for (uint32_t v = 0; v < worker->pipeline->shape.chunks; v++) {
        rrfp_chunk_forget_values(worker->chunks[v]);
    }
    for (size_t i = 0; i < worker->shard_count; i++) {
        forget_floats(worker->shards[i].exp_avg, worker->shards[i].kept.count);
        forget_floats(worker->shards[i].exp_avg_sq, worker->shards[i].kept.count);
    }
}

void rrfp_pipeline_forget(rrfp_pipeline *pipeline)
{
    for (uint32_t s = 0; s < pipeline->shape.stages; s++) {
        bool own = !is_shared(pipeline) && stage_is_here(pipeline, s);
        for (uint32_t v = 0; v < pipeline->shape.chunks && !own; v++) {
            rrfp_chunk_forget_values(entry_chunk(pipeline, s, v));
        }
    }
    for (uint32_t r = 0; is_shared(pipeline) && r < pipeline->ranks; r++) {
        if (!rrfp_rank_is_here(pipeline, r)) {
            forget_rank(&pipeline->workers[r]);
        }
    }
    for (size_t i = 0; i < pipeline->entry_count; i++) {
        const rrfp_checkpoint_entry *entry = &pipeline->entries[i];
        if (entry->elsewhere || is_shared(pipeline)) {
            forget_floats(entry->exp_avg, entry->param->count);
            forget_floats(entry->exp_avg_sq, entry->param->count);
        }
    }
}

/* ---- what others see ------------------------------------------------------------------ */

const rrfp_checkpoint_entry *rrfp_pipeline_entries(const rrfp_pipeline *pipeline, size_t *count)
{
    *count = pipeline->entry_count;
    return pipeline->entries;
}

void rrfp_pipeline_weights_sha256(const rrfp_pipeline *pipeline, char hex_out[65])
{
    const rrfp_param **params = calloc(pipeline->entry_count, sizeof *params);
    size_t count = 0;
    hex_out[0] = '\0';
    if (params == NULL) {
        return;
    }
    for (size_t i = 0; i < pipeline->entry_count; i++) {
        if (!pipeline->entries[i].param->tied_copy) {
            params[count++] = pipeline->entries[i].param;
        }
    }
    rrfp_checkpoint_weights_sha256(params, count, hex_out);
    free(params);
}
