/*
 * session.h - from options to what a run needs: text, model, pipeline.
 *
 * Thread-safety: one thread.
 */
#ifndef RRFP_SESSION_H
#define RRFP_SESSION_H

#include "config/options.h"
#include "data/dataset.h"
#include "train/pipeline.h"

typedef struct rrfp_session {
    const rrfp_options *options; /* borrowed */
    rrfp_tokenizer *tokenizer;
    rrfp_dataset *dataset; /* NULL for generation */
    rrfp_model_config model;
    char load_path[1024]; /* resolved checkpoint directory, "" when there is none */
    rrfp_checkpoint_state state;
    rrfp_pipeline *pipeline; /* NULL for generation */
    rrfp_ranks *ranks;       /* borrowed; NULL: alone */
    int (*stop_wanted)(void *context); /* see pipeline.h; context: the session */
    uint64_t begin_ns;                 /* of training */
} rrfp_session;

/* Rank 0, or alone: who prints and writes files. */
static inline bool rrfp_session_leads(const rrfp_session *session)
{
    return session->ranks == NULL || session->ranks->environment.rank == 0;
}

/* Tokenizer, and the model's dimensions: from --load when given, else from the options. */
rrfp_status rrfp_session_open_model(rrfp_session *session, const rrfp_options *options,
                                    rrfp_error *error);
/* Then, after the fields `ranks` and `stop_wanted` were set, the data and the pipeline, and the checkpoint's weights; `with_optimizer` also takes its
 * moments and counters when it has them. */
rrfp_status rrfp_session_open_pipeline(rrfp_session *session, bool with_optimizer,
                                       rrfp_error *error);
void rrfp_session_close(rrfp_session *session); /* a zeroed session is fine */

#endif /* RRFP_SESSION_H */
