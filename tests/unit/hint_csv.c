/* CSV files of schedules: what is read, what is written, what is refused and how. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/hint_sim.h"

static rrfp_status parse(const char *text, uint32_t p, uint32_t v, uint32_t m, rrfp_hint **hint,
                         rrfp_error *error)
{
    memset(error, 0, sizeof *error);
    return rrfp_hint_parse_csv("s.csv", text, strlen(text), p, v, m, hint, error);
}

static void test_reads(void **state)
{
    (void)state;
    rrfp_hint *hint = NULL;
    rrfp_error error;
    /* CRLF, bubbles, spaces, trailing commas, no newline at the end */
    assert_int_equal(parse(" 0F0 ,0F1,,,0B0,,0B1,,\r\n,1F0,\t1B0, ,1F1,1B1", 0, 0, 0, &hint,
                           &error),
                     RRFP_OK);
    assert_int_equal(hint->shape.stages, 2);
    assert_int_equal(hint->shape.chunks, 1);
    assert_int_equal(hint->shape.microbatches, 2);
    assert_int_equal(hint->shape.placement, RRFP_PLACEMENT_LOOPED);
    assert_false(hint->split_backward);
    assert_int_equal(hint->order_counts[1], 4);
    assert_int_equal(hint->orders[1][1].kind, RRFP_BW);
    rrfp_hint_destroy(hint);
    assert_int_equal(parse("0F0,3F0,3I0,3W0,0I0,0W0\n1F0,2F0,2I0,1I0,1W0,2W0\n\n", 2, 2, 1, &hint,
                           &error),
                     RRFP_OK);
    assert_int_equal(hint->shape.placement, RRFP_PLACEMENT_V);
    assert_true(hint->split_backward);
    assert_int_equal(hint->orders[0][2].kind, RRFP_B);
    assert_int_equal(hint->orders[0][2].chunk, 1);
    rrfp_hint_destroy(hint);
}

static void test_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *row, *said;
        uint32_t p, v, m;
    } cases[] = {
        {"0F0,0X0\n", "row 1, column 2, cell \"0X0\"", "F, I, W and B", 0, 0, 0},
        {"0F0,0f1\n", "row 1, column 2, cell \"0f1\"", "F, I, W and B", 0, 0, 0},
        {"0F0,F0\n", "row 1, column 2, cell \"F0\"", "begin with a stage number", 0, 0, 0},
        {"0F0,0B\n", "row 1, column 2, cell \"0B\"", "end with a microbatch number", 0, 0, 0},
        {"0F0,0B0x\n", "row 1, column 2, cell \"0B0x\"", "microbatch number", 0, 0, 0},
        {"0UNSHARD,0F0,0B0\n", "row 1, column 1, cell \"0UNSHARD\"", "compute actions", 0, 0, 0},
        {"0F0,0B0,0REDUCE_GRAD\n", "row 1, column 3", "REDUCE_GRAD", 0, 0, 0},
        {"0F0,0SEND_F0,0B0\n", "row 1, column 2, cell \"0SEND_F0\"", "communication", 0, 0, 0},
        {"(0F0;1B0)OVERLAP_F_B\n", "row 1, column 1", "stage number", 0, 0, 0},
        {"0F99999999999999999999,0B0\n", "row 1, column 1", "below 65536", 0, 0, 0},
        {"99999999999999999999F0,0B0\n", "row 1, column 1", "stage number", 0, 0, 0},
        {"0F0,0B0\n1F0,1F0,1B0\n", "row 2, column 2, cell \"1F0\"", "earlier in the row", 0, 0, 0},
        {"0F0,0B0\n0F1,1F0,1B0\n", "row 2, column 1, cell \"0F1\"", "another row", 0, 0, 0},
        {"0F0,0I0,0B0\n", "row 1, column 3, cell \"0B0\"", "mixed", 0, 0, 0},
        {"0F0,0W0\n", "row 1, column 2, cell \"0W0\"", "W before the I", 0, 0, 0},
        {"0B0,0F0\n", "row 1, column 1, cell \"0B0\"", "before the forward", 0, 0, 0},
        {"0F0,0B0,0F1\n", "row 1: task 0B1", "missing", 0, 0, 0},
        {"0F0,0I0\n", "row 1: task 0W0", "missing", 0, 0, 0},
        {"0F0,0B0\n1F0\n", "row 2: task 1B0", "missing", 0, 0, 0},
        {"0F0,0B0\n1F0,1B0\n", "2 ranks", "wants 3", 3, 1, 1},
        {"0F0,0B0\n1F0,1B0\n", "1 stages a rank", "wants 2", 2, 2, 1},
        {"0F0,0B0\n1F0,1B0\n", "1 microbatches", "wants 4", 2, 1, 4},
        {"1F0,1B0\n0F0,0B0\n", "placed neither", "rank g mod 2", 0, 0, 0},
        {"0F0,0B0,0F1,0B1\n1F1,1F0,1B1,1B0\n", "cell \"0B0\"", "wait for each other", 0, 0, 0},
        {"", "s.csv", "no task", 0, 0, 0},
        {",,\n\n", "s.csv", "no task", 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rrfp_hint *hint = NULL;
        rrfp_error error;
        rrfp_status status =
            parse(cases[i].text, cases[i].p, cases[i].v, cases[i].m, &hint, &error);
        if (status == RRFP_OK || strstr(error.text, cases[i].row) == NULL ||
            strstr(error.text, cases[i].said) == NULL) {
            fail_msg("case %zu: status %d, \"%s\" lacks \"%s\" or \"%s\"", i, (int)status,
                     error.text, cases[i].row, cases[i].said);
        }
        assert_null(hint);
        assert_int_equal(error.status, status);
    }
}

/* Bytes no text has, and control characters, which a terminal must not get. */
static void test_hostile_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t bytes;
        const char *said;
    } cases[] = {
        {"0F0\0,0B0\n", 9, "row 1, column 1, cell \"0F0\": it must end"},
        {"0F0,\0\0,0B0\n", 11, "row 1, column 2"},
        {"0F0,0\0B0\n", 9, "row 1, column 2, cell \"0\": only the compute"},
        {"0F0,\033[31m\n", 10, "row 1, column 2, cell \"?[31m\""},
        {"0F4294967296,0B0\n", 17, "row 1, column 1, cell \"0F4294967296\": it must end"},
        {"4294967296F0,0B0\n", 17, "row 1, column 1, cell \"4294967296F0\": it must begin"},
        /* A few bytes that speak of 2^30 tasks: refused before room is made for them. */
        {"63F65535\n", 9, "need at least"},
        {"16383F65535\n", 12, "16384 stages on 1 ranks"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rrfp_hint *hint = NULL;
        rrfp_error error = {0};
        assert_int_equal(rrfp_hint_parse_csv("s.csv", cases[i].text, cases[i].bytes, 0, 0, 0,
                                             &hint, &error),
                         RRFP_ERR_FORMAT);
        if (strstr(error.text, cases[i].said) == NULL) {
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, error.text, cases[i].said);
        }
        assert_null(hint);
    }
}

/* I's and W's in reverse microbatch order: kept as they are, and usable with ordered sums. */
static void test_any_microbatch_order(void **state)
{
    (void)state;
    const char *path = RRFP_TEST_BINARY_DIR "/hint_reverse.csv";
    const char *text = "0F1,0F0,0F2,0I2,0I0,0W0,0I1,0W2,0W1\n"
                       "1F1,1F0,1F2,1I2,1W2,1I0,1I1,1W1,1W0\n";
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    for (uint32_t fixed = 0; fixed < 2; fixed++) {
        rrfp_hint *hint = NULL;
        rrfp_error error = {0};
        uint32_t distance = fixed ? 0 : RRFP_DISTANCE_UNBOUNDED;
        assert_int_equal(sim_build(path, 2, 1, 3, distance, 0, 0, &hint, &error), RRFP_OK);
        assert_string_equal(hint->name, "hint_reverse.csv");
        sim_result result = sim_run(hint);
        assert_true(result.complete && result.feasible);
        assert_false(hint->adapted);
        assert_int_equal(hint->orders[1][4].kind, RRFP_W);
        assert_int_equal(hint->orders[1][4].microbatch, 2);
        /* What runs sums in microbatch order: W0 right behind I0, the others at W's places. */
        char *ran = NULL;
        size_t bytes = 0;
        FILE *out = open_memstream(&ran, &bytes);
        assert_non_null(out);
        assert_int_equal(rrfp_hint_write_csv(hint, false, out, &error), RRFP_OK);
        fclose(out);
        assert_string_equal(ran, "0F1,0F0,0F2,0I2,0I0,0W0,0I1,0W1,0W2\n"
                                 "1F1,1F0,1F2,1I2,1I0,1W0,1I1,1W1,1W2\n");
        free(ran);
        rrfp_hint_destroy(hint);
    }
    remove(path);
}

static void test_writes(void **state)
{
    (void)state;
    rrfp_hint *hint = NULL;
    rrfp_error error;
    char *text = NULL;
    size_t bytes = 0;
    assert_int_equal(sim_build("1f1b", 2, 1, 2, RRFP_DISTANCE_UNBOUNDED, 0, 0, &hint, &error),
                     RRFP_OK);
    FILE *out = open_memstream(&text, &bytes);
    assert_int_equal(rrfp_hint_write_csv(hint, false, out, &error), RRFP_OK);
    fclose(out);
    assert_string_equal(text, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    free(text);
    /* Stage 1: F0 at 1, B0 at 2..4, F1 at 4, B1 at 5..7; stage 0: B0 at 4..6, B1 at 7..9. */
    out = open_memstream(&text, &bytes);
    assert_int_equal(rrfp_hint_write_csv(hint, true, out, &error), RRFP_OK);
    fclose(out);
    assert_string_equal(text, "0F0,0F1,,,0B0,,,0B1,\n,1F0,1B0,,1F1,1B1,\n");
    free(text);
    out = open_memstream(&text, &bytes);
    assert_int_equal(rrfp_hint_write_table(hint, out, &error), RRFP_OK);
    fclose(out);
    assert_string_equal(text, "stage 0   F0 F1 B0 B1\nstage 1   F0 B0 F1 B1\n");
    free(text);
    rrfp_hint_destroy(hint);
}

static void test_files(void **state)
{
    (void)state;
    rrfp_hint *hint = NULL;
    rrfp_error error = {0};
    assert_int_equal(rrfp_hint_read_csv("/nonexistent/a.csv", 0, 0, 0, &hint, &error),
                     RRFP_ERR_IO);
    assert_non_null(strstr(error.text, "/nonexistent/a.csv"));
    const char *path = RRFP_TEST_BINARY_DIR "/hint_large.csv";
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 64L << 20, SEEK_SET), 0); /* sparse */
    fputc('\n', file);
    fclose(file);
    assert_int_equal(rrfp_hint_read_csv(path, 0, 0, 0, &hint, &error), RRFP_ERR_FORMAT);
    assert_non_null(strstr(error.text, "larger than 64 MiB"));
    remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_hostile_bytes),
        cmocka_unit_test(test_any_microbatch_order),
        cmocka_unit_test(test_writes),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
