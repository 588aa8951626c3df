/*
 * scalar_pipeline.h - stage machines around scalar arithmetic, for tests whose
 * results can be worked out by hand.
 *
 * Global chunk g computes a_g = w_g a_{g-1} (LINEAR), a_g = w_g^2 a_{g-1}
 * (SQUARE) or ends with L = a^2 / 2 (QUADRATIC).  If the last chunk is not
 * QUADRATIC the loss is its output.  Everything is kept by (chunk, microbatch);
 * a message carries a pointer that is read when it is delivered, so a buffer
 * that is reused too early shows.
 *
 * Time is virtual: each task takes duration(stage, kind), each message
 * latency(source, destination).  With a seed, the next event is drawn at
 * random among those pending instead (any interleaving is legal).
 */
#ifndef RRFP_SCALAR_PIPELINE_H
#define RRFP_SCALAR_PIPELINE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rrfp/stage.h"

enum { SCALAR_MAX_STAGES = 8, SCALAR_MAX_CHUNKS = 16, SCALAR_MAX_M = 64, SCALAR_MAX_EVENTS = 4096 };

typedef enum scalar_op { SCALAR_LINEAR, SCALAR_SQUARE, SCALAR_QUADRATIC } scalar_op;

typedef struct scalar_event {
    enum { SCALAR_FINISH, SCALAR_MESSAGE } kind;
    double time;
    uint32_t stage; /* of the task, or of the sender */
    rrfp_task task; /* the task, or the task that made the message */
    uint32_t peer_stage, peer_chunk;
    const double *value; /* read at delivery */
} scalar_event;

typedef struct scalar_pipeline {
    /* inputs */
    rrfp_stage_config config[SCALAR_MAX_STAGES]; /* shape and so on are copied to all by init */
    rrfp_shape shape;
    scalar_op op[SCALAR_MAX_CHUNKS];
    double w[SCALAR_MAX_CHUNKS];
    double x[SCALAR_MAX_M];
    double loss_scale;
    double duration[SCALAR_MAX_STAGES][4];
    double latency[SCALAR_MAX_STAGES][SCALAR_MAX_STAGES];
    uint64_t seed;                                           /* 0: in order of time */
    bool (*hold)(const struct scalar_pipeline *, const scalar_event *); /* NULL: nothing held */
    /* state */
    rrfp_stage *machine[SCALAR_MAX_STAGES];
    double input[SCALAR_MAX_CHUNKS][SCALAR_MAX_M], output[SCALAR_MAX_CHUNKS][SCALAR_MAX_M];
    double grad_output[SCALAR_MAX_CHUNKS][SCALAR_MAX_M], grad_input[SCALAR_MAX_CHUNKS][SCALAR_MAX_M];
    unsigned done[SCALAR_MAX_CHUNKS][SCALAR_MAX_M][3]; /* F, B, W */
    unsigned stages_done;
    scalar_event events[SCALAR_MAX_EVENTS];
    size_t event_count;
    double now;
    /* results */
    double loss[SCALAR_MAX_M];
    double dw[SCALAR_MAX_CHUNKS];
    double sent_at[SCALAR_MAX_CHUNKS][SCALAR_MAX_M]; /* when F's message left */
    unsigned live[SCALAR_MAX_STAGES], peak_live[SCALAR_MAX_STAGES];
    unsigned pending_w[SCALAR_MAX_STAGES], peak_pending_w[SCALAR_MAX_STAGES];
} scalar_pipeline;

static inline void scalar_defaults(scalar_pipeline *p, uint32_t stages, uint32_t chunks,
                                   uint32_t microbatches)
{
    memset(p, 0, sizeof *p);
    p->shape = (rrfp_shape){stages, chunks, microbatches, RRFP_PLACEMENT_LOOPED};
    p->loss_scale = 1.0;
    for (uint32_t s = 0; s < stages; s++) {
        p->config[s].rule = RRFP_RULE_BF;
        p->config[s].hint_distance = RRFP_DISTANCE_UNBOUNDED;
        p->config[s].budget.max_inflight = microbatches;
        for (int kind = 0; kind < 4; kind++) {
            p->duration[s][kind] = 1.0;
        }
    }
    for (uint32_t g = 0; g < stages * chunks; g++) {
        p->w[g] = 1.0;
    }
}

static inline void scalar_compute(scalar_pipeline *p, uint32_t stage, rrfp_task task)
{
    uint32_t g = rrfp_shape_global_chunk(&p->shape, stage, task.chunk);
    uint32_t last = p->shape.stages * p->shape.chunks - 1, m = task.microbatch;
    double a = g == 0 ? p->x[m] : p->input[g][m], w = p->w[g];
    if (task.kind == RRFP_F) {
        p->input[g][m] = a;
        p->output[g][m] = p->op[g] == SCALAR_LINEAR ? w * a
                          : p->op[g] == SCALAR_SQUARE ? w * w * a
                                                      : 0.5 * a * a;
        if (g == last) {
            p->loss[m] = p->output[g][m];
        }
        p->done[g][m][0]++;
    }
    double dy = g == last ? p->loss_scale : p->grad_output[g][m];
    if (task.kind == RRFP_B || task.kind == RRFP_BW) {
        p->grad_output[g][m] = dy;
        p->grad_input[g][m] = p->op[g] == SCALAR_LINEAR ? w * dy
                              : p->op[g] == SCALAR_SQUARE ? w * w * dy
                                                          : a * dy;
        p->done[g][m][1]++;
        p->live[stage]--;
        p->pending_w[stage] += task.kind == RRFP_B ? 1 : 0;
    }
    if (task.kind == RRFP_W || task.kind == RRFP_BW) {
        p->dw[g] += p->op[g] == SCALAR_LINEAR ? a * dy
                    : p->op[g] == SCALAR_SQUARE ? 2.0 * a * w * dy
                                                : 0.0;
        p->done[g][m][2]++;
        p->pending_w[stage] -= task.kind == RRFP_W ? 1 : 0;
    }
    if (p->pending_w[stage] > p->peak_pending_w[stage]) {
        p->peak_pending_w[stage] = p->pending_w[stage];
    }
}

static inline void scalar_push(scalar_pipeline *p, scalar_event event)
{
    assert_true(p->event_count < SCALAR_MAX_EVENTS);
    p->events[p->event_count++] = event;
}

static inline void scalar_apply(scalar_pipeline *p, uint32_t stage, const rrfp_action *actions,
                                size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const rrfp_action *a = &actions[i];
        uint32_t g = rrfp_shape_global_chunk(&p->shape, stage, a->task.chunk);
        uint32_t m = a->task.microbatch;
        const double *value = a->task.kind == RRFP_F ? &p->output[g][m] : &p->grad_input[g][m];
        if (a->kind == RRFP_ACTION_START) {
            if (a->task.kind == RRFP_F && ++p->live[stage] > p->peak_live[stage]) {
                p->peak_live[stage] = p->live[stage];
            }
            scalar_push(p, (scalar_event){SCALAR_FINISH,
                                          p->now + p->duration[stage][a->task.kind], stage,
                                          a->task, 0, 0, NULL});
        } else if (a->kind == RRFP_ACTION_SEND) {
            if (a->task.kind == RRFP_F) {
                p->sent_at[g][m] = p->now;
            }
            scalar_push(p, (scalar_event){SCALAR_MESSAGE,
                                          p->now + p->latency[stage][a->peer_stage], stage,
                                          a->task, a->peer_stage, a->peer_chunk, value});
        } else if (a->kind == RRFP_ACTION_DELIVER) {
            uint32_t to = rrfp_shape_global_chunk(&p->shape, stage, a->peer_chunk);
            *(a->task.kind == RRFP_F ? &p->input[to][m] : &p->grad_output[to][m]) = *value;
        } else if (a->kind == RRFP_ACTION_STEP_DONE) {
            p->stages_done++;
        }
    }
}

static inline void scalar_feed(scalar_pipeline *p, uint32_t stage, rrfp_event event)
{
    rrfp_action actions[RRFP_MAX_ACTIONS];
    size_t count = 0;
    rrfp_error error;
    if (rrfp_stage_handle(p->machine[stage], &event, actions, &count, &error) != RRFP_OK) {
        fail_msg("stage %u: %s", stage, error.text);
    }
    scalar_apply(p, stage, actions, count);
}

static inline size_t scalar_choose(scalar_pipeline *p)
{
    size_t allowed[SCALAR_MAX_EVENTS], count = 0, best = 0;
    for (size_t i = 0; i < p->event_count; i++) {
        if (p->hold == NULL || !p->hold(p, &p->events[i])) {
            allowed[count++] = i;
        }
    }
    if (count == 0) {
        fail_msg("stuck with %zu events pending, %u stages done, seed %llu", p->event_count,
                 p->stages_done, (unsigned long long)p->seed);
    }
    if (p->seed != 0) {
        p->seed = p->seed * 6364136223846793005u + 1442695040888963407u;
        return allowed[(p->seed >> 33) % count];
    }
    for (size_t i = 1; i < count; i++) {
        if (p->events[allowed[i]].time < p->events[allowed[best]].time) {
            best = i;
        }
    }
    return allowed[best];
}

/* Runs one step; every task must have run exactly once, or the test fails. */
static inline void scalar_run(scalar_pipeline *p)
{
    rrfp_action actions[RRFP_MAX_ACTIONS];
    rrfp_error error;
    for (uint32_t s = 0; s < p->shape.stages; s++) {
        p->config[s].struct_size = sizeof p->config[s];
        p->config[s].shape = p->shape;
        p->config[s].stage = s;
        if (rrfp_stage_create(&p->config[s], &p->machine[s], &error) != RRFP_OK) {
            fail_msg("stage %u: %s", s, error.text);
        }
    }
    for (uint32_t s = 0; s < p->shape.stages; s++) {
        scalar_apply(p, s, actions, rrfp_stage_begin_step(p->machine[s], actions));
    }
    while (p->event_count > 0) {
        size_t at = scalar_choose(p);
        scalar_event event = p->events[at];
        memmove(&p->events[at], &p->events[at + 1],
                (p->event_count - at - 1) * sizeof p->events[0]);
        p->event_count--;
        p->now = event.time > p->now ? event.time : p->now;
        if (event.kind == SCALAR_FINISH) {
            scalar_compute(p, event.stage, event.task);
            scalar_feed(p, event.stage, (rrfp_event){RRFP_EVENT_TASK_FINISHED, event.task});
        } else {
            uint32_t g = rrfp_shape_global_chunk(&p->shape, event.peer_stage, event.peer_chunk);
            rrfp_task arrived = {event.task.kind == RRFP_F ? RRFP_F : RRFP_B, 0,
                                 (uint16_t)event.peer_chunk, event.task.microbatch};
            *(arrived.kind == RRFP_F ? &p->input[g][arrived.microbatch]
                                     : &p->grad_output[g][arrived.microbatch]) = *event.value;
            rrfp_task sent = event.task;
            sent.kind = arrived.kind;
            scalar_feed(p, event.peer_stage, (rrfp_event){RRFP_EVENT_INPUT, arrived});
            scalar_feed(p, event.stage, (rrfp_event){RRFP_EVENT_SEND_COMPLETED, sent});
        }
    }
    assert_int_equal(p->stages_done, p->shape.stages);
    for (uint32_t g = 0; g < p->shape.stages * p->shape.chunks; g++) {
        for (uint32_t m = 0; m < p->shape.microbatches; m++) {
            for (int kind = 0; kind < 3; kind++) {
                assert_int_equal(p->done[g][m][kind], 1);
            }
        }
    }
    for (uint32_t s = 0; s < p->shape.stages; s++) {
        rrfp_stage_destroy(p->machine[s]);
        p->machine[s] = NULL;
    }
}

#endif /* RRFP_SCALAR_PIPELINE_H */
