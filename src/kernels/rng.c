/*
 * rng.c - Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers:
 * as easy as 1, 2, 3", SC'11) and the dropout mask made from it.
 *
 * A key names more bits than one Philox counter and key hold next to the element
 * index.  It is therefore mixed once: one block with counter (stream, a, b, step)
 * and key `seed` gives the key and the upper counter half of the element blocks.
 */
#include "kernels/rng.h"

#include <math.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/philox.h"
#include "kernels/vec.h"

#define MULTIPLIER_0 0xD2511F53u
#define MULTIPLIER_1 0xCD9E8D57u
#define WEYL_0 0x9E3779B9u /* golden ratio */
#define WEYL_1 0xBB67AE85u /* sqrt(3) - 1 */

enum { ROUNDS = 10, GROUPS = RRFP_RNG_RUN / 16 };

void rrfp_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t p0 = (uint64_t)MULTIPLIER_0 * c0, p1 = (uint64_t)MULTIPLIER_1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += WEYL_0;
        k1 += WEYL_1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

rrfp_rng_stream rrfp_rng_stream_of(const rrfp_rng_key *key)
{
    uint32_t counter[4] = {key->stream, key->a, key->b, key->step};
    uint32_t seed[2] = {(uint32_t)key->seed, (uint32_t)(key->seed >> 32)};
    uint32_t mixed[4];
    rrfp_philox4x32(counter, seed, mixed);
    return (rrfp_rng_stream){{mixed[0], mixed[1]}, {mixed[2], mixed[3]}};
}

/* Four 64-bit lanes; the low halves carry the words of four blocks. */
typedef uint64_t lanes __attribute__((vector_size(32), aligned(8), may_alias));

/* Full products of the low halves: whatever is in the high halves does not count. */
static inline lanes multiply_low(lanes a, uint32_t factor)
{
#if defined(__AVX2__)
    return (lanes)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x((long long)factor));
#else
    return (a & 0xFFFFFFFFu) * (uint64_t)factor;
#endif
}

/* The same rounds on consecutive counters side by side, GROUPS x 4 blocks at a time. */
void rrfp_rng_fill(const rrfp_rng_stream *stream, uint64_t block, uint32_t out[RRFP_RNG_RUN])
{
    lanes c0[GROUPS], c1[GROUPS], c2[GROUPS], c3[GROUPS];
    uint32_t k0 = stream->key[0], k1 = stream->key[1];
    for (int g = 0; g < GROUPS; g++) {
        lanes index = {0, 1, 2, 3};
        index += block + 4 * (uint64_t)g;
        c0[g] = index;
        c1[g] = index >> 32;
        c2[g] = (lanes){0} + stream->high[0];
        c3[g] = (lanes){0} + stream->high[1];
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int g = 0; g < GROUPS; g++) {
            lanes p0 = multiply_low(c0[g], MULTIPLIER_0), p1 = multiply_low(c2[g], MULTIPLIER_1);
            c0[g] = (p1 >> 32) ^ c1[g] ^ k0;
            c1[g] = p1;
            c2[g] = (p0 >> 32) ^ c3[g] ^ k1;
            c3[g] = p0;
        }
        k0 += WEYL_0;
        k1 += WEYL_1;
    }
    for (int g = 0; g < GROUPS; g++) {
        for (int i = 0; i < 4; i++) {
            uint32_t *words = out + 16 * g + 4 * i;
            words[0] = (uint32_t)c0[g][i];
            words[1] = (uint32_t)c1[g][i];
            words[2] = (uint32_t)c2[g][i];
            words[3] = (uint32_t)c3[g][i];
        }
    }
}

uint32_t rrfp_rng_u32(const rrfp_rng_key *key, uint64_t index)
{
    rrfp_rng_stream stream = rrfp_rng_stream_of(key);
    uint64_t block = index / 4;
    uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), stream.high[0],
                           stream.high[1]};
    uint32_t out[4];
    rrfp_philox4x32(counter, stream.key, out);
    return out[index % 4];
}

static float uniform_of(uint32_t bits)
{
    /* 24 bits fit a float exactly, and a signed conversion is one instruction. */
    return (float)(int32_t)(bits >> 8) * 0x1p-24f;
}

float rrfp_rng_uniform(const rrfp_rng_key *key, uint64_t index)
{
    return uniform_of(rrfp_rng_u32(key, index));
}

double rrfp_rng_normal(const rrfp_rng_key *key, uint64_t index)
{
    const double two_pi = 6.283185307179586476925;
    uint64_t pair = index & ~(uint64_t)1;
    /* (0, 1] under the logarithm. */
    double radius_draw = ((double)rrfp_rng_u32(key, pair) + 1.0) * 0x1p-32;
    double angle_draw = (double)rrfp_rng_u32(key, pair + 1) * 0x1p-32;
    double radius = sqrt(-2.0 * log(radius_draw));
    double angle = two_pi * angle_draw;
    return index == pair ? radius * cos(angle) : radius * sin(angle);
}

void rrfp_dropout_factors(const rrfp_rng_stream *stream, uint64_t first, size_t count, float p,
                          float factor[RRFP_DROPOUT_RUN])
{
    /* Whole runs from the block that holds `first`; up to three elements go unused. */
    uint32_t bits[RRFP_DROPOUT_RUN + RRFP_RNG_RUN];
    size_t skip = (size_t)(first % 4);
    uint64_t block = first / 4;
    for (size_t made = 0; made < skip + count; made += RRFP_RNG_RUN)
        rrfp_rng_fill(stream, block + made / 4, bits + made);
    float kept = 1.0f / (1.0f - p);
    for (size_t i = 0; i < count; i++)
        factor[i] = uniform_of(bits[skip + i]) >= p ? kept : 0.0f;
}
