/*
 * sample_trace.h - one small step with known times, and files as text.
 *
 *   ns        0        10k      20k          40.5k        60.5k    70k       90k 95k 96k
 *   stage 0   F0       F1       no_input_b   BW0          budget   BW1       col optimizer
 *   stage 1   no_input_f 12345 F0 22345 BW0 38k F1 48k BW1 65k     collective ... optimizer
 */
#ifndef RRFP_TEST_SAMPLE_TRACE_H
#define RRFP_TEST_SAMPLE_TRACE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "trace/trace.h"

static const uint64_t SAMPLE_BASE_NS = 7000000000123u;
enum { SAMPLE_STEP = 3, SAMPLE_END_NS = 96001 };

static inline void sample_task(rrfp_trace *trace, uint32_t stage, rrfp_kind kind,
                               uint32_t microbatch, uint64_t ready, uint64_t start, uint64_t end,
                               bool out_of_hint)
{
    rrfp_trace_task task = {SAMPLE_BASE_NS + ready, SAMPLE_BASE_NS + start, SAMPLE_BASE_NS + end,
                            SAMPLE_STEP, {(uint8_t)kind, 0, 0, microbatch}, stage, out_of_hint};
    rrfp_trace_add_task(trace, stage, &task);
}

static inline void sample_gap(rrfp_trace *trace, uint32_t stage, rrfp_trace_idle reason,
                              uint64_t start, uint64_t end)
{
    rrfp_trace_gap gap = {SAMPLE_BASE_NS + start, SAMPLE_BASE_NS + end, SAMPLE_STEP, reason};
    rrfp_trace_add_gap(trace, stage, &gap);
}

static inline void sample_message(rrfp_trace *trace, rrfp_kind kind, uint32_t from,
                                  uint32_t microbatch, uint64_t sent, uint64_t arrived)
{
    rrfp_trace_message message = {SAMPLE_BASE_NS + sent, SAMPLE_BASE_NS + arrived, SAMPLE_STEP,
                                  from, 1 - from, from, 1 - from, microbatch, 4096, (uint8_t)kind};
    rrfp_trace_add_message(trace, 1 - from, &message);
}

static inline rrfp_trace *sample_trace(bool record)
{
    static const rrfp_shape shape = {2, 1, 2, RRFP_PLACEMENT_LOOPED};
    rrfp_error error;
    rrfp_trace *trace = NULL;
    assert_int_equal(rrfp_trace_create(&shape, NULL, record, &trace, &error), RRFP_OK);
    assert_int_equal(rrfp_trace_reserve(trace, 0, &error), RRFP_OK);
    assert_int_equal(rrfp_trace_reserve(trace, 1, &error), RRFP_OK);
    sample_task(trace, 0, RRFP_F, 0, 0, 0, 10000, false);
    sample_task(trace, 0, RRFP_F, 1, 0, 10000, 20000, false);
    sample_gap(trace, 0, RRFP_TRACE_IDLE_INPUT_B, 20000, 40500);
    sample_message(trace, RRFP_B, 1, 0, 38010, 40400);
    sample_task(trace, 0, RRFP_BW, 0, 40400, 40500, 60500, false);
    sample_gap(trace, 0, RRFP_TRACE_IDLE_BUDGET, 60500, 70000);
    sample_message(trace, RRFP_B, 1, 1, 65005, 66000);
    sample_task(trace, 0, RRFP_BW, 1, 66000, 70000, 90000, false);
    sample_gap(trace, 0, RRFP_TRACE_IDLE_COLLECTIVE, 90000, 95000);
    rrfp_trace_add_optimizer(trace, 0, SAMPLE_STEP, SAMPLE_BASE_NS + 95000,
                             SAMPLE_BASE_NS + SAMPLE_END_NS);

    sample_gap(trace, 1, RRFP_TRACE_IDLE_INPUT_F, 0, 12345);
    sample_message(trace, RRFP_F, 0, 0, 10010, 11000);
    sample_task(trace, 1, RRFP_F, 0, 11000, 12345, 22345, false);
    sample_task(trace, 1, RRFP_BW, 0, 22345, 22345, 38000, true);
    sample_message(trace, RRFP_F, 0, 1, 20020, 21500);
    sample_task(trace, 1, RRFP_F, 1, 21500, 38000, 48000, true);
    sample_task(trace, 1, RRFP_BW, 1, 48000, 48000, 65000, false);
    sample_gap(trace, 1, RRFP_TRACE_IDLE_COLLECTIVE, 65000, 95000);
    rrfp_trace_add_optimizer(trace, 1, SAMPLE_STEP, SAMPLE_BASE_NS + 95000,
                             SAMPLE_BASE_NS + SAMPLE_END_NS);
    return trace;
}

/* Quotes, a backslash, a line break, a tag, a lone byte of UTF-8, a whole letter. */
static const rrfp_trace_labels sample_labels = {"ready", "h\"i\\n\nt<&>\xff\xc3\xa9", "a title"};

static inline const char *sample_path(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/test-%ld-%s", RRFP_TEST_BINARY_DIR, (long)getpid(), name);
    return path;
}

/* The file's text; the caller frees it. */
static inline char *sample_read(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long bytes = ftell(file);
    assert_true(bytes >= 0);
    rewind(file);
    char *text = malloc((size_t)bytes + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)bytes, file), bytes);
    text[bytes] = '\0';
    fclose(file);
    return text;
}

#endif /* RRFP_TEST_SAMPLE_TRACE_H */
