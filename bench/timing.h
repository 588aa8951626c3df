/* timing.h - what the benchmarks share: clock, operands, order statistics. */
#ifndef RRFP_BENCH_TIMING_H
#define RRFP_BENCH_TIMING_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Processor time of this thread, so that other processes do not count. */
static inline double bench_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* 64-byte aligned, values in [-1, 1); *given*. */
static inline float *bench_filled(size_t count)
{
    float *x = aligned_alloc(64, (count * sizeof *x + 127) / 64 * 64);
    if (x == NULL) {
        perror("out of memory");
        exit(1);
    }
    for (size_t i = 0; i < count; i++) {
        x[i] = (float)((i * 2654435761u >> 8) % 2048) / 1024.0f - 1.0f;
    }
    return x;
}

/* For qsort of doubles. */
static inline int bench_ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#endif /* RRFP_BENCH_TIMING_H */
