/* coordination.c - see coordination.h. */
#include "train/coordination.h"

#include <stdlib.h>
#include <string.h>

#include "train/pipeline_internal.h"

/* Of lead's decisions one is made ahead, so that it has come when the members are free. */
enum { AHEAD = 1 };

rrfp_status rrfp_decider_init(rrfp_decider *decider, const rrfp_stage_config *config,
                              rrfp_coordination how, uint32_t tensor_rank, uint32_t tensor_size,
                              rrfp_error *error)
{
    rrfp_stage_config own = *config;
    *decider = (rrfp_decider){.proposes = tensor_size > 1 && how == RRFP_COORDINATION_ALL_GATHER};
    own.follows = decider->proposes;
    if (tensor_size == 1 || decider->proposes) {
        return rrfp_stage_create(&own, &decider->machine, error);
    }
    rrfp_status status = rrfp_group_member_create(&own, &decider->member, error);
    if (status == RRFP_OK && tensor_rank == 0) {
        status = rrfp_group_lead_create(&own, tensor_size, AHEAD, &decider->lead, error);
    }
    if (status == RRFP_OK && decider->lead != NULL) {
        decider->decisions = calloc(rrfp_group_lead_most(decider->lead),
                                    sizeof *decider->decisions);
        if (decider->decisions == NULL) {
            status = rrfp_error_set(error, RRFP_ERR_NOMEM, "stage %u: out of memory for decisions",
                                    config->stage);
        }
    }
    return status;
}

void rrfp_decider_free(rrfp_decider *decider)
{
    rrfp_stage_destroy(decider->machine);
    rrfp_group_member_destroy(decider->member);
    rrfp_group_lead_destroy(decider->lead);
    free(decider->decisions);
    *decider = (rrfp_decider){0};
}

const rrfp_stage *rrfp_decider_stage(const rrfp_decider *decider)
{
    return decider->member != NULL ? rrfp_group_member_stage(decider->member) : decider->machine;
}

static bool fail(rrfp_worker *worker, const rrfp_error *error)
{
    rrfp_pipeline_fail(worker->pipeline, error);
    return false;
}

/* ---- signals -------------------------------------------------------------------------- */

static bool send_signal(rrfp_worker *worker, uint8_t kind, uint32_t to, rrfp_task task,
                        uint32_t sequence, uint32_t out_of_hint)
{
    rrfp_error error;
    rrfp_message_header header = {
        .kind = kind,
        .run_id = worker->pipeline->run_id,
        .step = worker->pipeline->phase_number,
        .source_stage = (uint16_t)worker->place.stage,
        .source_chunk = task.chunk,
        .destination_stage = (uint16_t)worker->place.stage,
        .destination_chunk = task.chunk,
        .microbatch = task.microbatch,
        .dims = {task.kind, sequence, out_of_hint},
        .source_tensor_rank = (uint16_t)worker->place.tensor_rank,
        .destination_tensor_rank = (uint16_t)to,
    };
    rrfp_message_header_seal(&header);
    if (worker->transport->ops->send(worker->transport, &header, NULL, &error) != RRFP_OK) {
        rrfp_worker_fail_transport(worker, &error);
        return false;
    }
    return true;
}

static bool take_decision(rrfp_worker *worker, const rrfp_decision *decision)
{
    rrfp_action actions[RRFP_MAX_ACTIONS];
    size_t count = 0;
    rrfp_error error;
    if (rrfp_group_member_decided(worker->decider->member, decision, actions, &count, &error) !=
        RRFP_OK) {
        return fail(worker, &error);
    }
    return rrfp_worker_apply(worker, actions, count);
}

/* The others' first: theirs has a way to go. */
static bool spread_decisions(rrfp_worker *worker, size_t count)
{
    const rrfp_decision *decisions = worker->decider->decisions;
    for (size_t i = 0; i < count; i++) {
        for (uint32_t t = 1; t < worker->pipeline->layout.tensor; t++) {
            if (!send_signal(worker, RRFP_MESSAGE_DECISION, t, decisions[i].task,
                             decisions[i].sequence, decisions[i].out_of_hint)) {
                return false;
            }
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (!take_decision(worker, &decisions[i])) {
            return false;
        }
    }
    return true;
}

static bool take_notice(rrfp_worker *worker, uint32_t member, rrfp_task task)
{
    const rrfp_decider *decider = worker->decider;
    size_t count = 0;
    rrfp_error error;
    if (rrfp_group_lead_notice(decider->lead, member, task, decider->decisions, &count, &error) !=
        RRFP_OK) {
        return fail(worker, &error);
    }
    return spread_decisions(worker, count);
}

bool rrfp_worker_take_signal(rrfp_worker *worker, const rrfp_message_header *header)
{
    rrfp_task task = {(uint8_t)header->dims[0], 0, header->destination_chunk, header->microbatch};
    if (header->kind == RRFP_MESSAGE_NOTICE && worker->decider->lead != NULL) {
        return take_notice(worker, header->source_tensor_rank, task);
    }
    if (header->kind == RRFP_MESSAGE_DECISION && worker->decider->member != NULL) {
        rrfp_decision decision = {.sequence = header->dims[1],
                                  .out_of_hint = (uint16_t)header->dims[2],
                                  .task = task};
        return take_decision(worker, &decision);
    }
    rrfp_error error;
    rrfp_error_set(&error, RRFP_ERR_FORMAT,
                   "stage %u: tensor-parallel rank %u got a signal that nobody should send: do all "
                   "ranks run with the same --tp-coordination?",
                   worker->place.stage, worker->place.tensor_rank);
    return fail(worker, &error);
}

/* ---- events --------------------------------------------------------------------------- */

bool rrfp_worker_begin(rrfp_worker *worker)
{
    const rrfp_decider *decider = worker->decider;
    rrfp_action actions[RRFP_MAX_ACTIONS];
    rrfp_error error;
    size_t count = decider->member != NULL
                       ? rrfp_group_member_begin_step(decider->member, actions)
                       : rrfp_stage_begin_step(decider->machine, actions);
    if (!rrfp_worker_apply(worker, actions, count)) {
        return false;
    }
    if (decider->lead == NULL) {
        return true;
    }
    if (rrfp_group_lead_begin_step(decider->lead, decider->decisions, &count, &error) != RRFP_OK) {
        return fail(worker, &error);
    }
    return spread_decisions(worker, count);
}

/* The next decision is out before this rank has put its own task behind it. */
static bool lead_finished(rrfp_worker *worker)
{
    const rrfp_decider *decider = worker->decider;
    size_t count = 0;
    rrfp_error error;
    if (rrfp_group_lead_finished(decider->lead, decider->decisions, &count, &error) != RRFP_OK) {
        return fail(worker, &error);
    }
    return spread_decisions(worker, count);
}

bool rrfp_worker_feed(rrfp_worker *worker, const rrfp_event *event)
{
    const rrfp_decider *decider = worker->decider;
    rrfp_action actions[RRFP_MAX_ACTIONS];
    size_t count = 0;
    rrfp_error error;
    uint64_t begin = rrfp_now_ns();
    if (decider->lead != NULL && event->kind == RRFP_EVENT_TASK_FINISHED &&
        !lead_finished(worker)) {
        return false;
    }
    rrfp_status status = decider->member != NULL ? rrfp_group_member_handle(decider->member, event,
                                                                            actions, &count, &error)
                                                 : rrfp_stage_handle(decider->machine, event,
                                                                     actions, &count, &error);
    if (status != RRFP_OK) {
        return fail(worker, &error);
    }
    if (worker->pipeline->phase == RRFP_PHASE_TRAIN) {
        worker->machine_ns += rrfp_now_ns() - begin;
    }
    if (!rrfp_worker_apply(worker, actions, count)) {
        return false;
    }
    if (decider->member == NULL || event->kind != RRFP_EVENT_INPUT) {
        return true;
    }
    return decider->lead != NULL
               ? take_notice(worker, 0, event->task)
               : send_signal(worker, RRFP_MESSAGE_NOTICE, 0, event->task, 0, 0);
}

/* ---- propose, compare, try again ------------------------------------------------------- */

bool rrfp_worker_propose(rrfp_worker *worker, bool *again)
{
    rrfp_stage *machine = worker->decider->machine;
    rrfp_collective *group = worker->tensor_group;
    rrfp_task mine, all[RRFP_GROUP_MAX_MEMBERS]; /* compared as bytes */
    bool out_of_hint = false;
    rrfp_error error;
    *again = false;
    memset(&mine, 0, sizeof mine);
    if (!rrfp_stage_propose(machine, &mine, &out_of_hint)) {
        return true; /* who lacks an input stays away until it comes */
    }
    uint64_t begin = rrfp_now_ns();
    rrfp_all_gather(group, &mine, all, sizeof mine);
    worker->machine_ns += rrfp_now_ns() - begin;
    if (rrfp_collective_failure(group, &error) != RRFP_OK) {
        return fail(worker, &error);
    }
    for (uint32_t t = 0; t < group->size; t++) {
        if (memcmp(&all[t], &mine, sizeof mine) != 0) {
            worker->retries++;
            *again = true;
            return true;
        }
    }
    rrfp_action actions[RRFP_MAX_ACTIONS];
    size_t count = 0;
    if (rrfp_stage_start(machine, mine, out_of_hint, actions, &count, &error) != RRFP_OK) {
        return fail(worker, &error);
    }
    return rrfp_worker_apply(worker, actions, count);
}
