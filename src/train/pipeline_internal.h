/* pipeline_internal.h - what the files behind pipeline.h share. */
#ifndef RRFP_PIPELINE_INTERNAL_H
#define RRFP_PIPELINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "launch/layout.h"
#include "train/block_pool.h"
#include "train/coordination.h"
#include "train/pipeline.h"
#include "transport/transport.h"

/* What all ranks take from the end of a step. */
typedef struct rrfp_verdict {
    double loss, norm;
    bool nonfinite;
    int stop;
    uint64_t busy_ns, span_ns; /* of the task phase: summed; longest */
    uint64_t dispatches, out_of_hint;
} rrfp_verdict;

typedef struct rrfp_step_note rrfp_step_note;

typedef enum rrfp_phase { RRFP_PHASE_TRAIN, RRFP_PHASE_EVAL, RRFP_PHASE_QUIT } rrfp_phase;

/* State of one (chunk, microbatch), keyed by identity, never by position. */
typedef struct rrfp_slot {
    void *activation, *retained;
    float *input;        /* of F: what the chunk before made; kept until B is done */
    float *grad_input;   /* of B: what the chunk after made; kept until B is done */
    void *input_payload; /* the transport's buffer behind `input`, NULL if it is a block of ours */
    void *grad_payload;
    float *output[2];    /* made here by F and by B; ours until sent or handed over */
    uint64_t f_ready_ns, b_ready_ns, w_ready_ns;
} rrfp_slot;

typedef struct rrfp_slice { /* of a parameter's elements */
    uint64_t first, count;
} rrfp_slice;

/* A parameter of one rank, and its optimizer state. */
typedef struct rrfp_shard {
    rrfp_param *param;
    rrfp_slice kept; /* elements whose moments this rank has: all, or with ZeRO-1 its slice */
    float *exp_avg, *exp_avg_sq; /* kept.count; NULL: a tied copy in its owner's memory */
} rrfp_shard;

/* Parameters whose gradients are summed over replicas together; shared by the replicas' ranks. */
typedef struct rrfp_bucket {
    size_t first_shard, shard_count;
    atomic_uint complete; /* replicas whose gradients are all in, counted over all steps */
} rrfp_bucket;

/* How far a rank is with a bucket. */
typedef struct rrfp_bucket_progress {
    uint32_t microbatches; /* whose W is done */
    size_t shard;          /* the next to sum, and from where in this rank's slice of it */
    uint64_t at;
} rrfp_bucket_progress;

typedef struct rrfp_worker { /* one rank; touched by its own thread during a phase */
    rrfp_pipeline *pipeline;
    uint32_t rank;
    rrfp_layout_place place;
    rrfp_model_config model; /* this rank's part */
    pthread_t thread;
    bool thread_started;
    rrfp_decider train, eval;
    rrfp_decider *decider; /* of the phase */
    rrfp_transport *transport;
    rrfp_collective *tensor_group;      /* NULL: alone */
    rrfp_chunk **chunks;                /* V */
    rrfp_chunk_sizes *sizes;            /* V */
    rrfp_shard *shards;                 /* as the stage's entries, from entry `first_entry` on */
    size_t shard_count, first_entry;
    rrfp_block_pool *activation_pools;  /* V */
    rrfp_block_pool *retained_pools;    /* V */
    rrfp_block_pool message_pool;       /* message_floats each: outputs and unpacked inputs */
    rrfp_block_pool packed_pool;        /* bf16 payloads on their way */
    rrfp_slot *slots;                   /* [chunk * M + microbatch] */
    void *scratch;
    int32_t *tokens, *targets;
    rrfp_jitter_ema ema[4];
    /* sums over data-parallel replicas: gradients.c */
    rrfp_bucket *buckets; /* borrowed from replica 0 */
    rrfp_bucket_progress *progress;
    uint32_t bucket_count, *first_bucket; /* [V] */
    uint32_t training_steps;              /* begun */
    uint64_t summed_floats, summed_hidden; /* the latter while tasks ran */
    /* the phase */
    bool have_task, step_done;
    rrfp_action start;
    uint64_t idle_since_ns;
    rrfp_trace_idle idle_reason, machine_reason; /* of the gap; what the machine said last */
    bool idle;
    uint64_t phase_begin_ns, phase_busy_ns, phase_end_ns;
    uint64_t dispatches, out_of_hint;
    uint64_t machine_ns; /* deciding, over all training steps */
    uint64_t retries;    /* of proposals that did not agree, likewise */
    uint32_t peak_inflight, peak_pending_w;
    uint64_t peak_inflight_bytes;
} rrfp_worker;

struct rrfp_pipeline {
    rrfp_pipeline_config config;
    rrfp_hint *hint;
    rrfp_shape shape;         /* of one replica */
    rrfp_layout layout;
    uint32_t ranks;           /* P*T*D */
    rrfp_chunk_range *ranges; /* [P*V] */
    rrfp_chunk_sizes *sizes;  /* [P*V], the largest of the tensor ranks' */
    rrfp_worker *workers;     /* [ranks]; of those elsewhere only names and shapes are made */
    uint32_t worker_count;    /* of workers that were initialised */
    uint32_t first_here, here; /* the ranks of this process */
    rrfp_trace *trace;
    rrfp_checkpoint_entry *entries; /* all parameters, in full: see parameters.c */
    rrfp_chunk **whole;             /* [P*V] behind them, NULL when a rank's own will do */
    uint32_t *entry_stage;          /* owner of each entry */
    size_t entry_count;
    size_t tied_copy, tied_owner; /* entries; entry_count if nothing is tied */
    uint32_t tensor_count;        /* distinct global indices */
    size_t message_floats;
    struct rrfp_link { rrfp_pipeline *pipeline; uint32_t data_rank; } *links; /* [D] */
    uint64_t run_id;

    pthread_mutex_t gate_mutex; /* guards `generation` */
    pthread_cond_t gate;        /* a phase begins when `generation` changes */
    uint64_t generation;
    pthread_barrier_t end_barrier;  /* ranks here + 1 */
    pthread_barrier_t rank_barrier; /* ranks here */
    bool barriers_made;

    /* one phase: written by the caller before the gate opens */
    rrfp_phase phase;
    uint64_t phase_number; /* the step of message headers: unique over the run */
    rrfp_train_step step;
    uint64_t first_sample;

    /* results */
    double *microbatch_loss;   /* [M*D], by tensor rank 0 of the stage with the head */
    double *squares;           /* [tensor_count*T*D], by the owner of each slice */
    rrfp_verdict verdict;      /* by the first rank here, between barriers */
    /* with processes */
    rrfp_rank_totals *totals_elsewhere; /* [ranks], after collect() */
    rrfp_step_note *note;                /* what this rank says at the end of a step */
    float *tied_sum;                     /* rank 0: the other half of a tied gradient */
    atomic_bool failed;
    pthread_mutex_t error_mutex;
    rrfp_error error; /* the first failure */
};

uint64_t rrfp_now_ns(void);

static inline bool rrfp_rank_is_here(const rrfp_pipeline *pipeline, uint32_t rank)
{
    return rank - pipeline->first_here < pipeline->here;
}

static inline rrfp_worker *rrfp_worker_at(const rrfp_pipeline *pipeline, uint32_t stage,
                                          uint32_t tensor_rank, uint32_t data_rank)
{
    rrfp_layout_place place = {tensor_rank, data_rank, stage};
    return &pipeline->workers[rrfp_layout_rank_of(&pipeline->layout, place)];
}

/* Microbatches of a step over all replicas. */
static inline uint32_t rrfp_pipeline_microbatches(const rrfp_pipeline *pipeline)
{
    return pipeline->shape.microbatches * pipeline->layout.data;
}

/* Message buffers that `to` keeps for what `from` sends; 0 when nothing goes that way. */
uint32_t rrfp_pipeline_edge_slots(const rrfp_pipeline *pipeline, uint32_t from, uint32_t to);
uint64_t rrfp_pipeline_payload_bytes(const rrfp_pipeline *pipeline);
/* Delay of a message by the configured jitter; context: the replica's rrfp_link. */
double rrfp_pipeline_link_delay(void *link, const rrfp_message_header *header);
/* Checks a message against the plan. */
rrfp_status rrfp_worker_check_message(const rrfp_worker *worker,
                                      const rrfp_message_header *header, bool *next_step,
                                      rrfp_error *error);
/* Records the first failure and wakes every rank. */
void rrfp_pipeline_fail(rrfp_pipeline *pipeline, const rrfp_error *error);

/* pipeline_ranks.c: the parts of a step that processes do through rank 0 */
rrfp_status rrfp_pipeline_connect(rrfp_pipeline *pipeline, rrfp_error *error);
/* Losses, squares and notes to rank 0. */
rrfp_status rrfp_pipeline_gather_step(rrfp_pipeline *pipeline, rrfp_verdict *sum,
                                      rrfp_error *error);
/* Rank 0's verdict and losses to all. */
rrfp_status rrfp_pipeline_spread_verdict(rrfp_pipeline *pipeline, rrfp_error *error);
/* The tied gradient's two halves, one here and one elsewhere, become their sum on both. */
rrfp_status rrfp_pipeline_exchange_tied(rrfp_pipeline *pipeline, rrfp_error *error);

/* parameters.c */
rrfp_status rrfp_pipeline_make_parameters(rrfp_pipeline *pipeline, rrfp_error *error);
void rrfp_pipeline_free_parameters(rrfp_pipeline *pipeline);
/* What of `count` elements the `index`-th of `parts` replicas sums, and updates with ZeRO-1. */
rrfp_slice rrfp_slice_of(uint64_t count, uint32_t parts, uint32_t index);
/* Of ranks in this process: their shards become the entries. */
rrfp_status rrfp_pipeline_gather_shards(rrfp_pipeline *pipeline, unsigned what, rrfp_error *error);

/* gradients.c: sums over the replicas, each slice by its owner; nothing to do without replicas */
rrfp_status rrfp_gradients_init(rrfp_worker *worker, rrfp_error *error);
void rrfp_gradients_free(rrfp_worker *worker);
void rrfp_gradients_begin(rrfp_worker *worker);
/* A unit's gradients of one more microbatch are in: counted, not placed. */
void rrfp_gradients_unit_done(rrfp_worker *worker, uint32_t chunk, uint32_t unit);
/* A piece of what all replicas have completed; false when there is none. */
bool rrfp_gradients_sum_some(rrfp_worker *worker);
/* The rest, once all replicas are past their tasks. */
void rrfp_gradients_finish(rrfp_worker *worker);

/* worker_init.c */
rrfp_status rrfp_worker_init(rrfp_worker *worker, rrfp_pipeline *pipeline, uint32_t rank,
                             rrfp_error *error);
rrfp_status rrfp_worker_init_machines(rrfp_worker *worker, rrfp_error *error);
void rrfp_worker_free(rrfp_worker *worker);

/* worker.c: the thread of one rank */
void *rrfp_worker_main(void *worker);
/* What the decider says; false after rrfp_pipeline_fail(). */
bool rrfp_worker_apply(rrfp_worker *worker, const rrfp_action *actions, size_t count);
void rrfp_worker_fail_transport(rrfp_worker *worker, rrfp_error *error);
/* Rank `worker`'s part of the end of a training step: see optimizer.c. */
void rrfp_worker_finish_step(rrfp_worker *worker);

/* task.c: runs the kernels of one task; false after rrfp_pipeline_fail */
bool rrfp_worker_run_task(rrfp_worker *worker, rrfp_task task);

#endif /* RRFP_PIPELINE_INTERNAL_H */
