/* futex.h - sleeping on a 32-bit word of this process until somebody changes it (Linux). */
#ifndef RRFP_FUTEX_H
#define RRFP_FUTEX_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Sleeps while *word is `value`, at most `timeout` (NULL: without end); may return early. */
static inline void rrfp_futex_wait(_Atomic uint32_t *word, uint32_t value,
                                   const struct timespec *timeout)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout, NULL, 0);
}

static inline void rrfp_futex_wake(_Atomic uint32_t *word, int sleepers)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, sleepers, NULL, NULL, 0);
}

#endif /* RRFP_FUTEX_H */
