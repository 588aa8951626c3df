/*
 * report.h - what a run says: a line per interval, a progress line, the table
 * at the end, the summary file.
 */
#ifndef RRFP_REPORT_H
#define RRFP_REPORT_H

#include <stdio.h>

#include "train/session.h"

typedef struct rrfp_step_record {
    uint64_t iteration;
    float loss, grad_norm;
    double lr, wall_s;
    bool nonfinite;
} rrfp_step_record;

typedef struct rrfp_report {
    FILE *out;           /* borrowed */
    bool terminal;       /* progress line with carriage returns */
    bool progress_shown; /* a progress line stands on the terminal */
    uint64_t begin_ns;
    rrfp_step_record *steps; /* owned */
    size_t step_count, step_capacity;
    uint32_t skipped, nonfinite;
    double eval_loss; /* NaN until the first evaluation */
    /* since the last line */
    double interval_s, interval_bubble;
    uint32_t interval_steps;
    uint64_t interval_dispatches, interval_out_of_hint;
} rrfp_report;

void rrfp_report_begin(rrfp_report *report, FILE *out);
void rrfp_report_end(rrfp_report *report); /* frees */

/* What is about to run: model, data, pipeline, hint, budgets. */
void rrfp_report_header(rrfp_report *report, const rrfp_session *session);
/* Adds a step; prints Megatron's line when the interval is full, and the progress line. */
rrfp_status rrfp_report_step(rrfp_report *report, const rrfp_session *session,
                             const rrfp_step_record *record, const rrfp_step_result *result,
                             rrfp_error *error);
void rrfp_report_eval(rrfp_report *report, uint64_t iteration, double loss);
void rrfp_report_note(rrfp_report *report, const char *format, ...);
/* Throughput, FLOP/s, and per stage busy and idle by reason. */
void rrfp_report_summary(rrfp_report *report, const rrfp_session *session);
/* The same and every step as JSON; atomic. */
rrfp_status rrfp_report_write_json(const rrfp_report *report, const rrfp_session *session,
                                   const char *path, rrfp_error *error);

#endif /* RRFP_REPORT_H */
