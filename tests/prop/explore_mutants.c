/*
 * explore_mutants.c - the explorer finds what it is there to find.
 *
 * The core is compiled into this file a second time with its switches for
 * faults (core/mutant.h).  Each fault must be found by the explorer, in the
 * same setups that pass without one.
 */
#define RRFP_MUTANTS 1

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "core/arbiter.c"
#include "core/ledger.c"
#include "core/order.c"
#include "core/stage.c"
#include "core/stage_events.c"

#include "support/explorer_alone.h"
#include "support/orders.h"

/* First fault found in one setup, as a whole or stage by stage, into `fault` (empty: none). */
static void explore_setup(const pipe_setup *u, bool alone, char fault[512])
{
    pipeline p;
    rrfp_error error;
    unsigned long transitions = 0;
    if (pipe_create(&p, u, &error) != RRFP_OK) {
        fail_msg("%s", error.text);
    }
    for (uint32_t s = 0; alone && s < u->shape.stages; s++) {
        explore_alone(&p, s, &transitions);
    }
    if (!alone) {
        explore(&p, false, &transitions);
    }
    memcpy(fault, p.fault, sizeof p.fault);
    pipe_destroy(&p);
}

static void expect_found(rrfp_mutant mutant, const pipe_setup *u, const char *expected)
{
    for (int alone = 0; alone < 2; alone++) {
        char fault[512];
        rrfp_mutant_active = RRFP_MUTANT_NONE;
        explore_setup(u, alone, fault);
        assert_string_equal(fault, "");
        rrfp_mutant_active = mutant;
        explore_setup(u, alone, fault);
        rrfp_mutant_active = RRFP_MUTANT_NONE;
        printf("mutant %d, %s: %s\n", (int)mutant, alone ? "a stage" : "pipeline", fault);
        if (strstr(fault, expected) == NULL) {
            pipe_describe(u, stderr);
            fail_msg("mutant %d: found '%s', not '%s'", (int)mutant, fault, expected);
        }
    }
}

static pipe_setup setup_of(uint32_t P, uint32_t V, uint32_t M, bool split)
{
    return (pipe_setup){.shape = {.stages = P, .chunks = V, .microbatches = M},
                        .rule = split ? RRFP_RULE_BFW : RRFP_RULE_BF,
                        .split = split,
                        .distance = RRFP_DISTANCE_UNBOUNDED,
                        .max_inflight = 1};
}

/* Two slots: F(0,0) F(0,1), and F(1,0) finds none. */
static void test_inflight_unreserved(void **state)
{
    (void)state;
    pipe_setup u = setup_of(2, 2, 2, false);
    expect_found(RRFP_MUTANT_INFLIGHT_UNRESERVED, &u, "may always go on");
    u.max_inflight = 3; /* the same for bytes */
    u.activation[0] = 2;
    u.activation[1] = 3;
    u.retained[1] = 1;
    u.max_bytes = 6;
    expect_found(RRFP_MUTANT_INFLIGHT_UNRESERVED, &u, "may always go on");
}

/*
 * Slots that microbatch 0 gives back one by one go to microbatch 2; microbatch 1
 * then finds fewer than it still needs.
 */
static void test_next_unreserved(void **state)
{
    (void)state;
    pipe_setup u = setup_of(1, 3, 3, false);
    expect_found(RRFP_MUTANT_NEXT_UNRESERVED, &u, "may always go on");
    u = setup_of(2, 2, 4, false);
    u.shape.placement = RRFP_PLACEMENT_V;
    u.max_inflight = 2;
    expect_found(RRFP_MUTANT_NEXT_UNRESERVED, &u, "may always go on");
}

/* B(1) and B(2) take both pending-W slots, their W wait for B(0), which finds none. */
static void test_pending_unreserved(void **state)
{
    (void)state;
    pipe_setup u = setup_of(2, 1, 3, true);
    u.max_inflight = 3;
    u.max_pending_w = 2;
    expect_found(RRFP_MUTANT_PENDING_UNRESERVED, &u, "may always go on");
}

static void test_pending_unbounded(void **state)
{
    (void)state;
    pipe_setup u = setup_of(2, 1, 3, true);
    u.max_inflight = 3;
    u.max_pending_w = 1;
    expect_found(RRFP_MUTANT_PENDING_UNBOUNDED, &u, "pending W");
    u = setup_of(2, 1, 4, false); /* owed by a fused backward */
    u.max_inflight = 4;
    u.max_pending_w = 1;
    expect_found(RRFP_MUTANT_PENDING_UNBOUNDED, &u, "pending W");
}

static void test_input_fifo(void **state)
{
    (void)state;
    pipe_setup u = setup_of(2, 1, 2, false);
    u.max_inflight = 2;
    expect_found(RRFP_MUTANT_INPUT_FIFO, &u, "without its input");
}

static void test_w_fifo(void **state)
{
    (void)state;
    pipe_setup u = setup_of(2, 1, 2, true);
    u.max_inflight = 2;
    expect_found(RRFP_MUTANT_W_FIFO, &u, "before an older microbatch");
}

/* One slot: F(0) BW(0) F(1) BW(1); F(1) is ready while BW(0) waits. */
static void test_safety_skipped(void **state)
{
    (void)state;
    pipe_setup u = setup_of(2, 1, 2, false);
    u.rule = RRFP_RULE_LIST;
    u.distance = 1;
    orders_make(&u, ORDER_SEQUENTIAL, 0);
    expect_found(RRFP_MUTANT_SAFETY_SKIPPED, &u, "holds");
    orders_free(&u);
}

/* Every switch above is one of the list. */
static void test_all_mutants_tested(void **state)
{
    (void)state;
    assert_int_equal(RRFP_MUTANT_COUNT, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inflight_unreserved), cmocka_unit_test(test_next_unreserved),
        cmocka_unit_test(test_pending_unreserved),  cmocka_unit_test(test_pending_unbounded),
        cmocka_unit_test(test_input_fifo),          cmocka_unit_test(test_w_fifo),
        cmocka_unit_test(test_safety_skipped),      cmocka_unit_test(test_all_mutants_tested),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
