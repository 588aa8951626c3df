/*
 * group.h - one stage on several tensor-parallel ranks: all start the same tasks in the same order.
 *
 *   member ── notice: "this input is here" ──► lead: has every member noticed it?
 *   member ◄── decision: (sequence, task) ──── lead: the best-ranked task whose inputs all have
 *
 * The lead decides on what is ready everywhere, and may decide ahead while a task runs, so that
 * its word is there before it is needed.  Members start what is decided, in order of sequence, as
 * soon as they are free.  A member that lacks an input never starts a task that needs it: its
 * notice is missing.  Nobody waits for anybody but for inputs, there is nothing to retry, and a
 * task costs each member at most one message: notices are as many as inputs, and a W has none.
 *
 * The other protocol, of arXiv 2605.18750 section 4.2: every member proposes what it would start
 * (rrfp_stage_propose), all compare, and start it only if they agree.  It needs no more than that
 * call and rrfp_stage_start(); the comparison is a collective of the driver.
 *
 * Like the stage machine all here is pure: no clock, thread or message; the driver carries
 * notices and decisions, which may overtake each other.  An object belongs to one thread at a time.
 */
#ifndef RRFP_GROUP_H
#define RRFP_GROUP_H

#include "rrfp/stage.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { RRFP_GROUP_MAX_MEMBERS = 64 };

typedef struct rrfp_decision { /* 16 bytes: as it may travel */
    uint32_t sequence;         /* 0 for the first task of a step */
    uint16_t out_of_hint;      /* 0 or 1 */
    uint16_t zero;
    rrfp_task task;
} rrfp_decision;

/* ---- the lead's decisions ---- */

typedef struct rrfp_group_lead rrfp_group_lead;

/*
 * `config`: the stage's, with its arrays borrowed during the call; `follows` is ignored.
 * `members`: ranks of the group, the lead's own included, 1 to RRFP_GROUP_MAX_MEMBERS.
 * `ahead`: tasks that may be decided beyond the one that the lead's rank runs.  0 decides with
 * the latest knowledge, but its word arrives when members are free already; 1 hides the way of the
 * word behind a task.  Errors as rrfp_stage_create().
 */
rrfp_status rrfp_group_lead_create(const rrfp_stage_config *config, uint32_t members,
                                   uint32_t ahead, rrfp_group_lead **out, rrfp_error *error);
void rrfp_group_lead_destroy(rrfp_group_lead *lead); /* NULL is fine */

/* Most decisions that follow from one call. */
uint32_t rrfp_group_lead_most(const rrfp_group_lead *lead);

/* Each fills `decisions` (rrfp_group_lead_most() entries) with those that follow, in sequence, for
 * the driver to carry to every member, the lead's own rank included. */
rrfp_status rrfp_group_lead_begin_step(rrfp_group_lead *lead, rrfp_decision *decisions,
                                       size_t *count, rrfp_error *error);
/* `member` has the input of `task` (kind F: its activation, B: its gradient).  An input that
 * nobody can have, or twice, changes nothing and is an error. */
rrfp_status rrfp_group_lead_notice(rrfp_group_lead *lead, uint32_t member, rrfp_task task,
                                   rrfp_decision *decisions, size_t *count, rrfp_error *error);
/* The lead's own rank has ended its next task. */
rrfp_status rrfp_group_lead_finished(rrfp_group_lead *lead, rrfp_decision *decisions, size_t *count,
                                     rrfp_error *error);

size_t rrfp_group_lead_snapshot_bytes(const rrfp_group_lead *lead);
void rrfp_group_lead_snapshot(const rrfp_group_lead *lead, void *bytes);
void rrfp_group_lead_restore(rrfp_group_lead *lead, const void *bytes);

/* ---- every member ---- */

typedef struct rrfp_group_member rrfp_group_member;

/* A stage machine that starts what is decided.  As rrfp_stage_create(). */
rrfp_status rrfp_group_member_create(const rrfp_stage_config *config, rrfp_group_member **out,
                                     rrfp_error *error);
void rrfp_group_member_destroy(rrfp_group_member *member); /* NULL is fine */

/* As rrfp_stage_begin_step() and rrfp_stage_handle().  RRFP_IDLE_GROUP: a task could start, but
 * the next decision is not here. */
size_t rrfp_group_member_begin_step(rrfp_group_member *member, rrfp_action *actions);
rrfp_status rrfp_group_member_handle(rrfp_group_member *member, const rrfp_event *event,
                                     rrfp_action *actions, size_t *count, rrfp_error *error);
/* A decision has arrived, in whatever order.  One twice, or of no task, is an error. */
rrfp_status rrfp_group_member_decided(rrfp_group_member *member, const rrfp_decision *decision,
                                      rrfp_action *actions, size_t *count, rrfp_error *error);

/* Decisions started so far in this step; the machine inside, borrowed, to look at. */
uint32_t rrfp_group_member_started(const rrfp_group_member *member);
const rrfp_stage *rrfp_group_member_stage(const rrfp_group_member *member);

size_t rrfp_group_member_snapshot_bytes(const rrfp_group_member *member);
void rrfp_group_member_snapshot(const rrfp_group_member *member, void *bytes);
void rrfp_group_member_restore(rrfp_group_member *member, const void *bytes);

#ifdef __cplusplus
}
#endif
#endif /* RRFP_GROUP_H */
