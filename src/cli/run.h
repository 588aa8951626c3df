/* run.h - what train, eval and generate share: options in, one run, exit code. */
#ifndef RRFP_CLI_RUN_H
#define RRFP_CLI_RUN_H

#include <stdio.h>

#include "config/options.h"

typedef rrfp_status (*rrfp_run_fn)(const rrfp_options *options, FILE *out, rrfp_error *error);

/* Exit code: 0 done, 1 the run failed, 2 the command line or configuration is wrong, 3 another
 * process of the run failed. */
int rrfp_cli_run(rrfp_command command, const char *name, int argc, char **argv, rrfp_run_fn run);

#endif /* RRFP_CLI_RUN_H */
