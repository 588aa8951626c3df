/* trace_svg.c - pictures: well-formed, boxes where the times say, shared axis. */
#include <ctype.h>

#include "support/sample_trace.h"

static rrfp_error error;

/* Tags nest and close, attributes are quoted, no bare & or <. */
static void assert_well_formed(const char *text)
{
    char open[16][32];
    int depth = 0;
    const char *at = text;
    if (strncmp(at, "<?xml", 5) == 0) {
        at = strstr(at, "?>") + 2;
    }
    while (*at != '\0') {
        if (*at == '&') {
            const char *end = strchr(at, ';');
            assert_true(end != NULL && end - at < 10);
        }
        if (*at++ != '<') {
            continue;
        }
        bool closing = *at == '/';
        size_t length = 0;
        char name[32];
        at += closing;
        while (isalnum((unsigned char)*at) && length < sizeof name - 1) {
            name[length++] = *at++;
        }
        name[length] = '\0';
        assert_true(length > 0);
        bool quoted = false;
        while (*at != '\0' && (quoted || *at != '>')) {
            assert_true(*at != '<');
            quoted ^= *at == '"';
            at++;
        }
        assert_int_equal(*at, '>');
        if (closing) {
            assert_true(depth > 0);
            assert_string_equal(open[--depth], name);
        } else if (at[-1] != '/') {
            assert_true(depth < 16);
            strcpy(open[depth++], name);
        }
        at++;
    }
    assert_int_equal(depth, 0);
}

static char *drawn(const rrfp_trace *trace, uint64_t step)
{
    const char *path = sample_path("picture.svg");
    assert_int_equal(rrfp_trace_write_svg(trace, &sample_labels, step, path, &error), RRFP_OK);
    char *text = sample_read(path);
    unlink(path);
    return text;
}

static size_t count_of(const char *text, const char *part)
{
    size_t count = 0;
    for (text = strstr(text, part); text != NULL; text = strstr(text + 1, part)) {
        count++;
    }
    return count;
}

static void has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        fail_msg("no '%s' in the picture", part);
    }
}

/* 96001 ns on 1300 pixels from x = 76: a nanosecond is 0.0135415 pixels. */
static void boxes_are_where_the_times_say(void **state)
{
    (void)state;
    rrfp_trace *trace = sample_trace(true);
    char *text = drawn(trace, SAMPLE_STEP);
    assert_well_formed(text);
    /* F1 on stage 0: 10000..20000; BW1 on stage 1: 48000..65000, second row (30 lower). */
    has(text, "<rect x=\"211.42\" y=\"34\" width=\"135.42\" height=\"26\" fill=\"#4285d6\">"
              "<title>F 1, chunk 0 (global 0): 0.010 to 0.020 ms, 0.010 ms long, ready 0.010 ms "
              "before</title></rect>");
    has(text, "<rect x=\"725.99\" y=\"64\" width=\"230.21\" height=\"26\" fill=\"#217d42\">"
              "<title>BW 1");
    has(text, "<title>BW 0, chunk 0 (global 1): 0.022 to 0.038 ms, 0.016 ms long, ready 0.000 ms "
              "before, out of hint</title>");
    assert_int_equal(count_of(text, "fill=\"#4285d6\"><title>F "), 4);
    assert_int_equal(count_of(text, "fill=\"#217d42\"><title>BW "), 4);
    assert_int_equal(count_of(text, "class=\"mb"), 8);
    assert_int_equal(count_of(text, "<title>idle "), 5);
    has(text, "<title>idle 0.020 ms: no_input_b</title>");
    assert_int_equal(count_of(text, "norm and update: 0.001 ms"), 2);
    has(text, ">stage 0</text>");
    has(text, ">stage 1</text>");
    has(text, "a title - order ready, hint h&quot;i\\n&#xfffd;t&lt;&amp;&gt;&#xfffd;\xc3\xa9, "
              "step 3: 0.10 ms</text>");
    has(text, ">0 ms</text>");
    has(text, ">0.09</text>"); /* a tick every 0.01 ms */
    has(text, "F forward");
    assert_null(strstr(text, "W weight gradient")); /* not in this step */
    free(text);
    rrfp_trace_destroy(trace);
}

static void chunks_have_shades_and_narrow_boxes_no_number(void **state)
{
    (void)state;
    static const rrfp_shape shape = {1, 2, 2000, RRFP_PLACEMENT_LOOPED};
    rrfp_trace *trace = NULL;
    assert_int_equal(rrfp_trace_create(&shape, NULL, true, &trace, &error), RRFP_OK);
    assert_int_equal(rrfp_trace_reserve(trace, 0, &error), RRFP_OK);
    for (uint32_t i = 0; i < 2; i++) {
        rrfp_trace_task task = {0, i * 10000, (i + 1) * 10000, 1,
                                {RRFP_F, 0, (uint16_t)i, 1234}, i, false};
        rrfp_trace_add_task(trace, 0, &task);
    }
    rrfp_trace_task narrow = {20000, 20000, 20100, 1, {RRFP_W, 0, 0, 1999}, 0, false};
    rrfp_trace_add_task(trace, 0, &narrow);
    char *text = drawn(trace, 1);
    assert_well_formed(text);
    has(text, "fill=\"#4285d6\"><title>F 1234, chunk 0");
    /* 60 % of the way to white: (66*40 + 255*60)/100 = 179, (133*40 + ...) = 206, 238 */
    has(text, "fill=\"#b3ceee\"><title>F 1234, chunk 1");
    assert_int_equal(count_of(text, ">1234</text>"), 2);
    has(text, "<title>W 1999");
    assert_int_equal(count_of(text, ">1999</text>"), 0);
    has(text, "lighter: later chunk");
    free(text);
    rrfp_trace_destroy(trace);
}

/* The same step twice, once cut short: the long one sets the scale of both. */
static void compared_pictures_share_the_axis(void **state)
{
    (void)state;
    static const rrfp_shape shape = {1, 1, 1, RRFP_PLACEMENT_LOOPED};
    rrfp_trace *small = NULL, *large = sample_trace(true);
    assert_int_equal(rrfp_trace_create(&shape, NULL, true, &small, &error), RRFP_OK);
    assert_int_equal(rrfp_trace_reserve(small, 0, &error), RRFP_OK);
    rrfp_trace_task task = {5000, 5000, 5000 + 48000, 8, {RRFP_B, 0, 0, 0}, 0, false};
    rrfp_trace_add_task(small, 0, &task);
    rrfp_trace_picture pictures[] = {{small, {"fixed", "1f1b", "top"}, 8},
                                     {large, {"ready", "bf", "bottom"}, SAMPLE_STEP}};
    const char *path = sample_path("compare.svg");
    assert_int_equal(rrfp_trace_write_svg_compare(pictures, 2, path, &error), RRFP_OK);
    char *text = sample_read(path);
    unlink(path);
    assert_well_formed(text);
    /* 48000 of 96001 ns: 649.99 pixels; the second picture's rows begin at 34 + 30 + 34. */
    has(text, "<rect x=\"76.00\" y=\"34\" width=\"649.99\" height=\"26\" fill=\"#52b063\">");
    has(text, "<rect x=\"211.42\" y=\"98\" width=\"135.42\" height=\"26\" fill=\"#4285d6\">");
    has(text, "top - order fixed, hint 1f1b, step 8: 0.05 ms");
    has(text, "bottom - order ready, hint bf, step 3: 0.10 ms");
    assert_int_equal(count_of(text, "class=\"end\""), 2);
    assert_int_equal(count_of(text, "</style>"), 1);
    free(text);

    pictures[1].step = 4;
    assert_int_equal(rrfp_trace_write_svg_compare(pictures, 2, path, &error), RRFP_ERR_INVALID);
    assert_string_equal(error.text, "cannot draw step 4: the trace has steps 3 to 3");
    assert_int_equal(access(path, F_OK), -1);
    rrfp_trace_destroy(small);
    rrfp_trace_destroy(large);
}

static void nothing_recorded_is_said(void **state)
{
    (void)state;
    rrfp_trace *trace = sample_trace(false);
    assert_int_equal(rrfp_trace_write_svg(trace, &sample_labels, 3, sample_path("no.svg"), &error),
                     RRFP_ERR_INVALID);
    assert_string_equal(error.text, "cannot draw step 3: the trace has no tasks");
    rrfp_trace_destroy(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boxes_are_where_the_times_say),
        cmocka_unit_test(chunks_have_shades_and_narrow_boxes_no_number),
        cmocka_unit_test(compared_pictures_share_the_axis),
        cmocka_unit_test(nothing_recorded_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
