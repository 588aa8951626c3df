/* world_internal.h - what the files behind world.h share. */
#ifndef RRFP_WORLD_INTERNAL_H
#define RRFP_WORLD_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "launch/world.h"

enum { RRFP_FRAME_MAGIC = 0x57465252 /* "RRFW" */, RRFP_FRAME_VERSION = 1,
       RRFP_FRAME_MOST = 1 << 20, RRFP_INBOX_MOST = 32 };

typedef enum rrfp_frame_kind {
    RRFP_FRAME_CHALLENGE = 1, /* rank 0: a number */
    RRFP_FRAME_HELLO,         /* the other: who it is, a number, proof */
    RRFP_FRAME_WELCOME,       /* rank 0: proof, run id */
    RRFP_FRAME_START,         /* rank 0: all are here */
    RRFP_FRAME_DATA,          /* of a collective */
    RRFP_FRAME_ALIVE,         /* text: what the rank does */
    RRFP_FRAME_FAIL,          /* text: who failed, and how */
    RRFP_FRAME_BYE
} rrfp_frame_kind;

typedef struct rrfp_frame_header { /* 32 bytes, little-endian */
    uint32_t magic;
    uint8_t version, kind;
    uint16_t rank; /* of the sender */
    uint32_t bytes; /* that follow */
    uint32_t zero;
    uint64_t total; /* DATA: of the whole piece */
    uint64_t step;  /* where the sender is */
} rrfp_frame_header;

typedef struct rrfp_frame { /* one that waits to be taken */
    struct rrfp_frame *next;
    rrfp_frame_header header;
    unsigned char body[];
} rrfp_frame;

typedef struct rrfp_link {
    int fd;           /* -1: none; open until the world ends */
    atomic_bool lost; /* nothing comes or goes any more */
    pthread_mutex_t send_mutex;
    bool broken; /* a frame was cut off in the middle: nothing can follow it */
    atomic_bool said_bye;
    uint64_t said_alive_ns, heard_ns; /* the control thread's */
    /* the control thread's: the frame that is coming in */
    rrfp_frame_header header;
    size_t got; /* of header and body */
    rrfp_frame *incoming;
    /* under world->mutex */
    rrfp_frame *first, *last;
    uint32_t waiting;
    uint64_t step; /* what the rank last said of itself */
    char doing[96];
} rrfp_link;

struct rrfp_world {
    uint32_t rank, size;
    uint64_t run_id, timeout_ns;
    uint8_t secret[RRFP_SECRET_BYTES];
    void (*on_failure)(void *, const rrfp_error *);
    void *context;
    rrfp_link *links; /* [size]; rank 0 has all but its own, others have 0 */
    pthread_t control;
    bool started;
    int wake_fd;
    pthread_mutex_t mutex;
    pthread_cond_t arrived;
    atomic_bool failed, leaving;
    bool fail_told, failure_mine; /* the control thread's; under mutex */
    rrfp_error failure;           /* under mutex */
    atomic_uint_fast64_t step;
    _Atomic(const char *) doing;
};

uint64_t rrfp_world_now_ns(void);
/* Nonblocking, no delay, keepalive. */
rrfp_status rrfp_world_prepare_socket(int fd, uint64_t timeout_ns, rrfp_error *error);
static inline bool rrfp_link_is_open(rrfp_link *link)
{
    return link->fd >= 0 && !atomic_load(&link->lost);
}
/* Sends a whole frame, waiting for room; false when the link is gone or takes nothing. */
bool rrfp_world_send_frame(rrfp_world *world, uint32_t rank, rrfp_frame_kind kind,
                           const void *body, size_t bytes, uint64_t total);
/* Magic, version, kind, rank and size; NULL or which field is wrong. */
const char *rrfp_frame_fault(const rrfp_world *world, const rrfp_frame_header *header,
                             uint32_t from);
/* Records the first failure and wakes everybody.  `mine`: of this rank itself. */
void rrfp_world_set_failure(rrfp_world *world, bool mine, const char *format, ...);

/* world_join.c: fills links and run_id */
rrfp_status rrfp_world_connect(rrfp_world *world, const rrfp_launch_environment *environment,
                               rrfp_error *error);

/* world_control.c */
void *rrfp_world_control(void *world);

#endif /* RRFP_WORLD_INTERNAL_H */
