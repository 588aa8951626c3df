/* mpi_rendezvous.c - see mpi_rendezvous.h. */
#include "launch/mpi_rendezvous.h"

#include <stdlib.h>
#include <string.h>

#ifdef RRFP_HAVE_MPI

#include <arpa/inet.h>
#include <errno.h>
#include <mpi.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct rendezvous { /* what rank 0 tells */
    char address[256];
    uint16_t port;
    uint8_t secret[RRFP_SECRET_BYTES];
    char problem[256]; /* "" when there is none */
} rendezvous;

bool rrfp_mpi_rendezvous_wanted(void)
{
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"};
    bool launched = false;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        launched = launched || getenv(sizes[i]) != NULL;
    }
    return launched && getenv("MASTER_ADDR") == NULL && getenv("WORLD_SIZE") == NULL;
}

const char *rrfp_mpi_name(void)
{
#ifdef OMPI_MAJOR_VERSION
    static char name[32];
    snprintf(name, sizeof name, "Open MPI %d.%d.%d", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION,
             OMPI_RELEASE_VERSION);
    return name;
#else
    return "MPI";
#endif
}

/* A socket that other hosts can reach, unless all ranks are on this one. */
static int open_listener(bool one_host, rendezvous *told)
{
    char host[256] = "127.0.0.1";
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
    if (!one_host) {
        gethostname(host, sizeof host - 1);
        int code = getaddrinfo(host, NULL, &hints, &found);
        if (code != 0) {
            snprintf(told->problem, sizeof told->problem,
                     "the name of this host, %.100s, has no address: %s; set MASTER_ADDR and "
                     "MASTER_PORT",
                     host, gai_strerror(code));
            return -1;
        }
        memcpy(&address.sin_addr, &((struct sockaddr_in *)(void *)found->ai_addr)->sin_addr,
               sizeof address.sin_addr);
        freeaddrinfo(found);
    }
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) != 0 || listen(fd, 1024) != 0 ||
        inet_ntop(AF_INET, &address.sin_addr, told->address, sizeof told->address) == NULL) {
        snprintf(told->problem, sizeof told->problem, "rank 0 cannot listen on %.100s: %s", host,
                 strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return -1;
    }
    told->port = ntohs(address.sin_port);
    return fd;
}

rrfp_status rrfp_mpi_rendezvous(rrfp_launch_environment *environment, rrfp_error *error)
{
    rrfp_launch_environment e = {.listen_fd = -1, .join_timeout_s = 120.0};
    rendezvous told;
    MPI_Comm host;
    int rank, size, local_rank, local_size;
    memset(&told, 0, sizeof told);
    if (MPI_Init(NULL, NULL) != MPI_SUCCESS) { /* by default it does not come back */
        return rrfp_error_set(error, RRFP_ERR_IO, "MPI cannot start; set MASTER_ADDR and "
                                                  "MASTER_PORT to do without");
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &local_rank);
    MPI_Comm_size(host, &local_size);
    MPI_Comm_free(&host);
    e.rank = (uint32_t)rank;
    e.size = (uint32_t)size;
    e.local_rank = (uint32_t)local_rank;
    e.local_size = (uint32_t)local_size;
    if (rank == 0) {
        if (getrandom(told.secret, sizeof told.secret, 0) != sizeof told.secret) {
            snprintf(told.problem, sizeof told.problem, "cannot draw a secret");
        } else if (size > 1) {
            e.listen_fd = open_listener(local_size == size, &told);
        }
    }
    MPI_Bcast(&told, sizeof told, MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Finalize();
    if (told.problem[0] != '\0') {
        return rrfp_error_set(error, RRFP_ERR_IO, "%s", told.problem);
    }
    memcpy(e.master_address, told.address, sizeof e.master_address);
    memcpy(e.secret, told.secret, sizeof e.secret);
    e.master_port = told.port;
    *environment = e;
    return RRFP_OK;
}

#else

bool rrfp_mpi_rendezvous_wanted(void)
{
    return false;
}

const char *rrfp_mpi_name(void)
{
    return NULL;
}

rrfp_status rrfp_mpi_rendezvous(rrfp_launch_environment *environment, rrfp_error *error)
{
    (void)environment;
    return rrfp_error_set(error, RRFP_ERR_UNSUPPORTED,
                          "this build lacks MPI: set MASTER_ADDR and MASTER_PORT");
}

#endif
