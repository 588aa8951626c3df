/*
 * explore.c - every arrival order of small pipelines, for every rule and budget.
 *
 * Shows for the shapes below: no state is stuck, no budget is exceeded, every
 * task runs once with its inputs, and ordered sums are in order.  The quick
 * matrix runs by default; RRFP_EXPLORE_FULL=1 runs all of it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "support/explore_matrix.h"
#include "support/explorer.h"

/* The heaviest are left to the full matrix. */
static bool in_quick_matrix(const pipe_setup *u)
{
    uint32_t pieces = u->shape.stages * u->shape.chunks;
    uint32_t M = u->shape.microbatches;
#ifdef RRFP_SANITIZED
    return pieces * M <= 8;
#else
    if (pieces == 4 && M == 4) {
        return u->max_inflight == 2 && u->max_pending_w == 1;
    }
    if (pieces == 4 && M == 3) { /* three in flight are all */
        return u->max_inflight <= 2 || u->max_pending_w == 1;
    }
    return pieces <= 4 || M <= 2;
#endif
}

static void run(const pipe_setup *u, bool every_event, totals *t)
{
    pipeline p;
    if (matrix_create(&p, u, t)) {
        t->states += explore(&p, every_event, &t->transitions);
        t->searches++;
        matrix_destroy(&p);
    }
}

/* Calls `body` for each shape and budget, fused and split, ordered and by arrival. */
static void for_each_setup(body_function body, totals *t)
{
    static const uint32_t pending[] = {1, 2, 0};
    for (uint32_t P = 1; P <= 3; P++) {
        for (uint32_t placed = 0; placed < 3; placed++) { /* V=1, V=2 looped, V=2 V-shaped */
            for (uint32_t M = 1; M <= 4; M++) {
                rrfp_shape shape = {.stages = P,
                                    .chunks = placed == 0 ? 1 : 2,
                                    .microbatches = M,
                                    .placement =
                                        placed == 2 ? RRFP_PLACEMENT_V : RRFP_PLACEMENT_LOOPED};
                for (uint32_t budget = 0; budget < 9; budget++) {
                    for (uint32_t mode = 0; mode < 4; mode++) {
                        pipe_setup u = {.shape = shape,
                                        .split = mode & 1,
                                        .accumulate = mode & 2 ? RRFP_ACCUMULATE_ARRIVAL
                                                               : RRFP_ACCUMULATE_ORDERED,
                                        .distance = RRFP_DISTANCE_UNBOUNDED,
                                        .max_inflight = 1 + budget / 3,
                                        .max_pending_w = pending[budget % 3]};
                        if (full_matrix() || in_quick_matrix(&u)) {
                            body(&u, t);
                        }
                    }
                }
            }
        }
    }
}

static void body_rules(pipe_setup *u, totals *t)
{
    for (int rule = RRFP_RULE_BF; rule <= RRFP_RULE_F_PRIO; rule++) {
        u->rule = (rrfp_rule)rule;
        if (rule != RRFP_RULE_BFW || u->split) {
            run(u, false, t);
        }
    }
}

static void test_rules(void **state)
{
    (void)state;
    totals t = {0};
    for_each_setup(body_rules, &t);
    matrix_report("rules", &t);
}

/* Three chunks need a slot each: what one microbatch gives back is not enough for the next. */
static void test_three_chunks(void **state)
{
    (void)state;
    totals t = {0};
    for (uint32_t P = 1; P <= 2; P++) {
        for (uint32_t M = 1; M <= (full_matrix() ? 4u : 3u); M++) {
            for (uint32_t inflight = 1; inflight <= 2; inflight++) {
                pipe_setup u = {.shape = {.stages = P, .chunks = 3, .microbatches = M},
                                .distance = RRFP_DISTANCE_UNBOUNDED,
                                .max_inflight = inflight,
                                .max_pending_w = 1};
                body_rules(&u, &t);
            }
        }
    }
    matrix_report("three chunks", &t);
}

static void body_lists(pipe_setup *u, totals *t)
{
    u->rule = RRFP_RULE_LIST;
    for (int style = ORDER_GPIPE; style <= ORDER_RANDOM; style++) {
        orders_make(u, (order_style)style, t->searches);
        if (style == ORDER_RANDOM) {
            orders_shuffle(u, t->searches);
        }
        run(u, false, t);
        orders_free(u);
    }
}

static void test_lists(void **state)
{
    (void)state;
    totals t = {0};
    for_each_setup(body_lists, &t);
    matrix_report("lists", &t);
}

static void body_orders(pipe_setup *u, totals *t)
{
    static const uint32_t distances[] = {0, 1, 3};
    for (int style = ORDER_SEQUENTIAL; style <= ORDER_RANDOM; style++) {
        for (uint32_t d = 0; d < 3; d++) {
            u->distance = distances[d];
            for (int rule = RRFP_RULE_LIST; rule <= (d == 0 ? 0 : 1); rule++) {
                u->rule = (rrfp_rule)rule;
                orders_make(u, (order_style)style, t->searches);
                run(u, false, t);
                orders_free(u);
            }
        }
    }
}

static void test_committed_orders(void **state)
{
    (void)state;
    totals t = {0};
    for_each_setup(body_orders, &t);
    matrix_report("committed orders", &t);
}

static void body_bytes(pipe_setup *u, totals *t)
{
    /* Uneven chunks; a whole microbatch takes 3+2 (V=1) or 3+2+1+4 = 10 bytes (V=2). */
    uint64_t whole = u->shape.chunks == 1 ? 5 : 10;
    u->activation[0] = 3;
    u->retained[0] = 2;
    u->activation[1] = 1;
    u->retained[1] = 4;
    if (u->max_inflight != 3) {
        return; /* the bytes are to decide */
    }
    for (uint32_t extra = 0; extra <= 4; extra += 2) {
        u->max_bytes = whole + extra;
        u->rule = u->split ? RRFP_RULE_BFW : RRFP_RULE_BF;
        run(u, false, t);
        u->rule = RRFP_RULE_F_PRIO;
        run(u, false, t);
    }
    orders_make(u, ORDER_RANDOM, t->searches);
    u->rule = RRFP_RULE_LIST;
    u->max_bytes = whole + 1;
    run(u, false, t);
    u->distance = 2;
    u->max_bytes = 2 * whole;
    run(u, false, t);
    orders_free(u);
}

static void test_bytes(void **state)
{
    (void)state;
    totals t = {0};
    for_each_setup(body_bytes, &t);
    matrix_report("bytes", &t);
}

static void test_forward_only(void **state)
{
    (void)state;
    totals t = {0};
    for (uint32_t P = 1; P <= 3; P++) {
        for (uint32_t placed = 0; placed < 3; placed++) {
            pipe_setup u = {
                .shape = {.stages = P,
                          .chunks = placed == 0 ? 1 : 2,
                          .microbatches = 4,
                          .placement = placed == 2 ? RRFP_PLACEMENT_V : RRFP_PLACEMENT_LOOPED},
                .rule = RRFP_RULE_BF,
                .forward_only = true,
                .distance = RRFP_DISTANCE_UNBOUNDED,
                .max_inflight = 1};
            run(&u, false, &t);
            u.rule = RRFP_RULE_LIST;
            u.distance = 0;
            orders_make(&u, ORDER_RANDOM, P);
            run(&u, false, &t);
            orders_free(&u);
        }
    }
    matrix_report("forward only", &t);
}

/* Without the reductions: ends of sends and messages to busy stages at any time. */
static void test_unreduced(void **state)
{
    (void)state;
    totals t = {0};
    for (uint32_t P = 2; P <= (full_matrix() ? 3u : 2u); P++) {
        for (uint32_t placed = 0; placed < 3; placed++) {
            pipe_setup u = {
                .shape = {.stages = P,
                          .chunks = placed == 0 ? 1 : 2,
                          .microbatches = 2,
                          .placement = placed == 2 ? RRFP_PLACEMENT_V : RRFP_PLACEMENT_LOOPED},
                .split = true,
                .rule = RRFP_RULE_BFW,
                .distance = RRFP_DISTANCE_UNBOUNDED,
                .max_inflight = 2,
                .max_pending_w = 1};
            run(&u, true, &t);
            u.split = false;
            u.rule = RRFP_RULE_FB;
            u.max_inflight = 1;
            run(&u, true, &t);
        }
    }
    matrix_report("unreduced", &t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_bytes),        cmocka_unit_test(test_committed_orders),
        cmocka_unit_test(test_unreduced),    cmocka_unit_test(test_forward_only),
        cmocka_unit_test(test_three_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
