/*
 * rng.h - counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11).
 *
 * A draw is a pure function of (key, index).  Keys name what the numbers are
 * for, so results depend on neither order nor partition:
 *   dropout:   (seed, layer, microbatch, step, site), index = element
 *   init:      (seed, parameter index), index = element
 */
#ifndef RRFP_RNG_H
#define RRFP_RNG_H

#include <stddef.h>
#include <stdint.h>

typedef struct rrfp_rng_key {
    uint64_t seed;
    uint32_t stream; /* RRFP_RNG_* purpose */
    uint32_t a, b;   /* e.g. layer*8+site, microbatch */
    uint32_t step;
} rrfp_rng_key;

enum { RRFP_RNG_DROPOUT = 1, RRFP_RNG_INIT = 2, RRFP_RNG_DATA = 3, RRFP_RNG_JITTER = 4,
       RRFP_RNG_SAMPLE = 5 };

/* The bare Philox4x32-10 block, checked against the published vectors. */
void rrfp_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* 32 random bits of element `index`.  Elements 4i..4i+3 share one block. */
uint32_t rrfp_rng_u32(const rrfp_rng_key *key, uint64_t index);
/* Uniform in [0,1) with 24 bits. */
float rrfp_rng_uniform(const rrfp_rng_key *key, uint64_t index);
/* Standard normal (Box-Muller in double, elements 2i and 2i+1 share a pair). */
double rrfp_rng_normal(const rrfp_rng_key *key, uint64_t index);

#endif /* RRFP_RNG_H */
