/*
 * sample_order.c - a keyed permutation by a cycle-walking Feistel network.
 *
 * The network permutes [0, 4^half), the smallest such range that holds the
 * samples; places that fall outside are sent through again until they land
 * inside (Black and Rogaway, CT-RSA 2002), fewer than four times on average for
 * all but tiny counts.
 */
#include "data/sample_order.h"

#include <assert.h>

enum {
    ROUNDS = 6,
    /* Halves of fewer bits have too few round functions to tell epochs apart. */
    MIN_HALF_BITS = 4
};

/* Sebastiano Vigna's splitmix64 step: a bijection of 64 bits that mixes all of them. */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t rrfp_sample_order(uint64_t seed, uint64_t epoch, uint64_t count, uint64_t place)
{
    unsigned half_bits = MIN_HALF_BITS;
    uint64_t keys[ROUNDS];
    uint64_t key = mix(mix(seed) ^ epoch);

    assert(count >= 1 && count <= UINT64_C(1) << 62 && place < count);
    while (count - 1 >= UINT64_C(1) << (2 * half_bits)) {
        half_bits++;
    }
    for (int round = 0; round < ROUNDS; round++) {
        key = mix(key);
        keys[round] = key;
    }
    const uint64_t mask = (UINT64_C(1) << half_bits) - 1;
    do {
        uint64_t left = place >> half_bits;
        uint64_t right = place & mask;
        for (int round = 0; round < ROUNDS; round++) {
            uint64_t next = left ^ (mix(keys[round] ^ right) & mask);
            left = right;
            right = next;
        }
        place = (left << half_bits) | right;
    } while (place >= count);
    return place;
}
