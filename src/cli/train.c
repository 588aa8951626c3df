/* train.c - `rrfp train`: in this process, or as the start of several. */
#include "cli/cli.h"
#include "cli/run.h"
#include "launch/environment.h"
#include "launch/local.h"
#include "launch/mpi_rendezvous.h"
#include "train/loop.h"

static char *const *arguments; /* of the program, for the processes that it starts */
static int launched_code;

static rrfp_status run(const rrfp_options *options, FILE *out, rrfp_error *error)
{
    rrfp_launch_environment environment;
    if (options->nproc == 1 || rrfp_mpi_rendezvous_wanted()) {
        return rrfp_train_run(options, out, error);
    }
    rrfp_status status = rrfp_launch_environment_read(&environment, error);
    if (status != RRFP_OK || environment.size == options->nproc) {
        return status == RRFP_OK ? rrfp_train_run(options, out, error) : status;
    }
    if (environment.size != 1) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "--nproc %u, but a launcher started this as one of %u processes: "
                              "leave --nproc out",
                              options->nproc, environment.size);
    }
    if (options->nproc != options->pipeline_model_parallel_size) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "--nproc %u for %u pipeline stages: give "
                              "--pipeline-model-parallel-size %u, or as many processes as stages",
                              options->nproc, options->pipeline_model_parallel_size,
                              options->nproc);
    }
    rrfp_local_launch launch = {.processes = options->nproc,
                                .arguments = arguments,
                                .restarts = options->restarts,
                                .save = options->save,
                                .peer_timeout_s = options->peer_timeout};
    return rrfp_launch_local(&launch, &launched_code, error);
}

int rrfp_cli_train(int argc, char **argv)
{
    arguments = argv - 2; /* before a command's arguments stand the program's name and its own */
    int code = rrfp_cli_run(RRFP_COMMAND_TRAIN, "train", argc, argv, run);
    return code != 0 ? code : launched_code;
}
