/* trace_totals.c - sums per stage, growth of the records, the table for people. */
#include "support/sample_trace.h"

static rrfp_error error;

static uint64_t all_of(const rrfp_trace_totals *totals)
{
    uint64_t sum = totals->busy_ns + totals->optimizer_ns;
    for (int reason = 0; reason < RRFP_TRACE_IDLE_COUNT; reason++) {
        sum += totals->idle_ns[reason];
    }
    return sum;
}

static void totals_add_up_to_the_wall_time(void **state)
{
    (void)state;
    for (int record = 0; record < 2; record++) {
        rrfp_trace *trace = sample_trace(record != 0);
        const rrfp_trace_totals *totals = rrfp_trace_get_totals(trace, 0);
        assert_int_equal(totals->busy_ns, 60000);
        assert_int_equal(totals->optimizer_ns, 1001);
        assert_int_equal(totals->idle_ns[RRFP_TRACE_IDLE_INPUT_B], 20500);
        assert_int_equal(totals->idle_ns[RRFP_TRACE_IDLE_BUDGET], 9500);
        assert_int_equal(totals->idle_ns[RRFP_TRACE_IDLE_COLLECTIVE], 5000);
        assert_int_equal(totals->idle_ns[RRFP_TRACE_IDLE_ORDER], 0);
        assert_int_equal(totals->tasks, 4);
        assert_int_equal(totals->out_of_hint, 0);
        assert_int_equal(all_of(totals), SAMPLE_END_NS);
        totals = rrfp_trace_get_totals(trace, 1);
        assert_int_equal(totals->busy_ns, 52655);
        assert_int_equal(totals->idle_ns[RRFP_TRACE_IDLE_INPUT_F], 12345);
        assert_int_equal(totals->out_of_hint, 2);
        assert_int_equal(all_of(totals), SAMPLE_END_NS);
        rrfp_trace_destroy(trace);
    }
    rrfp_trace_destroy(NULL);
}

static void names_are_stable(void **state)
{
    (void)state;
    static const char *const names[] = {"budget", "order", "no_input_f", "no_input_b",
                                        "drain",  "group", "reduction", "collective"};
    for (int reason = 0; reason < RRFP_TRACE_IDLE_COUNT; reason++) {
        assert_string_equal(rrfp_trace_idle_name((rrfp_trace_idle)reason), names[reason]);
    }
    assert_string_equal(rrfp_trace_idle_name(RRFP_TRACE_IDLE_COUNT), "?");
}

/* Every reserve makes room for a whole step on top of what is there; times tell them apart. */
static void reserve_keeps_what_is_there(void **state)
{
    (void)state;
    enum { STEPS = 40, MICROBATCHES = 3, CHUNKS = 2 };
    static const rrfp_shape shape = {2, CHUNKS, MICROBATCHES, RRFP_PLACEMENT_LOOPED};
    rrfp_trace *trace = NULL;
    uint64_t first = 0, last = 0, now = 1000;
    assert_int_equal(rrfp_trace_create(&shape, NULL, true, &trace, &error), RRFP_OK);
    assert_false(rrfp_trace_steps(trace, &first, &last));
    for (uint64_t step = 1; step <= STEPS; step++) {
        assert_int_equal(rrfp_trace_reserve(trace, 1, &error), RRFP_OK);
        for (uint32_t i = 0; i < 3 * CHUNKS * MICROBATCHES; i++) {
            rrfp_trace_task task = {now, now, now + 1000000, step,
                                    {(uint8_t)(i % 3), 0, (uint16_t)(i / 3 % CHUNKS),
                                     i / 3 / CHUNKS},
                                    0, false};
            rrfp_trace_add_task(trace, 1, &task);
            now += 1000000;
        }
    }
    assert_true(rrfp_trace_steps(trace, &first, &last));
    assert_int_equal(first, 1);
    assert_int_equal(last, STEPS);
    for (int64_t step = -1; step <= STEPS; step += 1 + (step == -1)) {
        char *text = NULL;
        size_t bytes = 0;
        FILE *out = open_memstream(&text, &bytes);
        assert_non_null(out);
        assert_int_equal(rrfp_trace_write_report(trace, &sample_labels, step, out, &error),
                         RRFP_OK);
        fclose(out);
        const char *row = strstr(text, "\n    1 ");
        unsigned tasks = 0;
        double busy = 0.0;
        assert_non_null(row);
        assert_int_equal(sscanf(row, " 1 %u %lf", &tasks, &busy), 2);
        assert_int_equal(tasks, step < 0 ? 18 * STEPS : 18);
        assert_true(busy == tasks); /* each 1 ms */
        free(text);
    }
    /* Beyond the room: nothing breaks, the totals are complete. */
    for (uint32_t i = 0; i < 100000; i++) {
        sample_task(trace, 0, RRFP_F, 0, 0, 0, 10, false);
    }
    assert_int_equal(rrfp_trace_get_totals(trace, 0)->busy_ns, 1000000);
    rrfp_trace_destroy(trace);
}

static void report_by_hand(void **state)
{
    (void)state;
    rrfp_trace *trace = sample_trace(true);
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    assert_int_equal(rrfp_trace_write_report(trace, &sample_labels, SAMPLE_STEP, out, &error),
                     RRFP_OK);
    assert_int_equal(rrfp_trace_write_report(trace, &sample_labels, 9, out, &error),
                     RRFP_ERR_INVALID);
    fclose(out);
    assert_non_null(strstr(error.text, "step 9 is not in the trace; it has steps 3 to 3"));

    static const double expect[2][17] = {
        /* tasks busy optimizer, eight reasons, bubble 30/90, waits of 0 10 .1 4 us, out of hint */
        {4, .060, .001, .010, 0, 0, .020, 0, 0, 0, .005, 33.33, 0, .010, .010, .010, 0},
        /* bubble 12.345/65; waits 0 0 1.345 16.5 us */
        {4, .053, .001, 0, 0, .012, 0, 0, 0, 0, .030, 18.99, 0, .017, .017, .017, 2},
    };
    for (int s = 0; s < 2; s++) {
        char head[16];
        snprintf(head, sizeof head, "\n    %d ", s);
        char *at = strstr(text, head);
        assert_non_null(at);
        at += strlen(head);
        for (int i = 0; i < 17; i++) {
            double value = strtod(at, &at), least = expect[s][i] - 0.00101;
            if (value < least || value > expect[s][i] + 0.00101) {
                fail_msg("stage %d, column %d: %g, expected %g", s, i, value, expect[s][i]);
            }
        }
    }
    free(text);
    rrfp_trace_destroy(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(totals_add_up_to_the_wall_time),
        cmocka_unit_test(names_are_stable),
        cmocka_unit_test(reserve_keeps_what_is_there),
        cmocka_unit_test(report_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
