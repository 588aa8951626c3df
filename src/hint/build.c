/* build.c - from a request to what the stage machines take. */
#include <stdlib.h>
#include <string.h>

#include "hint/hint_internal.h"

static rrfp_status no_memory(rrfp_error *error)
{
    return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory while building a hint");
}

static bool is_csv(const char *name)
{
    size_t length = strlen(name);
    return length > 4 && strcmp(name + length - 4, ".csv") == 0;
}

static rrfp_status unknown_hint(const char *name, rrfp_error *error)
{
    char names[256] = "";
    for (size_t i = 0; i < rrfp_hint_count(); i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i == 0 ? "" : ", ",
                 rrfp_hint_at(i)->name);
    }
    return rrfp_error_set(error, RRFP_ERR_INVALID,
                          "hint \"%.60s\" is unknown: give one of %s, or a file ending in .csv",
                          name, names);
}

static rrfp_status check_chunks(const rrfp_hint_info *info, uint32_t chunks, rrfp_error *error)
{
    if (info->chunks != 0 && chunks != info->chunks) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "hint %s needs --virtual-stages %u, not %u", info->name,
                              info->chunks, chunks);
    }
    if (chunks < info->min_chunks) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "hint %s needs --virtual-stages of at least %u, not %u; without "
                              "virtual stages use 1f1b",
                              info->name, info->min_chunks, chunks);
    }
    return RRFP_OK;
}

/* What automatic budgets become: room to overtake, and never less than the plain list needs. */
static void fill_budgets(rrfp_hint *hint, const rrfp_budget *wanted, const rrfp_lists *lists)
{
    uint32_t chunks = hint->shape.chunks, most = hint->shape.microbatches;
    for (uint32_t s = 0; s < hint->shape.stages; s++) {
        hint->budgets[s] = wanted[s];
        if (wanted[s].max_inflight != 0) {
            continue;
        }
        uint32_t automatic = (3 * hint->shape.stages + 1) / 2;
        if (lists->tasks != NULL) {
            uint32_t slots = rrfp_list_peak_inflight(lists->tasks[s], lists->counts[s]);
            uint32_t need = (slots + chunks - 1) / chunks;
            automatic = need > automatic ? need : automatic;
        }
        hint->budgets[s].max_inflight = automatic < most ? automatic : most;
    }
}

static void give_orders(rrfp_hint *hint, rrfp_lists *lists)
{
    hint->orders = lists->tasks;
    hint->order_counts = lists->counts;
    lists->tasks = NULL;
    lists->counts = NULL;
    rrfp_lists_free(lists);
}

static bool same_orders(const rrfp_lists *a, const rrfp_lists *b)
{
    for (uint32_t s = 0; s < a->stages; s++) {
        if (a->counts[s] != b->counts[s] ||
            memcmp(a->tasks[s], b->tasks[s], a->counts[s] * sizeof **a->tasks) != 0) {
            return false;
        }
    }
    return true;
}

/*
 * Committed orders for a finite distance.  The plain list if it fits; else the
 * record of a run that ranks by it (or by the dynamic rule); else, for a fused
 * list so far from microbatch order that its B's alone overrun the pending-W
 * budget, the record of bf.
 */
static rrfp_status commit(rrfp_hint *hint, const rrfp_hint_request *request, rrfp_lists *lists,
                          rrfp_error *error)
{
    rrfp_lists recorded, checked;
    rrfp_plan plan = {
        .shape = hint->shape,
        .rule = hint->rule,
        .split_backward = hint->split_backward,
        .accumulate = request->accumulate,
        .hint_distance = 0,
        .budgets = hint->budgets,
        .activation_bytes = request->activation_bytes,
        .retained_bytes = request->retained_bytes,
    };
    bool list = hint->rule == RRFP_RULE_LIST;
    if (list) {
        plan.orders = lists;
        if (rrfp_plan_run(&plan, &checked, NULL, NULL) == RRFP_OK) {
            rrfp_lists_free(&checked);
            give_orders(hint, lists);
            return RRFP_OK;
        }
    }
    for (int attempt = 0; attempt < 2; attempt++) {
        plan.rule = attempt == 0          ? hint->rule
                    : plan.split_backward ? RRFP_RULE_BFW
                                          : RRFP_RULE_BF;
        plan.hint_distance = RRFP_DISTANCE_UNBOUNDED;
        plan.orders = attempt == 0 && list ? lists : NULL;
        rrfp_status status = rrfp_plan_run(&plan, &recorded, NULL, error);
        if (status != RRFP_OK) {
            return status; /* a budget that is infeasible for any order */
        }
        plan.rule = RRFP_RULE_LIST;
        plan.hint_distance = 0;
        plan.orders = &recorded;
        status = rrfp_plan_run(&plan, &checked, NULL, error);
        if (status == RRFP_OK) {
            rrfp_lists_free(&checked);
            hint->adapted = list && !same_orders(&recorded, lists);
            give_orders(hint, &recorded);
            return RRFP_OK;
        }
        rrfp_lists_free(&recorded);
        if (attempt == 1) {
            return status;
        }
    }
    return RRFP_OK;
}

/* The plain lists and what they say of shape and split. */
static rrfp_status take_source(rrfp_hint *hint, const rrfp_hint_request *request,
                               rrfp_lists *lists, rrfp_error *error)
{
    const rrfp_hint_info *info = rrfp_hint_find(request->hint);
    snprintf(hint->name, sizeof hint->name, "%s", request->hint);
    if (info == NULL) {
        rrfp_hint *read = NULL;
        if (!is_csv(request->hint)) {
            return unknown_hint(request->hint, error);
        }
        rrfp_status status = rrfp_hint_read_csv(request->hint, request->stages, request->chunks,
                                                request->microbatches, &read, error);
        if (status != RRFP_OK) {
            return status;
        }
        const char *slash = strrchr(request->hint, '/');
        snprintf(hint->name, sizeof hint->name, "%s", slash == NULL ? request->hint : slash + 1);
        hint->shape = read->shape;
        hint->split_backward = read->split_backward;
        hint->rule = RRFP_RULE_LIST;
        lists->stages = read->shape.stages;
        lists->tasks = read->orders;
        lists->counts = read->order_counts;
        read->orders = NULL;
        read->order_counts = NULL;
        rrfp_hint_destroy(read);
        return RRFP_OK;
    }
    hint->shape = (rrfp_shape){request->stages, request->chunks, request->microbatches,
                               info->placement};
    hint->rule = info->rule;
    hint->split_backward = info->split_backward;
    rrfp_status status = check_chunks(info, request->chunks, error);
    if (status == RRFP_OK && info->rule == RRFP_RULE_LIST) {
        status = rrfp_hint_generate(info, &hint->shape, request->budgets, lists, error);
    }
    return status;
}

rrfp_status rrfp_hint_build(const rrfp_hint_request *request, rrfp_hint **hint_out,
                            rrfp_error *error)
{
    rrfp_lists lists = {0};
    if (request->struct_size != sizeof *request) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "hint request has struct_size %zu, this library expects %zu",
                              request->struct_size, sizeof *request);
    }
    rrfp_shape shape = {request->stages, request->chunks, request->microbatches,
                        RRFP_PLACEMENT_LOOPED};
    rrfp_status status = rrfp_shape_check(&shape, error);
    if (status != RRFP_OK) {
        return status;
    }
    rrfp_hint *hint = calloc(1, sizeof *hint);
    if (hint == NULL) {
        return no_memory(error);
    }
    hint->hint_distance = request->hint_distance;
    hint->budgets = calloc(request->stages, sizeof *hint->budgets);
    status = hint->budgets == NULL ? no_memory(error) : take_source(hint, request, &lists, error);
    if (status == RRFP_OK) {
        fill_budgets(hint, request->budgets, &lists);
        if (request->hint_distance != RRFP_DISTANCE_UNBOUNDED) {
            status = commit(hint, request, &lists, error);
        } else if (hint->rule == RRFP_RULE_LIST) {
            give_orders(hint, &lists);
        }
    }
    rrfp_lists_free(&lists);
    if (status != RRFP_OK) {
        rrfp_hint_destroy(hint);
        return status;
    }
    *hint_out = hint;
    return RRFP_OK;
}

void rrfp_hint_destroy(rrfp_hint *hint)
{
    if (hint == NULL) {
        return;
    }
    for (uint32_t s = 0; hint->orders != NULL && s < hint->shape.stages; s++) {
        free(hint->orders[s]);
    }
    free(hint->orders);
    free(hint->order_counts);
    free(hint->budgets);
    free(hint);
}
