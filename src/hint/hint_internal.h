/* hint_internal.h - what the files behind hint.h share. */
#ifndef RRFP_HINT_INTERNAL_H
#define RRFP_HINT_INTERNAL_H

#include "rrfp/hint.h"

/* One task list per stage.  A zeroed struct is empty. */
typedef struct rrfp_lists {
    uint32_t stages;
    rrfp_task **tasks;   /* owned */
    size_t *counts;      /* owned */
    uint64_t **start_at; /* owned; unit-time start of each task, only from rrfp_plan_run */
} rrfp_lists;

/* Room for `per_stage` tasks on each stage; all counts 0. */
rrfp_status rrfp_lists_init(rrfp_lists *lists, uint32_t stages, size_t per_stage,
                            rrfp_error *error);
void rrfp_lists_free(rrfp_lists *lists);

/* generate.c: the plain list of a named list hint, before budgets.  `budgets` may hold
 * max_inflight 0 (automatic). */
rrfp_status rrfp_hint_generate(const rrfp_hint_info *info, const rrfp_shape *shape,
                               const rrfp_budget *budgets, rrfp_lists *lists, rrfp_error *error);
/* Most activation slots in use on a stage that follows `tasks`. */
uint32_t rrfp_list_peak_inflight(const rrfp_task *tasks, size_t count);

/* plan.c */
typedef struct rrfp_plan {
    rrfp_shape shape;
    rrfp_rule rule;
    bool split_backward;
    rrfp_accumulate accumulate;
    uint32_t hint_distance;
    const rrfp_budget *budgets;       /* borrowed; per stage, max_inflight >= 1 */
    const uint64_t *activation_bytes; /* borrowed; [stage*V + chunk]; may be NULL */
    const uint64_t *retained_bytes;
    const rrfp_lists *orders; /* borrowed; NULL when the rule needs none */
} rrfp_plan;

/*
 * Runs one step through the stage machines with unit task times (BW: two) and
 * instant messages, and records what each stage started (*given*).  A stage
 * that started a BW as B is recorded as BW.  RRFP_ERR_INFEASIBLE when the
 * orders do not fit the budgets or wait for each other; `stuck_at`, may be
 * NULL, then receives how many tasks each stage had started.
 */
rrfp_status rrfp_plan_run(const rrfp_plan *plan, rrfp_lists *recorded, size_t *stuck_at,
                          rrfp_error *error);

#endif /* RRFP_HINT_INTERNAL_H */
