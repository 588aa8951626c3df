/*
 * jitter.h - random delays for tasks and messages, as pure functions.
 *
 * SPEC
 *   none
 *   lognormal:CV      each task is followed by a sleep of its own time * max(0, L - 1), L
 *                     lognormal with mean 1 and coefficient of variation CV (a task can only
 *                     get longer); messages take base_message * L
 *   J0 .. J3          the paper's injection (arXiv 2605.18750 section 7.6): with probability p a
 *                     forward or backward (not W) is delayed by alpha * max(B, ema) * (0.5 + U(0,1)),
 *                     ema = 0.9 ema + 0.1 task time, this task included; messages are not
 *                     delayed; J0 is none
 *   An optional scale:FACTOR after a comma multiplies every delay ("J3,scale:0.1").
 *
 * Draws come from the counter-based generator, keyed (jitter seed, stage,
 * kind, chunk, microbatch, step): the same delays whatever the order.
 */
#ifndef RRFP_JITTER_H
#define RRFP_JITTER_H

#include "rrfp/task.h"

typedef enum rrfp_jitter_model { RRFP_JITTER_NONE = 0, RRFP_JITTER_LOGNORMAL,
                                 RRFP_JITTER_PAPER } rrfp_jitter_model;

typedef struct rrfp_jitter {
    rrfp_jitter_model model;
    double cv;                       /* lognormal */
    double probability, floor_s, alpha; /* paper: p, B in seconds, alpha */
    double scale;
    uint64_t seed;
} rrfp_jitter;

rrfp_status rrfp_jitter_parse(const char *spec, uint64_t seed, rrfp_jitter *jitter,
                              rrfp_error *error);

/* State of the paper's moving average for one stage and kind; zero it before use. */
typedef struct rrfp_jitter_ema { double seconds; bool primed; } rrfp_jitter_ema;

/* Delay in seconds after a task that took `task_s`; updates `ema`. */
double rrfp_jitter_task_delay(const rrfp_jitter *jitter, uint32_t stage, rrfp_task task,
                              uint64_t step, double task_s, rrfp_jitter_ema *ema);
/* Delay in seconds of the message made by `task`, for a nominal transfer of `base_s`. */
double rrfp_jitter_message_delay(const rrfp_jitter *jitter, uint32_t stage, rrfp_task task,
                                 uint64_t step, double base_s);

#endif /* RRFP_JITTER_H */
