/*
 * explore_group.c - tensor-parallel groups of two and three, in every order of events.
 *
 * For both protocols: every rank starts the same tasks in the same order, none without its inputs,
 * and from every state the step can be brought to its end.  Groups without a protocol, or with a
 * lead that does not ask everybody, are caught.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/group_world.h"

static size_t states, steps;
static unsigned searches;

static size_t explore(group_world *w)
{
    size_t found = group_explore(w, &steps);
    states += found;
    searches++;
    return found;
}

static void expect_sound(group_world w)
{
    explore(&w);
    if (w.fault[0] != '\0') {
        fail_msg("P=%u V=%u M=%u stage %u, rule %d, split %d, forward %d, budget %u, TP %u, "
                 "protocol %d, ahead %u: %s",
                 w.config.shape.stages, w.config.shape.chunks, w.config.shape.microbatches,
                 w.config.stage, (int)w.config.rule, w.config.split_backward,
                 w.config.forward_only, w.config.budget.max_inflight, w.members, (int)w.protocol,
                 w.ahead, w.fault);
    }
}

static group_world world(uint32_t stages, uint32_t chunks, uint32_t microbatches, uint32_t stage,
                         uint32_t members, group_protocol protocol)
{
    return (group_world){
        .config = {.shape = {stages, chunks, microbatches, RRFP_PLACEMENT_LOOPED},
                   .stage = stage,
                   .rule = RRFP_RULE_BF,
                   .hint_distance = RRFP_DISTANCE_UNBOUNDED,
                   .budget = {.max_inflight = microbatches}},
        .protocol = protocol,
        .members = members,
        .noticed_members = members,
    };
}

/* All rules, backwards whole and split, budgets, places in the pipeline; `most` bounds the size. */
static void matrix(uint32_t members, group_protocol protocol, uint32_t ahead, uint32_t most)
{
    static const struct {
        uint32_t stages, chunks, stage;
    } places[] = {{1, 1, 0}, {2, 1, 0}, {2, 1, 1}, {3, 1, 1}, {1, 2, 0}, {2, 2, 0}, {2, 2, 1}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        for (uint32_t m = 1; m * places[i].chunks <= most; m++) {
            for (int rule = RRFP_RULE_BF; rule <= RRFP_RULE_F_PRIO; rule++) {
                for (int split = rule == RRFP_RULE_BFW; split <= 1; split++) {
                    for (uint32_t budget = 1; budget <= m; budget++) {
                        group_world w = world(places[i].stages, places[i].chunks, m,
                                              places[i].stage, members, protocol);
                        w.config.rule = (rrfp_rule)rule;
                        w.config.split_backward = split;
                        w.config.budget = (rrfp_budget){.max_inflight = budget,
                                                        .max_pending_w = budget};
                        w.ahead = ahead;
                        expect_sound(w);
                    }
                }
            }
            group_world forward = world(places[i].stages, places[i].chunks, m, places[i].stage,
                                        members, protocol);
            forward.config.forward_only = true;
            forward.ahead = ahead;
            expect_sound(forward);
        }
    }
}

static void tell(const char *what)
{
    printf("%s: %u searches, %zu states, %zu steps\n", what, searches, states, steps);
    searches = 0;
    states = steps = 0;
}

static void a_lead_keeps_two_together(void **state)
{
    (void)state;
    for (uint32_t ahead = 0; ahead <= 2; ahead++) {
        matrix(2, GROUP_LEAD, ahead, 3);
    }
    tell("lead, TP 2");
}

static void a_lead_keeps_three_together(void **state)
{
    (void)state;
    for (uint32_t ahead = 0; ahead <= 1; ahead++) {
        matrix(3, GROUP_LEAD, ahead, 2);
    }
    group_world w = world(3, 1, 2, 1, 3, GROUP_LEAD);
    w.ahead = 1;
    expect_sound(w);
    tell("lead, TP 3");
}

/* More microbatches, on the stages whose inputs are few. */
static void longer_steps(void **state)
{
    (void)state;
    for (uint32_t stage = 0; stage <= 1; stage++) {
        for (uint32_t budget = 1; budget <= 3; budget++) {
            group_world w = world(2, 1, 3, stage, 2, GROUP_LEAD);
            w.config.rule = RRFP_RULE_BFW;
            w.config.split_backward = true;
            w.config.budget.max_inflight = budget;
            w.ahead = 1;
            expect_sound(w);
        }
    }
    tell("lead, TP 2, three microbatches");
}

/* A committed order, and one that may be overtaken by one place. */
static void a_lead_follows_an_order(void **state)
{
    (void)state;
    static const rrfp_task order[] = {{RRFP_F, 0, 0, 0}, {RRFP_F, 0, 0, 1}, {RRFP_BW, 0, 0, 0},
                                      {RRFP_BW, 0, 0, 1}};
    for (uint32_t distance = 0; distance <= 1; distance++) {
        for (uint32_t ahead = 0; ahead <= 1; ahead++) {
            group_world w = world(3, 1, 2, 1, 2, GROUP_LEAD);
            w.config.rule = RRFP_RULE_LIST;
            w.config.order = order;
            w.config.order_count = sizeof order / sizeof *order;
            w.config.hint_distance = distance;
            w.ahead = ahead;
            expect_sound(w);
        }
    }
    tell("lead, TP 2, committed order");
}

static void comparing_keeps_them_together(void **state)
{
    (void)state;
    matrix(2, GROUP_ALLGATHER, 0, 3);
    matrix(3, GROUP_ALLGATHER, 0, 2);
    tell("all-gather, TP 2 and 3");
}

/* What the protocols are for: each of these is a fault that must be found. */
static void faults_are_found(void **state)
{
    (void)state;
    group_world alone = world(3, 1, 2, 1, 2, GROUP_ALONE);
    explore(&alone);
    assert_non_null(strstr(alone.fault, "another rank started another"));
    group_world deaf = world(3, 1, 2, 1, 2, GROUP_LEAD);
    deaf.noticed_members = 1; /* decides when its own rank is ready */
    explore(&deaf);
    assert_non_null(strstr(deaf.fault, "its activation is not here"));
    tell("broken groups");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lead_keeps_two_together),  cmocka_unit_test(a_lead_keeps_three_together),
        cmocka_unit_test(longer_steps),               cmocka_unit_test(a_lead_follows_an_order),
        cmocka_unit_test(comparing_keeps_them_together), cmocka_unit_test(faults_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
