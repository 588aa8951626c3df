/*
 * generate.c - the plain lists of the named schedules.
 *
 * All but gpipe and zb-v come from one pattern.  Number a stage's forwards and
 * backwards in their own orders (interleaved: groups of P microbatches, chunk
 * after chunk, backwards with the chunks reversed; V = 1: microbatch order):
 *
 *     F x warm-up,   then (F, backward) until the forwards end,   then backwards
 *
 *   1f1b, interleaved   warm-up w = P-s-1, with chunks 2(P-s-1) + (V-1)P   (Narayanan et al. 2021)
 *   eager-1f1b, zb-h2   w + P-s-1; with a budget K, (K-1)(P-s-1)/(P-1) if that is deeper, so
 *                       that stage 0 fills it                              (Qi et al. 2024: H2)
 *   zb-h1, zb-h2        the backward is B; W of the i-th backward follows the (i+s)-th, in H2
 *                       the (i+2s)-th, so that later stages, whose B's others wait for, run
 *                       ahead: activations plus owed W's come to P+1 and 2P on every stage
 *
 * With chunks, a last group below P or a deeper warm-up can make the stages wait
 * for each other; then the list is the record of a run that it ranks.
 *
 * zb-v is what the stage machines do with unit times on the V placement with P
 * microbatches in flight, ranking B, F of chunk 1, F of chunk 0, W: no bubble
 * on any stage for M >= 2P (Qi et al. 2024, at T_F = T_B = T_W).
 */
#include <stdlib.h>
#include <string.h>

#include "hint/hint_internal.h"

rrfp_status rrfp_lists_init(rrfp_lists *lists, uint32_t stages, size_t per_stage,
                            rrfp_error *error)
{
    memset(lists, 0, sizeof *lists);
    lists->stages = stages;
    lists->tasks = calloc(stages, sizeof *lists->tasks);
    lists->counts = calloc(stages, sizeof *lists->counts);
    lists->start_at = calloc(stages, sizeof *lists->start_at);
    bool ok = lists->tasks != NULL && lists->counts != NULL && lists->start_at != NULL;
    for (uint32_t s = 0; ok && s < stages; s++) {
        lists->tasks[s] = calloc(per_stage, sizeof **lists->tasks);
        lists->start_at[s] = calloc(per_stage, sizeof **lists->start_at);
        ok = lists->tasks[s] != NULL && lists->start_at[s] != NULL;
    }
    if (!ok) {
        rrfp_lists_free(lists);
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for the orders of %u stages",
                              stages);
    }
    return RRFP_OK;
}

void rrfp_lists_free(rrfp_lists *lists)
{
    for (uint32_t s = 0; s < lists->stages; s++) {
        if (lists->tasks != NULL) {
            free(lists->tasks[s]);
        }
        if (lists->start_at != NULL) {
            free(lists->start_at[s]);
        }
    }
    free(lists->tasks);
    free(lists->counts);
    free(lists->start_at);
    memset(lists, 0, sizeof *lists);
}

uint32_t rrfp_list_peak_inflight(const rrfp_task *tasks, size_t count)
{
    uint32_t used = 0, peak = 0;
    for (size_t i = 0; i < count; i++) {
        if (tasks[i].kind == RRFP_F) {
            used++;
            peak = used > peak ? used : peak;
        } else if (tasks[i].kind != RRFP_W && used > 0) {
            used--;
        }
    }
    return peak;
}

static void put(rrfp_lists *lists, uint32_t stage, rrfp_kind kind, uint32_t chunk,
                uint32_t microbatch)
{
    lists->tasks[stage][lists->counts[stage]++] =
        (rrfp_task){(uint8_t)kind, 0, (uint16_t)chunk, microbatch};
}

static void gpipe(const rrfp_shape *shape, rrfp_lists *lists)
{
    for (uint32_t s = 0; s < shape->stages; s++) {
        for (uint32_t v = 0; v < shape->chunks; v++) {
            for (uint32_t m = 0; m < shape->microbatches; m++) {
                put(lists, s, RRFP_F, v, m);
            }
        }
        for (uint32_t v = shape->chunks; v-- > 0;) {
            for (uint32_t m = 0; m < shape->microbatches; m++) {
                put(lists, s, RRFP_BW, v, m);
            }
        }
    }
}

/* The index-th forward of a stage: groups of P microbatches, chunk after chunk. */
static rrfp_task forward_at(const rrfp_shape *shape, uint32_t index)
{
    uint32_t group = index / (shape->stages * shape->chunks);
    uint32_t first = group * shape->stages;
    uint32_t left = shape->microbatches - first;
    uint32_t size = left < shape->stages ? left : shape->stages;
    uint32_t rest = index - group * shape->stages * shape->chunks;
    return (rrfp_task){RRFP_F, 0, (uint16_t)(rest / size), first + rest % size};
}

/* F x warm, then pairs, then backwards; `delay` only matters for a split backward. */
static void warm_up_and_pairs(const rrfp_shape *shape, uint32_t stage, uint32_t warm, bool split,
                              uint32_t delay, rrfp_lists *lists)
{
    uint32_t total = shape->chunks * shape->microbatches, next_f = 0, next_w = 0;
    while (next_f < warm && next_f < total) {
        rrfp_task f = forward_at(shape, next_f++);
        put(lists, stage, RRFP_F, f.chunk, f.microbatch);
    }
    for (uint32_t i = 0; i < total; i++) {
        if (next_f < total) {
            rrfp_task f = forward_at(shape, next_f++);
            put(lists, stage, RRFP_F, f.chunk, f.microbatch);
        }
        rrfp_task b = forward_at(shape, i);
        put(lists, stage, split ? RRFP_B : RRFP_BW, shape->chunks - 1 - b.chunk, b.microbatch);
        if (split && i >= delay) {
            rrfp_task w = forward_at(shape, next_w++);
            put(lists, stage, RRFP_W, shape->chunks - 1 - w.chunk, w.microbatch);
        }
    }
    while (split && next_w < total) {
        rrfp_task w = forward_at(shape, next_w++);
        put(lists, stage, RRFP_W, shape->chunks - 1 - w.chunk, w.microbatch);
    }
}

static uint32_t warm_up(const rrfp_shape *shape, uint32_t stage, bool deep, uint32_t max_inflight)
{
    uint64_t after = shape->stages - stage - 1;
    uint64_t warm = shape->chunks == 1
                        ? after
                        : 2 * after + (uint64_t)(shape->chunks - 1) * shape->stages;
    if (deep && max_inflight == 0) {
        warm += after;
    } else if (deep && shape->stages > 1) {
        /* Stage 0 fills its budget, the last stage still turns round at once. */
        uint64_t slots = (uint64_t)max_inflight * shape->chunks;
        uint64_t deepened = (slots - 1) * after / (shape->stages - 1);
        warm = deepened > warm ? deepened : warm;
    }
    uint64_t total = (uint64_t)shape->chunks * shape->microbatches;
    return (uint32_t)(warm < total ? warm : total);
}

/* Ranks B, then F of the second chunk (it leads to B's), then F of the first, then W. */
static void zb_v_ranking(const rrfp_shape *shape, rrfp_lists *lists)
{
    uint32_t count = shape->microbatches;
    for (uint32_t s = 0; s < shape->stages; s++) {
        for (uint32_t m = 0; m < count; m++) {
            put(lists, s, RRFP_B, 1, m);
            put(lists, s, RRFP_B, 0, m);
        }
        for (uint32_t m = 0; m < 2 * count; m++) {
            put(lists, s, RRFP_F, m < count ? 1 : 0, m % count);
        }
        for (uint32_t m = 0; m < count; m++) {
            put(lists, s, RRFP_W, 1, m);
            put(lists, s, RRFP_W, 0, m);
        }
    }
}

/* Replaces lists that wait for each other by the record of a run they rank, within their slots. */
static rrfp_status settle(const rrfp_shape *shape, bool split, rrfp_lists *lists,
                          rrfp_error *error)
{
    rrfp_lists recorded;
    rrfp_budget *budgets = calloc(shape->stages, sizeof *budgets);
    if (budgets == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory");
    }
    for (uint32_t s = 0; s < shape->stages; s++) {
        uint32_t slots = rrfp_list_peak_inflight(lists->tasks[s], lists->counts[s]);
        budgets[s].max_inflight = (slots + shape->chunks - 1) / shape->chunks;
    }
    rrfp_plan plan = {.shape = *shape, .rule = RRFP_RULE_LIST, .split_backward = split,
                      .hint_distance = 0, .budgets = budgets, .orders = lists};
    rrfp_status status = rrfp_plan_run(&plan, &recorded, NULL, error);
    if (status == RRFP_OK) {
        rrfp_lists_free(&recorded);
    } else if (status == RRFP_ERR_INFEASIBLE) {
        plan.hint_distance = RRFP_DISTANCE_UNBOUNDED;
        status = rrfp_plan_run(&plan, &recorded, NULL, error);
        if (status == RRFP_OK) {
            rrfp_lists_free(lists);
            *lists = recorded;
        }
    }
    free(budgets);
    return status;
}

static rrfp_status zb_v(const rrfp_shape *shape, rrfp_lists *lists, rrfp_error *error)
{
    rrfp_lists ranking;
    rrfp_budget *budgets = calloc(shape->stages, sizeof *budgets);
    rrfp_status status = rrfp_lists_init(&ranking, shape->stages,
                                         (size_t)6 * shape->microbatches, error);
    if (status == RRFP_OK && budgets == NULL) {
        status = rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory");
    }
    if (status == RRFP_OK) {
        zb_v_ranking(shape, &ranking);
        for (uint32_t s = 0; s < shape->stages; s++) {
            budgets[s].max_inflight = shape->stages;
        }
        rrfp_plan plan = {.shape = *shape, .rule = RRFP_RULE_LIST, .split_backward = true,
                          .hint_distance = RRFP_DISTANCE_UNBOUNDED, .budgets = budgets,
                          .orders = &ranking};
        status = rrfp_plan_run(&plan, lists, NULL, error);
    }
    rrfp_lists_free(&ranking);
    free(budgets);
    return status;
}

rrfp_status rrfp_hint_generate(const rrfp_hint_info *info, const rrfp_shape *shape,
                               const rrfp_budget *budgets, rrfp_lists *lists, rrfp_error *error)
{
    if (info->placement == RRFP_PLACEMENT_V) {
        return zb_v(shape, lists, error);
    }
    rrfp_status status = rrfp_lists_init(
        lists, shape->stages, (size_t)3 * shape->chunks * shape->microbatches, error);
    if (status != RRFP_OK) {
        return status;
    }
    if (strcmp(info->name, "gpipe") == 0) {
        gpipe(shape, lists);
        return RRFP_OK;
    }
    bool deep = strcmp(info->name, "eager-1f1b") == 0 || strcmp(info->name, "zb-h2") == 0;
    for (uint32_t s = 0; s < shape->stages; s++) {
        warm_up_and_pairs(shape, s, warm_up(shape, s, deep, budgets[s].max_inflight),
                          info->split_backward, deep ? 2 * s : s, lists);
    }
    if (shape->chunks > 1) {
        return settle(shape, info->split_backward, lists, error);
    }
    return RRFP_OK;
}
