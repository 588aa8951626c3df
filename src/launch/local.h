/*
 * local.h - all ranks of a run as processes of this host.
 *
 * Thread-safety: one call at a time, from a process without other threads.
 */
#ifndef RRFP_LAUNCH_LOCAL_H
#define RRFP_LAUNCH_LOCAL_H

#include "rrfp/status.h"

typedef struct rrfp_local_launch {
    unsigned processes;
    char *const *arguments;  /* of this program, NULL at the end: every process gets them */
    unsigned restarts;       /* how often to begin again after a failure */
    const char *save;        /* a restart gets --load SAVE once a checkpoint is there; "" for none */
    double peer_timeout_s;   /* what the ranks give each other; then five seconds, then SIGKILL */
} rrfp_local_launch;

/*
 * Starts this program `processes` times with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
 * MASTER_ADDR, MASTER_PORT, a fresh RRFP_SECRET and, for rank 0, a listening socket; passes
 * SIGTERM and SIGINT on; waits for all.  *exit_code: 0 when all ended with 0; 3 when one was killed
 * by a signal or lost another; else the first other code.  The children end with this process.
 */
rrfp_status rrfp_launch_local(const rrfp_local_launch *launch, int *exit_code, rrfp_error *error);

#endif /* RRFP_LAUNCH_LOCAL_H */
