/*
 * stage.h - the stage machine: events in, actions out.
 *
 * One machine per pipeline stage decides what that stage does next.  It is
 * pure: no thread, no clock, no allocation after creation, C standard library
 * only.  The same object code drives training, simulation and the exhaustive
 * explorer.
 *
 *      message arrived ──┐                      ┌── START task
 *      task finished ────┤    stage machine     ├── SEND output / RELEASE buffer
 *      send completed ───┘                      └── IDLE(reason) / STEP_DONE
 *
 * Life of a step
 *
 *      create ─► begin_step ─► handle(event)* ─► STEP_DONE ─► begin_step ...
 *
 * The machine keeps the *ready set*: tasks whose inputs are here.  Whenever
 * the stage is free it starts the best-ranked ready task that fits the
 * budgets; the hint only ranks, it never makes the stage wait - unless
 * `hint_distance` bounds how far a stage may overtake its committed order
 * (distance 0 is the fixed order).
 *
 * Budgets are hard.  Units:
 *   max_inflight         whole microbatches; the stage has max_inflight * V
 *                        activation slots, one per (chunk, microbatch) from the
 *                        start of F to the end of B.
 *   max_inflight_bytes   live activation bytes: activation_bytes[chunk] +
 *                        retained_bytes[chunk] from the start of F to the end
 *                        of B, retained_bytes[chunk] from there to the end of W.
 *   max_pending_w        (chunk, microbatch) pairs whose B has started and
 *                        whose W has not finished.  A fused BW whose W runs in
 *                        the same task does not count.
 *
 * Why it cannot deadlock (work-conserving orders, any hint, any V, any
 * placement, max_inflight >= 1, max_pending_w >= 1):
 *   - call o the smallest microbatch with an unfinished task anywhere.  Slots
 *     and bytes are lent as a bank lends: every state is one from which the
 *     microbatches can be finished one after the other, oldest first, each with
 *     what is free and what the older ones gave back (free + held by older >=
 *     still needed, for every microbatch).  An F is admitted if the state after
 *     it is such a state; so the remaining F's of o, before which nobody is
 *     left, always fit.  A reserve for the oldest alone would not do: with
 *     several chunks it gives its slots back one by one, others take them, and
 *     the next oldest finds too few.
 *   - a B whose W could not run next (an older microbatch of the same chunk has
 *     not done its W, accumulate=ordered) leaves one pending-W slot free for
 *     the oldest; when all slots are taken some W is runnable.
 *   - so the first unfinished task in o's chain F..F B..B W has its inputs, fits
 *     the budgets, and the stage that owns it is either running or will start
 *     something: no state is stuck before every task is done.
 * For a finite hint_distance, a task is started out of order only if the rest
 * of the committed order still fits the budgets afterwards; the head of the
 * order therefore always fits, and the committed order is itself an execution
 * of the whole pipeline, so its earliest unfinished task is always startable.
 * "The rest fits" is exact: done early, an F adds its cost, a B its pending W to
 * what every entry it passes asks for, and changes nothing behind its own place.
 *
 * Thread-safety: a machine belongs to one thread at a time.
 */
#ifndef RRFP_STAGE_H
#define RRFP_STAGE_H

#include "rrfp/task.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How ready tasks are ranked. arXiv 2605.18750 App. A and section 7.7 for the rules. */
typedef enum rrfp_rule {
    RRFP_RULE_LIST = 0, /* an ordered list of tasks; first ready entry wins */
    RRFP_RULE_BF,       /* rounds: one B, then one F */
    RRFP_RULE_BFW,      /* BF, for a split backward only; W only when neither is ready */
    RRFP_RULE_FB,       /* rounds: one F, then one B */
    RRFP_RULE_B_PRIO,   /* B whenever one is ready */
    RRFP_RULE_F_PRIO    /* F whenever one is ready */
} rrfp_rule;

/*
 * Within F: smaller chunk, then smaller microbatch; within B: larger chunk, then
 * smaller microbatch.  W comes last with every dynamic rule (larger chunk, then
 * smaller microbatch) and where the list says with a list, an owed W (see below)
 * behind the whole list.  A round whose turn (B or F) cannot start takes the other
 * one; a W that fills a gap ends the round.  When a ready B fits but for the
 * pending-W budget and some W can run, that W runs in its place.
 * When slots or bytes do not do for the first F of a chunk in the list, the
 * smallest ready microbatch of that chunk stands for it.
 */

typedef enum rrfp_accumulate {
    RRFP_ACCUMULATE_ORDERED = 0, /* W of a chunk run in microbatch order: bit-reproducible */
    RRFP_ACCUMULATE_ARRIVAL = 1  /* W run in any order */
} rrfp_accumulate;

#define RRFP_DISTANCE_UNBOUNDED UINT32_MAX

typedef struct rrfp_budget {
    uint32_t max_inflight;       /* whole microbatches, >= 1 */
    uint32_t max_pending_w;      /* >= 1; 0 means unlimited */
    uint64_t max_inflight_bytes; /* 0 means unlimited; else >= one whole microbatch */
} rrfp_budget;

typedef struct rrfp_stage_config {
    size_t struct_size; /* sizeof(rrfp_stage_config) */
    rrfp_shape shape;
    uint32_t stage;
    rrfp_rule rule;
    bool split_backward; /* B and W are separate tasks; false: BW (see below) */
    bool forward_only;   /* evaluation: F tasks alone, a slot is held during F only */
    bool follows;        /* starts nothing by itself: rrfp_stage_start() does; see group.h */
    rrfp_accumulate accumulate;
    uint32_t hint_distance; /* 0 = fixed order; needs `order` unless unbounded */
    rrfp_budget budget;
    const uint64_t *activation_bytes; /* borrowed during create; V values; NULL = zeros */
    const uint64_t *retained_bytes;   /* borrowed during create; V values; NULL = zeros */
    /*
     * Committed order, or the list of RRFP_RULE_LIST.  Borrowed during create.
     * Contains every task of this stage exactly once: F and BW, or F, B and W
     * when split_backward.  NULL for the dynamic rules with unbounded distance.
     * forward_only: every F once; other entries may be there and are ignored.
     *
     * For a finite distance the order must be executable on this stage: F before
     * B before W, chunks in the order data passes them.  With accumulate=ordered
     * the W entries of a chunk are places: the k-th one runs the W of microbatch
     * k, and moves right behind the B of k where that B comes later.  So every
     * such order can run, whatever the order of its W.
     */
    const rrfp_task *order;
    size_t order_count;
} rrfp_stage_config;

/*
 * A BW whose older microbatches have not all done their W (possible only with
 * accumulate=ordered) is started as B; its W is owed and started later, as a
 * task of its own, when its turn comes.  So a fused schedule is never delayed
 * by the order of accumulation, and sums stay in microbatch order.
 * In a committed order the owed W of a BW out of turn has its place right behind
 * the BW (or owed W) whose end makes its turn; a BW that was started as B by
 * overtaking keeps its own place for the W.
 */

typedef enum rrfp_event_kind {
    RRFP_EVENT_INPUT,         /* task.kind F: activation is here; B: gradient is here */
    RRFP_EVENT_TASK_FINISHED, /* the running task ended */
    RRFP_EVENT_SEND_COMPLETED /* the output of `task` left the sender's buffer */
} rrfp_event_kind;

typedef struct rrfp_event {
    rrfp_event_kind kind;
    rrfp_task task;
} rrfp_event;

/*
 * Each call answers with all that follows from it, the decision last: START, IDLE
 * or STEP_DONE whenever the stage is free, nothing while a task runs.  The last
 * chunk's F and the first chunk's B have no output: nobody reads it.
 */
typedef enum rrfp_action_kind {
    RRFP_ACTION_START,     /* run `task` now (kind F, B, W or BW) */
    RRFP_ACTION_SEND,      /* send the output of `task` to peer_stage/peer_chunk; its kind is F
                              or B, B also for a BW; SEND_COMPLETED names the same task */
    RRFP_ACTION_DELIVER,   /* output of `task` stays here: it is the input of the task of the
                              same kind on local chunk peer_chunk; already marked ready */
    RRFP_ACTION_RELEASE,   /* nobody needs buffer `buffer` of `task` any more; `task` is the one
                              that made it: F for ACTIVATION and RETAINED, F or B for OUTPUT */
    RRFP_ACTION_IDLE,      /* nothing can start; `reason` says why */
    RRFP_ACTION_STEP_DONE  /* every task of this stage is done and every send completed */
} rrfp_action_kind;

typedef enum rrfp_buffer {
    RRFP_BUFFER_ACTIVATION, /* what B alone needs: free after B (forward_only: after F) */
    RRFP_BUFFER_RETAINED,   /* what W needs: free after W (forward_only: after F) */
    RRFP_BUFFER_OUTPUT      /* the message made by `task`: free after its send completed, or,
                               delivered on the stage, after the task that read it */
} rrfp_buffer;

/* Why a free stage starts nothing.  Ordered: the first that applies is reported. */
typedef enum rrfp_idle_reason {
    RRFP_IDLE_NONE = 0,
    RRFP_IDLE_BUDGET,   /* a task is ready, the in-flight or pending-W budget forbids it (a W
                           waiting for older microbatches is not ready) */
    RRFP_IDLE_ORDER,    /* a task is ready and fits, the fixed order or distance forbids it */
    RRFP_IDLE_INPUT_F,  /* waits for an activation; forwards remain */
    RRFP_IDLE_INPUT_B,  /* all forwards done; waits for gradients */
    RRFP_IDLE_DRAIN,    /* all tasks done; waits for sends */
    RRFP_IDLE_GROUP,    /* a task could start here; its tensor-parallel group has not decided */
    RRFP_IDLE_REASON_COUNT
} rrfp_idle_reason;

const char *rrfp_idle_reason_name(rrfp_idle_reason reason);

typedef struct rrfp_action {
    rrfp_action_kind kind;
    rrfp_task task;
    rrfp_buffer buffer;      /* RELEASE */
    rrfp_idle_reason reason; /* IDLE */
    uint32_t peer_stage;     /* SEND */
    uint32_t peer_chunk;     /* SEND, DELIVER: local chunk at the peer */
    bool out_of_hint;        /* START: an earlier entry of the order or list was skipped because
                                it was not ready or did not fit; with a dynamic rule: a smaller
                                microbatch of the same kind and chunk was */
} rrfp_action;

enum { RRFP_MAX_ACTIONS = 8 }; /* most actions one call returns */

typedef struct rrfp_stage rrfp_stage;

typedef struct rrfp_stage_counters { /* of the current step, reset by begin_step */
    uint32_t inflight;             /* activation slots held now */
    uint32_t peak_inflight;        /* in slots (chunk activations) */
    uint32_t pending_w;
    uint32_t peak_pending_w;
    uint64_t live_bytes;
    uint64_t peak_live_bytes;
    uint64_t dispatches;
    uint64_t out_of_hint;
} rrfp_stage_counters;

/*
 * Checks the configuration and creates a machine (*given* to the caller, who
 * destroys it).  The only function here that allocates.  RRFP_ERR_INVALID for
 * a bad value, RRFP_ERR_INFEASIBLE if the bytes budget is under one whole
 * microbatch (the text names the least value that works) or if the committed
 * order of a finite distance is not executable or does not fit the budgets (the
 * text names the entry, and the least budget the whole order needs).
 */
rrfp_status rrfp_stage_create(const rrfp_stage_config *config, rrfp_stage **stage_out,
                              rrfp_error *error);
void rrfp_stage_destroy(rrfp_stage *stage); /* NULL is fine */

/* Forgets the last step, fills `actions` (RRFP_MAX_ACTIONS entries), returns how many. */
size_t rrfp_stage_begin_step(rrfp_stage *stage, rrfp_action *actions);

/*
 * Feeds one event.  An event that cannot be (an unknown task, an input twice,
 * a finish of a task that is not running) changes nothing, sets *error and
 * returns its status; the driver turns that into a clear end of the run.
 * On success *count says how many of `actions` were written.
 */
rrfp_status rrfp_stage_handle(rrfp_stage *stage, const rrfp_event *event, rrfp_action *actions,
                              size_t *count, rrfp_error *error);

/*
 * For a machine that follows.  propose: what it would start now by itself; false when a task runs
 * or none can start.  start: starts `task`, which must be ready in the kind it has and fit the
 * budgets (RRFP_ERR_INVALID, and nothing changes, otherwise); `out_of_hint` is counted and handed
 * through; the actions are those of rrfp_stage_handle().
 */
bool rrfp_stage_propose(const rrfp_stage *stage, rrfp_task *task, bool *out_of_hint);
rrfp_status rrfp_stage_start(rrfp_stage *stage, rrfp_task task, bool out_of_hint,
                             rrfp_action *actions, size_t *count, rrfp_error *error);

const rrfp_stage_counters *rrfp_stage_get_counters(const rrfp_stage *stage); /* borrowed */

/*
 * True when `task` is in the ready set now (inputs here, not started): F, BW or B
 * by split_backward, and W (an owed one too) when its turn has come.
 */
bool rrfp_stage_is_ready(const rrfp_stage *stage, rrfp_task task);

/*
 * Snapshots, for explorers: plain bytes, equal iff the machines behave equally.
 * Peaks and counts of dispatches are statistics and not part of them.
 */
size_t rrfp_stage_snapshot_bytes(const rrfp_stage *stage);
void rrfp_stage_snapshot(const rrfp_stage *stage, void *bytes);
void rrfp_stage_restore(rrfp_stage *stage, const void *bytes);

#ifdef __cplusplus
}
#endif
#endif /* RRFP_STAGE_H */
