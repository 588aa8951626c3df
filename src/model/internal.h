/*
 * internal.h - what the files of src/model share and nobody else sees.
 *
 * Sizes are counted in floats with saturating arithmetic: a size that does not
 * fit becomes UINT64_MAX and is refused once, by rrfp_model_config_finish, for
 * the whole model in one chunk.  Every smaller chunk is then known to fit.
 */
#ifndef RRFP_MODEL_INTERNAL_H
#define RRFP_MODEL_INTERNAL_H

#include "collective/collective.h"
#include "kernels/kernels.h"
#include "kernels/rng.h"
#include "model/model.h"

static inline uint64_t rrfp_sat_mul(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static inline uint64_t rrfp_sat_add(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

/* Reserves `floats` at the cursor, which moves on to the next 64-byte boundary. */
static inline uint64_t rrfp_carve(uint64_t *cursor, uint64_t floats)
{
    uint64_t at = *cursor;
    uint64_t padded = rrfp_sat_add(floats, 15);
    *cursor = rrfp_sat_add(at, padded == UINT64_MAX ? padded : padded / 16 * 16);
    return at;
}

/* The shape letters of kernels.h, as one tensor-parallel rank sees them. */
typedef struct rrfp_model_dims {
    uint64_t b, t, n; /* sequences, positions, rows n = b*t */
    uint64_t c;       /* width */
    uint64_t h, g, d; /* query heads, key/value heads, head size */
    uint64_t k;       /* width of this rank's query heads, h*d */
    uint64_t f;       /* width inside the MLP */
    uint64_t v;       /* vocabulary */
    uint64_t all_heads, first_head;
    uint64_t first_v;
    uint64_t r, first_row; /* rows of the residual stream: all n, or a part (sequence parallel) */
} rrfp_model_dims;

/* Of a finished config. */
rrfp_model_dims rrfp_model_dims_of(const rrfp_model_config *config);

/* ---- parameters (params.c) ---- */

/* Tensors of the whole model, and of each kind of unit; a tied head has no matrix of its own. */
uint32_t rrfp_params_in_embedding(const rrfp_model_config *config);
uint32_t rrfp_params_in_layer(const rrfp_model_config *config);
uint32_t rrfp_params_in_final_norm(const rrfp_model_config *config);
uint32_t rrfp_params_in_model(const rrfp_model_config *config);

/* Fills everything of `param` but value and grad. */
void rrfp_param_describe(const rrfp_model_config *config, uint32_t global_index,
                         rrfp_param *param);
/* Writes the initial values of param->global_index to param->value. */
void rrfp_param_init(const rrfp_model_config *config, rrfp_param *param);

/* ---- one layer (layer_gpt2.c, layer_llama.c) ---- */

/* Dropout sites; the key's `a` is layer * 8 + site. */
enum { RRFP_SITE_EMBEDDING = 0, RRFP_SITE_ATTENTION = 1, RRFP_SITE_ATTENTION_OUT = 2,
       RRFP_SITE_MLP_OUT = 3 };
#define RRFP_EMBEDDING_LAYER (UINT32_MAX / 8) /* stands for the layer of the embedding's site */

typedef struct rrfp_layer_call {
    const rrfp_model_config *config;
    const rrfp_model_dims *dims;
    rrfp_param *params; /* this layer's, in canonical order */
    const rrfp_microbatch *microbatch;
    rrfp_collective *tensor; /* NULL: this rank has the whole layer */
    uint32_t layer;          /* of the whole model */
    float dropout;           /* 0 outside training */
} rrfp_layer_call;

rrfp_rng_key rrfp_dropout_key(const rrfp_layer_call *call, uint32_t site);
/* y = dropout(x) of a site, on this rank's rows of the stream; a plain copy without dropout.  y
 * may be x. */
void rrfp_site_dropout(const rrfp_layer_call *call, uint32_t site, const float *x, float *y);

/*
 * ---- where tensor-parallel ranks meet (tensor_parallel.c) ----
 *
 * The residual stream has r rows here: all n, the same on every rank, or with sequence parallelism
 * the r = n/T from first_row.  What goes into a product cut by columns needs all n of them; what
 * comes out of a product cut by rows is one rank's share of a sum.
 *
 *      stream (r) ──gather──► n rows ──► column ──► row-parallel ──reduce──► stream (r)
 *
 * Backward goes the same way with the gradients.  Without a group both do nothing.
 */

/* Rows first_row .. first_row + r of `rows` are there; the others come. */
void rrfp_stream_gather(const rrfp_layer_call *call, float *rows);
/* Where a product whose sum shall end in `stream` goes: there, or into `partial` (N,C) if the sum
 * has fewer rows than the product. */
float *rrfp_stream_partial(const rrfp_layer_call *call, float *stream, float *partial);
/* The sum over ranks of what lies at rrfp_stream_partial(), to `stream`. */
void rrfp_stream_reduce(const rrfp_layer_call *call, float *stream, float *partial);
/* Gradients of norms, made from a part of the rows, are summed; equal on all ranks before, they
 * stay. */
void rrfp_norm_reduce(const rrfp_layer_call *call, float *gradients, size_t count);
/* A row-parallel product adds its bias once. */
const float *rrfp_bias_once(const rrfp_layer_call *call, const rrfp_param *bias);
/* The loss of the rank's columns of the logits, which become their gradient; see
 * rrfp_cross_entropy().  `scratch`: rrfp_vocab_loss_floats(). */
uint64_t rrfp_vocab_loss_floats(const rrfp_model_config *config, const rrfp_model_dims *dims);
double rrfp_vocab_loss(const rrfp_layer_call *call, float *logits, float *scratch);

/*
 * A layer works in three places:
 *   block   what wgrad reads (part of `retained`): during forward it holds the
 *           activations, and backward overwrites those that only backward reads
 *           with the output gradients that wgrad needs;
 *   stats   what backward alone reads (part of `activation`);
 *   scratch meaningful during one call only.
 */
typedef struct rrfp_layer_ops {
    uint64_t (*block_floats)(const rrfp_model_dims *dims);
    uint64_t (*stats_floats)(const rrfp_model_dims *dims);
    uint64_t (*scratch_floats)(const rrfp_model_dims *dims);
    /* Where in the block the layer's output may lie until its backward starts. */
    uint64_t (*output_offset)(const rrfp_model_dims *dims);
    /* out = layer(x); with out NULL everything but the last projection. */
    void (*forward)(const rrfp_layer_call *call, const float *x, float *out, float *block,
                    float *stats, float *scratch);
    /* grad: in d(out), out d(x). */
    void (*backward)(const rrfp_layer_call *call, const float *x, float *grad, float *block,
                     const float *stats, float *scratch);
    void (*wgrad)(const rrfp_layer_call *call, const float *block);
} rrfp_layer_ops;

extern const rrfp_layer_ops rrfp_layer_gpt2;
extern const rrfp_layer_ops rrfp_layer_llama;

/* ---- a chunk (chunk.c) ---- */

/*
 * Offsets in floats of the caller's blocks.  C = B*T*hidden floats.
 *
 *  retained    | x0, later d(x0) | layer 0 block | layer 1 block | ... | head          |
 *              | C, embedding    |                                     | norm C        |
 *                                                                      | logits B*T*V  |
 *                                                                      | dgamma, dbeta |
 *  activation  | stats of layer 0 | stats of layer 1 | ... | head mean, rstd |
 *    recompute | x0 | x1 | ... | x of the head | head mean, rstd |
 *                (x0 only with the embedding: else it is the caller's input)
 *  scratch     forward            | layer scratch |
 *    recompute                    | layer block | stats | layer scratch |
 *              backward           | stream C | layer scratch or head's d(norm) C |
 *    recompute                    | stream C | stats | layer scratch |
 */
typedef struct rrfp_chunk_layout {
    uint64_t embedding_out; /* retained */
    uint64_t first_block;
    uint64_t block_floats;
    uint64_t block_output;
    uint64_t head_norm, head_logits, head_dgamma, head_dbeta;
    uint64_t retained_floats;
    uint64_t first_stats; /* activation */
    uint64_t stats_floats;
    uint64_t first_input;
    uint64_t input_floats;
    uint64_t head_mean, head_rstd;
    uint64_t activation_floats;
    uint64_t forward_stats, forward_scratch; /* scratch; the block lies at 0, and of a group of
                                                ranks, the embedding's share or the head's loss */
    uint64_t stream, backward_stats, backward_scratch;
    uint64_t scratch_floats;
} rrfp_chunk_layout;

struct rrfp_chunk {
    rrfp_model_config config;
    rrfp_collective *tensor; /* borrowed */
    rrfp_model_dims dims;
    rrfp_chunk_range range;
    const rrfp_layer_ops *ops;
    rrfp_chunk_layout layout;
    rrfp_param *params;
    uint32_t param_count;
    uint32_t first_layer_param; /* index into params */
    uint32_t head_param;
    float *values; /* all owned values; grads alike */
    float *grads;
    uint64_t value_floats, grad_floats;
};

const rrfp_layer_ops *rrfp_layer_ops_of(const rrfp_model_config *config);
void rrfp_chunk_plan(const rrfp_model_config *config, const rrfp_chunk_range *range,
                     rrfp_chunk_layout *layout);

#endif /* RRFP_MODEL_INTERNAL_H */
