/* csv_write.c - PyTorch's compute-only form, and the table for people. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "hint/hint_internal.h"

/* PyTorch's letters: I is the input gradient alone, B the whole backward. */
static char letter(uint8_t kind)
{
    return kind == RRFP_F ? 'F' : kind == RRFP_B ? 'I' : kind == RRFP_W ? 'W' : 'B';
}

/* The orders to print with their unit-time starts: a dynamic rule is run to have some. */
static rrfp_status orders_of(const rrfp_hint *hint, rrfp_lists *lists, rrfp_error *error)
{
    rrfp_lists given = {hint->shape.stages, hint->orders, hint->order_counts, NULL};
    rrfp_plan plan = {
        .shape = hint->shape,
        .rule = hint->rule,
        .split_backward = hint->split_backward,
        .accumulate = RRFP_ACCUMULATE_ORDERED,
        .hint_distance = hint->orders == NULL ? RRFP_DISTANCE_UNBOUNDED : 0,
        .budgets = hint->budgets,
        .orders = hint->orders == NULL ? NULL : &given,
    };
    if (rrfp_plan_run(&plan, lists, NULL, NULL) == RRFP_OK) {
        return RRFP_OK;
    }
    plan.hint_distance = RRFP_DISTANCE_UNBOUNDED; /* a list that only ranks */
    return rrfp_plan_run(&plan, lists, NULL, error);
}

rrfp_status rrfp_hint_write_csv(const rrfp_hint *hint, bool bubbles, FILE *out,
                                rrfp_error *error)
{
    rrfp_lists lists;
    rrfp_status status = orders_of(hint, &lists, error);
    if (status != RRFP_OK) {
        return status;
    }
    for (uint32_t s = 0; s < hint->shape.stages; s++) {
        uint64_t at = 0;
        for (size_t i = 0; i < lists.counts[s]; i++) {
            rrfp_task task = lists.tasks[s][i];
            for (; bubbles && at < lists.start_at[s][i]; at++) {
                fputs(at == 0 && i == 0 ? "" : ",", out);
            }
            /* A leading bubble has put no comma yet; every cell but the first has one before it. */
            fprintf(out, "%s%u%c%u", i == 0 && at == 0 ? "" : ",",
                    rrfp_shape_global_chunk(&hint->shape, s, task.chunk), letter(task.kind),
                    task.microbatch);
            at++;
            if (bubbles && task.kind == RRFP_BW) {
                fputc(',', out);
                at++;
            }
        }
        fputc('\n', out);
    }
    rrfp_lists_free(&lists);
    if (ferror(out)) {
        return rrfp_error_set(error, RRFP_ERR_IO, "cannot write the schedule: %s",
                              strerror(errno));
    }
    return RRFP_OK;
}

rrfp_status rrfp_hint_write_table(const rrfp_hint *hint, FILE *out, rrfp_error *error)
{
    rrfp_lists lists;
    rrfp_status status = orders_of(hint, &lists, error);
    if (status != RRFP_OK) {
        return status;
    }
    bool chunked = hint->shape.chunks > 1;
    for (uint32_t s = 0; s < hint->shape.stages; s++) {
        fprintf(out, "stage %-3u", s);
        for (size_t i = 0; i < lists.counts[s]; i++) {
            rrfp_task task = lists.tasks[s][i];
            fprintf(out, " %s", task.kind == RRFP_BW ? "B" : rrfp_kind_name((rrfp_kind)task.kind));
            if (chunked) {
                fprintf(out, "%u.", rrfp_shape_global_chunk(&hint->shape, s, task.chunk));
            }
            fprintf(out, "%u", task.microbatch);
        }
        fputc('\n', out);
    }
    rrfp_lists_free(&lists);
    if (ferror(out)) {
        return rrfp_error_set(error, RRFP_ERR_IO, "cannot write the schedule: %s",
                              strerror(errno));
    }
    return RRFP_OK;
}
