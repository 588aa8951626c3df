/*
 * ranks.h - this process among those of a run: rank r runs stage r.
 *
 * Thread-safety: opened and closed by one thread; a failure of another rank is passed on to the
 * watching pipeline by the control thread.
 */
#ifndef RRFP_RANKS_H
#define RRFP_RANKS_H

#include <pthread.h>

#include "launch/environment.h"
#include "launch/world.h"

typedef struct rrfp_ranks {
    rrfp_world *world; /* NULL: this process is alone */
    rrfp_launch_environment environment;
    double peer_timeout_s;
    pthread_mutex_t mutex; /* guards what follows */
    void (*watcher)(void *context, const rrfp_error *error);
    void *context;
} rrfp_ranks;

/*
 * Joins the world that the environment describes, if it describes one of more than one process.
 * `peer_timeout_s`: silence of a rank that is taken for its death.
 */
rrfp_status rrfp_ranks_open(rrfp_ranks *ranks, double peer_timeout_s, rrfp_error *error);
void rrfp_ranks_close(rrfp_ranks *ranks); /* orderly: the others do not take it for a failure */

/* Who is told when a rank fails, at once if one has already; NULL ends it. */
void rrfp_ranks_watch(rrfp_ranks *ranks, void (*watcher)(void *, const rrfp_error *),
                      void *context);

/* The transport lost a peer: `error` becomes what the world knows of it, if that comes to know in
 * two seconds. */
void rrfp_ranks_explain(rrfp_ranks *ranks, rrfp_error *error);

#endif /* RRFP_RANKS_H */
