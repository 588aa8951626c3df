/*
 * explore_matrix.h - what the searches over many setups share: totals and their report.
 */
#ifndef RRFP_TEST_EXPLORE_MATRIX_H
#define RRFP_TEST_EXPLORE_MATRIX_H

#include <stdlib.h>

#include "support/orders.h"

typedef struct totals {
    unsigned long searches, infeasible, states, transitions;
} totals;

/* One setup: searched, its numbers added to the totals. */
typedef void (*body_function)(pipe_setup *u, totals *t);

static inline bool full_matrix(void)
{
    const char *value = getenv("RRFP_EXPLORE_FULL");
    return value != NULL && value[0] == '1';
}

/* Makes the machines; false if the orders do not fit the budgets, fails if they should have. */
static inline bool matrix_create(pipeline *p, const pipe_setup *u, totals *t)
{
    rrfp_error error;
    bool fits = u->distance == RRFP_DISTANCE_UNBOUNDED || orders_fit(u);
    rrfp_status status = pipe_create(p, u, &error);
    if (status != (fits ? RRFP_OK : RRFP_ERR_INFEASIBLE)) {
        pipe_describe(u, stderr);
        fail_msg("the order %s the budgets, creation says: %s", fits ? "fits" : "does not fit",
                 status == RRFP_OK ? "fine" : error.text);
    }
    t->infeasible += !fits;
    return fits;
}

static inline void matrix_destroy(pipeline *p)
{
    if (p->fault[0] != '\0') {
        pipe_describe(&p->setup, stderr);
        fail_msg("%s", p->fault);
    }
    pipe_destroy(p);
}

static inline void matrix_report(const char *name, const totals *t)
{
    printf("%s: %lu searches, %lu states, %lu transitions; %lu orders did not fit\n", name,
           t->searches, t->states, t->transitions, t->infeasible);
    assert_true(t->searches > 0 && t->states > t->searches);
}

#endif /* RRFP_TEST_EXPLORE_MATRIX_H */
