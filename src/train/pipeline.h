/*
 * pipeline.h - a model trained by ranks: threads of one process, or one process each.
 *
 *   caller ──train_step──►  thread per rank: events ─► stage machine ─► kernels
 *          ◄──result─────   end of step: loss, norm, verdict, update (optimizer.c)
 *
 * A rank runs one stage of one of D replicas (data parallelism), and of that stage the part of one
 * of T tensor-parallel ranks; launch/layout.h numbers them.  Ranks share nothing
 * during a step but messages, collectives of their tensor-parallel group, and sums of finished
 * gradients; at its end they meet at barriers (threads) or through rank 0 (processes), in the
 * same order on all and whatever happened, so an error on one ends the step on all.
 *
 * With processes every one has the whole list of parameters, but memory only for
 * those of its own stage, and all make the same calls in the same order.
 *
 * Thread-safety: calls on one pipeline come from one thread.
 */
#ifndef RRFP_PIPELINE_H
#define RRFP_PIPELINE_H

#include "checkpoint/checkpoint.h"
#include "jitter/jitter.h"
#include "kernels/kernels.h"
#include "launch/layout.h"
#include "model/model.h"
#include "rrfp/hint.h"
#include "trace/trace.h"
#include "train/coordination.h"
#include "train/ranks.h"

/* Fills one microbatch's inputs and targets (B*T each) from its first sample number. */
typedef rrfp_status (*rrfp_fetch_fn)(void *context, bool evaluation, uint64_t first_sample,
                                     int32_t *tokens, int32_t *targets, rrfp_error *error);

/*
 * Called on the rank's thread after a task, before its output is sent: tests
 * inject faults with it.  `output` (activation or gradient, `count` floats) is
 * NULL when the task sends nothing.
 */
typedef void (*rrfp_task_hook_fn)(void *context, uint32_t rank, rrfp_task task,
                                  uint64_t iteration, float *output, size_t count);

typedef struct rrfp_pipeline_config {
    rrfp_model_config model; /* finished; tensor_size ranks share a stage */
    const char *hint;
    uint32_t stages, chunks, microbatches; /* the latter of one replica */
    uint32_t data_size;         /* replicas; 0 = 1 */
    bool distributed_optimizer; /* ZeRO-1: a replica keeps the moments of its slice alone */
    rrfp_coordination coordination; /* of tensor-parallel ranks */
    uint32_t hint_distance;
    const rrfp_budget *budgets;   /* borrowed during create; per stage; see hint.h */
    const uint32_t *layer_counts; /* borrowed during create; per global chunk; NULL = balanced */
    rrfp_accumulate accumulate;
    int threads_per_stage;
    bool bf16_messages;
    bool bind_cpus;     /* every rank's threads to a share of the host's processors */
    bool bind_launched; /* with it: mpirun or srun may have bound this process already */
    bool record_trace;
    rrfp_jitter jitter;
    rrfp_fetch_fn fetch;
    void *fetch_context;
    /* Why the caller wants to stop, 0 if not; asked at the end of every training step. */
    int (*stop_wanted)(void *context);
    void *stop_context;
    rrfp_ranks *ranks;      /* borrowed; this process runs its rank; NULL: all ranks */
    rrfp_task_hook_fn hook; /* NULL in production */
    void *hook_context;
} rrfp_pipeline_config;

typedef struct rrfp_train_step {
    uint64_t iteration;    /* 1 for the first; keys dropout */
    uint64_t first_sample; /* number of the first sample of the global batch */
    rrfp_adamw adamw;      /* grad_scale is filled in by clipping */
    double clip_grad;      /* 0 = no clipping */
} rrfp_train_step;

typedef struct rrfp_step_result {
    float loss;      /* mean token loss of the global batch */
    float grad_norm; /* before clipping */
    bool nonfinite;  /* loss or norm is not finite: no parameter was changed */
    double wall_s;
    uint64_t dispatches, out_of_hint;
    double bubble; /* idle share of ranks x task phase */
    int stop;      /* what stop_wanted said, here or in another process; the same in all */
} rrfp_step_result;

typedef struct rrfp_rank_totals { /* over all training steps */
    rrfp_trace_totals time;
    uint64_t machine_ns; /* of it, deciding */
    uint64_t retries;    /* of proposals that tensor-parallel ranks did not agree on */
    uint64_t summed_floats, summed_hidden; /* of gradients, over replicas; of them while tasks ran */
    uint32_t peak_inflight; /* chunk activations */
    uint32_t peak_pending_w;
    uint64_t peak_inflight_bytes;
} rrfp_rank_totals;

typedef struct rrfp_pipeline rrfp_pipeline;

rrfp_status rrfp_pipeline_create(const rrfp_pipeline_config *config, rrfp_pipeline **out,
                                 rrfp_error *error);
void rrfp_pipeline_destroy(rrfp_pipeline *pipeline); /* NULL is fine */

/* One optimizer step.  After an error the pipeline can only be destroyed. */
rrfp_status rrfp_pipeline_train_step(rrfp_pipeline *pipeline, const rrfp_train_step *step,
                                     rrfp_step_result *result, rrfp_error *error);
/* Mean token loss of one global batch of the validation split; nothing changes. */
rrfp_status rrfp_pipeline_eval_step(rrfp_pipeline *pipeline, uint64_t first_sample, double *loss,
                                    rrfp_error *error);

/*
 * Before the entries below are read: puts together what several ranks share, and with processes
 * brings to rank 0 what is asked for, an or of rrfp_collect.  Called by all; what is then held
 * beyond the ranks' own goes away with forget().
 */
typedef enum rrfp_collect {
    RRFP_COLLECT_WEIGHTS = 1,
    RRFP_COLLECT_MOMENTS = 2,
    RRFP_COLLECT_TOTALS = 4, /* of the ranks, for rrfp_pipeline_rank_totals() */
    RRFP_COLLECT_TRACE = 8   /* once, at the end */
} rrfp_collect;
rrfp_status rrfp_pipeline_collect(rrfp_pipeline *pipeline, unsigned what, rrfp_error *error);
void rrfp_pipeline_forget(rrfp_pipeline *pipeline);

/* Every parameter in full with its optimizer moments, tied copies included: what collect()
 * brought, or what a load shall fill.  Borrowed. */
const rrfp_checkpoint_entry *rrfp_pipeline_entries(const rrfp_pipeline *pipeline, size_t *count);
/* After a load has filled the entries: every rank takes its part of them. */
rrfp_status rrfp_pipeline_adopt(rrfp_pipeline *pipeline, bool with_moments, rrfp_error *error);
/* SHA-256 (hex) of all weights, after collect(); with processes only on rank 0. */
void rrfp_pipeline_weights_sha256(const rrfp_pipeline *pipeline, char hex_out[65]);

const rrfp_hint *rrfp_pipeline_hint(const rrfp_pipeline *pipeline);   /* borrowed */
const rrfp_trace *rrfp_pipeline_trace(const rrfp_pipeline *pipeline); /* borrowed */
const rrfp_layout *rrfp_pipeline_layout(const rrfp_pipeline *pipeline); /* borrowed */
void rrfp_pipeline_rank_totals(const rrfp_pipeline *pipeline, uint32_t rank,
                               rrfp_rank_totals *totals);

#endif /* RRFP_PIPELINE_H */
