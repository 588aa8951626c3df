/*
 * sample_order.h - which sample an epoch visits at which place.
 *
 * A bijection of [0, count) that is a pure function of (seed, epoch): nothing is
 * stored and nothing is shuffled, so any place of any epoch costs the same.
 */
#ifndef RRFP_SAMPLE_ORDER_H
#define RRFP_SAMPLE_ORDER_H

#include <stdint.h>

/* The sample at `place` < `count` of `epoch`; 1 <= count <= 2^62. */
uint64_t rrfp_sample_order(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t place);

#endif /* RRFP_SAMPLE_ORDER_H */
