/*
 * hint_sim.h - an evaluation of schedules that shares no code with the library.
 *
 * Follows each stage's list exactly, with F = B = W = 1 and BW = 2 and instant
 * messages: a task starts when its stage is free and its inputs have ended,
 * the longest path through the graph of tasks.
 */
#ifndef RRFP_TEST_HINT_SIM_H
#define RRFP_TEST_HINT_SIM_H

#include <stdlib.h>
#include <string.h>

#include "rrfp/hint.h"

typedef struct sim_result {
    bool complete;        /* every task exactly once */
    bool feasible;        /* the lists run to their end */
    uint64_t makespan;    /* last end */
    uint64_t bubble[16];  /* makespan - busy, per stage */
    uint64_t inside[16];  /* idle between a stage's first start and last end */
    uint32_t peak[16];    /* activation slots, F start to B end */
    uint32_t pending[16]; /* most B done or running without their W */
} sim_result;

static inline uint32_t sim_global(const rrfp_shape *shape, uint32_t stage, uint32_t chunk)
{
    if (shape->placement == RRFP_PLACEMENT_V) {
        return chunk == 0 ? stage : 2 * shape->stages - 1 - stage;
    }
    return chunk * shape->stages + stage;
}

/* ends[kind 0=F 1=B 2=W][global][m]; 0 = not done (no task ends at 0). */
static inline sim_result sim_run(const rrfp_hint *hint)
{
    const rrfp_shape *shape = &hint->shape;
    uint32_t stages = shape->stages, count = shape->microbatches;
    uint32_t globals = stages * shape->chunks;
    size_t plane = (size_t)globals * count;
    uint64_t *ends = calloc(3 * plane, sizeof *ends);
    uint8_t *times = calloc(3 * plane, 1);
    size_t at[16] = {0};
    uint64_t free_at[16] = {0}, busy[16] = {0}, first[16] = {0};
    sim_result result = {.complete = true, .feasible = true};
    for (uint32_t s = 0; s < stages; s++) {
        uint32_t held = 0, owed = 0;
        for (size_t i = 0; i < hint->order_counts[s]; i++) {
            rrfp_task t = hint->orders[s][i];
            if (t.chunk >= shape->chunks || t.microbatch >= count || t.kind > RRFP_BW ||
                (hint->split_backward ? t.kind == RRFP_BW
                                      : t.kind == RRFP_B || t.kind == RRFP_W)) {
                result.complete = false;
                continue;
            }
            size_t item = (size_t)sim_global(shape, s, t.chunk) * count + t.microbatch;
            held += t.kind == RRFP_F;
            owed += t.kind == RRFP_B;
            result.peak[s] = held > result.peak[s] ? held : result.peak[s];
            result.pending[s] = owed > result.pending[s] ? owed : result.pending[s];
            held -= t.kind == RRFP_B || t.kind == RRFP_BW;
            owed -= t.kind == RRFP_W;
            times[(t.kind == RRFP_BW ? 1 : t.kind) * plane + item]++;
            if (t.kind == RRFP_BW) {
                times[2 * plane + item]++;
            }
        }
    }
    for (size_t i = 0; i < 3 * plane; i++) {
        result.complete = result.complete && times[i] == 1;
    }
    for (bool moved = result.complete; moved;) {
        moved = false;
        for (uint32_t s = 0; s < stages; s++) {
            while (at[s] < hint->order_counts[s]) {
                rrfp_task t = hint->orders[s][at[s]];
                uint32_t g = sim_global(shape, s, t.chunk);
                size_t item = (size_t)g * count + t.microbatch;
                uint64_t ready = 0, other = 0, length = t.kind == RRFP_BW ? 2 : 1;
                bool ok = true;
                if (t.kind == RRFP_F && g > 0) {
                    ready = ends[item - count];
                    ok = ready != 0;
                } else if (t.kind == RRFP_W) {
                    ready = ends[plane + item];
                    ok = ready != 0;
                } else if (t.kind != RRFP_F) {
                    ready = ends[item];
                    ok = ready != 0;
                    if (g + 1 < globals) {
                        other = ends[plane + item + count];
                        ok = ok && other != 0;
                    }
                }
                if (!ok) {
                    break;
                }
                ready = other > ready ? other : ready;
                uint64_t start = ready > free_at[s] ? ready : free_at[s];
                if (at[s] == 0) {
                    first[s] = start;
                }
                free_at[s] = start + length;
                busy[s] += length;
                ends[(t.kind == RRFP_BW ? 1 : t.kind) * plane + item] = free_at[s];
                at[s]++;
                moved = true;
            }
        }
    }
    for (uint32_t s = 0; s < stages; s++) {
        result.feasible = result.feasible && at[s] == hint->order_counts[s];
        result.makespan = free_at[s] > result.makespan ? free_at[s] : result.makespan;
    }
    for (uint32_t s = 0; s < stages; s++) {
        result.bubble[s] = result.makespan - busy[s];
        result.inside[s] = free_at[s] - first[s] - busy[s];
    }
    result.feasible = result.feasible && result.complete;
    free(ends);
    free(times);
    return result;
}

/* Builds by name with one budget on every stage (max_inflight 0 = automatic). */
static inline rrfp_status sim_build(const char *name, uint32_t stages, uint32_t chunks,
                                    uint32_t microbatches, uint32_t distance, uint32_t inflight,
                                    uint32_t pending_w, rrfp_hint **hint, rrfp_error *error)
{
    rrfp_budget budgets[16];
    for (uint32_t s = 0; s < 16; s++) {
        budgets[s] = (rrfp_budget){inflight, pending_w, 0};
    }
    rrfp_hint_request request = {.struct_size = sizeof request, .hint = name, .stages = stages,
                                 .chunks = chunks, .microbatches = microbatches,
                                 .hint_distance = distance, .budgets = budgets};
    return rrfp_hint_build(&request, hint, error);
}

#endif /* RRFP_TEST_HINT_SIM_H */
