/* sum.c - the one order of summation; see collective.h. */
#include <string.h>

#include "collective/collective.h"

void rrfp_sum_in_order(const float *const *parts, uint32_t part_count, float *to, size_t count)
{
    enum { RUN = 2048 }; /* stays in the first-level cache */
    for (size_t at = 0; at < count; at += RUN) {
        size_t run = count - at < RUN ? count - at : RUN;
        float total[RUN];
        memcpy(total, parts[0] + at, run * sizeof *total);
        for (uint32_t p = 1; p < part_count; p++) {
            const float *part = parts[p] + at;
            for (size_t i = 0; i < run; i++) {
                total[i] += part[i];
            }
        }
        memcpy(to + at, total, run * sizeof *total);
    }
}
