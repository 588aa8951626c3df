/*
 * philox.h - random bits for runs of consecutive elements; private to src/kernels.
 */
#ifndef RRFP_KERNELS_PHILOX_H
#define RRFP_KERNELS_PHILOX_H

#include "kernels/rng.h"

/* A key after its one-time mixing: Philox key and the upper half of the counter. */
typedef struct rrfp_rng_stream {
    uint32_t key[2], high[2];
} rrfp_rng_stream;

/* Elements made per call of rrfp_rng_fill. */
enum { RRFP_RNG_RUN = 32 };

rrfp_rng_stream rrfp_rng_stream_of(const rrfp_rng_key *key);
/* out[i] = bits of element 4*block + i, i < RRFP_RNG_RUN; equals rrfp_rng_u32. */
void rrfp_rng_fill(const rrfp_rng_stream *stream, uint64_t block, uint32_t out[RRFP_RNG_RUN]);

/*
 * factor[i] = 0 where element first + i is dropped (uniform < p), 1/(1-p) where
 * it is kept; i < count <= RRFP_DROPOUT_RUN.
 */
enum { RRFP_DROPOUT_RUN = 256 };
void rrfp_dropout_factors(const rrfp_rng_stream *stream, uint64_t first, size_t count, float p,
                          float factor[RRFP_DROPOUT_RUN]);

#endif /* RRFP_KERNELS_PHILOX_H */
