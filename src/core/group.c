/*
 * group.c - deciding for a tensor-parallel group, and following; see group.h.
 *
 * The lead's machine is never run by anyone: a task of it ends when the next decision is due, its
 * sends end at once, and an input comes when the last member has noticed it.  So it is always at
 * or ahead of every member's machine, which goes through the same tasks in the same order.
 */
#include <stdlib.h>
#include <string.h>

#include "core/stage_internal.h"
#include "rrfp/group.h"

_Static_assert(sizeof(rrfp_decision) == 16, "a decision travels as it lies in memory");

/* ---- the lead ------------------------------------------------------------------------- */

typedef struct lead_head { /* plain bytes, compared by explorers */
    uint32_t decided, finished;
} lead_head;

struct rrfp_group_lead {
    rrfp_stage *machine;
    rrfp_shape shape;
    uint32_t stage, members, ahead;
    lead_head head;
    size_t notice_count;
    uint64_t *noticed; /* [2*V*M] bit of each member, F then B */
};

rrfp_status rrfp_group_lead_create(const rrfp_stage_config *config, uint32_t members,
                                   uint32_t ahead, rrfp_group_lead **out, rrfp_error *error)
{
    rrfp_stage_config own = *config;
    if (members < 1 || members > RRFP_GROUP_MAX_MEMBERS) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage %u: a tensor-parallel group of %u ranks; there may be 1 to %d",
                              config->stage, members, RRFP_GROUP_MAX_MEMBERS);
    }
    rrfp_group_lead *lead = calloc(1, sizeof *lead);
    if (lead == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "stage %u: no memory", config->stage);
    }
    own.follows = false;
    rrfp_status status = rrfp_stage_create(&own, &lead->machine, error);
    if (status == RRFP_OK) {
        lead->shape = config->shape;
        lead->stage = config->stage;
        lead->members = members;
        lead->ahead = ahead;
        lead->notice_count = (size_t)2 * config->shape.chunks * config->shape.microbatches;
        lead->noticed = calloc(lead->notice_count, sizeof *lead->noticed);
        if (lead->noticed == NULL) {
            status = rrfp_error_set(error, RRFP_ERR_NOMEM, "stage %u: no memory", config->stage);
        }
    }
    if (status != RRFP_OK) {
        rrfp_group_lead_destroy(lead);
        return status;
    }
    *out = lead;
    return RRFP_OK;
}

void rrfp_group_lead_destroy(rrfp_group_lead *lead)
{
    if (lead != NULL) {
        rrfp_stage_destroy(lead->machine);
        free(lead->noticed);
        free(lead);
    }
}

uint32_t rrfp_group_lead_most(const rrfp_group_lead *lead)
{
    return lead->ahead + 1;
}

typedef struct writer {
    rrfp_decision *decisions;
    size_t count;
} writer;

/* Takes note of what starts, and lets every send end at once. */
static rrfp_status absorb(rrfp_group_lead *lead, const rrfp_action *actions, size_t count,
                          writer *out, rrfp_error *error)
{
    rrfp_status status = RRFP_OK;
    for (size_t i = 0; status == RRFP_OK && i < count; i++) {
        if (actions[i].kind == RRFP_ACTION_START) {
            out->decisions[out->count++] = (rrfp_decision){.sequence = lead->head.decided++,
                                                           .out_of_hint = actions[i].out_of_hint,
                                                           .task = actions[i].task};
        } else if (actions[i].kind == RRFP_ACTION_SEND) {
            rrfp_event sent = {RRFP_EVENT_SEND_COMPLETED, actions[i].task};
            rrfp_action unused[RRFP_MAX_ACTIONS]; /* gives nothing that a task could need */
            size_t unused_count;
            status = rrfp_stage_handle(lead->machine, &sent, unused, &unused_count, error);
        }
    }
    return status;
}

/* Ends the machine's task as long as the next decision is due. */
static rrfp_status go_on(rrfp_group_lead *lead, writer *out, rrfp_error *error)
{
    const rrfp_stage_head *head = lead->machine->head;
    rrfp_status status = RRFP_OK;
    while (status == RRFP_OK && head->running &&
           lead->head.decided <= lead->head.finished + lead->ahead) {
        rrfp_action actions[RRFP_MAX_ACTIONS];
        size_t count = 0;
        rrfp_event end = {RRFP_EVENT_TASK_FINISHED,
                          {.kind = head->kind, .chunk = head->chunk,
                           .microbatch = head->microbatch}};
        status = rrfp_stage_handle(lead->machine, &end, actions, &count, error);
        if (status == RRFP_OK) {
            status = absorb(lead, actions, count, out, error);
        }
    }
    return status;
}

rrfp_status rrfp_group_lead_begin_step(rrfp_group_lead *lead, rrfp_decision *decisions,
                                       size_t *count, rrfp_error *error)
{
    rrfp_action actions[RRFP_MAX_ACTIONS];
    writer out = {.decisions = decisions};
    lead->head = (lead_head){0};
    memset(lead->noticed, 0, lead->notice_count * sizeof *lead->noticed);
    size_t begun = rrfp_stage_begin_step(lead->machine, actions);
    rrfp_status status = absorb(lead, actions, begun, &out, error);
    if (status == RRFP_OK) {
        status = go_on(lead, &out, error);
    }
    *count = out.count;
    return status;
}

static rrfp_status refuse_notice(const rrfp_group_lead *lead, uint32_t member, rrfp_task task,
                                 const char *why, rrfp_error *error)
{
    return rrfp_error_set(error, RRFP_ERR_INVALID,
                          "stage %u: notice of tensor-parallel rank %u for %s of chunk %u, "
                          "microbatch %u: %s",
                          lead->stage, member, rrfp_kind_name((rrfp_kind)task.kind), task.chunk,
                          task.microbatch, why);
}

rrfp_status rrfp_group_lead_notice(rrfp_group_lead *lead, uint32_t member, rrfp_task task,
                                   rrfp_decision *decisions, size_t *count, rrfp_error *error)
{
    const uint32_t V = lead->shape.chunks, M = lead->shape.microbatches;
    const uint64_t all = UINT64_MAX >> (RRFP_GROUP_MAX_MEMBERS - lead->members);
    writer out = {.decisions = decisions};
    if (member >= lead->members) {
        return refuse_notice(lead, member, task, "there is no such rank", error);
    }
    if (task.kind > RRFP_B || task.chunk >= V || task.microbatch >= M) {
        return refuse_notice(lead, member, task, "there is no such input", error);
    }
    uint64_t *noticed =
        &lead->noticed[((size_t)task.kind * V + task.chunk) * M + task.microbatch];
    uint64_t bit = UINT64_C(1) << member;
    if (*noticed & bit) {
        return refuse_notice(lead, member, task, "it came before", error);
    }
    *count = 0;
    if ((*noticed | bit) != all) {
        *noticed |= bit;
        return RRFP_OK;
    }
    rrfp_action actions[RRFP_MAX_ACTIONS];
    size_t action_count = 0;
    rrfp_event input = {RRFP_EVENT_INPUT, task};
    rrfp_status status = rrfp_stage_handle(lead->machine, &input, actions, &action_count, error);
    if (status != RRFP_OK) {
        return status;
    }
    *noticed |= bit;
    status = absorb(lead, actions, action_count, &out, error);
    if (status == RRFP_OK) {
        status = go_on(lead, &out, error);
    }
    *count = out.count;
    return status;
}

rrfp_status rrfp_group_lead_finished(rrfp_group_lead *lead, rrfp_decision *decisions, size_t *count,
                                     rrfp_error *error)
{
    writer out = {.decisions = decisions};
    if (lead->head.finished >= lead->head.decided) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage %u: the lead's rank has ended %u tasks, but only %u were "
                              "decided",
                              lead->stage, lead->head.finished + 1, lead->head.decided);
    }
    lead->head.finished++;
    rrfp_status status = go_on(lead, &out, error);
    *count = out.count;
    return status;
}

size_t rrfp_group_lead_snapshot_bytes(const rrfp_group_lead *lead)
{
    return sizeof lead->head + lead->notice_count * sizeof *lead->noticed +
           rrfp_stage_snapshot_bytes(lead->machine);
}

void rrfp_group_lead_snapshot(const rrfp_group_lead *lead, void *bytes)
{
    unsigned char *at = bytes;
    memcpy(at, &lead->head, sizeof lead->head);
    at += sizeof lead->head;
    memcpy(at, lead->noticed, lead->notice_count * sizeof *lead->noticed);
    rrfp_stage_snapshot(lead->machine, at + lead->notice_count * sizeof *lead->noticed);
}

void rrfp_group_lead_restore(rrfp_group_lead *lead, const void *bytes)
{
    const unsigned char *at = bytes;
    memcpy(&lead->head, at, sizeof lead->head);
    at += sizeof lead->head;
    memcpy(lead->noticed, at, lead->notice_count * sizeof *lead->noticed);
    rrfp_stage_restore(lead->machine, at + lead->notice_count * sizeof *lead->noticed);
}

/* ---- a member ------------------------------------------------------------------------- */

enum { TASKS_PER_PIECE = 3 }; /* F, B and W of a (chunk, microbatch), at most */

typedef struct log_entry {
    rrfp_task task;
    uint32_t out_of_hint;
    uint32_t here;
} log_entry;

struct rrfp_group_member {
    rrfp_stage *machine;
    uint32_t stage;
    uint32_t next; /* sequence of the decision to start next */
    uint32_t most;
    log_entry *log; /* [most]; those started are cleared */
};

rrfp_status rrfp_group_member_create(const rrfp_stage_config *config, rrfp_group_member **out,
                                     rrfp_error *error)
{
    rrfp_stage_config own = *config;
    rrfp_group_member *member = calloc(1, sizeof *member);
    if (member == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "stage %u: no memory", config->stage);
    }
    own.follows = true;
    rrfp_status status = rrfp_stage_create(&own, &member->machine, error);
    if (status == RRFP_OK) {
        member->stage = config->stage;
        member->most = TASKS_PER_PIECE * config->shape.chunks * config->shape.microbatches;
        member->log = calloc(member->most, sizeof *member->log);
        if (member->log == NULL) {
            status = rrfp_error_set(error, RRFP_ERR_NOMEM, "stage %u: no memory", config->stage);
        }
    }
    if (status != RRFP_OK) {
        rrfp_group_member_destroy(member);
        return status;
    }
    *out = member;
    return RRFP_OK;
}

void rrfp_group_member_destroy(rrfp_group_member *member)
{
    if (member != NULL) {
        rrfp_stage_destroy(member->machine);
        free(member->log);
        free(member);
    }
}

size_t rrfp_group_member_begin_step(rrfp_group_member *member, rrfp_action *actions)
{
    member->next = 0;
    memset(member->log, 0, member->most * sizeof *member->log);
    return rrfp_stage_begin_step(member->machine, actions);
}

/* Starts the next decided task in place of the IDLE that ends `actions`, if there is one. */
static rrfp_status follow(rrfp_group_member *member, rrfp_action *actions, size_t *count,
                          rrfp_error *error)
{
    if (member->machine->head->running || member->next == member->most ||
        !member->log[member->next].here) {
        return RRFP_OK;
    }
    log_entry *entry = &member->log[member->next];
    size_t before = *count, started = 0;
    if (before > 0 && actions[before - 1].kind == RRFP_ACTION_IDLE) {
        before--;
    }
    rrfp_status status = rrfp_stage_start(member->machine, entry->task, entry->out_of_hint != 0,
                                          actions + before, &started, error);
    if (status == RRFP_OK) {
        *entry = (log_entry){.here = 0};
        member->next++;
        *count = before + started;
    }
    return status;
}

rrfp_status rrfp_group_member_handle(rrfp_group_member *member, const rrfp_event *event,
                                     rrfp_action *actions, size_t *count, rrfp_error *error)
{
    rrfp_status status = rrfp_stage_handle(member->machine, event, actions, count, error);
    return status == RRFP_OK ? follow(member, actions, count, error) : status;
}

rrfp_status rrfp_group_member_decided(rrfp_group_member *member, const rrfp_decision *decision,
                                      rrfp_action *actions, size_t *count, rrfp_error *error)
{
    if (decision->sequence >= member->most || decision->zero != 0 || decision->out_of_hint > 1) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage %u: decision %u is out of range: a step has at most %u tasks",
                              member->stage, decision->sequence, member->most);
    }
    if (decision->sequence < member->next || member->log[decision->sequence].here) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "stage %u: decision %u came before",
                              member->stage, decision->sequence);
    }
    member->log[decision->sequence] = (log_entry){decision->task, decision->out_of_hint, 1};
    *count = 0;
    return follow(member, actions, count, error);
}

uint32_t rrfp_group_member_started(const rrfp_group_member *member)
{
    return member->next;
}

const rrfp_stage *rrfp_group_member_stage(const rrfp_group_member *member)
{
    return member->machine;
}

size_t rrfp_group_member_snapshot_bytes(const rrfp_group_member *member)
{
    return sizeof member->next + member->most * sizeof *member->log +
           rrfp_stage_snapshot_bytes(member->machine);
}

void rrfp_group_member_snapshot(const rrfp_group_member *member, void *bytes)
{
    unsigned char *at = bytes;
    memcpy(at, &member->next, sizeof member->next);
    at += sizeof member->next;
    memcpy(at, member->log, member->most * sizeof *member->log);
    rrfp_stage_snapshot(member->machine, at + member->most * sizeof *member->log);
}

void rrfp_group_member_restore(rrfp_group_member *member, const void *bytes)
{
    const unsigned char *at = bytes;
    memcpy(&member->next, at, sizeof member->next);
    at += sizeof member->next;
    memcpy(member->log, at, member->most * sizeof *member->log);
    rrfp_stage_restore(member->machine, at + member->most * sizeof *member->log);
}
