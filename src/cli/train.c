/* train.c - `rrfp train`. */
#include "cli/cli.h"
#include "cli/run.h"
#include "train/loop.h"

int rrfp_cli_train(int argc, char **argv)
{
    return rrfp_cli_run(RRFP_COMMAND_TRAIN, "train", argc, argv, rrfp_train_run);
}
