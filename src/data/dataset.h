/*
 * dataset.h - token streams from files, and which sample comes next.
 *
 * Inputs, told apart by content (but a .bin or .idx file is never text):
 *   text            any file(s); encoded with the tokenizer at open
 *   Megatron        PREFIX.bin + PREFIX.idx (give PREFIX or either file)
 *   llm.c shards    .bin with magic 20240520 (GPT-2, u16) or 20240801 (Llama 3, u32)
 * Token files, and text under the byte tokenizer, are read by mmap and never
 * copied whole.  Several files are joined in the order given, nothing between
 * them; text is encoded file by file.
 *
 * A sample is T+1 consecutive tokens: T inputs and their T targets.  The
 * stream is cut into floor((n-1)/T) samples, the last `valid_fraction` of them
 * are the validation split.  Training visits every sample once per epoch in an
 * order that is a pure function of (seed, epoch): sample i of the run needs no
 * state but i, so resuming at the exact sample is only arithmetic.
 *
 * Thread-safety: immutable after open; rrfp_dataset_sample may be called from
 * several threads.
 */
#ifndef RRFP_DATASET_H
#define RRFP_DATASET_H

#include "data/tokenizer.h"

typedef struct rrfp_dataset rrfp_dataset;

typedef struct rrfp_dataset_config {
    const char *const *paths; /* borrowed during open */
    size_t path_count;
    const rrfp_tokenizer *tokenizer; /* for text; may be NULL for token files */
    uint32_t seq_length;             /* T */
    uint32_t vocab;                  /* tokens at or above are refused, naming file and place */
    double valid_fraction;           /* e.g. 0.05 */
    uint64_t seed;
} rrfp_dataset_config;

rrfp_status rrfp_dataset_open(const rrfp_dataset_config *config, rrfp_dataset **out,
                              rrfp_error *error);
void rrfp_dataset_close(rrfp_dataset *dataset); /* NULL is fine */

typedef enum rrfp_split { RRFP_SPLIT_TRAIN = 0, RRFP_SPLIT_VALID = 1 } rrfp_split;

uint64_t rrfp_dataset_tokens(const rrfp_dataset *dataset);
uint64_t rrfp_dataset_samples(const rrfp_dataset *dataset, rrfp_split split);
/*
 * Entropy in nats of the token frequencies of the training split: the loss of a
 * model that knows only them.  Counts at most the first 50 million tokens, so
 * that it stays quick on any file; tokens outside the vocabulary are left out
 * (drawing their sample is the error).  Computed anew by each call; NaN when
 * there is no memory to count in.
 */
double rrfp_dataset_unigram_entropy(const rrfp_dataset *dataset);
/* Format seen, "text", "megatron" or "llm.c". */
const char *rrfp_dataset_format(const rrfp_dataset *dataset);

/*
 * Sample number `index` of the run: training wraps into epochs, each with its
 * own permutation; validation is in file order and wraps.  Writes T inputs
 * and T targets (targets[i] follows tokens[i]).  A split without samples is an error.
 */
rrfp_status rrfp_dataset_sample(const rrfp_dataset *dataset, rrfp_split split, uint64_t index,
                                int32_t *tokens, int32_t *targets, rrfp_error *error);

#endif /* RRFP_DATASET_H */
