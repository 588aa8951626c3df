/* session.c - see session.h. */
#include "train/session.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static rrfp_status open_tokenizer(rrfp_session *session, rrfp_error *error)
{
    const rrfp_options *options = session->options;
    if (strcmp(options->tokenizer_type, "gpt2-bpe") == 0) {
        return rrfp_tokenizer_open_bpe(options->vocab_file, options->merge_file,
                                       &session->tokenizer, error);
    }
    return rrfp_tokenizer_open_byte(&session->tokenizer, error);
}

/* What the options say of the model. */
static void model_from_options(const rrfp_options *options, rrfp_model_config *model)
{
    memset(model, 0, sizeof *model);
    model->arch = strcmp(options->model, "llama") == 0 ? RRFP_ARCH_LLAMA : RRFP_ARCH_GPT2;
    model->num_layers = options->num_layers;
    model->hidden = options->hidden_size;
    model->heads = options->num_attention_heads;
    model->kv_heads = options->num_query_groups;
    model->ffn_hidden = options->ffn_hidden_size;
    model->vocab = options->vocab_size;
    model->max_positions = options->max_position_embeddings;
    model->norm_eps = (float)options->norm_epsilon;
    model->rope_theta = (float)options->rotary_base;
    model->tied = !options->untie_embeddings_and_output_weights;
}

/* A dimension that was set on purpose and contradicts the checkpoint is refused, not ignored. */
static rrfp_status check_dimension(const char *name, uint32_t wanted, uint32_t standard,
                                   uint32_t loaded, const char *path, rrfp_error *error)
{
    if (wanted == loaded || wanted == standard) {
        return RRFP_OK;
    }
    return rrfp_error_set(error, RRFP_ERR_INVALID,
                          "--%s %u contradicts the checkpoint %.200s, which has %u: leave it out",
                          name, wanted, path, loaded);
}

static rrfp_status model_from_checkpoint(rrfp_session *session, rrfp_error *error)
{
    const rrfp_options *options = session->options;
    rrfp_model_config *model = &session->model;
    rrfp_options *standard = malloc(sizeof *standard);
    if (standard == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory");
    }
    rrfp_options_defaults(standard);
    rrfp_status status = rrfp_checkpoint_resolve(options->load, session->load_path,
                                                 sizeof session->load_path, error);
    if (status == RRFP_OK) {
        status = rrfp_checkpoint_read_config(session->load_path, model, error);
    }
    const struct {
        const char *name;
        uint32_t wanted, standard, loaded;
    } rows[] = {
        {"num-layers", options->num_layers, standard->num_layers, model->num_layers},
        {"hidden-size", options->hidden_size, standard->hidden_size, model->hidden},
        {"num-attention-heads", options->num_attention_heads, standard->num_attention_heads,
         model->heads},
        {"num-query-groups", options->num_query_groups, standard->num_query_groups,
         model->kv_heads},
        {"ffn-hidden-size", options->ffn_hidden_size, standard->ffn_hidden_size,
         model->ffn_hidden},
        {"vocab-size", options->vocab_size, standard->vocab_size, model->vocab},
        {"max-position-embeddings", options->max_position_embeddings,
         standard->max_position_embeddings, model->max_positions},
    };
    for (size_t i = 0; status == RRFP_OK && i < sizeof rows / sizeof rows[0]; i++) {
        status = check_dimension(rows[i].name, rows[i].wanted, rows[i].standard, rows[i].loaded,
                                 session->load_path, error);
    }
    /* The window of a model with learned positions is at most its table. */
    model->seq_length = options->seq_length;
    if (options->seq_length == standard->seq_length && model->arch == RRFP_ARCH_GPT2 &&
        model->max_positions < options->seq_length) {
        model->seq_length = model->max_positions;
    }
    free(standard);
    return status;
}

rrfp_status rrfp_session_open_model(rrfp_session *session, const rrfp_options *options,
                                    rrfp_error *error)
{
    memset(session, 0, sizeof *session);
    session->options = options;
    rrfp_status status = open_tokenizer(session, error);
    if (status != RRFP_OK) {
        return status;
    }
    rrfp_model_config *model = &session->model;
    if (options->load[0] != '\0') {
        status = model_from_checkpoint(session, error);
        if (status != RRFP_OK) {
            return status;
        }
    } else {
        model_from_options(options, model);
        model->seq_length = options->seq_length;
        if (model->vocab == 0) {
            model->vocab = rrfp_tokenizer_vocab(session->tokenizer);
        }
    }
    if (model->vocab < rrfp_tokenizer_vocab(session->tokenizer)) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "the model's vocabulary of %u is smaller than the %s tokenizer's %u: "
                              "choose the tokenizer the model was made with (--tokenizer-type) or "
                              "another --vocab-size",
                              model->vocab, rrfp_tokenizer_name(session->tokenizer),
                              rrfp_tokenizer_vocab(session->tokenizer));
    }
    model->micro_batch = options->micro_batch_size;
    model->dropout = (float)options->dropout;
    model->recompute = options->recompute_activations;
    model->seed = options->seed;
    return rrfp_model_config_finish(model, error);
}

static rrfp_status fetch(void *context, bool evaluation, uint64_t first_sample, int32_t *tokens,
                         int32_t *targets, rrfp_error *error)
{
    const rrfp_session *session = context;
    rrfp_split split = evaluation ? RRFP_SPLIT_VALID : RRFP_SPLIT_TRAIN;
    for (uint32_t b = 0; b < session->model.micro_batch; b++) {
        size_t offset = (size_t)b * session->model.seq_length;
        rrfp_status status = rrfp_dataset_sample(session->dataset, split, first_sample + b,
                                                 tokens + offset, targets + offset, error);
        if (status != RRFP_OK) {
            return status;
        }
    }
    return RRFP_OK;
}

static rrfp_status open_dataset(rrfp_session *session, rrfp_error *error)
{
    const rrfp_options *options = session->options;
    const char *paths[RRFP_OPTIONS_MAX_PATHS];
    for (uint32_t i = 0; i < options->data_path_count; i++) {
        paths[i] = options->data_path[i];
    }
    rrfp_dataset_config config = {
        .paths = paths,
        .path_count = options->data_path_count,
        .tokenizer = session->tokenizer,
        .seq_length = session->model.seq_length,
        .vocab = session->model.vocab,
        .valid_fraction = options->valid_fraction,
        .seed = options->seed,
    };
    return rrfp_dataset_open(&config, &session->dataset, error);
}

/* "3,3,2,2" -> counts; the number of entries must be the number of global chunks. */
static rrfp_status parse_layer_counts(const rrfp_options *options, uint32_t *counts,
                                      uint32_t chunk_count, rrfp_error *error)
{
    const char *text = options->layers_per_chunk;
    uint32_t n = 0;
    for (const char *p = text; *p != '\0';) {
        char *end;
        unsigned long value = strtoul(p, &end, 10);
        if (end == p || value > UINT32_MAX || (*end != ',' && *end != '\0') || n == chunk_count) {
            n = UINT32_MAX;
            break;
        }
        counts[n++] = (uint32_t)value;
        p = *end == ',' ? end + 1 : end;
    }
    if (n != chunk_count) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "--layers-per-chunk %.200s: give one count for each of the %u chunks, "
                              "separated by commas",
                              text, chunk_count);
    }
    return RRFP_OK;
}

static rrfp_status create_pipeline(rrfp_session *session, rrfp_error *error)
{
    const rrfp_options *options = session->options;
    uint32_t stages = options->pipeline_model_parallel_size;
    uint32_t chunk_count = stages * options->virtual_stages;
    uint32_t *inflight = calloc(stages, sizeof *inflight);
    uint32_t *layers = calloc(chunk_count, sizeof *layers);
    rrfp_budget *budgets = calloc(stages, sizeof *budgets);
    rrfp_status status = RRFP_OK;
    rrfp_pipeline_config config = {
        .model = session->model,
        .hint = options->hint,
        .stages = stages,
        .chunks = options->virtual_stages,
        .microbatches = options->global_batch_size / options->micro_batch_size,
        .hint_distance = strcmp(options->order, "fixed") == 0 ? 0 : options->hint_distance,
        .budgets = budgets,
        .accumulate = strcmp(options->accumulate, "arrival") == 0 ? RRFP_ACCUMULATE_ARRIVAL
                                                                  : RRFP_ACCUMULATE_ORDERED,
        .threads_per_stage = (int)options->threads_per_stage,
        .bf16_messages = strcmp(options->message_dtype, "bf16") == 0,
        .bind_cpus = strcmp(options->cpu_bind, "share") == 0,
        .bind_launched = session->ranks != NULL && options->nproc == 1,
        .record_trace = options->trace[0] != '\0' || options->trace_svg[0] != '\0',
        .fetch = fetch,
        .fetch_context = session,
        .stop_wanted = session->stop_wanted,
        .stop_context = session,
        .ranks = session->ranks,
    };
    if (inflight == NULL || layers == NULL || budgets == NULL) {
        status = rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory");
    }
    if (status == RRFP_OK) {
        status = rrfp_options_inflight(options, inflight, error);
    }
    if (status == RRFP_OK) {
        status = rrfp_jitter_parse(options->jitter, options->jitter_seed, &config.jitter, error);
    }
    if (status == RRFP_OK && options->layers_per_chunk[0] != '\0') {
        status = parse_layer_counts(options, layers, chunk_count, error);
        config.layer_counts = layers;
    }
    for (uint32_t s = 0; status == RRFP_OK && s < stages; s++) {
        budgets[s] = (rrfp_budget){inflight[s], options->max_pending_w,
                                   options->max_inflight_bytes};
    }
    if (status == RRFP_OK) {
        status = rrfp_pipeline_create(&config, &session->pipeline, error);
    }
    free(inflight);
    free(layers);
    free(budgets);
    return status;
}

rrfp_status rrfp_session_open_pipeline(rrfp_session *session, bool with_optimizer,
                                       rrfp_error *error)
{
    rrfp_status status = open_dataset(session, error);
    if (status == RRFP_OK) {
        status = create_pipeline(session, error);
    }
    if (status != RRFP_OK || session->load_path[0] == '\0') {
        return status;
    }
    size_t count;
    char optimizer_path[1100];
    const rrfp_checkpoint_entry *entries = rrfp_pipeline_entries(session->pipeline, &count);
    snprintf(optimizer_path, sizeof optimizer_path, "%s/optimizer.safetensors",
             session->load_path);
    bool has_optimizer = !session->options->finetune && access(optimizer_path, F_OK) == 0;
    status = rrfp_checkpoint_load(session->load_path, entries, count,
                                  with_optimizer && has_optimizer, &session->state, error);
    return status == RRFP_OK ? rrfp_pipeline_adopt(session->pipeline,
                                                   with_optimizer && has_optimizer, error)
                             : status;
}

void rrfp_session_close(rrfp_session *session)
{
    rrfp_pipeline_destroy(session->pipeline);
    rrfp_dataset_close(session->dataset);
    rrfp_tokenizer_close(session->tokenizer);
    memset(session, 0, sizeof *session);
}
