/* loop.h - a whole training run, an evaluation, a generation. */
#ifndef RRFP_LOOP_H
#define RRFP_LOOP_H

#include <stdio.h>

#include "config/options.h"

/*
 * Trains as the options say and writes what they ask for.  SIGINT and SIGTERM
 * finish the step, save and end with RRFP_OK.  Lines go to `out`.
 */
rrfp_status rrfp_train_run(const rrfp_options *options, FILE *out, rrfp_error *error);

/* Mean loss and perplexity over the validation split (--eval-iters global batches; 0 = all). */
rrfp_status rrfp_eval_run(const rrfp_options *options, FILE *out, rrfp_error *error);

/* Continues --prompt by --max-new-tokens and prints the text. */
rrfp_status rrfp_generate_run(const rrfp_options *options, FILE *out, rrfp_error *error);

#endif /* RRFP_LOOP_H */
