/* trace_chrome.c - the Chrome trace: exact values, arrows, escaping, reading back. */
#include "support/sample_trace.h"

#include <jansson.h>

static rrfp_error error;

static json_t *written(const rrfp_trace *trace, const rrfp_trace_labels *labels)
{
    const char *path = sample_path("trace.json");
    json_error_t json_error;
    assert_int_equal(rrfp_trace_write_chrome(trace, labels, path, &error), RRFP_OK);
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &json_error);
    if (root == NULL) {
        fail_msg("line %d: %s", json_error.line, json_error.text);
    }
    unlink(path);
    return root;
}

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text != NULL ? text : "";
}

static double number_of(const json_t *object, const char *name)
{
    const json_t *number = json_object_get(object, name);
    assert_true(json_is_number(number));
    return json_number_value(number);
}

/* The only event with this phase, track and name. */
static const json_t *find(const json_t *root, const char *phase, int track, const char *name)
{
    const json_t *events = json_object_get(root, "traceEvents"), *event, *found = NULL;
    size_t index;
    json_array_foreach (events, index, event) {
        if (strcmp(text_of(event, "ph"), phase) == 0 && strcmp(text_of(event, "name"), name) == 0 &&
            json_integer_value(json_object_get(event, "tid")) == track) {
            assert_null(found);
            found = event;
        }
    }
    if (found == NULL) {
        fail_msg("no event %s '%s' on track %d", phase, name, track);
    }
    return found;
}

static void is_slice(const json_t *event, double ts, double dur)
{
    assert_true(number_of(event, "ts") == ts);
    assert_true(number_of(event, "dur") == dur);
    assert_true(number_of(event, "pid") == 0);
    assert_true(number_of(json_object_get(event, "args"), "step") == SAMPLE_STEP);
}

static void slices_have_exact_values(void **state)
{
    (void)state;
    rrfp_trace *trace = sample_trace(true);
    json_t *root = written(trace, &sample_labels);
    assert_string_equal(text_of(root, "displayTimeUnit"), "ms");

    const json_t *event = find(root, "X", 2, "F 1");
    is_slice(event, 38.0, 10.0);
    const json_t *args = json_object_get(event, "args");
    assert_string_equal(text_of(args, "kind"), "F");
    assert_true(number_of(args, "chunk") == 0 && number_of(args, "global_chunk") == 1);
    assert_true(number_of(args, "microbatch") == 1);
    assert_true(number_of(args, "ready_us") == 21.5 && number_of(args, "wait_us") == 16.5);
    assert_true(json_is_true(json_object_get(args, "out_of_hint")));
    event = find(root, "X", 2, "F 0");
    is_slice(event, 12.345, 10.0);
    assert_true(json_is_false(json_object_get(json_object_get(event, "args"), "out_of_hint")));
    is_slice(find(root, "X", 0, "BW 1"), 70.0, 20.0);
    is_slice(find(root, "X", 0, "optimizer"), 95.0, 1.001);
    is_slice(find(root, "X", 1, "no_input_b"), 20.0, 20.5);
    is_slice(find(root, "X", 1, "budget"), 60.5, 9.5);
    is_slice(find(root, "X", 3, "no_input_f"), 0.0, 12.345);

    for (int track = 0; track < 4; track++) {
        static const char *const names[] = {"stage 0", "stage 0 idle", "stage 1", "stage 1 idle"};
        args = json_object_get(find(root, "M", track, "thread_name"), "args");
        assert_string_equal(text_of(args, "name"), names[track]);
        args = json_object_get(find(root, "M", track, "thread_sort_index"), "args");
        assert_true(number_of(args, "sort_index") == track);
    }
    json_decref(root);
    rrfp_trace_destroy(trace);
}

/* Each arrow: one start inside the maker's slice, one end on the consumer's, same id. */
static void arrows_pair_up(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int microbatch, from, to;
        double leaves, enters, sent, arrived;
    } expect[] = {
        {"gradient", 0, 2, 0, 37.999, 40.5, 38.01, 40.4},
        {"gradient", 1, 2, 0, 64.999, 70.0, 65.005, 66.0},
        {"activation", 0, 0, 2, 9.999, 12.345, 10.01, 11.0},
        {"activation", 1, 0, 2, 19.999, 38.0, 20.02, 21.5},
    };
    rrfp_trace *trace = sample_trace(true);
    /* A message nobody made or used in this trace gives no arrow, not half of one. */
    rrfp_trace_message stray = {SAMPLE_BASE_NS + 1, SAMPLE_BASE_NS + 2, SAMPLE_STEP + 1, 0, 1, 0, 1,
                                0, 4096, RRFP_F};
    rrfp_trace_add_message(trace, 1, &stray);
    json_t *root = written(trace, &sample_labels);
    const json_t *events = json_object_get(root, "traceEvents"), *event, *start = NULL;
    size_t index, starts = 0, ends = 0;
    json_array_foreach (events, index, event) {
        if (strcmp(text_of(event, "ph"), "s") == 0) {
            assert_true(starts == ends && starts < 4);
            const json_t *args = json_object_get(event, "args");
            start = event;
            assert_string_equal(text_of(event, "name"), expect[starts].name);
            assert_true(number_of(event, "tid") == expect[starts].from);
            assert_true(number_of(event, "ts") == expect[starts].leaves);
            assert_true(number_of(args, "microbatch") == expect[starts].microbatch);
            assert_true(number_of(args, "sent_us") == expect[starts].sent);
            assert_true(number_of(args, "arrived_us") == expect[starts].arrived);
            assert_true(number_of(args, "bytes") == 4096);
            starts++;
        } else if (strcmp(text_of(event, "ph"), "f") == 0) {
            assert_int_equal(starts, ends + 1);
            assert_true(number_of(event, "id") == number_of(start, "id"));
            assert_string_equal(text_of(event, "name"), text_of(start, "name"));
            assert_string_equal(text_of(event, "cat"), text_of(start, "cat"));
            assert_string_equal(text_of(event, "bp"), "e");
            assert_true(number_of(event, "tid") == expect[ends].to);
            assert_true(number_of(event, "ts") == expect[ends].enters);
            ends++;
        }
    }
    assert_int_equal(starts, 4);
    assert_int_equal(ends, 4);
    json_decref(root);
    rrfp_trace_destroy(trace);
}

static void counts_activations_in_flight(void **state)
{
    (void)state;
    static const double times[] = {0.0, 10.0, 60.5, 90.0}, counts[] = {1, 2, 1, 0};
    rrfp_trace *trace = sample_trace(true);
    json_t *root = written(trace, &sample_labels);
    const json_t *events = json_object_get(root, "traceEvents"), *event;
    size_t index, seen = 0;
    json_array_foreach (events, index, event) {
        if (strcmp(text_of(event, "name"), "in flight, stage 0") == 0) {
            assert_string_equal(text_of(event, "ph"), "C");
            assert_true(seen < 4 && number_of(event, "ts") == times[seen]);
            assert_true(number_of(json_object_get(event, "args"), "activations") == counts[seen]);
            seen++;
        }
    }
    assert_int_equal(seen, 4);
    json_decref(root);
    rrfp_trace_destroy(trace);
}

static void labels_are_escaped(void **state)
{
    (void)state;
    rrfp_trace *trace = sample_trace(true);
    json_t *root = written(trace, &sample_labels);
    const json_t *other = json_object_get(root, "otherData");
    assert_string_equal(text_of(other, "order"), "ready");
    assert_string_equal(text_of(other, "hint"), "h\"i\\n\nt<&>\xef\xbf\xbd\xc3\xa9");
    assert_string_equal(text_of(other, "title"), "a title");
    json_decref(root);
    /* Overlong, surrogate, cut off and beyond the last code point: replaced, still JSON. */
    rrfp_trace_labels odd = {"\xc0\x80", "\xed\xa0\x80\xf4\x90\x80\x80", "\x01\x7f\xe2\x82"};
    root = written(trace, &odd);
    other = json_object_get(root, "otherData");
    assert_string_equal(text_of(other, "order"), "\xef\xbf\xbd\xef\xbf\xbd");
    assert_string_equal(text_of(other, "title"), "\x01\x7f\xef\xbf\xbd\xef\xbf\xbd");
    json_decref(root);
    rrfp_trace_labels none = {NULL, NULL, NULL};
    root = written(trace, &none);
    assert_string_equal(text_of(json_object_get(root, "otherData"), "hint"), "");
    json_decref(root);
    rrfp_trace_destroy(trace);
}

static void reading_back_loses_nothing(void **state)
{
    (void)state;
    char path[512];
    rrfp_trace *trace = sample_trace(true), *copy = NULL;
    rrfp_trace_file_labels labels;
    snprintf(path, sizeof path, "%s", sample_path("round.json"));
    json_t *before = written(trace, &sample_labels);
    assert_int_equal(rrfp_trace_write_chrome(trace, &sample_labels, path, &error), RRFP_OK);
    assert_int_equal(rrfp_trace_read_chrome(path, &copy, &labels, &error), RRFP_OK);
    unlink(path);
    assert_string_equal(labels.order, "ready");
    assert_string_equal(labels.hint, "h\"i\\n\nt<&>\xef\xbf\xbd\xc3\xa9");
    for (uint32_t s = 0; s < 2; s++) {
        assert_memory_equal(rrfp_trace_get_totals(trace, s), rrfp_trace_get_totals(copy, s),
                            sizeof(rrfp_trace_totals));
    }
    json_t *after = written(copy, &sample_labels);
    assert_true(json_equal(json_object_get(before, "traceEvents"),
                           json_object_get(after, "traceEvents")));
    json_decref(before);
    json_decref(after);
    rrfp_trace_destroy(copy);
    rrfp_trace_destroy(trace);
}

/* Two stages of two tensor and two data ranks: rank 7 sends nothing, 3 sends to 7. */
static void ranks_of_a_stage_have_tracks(void **state)
{
    (void)state;
    static const rrfp_shape shape = {2, 1, 2, RRFP_PLACEMENT_LOOPED};
    static const rrfp_layout layout = {2, 2, 2};
    char path[512];
    rrfp_trace *trace = NULL, *copy = NULL;
    rrfp_trace_file_labels labels;
    assert_int_equal(rrfp_trace_create(&shape, &layout, true, &trace, &error), RRFP_OK);
    for (uint32_t rank = 0; rank < 8; rank++) {
        rrfp_trace_task task = {SAMPLE_BASE_NS, SAMPLE_BASE_NS + 1000 * rank,
                                SAMPLE_BASE_NS + 1000 * rank + 500, SAMPLE_STEP, {RRFP_F, 0, 0, 1},
                                rank / 4, false};
        assert_int_equal(rrfp_trace_reserve(trace, rank, &error), RRFP_OK);
        rrfp_trace_add_task(trace, rank, &task);
    }
    rrfp_trace_message message = {SAMPLE_BASE_NS + 3600, SAMPLE_BASE_NS + 3700, SAMPLE_STEP, 0, 1,
                                  0, 1, 1, 4096, RRFP_F};
    rrfp_trace_add_message(trace, 7, &message);
    json_t *before = written(trace, &sample_labels);
    const json_t *event, *events = json_object_get(before, "traceEvents");
    size_t i, arrows = 0, names = 0;
    json_array_foreach (events, i, event) {
        const char *phase = json_string_value(json_object_get(event, "ph"));
        json_int_t track = json_integer_value(json_object_get(event, "tid"));
        const char *name =
            json_string_value(json_object_get(json_object_get(event, "args"), "name"));
        if (strcmp(phase, "s") == 0 || strcmp(phase, "f") == 0) {
            assert_int_equal(track, strcmp(phase, "s") == 0 ? 6 : 14);
            arrows++;
        }
        names += name != NULL && track == 14 && strcmp(name, "stage 1 tp 1 dp 1") == 0;
    }
    assert_int_equal(arrows, 2);
    assert_int_equal(names, 1);
    json_decref(before);
    snprintf(path, sizeof path, "%s", sample_path("ranks.json"));
    assert_int_equal(rrfp_trace_write_chrome(trace, &sample_labels, path, &error), RRFP_OK);
    assert_int_equal(rrfp_trace_read_chrome(path, &copy, &labels, &error), RRFP_OK);
    unlink(path);
    for (uint32_t rank = 0; rank < 8; rank++) {
        assert_memory_equal(rrfp_trace_get_totals(trace, rank), rrfp_trace_get_totals(copy, rank),
                            sizeof(rrfp_trace_totals));
    }
    rrfp_trace_destroy(copy);
    rrfp_trace_destroy(trace);
}

static void reading_refuses_what_is_not_ours(void **state)
{
    (void)state;
#define SHAPE                                                                                      \
    "\"otherData\":{\"stages\":2,\"chunks\":1,\"microbatches\":2,\"placement\":\"looped\"}"
#define TASK "{\"ph\":\"X\",\"cat\":\"task\",\"tid\":0,\"ts\":1,\"dur\":1,\"args\":"
    static const struct {
        const char *text, *names;
    } bad[] = {
        {"", "line 1"},
        {"[]", "otherData"},
        {"{\"otherData\":{\"stages\":99999999,\"chunks\":1,\"microbatches\":2,"
         "\"placement\":\"looped\"}}",
         "otherData"},
        {"{\"otherData\":{\"stages\":2,\"chunks\":1,\"microbatches\":2,\"placement\":\"v\"}}",
         "chunks"},
        {"{" SHAPE "}", "traceEvents"},
        {"{" SHAPE ",\"traceEvents\":[7]}", "event 0: \"ph\""},
        {"{" SHAPE ",\"traceEvents\":[{\"ph\":\"M\"},{\"ph\":\"X\",\"tid\":4}]}",
         "event 1: \"tid\""},
        {"{" SHAPE ",\"traceEvents\":[{\"ph\":\"X\",\"tid\":1,\"ts\":-1}]}", "\"ts\""},
        {"{" SHAPE ",\"traceEvents\":[{\"ph\":\"X\",\"tid\":1,\"ts\":1e300}]}", "\"ts\""},
        {"{" SHAPE ",\"traceEvents\":[" TASK "{}}]}", "\"step\""},
        {"{" SHAPE ",\"traceEvents\":[" TASK "{\"step\":1,\"kind\":\"Q\"}}]}", "\"kind\""},
        {"{" SHAPE ",\"traceEvents\":[" TASK "{\"step\":1,\"kind\":\"F\",\"chunk\":1}}]}",
         "\"chunk\""},
        {"{" SHAPE ",\"traceEvents\":[" TASK
         "{\"step\":1,\"kind\":\"F\",\"chunk\":0,\"microbatch\":2}}]}",
         "\"microbatch\""},
        {"{" SHAPE ",\"traceEvents\":[{\"ph\":\"X\",\"cat\":\"idle\",\"name\":\"lazy\",\"tid\":1,"
         "\"ts\":1,\"dur\":1,\"args\":{\"step\":1}}]}",
         "\"name\""},
        {"{" SHAPE ",\"traceEvents\":[{\"ph\":\"s\",\"name\":\"activation\",\"tid\":0,\"args\":{\"step\":1,"
         "\"microbatch\":0,\"source_global_chunk\":2}}]}",
         "\"source_global_chunk\""},
        {"{" SHAPE ",\"traceEvents\":[{\"ph\":\"s\",\"name\":\"activation\",\"tid\":4}]}",
         "event 0: \"tid\""},
        {"{\"otherData\":{\"stages\":2,\"chunks\":1,\"microbatches\":2,\"tensor\":0,"
         "\"placement\":\"looped\"}}",
         "otherData"},
        {"{\"otherData\":{\"stages\":9999,\"chunks\":1,\"microbatches\":2,\"tensor\":1000,"
         "\"placement\":\"looped\"}}",
         "otherData"},
    };
    char path[512];
    snprintf(path, sizeof path, "%s", sample_path("bad.json"));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        rrfp_trace *trace = NULL;
        rrfp_trace_file_labels labels;
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(bad[i].text, file);
        fclose(file);
        rrfp_status status = rrfp_trace_read_chrome(path, &trace, &labels, &error);
        if (status == RRFP_OK || strstr(error.text, bad[i].names) == NULL) {
            fail_msg("case %zu: status %d, %s", i, status, error.text);
        }
        assert_null(trace);
    }
    unlink(path);
    rrfp_trace *trace = NULL;
    rrfp_trace_file_labels labels;
    assert_int_equal(rrfp_trace_read_chrome(path, &trace, &labels, &error), RRFP_ERR_IO);
    assert_non_null(strstr(error.text, path));
}

static void a_file_is_whole_or_untouched(void **state)
{
    (void)state;
    char path[512], temporary[600];
    rrfp_trace *trace = sample_trace(true);
    assert_int_equal(rrfp_trace_write_chrome(trace, &sample_labels, "/nonexistent/x.json", &error),
                     RRFP_ERR_IO);
    assert_non_null(strstr(error.text, "/nonexistent/x.json: No such file"));
    assert_int_equal(rrfp_trace_write_chrome(trace, &sample_labels, "/dev/full", &error),
                     RRFP_ERR_IO);
    assert_non_null(strstr(error.text, "/dev/full: No space left"));
    snprintf(path, sizeof path, "%s", sample_path("whole.json"));
    assert_int_equal(rrfp_trace_write_chrome(trace, &sample_labels, path, &error), RRFP_OK);
    snprintf(temporary, sizeof temporary, "%s.tmp-%ld", path, (long)getpid());
    assert_int_equal(access(temporary, F_OK), -1);
    assert_int_equal(access(path, F_OK), 0);
    unlink(path);
    rrfp_trace_destroy(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_have_exact_values),
        cmocka_unit_test(arrows_pair_up),
        cmocka_unit_test(counts_activations_in_flight),
        cmocka_unit_test(labels_are_escaped),
        cmocka_unit_test(reading_back_loses_nothing),
        cmocka_unit_test(ranks_of_a_stage_have_tracks),
        cmocka_unit_test(reading_refuses_what_is_not_ours),
        cmocka_unit_test(a_file_is_whole_or_untouched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
