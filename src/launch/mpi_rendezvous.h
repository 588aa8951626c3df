/*
 * mpi_rendezvous.h - where rank 0 is, told by MPI: `mpirun -n N rrfp train ...` needs no variables.
 *
 * MPI is started, used for one broadcast, and ended; it takes no part in training.
 */
#ifndef RRFP_MPI_RENDEZVOUS_H
#define RRFP_MPI_RENDEZVOUS_H

#include "launch/environment.h"

/* Built in, started by an MPI launcher as one of several, and MASTER_ADDR says nothing else. */
bool rrfp_mpi_rendezvous_wanted(void);

/* Fills rank, size, local rank and size, a fresh address, port and secret, and rank 0's socket.
 * Called once, by all ranks. */
rrfp_status rrfp_mpi_rendezvous(rrfp_launch_environment *environment, rrfp_error *error);

/* "Open MPI 4.1.4", or NULL when it is not built in. */
const char *rrfp_mpi_name(void);

#endif /* RRFP_MPI_RENDEZVOUS_H */
