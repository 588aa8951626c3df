/*
 * worker.c - the thread of one rank: transport events to what decides for it
 * (coordination.c), actions out of it.
 *
 *   poll ─► INPUT / SEND_COMPLETED ─► decider ─► START ─► run_task ─► TASK_FINISHED ─► decider
 *     ▲                                 └─► SEND, DELIVER, RELEASE, IDLE             │
 *     └─────────────── free: sums of gradients over replicas, then wait ─────────────┘
 */
#include <math.h>
#include <string.h>
#include <time.h>

#include "launch/binding.h"
#include "train/pipeline_internal.h"

static const uint64_t WAIT_NS = 200u * 1000 * 1000; /* only bounds the reaction to a lost wake */

static rrfp_slot *slot_of(rrfp_worker *worker, uint32_t chunk, uint32_t microbatch)
{
    return &worker->slots[(size_t)chunk * worker->pipeline->shape.microbatches + microbatch];
}

static bool recording(const rrfp_worker *worker)
{
    return worker->pipeline->phase == RRFP_PHASE_TRAIN;
}

static void close_gap(rrfp_worker *worker, uint64_t now)
{
    if (worker->idle) {
        if (recording(worker) && now > worker->idle_since_ns) {
            rrfp_trace_gap gap = {worker->idle_since_ns, now, worker->pipeline->step.iteration,
                                  worker->idle_reason};
            rrfp_trace_add_gap(worker->pipeline->trace, worker->rank, &gap);
        }
        worker->idle = false;
    }
}

static void open_gap(rrfp_worker *worker, rrfp_idle_reason reason, uint64_t now)
{
    static const rrfp_trace_idle map[RRFP_IDLE_REASON_COUNT] = {
        [RRFP_IDLE_BUDGET] = RRFP_TRACE_IDLE_BUDGET,
        [RRFP_IDLE_ORDER] = RRFP_TRACE_IDLE_ORDER,
        [RRFP_IDLE_INPUT_F] = RRFP_TRACE_IDLE_INPUT_F,
        [RRFP_IDLE_INPUT_B] = RRFP_TRACE_IDLE_INPUT_B,
        [RRFP_IDLE_DRAIN] = RRFP_TRACE_IDLE_DRAIN,
        [RRFP_IDLE_GROUP] = RRFP_TRACE_IDLE_GROUP,
    };
    worker->machine_reason = map[reason];
    if (worker->idle && worker->idle_reason == map[reason]) {
        return;
    }
    close_gap(worker, now);
    if (worker->pipeline->config.ranks != NULL) {
        static const char *const waits[RRFP_IDLE_REASON_COUNT] = {
            [RRFP_IDLE_BUDGET] = "waiting for room in the memory budget",
            [RRFP_IDLE_ORDER] = "waiting for the next task of a fixed order",
            [RRFP_IDLE_INPUT_F] = "waiting for an activation",
            [RRFP_IDLE_INPUT_B] = "waiting for a gradient",
            [RRFP_IDLE_DRAIN] = "waiting for its sends to end",
            [RRFP_IDLE_GROUP] = "waiting for its tensor-parallel group",
        };
        rrfp_world_set_activity(worker->pipeline->config.ranks->world,
                                worker->pipeline->step.iteration, waits[reason]);
    }
    worker->idle = true;
    worker->idle_reason = map[reason];
    worker->idle_since_ns = now;
}

/* While a rank is free for tasks it may have sums of gradients to do. */
static void turn_gap(rrfp_worker *worker, bool summing)
{
    rrfp_trace_idle reason = summing ? RRFP_TRACE_IDLE_REDUCTION : worker->machine_reason;
    if (worker->idle && worker->idle_reason != reason) {
        uint64_t now = rrfp_now_ns();
        close_gap(worker, now);
        worker->idle = true;
        worker->idle_reason = reason;
        worker->idle_since_ns = now;
    }
}

/* Gives back whatever is behind an input: a buffer of the transport or a block of ours. */
static void drop_input(rrfp_worker *worker, float **input, void **payload)
{
    if (*payload != NULL) {
        worker->transport->ops->release(worker->transport, *payload);
        if (worker->pipeline->config.bf16_messages) {
            rrfp_block_pool_give(&worker->message_pool, *input);
        }
    } else {
        rrfp_block_pool_give(&worker->message_pool, *input);
    }
    *input = NULL;
    *payload = NULL;
}

static void release(rrfp_worker *worker, const rrfp_action *action)
{
    rrfp_slot *slot = slot_of(worker, action->task.chunk, action->task.microbatch);
    rrfp_kind kind = action->task.kind == RRFP_F ? RRFP_F : RRFP_B;
    switch (action->buffer) {
    case RRFP_BUFFER_ACTIVATION:
        rrfp_block_pool_give(&worker->activation_pools[action->task.chunk], slot->activation);
        slot->activation = NULL;
        drop_input(worker, &slot->input, &slot->input_payload);
        drop_input(worker, &slot->grad_input, &slot->grad_payload);
        break;
    case RRFP_BUFFER_RETAINED:
        rrfp_block_pool_give(&worker->retained_pools[action->task.chunk], slot->retained);
        slot->retained = NULL;
        break;
    case RRFP_BUFFER_OUTPUT:
        rrfp_block_pool_give(&worker->message_pool, slot->output[kind]);
        slot->output[kind] = NULL;
        break;
    }
}

/* A neighbour that is gone is gone from the world as well, which knows more of it. */
void rrfp_worker_fail_transport(rrfp_worker *worker, rrfp_error *error)
{
    if (error->status == RRFP_ERR_PEER && worker->pipeline->config.ranks != NULL) {
        rrfp_ranks_explain(worker->pipeline->config.ranks, error);
    }
    rrfp_pipeline_fail(worker->pipeline, error);
}

/* B, T, C; of a message that sequence-parallel ranks share, each has T/tensor_size. */
static void message_dims(const rrfp_worker *worker, uint32_t dims[3])
{
    const rrfp_model_config *model = &worker->model;
    dims[0] = model->micro_batch;
    dims[1] = model->seq_length / (model->sequence_parallel ? model->tensor_size : 1);
    dims[2] = model->hidden;
}

static bool send_output(rrfp_worker *worker, const rrfp_action *action)
{
    rrfp_pipeline *pipeline = worker->pipeline;
    rrfp_slot *slot = slot_of(worker, action->task.chunk, action->task.microbatch);
    rrfp_kind kind = action->task.kind == RRFP_F ? RRFP_F : RRFP_B;
    bool packed = pipeline->config.bf16_messages;
    size_t floats = pipeline->message_floats;
    void *payload = slot->output[kind];
    rrfp_error error;
    rrfp_message_header header = {
        .kind = (uint8_t)kind,
        .dtype = packed ? RRFP_MESSAGE_BF16 : RRFP_MESSAGE_F32,
        .ndim = 3,
        .run_id = pipeline->run_id,
        .step = pipeline->phase_number,
        .source_stage = (uint16_t)worker->place.stage,
        .source_chunk = action->task.chunk,
        .destination_stage = (uint16_t)action->peer_stage,
        .destination_chunk = (uint16_t)action->peer_chunk,
        .microbatch = action->task.microbatch,
        .source_tensor_rank = (uint16_t)worker->place.tensor_rank,
        .destination_tensor_rank = (uint16_t)worker->place.tensor_rank,
        .payload_bytes = (uint32_t)(floats * (packed ? sizeof(uint16_t) : sizeof(float))),
    };
    message_dims(worker, header.dims);
    if (packed) {
        payload = rrfp_block_pool_take(&worker->packed_pool);
        if (payload == NULL) {
            rrfp_error_set(&error, RRFP_ERR_INTERNAL, "stage %u: no block to pack a message",
                           worker->place.stage);
            rrfp_pipeline_fail(pipeline, &error);
            return false;
        }
        rrfp_bf16_from_float(slot->output[kind], payload, floats);
    }
    rrfp_message_header_seal(&header);
    if (worker->transport->ops->send(worker->transport, &header, payload, &error) != RRFP_OK) {
        rrfp_worker_fail_transport(worker, &error);
        return false;
    }
    return true;
}

/* A local output changes hands: the consumer keeps and frees it like any input. */
static void deliver(rrfp_worker *worker, const rrfp_action *action, uint64_t now)
{
    rrfp_slot *from = slot_of(worker, action->task.chunk, action->task.microbatch);
    rrfp_slot *to = slot_of(worker, action->peer_chunk, action->task.microbatch);
    if (action->task.kind == RRFP_F) {
        to->input = from->output[RRFP_F];
        from->output[RRFP_F] = NULL;
        to->f_ready_ns = now;
    } else {
        to->grad_input = from->output[RRFP_B];
        from->output[RRFP_B] = NULL;
        if (to->b_ready_ns < now) {
            to->b_ready_ns = now;
        }
    }
}

bool rrfp_worker_apply(rrfp_worker *worker, const rrfp_action *actions, size_t count)
{
    uint64_t now = rrfp_now_ns();
    for (size_t i = 0; i < count; i++) {
        const rrfp_action *action = &actions[i];
        switch (action->kind) {
        case RRFP_ACTION_START:
            close_gap(worker, now);
            worker->start = *action;
            worker->have_task = true;
            break;
        case RRFP_ACTION_SEND:
            if (!send_output(worker, action)) {
                return false;
            }
            break;
        case RRFP_ACTION_DELIVER:
            deliver(worker, action, now);
            break;
        case RRFP_ACTION_RELEASE:
            release(worker, action);
            break;
        case RRFP_ACTION_IDLE:
            open_gap(worker, action->reason, now);
            break;
        case RRFP_ACTION_STEP_DONE:
            close_gap(worker, now);
            worker->step_done = true;
            break;
        }
    }
    return true;
}

rrfp_status rrfp_worker_check_message(const rrfp_worker *worker,
                                      const rrfp_message_header *header, bool *next_step,
                                      rrfp_error *error)
{
    const rrfp_pipeline *pipeline = worker->pipeline;
    rrfp_message_expectation expect = {
        .shape = pipeline->shape,
        .run_id = pipeline->run_id,
        .step = pipeline->phase_number,
        .stage = worker->place.stage,
        .tensor_rank = worker->place.tensor_rank,
        .tensor_size = pipeline->layout.tensor,
        .dtype = pipeline->config.bf16_messages ? RRFP_MESSAGE_BF16 : RRFP_MESSAGE_F32,
    };
    message_dims(worker, expect.dims);
    return rrfp_message_header_check(header, &expect, next_step, error);
}

/* A message: checked against the plan before anything of it is used. */
static bool accept_message(rrfp_worker *worker, const rrfp_transport_event *message)
{
    rrfp_pipeline *pipeline = worker->pipeline;
    const rrfp_message_header *header = &message->header;
    bool next_step = false;
    rrfp_error error;
    rrfp_status status =
        rrfp_worker_check_message(worker, header, &next_step, &error);
    /* Nobody begins a step before all have ended the one before. */
    if (status == RRFP_OK && next_step) {
        status = rrfp_error_set(&error, RRFP_ERR_INTERNAL,
                                "stage %u: message of step %llu during step %llu", worker->place.stage,
                                (unsigned long long)header->step,
                                (unsigned long long)pipeline->phase_number);
    }
    if (status != RRFP_OK) {
        rrfp_pipeline_fail(pipeline, &error);
        return false;
    }
    if (rrfp_message_is_signal(header)) {
        return rrfp_worker_take_signal(worker, header);
    }
    rrfp_slot *slot = slot_of(worker, header->destination_chunk, header->microbatch);
    float *data = message->payload;
    if (pipeline->config.bf16_messages) {
        data = rrfp_block_pool_take(&worker->message_pool);
        if (data == NULL) {
            rrfp_error_set(&error, RRFP_ERR_INTERNAL, "stage %u: no block for a message",
                           worker->place.stage);
            rrfp_pipeline_fail(pipeline, &error);
            return false;
        }
        rrfp_bf16_to_float(message->payload, data, pipeline->message_floats);
    }
    if (header->kind == RRFP_F) {
        slot->input = data;
        slot->input_payload = message->payload;
        slot->f_ready_ns = message->time_ns;
    } else {
        slot->grad_input = data;
        slot->grad_payload = message->payload;
        if (slot->b_ready_ns < message->time_ns) {
            slot->b_ready_ns = message->time_ns;
        }
    }
    if (recording(worker)) {
        rrfp_trace_message record = {
            .sent_ns = message->sent_ns,
            .arrived_ns = message->time_ns,
            .step = pipeline->step.iteration,
            .source_stage = header->source_stage,
            .destination_stage = header->destination_stage,
            .source_global_chunk = rrfp_shape_global_chunk(&pipeline->shape, header->source_stage,
                                                           header->source_chunk),
            .destination_global_chunk = rrfp_shape_global_chunk(
                &pipeline->shape, header->destination_stage, header->destination_chunk),
            .microbatch = header->microbatch,
            .bytes = header->payload_bytes,
            .kind = header->kind,
        };
        rrfp_trace_add_message(pipeline->trace, worker->rank, &record);
    }
    rrfp_event event = {RRFP_EVENT_INPUT,
                        {header->kind, 0, header->destination_chunk, header->microbatch}};
    return rrfp_worker_feed(worker, &event);
}

static bool drain(rrfp_worker *worker)
{
    rrfp_transport_event event;
    while (worker->transport->ops->poll(worker->transport, &event)) {
        if (event.kind == RRFP_TRANSPORT_ARRIVED) {
            if (!accept_message(worker, &event)) {
                return false;
            }
        } else {
            const rrfp_message_header *header = &event.header;
            if (worker->pipeline->config.bf16_messages) {
                rrfp_block_pool_give(&worker->packed_pool, event.payload);
            }
            rrfp_event done = {RRFP_EVENT_SEND_COMPLETED,
                               {header->kind, 0, header->source_chunk, header->microbatch}};
            if (!rrfp_worker_feed(worker, &done)) {
                return false;
            }
        }
    }
    return true;
}

static void sleep_for(double seconds)
{
    struct timespec pause = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    while (nanosleep(&pause, &pause) != 0) {
    }
}

static uint64_t ready_time(const rrfp_slot *slot, rrfp_kind kind, uint64_t phase_begin)
{
    uint64_t ready = kind == RRFP_F   ? slot->f_ready_ns
                     : kind == RRFP_W ? slot->w_ready_ns
                                      : slot->b_ready_ns;
    return ready < phase_begin ? phase_begin : ready;
}

static bool run_started_task(rrfp_worker *worker)
{
    rrfp_pipeline *pipeline = worker->pipeline;
    const rrfp_action start = worker->start;
    const rrfp_task task = start.task;
    rrfp_slot *slot = slot_of(worker, task.chunk, task.microbatch);
    uint64_t begin = rrfp_now_ns();

    worker->have_task = false;
    if (!rrfp_worker_run_task(worker, task)) {
        return false;
    }
    uint64_t end = rrfp_now_ns();
    double delay = rrfp_jitter_task_delay(&pipeline->config.jitter, worker->rank, task,
                                          pipeline->step.iteration, (double)(end - begin) * 1e-9,
                                          &worker->ema[task.kind]);
    if (delay > 0.0) {
        sleep_for(delay);
        end = rrfp_now_ns();
    }
    if (recording(worker)) {
        rrfp_trace_task record = {
            .ready_ns = ready_time(slot, (rrfp_kind)task.kind, worker->phase_begin_ns),
            .start_ns = begin,
            .end_ns = end,
            .step = pipeline->step.iteration,
            .task = task,
            .global_chunk = rrfp_shape_global_chunk(&pipeline->shape, worker->place.stage, task.chunk),
            .out_of_hint = start.out_of_hint,
        };
        rrfp_trace_add_task(pipeline->trace, worker->rank, &record);
    }
    worker->phase_busy_ns += end - begin;
    if (task.kind == RRFP_F && slot->b_ready_ns < end) {
        slot->b_ready_ns = end;
    } else if (task.kind == RRFP_B) {
        slot->w_ready_ns = end;
    }
    rrfp_event event = {RRFP_EVENT_TASK_FINISHED, task};
    return rrfp_worker_feed(worker, &event);
}

static void clear_ready_times(rrfp_worker *worker)
{
    size_t count = (size_t)worker->pipeline->shape.chunks * worker->pipeline->shape.microbatches;
    for (size_t i = 0; i < count; i++) {
        worker->slots[i].f_ready_ns = worker->slots[i].b_ready_ns = 0;
        worker->slots[i].w_ready_ns = 0;
    }
}

static void take_counters(rrfp_worker *worker)
{
    const rrfp_stage_counters *counters = rrfp_stage_get_counters(rrfp_decider_stage(&worker->train));
    worker->dispatches = counters->dispatches;
    worker->out_of_hint = counters->out_of_hint;
    if (counters->peak_inflight > worker->peak_inflight) {
        worker->peak_inflight = counters->peak_inflight;
    }
    if (counters->peak_pending_w > worker->peak_pending_w) {
        worker->peak_pending_w = counters->peak_pending_w;
    }
    if (counters->peak_live_bytes > worker->peak_inflight_bytes) {
        worker->peak_inflight_bytes = counters->peak_live_bytes;
    }
}

/* Sleeps until the transport has something; false when it has failed. */
static bool wait_for_transport(rrfp_worker *worker)
{
    const rrfp_transport_ops *ops = worker->transport->ops;
    rrfp_error error;
    ops->wait(worker->transport, WAIT_NS);
    if (ops->failure != NULL && ops->failure(worker->transport, &error) != RRFP_OK) {
        rrfp_worker_fail_transport(worker, &error);
        return false;
    }
    return true;
}

static void flush(rrfp_worker *worker)
{
    if (worker->transport->ops->flush != NULL) {
        worker->transport->ops->flush(worker->transport);
    }
}

/* Nothing can start: sums of gradients come first, a piece at a time, then sleep. */
static bool use_free_time(rrfp_worker *worker)
{
    if (recording(worker)) {
        bool summed = rrfp_gradients_sum_some(worker);
        turn_gap(worker, summed);
        if (summed) {
            return true;
        }
    }
    return wait_for_transport(worker);
}

static void run_tasks(rrfp_worker *worker)
{
    rrfp_pipeline *pipeline = worker->pipeline;

    worker->decider = recording(worker) ? &worker->train : &worker->eval;
    clear_ready_times(worker);
    worker->have_task = worker->step_done = worker->idle = false;
    worker->phase_busy_ns = 0;
    worker->phase_begin_ns = rrfp_now_ns();
    if (recording(worker)) {
        rrfp_gradients_begin(worker);
    }
    bool ok = rrfp_worker_begin(worker);
    while (ok && !worker->step_done && !atomic_load(&pipeline->failed)) {
        bool again = false;
        ok = drain(worker);
        if (ok && worker->decider->proposes && !worker->have_task && !worker->step_done) {
            ok = rrfp_worker_propose(worker, &again);
        }
        if (ok && worker->have_task) {
            flush(worker);
            ok = run_started_task(worker);
        } else if (ok && !worker->step_done && !again) {
            ok = use_free_time(worker);
        }
    }
    flush(worker);
    worker->phase_end_ns = rrfp_now_ns();
    close_gap(worker, worker->phase_end_ns);
}

static void bind_to_share(rrfp_worker *worker)
{
    rrfp_pipeline *pipeline = worker->pipeline;
    const rrfp_ranks *ranks = pipeline->config.ranks;
    uint32_t share = ranks == NULL ? worker->rank : ranks->environment.local_rank;
    uint32_t shares = ranks == NULL ? pipeline->ranks : ranks->environment.local_size;
    rrfp_error error;
    if (rrfp_bind_thread(share, shares, pipeline->config.bind_launched, &error) != RRFP_OK) {
        rrfp_pipeline_fail(pipeline, &error);
    }
}

void *rrfp_worker_main(void *argument)
{
    rrfp_worker *worker = argument;
    rrfp_pipeline *pipeline = worker->pipeline;
    if (pipeline->config.bind_cpus) {
        bind_to_share(worker); /* before the kernels start threads, which inherit it */
    }
    rrfp_kernels_thread_init(pipeline->config.threads_per_stage);
    for (uint64_t generation = 0;;) {
        pthread_mutex_lock(&pipeline->gate_mutex);
        while (pipeline->generation == generation) {
            pthread_cond_wait(&pipeline->gate, &pipeline->gate_mutex);
        }
        generation = pipeline->generation;
        pthread_mutex_unlock(&pipeline->gate_mutex);
        if (pipeline->phase == RRFP_PHASE_QUIT) {
            return NULL;
        }
        if (recording(worker)) {
            rrfp_error error;
            if (rrfp_trace_reserve(pipeline->trace, worker->rank, &error) != RRFP_OK) {
                rrfp_pipeline_fail(pipeline, &error);
            }
        }
        run_tasks(worker);
        if (recording(worker)) {
            take_counters(worker);
            rrfp_worker_finish_step(worker);
        }
        pthread_barrier_wait(&pipeline->end_barrier);
    }
}
