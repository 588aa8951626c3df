/*
 * bitset.h - sets of small integers with O(1) smallest member.
 *
 * A tree of 64-bit words; a bit of an upper word says that the word below it
 * is not zero:
 *
 *      level 2   [ 1 word ]                     up to 64^3 members
 *      level 1   [ w w w ... ]                  one bit per word of level 0
 *      level 0   [ w w w w w w w w w ... ]      one bit per member
 *
 * One layout describes any number of sets of the same size; the words of a set
 * live where the caller puts them.  No pointer inside, equal sets have equal
 * bytes.
 */
#ifndef RRFP_CORE_BITSET_H
#define RRFP_CORE_BITSET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RRFP_BITSET_LEVELS = 5 }; /* 64^5 > 2^30 members */

#define RRFP_BITSET_NONE UINT32_MAX

typedef struct rrfp_bitset_layout {
    uint32_t levels;
    uint32_t size;                       /* members are [0, size) */
    uint32_t offset[RRFP_BITSET_LEVELS]; /* first word of each level */
    uint32_t words;                      /* of one set */
} rrfp_bitset_layout;

static inline rrfp_bitset_layout rrfp_bitset_layout_make(uint32_t size)
{
    rrfp_bitset_layout layout = {.size = size};
    uint32_t bits = size;
    do {
        uint32_t words = bits / 64 + (bits % 64 != 0);
        if (words == 0) {
            words = 1;
        }
        layout.offset[layout.levels++] = layout.words;
        layout.words += words;
        bits = words;
    } while (bits > 1);
    return layout;
}

static inline bool rrfp_bitset_has(const uint64_t *set, uint32_t member)
{
    return (set[member / 64] >> (member % 64)) & 1;
}

static inline void rrfp_bitset_add(const rrfp_bitset_layout *layout, uint64_t *set, uint32_t member)
{
    for (uint32_t level = 0; level < layout->levels; level++) {
        uint64_t *word = &set[layout->offset[level] + member / 64];
        uint64_t before = *word;
        *word |= UINT64_C(1) << (member % 64);
        if (before != 0) {
            return;
        }
        member /= 64;
    }
}

static inline void rrfp_bitset_remove(const rrfp_bitset_layout *layout, uint64_t *set,
                                      uint32_t member)
{
    for (uint32_t level = 0; level < layout->levels; level++) {
        uint64_t *word = &set[layout->offset[level] + member / 64];
        *word &= ~(UINT64_C(1) << (member % 64));
        if (*word != 0) {
            return;
        }
        member /= 64;
    }
}

/* Smallest member, or RRFP_BITSET_NONE. */
static inline uint32_t rrfp_bitset_first(const rrfp_bitset_layout *layout, const uint64_t *set)
{
    uint32_t index = 0;
    for (uint32_t level = layout->levels; level-- > 0;) {
        uint64_t word = set[layout->offset[level] + index];
        if (word == 0) {
            return RRFP_BITSET_NONE;
        }
        index = index * 64 + (uint32_t)__builtin_ctzll(word);
    }
    return index;
}

/* Smallest member above `member`, or RRFP_BITSET_NONE. */
static inline uint32_t rrfp_bitset_next(const rrfp_bitset_layout *layout, const uint64_t *set,
                                        uint32_t member)
{
    for (uint32_t level = 0; level < layout->levels; level++) {
        uint32_t bit = member % 64;
        uint64_t word = set[layout->offset[level] + member / 64];
        word = bit == 63 ? 0 : word & (UINT64_MAX << (bit + 1));
        if (word != 0) {
            uint32_t index = member / 64 * 64 + (uint32_t)__builtin_ctzll(word);
            while (level-- > 0) {
                index = index * 64 + (uint32_t)__builtin_ctzll(set[layout->offset[level] + index]);
            }
            return index;
        }
        member /= 64;
    }
    return RRFP_BITSET_NONE;
}

#endif /* RRFP_CORE_BITSET_H */
