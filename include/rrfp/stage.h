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
 *   - call o the smallest microbatch with an unfinished task anywhere.  On each
 *     stage, slots (and bytes) are reserved so that the smallest microbatch not
 *     yet retired there can always start its remaining F's: another
 *     microbatch's F is admitted only if after it enough stays free.
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
    RRFP_RULE_BFW,      /* BF on a split backward; W only when neither is ready */
    RRFP_RULE_FB,       /* rounds: one F, then one B */
    RRFP_RULE_B_PRIO,   /* B whenever one is ready */
    RRFP_RULE_F_PRIO    /* F whenever one is ready */
} rrfp_rule;

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
    rrfp_accumulate accumulate;
    uint32_t hint_distance; /* 0 = fixed order; needs `order` unless unbounded */
    rrfp_budget budget;
    const uint64_t *activation_bytes; /* borrowed during create; V values; NULL = zeros */
    const uint64_t *retained_bytes;   /* borrowed during create; V values; NULL = zeros */
    /*
     * Committed order, or the list of RRFP_RULE_LIST.  Borrowed during create.
     * Contains every task of this stage exactly once: F and BW, or F, B and W
     * when split_backward.  NULL for the dynamic rules with unbounded distance.
     */
    const rrfp_task *order;
    size_t order_count;
} rrfp_stage_config;

/*
 * A BW whose older microbatches have not all done their W (possible only with
 * accumulate=ordered) is started as B; its W is owed and started later, as a
 * task of its own, when its turn comes.  So a fused schedule is never delayed
 * by the order of accumulation, and sums stay in microbatch order.
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

typedef enum rrfp_action_kind {
    RRFP_ACTION_START,     /* run `task` now (kind F, B, W or BW) */
    RRFP_ACTION_SEND,      /* send the output of `task` (F or B) to peer_stage/peer_chunk */
    RRFP_ACTION_DELIVER,   /* output of `task` stays here: it is the input of the task of the
                              same kind on local chunk peer_chunk; already marked ready */
    RRFP_ACTION_RELEASE,   /* nobody needs buffer `buffer` of `task` any more */
    RRFP_ACTION_IDLE,      /* nothing can start; `reason` says why */
    RRFP_ACTION_STEP_DONE  /* every task of this stage is done and every send completed */
} rrfp_action_kind;

typedef enum rrfp_buffer {
    RRFP_BUFFER_ACTIVATION, /* what B alone needs: free after B (forward_only: after F) */
    RRFP_BUFFER_RETAINED,   /* what W needs: free after W (forward_only: after F) */
    RRFP_BUFFER_OUTPUT      /* the message made by `task`: free after its send completed */
} rrfp_buffer;

/* Why a free stage starts nothing.  Ordered: the first that applies is reported. */
typedef enum rrfp_idle_reason {
    RRFP_IDLE_NONE = 0,
    RRFP_IDLE_BUDGET,   /* a task is ready, the in-flight or pending-W budget forbids it */
    RRFP_IDLE_ORDER,    /* a task is ready and fits, the fixed order or distance forbids it */
    RRFP_IDLE_INPUT_F,  /* waits for an activation; forwards remain */
    RRFP_IDLE_INPUT_B,  /* all forwards done; waits for gradients */
    RRFP_IDLE_DRAIN,    /* all tasks done; waits for sends */
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
    bool out_of_hint;        /* START: an earlier entry of the order/ranking was skipped
                                because it was not ready or did not fit */
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
 * order of a finite distance cannot fit the budgets.
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

const rrfp_stage_counters *rrfp_stage_get_counters(const rrfp_stage *stage); /* borrowed */

/* True when `task` is in the ready set now (inputs here, not started). */
bool rrfp_stage_is_ready(const rrfp_stage *stage, rrfp_task task);

/* Snapshots, for explorers: plain bytes, equal iff the machines behave equally. */
size_t rrfp_stage_snapshot_bytes(const rrfp_stage *stage);
void rrfp_stage_snapshot(const rrfp_stage *stage, void *bytes);
void rrfp_stage_restore(rrfp_stage *stage, const void *bytes);

#ifdef __cplusplus
}
#endif
#endif /* RRFP_STAGE_H */
