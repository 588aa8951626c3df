/*
 * coordination.h - who decides what a rank runs next.
 *
 *   alone        one rank per stage: its stage machine
 *   lead         ranks of a tensor-parallel group follow decisions of their rank 0, which notices
 *                (signals of the transport) told it what has arrived everywhere; see rrfp/group.h
 *   all-gather   the protocol of arXiv 2605.18750 section 4.2, to compare with: every member
 *                proposes, all compare, and start it if they agree; else they try again
 *
 * A decider belongs to one worker's thread.
 */
#ifndef RRFP_COORDINATION_H
#define RRFP_COORDINATION_H

#include "collective/collective.h"
#include "rrfp/group.h"
#include "transport/transport.h"

typedef enum rrfp_coordination {
    RRFP_COORDINATION_LEAD = 0,
    RRFP_COORDINATION_ALL_GATHER
} rrfp_coordination;

typedef struct rrfp_decider {
    rrfp_stage *machine;       /* alone, or proposing */
    rrfp_group_member *member; /* following */
    rrfp_group_lead *lead;     /* of the group's rank 0 */
    rrfp_decision *decisions;  /* [rrfp_group_lead_most()] */
    bool proposes;
} rrfp_decider;

struct rrfp_worker;

/* `config` as for rrfp_stage_create(); `follows` is set here. */
rrfp_status rrfp_decider_init(rrfp_decider *decider, const rrfp_stage_config *config,
                              rrfp_coordination how, uint32_t tensor_rank, uint32_t tensor_size,
                              rrfp_error *error);
void rrfp_decider_free(rrfp_decider *decider); /* a zeroed one is fine */
const rrfp_stage *rrfp_decider_stage(const rrfp_decider *decider); /* borrowed, to look at */

/* Each applies the actions that follow to `worker`; false after rrfp_pipeline_fail(). */
bool rrfp_worker_begin(struct rrfp_worker *worker);
bool rrfp_worker_feed(struct rrfp_worker *worker, const rrfp_event *event);
/* A checked signal of the group. */
bool rrfp_worker_take_signal(struct rrfp_worker *worker, const rrfp_message_header *header);
/* For a free worker that proposes: *again when the members disagreed. */
bool rrfp_worker_propose(struct rrfp_worker *worker, bool *again);

#endif /* RRFP_COORDINATION_H */
