/*
 * model.h - a decoder transformer cut into global chunks.
 *
 * Two architectures: GPT-2 (pre-LayerNorm, learned positions, GELU, tied or
 * untied head) and Llama (RMSNorm, RoPE, SwiGLU, grouped-query attention).
 * Parameters are stored in memory in Hugging Face layout and carry Hugging
 * Face names, so a checkpoint is a list of them.
 *
 * A chunk owns consecutive units of   [embedding] layer 0 .. layer L-1 [head]
 * and offers forward, backward (input gradient) and wgrad as separate calls.
 * It keeps no state per microbatch: everything a later call needs lies in two
 * blocks that the caller owns and keys by (step, chunk, microbatch):
 *
 *      forward ──► activation block ──► backward          (freed after backward)
 *      forward ──► retained block ───► backward ─► wgrad  (freed after wgrad)
 *
 * Gradient sums: wgrad *adds* microbatch after microbatch; called in
 * microbatch order it gives the same bits at any partition.  A tied embedding
 * has two gradient buffers (embedding side, head side), wherever its ends
 * live; they are added once per step by the trainer.
 *
 * Tensor parallelism: tensor_size ranks each hold a chunk with the same range.  Projections into
 * attention and MLP are cut by columns, those out of them by rows, the embedding and the head by
 * vocabulary; norms and the biases of the residual stream are on all of them, with equal gradients.
 *
 * Thread-safety: calls on different chunks may run at the same time; calls on
 * one chunk may not.  No call allocates after create.
 */
#ifndef RRFP_MODEL_H
#define RRFP_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rrfp/status.h"

struct rrfp_collective;

typedef enum rrfp_arch { RRFP_ARCH_GPT2 = 0, RRFP_ARCH_LLAMA = 1 } rrfp_arch;

typedef struct rrfp_model_config {
    rrfp_arch arch;
    uint32_t num_layers;
    uint32_t hidden;
    uint32_t heads;
    uint32_t kv_heads;   /* = heads for GPT-2 */
    uint32_t ffn_hidden; /* 0 = 4*hidden (GPT-2); Llama: 8/3*hidden rounded up to 32 */
    uint32_t vocab;
    uint32_t max_positions; /* rows of wpe (GPT-2) */
    uint32_t seq_length;    /* T */
    uint32_t micro_batch;   /* B, sequences per microbatch */
    float norm_eps;
    float rope_theta;
    float dropout; /* embedding, attention and residual dropout alike */
    bool tied;     /* head shares the embedding matrix */
    bool recompute; /* keep only a layer's input; run its forward again in backward */
    uint64_t seed;
    /* This rank's part of every layer (tensor parallelism; Shoeybi et al. 2019). */
    uint32_t tensor_size; /* ranks that share a layer; 0 = 1 */
    uint32_t tensor_rank;
    bool sequence_parallel; /* norms, dropout and messages of T/tensor_size positions (Korthikanti
                               et al. 2022) */
} rrfp_model_config;

/* Fills defaults where 0 (ffn_hidden, kv_heads, max_positions = seq_length, norm_eps 1e-5,
 * rope_theta 10000) and checks; one clear line on error, and the config untouched. */
rrfp_status rrfp_model_config_finish(rrfp_model_config *config, rrfp_error *error);
/* The same model on one rank: of a chunk of it, every parameter is there in full. */
rrfp_model_config rrfp_model_config_whole(const rrfp_model_config *config);

/* Parameters of the whole model (tied matrix once), and training FLOPs per token (forward +
 * backward, causal attention halved, head included: Megatron's count). */
uint64_t rrfp_model_param_count(const rrfp_model_config *config);
double rrfp_model_flops_per_token(const rrfp_model_config *config);

/*
 * Partition of [embedding, L layers, head] into `chunks` global chunks: layer
 * counts differ by at most one, the earlier chunks take the larger share except
 * that the last takes the smaller (it has the head); the embedding goes to chunk
 * 0, the head to the last.  More chunks than layers leaves some without layers:
 * they pass activations through.
 */
typedef struct rrfp_chunk_range {
    uint32_t first_layer, layer_count;
    bool has_embedding, has_head;
} rrfp_chunk_range;
rrfp_status rrfp_model_partition(const rrfp_model_config *config, uint32_t chunks,
                                 rrfp_chunk_range *ranges, rrfp_error *error);
/* The same from explicit layer counts; refused unless they add up to num_layers. */
rrfp_status rrfp_model_partition_explicit(const rrfp_model_config *config, uint32_t chunks,
                                          const uint32_t *layer_counts,
                                          rrfp_chunk_range *ranges, rrfp_error *error);

typedef struct rrfp_param {
    char name[96];         /* Hugging Face name */
    uint32_t ndim;         /* 1 or 2 */
    uint64_t dims[2];      /* of this rank's shard, where tensor-parallel ranks share it */
    uint64_t count;        /* floats, of the shard likewise */
    uint64_t whole_dims[2], whole_count; /* of the tensor that a checkpoint has */
    bool sharded;                        /* false: every tensor-parallel rank has all of it */
    uint32_t shard_dim;    /* the dimension that is cut */
    uint32_t shard_parts;  /* matrices side by side in that dimension, each of which is cut */
    uint64_t shard_first;  /* where in each of them the shard begins */
    uint32_t global_index; /* canonical order over the whole model (fixed, partition-free) */
    bool decay;            /* weight decay applies (matrices, not norms and biases) */
    bool tied_copy;        /* head-side view of a tied embedding: same name and global_index,
                              has its own grad; saved and counted once (the embedding side) */
    float *value;          /* owned by the chunk */
    float *grad;           /* owned by the chunk */
} rrfp_param;

typedef struct rrfp_chunk rrfp_chunk;

typedef struct rrfp_chunk_sizes {
    uint64_t activation_bytes; /* per microbatch */
    uint64_t retained_bytes;   /* per microbatch */
    uint64_t scratch_bytes;    /* per thread, shared by all calls */
    uint64_t message_floats;   /* B*T*C, or a tensor rank's part of it when sequences are parallel:
                                input and output activations, and their gradients */
    bool forward_retains;      /* false (recompute without the head): forward leaves `retained`
                                  alone, which may be NULL there and come with backward */
} rrfp_chunk_sizes;

/*
 * Creates a chunk with initialised parameters (GPT-2's init: normal 0.02,
 * residual projections 0.02/sqrt(2L), biases 0, norms 1; drawn by Philox from
 * (seed, global_index, element), so independent of the partition) and zero
 * gradients.  `share_embedding`, borrowed, may be the chunk with the embedding
 * in the same process: a tied head then uses that matrix itself (the gradient
 * stays separate); NULL gives it a copy of its own with the same values.
 */
rrfp_status rrfp_chunk_create(const rrfp_model_config *config, const rrfp_chunk_range *range,
                              const rrfp_chunk *share_embedding, rrfp_chunk **chunk_out,
                              rrfp_error *error);
/*
 * The chunk as another process sees it: sizes, names and shapes are the same, `grad` is NULL, and
 * the values take no memory until somebody writes them (to save a model whose chunks are gathered,
 * say).  Not to be run.  Forgetting gives that memory back; the values are lost.
 */
rrfp_status rrfp_chunk_create_elsewhere(const rrfp_model_config *config,
                                        const rrfp_chunk_range *range,
                                        const rrfp_chunk *share_embedding,
                                        rrfp_chunk **chunk_out, rrfp_error *error);
void rrfp_chunk_forget_values(rrfp_chunk *chunk);
/* What the tensor-parallel ranks of this chunk meet in; borrowed.  Needed before a chunk with
 * tensor_size > 1 runs.  Every forward, backward and inference call enters the same collectives in
 * the same order on all of them; after a failed one the results are void, and the group says why. */
void rrfp_chunk_set_tensor_group(rrfp_chunk *chunk, struct rrfp_collective *group);
void rrfp_chunk_destroy(rrfp_chunk *chunk); /* NULL is fine */

const rrfp_chunk_range *rrfp_chunk_get_range(const rrfp_chunk *chunk);
void rrfp_chunk_get_sizes(const rrfp_chunk *chunk, rrfp_chunk_sizes *sizes);
size_t rrfp_chunk_param_count(const rrfp_chunk *chunk);
rrfp_param *rrfp_chunk_param(rrfp_chunk *chunk, size_t index); /* borrowed */
void rrfp_chunk_zero_grads(rrfp_chunk *chunk);
/* Units are the parameters whose gradients wgrad adds together, in the order in which it does: the
 * head, the layers from the last to the first, the embedding. */
uint32_t rrfp_chunk_unit_count(const rrfp_chunk *chunk);
void rrfp_chunk_unit(const rrfp_chunk *chunk, uint32_t unit, size_t *first_param, size_t *count);
/* Copies a rank's shard (param->count floats: values, gradients or moments) to its places in the
 * whole tensor (whole_count floats), or back.  A tensor that is not cut is copied. */
void rrfp_param_gather(const rrfp_param *param, const float *shard, float *whole);
void rrfp_param_scatter(const rrfp_param *param, const float *whole, float *shard);

/* What a call must know of its microbatch.  Everything borrowed. */
typedef struct rrfp_microbatch {
    uint64_t step;          /* keys dropout */
    uint32_t index;         /* keys dropout: microbatch index within the step */
    bool training;          /* dropout on, keep what backward needs */
    const int32_t *tokens;  /* B*T; used by a chunk with the embedding */
    const int32_t *targets; /* B*T, negative = ignored; used by a chunk with the head */
    float loss_scale;       /* d(total loss)/d(sum of token losses): the only scaling */
    /* Called by wgrad when a unit's gradients of this microbatch are added; NULL: nobody asks. */
    void (*unit_done)(void *context, uint32_t unit);
    void *unit_context;
} rrfp_microbatch;

/*
 * Forward.  `input` (B,T,C) from the chunk before (NULL with the embedding),
 * `output` (B,T,C) for the next (NULL with the head).  With the head, *loss_sum
 * gets the sum of token losses (double) and the blocks keep d(logits) already
 * scaled.  `input` must stay unchanged until backward of this microbatch.
 * training == false: activation and retained may be used as scratch.
 */
void rrfp_chunk_forward(rrfp_chunk *chunk, const rrfp_microbatch *microbatch,
                        const float *input, float *output, void *activation, void *retained,
                        void *scratch, double *loss_sum);

/* Input gradient.  `grad_output` NULL with the head; `grad_input` NULL with the embedding
 * (what wgrad of the embedding needs goes to retained).  grad_input may be grad_output. */
void rrfp_chunk_backward(rrfp_chunk *chunk, const rrfp_microbatch *microbatch,
                         const float *input, const float *grad_output, float *grad_input,
                         void *activation, void *retained, void *scratch);

/* Adds this microbatch's weight gradients to the params' grad. */
void rrfp_chunk_wgrad(rrfp_chunk *chunk, const rrfp_microbatch *microbatch,
                      const void *retained, void *scratch);

/*
 * Logits of positions for generation: runs the chunk's forward without keeping
 * anything; `logits` (B*T, vocab) is filled by a chunk with the head, NULL else.
 */
void rrfp_chunk_infer(rrfp_chunk *chunk, const rrfp_microbatch *microbatch, const float *input,
                      float *output, void *scratch_activation, void *scratch_retained,
                      void *scratch, float *logits);

#endif /* RRFP_MODEL_H */
