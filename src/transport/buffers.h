/* buffers.h - memory for the payloads of messages. */
#ifndef RRFP_TRANSPORT_BUFFERS_H
#define RRFP_TRANSPORT_BUFFERS_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { RRFP_CACHE_LINE_BYTES = 64, RRFP_HUGE_PAGE_BYTES = 2 << 20 };

/*
 * `bytes` bytes at a cache line's begin, for free(); NULL when there is no memory.  Large ones lie
 * in huge pages where the system gives them: the kernel copies a payload between two processes
 * page by page, and 512 pages of 4 KiB cost it as much again as the copying.
 */
static inline void *rrfp_message_buffers(size_t bytes)
{
    size_t align = bytes < RRFP_HUGE_PAGE_BYTES ? RRFP_CACHE_LINE_BYTES : RRFP_HUGE_PAGE_BYTES;
    if (bytes > SIZE_MAX - align) {
        return NULL;
    }
    size_t rounded = (bytes + align - 1) / align * align;
    void *memory = aligned_alloc(align, rounded > 0 ? rounded : align);
    if (memory != NULL && align == RRFP_HUGE_PAGE_BYTES) {
        (void)madvise(memory, rounded, MADV_HUGEPAGE); /* a wish: small pages do as well */
    }
    return memory;
}

#endif /* RRFP_TRANSPORT_BUFFERS_H */
