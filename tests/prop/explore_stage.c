/*
 * explore_stage.c - every stage of every small pipeline alone, for every rule, order and budget.
 *
 * Covers what explore.c cannot in full (support/explorer_alone.h says why this is enough for any
 * number of stages).  RRFP_EXPLORE_FULL=1 adds three chunks and more microbatches.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "support/explore_matrix.h"
#include "support/explorer_alone.h"

static void run(const pipe_setup *u, totals *t)
{
    pipeline p;
    if (!matrix_create(&p, u, t)) {
        return;
    }
    for (uint32_t s = 0; s < u->shape.stages && p.fault[0] == '\0'; s++) {
        t->states += explore_alone(&p, s, &t->transitions);
        t->searches++;
    }
    matrix_destroy(&p);
}

/* Calls `body` for each budget of a shape, fused and split, ordered and by arrival. */
static void for_each_budget(const rrfp_shape *shape, body_function body, totals *t)
{
    static const uint32_t pending[] = {1, 2, 3, 0};
    for (uint32_t budget = 0; budget < 12; budget++) {
        for (uint32_t mode = 0; mode < 4; mode++) {
            pipe_setup u = {.shape = *shape,
                            .split = mode & 1,
                            .accumulate =
                                mode & 2 ? RRFP_ACCUMULATE_ARRIVAL : RRFP_ACCUMULATE_ORDERED,
                            .distance = RRFP_DISTANCE_UNBOUNDED,
                            .max_inflight = 1 + budget / 4,
                            .max_pending_w = pending[budget % 4]};
            body(&u, t);
        }
    }
}

/* V = 1, 2 looped, 2 V-shaped, 3 looped; the last, and the larger M, only in full. */
static void for_each_setup(body_function body, totals *t)
{
#ifdef RRFP_SANITIZED
    static const uint32_t most[] = {3, 2, 2, 0}, most_full[] = {4, 3, 3, 2};
#else
    static const uint32_t most[] = {4, 4, 4, 0}, most_full[] = {6, 4, 4, 3};
#endif
    for (uint32_t placed = 0; placed < 4; placed++) {
        uint32_t limit = full_matrix() ? most_full[placed] : most[placed];
        for (uint32_t P = 1; P <= 3; P++) {
            for (uint32_t M = 1; M <= limit; M++) {
                rrfp_shape shape = {.stages = P,
                                    .chunks = placed == 0 ? 1 : placed == 3 ? 3 : 2,
                                    .microbatches = M,
                                    .placement =
                                        placed == 2 ? RRFP_PLACEMENT_V : RRFP_PLACEMENT_LOOPED};
                for_each_budget(&shape, body, t);
            }
        }
    }
}

static void body_rules(pipe_setup *u, totals *t)
{
    for (int rule = RRFP_RULE_BF; rule <= RRFP_RULE_F_PRIO; rule++) {
        u->rule = (rrfp_rule)rule;
        if (rule != RRFP_RULE_BFW || u->split) {
            run(u, t);
        }
    }
}

static void body_orders(pipe_setup *u, totals *t)
{
    static const uint32_t distances[] = {0, 1, 3, RRFP_DISTANCE_UNBOUNDED};
    u->rule = RRFP_RULE_LIST;
    for (int style = ORDER_SEQUENTIAL; style <= ORDER_RANDOM; style++) {
        orders_make(u, (order_style)style, t->searches);
        for (uint32_t d = 0; d < 4; d++) {
            u->distance = distances[d];
            if (u->distance == RRFP_DISTANCE_UNBOUNDED && style == ORDER_RANDOM) {
                orders_shuffle(u, t->searches); /* a ranking may be any permutation */
            }
            run(u, t);
        }
        orders_free(u);
    }
}

/* Uneven chunks; a whole microbatch takes 3+2 (V=1), 3+2+1+4 (V=2), 3+2+1+4+2+1 (V=3) bytes. */
static void body_bytes(pipe_setup *u, totals *t)
{
    static const uint64_t activation[] = {3, 1, 2}, retained[] = {2, 4, 1};
    uint64_t whole = 0;
    for (uint32_t c = 0; c < u->shape.chunks; c++) {
        u->activation[c] = activation[c];
        u->retained[c] = retained[c];
        whole += activation[c] + retained[c];
    }
    if (u->max_inflight != 3) {
        return; /* the bytes are to decide */
    }
    for (uint32_t extra = 0; extra <= 4; extra += 2) {
        u->max_bytes = whole + extra;
        body_rules(u, t);
        u->max_bytes += whole;
        body_orders(u, t);
        u->distance = RRFP_DISTANCE_UNBOUNDED;
    }
}

static void body_forward_only(pipe_setup *u, totals *t)
{
    u->forward_only = true;
    if (!u->split && u->max_pending_w == 0) {
        body_rules(u, t);
        body_orders(u, t);
    }
}

static void check(const char *name, body_function body)
{
    totals t = {0};
    for_each_setup(body, &t);
    matrix_report(name, &t);
}

static void test_rules(void **state)
{
    (void)state;
    check("rules", body_rules);
}

static void test_orders(void **state)
{
    (void)state;
    check("orders", body_orders);
}

static void test_bytes(void **state)
{
    (void)state;
    check("bytes", body_bytes);
}

static void test_forward_only(void **state)
{
    (void)state;
    check("forward only", body_forward_only);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_forward_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
