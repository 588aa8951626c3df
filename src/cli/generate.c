/* generate.c - `rrfp generate`. */
#include "cli/cli.h"
#include "cli/run.h"
#include "train/loop.h"

int rrfp_cli_generate(int argc, char **argv)
{
    return rrfp_cli_run(RRFP_COMMAND_GENERATE, "generate", argc, argv, rrfp_generate_run);
}
