/* schedule.h - learning rate of an iteration. Pure. */
#ifndef RRFP_SCHEDULE_H
#define RRFP_SCHEDULE_H

#include "config/options.h"

/*
 * Linear warm-up to --lr over --lr-warmup-iters, then cosine or linear decay to
 * --min-lr, reached at --lr-decay-iters (default --train-iters), or constant.
 * `iteration` counts from 1.
 */
double rrfp_learning_rate(const rrfp_options *options, uint64_t iteration);

#endif /* RRFP_SCHEDULE_H */
