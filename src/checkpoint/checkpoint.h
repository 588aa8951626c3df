/*
 * checkpoint.h - a training state as a directory others can read.
 *
 *   DIR/latest_checkpointed_iteration.txt    the newest complete iteration
 *   DIR/iter_0000100/config.json             Hugging Face GPT-2 or Llama
 *   DIR/iter_0000100/model.safetensors       Hugging Face tensor names, F32
 *   DIR/iter_0000100/optimizer.safetensors   NAME.exp_avg, NAME.exp_avg_sq; metadata:
 *                                            iteration, consumed_samples, adam_step, and the
 *                                            SHA-256 of model.safetensors' data, so that files
 *                                            of different saves never mix
 *
 * The iteration directory is written under a temporary name and renamed when
 * all its files are on disk; `latest` is replaced last.  A crash at any moment
 * leaves the previous checkpoint loadable.  Nothing here depends on the
 * pipeline shape: tensors are found by name.
 */
#ifndef RRFP_CHECKPOINT_H
#define RRFP_CHECKPOINT_H

#include "checkpoint/safetensors.h"
#include "model/model.h"

/* A parameter and its optimizer state; all borrowed. */
typedef struct rrfp_checkpoint_entry {
    const rrfp_param *param;
    float *exp_avg;    /* count floats; NULL when there is no optimizer state */
    float *exp_avg_sq;
    bool elsewhere;    /* another process has it: a load checks its tensors and fills nothing */
} rrfp_checkpoint_entry;

typedef struct rrfp_checkpoint_state {
    uint64_t iteration;
    uint64_t consumed_samples;
    uint64_t adam_step;
    uint64_t seed; /* of the run that saved; a resume with another seed warns */
    uint32_t skipped_iterations, nan_iterations;
} rrfp_checkpoint_state;

/* Saves; entries in any order; tied copies are skipped.  Creates DIR when missing. */
rrfp_status rrfp_checkpoint_save(const char *dir, const rrfp_model_config *model,
                                 const rrfp_checkpoint_state *state,
                                 const rrfp_checkpoint_entry *entries, size_t entry_count,
                                 rrfp_error *error);

/*
 * Finds what to load: DIR itself when it holds model.safetensors (a foreign
 * Hugging Face directory too), else the iteration named by latest_...txt.
 * `path_out` receives the directory.
 */
rrfp_status rrfp_checkpoint_resolve(const char *dir, char *path_out, size_t path_bytes,
                                    rrfp_error *error);

/* Reads config.json of a resolved directory into a model config: dimensions and arch only. */
rrfp_status rrfp_checkpoint_read_config(const char *path, rrfp_model_config *model,
                                        rrfp_error *error);

/*
 * Loads values (tied copies are filled from the same tensor) and, when
 * `with_optimizer`, moments and state.  Every tensor of the file must be
 * wanted and every wanted one present with equal shape; F32, BF16, F16 are
 * read; a `transformer.` prefix and `.attn.bias` mask buffers of GPT-2 files
 * are accepted.  All checks come before the first value is written.
 */
rrfp_status rrfp_checkpoint_load(const char *path, const rrfp_checkpoint_entry *entries,
                                 size_t entry_count, bool with_optimizer,
                                 rrfp_checkpoint_state *state, rrfp_error *error);

/* SHA-256 (hex, 65 bytes with NUL) over all parameter values in global_index order. */
void rrfp_checkpoint_weights_sha256(const rrfp_param *const *params, size_t count,
                                    char hex_out[65]);

#endif /* RRFP_CHECKPOINT_H */
