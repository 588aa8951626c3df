/*
 * block_pool.h - equal blocks of memory, handed out and taken back in LIFO order.
 *
 *   +---------+---------+---------+ ...      one mapping, reserved at create;
 *   | block 0 | block 1 | block 2 |          a page costs memory only once used,
 *   +---------+---------+---------+          LIFO keeps the used ones few and warm
 *
 * Belongs to one thread.  In debug builds a returned block is filled with NaN,
 * so a use after release shows in the results.
 */
#ifndef RRFP_BLOCK_POOL_H
#define RRFP_BLOCK_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "rrfp/status.h"

typedef struct rrfp_block_pool {
    unsigned char *base;
    size_t block_bytes; /* rounded up to 64 */
    size_t count, free_count;
    size_t mapped_bytes;
    uint32_t *free_list;
} rrfp_block_pool;

/* `pool` is the caller's; zero blocks or zero bytes are legal and hand out NULL. */
rrfp_status rrfp_block_pool_init(rrfp_block_pool *pool, size_t block_bytes, size_t count,
                                 const char *what, rrfp_error *error);
void rrfp_block_pool_free(rrfp_block_pool *pool); /* a zeroed pool is fine */

/* NULL when the pool is empty: a broken budget, the caller reports it. */
void *rrfp_block_pool_take(rrfp_block_pool *pool);
void rrfp_block_pool_give(rrfp_block_pool *pool, void *block); /* NULL is fine */

#endif /* RRFP_BLOCK_POOL_H */
