/* block_pool.c - see block_pool.h. */
#include "train/block_pool.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE_PAGE_BYTES = 2 << 20 };

rrfp_status rrfp_block_pool_init(rrfp_block_pool *pool, size_t block_bytes, size_t count,
                                 const char *what, rrfp_error *error)
{
    memset(pool, 0, sizeof *pool);
    pool->block_bytes = (block_bytes + 63) / 64 * 64;
    if (pool->block_bytes == 0 || count == 0) {
        return RRFP_OK;
    }
    pool->count = count;
    if (count > UINT32_MAX || pool->block_bytes > SIZE_MAX / count) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM,
                              "%s: %zu blocks of %zu bytes do not fit the address space; lower "
                              "--max-inflight or the micro batch",
                              what, count, pool->block_bytes);
    }
    pool->mapped_bytes = pool->block_bytes * count;
    void *base = mmap(NULL, pool->mapped_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pool->free_list = malloc(count * sizeof *pool->free_list);
    if (base == MAP_FAILED || pool->free_list == NULL) {
        if (base != MAP_FAILED) {
            munmap(base, pool->mapped_bytes);
        }
        free(pool->free_list);
        memset(pool, 0, sizeof *pool);
        return rrfp_error_set(error, RRFP_ERR_NOMEM,
                              "%s: cannot map %zu blocks of %zu bytes; lower --max-inflight or "
                              "the micro batch",
                              what, count, block_bytes);
    }
    pool->base = base;
    if (pool->mapped_bytes >= HUGE_PAGE_BYTES) {
        /* Kernels and copies between processes walk these; a wish, small pages do as well. */
        (void)madvise(base, pool->mapped_bytes, MADV_HUGEPAGE);
    }
    for (size_t i = 0; i < count; i++) {
        pool->free_list[i] = (uint32_t)(count - 1 - i);
    }
    pool->free_count = count;
    return RRFP_OK;
}

void rrfp_block_pool_free(rrfp_block_pool *pool)
{
    if (pool->base != NULL) {
        munmap(pool->base, pool->mapped_bytes);
    }
    free(pool->free_list);
    memset(pool, 0, sizeof *pool);
}

void *rrfp_block_pool_take(rrfp_block_pool *pool)
{
    if (pool->free_count == 0) {
        return NULL;
    }
    return pool->base + pool->free_list[--pool->free_count] * pool->block_bytes;
}

void rrfp_block_pool_give(rrfp_block_pool *pool, void *block)
{
    if (block == NULL) {
        return;
    }
    size_t offset = (size_t)((unsigned char *)block - pool->base);
    assert(offset % pool->block_bytes == 0 && offset / pool->block_bytes < pool->count);
    assert(pool->free_count < pool->count);
#ifdef RRFP_DEBUG
    memset(block, 0xff, pool->block_bytes);
#endif
    pool->free_list[pool->free_count++] = (uint32_t)(offset / pool->block_bytes);
}
