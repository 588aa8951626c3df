/* pipeline_internal.h - what the files behind pipeline.h share. */
#ifndef RRFP_PIPELINE_INTERNAL_H
#define RRFP_PIPELINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "train/block_pool.h"
#include "train/pipeline.h"
#include "transport/transport.h"

/* What all stages take from the end of a step. */
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

typedef struct rrfp_worker { /* one stage; touched by its own thread during a phase */
    rrfp_pipeline *pipeline;
    uint32_t stage;
    pthread_t thread;
    bool thread_started;
    rrfp_stage *machine, *eval_machine;
    rrfp_transport *transport;
    rrfp_chunk **chunks;                /* V */
    rrfp_chunk_sizes *sizes;            /* V */
    rrfp_block_pool *activation_pools;  /* V */
    rrfp_block_pool *retained_pools;    /* V */
    rrfp_block_pool message_pool;       /* float B*T*C: outputs and unpacked inputs */
    rrfp_block_pool packed_pool;        /* bf16 payloads on their way */
    rrfp_slot *slots;                   /* [chunk * M + microbatch] */
    void *scratch;
    int32_t *tokens, *targets;
    rrfp_jitter_ema ema[4];
    /* the phase */
    bool have_task, step_done;
    rrfp_action start;
    uint64_t idle_since_ns;
    rrfp_trace_idle idle_reason;
    bool idle;
    uint64_t phase_begin_ns, phase_busy_ns, phase_end_ns;
    uint64_t dispatches, out_of_hint;
    uint64_t machine_ns; /* inside the stage machine, over all training steps */
    uint32_t peak_inflight, peak_pending_w;
    uint64_t peak_inflight_bytes;
} rrfp_worker;

struct rrfp_pipeline {
    rrfp_pipeline_config config;
    rrfp_hint *hint;
    rrfp_shape shape;
    rrfp_chunk_range *ranges; /* [P*V] */
    rrfp_worker *workers;     /* [P]; of those elsewhere only the chunks' sizes and names are made */
    uint32_t worker_count;    /* of workers that were initialised */
    uint32_t first_here, here; /* the stages of this process */
    rrfp_trace *trace;
    rrfp_checkpoint_entry *entries; /* all parameters; index into sums by global_index */
    uint32_t *entry_stage;          /* owner of each entry */
    size_t entry_count;
    uint32_t tensor_count; /* distinct global indices */
    size_t message_floats;
    uint64_t run_id;

    pthread_mutex_t gate_mutex; /* guards `generation` */
    pthread_cond_t gate;        /* a phase begins when `generation` changes */
    uint64_t generation;
    pthread_barrier_t end_barrier;   /* stages here + 1 */
    pthread_barrier_t stage_barrier; /* stages here */
    bool barriers_made;

    /* one phase: written by the caller before the gate opens */
    rrfp_phase phase;
    uint64_t phase_number; /* the step of message headers: unique over the run */
    rrfp_train_step step;
    uint64_t first_sample;

    /* results */
    double *microbatch_loss;   /* [M], by the stage with the head */
    double *squares;           /* [tensor_count], by the owner of each tensor */
    rrfp_verdict verdict;      /* by the first stage here, between barriers */
    /* with processes */
    rrfp_stage_totals *totals_elsewhere; /* [P], after collect() */
    rrfp_step_note *note;                /* what this rank says at the end of a step */
    float *tied_sum;                     /* rank 0: the other half of a tied gradient */
    atomic_bool failed;
    pthread_mutex_t error_mutex;
    rrfp_error error; /* the first failure */
};

uint64_t rrfp_now_ns(void);

static inline bool rrfp_stage_is_here(const rrfp_pipeline *pipeline, uint32_t stage)
{
    return stage - pipeline->first_here < pipeline->here;
}
/* Message buffers that `to` keeps for what `from` sends; 0 when nothing goes that way. */
uint32_t rrfp_pipeline_edge_slots(const rrfp_pipeline *pipeline, uint32_t from, uint32_t to);
uint64_t rrfp_pipeline_payload_bytes(const rrfp_pipeline *pipeline);
/* Delay of a message by the configured jitter; context: the pipeline. */
double rrfp_pipeline_link_delay(void *pipeline, const rrfp_message_header *header);
/* Checks a message against the plan. */
rrfp_status rrfp_pipeline_check_message(const rrfp_pipeline *pipeline, uint32_t stage,
                                        const rrfp_message_header *header, bool *next_step,
                                        rrfp_error *error);
/* Records the first failure and wakes every stage. */
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

/* worker_init.c */
rrfp_status rrfp_worker_init(rrfp_worker *worker, rrfp_pipeline *pipeline, uint32_t stage,
                             rrfp_error *error);
rrfp_status rrfp_worker_init_machines(rrfp_worker *worker, rrfp_error *error);
void rrfp_worker_free(rrfp_worker *worker);

/* worker.c: the thread of one stage */
void *rrfp_worker_main(void *worker);
/* Stage `worker`'s part of the end of a training step: see optimizer.c. */
void rrfp_worker_finish_step(rrfp_worker *worker);

/* task.c: runs the kernels of one task; false after rrfp_pipeline_fail */
bool rrfp_worker_run_task(rrfp_worker *worker, rrfp_task task);

#endif /* RRFP_PIPELINE_INTERNAL_H */
