/* pipeline.c - making a pipeline, and the caller's side of a step. */
#include "train/pipeline_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Nominal time of a message, what link jitter is a multiple of. */
static const double MESSAGE_BASE_S = 200e-6;

uint64_t rrfp_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void rrfp_pipeline_fail(rrfp_pipeline *pipeline, const rrfp_error *error)
{
    pthread_mutex_lock(&pipeline->error_mutex);
    if (!atomic_load(&pipeline->failed)) {
        pipeline->error = *error;
        atomic_store(&pipeline->failed, true);
    }
    pthread_mutex_unlock(&pipeline->error_mutex);
    for (uint32_t s = 0; s < pipeline->worker_count; s++) {
        rrfp_transport *transport = pipeline->workers[s].transport;
        if (transport != NULL) {
            transport->ops->wake(transport);
        }
        if (pipeline->workers[s].tensor_group != NULL) {
            rrfp_collective_abort(pipeline->workers[s].tensor_group);
        }
    }
    if (pipeline->config.ranks != NULL) {
        rrfp_world_fail(pipeline->config.ranks->world, error);
    }
}

double rrfp_pipeline_link_delay(void *context, const rrfp_message_header *header)
{
    const struct rrfp_link *link = context;
    const rrfp_pipeline *pipeline = link->pipeline;
    rrfp_task task = {header->kind, 0, header->source_chunk, header->microbatch};
    rrfp_layout_place from = {header->source_tensor_rank, link->data_rank, header->source_stage};
    return rrfp_jitter_message_delay(&pipeline->config.jitter,
                                     rrfp_layout_rank_of(&pipeline->layout, from), task,
                                     header->step, MESSAGE_BASE_S);
}

static rrfp_status out_of_memory(rrfp_error *error)
{
    return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory while making the pipeline");
}

static rrfp_status make_partition(rrfp_pipeline *pipeline, rrfp_error *error)
{
    const rrfp_pipeline_config *config = &pipeline->config;
    uint32_t chunk_count = config->stages * config->chunks;
    pipeline->ranges = calloc(chunk_count, sizeof *pipeline->ranges);
    if (pipeline->ranges == NULL) {
        return out_of_memory(error);
    }
    if (config->layer_counts != NULL) {
        return rrfp_model_partition_explicit(&config->model, chunk_count, config->layer_counts,
                                             pipeline->ranges, error);
    }
    return rrfp_model_partition(&config->model, chunk_count, pipeline->ranges, error);
}

/* The placement is a property of the hint; chunks must know it before the hint is built. */
static rrfp_status find_placement(rrfp_pipeline *pipeline, rrfp_error *error)
{
    const rrfp_pipeline_config *config = &pipeline->config;
    const rrfp_hint_info *info = rrfp_hint_find(config->hint);
    pipeline->shape = (rrfp_shape){config->stages, config->chunks, config->microbatches,
                                   RRFP_PLACEMENT_LOOPED};
    if (info != NULL) {
        pipeline->shape.placement = info->placement;
        return rrfp_shape_check(&pipeline->shape, error);
    }
    rrfp_hint *read = NULL;
    rrfp_status status = rrfp_shape_check(&pipeline->shape, error);
    if (status == RRFP_OK) {
        status = rrfp_hint_read_csv(config->hint, config->stages, config->chunks,
                                    config->microbatches, &read, error);
    }
    if (status == RRFP_OK) {
        pipeline->shape.placement = read->shape.placement;
    }
    rrfp_hint_destroy(read);
    return status;
}

/* A group decides together, so every rank counts with the largest of them. */
static rrfp_status find_sizes(rrfp_pipeline *pipeline, rrfp_error *error)
{
    size_t chunks = pipeline->shape.chunks;
    pipeline->sizes = calloc(pipeline->shape.stages * chunks, sizeof *pipeline->sizes);
    if (pipeline->sizes == NULL) {
        return out_of_memory(error);
    }
    for (uint32_t r = 0; r < pipeline->ranks; r++) {
        const rrfp_worker *worker = &pipeline->workers[r];
        for (size_t v = 0; v < chunks; v++) {
            const rrfp_chunk_sizes *sizes = &worker->sizes[v];
            rrfp_chunk_sizes *largest = &pipeline->sizes[worker->place.stage * chunks + v];
            if (largest->activation_bytes < sizes->activation_bytes) {
                largest->activation_bytes = sizes->activation_bytes;
            }
            if (largest->retained_bytes < sizes->retained_bytes) {
                largest->retained_bytes = sizes->retained_bytes;
            }
            pipeline->message_floats = sizes->message_floats;
        }
    }
    return RRFP_OK;
}

static rrfp_status make_hint(rrfp_pipeline *pipeline, rrfp_error *error)
{
    const rrfp_pipeline_config *config = &pipeline->config;
    size_t chunk_count = (size_t)config->stages * config->chunks;
    uint64_t *bytes = calloc(2 * chunk_count, sizeof *bytes);
    if (bytes == NULL) {
        return out_of_memory(error);
    }
    for (size_t i = 0; i < chunk_count; i++) {
        bytes[i] = pipeline->sizes[i].activation_bytes;
        bytes[chunk_count + i] = pipeline->sizes[i].retained_bytes;
    }
    rrfp_hint_request request = {
        .struct_size = sizeof request,
        .hint = config->hint,
        .stages = config->stages,
        .chunks = config->chunks,
        .microbatches = config->microbatches,
        .hint_distance = config->hint_distance,
        .budgets = config->budgets,
        .accumulate = config->accumulate,
        .activation_bytes = bytes,
        .retained_bytes = bytes + chunk_count,
    };
    rrfp_status status = rrfp_hint_build(&request, &pipeline->hint, error);
    free(bytes);
    return status;
}

/*
 * A held message is an activation, from its arrival to the end of B here, so from F to B at its
 * sender, whose budget bounds it; or a gradient, which the receiver's budget bounds.
 */
uint32_t rrfp_pipeline_edge_slots(const rrfp_pipeline *pipeline, uint32_t from, uint32_t to)
{
    const rrfp_shape *shape = &pipeline->shape;
    uint32_t pieces = shape->stages * shape->chunks;
    bool forward = false, backward = false;
    for (uint32_t g = 0; g + 1 < pieces; g++) {
        uint32_t lower, upper, chunk;
        rrfp_shape_owner(shape, g, &lower, &chunk);
        rrfp_shape_owner(shape, g + 1, &upper, &chunk);
        forward = forward || (lower == from && upper == to);
        backward = backward || (upper == from && lower == to);
    }
    if (from == to) {
        return 0; /* handed over, not sent */
    }
    uint64_t all = (uint64_t)shape->microbatches * shape->chunks, slots = 0;
    uint64_t cap_from = (uint64_t)pipeline->hint->budgets[from].max_inflight * shape->chunks;
    uint64_t cap_to = (uint64_t)pipeline->hint->budgets[to].max_inflight * shape->chunks;
    slots += !forward ? 0 : cap_from < all ? cap_from : all;
    slots += !backward ? 0 : cap_to < all ? cap_to : all;
    return (uint32_t)slots;
}

uint64_t rrfp_pipeline_payload_bytes(const rrfp_pipeline *pipeline)
{
    return pipeline->message_floats *
           (pipeline->config.bf16_messages ? sizeof(uint16_t) : sizeof(float));
}

static rrfp_status make_links(rrfp_pipeline *pipeline, rrfp_error *error)
{
    uint32_t replicas = pipeline->layout.data;
    pipeline->links = calloc(replicas, sizeof *pipeline->links);
    if (pipeline->links == NULL) {
        return out_of_memory(error);
    }
    for (uint32_t d = 0; d < replicas; d++) {
        pipeline->links[d] = (struct rrfp_link){pipeline, d};
    }
    return RRFP_OK;
}

/* The tensor-parallel ranks of every stage meet in a group of threads. */
static rrfp_status make_groups(rrfp_pipeline *pipeline, rrfp_error *error)
{
    uint32_t size = pipeline->layout.tensor;
    if (size == 1) {
        return RRFP_OK;
    }
    rrfp_collective **handles = calloc(size, sizeof *handles);
    rrfp_status status = handles == NULL ? out_of_memory(error) : RRFP_OK;
    for (uint32_t first = 0; status == RRFP_OK && first < pipeline->ranks; first += size) {
        status = rrfp_collective_threads(size, handles, error);
        for (uint32_t t = 0; status == RRFP_OK && t < size; t++) {
            rrfp_worker *worker = &pipeline->workers[first + t];
            worker->tensor_group = handles[t];
            for (uint32_t v = 0; v < pipeline->shape.chunks; v++) {
                rrfp_chunk_set_tensor_group(worker->chunks[v], worker->tensor_group);
            }
        }
    }
    free(handles);
    return status;
}

/* The endpoints of one replica. */
static rrfp_status make_transport(rrfp_pipeline *pipeline, uint32_t data_rank, rrfp_error *error)
{
    uint32_t stages = pipeline->shape.stages, tensor = pipeline->layout.tensor;
    uint32_t *slots = calloc(stages, sizeof *slots);
    rrfp_transport **endpoints = calloc((size_t)stages * tensor, sizeof *endpoints);
    if (slots == NULL || endpoints == NULL) {
        free(slots);
        free(endpoints);
        return out_of_memory(error);
    }
    for (uint32_t s = 0; s < stages; s++) {
        for (uint32_t peer = 0; peer < stages; peer++) {
            slots[s] += rrfp_pipeline_edge_slots(pipeline, peer, s);
        }
    }
    bool jitter = pipeline->config.jitter.model != RRFP_JITTER_NONE;
    rrfp_inproc_config config = {
        .stages = stages,
        .tensor_size = tensor,
        .payload_bytes = rrfp_pipeline_payload_bytes(pipeline),
        .receive_slots = slots,
        .link_delay = jitter ? rrfp_pipeline_link_delay : NULL,
        .link_delay_context = &pipeline->links[data_rank],
#ifdef RRFP_DEBUG
        .poison = true,
#endif
    };
    rrfp_status status = rrfp_inproc_create(&config, endpoints, error);
    for (uint32_t i = 0; status == RRFP_OK && i < stages * tensor; i++) {
        rrfp_worker_at(pipeline, i / tensor, i % tensor, data_rank)->transport = endpoints[i];
    }
    free(slots);
    free(endpoints);
    return status;
}

static rrfp_status connect_ranks(rrfp_pipeline *pipeline, rrfp_error *error)
{
    rrfp_status status = make_links(pipeline, error);
    if (status != RRFP_OK || pipeline->config.ranks != NULL) {
        return status == RRFP_OK ? rrfp_pipeline_connect(pipeline, error) : status;
    }
    status = make_groups(pipeline, error);
    for (uint32_t d = 0; status == RRFP_OK && d < pipeline->layout.data; d++) {
        status = make_transport(pipeline, d, error);
    }
    return status;
}

static rrfp_status start_threads(rrfp_pipeline *pipeline, rrfp_error *error)
{
    uint32_t here = pipeline->here;
    if (pthread_barrier_init(&pipeline->end_barrier, NULL, here + 1) != 0 ||
        pthread_barrier_init(&pipeline->rank_barrier, NULL, here) != 0) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "cannot make barriers for %u ranks", here);
    }
    pipeline->barriers_made = true;
    for (uint32_t i = 0; i < here; i++) {
        uint32_t rank = pipeline->first_here + i;
        rrfp_worker *worker = &pipeline->workers[rank];
        if (pthread_create(&worker->thread, NULL, rrfp_worker_main, worker) != 0) {
            return rrfp_error_set(error, RRFP_ERR_IO,
                                  "cannot start the thread of rank %u of %u: raise the limit on "
                                  "processes (ulimit -u)",
                                  rank, pipeline->ranks);
        }
        worker->thread_started = true;
    }
    return RRFP_OK;
}

rrfp_status rrfp_pipeline_create(const rrfp_pipeline_config *config, rrfp_pipeline **out,
                                 rrfp_error *error)
{
    rrfp_pipeline *pipeline = calloc(1, sizeof *pipeline);
    if (pipeline == NULL) {
        return out_of_memory(error);
    }
    pipeline->config = *config;
    pipeline->run_id = rrfp_now_ns();
    pipeline->layout = (rrfp_layout){config->model.tensor_size,
                                     config->data_size == 0 ? 1 : config->data_size,
                                     config->stages};
    pipeline->ranks = pipeline->layout.tensor * pipeline->layout.data * config->stages;
    pipeline->here = pipeline->ranks;
    if (config->ranks != NULL) {
        pipeline->run_id = rrfp_world_run_id(config->ranks->world);
        pipeline->first_here = config->ranks->environment.rank;
        pipeline->here = 1;
    }
    pthread_mutex_init(&pipeline->error_mutex, NULL);
    pthread_mutex_init(&pipeline->gate_mutex, NULL);
    pthread_cond_init(&pipeline->gate, NULL);
    rrfp_status status = find_placement(pipeline, error);
    if (status == RRFP_OK) {
        status = make_partition(pipeline, error);
    }
    if (status == RRFP_OK) {
        pipeline->workers = calloc(pipeline->ranks, sizeof *pipeline->workers);
        if (pipeline->workers == NULL) {
            status = out_of_memory(error);
        }
    }
    for (uint32_t r = 0; status == RRFP_OK && r < pipeline->ranks; r++) {
        pipeline->worker_count = r + 1;
        status = rrfp_worker_init(&pipeline->workers[r], pipeline, r, error);
    }
    if (status == RRFP_OK) {
        status = find_sizes(pipeline, error);
    }
    if (status == RRFP_OK) {
        status = make_hint(pipeline, error);
    }
    if (status == RRFP_OK) {
        status = rrfp_pipeline_make_parameters(pipeline, error);
    }
    for (uint32_t r = 0; status == RRFP_OK && r < pipeline->ranks; r++) {
        if (rrfp_rank_is_here(pipeline, r)) {
            status = rrfp_worker_init_machines(&pipeline->workers[r], error);
        }
        if (status == RRFP_OK) {
            status = rrfp_gradients_init(&pipeline->workers[r], error);
        }
    }
    if (status == RRFP_OK) {
        status = rrfp_trace_create(&pipeline->shape, &pipeline->layout, config->record_trace,
                                   &pipeline->trace, error);
    }
    if (status == RRFP_OK) {
        status = connect_ranks(pipeline, error);
    }
    if (status == RRFP_OK) {
        status = start_threads(pipeline, error);
    }
    if (status != RRFP_OK) {
        rrfp_pipeline_destroy(pipeline);
        return status;
    }
    *out = pipeline;
    return RRFP_OK;
}

static void open_gate(rrfp_pipeline *pipeline, rrfp_phase phase)
{
    pthread_mutex_lock(&pipeline->gate_mutex);
    pipeline->phase = phase;
    pipeline->generation++;
    pthread_cond_broadcast(&pipeline->gate);
    pthread_mutex_unlock(&pipeline->gate_mutex);
}

static void stop_threads(rrfp_pipeline *pipeline)
{
    open_gate(pipeline, RRFP_PHASE_QUIT);
    for (uint32_t s = 0; s < pipeline->worker_count; s++) {
        if (pipeline->workers[s].thread_started) {
            pthread_join(pipeline->workers[s].thread, NULL);
        }
    }
}

void rrfp_pipeline_destroy(rrfp_pipeline *pipeline)
{
    if (pipeline == NULL) {
        return;
    }
    if (pipeline->config.ranks != NULL) {
        rrfp_ranks_watch(pipeline->config.ranks, NULL, NULL);
    }
    stop_threads(pipeline);
    for (uint32_t s = 0; s < pipeline->worker_count; s++) {
        rrfp_transport *transport = pipeline->workers[s].transport;
        if (transport != NULL) {
            transport->ops->destroy(transport);
        }
    }
    free(pipeline->totals_elsewhere);
    free(pipeline->note);
    free(pipeline->tied_sum);
    rrfp_pipeline_free_parameters(pipeline);
    for (uint32_t s = 0; s < pipeline->worker_count; s++) {
        rrfp_worker_free(&pipeline->workers[s]);
    }
    if (pipeline->barriers_made) {
        pthread_barrier_destroy(&pipeline->end_barrier);
        pthread_barrier_destroy(&pipeline->rank_barrier);
    }
    pthread_mutex_destroy(&pipeline->error_mutex);
    pthread_mutex_destroy(&pipeline->gate_mutex);
    pthread_cond_destroy(&pipeline->gate);
    rrfp_trace_destroy(pipeline->trace);
    rrfp_hint_destroy(pipeline->hint);
    free(pipeline->workers);
    free(pipeline->ranges);
    free(pipeline->sizes);
    free(pipeline->links);
    free(pipeline);
}

static rrfp_status run_phase(rrfp_pipeline *pipeline, rrfp_phase phase, uint64_t first_sample,
                             rrfp_error *error)
{
    pipeline->first_sample = first_sample;
    pipeline->phase_number++;
    open_gate(pipeline, phase);
    pthread_barrier_wait(&pipeline->end_barrier);
    if (!atomic_load(&pipeline->failed)) {
        return RRFP_OK;
    }
    if (error != NULL) {
        *error = pipeline->error;
    }
    return pipeline->error.status;
}

/* All ranks have ended the phase: every message and every buffer must be back in its place. */
static rrfp_status settle(rrfp_pipeline *pipeline, rrfp_error *error)
{
    rrfp_ranks *ranks = pipeline->config.ranks;
    uint64_t timeout_ns = ranks == NULL ? 0 : (uint64_t)(ranks->peer_timeout_s * 1e9);
    rrfp_error why;
    for (uint32_t i = 0; i < pipeline->here; i++) {
        rrfp_transport *transport = pipeline->workers[pipeline->first_here + i].transport;
        rrfp_status status = transport->ops->settle(transport, pipeline->phase_number,
                                                    timeout_ns, &why);
        if (status != RRFP_OK) {
            if (status == RRFP_ERR_PEER && ranks != NULL) {
                rrfp_ranks_explain(ranks, &why);
            }
            rrfp_pipeline_fail(pipeline, &why); /* unless a rank's failure has woken us */
            *error = pipeline->error;
            return error->status;
        }
    }
    return RRFP_OK;
}

rrfp_status rrfp_pipeline_train_step(rrfp_pipeline *pipeline, const rrfp_train_step *step,
                                     rrfp_step_result *result, rrfp_error *error)
{
    uint64_t begin = rrfp_now_ns();
    pipeline->step = *step;
    rrfp_status status = run_phase(pipeline, RRFP_PHASE_TRAIN, step->first_sample, error);
    if (status == RRFP_OK) {
        status = settle(pipeline, error);
    }
    if (status != RRFP_OK) {
        return status;
    }
    const rrfp_verdict *verdict = &pipeline->verdict;
    double span = (double)verdict->span_ns * pipeline->ranks;
    *result = (rrfp_step_result){
        .loss = (float)verdict->loss,
        .grad_norm = (float)verdict->norm,
        .nonfinite = verdict->nonfinite,
        .dispatches = verdict->dispatches,
        .out_of_hint = verdict->out_of_hint,
        .bubble = span > 0.0 ? 1.0 - (double)verdict->busy_ns / span : 0.0,
        .stop = verdict->stop,
    };
    result->wall_s = (double)(rrfp_now_ns() - begin) * 1e-9;
    return RRFP_OK;
}

rrfp_status rrfp_pipeline_eval_step(rrfp_pipeline *pipeline, uint64_t first_sample, double *loss,
                                    rrfp_error *error)
{
    rrfp_status status = run_phase(pipeline, RRFP_PHASE_EVAL, first_sample, error);
    if (status == RRFP_OK && pipeline->config.ranks != NULL) {
        rrfp_verdict unused = {0};
        status = rrfp_pipeline_gather_step(pipeline, &unused, error);
        if (status == RRFP_OK) {
            status = rrfp_pipeline_spread_verdict(pipeline, error);
        }
    }
    if (status == RRFP_OK) {
        status = settle(pipeline, error);
    }
    if (status != RRFP_OK) {
        return status;
    }
    double sum = 0.0;
    for (uint32_t m = 0; m < rrfp_pipeline_microbatches(pipeline); m++) {
        sum += pipeline->microbatch_loss[m];
    }
    *loss = sum / ((double)pipeline->config.model.micro_batch *
                   pipeline->config.model.seq_length * rrfp_pipeline_microbatches(pipeline));
    return RRFP_OK;
}

const rrfp_hint *rrfp_pipeline_hint(const rrfp_pipeline *pipeline)
{
    return pipeline->hint;
}

const rrfp_trace *rrfp_pipeline_trace(const rrfp_pipeline *pipeline)
{
    return pipeline->trace;
}

const rrfp_layout *rrfp_pipeline_layout(const rrfp_pipeline *pipeline)
{
    return &pipeline->layout;
}

void rrfp_pipeline_rank_totals(const rrfp_pipeline *pipeline, uint32_t rank,
                               rrfp_rank_totals *totals)
{
    const rrfp_worker *worker = &pipeline->workers[rank];
    if (!rrfp_rank_is_here(pipeline, rank)) {
        *totals = pipeline->totals_elsewhere[rank];
        return;
    }
    totals->time = *rrfp_trace_get_totals(pipeline->trace, rank);
    totals->retries = worker->retries;
    totals->summed_floats = worker->summed_floats;
    totals->summed_hidden = worker->summed_hidden;
    totals->machine_ns = worker->machine_ns;
    totals->peak_inflight = worker->peak_inflight;
    totals->peak_pending_w = worker->peak_pending_w;
    totals->peak_inflight_bytes = worker->peak_inflight_bytes;
}
