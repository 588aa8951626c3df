/*
 * pipeline_ranks.c - what the stages of a pipeline do together when each is a process.
 *
 *   end of a step:   note (losses, squares, times) ──► rank 0: verdict ──► all
 *   tied gradient:   head's rank ──gradient──► rank 0 adds ──sum──► head's rank
 *   saving:          weights, moments, totals ──► rank 0
 *
 * All of it runs over the star of src/launch, in the same order on every rank.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/pipeline_internal.h"
#ifdef RRFP_HAVE_UCX
#include "transport/ucx.h"
#endif

enum { HOST_BYTES = 64 };

struct rrfp_step_note {
    rrfp_verdict verdict; /* the sender's times and wish to stop */
    double values[];      /* squares by tensor, losses by microbatch */
};

static rrfp_world *world_of(const rrfp_pipeline *pipeline)
{
    return pipeline->config.ranks->world;
}

static bool is_root(const rrfp_pipeline *pipeline)
{
    return pipeline->first_here == 0;
}

static size_t note_bytes(const rrfp_pipeline *pipeline)
{
    return sizeof(rrfp_step_note) +
           ((size_t)pipeline->tensor_count + pipeline->shape.microbatches) * sizeof(double);
}

/* ---- connecting ----------------------------------------------------------------------- */

static void on_peer_failure(void *context, const rrfp_error *error)
{
    rrfp_pipeline_fail(context, error);
}

#ifdef RRFP_HAVE_UCX

/* Asked before a message takes a buffer; what was refused never reaches the stage. */
static bool admit(void *context, const rrfp_message_header *header, rrfp_error *error)
{
    const rrfp_pipeline *pipeline = context;
    bool next_step;
    return rrfp_worker_check_message(&pipeline->workers[pipeline->first_here], header, &next_step,
                                       error) == RRFP_OK;
}

/* Text that is the same for all processes of one running kernel. */
static void read_host(char host[HOST_BYTES])
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    memset(host, 0, HOST_BYTES);
    if (file == NULL || fgets(host, HOST_BYTES, file) == NULL) {
        gethostname(host, HOST_BYTES - 1);
    }
    if (file != NULL) {
        fclose(file);
    }
}

static rrfp_status find_neighbours(rrfp_pipeline *pipeline, bool *same_host, rrfp_error *error)
{
    char host[HOST_BYTES];
    void **hosts;
    size_t *sizes;
    read_host(host);
    rrfp_status status = rrfp_world_all_gather(world_of(pipeline), host, sizeof host, &hosts,
                                               &sizes, error);
    if (status == RRFP_OK) {
        for (uint32_t s = 0; s < pipeline->shape.stages; s++) {
            same_host[s] = sizes[s] == sizeof host && memcmp(hosts[s], host, sizeof host) == 0;
        }
        rrfp_world_free_parts(hosts, sizes, pipeline->shape.stages);
    }
    return status;
}

static rrfp_status connect_all(rrfp_pipeline *pipeline, rrfp_transport *transport,
                               rrfp_error *error)
{
    const rrfp_launch_environment *environment = &pipeline->config.ranks->environment;
    const void *mine;
    void **addresses = NULL;
    size_t bytes, *sizes = NULL;
    rrfp_status status = rrfp_ucx_address(transport, &mine, &bytes, error);
    if (status == RRFP_OK) {
        status = rrfp_world_all_gather(world_of(pipeline), mine, bytes, &addresses, &sizes, error);
    }
    if (status == RRFP_OK) {
        uint64_t timeout_ns = (uint64_t)(environment->join_timeout_s * 1e9);
        status = rrfp_ucx_connect(transport, (const void *const *)addresses, sizes, timeout_ns,
                                  error);
        rrfp_world_free_parts(addresses, sizes, pipeline->shape.stages);
    }
    return status;
}

static rrfp_status make_endpoint(rrfp_pipeline *pipeline, rrfp_error *error)
{
    const rrfp_launch_environment *environment = &pipeline->config.ranks->environment;
    uint32_t stages = pipeline->shape.stages, here = pipeline->first_here;
    uint32_t *slots = calloc(2 * (size_t)stages, sizeof *slots);
    bool *same_host = calloc(stages, sizeof *same_host);
    if (slots == NULL || same_host == NULL) {
        free(slots);
        free(same_host);
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for %u edges", stages);
    }
    for (uint32_t s = 0; s < stages; s++) {
        slots[s] = rrfp_pipeline_edge_slots(pipeline, s, here);
        slots[stages + s] = rrfp_pipeline_edge_slots(pipeline, here, s);
    }
    bool jitter = pipeline->config.jitter.model != RRFP_JITTER_NONE;
    rrfp_ucx_config config = {
        .stages = stages,
        .stage = here,
        .local_ranks = environment->local_size,
        .payload_bytes = rrfp_pipeline_payload_bytes(pipeline),
        .receive_slots = slots,
        .send_credits = slots + stages,
        .same_host = same_host,
        .link_delay = jitter ? rrfp_pipeline_link_delay : NULL,
        .link_delay_context = &pipeline->links[0],
        .admit = admit,
        .admit_context = pipeline,
        .run_id = pipeline->run_id,
#ifdef RRFP_DEBUG
        .poison = true,
#endif
    };
    memcpy(config.secret, environment->secret, sizeof config.secret);
    rrfp_transport *transport = NULL;
    rrfp_status status = find_neighbours(pipeline, same_host, error);
    if (status == RRFP_OK) {
        status = rrfp_ucx_create(&config, &transport, error);
    }
    if (status == RRFP_OK) {
        pipeline->workers[here].transport = transport; /* from here on destroy() frees it */
        status = connect_all(pipeline, transport, error);
    }
    free(slots);
    free(same_host);
    return status;
}

#else

static rrfp_status make_endpoint(rrfp_pipeline *pipeline, rrfp_error *error)
{
    (void)pipeline;
    return rrfp_error_set(error, RRFP_ERR_UNSUPPORTED,
                          "stages in several processes need UCX, which this build lacks: install "
                          "libucx-dev and build again");
}

#endif

rrfp_status rrfp_pipeline_connect(rrfp_pipeline *pipeline, rrfp_error *error)
{
    uint32_t size = pipeline->config.ranks->environment.size;
    if (pipeline->layout.tensor * pipeline->layout.data > 1) {
        return rrfp_error_set(error, RRFP_ERR_UNSUPPORTED,
                              "%u processes with tensor or data parallelism: not in this build; "
                              "start one process, whose threads are the %u ranks",
                              size, pipeline->ranks);
    }
    if (size != pipeline->shape.stages) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "%u processes for %u pipeline stages: start as many processes as "
                              "--pipeline-model-parallel-size says",
                              size, pipeline->shape.stages);
    }
    pipeline->note = calloc(1, note_bytes(pipeline));
    pipeline->totals_elsewhere = calloc(size, sizeof *pipeline->totals_elsewhere);
    if (pipeline->note == NULL || pipeline->totals_elsewhere == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for %u ranks", size);
    }
    rrfp_status status = make_endpoint(pipeline, error);
    if (status == RRFP_OK) {
        rrfp_ranks_watch(pipeline->config.ranks, on_peer_failure, pipeline);
    }
    return status;
}

/* ---- the end of a step ---------------------------------------------------------------- */

typedef struct gathering {
    rrfp_pipeline *pipeline;
    rrfp_verdict *sum;
} gathering;

/* On rank 0, for every rank in turn: each value comes from the rank that made it. */
static rrfp_status take_note(void *context, uint32_t rank, const void *data, size_t bytes,
                             rrfp_error *error)
{
    const gathering *g = context;
    rrfp_pipeline *pipeline = g->pipeline;
    const rrfp_step_note *note = data;
    uint32_t head, chunk;
    if (bytes != note_bytes(pipeline)) {
        return rrfp_error_set(error, RRFP_ERR_PEER,
                              "rank %u sent %zu bytes at the end of a step, expected %zu: do all "
                              "ranks run the same command and build?",
                              rank, bytes, note_bytes(pipeline));
    }
    if (rank == 0) {
        return RRFP_OK; /* has its own in place */
    }
    for (size_t i = 0; i < pipeline->entry_count; i++) {
        const rrfp_param *param = pipeline->entries[i].param;
        if (pipeline->entry_stage[i] == rank && !param->tied_copy) {
            pipeline->squares[param->global_index] = note->values[param->global_index];
        }
    }
    rrfp_shape_owner(&pipeline->shape, pipeline->shape.stages * pipeline->shape.chunks - 1, &head,
                     &chunk);
    if (rank == head) {
        memcpy(pipeline->microbatch_loss, note->values + pipeline->tensor_count,
               pipeline->shape.microbatches * sizeof *pipeline->microbatch_loss);
    }
    g->sum->busy_ns += note->verdict.busy_ns;
    g->sum->dispatches += note->verdict.dispatches;
    g->sum->out_of_hint += note->verdict.out_of_hint;
    if (g->sum->span_ns < note->verdict.span_ns) {
        g->sum->span_ns = note->verdict.span_ns;
    }
    if (g->sum->stop == 0) {
        g->sum->stop = note->verdict.stop;
    }
    return RRFP_OK;
}

rrfp_status rrfp_pipeline_gather_step(rrfp_pipeline *pipeline, rrfp_verdict *sum,
                                      rrfp_error *error)
{
    rrfp_step_note *note = pipeline->note;
    gathering g = {pipeline, sum};
    note->verdict = *sum;
    memcpy(note->values, pipeline->squares, pipeline->tensor_count * sizeof *note->values);
    memcpy(note->values + pipeline->tensor_count, pipeline->microbatch_loss,
           pipeline->shape.microbatches * sizeof *note->values);
    return rrfp_world_gather(world_of(pipeline), note, note_bytes(pipeline), take_note, &g, error);
}

rrfp_status rrfp_pipeline_spread_verdict(rrfp_pipeline *pipeline, rrfp_error *error)
{
    rrfp_step_note *note = pipeline->note;
    note->verdict = pipeline->verdict;
    memcpy(note->values, pipeline->microbatch_loss,
           pipeline->shape.microbatches * sizeof *note->values);
    rrfp_status status = rrfp_world_broadcast(world_of(pipeline), note, note_bytes(pipeline), error);
    if (status == RRFP_OK) {
        pipeline->verdict = note->verdict;
        memcpy(pipeline->microbatch_loss, note->values,
               pipeline->shape.microbatches * sizeof *note->values);
    }
    return status;
}

/* The two ends of a tied embedding, when they are in two processes. */
static bool find_tied(const rrfp_pipeline *pipeline, size_t *owner, size_t *copy)
{
    for (*copy = 0; *copy < pipeline->entry_count; ++*copy) {
        const rrfp_param *param = pipeline->entries[*copy].param;
        if (!param->tied_copy) {
            continue;
        }
        for (*owner = 0; *owner < pipeline->entry_count; ++*owner) {
            const rrfp_param *other = pipeline->entries[*owner].param;
            if (!other->tied_copy && other->global_index == param->global_index) {
                return pipeline->entry_stage[*owner] != pipeline->entry_stage[*copy];
            }
        }
    }
    return false;
}

rrfp_status rrfp_pipeline_exchange_tied(rrfp_pipeline *pipeline, rrfp_error *error)
{
    size_t owner, copy;
    if (!find_tied(pipeline, &owner, &copy)) {
        return RRFP_OK;
    }
    rrfp_world *world = world_of(pipeline);
    const rrfp_param *mine = pipeline->entries[owner].param, *theirs = pipeline->entries[copy].param;
    uint32_t head = pipeline->entry_stage[copy]; /* the embedding is on rank 0: global chunk 0 */
    size_t bytes = theirs->count * sizeof(float);
    rrfp_status status = RRFP_OK;
    if (is_root(pipeline)) {
        if (pipeline->tied_sum == NULL) {
            pipeline->tied_sum = malloc(bytes);
        }
        if (pipeline->tied_sum == NULL) {
            return rrfp_error_set(error, RRFP_ERR_NOMEM,
                                  "out of memory for the tied gradient of %zu bytes", bytes);
        }
        status = rrfp_world_receive(world, head, pipeline->tied_sum, bytes, error);
        if (status == RRFP_OK) {
            rrfp_add(mine->grad, pipeline->tied_sum, mine->count);
            status = rrfp_world_send(world, head, mine->grad, bytes, error);
        }
    } else if (pipeline->first_here == head) {
        status = rrfp_world_send(world, 0, theirs->grad, bytes, error);
        if (status == RRFP_OK) {
            status = rrfp_world_receive(world, 0, theirs->grad, bytes, error);
        }
    }
    return status;
}

/* ---- collecting ----------------------------------------------------------------------- */

static rrfp_status move(rrfp_pipeline *pipeline, uint32_t from, void *data, size_t bytes,
                        rrfp_error *error)
{
    if (is_root(pipeline)) {
        return rrfp_world_receive(world_of(pipeline), from, data, bytes, error);
    }
    return rrfp_world_send(world_of(pipeline), 0, data, bytes, error);
}

static rrfp_status move_entry(rrfp_pipeline *pipeline, const rrfp_checkpoint_entry *entry,
                              uint32_t from, unsigned what, rrfp_error *error)
{
    size_t bytes = entry->param->count * sizeof(float);
    rrfp_status status = RRFP_OK;
    if (what & RRFP_COLLECT_WEIGHTS) {
        status = move(pipeline, from, entry->param->value, bytes, error);
    }
    if (status == RRFP_OK && (what & RRFP_COLLECT_MOMENTS) && entry->exp_avg != NULL) {
        status = move(pipeline, from, entry->exp_avg, bytes, error);
        if (status == RRFP_OK) {
            status = move(pipeline, from, entry->exp_avg_sq, bytes, error);
        }
    }
    return status;
}

/* All that is asked for of one rank: it sends, rank 0 receives. */
static rrfp_status collect_rank(rrfp_pipeline *pipeline, uint32_t rank, unsigned what,
                                rrfp_error *error)
{
    rrfp_status status = RRFP_OK;
    if (what & RRFP_COLLECT_TOTALS) {
        rrfp_rank_totals totals = {0};
        if (rank == pipeline->first_here) {
            rrfp_pipeline_rank_totals(pipeline, rank, &totals);
        }
        status = move(pipeline, rank, &totals, sizeof totals, error);
        pipeline->totals_elsewhere[rank] = totals;
    }
    for (size_t i = 0; status == RRFP_OK && i < pipeline->entry_count; i++) {
        const rrfp_checkpoint_entry *entry = &pipeline->entries[i];
        if (pipeline->entry_stage[i] == rank && !entry->param->tied_copy) {
            status = move_entry(pipeline, entry, rank, what, error);
        }
    }
    return status;
}

static rrfp_status add_trace(void *context, uint32_t rank, const void *data, size_t bytes,
                             rrfp_error *error)
{
    rrfp_pipeline *pipeline = context;
    return rank == 0 ? RRFP_OK
                     : rrfp_trace_add_packed(pipeline->trace, rank, data, bytes, error);
}

static rrfp_status collect_traces(rrfp_pipeline *pipeline, rrfp_error *error)
{
    void *data = NULL;
    size_t bytes = 0;
    rrfp_status status = rrfp_trace_pack(pipeline->trace, pipeline->first_here, &data, &bytes,
                                         error);
    if (status == RRFP_OK) {
        status = rrfp_world_gather(world_of(pipeline), data, bytes, add_trace, pipeline, error);
    }
    free(data);
    return status;
}

rrfp_status rrfp_pipeline_collect(rrfp_pipeline *pipeline, unsigned what, rrfp_error *error)
{
    rrfp_status status = RRFP_OK;
    if (pipeline->config.ranks == NULL) {
        return rrfp_pipeline_gather_shards(pipeline, what, error);
    }
    rrfp_world_set_activity(world_of(pipeline), pipeline->step.iteration, "collecting on rank 0");
    for (uint32_t rank = 1; status == RRFP_OK && rank < pipeline->shape.stages; rank++) {
        if (is_root(pipeline) || rank == pipeline->first_here) {
            status = collect_rank(pipeline, rank, what, error);
        }
    }
    if (status == RRFP_OK && (what & RRFP_COLLECT_TRACE)) {
        status = collect_traces(pipeline, error);
    }
    return status;
}
