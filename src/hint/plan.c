/*
 * plan.c - one step through the stage machines with unit times.
 *
 * Times are counted in half units so that a message, which is here the moment
 * its task ends, is seen by a stage that becomes free at that same moment:
 * it arrives half a unit early, and a stage that was idle still starts on the
 * whole unit.
 */
#include <stdlib.h>
#include <string.h>

#include "hint/hint_internal.h"

typedef struct plan_event {
    uint64_t time, sequence;
    uint32_t stage;
    rrfp_event event;
} plan_event;

typedef struct planner {
    const rrfp_plan *plan;
    rrfp_lists *recorded;
    rrfp_stage **machines;
    uint32_t done;
    plan_event *heap;
    size_t heap_count, heap_capacity;
    uint64_t now, sequence;
    bool out_of_memory;
} planner;

static bool before(const plan_event *a, const plan_event *b)
{
    return a->time != b->time ? a->time < b->time : a->sequence < b->sequence;
}

static void push(planner *p, uint64_t time, uint32_t stage, rrfp_event event)
{
    if (p->heap_count == p->heap_capacity) {
        size_t capacity = p->heap_capacity == 0 ? 64 : 2 * p->heap_capacity;
        plan_event *heap = realloc(p->heap, capacity * sizeof *heap);
        if (heap == NULL) {
            p->out_of_memory = true;
            return;
        }
        p->heap = heap;
        p->heap_capacity = capacity;
    }
    plan_event entry = {time, p->sequence++, stage, event};
    size_t i = p->heap_count++;
    while (i > 0 && before(&entry, &p->heap[(i - 1) / 2])) {
        p->heap[i] = p->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    p->heap[i] = entry;
}

static plan_event pop(planner *p)
{
    plan_event first = p->heap[0], last = p->heap[--p->heap_count];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < p->heap_count) {
        if (child + 1 < p->heap_count && before(&p->heap[child + 1], &p->heap[child])) {
            child++;
        }
        if (!before(&p->heap[child], &last)) {
            break;
        }
        p->heap[i] = p->heap[child];
        i = child;
    }
    p->heap[i] = last;
    return first;
}

static void record(planner *p, uint32_t stage, rrfp_task task)
{
    if (!p->plan->split_backward && task.kind == RRFP_W) {
        return; /* owed by a BW that was recorded when its B started */
    }
    if (!p->plan->split_backward && task.kind == RRFP_B) {
        task.kind = RRFP_BW;
    }
    size_t at = p->recorded->counts[stage]++;
    p->recorded->tasks[stage][at] = task;
    p->recorded->start_at[stage][at] = (p->now + 1) / 2;
}

static void start(planner *p, uint32_t stage, rrfp_task task)
{
    const rrfp_shape *shape = &p->plan->shape;
    uint64_t end = (p->now + 1) / 2 * 2 + (task.kind == RRFP_BW ? 4 : 2);
    uint32_t here = rrfp_shape_global_chunk(shape, stage, task.chunk), peer, chunk;
    bool forward = task.kind == RRFP_F;
    record(p, stage, task);
    push(p, end, stage, (rrfp_event){RRFP_EVENT_TASK_FINISHED, task});
    if (task.kind == RRFP_W || (forward ? here + 1 == shape->stages * shape->chunks : here == 0)) {
        return;
    }
    rrfp_shape_owner(shape, forward ? here + 1 : here - 1, &peer, &chunk);
    if (peer != stage) {
        rrfp_task input = {forward ? RRFP_F : RRFP_B, 0, (uint16_t)chunk, task.microbatch};
        push(p, end - 1, peer, (rrfp_event){RRFP_EVENT_INPUT, input});
    }
}

static void apply(planner *p, uint32_t stage, const rrfp_action *actions, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (actions[i].kind == RRFP_ACTION_START) {
            start(p, stage, actions[i].task);
        } else if (actions[i].kind == RRFP_ACTION_SEND) {
            rrfp_task sent = actions[i].task;
            sent.kind = sent.kind == RRFP_F ? RRFP_F : RRFP_B;
            push(p, p->now, stage, (rrfp_event){RRFP_EVENT_SEND_COMPLETED, sent});
        } else if (actions[i].kind == RRFP_ACTION_STEP_DONE) {
            p->done++;
        }
    }
}

static rrfp_status create_machines(planner *p, rrfp_error *error)
{
    const rrfp_plan *plan = p->plan;
    uint32_t chunks = plan->shape.chunks;
    for (uint32_t s = 0; s < plan->shape.stages; s++) {
        rrfp_stage_config config = {
            .struct_size = sizeof config,
            .shape = plan->shape,
            .stage = s,
            .rule = plan->rule,
            .split_backward = plan->split_backward,
            .accumulate = plan->accumulate,
            .hint_distance = plan->hint_distance,
            .budget = plan->budgets[s],
        };
        if (plan->activation_bytes != NULL) {
            config.activation_bytes = plan->activation_bytes + (size_t)s * chunks;
        }
        if (plan->retained_bytes != NULL) {
            config.retained_bytes = plan->retained_bytes + (size_t)s * chunks;
        }
        if (plan->orders != NULL) {
            config.order = plan->orders->tasks[s];
            config.order_count = plan->orders->counts[s];
        }
        rrfp_status status = rrfp_stage_create(&config, &p->machines[s], error);
        if (status != RRFP_OK) {
            return status;
        }
    }
    return RRFP_OK;
}

static rrfp_status run(planner *p, rrfp_error *error)
{
    rrfp_action actions[RRFP_MAX_ACTIONS];
    uint32_t stages = p->plan->shape.stages;
    rrfp_status status = create_machines(p, error);
    if (status != RRFP_OK) {
        return status;
    }
    for (uint32_t s = 0; s < stages; s++) {
        size_t count = rrfp_stage_begin_step(p->machines[s], actions);
        apply(p, s, actions, count);
    }
    while (p->heap_count > 0 && !p->out_of_memory) {
        plan_event next = pop(p);
        size_t count = 0;
        p->now = next.time;
        status = rrfp_stage_handle(p->machines[next.stage], &next.event, actions, &count, error);
        if (status != RRFP_OK) {
            return status;
        }
        apply(p, next.stage, actions, count);
    }
    if (p->out_of_memory) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory while planning an order");
    }
    if (p->done != stages) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "the orders of the stages wait for each other: %u of %u stages "
                              "finish",
                              p->done, stages);
    }
    return RRFP_OK;
}

rrfp_status rrfp_plan_run(const rrfp_plan *plan, rrfp_lists *recorded, size_t *stuck_at,
                          rrfp_error *error)
{
    uint32_t stages = plan->shape.stages;
    planner p = {.plan = plan, .recorded = recorded};
    rrfp_status status = rrfp_lists_init(
        recorded, stages, (size_t)3 * plan->shape.chunks * plan->shape.microbatches, error);
    if (status != RRFP_OK) {
        return status;
    }
    p.machines = calloc(stages, sizeof *p.machines);
    status = p.machines == NULL ? rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory")
                                : run(&p, error);
    for (uint32_t s = 0; s < stages; s++) {
        if (p.machines != NULL) {
            rrfp_stage_destroy(p.machines[s]);
        }
        if (stuck_at != NULL) {
            stuck_at[s] = recorded->counts[s];
        }
    }
    free(p.machines);
    free(p.heap);
    if (status != RRFP_OK) {
        rrfp_lists_free(recorded);
    }
    return status;
}
