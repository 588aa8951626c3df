/*
 * cli.h - the subcommands of the program.
 *
 * Each takes the words after its name (argv[0] is the first of them) and
 * returns the exit code: 0 success, 1 the run failed, 2 wrong usage.
 */
#ifndef RRFP_CLI_H
#define RRFP_CLI_H

#include "rrfp/status.h"

enum { RRFP_EXIT_OK = 0, RRFP_EXIT_FAILED = 1, RRFP_EXIT_USAGE = 2 };

int rrfp_cli_train(int argc, char **argv);
int rrfp_cli_eval(int argc, char **argv);
int rrfp_cli_generate(int argc, char **argv);
int rrfp_cli_hint(int argc, char **argv);
int rrfp_cli_doctor(int argc, char **argv);
/* The words after --layout. */
int rrfp_cli_doctor_layout(int argc, char **argv);
int rrfp_cli_trace(int argc, char **argv);

/* Prints "rrfp: <text>" on standard error and returns the exit code of the status. */
int rrfp_cli_fail(const rrfp_error *error);

#endif /* RRFP_CLI_H */
