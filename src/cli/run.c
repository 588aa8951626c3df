/* run.c - see run.h. */
#include "cli/run.h"

#include <stdlib.h>

int rrfp_cli_run(rrfp_command command, const char *name, int argc, char **argv, rrfp_run_fn run)
{
    rrfp_options *options = malloc(sizeof *options);
    rrfp_error error = {RRFP_OK, ""};
    bool help = false;
    int code = 0;
    if (options == NULL) {
        fprintf(stderr, "rrfp %s: out of memory\n", name);
        return 1;
    }
    rrfp_options_defaults(options);
    rrfp_status status = rrfp_options_parse(options, command, argc, argv, &help, &error);
    if (status == RRFP_OK && !help) {
        status = rrfp_options_check(options, command, &error);
    }
    if (status != RRFP_OK) {
        code = 2;
    } else if (help) {
        rrfp_options_print_help(command, stdout);
    } else if (options->print_config) {
        rrfp_options_print_toml(options, command, stdout);
    } else {
        status = run(options, stdout, &error);
        code = status == RRFP_OK                                             ? 0
               : status == RRFP_ERR_INVALID || status == RRFP_ERR_INFEASIBLE ? 2
               : status == RRFP_ERR_PEER                                     ? 3
                                                                             : 1;
    }
    if (status != RRFP_OK) {
        fflush(stdout);
        fprintf(stderr, "rrfp %s: %s\n", name, error.text);
    }
    if (fflush(stdout) != 0 && code == 0) {
        fprintf(stderr, "rrfp %s: cannot write the output\n", name);
        code = 1;
    }
    free(options);
    return code;
}
