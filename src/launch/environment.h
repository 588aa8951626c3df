/*
 * environment.h - who this process is among those of a run, as its launcher says.
 *
 * Thread-safety: reads the environment; call it before other threads change that.
 */
#ifndef RRFP_ENVIRONMENT_H
#define RRFP_ENVIRONMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "rrfp/status.h"

enum { RRFP_SECRET_BYTES = 32 };

typedef struct rrfp_launch_environment {
    uint32_t rank, size;             /* of the run; 0 of 1 when nothing is set */
    uint32_t local_rank, local_size; /* on this host */
    char master_address[256];        /* where rank 0 listens */
    uint16_t master_port;
    int listen_fd; /* rank 0: its listening socket, opened by the launcher, or -1 */
    uint8_t secret[RRFP_SECRET_BYTES];
    double join_timeout_s; /* for all ranks to come together */
} rrfp_launch_environment;

/*
 * Reads
 *   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE   (torchrun, and `rrfp train --nproc`), or
 *   OMPI_COMM_WORLD_RANK _SIZE _LOCAL_RANK _LOCAL_SIZE  (mpirun), or
 *   SLURM_PROCID SLURM_NTASKS SLURM_LOCALID             (srun, in a step of several tasks), or
 *   PMI_RANK PMI_SIZE                                   (MPICH's launchers)
 * and MASTER_ADDR, MASTER_PORT, RRFP_SECRET (64 hexadecimal digits), RRFP_JOIN_TIMEOUT (seconds,
 * 120).  On loopback the secret may be left out: it then follows from the port and the user.
 * Bad values are refused with the variable's name.
 */
rrfp_status rrfp_launch_environment_read(rrfp_launch_environment *environment, rrfp_error *error);

/* Does `address` (a name or a number) mean this host alone? */
bool rrfp_launch_is_loopback(const char *address);

#endif /* RRFP_ENVIRONMENT_H */
