/* ranks.c - see ranks.h. */
#include "train/ranks.h"

#include "launch/mpi_rendezvous.h"

#include <string.h>
#include <time.h>

static void on_failure(void *context, const rrfp_error *error)
{
    rrfp_ranks *ranks = context;
    rrfp_error full = *error;
    pthread_mutex_lock(&ranks->mutex);
    if (ranks->watcher != NULL) {
        rrfp_world_failure(ranks->world, &full); /* with what this rank was doing */
        ranks->watcher(ranks->context, &full);
    }
    pthread_mutex_unlock(&ranks->mutex);
}

rrfp_status rrfp_ranks_open(rrfp_ranks *ranks, double peer_timeout_s, rrfp_error *error)
{
    memset(ranks, 0, sizeof *ranks);
    ranks->peer_timeout_s = peer_timeout_s;
    pthread_mutex_init(&ranks->mutex, NULL);
    rrfp_status status = rrfp_mpi_rendezvous_wanted()
                             ? rrfp_mpi_rendezvous(&ranks->environment, error)
                             : rrfp_launch_environment_read(&ranks->environment, error);
    if (status != RRFP_OK || ranks->environment.size == 1) {
        return status;
    }
    rrfp_world_config config = {
        .environment = &ranks->environment,
        .peer_timeout_s = peer_timeout_s,
        .on_failure = on_failure,
        .context = ranks,
    };
    return rrfp_world_join(&config, &ranks->world, error);
}

void rrfp_ranks_close(rrfp_ranks *ranks)
{
    rrfp_world_leave(ranks->world);
    ranks->world = NULL;
    pthread_mutex_destroy(&ranks->mutex);
}

void rrfp_ranks_watch(rrfp_ranks *ranks, void (*watcher)(void *, const rrfp_error *),
                      void *context)
{
    rrfp_error error;
    pthread_mutex_lock(&ranks->mutex);
    ranks->watcher = watcher;
    ranks->context = context;
    if (watcher != NULL && rrfp_world_failure(ranks->world, &error) != RRFP_OK) {
        watcher(context, &error);
    }
    pthread_mutex_unlock(&ranks->mutex);
}

void rrfp_ranks_explain(rrfp_ranks *ranks, rrfp_error *error)
{
    const struct timespec nap = {0, 10000000};
    rrfp_error known;
    for (int i = 0; i < 200; i++) {
        if (rrfp_world_failure(ranks->world, &known) != RRFP_OK) {
            *error = known;
            return;
        }
        nanosleep(&nap, NULL);
    }
}
