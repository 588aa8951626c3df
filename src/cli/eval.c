/* eval.c - `rrfp eval`. */
#include "cli/cli.h"
#include "cli/run.h"
#include "train/loop.h"

int rrfp_cli_eval(int argc, char **argv)
{
    return rrfp_cli_run(RRFP_COMMAND_EVAL, "eval", argc, argv, rrfp_eval_run);
}
