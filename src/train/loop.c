/* loop.c - a training run from the first line to the last; see loop.h. */
#include "train/loop.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic_file.h"
#include "train/pipeline_internal.h"
#include "train/report.h"
#include "train/schedule.h"

static volatile sig_atomic_t stop_signal;

static void on_signal(int number)
{
    stop_signal = number;
}

enum { TIME_IS_UP = -1 };

/* A signal, or that --exit-duration-in-mins has passed; context: the session. */
static int stop_wanted(void *context)
{
    const rrfp_session *session = context;
    double limit = session->options->exit_duration_in_mins;
    double minutes = (double)(rrfp_now_ns() - session->begin_ns) / 60e9;
    return stop_signal != 0 ? stop_signal : limit > 0.0 && minutes >= limit ? TIME_IS_UP : 0;
}

static void install_signals(struct sigaction old[2])
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    stop_signal = 0;
    sigaction(SIGINT, &action, &old[0]);
    sigaction(SIGTERM, &action, &old[1]);
}

static void restore_signals(const struct sigaction old[2])
{
    sigaction(SIGINT, &old[0], NULL);
    sigaction(SIGTERM, &old[1], NULL);
}

static rrfp_status save(const rrfp_session *session, rrfp_report *report, rrfp_error *error)
{
    size_t count;
    const rrfp_checkpoint_entry *entries = rrfp_pipeline_entries(session->pipeline, &count);
    rrfp_status status = rrfp_pipeline_collect(session->pipeline,
                                               RRFP_COLLECT_WEIGHTS | RRFP_COLLECT_MOMENTS, error);
    if (status == RRFP_OK && rrfp_session_leads(session)) {
        status = rrfp_checkpoint_save(session->options->save, &session->model, &session->state,
                                      entries, count, error);
    }
    rrfp_pipeline_forget(session->pipeline);
    if (status == RRFP_OK) {
        rrfp_report_note(report, "saved iteration %" PRIu64 " to %s", session->state.iteration,
                         session->options->save);
    }
    return status;
}

/* Samples of one global batch, of all validation samples when `batches` is 0. */
static rrfp_status evaluate(const rrfp_session *session, uint32_t batches, double *loss,
                            rrfp_error *error)
{
    uint64_t batch = session->options->global_batch_size;
    uint64_t samples = rrfp_dataset_samples(session->dataset, RRFP_SPLIT_VALID);
    uint64_t count = batches > 0 ? batches : samples / batch;
    double sum = 0.0;
    if (samples == 0 || count == 0) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "the validation split has %" PRIu64 " samples, an evaluation needs "
                              "one global batch of %" PRIu64 ": raise --valid-fraction",
                              samples, batch);
    }
    for (uint64_t i = 0; i < count; i++) {
        double one;
        rrfp_status status = rrfp_pipeline_eval_step(session->pipeline, i * batch, &one, error);
        if (status != RRFP_OK) {
            return status;
        }
        sum += one;
    }
    *loss = sum / (double)count;
    return RRFP_OK;
}

/* *stop: why all ranks end after this step, 0 if they do not. */
static rrfp_status train_one(rrfp_session *session, rrfp_report *report, int *stop,
                             rrfp_error *error)
{
    const rrfp_options *options = session->options;
    rrfp_checkpoint_state *state = &session->state;
    uint64_t iteration = state->iteration + 1;
    rrfp_train_step step = {
        .iteration = iteration,
        .first_sample = state->consumed_samples,
        .clip_grad = options->clip_grad,
        .adamw = {.lr = (float)rrfp_learning_rate(options, iteration),
                  .beta1 = (float)options->adam_beta1,
                  .beta2 = (float)options->adam_beta2,
                  .eps = (float)options->adam_eps,
                  .weight_decay = (float)options->weight_decay,
                  .step = state->adam_step + 1},
    };
    rrfp_step_result result;
    rrfp_status status = rrfp_pipeline_train_step(session->pipeline, &step, &result, error);
    if (status != RRFP_OK) {
        return status;
    }
    *stop = result.stop;
    state->iteration = iteration;
    state->consumed_samples += options->global_batch_size;
    if (result.nonfinite) {
        state->skipped_iterations++;
        state->nan_iterations++;
    } else {
        state->adam_step++;
    }
    rrfp_step_record record = {iteration,      result.loss,   result.grad_norm,
                               step.adamw.lr,  result.wall_s, result.nonfinite};
    status = rrfp_report_step(report, session, &record, &result, error);
    if (status == RRFP_OK && result.nonfinite && strcmp(options->on_nonfinite, "stop") == 0) {
        return rrfp_error_set(error, RRFP_ERR_NONFINITE,
                              "iteration %" PRIu64 ": loss or gradient norm is not finite; no "
                              "parameter was changed (--on-nonfinite skip goes on)",
                              iteration);
    }
    return status;
}

static bool due(uint32_t interval, uint64_t iteration)
{
    return interval > 0 && iteration % interval == 0;
}

static rrfp_status train_all(rrfp_session *session, rrfp_report *report, rrfp_error *error)
{
    const rrfp_options *options = session->options;
    uint64_t saved = UINT64_MAX;
    rrfp_status status = RRFP_OK;
    while (status == RRFP_OK && session->state.iteration < options->train_iters) {
        int stop = 0;
        status = train_one(session, report, &stop, error);
        uint64_t iteration = session->state.iteration;
        if (status == RRFP_OK && due(options->eval_interval, iteration)) {
            double loss;
            status = evaluate(session, options->eval_iters, &loss, error);
            if (status == RRFP_OK) {
                rrfp_report_eval(report, iteration, loss);
            }
        }
        if (status == RRFP_OK && options->save[0] != '\0' &&
            due(options->save_interval, iteration)) {
            status = save(session, report, error);
            saved = iteration;
        }
        if (session->ranks == NULL && stop_signal != 0) {
            stop = stop_signal; /* several processes end together, as the step's verdict says */
        }
        if (status == RRFP_OK && stop == TIME_IS_UP) {
            rrfp_report_note(report, "time is up: ending after iteration %" PRIu64, iteration);
            break;
        }
        if (status == RRFP_OK && stop != 0) {
            rrfp_report_note(report, "%s: ending after iteration %" PRIu64,
                             stop == SIGINT ? "interrupted" : "asked to stop", iteration);
            break;
        }
    }
    if (status == RRFP_OK && options->save[0] != '\0' && saved != session->state.iteration) {
        status = save(session, report, error);
    }
    return status;
}

/* A path that cannot be written is better known before the first step than after the last. */
static rrfp_status prepare_files(const rrfp_options *options, rrfp_error *error)
{
    char latest[sizeof options->save + 64] = "";
    if (options->save[0] != '\0') {
        snprintf(latest, sizeof latest, "%s/latest_checkpointed_iteration.txt", options->save);
    }
    const char *const paths[] = {options->trace, options->trace_svg, options->summary, latest};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        if (paths[i][0] != '\0') {
            rrfp_status status = rrfp_atomic_file_prepare(paths[i], error);
            if (status != RRFP_OK) {
                return status;
            }
        }
    }
    return RRFP_OK;
}

static rrfp_status write_files(const rrfp_session *session, rrfp_report *report, rrfp_error *error)
{
    const rrfp_options *options = session->options;
    const rrfp_trace *trace = rrfp_pipeline_trace(session->pipeline);
    rrfp_trace_labels labels = {options->order, rrfp_pipeline_hint(session->pipeline)->name,
                                "rrfp train"};
    unsigned what = (options->trace[0] != '\0' || options->trace_svg[0] != '\0'
                         ? RRFP_COLLECT_TRACE
                         : 0) |
                    (options->summary[0] != '\0' ? RRFP_COLLECT_WEIGHTS : 0);
    rrfp_status status = rrfp_pipeline_collect(session->pipeline, what, error);
    if (status != RRFP_OK || !rrfp_session_leads(session)) {
        return status;
    }
    if (options->trace[0] != '\0') {
        status = rrfp_trace_write_chrome(trace, &labels, options->trace, error);
    }
    if (status == RRFP_OK && options->trace_svg[0] != '\0' && report->step_count > 0) {
        status = rrfp_trace_write_svg(trace, &labels, session->state.iteration,
                                      options->trace_svg, error);
    }
    if (status == RRFP_OK && options->summary[0] != '\0') {
        status = rrfp_report_write_json(report, session, options->summary, error);
    }
    return status;
}

/* From the model to the last file. */
static rrfp_status run(rrfp_session *session, rrfp_report *report, const rrfp_options *options,
                       rrfp_ranks *ranks, rrfp_error *error)
{
    struct sigaction old[2];
    rrfp_status status = rrfp_session_open_model(session, options, error);
    session->ranks = ranks;
    session->stop_wanted = stop_wanted;
    session->begin_ns = rrfp_now_ns();
    if (status == RRFP_OK && rrfp_session_leads(session)) {
        status = prepare_files(options, error);
    }
    if (status == RRFP_OK) {
        status = rrfp_session_open_pipeline(session, true, error);
    }
    if (status == RRFP_OK) {
        if (session->load_path[0] != '\0' && session->state.iteration > 0 &&
            session->state.seed != options->seed) {
            rrfp_report_note(report,
                             "warning: the checkpoint was trained with --seed %" PRIu64
                             ", this run has %" PRIu64 ": it is not a bit-equal continuation",
                             session->state.seed, options->seed);
        }
        session->state.seed = options->seed;
        report->skipped = session->state.skipped_iterations;
        report->nonfinite = session->state.nan_iterations;
        rrfp_report_header(report, session);
        session->begin_ns = rrfp_now_ns();
        install_signals(old);
        status = train_all(session, report, error);
        restore_signals(old);
    }
    if (status == RRFP_OK) {
        status = rrfp_pipeline_collect(session->pipeline, RRFP_COLLECT_TOTALS, error);
    }
    if (status == RRFP_OK) {
        rrfp_report_summary(report, session);
    }
    if (status == RRFP_OK || status == RRFP_ERR_NONFINITE) {
        rrfp_error later; /* the first error is the one to tell */
        rrfp_status written = write_files(session, report, &later);
        if (status == RRFP_OK && written != RRFP_OK) {
            *error = later;
            status = written;
        }
    }
    return status;
}

/* All ranks must have been given the same options; where data lies may differ by host. */
static rrfp_status compare_options(rrfp_ranks *ranks, const rrfp_options *options,
                                   rrfp_error *error)
{
    char *mine = NULL, *theirs = NULL;
    size_t bytes = 0;
    uint64_t their_bytes = 0;
    FILE *text = open_memstream(&mine, &bytes);
    if (text == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for the options");
    }
    rrfp_options_print_toml(options, RRFP_COMMAND_TRAIN, text);
    fclose(text);
    their_bytes = bytes;
    rrfp_status status = rrfp_world_broadcast(ranks->world, &their_bytes, sizeof their_bytes,
                                              error);
    if (status == RRFP_OK) {
        theirs = calloc(1, (size_t)their_bytes + 1);
        status = theirs == NULL ? rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory") : RRFP_OK;
    }
    if (status == RRFP_OK) {
        memcpy(theirs, mine, bytes < their_bytes ? bytes : (size_t)their_bytes);
        status = rrfp_world_broadcast(ranks->world, theirs, (size_t)their_bytes, error);
    }
    char *a = mine, *b = theirs;
    while (status == RRFP_OK && (a != NULL || b != NULL)) {
        const char *ours = a == NULL ? "nothing" : strsep(&a, "\n");
        const char *wanted = b == NULL ? "nothing" : strsep(&b, "\n");
        if (strcmp(ours, wanted) != 0 && strncmp(ours, "data-path", 9) != 0) {
            status = rrfp_error_set(error, RRFP_ERR_INVALID,
                                    "rank %u was started with %.150s, rank 0 with %.150s: give all "
                                    "the same",
                                    ranks->environment.rank, ours, wanted);
        }
    }
    free(mine);
    free(theirs);
    return status;
}

/* Which rank it was, and the others are told unless they know. */
static void tell_of_failure(rrfp_ranks *ranks, rrfp_error *error)
{
    rrfp_error named;
    rrfp_error_set(&named, error->status, "rank %u: %.490s", ranks->environment.rank, error->text);
    if (error->status != RRFP_ERR_NONFINITE) { /* which all have seen */
        rrfp_world_fail(ranks->world, error);
    }
    *error = named;
}

rrfp_status rrfp_train_run(const rrfp_options *options, FILE *out, rrfp_error *error)
{
    rrfp_session session = {0};
    rrfp_report report;
    rrfp_ranks ranks;
    FILE *nowhere = NULL;
    rrfp_status status = rrfp_ranks_open(&ranks, options->peer_timeout, error);
    bool together = status == RRFP_OK && ranks.world != NULL;
    if (together && ranks.environment.rank != 0) {
        nowhere = fopen("/dev/null", "w");
        if (nowhere == NULL) {
            status = rrfp_error_set(error, RRFP_ERR_IO, "cannot open /dev/null: %s",
                                    strerror(errno));
        }
    }
    rrfp_report_begin(&report, nowhere != NULL ? nowhere : out);
    if (status == RRFP_OK && together) {
        status = compare_options(&ranks, options, error);
    }
    if (status == RRFP_OK) {
        status = run(&session, &report, options, together ? &ranks : NULL, error);
    }
    if (status != RRFP_OK && together) {
        tell_of_failure(&ranks, error);
    }
    rrfp_session_close(&session);
    rrfp_report_end(&report);
    if (nowhere != NULL) {
        fclose(nowhere);
    }
    rrfp_ranks_close(&ranks);
    return status;
}

rrfp_status rrfp_eval_run(const rrfp_options *options, FILE *out, rrfp_error *error)
{
    rrfp_session session;
    double loss = 0.0;
    rrfp_report report;
    rrfp_report_begin(&report, out);
    rrfp_status status = rrfp_session_open_model(&session, options, error);
    if (status == RRFP_OK) {
        status = rrfp_session_open_pipeline(&session, false, error);
    }
    if (status == RRFP_OK) {
        status = evaluate(&session, options->eval_iters, &loss, error);
    }
    if (status == RRFP_OK) {
        rrfp_report_eval(&report, session.state.iteration, loss);
    }
    rrfp_session_close(&session);
    rrfp_report_end(&report);
    return status;
}
