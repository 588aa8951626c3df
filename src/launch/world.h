/*
 * world.h - the ranks of a run: small things they agree on, and who of them is still there.
 *
 *        rank 1 ─┐
 *        rank 2 ─┼─ TCP ─ rank 0          a star; what is large and frequent goes another way
 *        rank 3 ─┘
 *
 * A control thread of each process reads its links, says four times in the peer timeout that it is
 * alive and what it does, and sleeps otherwise.  A link that closes without a
 * goodbye, or is silent for the peer timeout, means that its rank failed; rank 0 tells the others.
 * Who joins proves that it knows the secret, and has rank 0 prove it (HMAC-SHA256 of fresh
 * numbers).  What follows is neither signed nor encrypted.
 *
 * Thread-safety: one thread at a time makes the collective calls, and all ranks make the same ones
 * in the same order; fail, failure and set_activity may be called by any.
 */
#ifndef RRFP_WORLD_H
#define RRFP_WORLD_H

#include <stddef.h>

#include "launch/environment.h"

typedef struct rrfp_world rrfp_world;

typedef struct rrfp_world_config {
    const rrfp_launch_environment *environment; /* borrowed during the call; size > 1 */
    double peer_timeout_s;
    /* Called once, on the control thread, when a rank has failed; may be NULL. */
    void (*on_failure)(void *context, const rrfp_error *error);
    void *context;
} rrfp_world_config;

/* Comes together with all others; RRFP_ERR_PEER names who is missing after the join timeout. */
rrfp_status rrfp_world_join(const rrfp_world_config *config, rrfp_world **out, rrfp_error *error);
/* Says goodbye, so that nobody takes it for a failure.  NULL is fine. */
void rrfp_world_leave(rrfp_world *world);

/* Drawn by rank 0, the same on all. */
uint64_t rrfp_world_run_id(const rrfp_world *world);

/* On rank 0, `part` sees what each rank gave, in the order of ranks; an error it returns ends the
 * call with it.  `data` is borrowed. */
typedef rrfp_status (*rrfp_world_part_fn)(void *context, uint32_t rank, const void *data,
                                          size_t bytes, rrfp_error *error);
rrfp_status rrfp_world_gather(rrfp_world *world, const void *mine, size_t bytes,
                              rrfp_world_part_fn part, void *context, rrfp_error *error);
/* Rank 0's `bytes` go to all; they must be as many everywhere. */
rrfp_status rrfp_world_broadcast(rrfp_world *world, void *data, size_t bytes, rrfp_error *error);
/* What every rank gave, on all: parts[r] of sizes[r] bytes, freed by free_parts. */
rrfp_status rrfp_world_all_gather(rrfp_world *world, const void *mine, size_t bytes,
                                  void ***parts, size_t **sizes, rrfp_error *error);
void rrfp_world_free_parts(void **parts, size_t *sizes, uint32_t count);
/* Between rank 0 and one other; the receiver knows how many bytes come. */
rrfp_status rrfp_world_send(rrfp_world *world, uint32_t rank, const void *data, size_t bytes,
                            rrfp_error *error);
rrfp_status rrfp_world_receive(rrfp_world *world, uint32_t rank, void *data, size_t bytes,
                               rrfp_error *error);

/* What this rank does, for the line that tells of its failure or another's.  `doing` is a
 * constant.  Costs two stores. */
void rrfp_world_set_activity(rrfp_world *world, uint64_t step, const char *doing);

/* Tells all others that this rank cannot go on, and why.  The first failure counts. */
void rrfp_world_fail(rrfp_world *world, const rrfp_error *why);
/* RRFP_OK, or RRFP_ERR_PEER and what is known of the first failure. */
rrfp_status rrfp_world_failure(rrfp_world *world, rrfp_error *error);

#endif /* RRFP_WORLD_H */
