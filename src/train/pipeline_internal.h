/* pipeline_internal.h - what the files behind pipeline.h share. */
#ifndef RRFP_PIPELINE_INTERNAL_H
#define RRFP_PIPELINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "train/block_pool.h"
#include "train/pipeline.h"
#include "transport/transport.h"

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
    rrfp_worker *workers;     /* [P] */
    uint32_t worker_count;    /* of workers that were initialised */
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
    pthread_barrier_t end_barrier;   /* P + 1 */
    pthread_barrier_t stage_barrier; /* P */
    bool barriers_made;

    /* one phase: written by the caller before the gate opens */
    rrfp_phase phase;
    uint64_t phase_number; /* the step of message headers: unique over the run */
    rrfp_train_step step;
    uint64_t first_sample;

    /* results */
    double *microbatch_loss;   /* [M], by the stage with the head */
    double *squares;           /* [tensor_count], by the owner of each tensor */
    double loss, norm;         /* by stage 0 between barriers */
    bool nonfinite;
    atomic_bool failed;
    pthread_mutex_t error_mutex;
    rrfp_error error; /* the first failure */
};

uint64_t rrfp_now_ns(void);
/* Records the first failure and wakes every stage. */
void rrfp_pipeline_fail(rrfp_pipeline *pipeline, const rrfp_error *error);

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
