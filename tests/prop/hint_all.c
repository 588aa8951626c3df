/* Every hint on every small shape: complete, feasible, within its budget, and back from CSV. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/hint_sim.h"

static const uint32_t COUNTS[] = {1, 2, 3, 7, 8, 9, 16};
static char where[128];

static void check(bool ok, const char *what)
{
    if (!ok) {
        fail_msg("%s: %s", where, what);
    }
}

static bool takes(const rrfp_hint_info *info, uint32_t chunks)
{
    return (info->chunks == 0 || info->chunks == chunks) && chunks >= info->min_chunks;
}

static void round_trip(const rrfp_hint *hint, bool bubbles)
{
    char *text = NULL;
    size_t bytes = 0;
    rrfp_hint *back = NULL;
    rrfp_error error = {0};
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    check(rrfp_hint_write_csv(hint, bubbles, out, &error) == RRFP_OK, error.text);
    fclose(out);
    check(rrfp_hint_parse_csv("back.csv", text, bytes, hint->shape.stages, hint->shape.chunks, 0,
                              &back, &error) == RRFP_OK,
          error.text);
    /* With one stage both placements hold the same chunks. */
    check(back->shape.microbatches == hint->shape.microbatches &&
              (hint->shape.stages == 1 || back->shape.placement == hint->shape.placement) &&
              back->split_backward == hint->split_backward,
          "the shape changed");
    for (uint32_t s = 0; s < hint->shape.stages; s++) {
        check(back->order_counts[s] == hint->order_counts[s] &&
                  memcmp(back->orders[s], hint->orders[s],
                         hint->order_counts[s] * sizeof **hint->orders) == 0,
              "the order changed");
    }
    rrfp_hint_destroy(back);
    free(text);
}

static void try_budget(const rrfp_hint_info *info, uint32_t p, uint32_t v, uint32_t m,
                       uint32_t distance, uint32_t inflight, uint32_t pending)
{
    rrfp_hint *hint = NULL;
    rrfp_error error = {0};
    snprintf(where, sizeof where, "%s P=%u V=%u M=%u distance %u max_inflight %u max_pending_w %u",
             info->name, p, v, m, distance, inflight, pending);
    check(sim_build(info->name, p, v, m, distance, inflight, pending, &hint, &error) == RRFP_OK,
          error.text);
    sim_result result = sim_run(hint);
    check(result.complete, "not every task exactly once");
    check(result.feasible, "the stages wait for each other");
    for (uint32_t s = 0; s < p; s++) {
        check(result.peak[s] <= hint->budgets[s].max_inflight * v, "over the in-flight budget");
        check(inflight == 0 || hint->budgets[s].max_inflight == inflight, "budget changed");
        check(pending == 0 || result.pending[s] <= pending, "over the pending-W budget");
    }
    if (inflight == 0 && distance == 0) {
        round_trip(hint, false);
        round_trip(hint, true);
    }
    rrfp_hint_destroy(hint);
}

static void test_all(void **state)
{
    (void)state;
    for (size_t h = 0; h < rrfp_hint_count(); h++) {
        const rrfp_hint_info *info = rrfp_hint_at(h);
        for (uint32_t p = 1; p <= 8; p++) {
            for (uint32_t v = 1; v <= 3; v++) {
                for (size_t i = 0; takes(info, v) && i < sizeof COUNTS / sizeof *COUNTS; i++) {
                    uint32_t m = COUNTS[i];
                    try_budget(info, p, v, m, 0, 0, 0);
                    if (info->rule == RRFP_RULE_LIST) {
                        try_budget(info, p, v, m, RRFP_DISTANCE_UNBOUNDED, 0, 0);
                    }
                    for (uint32_t inflight = 1; inflight <= 3; inflight++) {
                        for (uint32_t pending = 0; pending <= 2; pending++) {
                            try_budget(info, p, v, m, 0, inflight, pending);
                            try_budget(info, p, v, m, 3, inflight, pending);
                        }
                    }
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
