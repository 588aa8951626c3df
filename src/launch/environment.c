/* environment.c - see environment.h. */
#include "launch/environment.h"

#include <errno.h>
#include <nettle/base16.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rrfp/task.h"

typedef struct naming {
    const char *rank, *size, *local_rank, *local_size; /* NULL: the launcher does not say */
} naming;

static const naming launchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", NULL, NULL},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL},
};

static const char *variable(const char *name)
{
    const char *text = name == NULL ? NULL : getenv(name);
    return text == NULL || text[0] == '\0' ? NULL : text;
}

/* *value stays when the variable is not set. */
static rrfp_status read_number(const char *name, uint32_t least, uint32_t most, uint32_t *value,
                               rrfp_error *error)
{
    const char *text = variable(name);
    char *end;
    if (text == NULL) {
        return RRFP_OK;
    }
    errno = 0;
    unsigned long read = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || read < least ||
        read > most) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "environment: %s=%.60s is not a number from %u to %u; the launcher "
                              "sets it",
                              name, text, least, most);
    }
    *value = (uint32_t)read;
    return RRFP_OK;
}

static rrfp_status read_ranks(rrfp_launch_environment *e, const naming *by, rrfp_error *error)
{
    rrfp_status status = read_number(by->size, 1, RRFP_MAX_STAGES, &e->size, error);
    if (status == RRFP_OK && variable(by->rank) == NULL) {
        status = rrfp_error_set(error, RRFP_ERR_INVALID,
                                "environment: %s is set and %s is not; set both or neither",
                                by->size, by->rank);
    }
    if (status == RRFP_OK) {
        status = read_number(by->rank, 0, RRFP_MAX_STAGES - 1, &e->rank, error);
    }
    if (status == RRFP_OK && e->rank >= e->size) {
        status = rrfp_error_set(error, RRFP_ERR_INVALID,
                                "environment: %s=%u, but %s=%u; ranks count from 0", by->rank,
                                e->rank, by->size, e->size);
    }
    e->local_rank = e->rank;
    e->local_size = e->size; /* a guess that only costs spinning */
    if (status == RRFP_OK) {
        status = read_number(by->local_rank, 0, RRFP_MAX_STAGES - 1, &e->local_rank, error);
    }
    if (status == RRFP_OK) {
        status = read_number(by->local_size, 1, RRFP_MAX_STAGES, &e->local_size, error);
    }
    return status;
}

bool rrfp_launch_is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "localhost") == 0 ||
           strcmp(address, "::1") == 0;
}

static rrfp_status read_secret(rrfp_launch_environment *e, rrfp_error *error)
{
    const char *text = variable("RRFP_SECRET");
    if (text == NULL && !rrfp_launch_is_loopback(e->master_address)) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "environment: RRFP_SECRET is not set, and rank 0 listens on %s for "
                              "other hosts: set it to the same 64 hexadecimal digits on all ranks "
                              "(openssl rand -hex 32)",
                              e->master_address);
    }
    if (text == NULL) {
        char seed[64];
        struct sha256_ctx context;
        int length = snprintf(seed, sizeof seed, "rrfp %u %u", (unsigned)getuid(), e->master_port);
        sha256_init(&context);
        sha256_update(&context, (size_t)length, (const uint8_t *)seed);
        sha256_digest(&context, RRFP_SECRET_BYTES, e->secret);
        return RRFP_OK;
    }
    struct base16_decode_ctx hex;
    size_t bytes = 0;
    base16_decode_init(&hex);
    if (strlen(text) != 2 * RRFP_SECRET_BYTES ||
        !base16_decode_update(&hex, &bytes, e->secret, 2 * RRFP_SECRET_BYTES, text) ||
        bytes != RRFP_SECRET_BYTES) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "environment: RRFP_SECRET is not 64 hexadecimal digits "
                              "(openssl rand -hex 32)");
    }
    return RRFP_OK;
}

static rrfp_status read_master(rrfp_launch_environment *e, rrfp_error *error)
{
    const char *address = variable("MASTER_ADDR"), *fd = variable("RRFP_LISTEN_FD");
    uint32_t port = 0, listen_fd = UINT32_MAX, seconds = 120;
    if (address == NULL || variable("MASTER_PORT") == NULL) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "environment: %u ranks, but %s is not set: give MASTER_ADDR and "
                              "MASTER_PORT, where rank 0 shall listen",
                              e->size, address == NULL ? "MASTER_ADDR" : "MASTER_PORT");
    }
    if (strlen(address) >= sizeof e->master_address) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "environment: MASTER_ADDR=%.60s... is too long", address);
    }
    strcpy(e->master_address, address);
    rrfp_status status = read_number("MASTER_PORT", 1, 65535, &port, error);
    if (status == RRFP_OK && fd != NULL && e->rank == 0) {
        status = read_number("RRFP_LISTEN_FD", 3, 65535, &listen_fd, error);
        e->listen_fd = (int)listen_fd;
    }
    if (status == RRFP_OK) {
        status = read_number("RRFP_JOIN_TIMEOUT", 1, 86400, &seconds, error);
    }
    e->master_port = (uint16_t)port;
    e->join_timeout_s = seconds;
    return status == RRFP_OK ? read_secret(e, error) : status;
}

rrfp_status rrfp_launch_environment_read(rrfp_launch_environment *environment, rrfp_error *error)
{
    rrfp_launch_environment e = {
        .size = 1, .local_size = 1, .listen_fd = -1, .join_timeout_s = 120.0};
    rrfp_status status = RRFP_OK;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        if (variable(launchers[i].size) != NULL) {
            status = read_ranks(&e, &launchers[i], error);
            break;
        }
    }
    if (status == RRFP_OK && e.size > 1) {
        status = read_master(&e, error);
    }
    if (status == RRFP_OK) {
        *environment = e;
    }
    return status;
}
