/* launch_environment.c - who a process is, by what its launcher sets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "launch/environment.h"

static const char *const names[] = {
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "RRFP_SECRET", "RRFP_LISTEN_FD", "RRFP_JOIN_TIMEOUT", "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_RANK",
    "PMI_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"};

#define HEX16 "00112233445566778899aabbccddeeff"
#define MASTER "MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"

static const struct {
    const char *set;
    const char *wrong; /* part of the error; NULL: fine, as follows */
    uint32_t rank, size, local_rank, local_size;
} rows[] = {
    {"", NULL, 0, 1, 0, 1},
    {"WORLD_SIZE=1 RANK=0", NULL, 0, 1, 0, 1},
    {"WORLD_SIZE=4 RANK=3 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 " MASTER, NULL, 3, 4, 1, 2},
    {"WORLD_SIZE=4 RANK=3 " MASTER, NULL, 3, 4, 3, 4},
    {"OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_LOCAL_RANK=0 "
     "OMPI_COMM_WORLD_LOCAL_SIZE=2 " MASTER, NULL, 2, 8, 0, 2},
    {"PMI_SIZE=2 PMI_RANK=1 " MASTER, NULL, 1, 2, 1, 2},
    {"SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_LOCALID=0 " MASTER, NULL, 1, 2, 0, 2},
    {"WORLD_SIZE=2 RANK=1 OMPI_COMM_WORLD_SIZE=9 " MASTER, NULL, 1, 2, 1, 2}, /* first one wins */
    {"WORLD_SIZE=2 RANK=1 MASTER_ADDR=10.0.0.1 MASTER_PORT=1 RRFP_SECRET=" HEX16 HEX16, NULL, 1, 2,
     1, 2},
    {"WORLD_SIZE=two", "WORLD_SIZE=two is not a number", 0, 0, 0, 0},
    {"WORLD_SIZE=-1", "WORLD_SIZE=-1 is not", 0, 0, 0, 0},
    {"WORLD_SIZE=0 RANK=0", "from 1 to", 0, 0, 0, 0},
    {"WORLD_SIZE=99999999999999999999 RANK=0", "is not a number", 0, 0, 0, 0},
    {"WORLD_SIZE=2", "WORLD_SIZE is set and RANK is not", 0, 0, 0, 0},
    {"WORLD_SIZE=2 RANK=2 " MASTER, "RANK=2, but WORLD_SIZE=2", 0, 0, 0, 0},
    {"WORLD_SIZE=2 RANK=0", "MASTER_ADDR is not set", 0, 0, 0, 0},
    {"WORLD_SIZE=2 RANK=0 MASTER_ADDR=localhost", "MASTER_PORT is not set", 0, 0, 0, 0},
    {"WORLD_SIZE=2 RANK=0 MASTER_ADDR=localhost MASTER_PORT=70000", "MASTER_PORT=70000", 0, 0, 0, 0},
    {"WORLD_SIZE=2 RANK=0 MASTER_ADDR=10.0.0.1 MASTER_PORT=1", "RRFP_SECRET is not set", 0, 0, 0, 0},
    {"WORLD_SIZE=2 RANK=0 RRFP_SECRET=12 " MASTER, "not 64 hexadecimal digits", 0, 0, 0, 0},
    {"WORLD_SIZE=2 RANK=0 RRFP_SECRET=" HEX16 "0011223344556677889Xaabbccddeeff " MASTER,
     "not 64 hexadecimal digits", 0, 0, 0, 0},
};

static void set_all(const char *text)
{
    char copy[512], *rest = copy;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        unsetenv(names[i]);
    }
    strcpy(copy, text);
    for (char *word; (word = strsep(&rest, " ")) != NULL;) {
        char *value = strchr(word, '=');
        if (value != NULL) {
            *value = '\0';
            setenv(word, value + 1, 1);
        }
    }
}

static void what_launchers_say(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rrfp_launch_environment e;
        rrfp_error error = {RRFP_OK, ""};
        set_all(rows[i].set);
        rrfp_status status = rrfp_launch_environment_read(&e, &error);
        if (rows[i].wrong != NULL) {
            if (status != RRFP_ERR_INVALID || strstr(error.text, rows[i].wrong) == NULL) {
                fail_msg("'%s': '%s', expected '%s'", rows[i].set, error.text, rows[i].wrong);
            }
            continue;
        }
        if (status != RRFP_OK || e.rank != rows[i].rank || e.size != rows[i].size ||
            e.local_rank != rows[i].local_rank || e.local_size != rows[i].local_size) {
            fail_msg("'%s': %s, rank %u of %u, here %u of %u", rows[i].set, error.text, e.rank,
                     e.size, e.local_rank, e.local_size);
        }
    }
}

static void secrets(void **state)
{
    (void)state;
    rrfp_launch_environment a, b;
    rrfp_error error;
    set_all("WORLD_SIZE=2 RANK=0 RRFP_SECRET=" HEX16 HEX16 " " MASTER);
    assert_int_equal(rrfp_launch_environment_read(&a, &error), RRFP_OK);
    assert_int_equal(a.secret[1], 0x11);
    assert_int_equal(a.secret[31], 0xff);
    set_all("WORLD_SIZE=2 RANK=0 " MASTER);
    assert_int_equal(rrfp_launch_environment_read(&a, &error), RRFP_OK);
    set_all("WORLD_SIZE=2 RANK=1 " MASTER);
    assert_int_equal(rrfp_launch_environment_read(&b, &error), RRFP_OK);
    assert_memory_equal(a.secret, b.secret, sizeof a.secret);
    set_all("WORLD_SIZE=2 RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29501");
    assert_int_equal(rrfp_launch_environment_read(&b, &error), RRFP_OK);
    assert_memory_not_equal(a.secret, b.secret, sizeof a.secret);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_launchers_say),
        cmocka_unit_test(secrets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
