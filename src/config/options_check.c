/* options_check.c - values that are legal one by one and impossible together. */
#include "config/options_table.h"

#include <inttypes.h>
#include <string.h>

#include "config/suggest.h"
#include "rrfp/hint.h"

static bool is_csv(const char *hint)
{
    size_t bytes = strlen(hint);

    return bytes >= 4 && strcmp(hint + bytes - 4, ".csv") == 0;
}

/* One count of "3,2,1"; moves *list behind its comma, to NULL after the last. */
static bool next_count(const char **list, uint32_t *count)
{
    const char *p = *list;
    uint64_t value = 0;

    if (*p < '0' || *p > '9') {
        return false;
    }
    for (; *p >= '0' && *p <= '9'; p++) {
        value = value * 10 + (uint64_t)(*p - '0');
        if (value > UINT32_MAX) {
            return false;
        }
    }
    if (*p != ',' && *p != '\0') {
        return false;
    }
    *list = *p == ',' ? p + 1 : NULL;
    *count = (uint32_t)value;
    return true;
}

rrfp_status rrfp_options_inflight(const rrfp_options *options, uint32_t *per_stage,
                                  rrfp_error *error)
{
    const char *text = options->max_inflight, *next;
    uint32_t stages = options->pipeline_model_parallel_size, counted = 0, value = 0;
    bool bad = false;

    if (strcmp(text, "auto") == 0) {
        for (uint32_t s = 0; s < stages; s++) {
            per_stage[s] = 0;
        }
        return RRFP_OK;
    }
    if (strcmp(text, "1f1b") == 0) {
        for (uint32_t s = 0; s < stages; s++) {
            per_stage[s] = stages - s;
        }
        return RRFP_OK;
    }
    for (next = text; next != NULL && !bad; counted++) {
        bad = !next_count(&next, &value) || value == 0 || value > RRFP_MAX_MICROBATCHES;
    }
    if (bad) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "--max-inflight '%.60s' is neither auto, 1f1b nor counts from 1 to "
                              "%d separated by commas",
                              text, RRFP_MAX_MICROBATCHES);
    }
    if (counted != 1 && counted != stages) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--max-inflight '%.60s' has %" PRIu32 " counts for %" PRIu32
                              " stages; give one, or one per stage",
                              text, counted, stages);
    }
    next = text;
    for (uint32_t s = 0; s < stages; s++) {
        if (next != NULL) {
            next_count(&next, &value);
        }
        per_stage[s] = value;
    }
    return RRFP_OK;
}

static rrfp_status check_hint(const rrfp_options *o, rrfp_error *error)
{
    const rrfp_hint_info *info = rrfp_hint_find(o->hint);
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;

    if (is_csv(o->hint)) {
        return RRFP_OK;
    }
    for (size_t i = 0; info == NULL && i < rrfp_hint_count(); i++) {
        size_t distance = rrfp_edit_distance(o->hint, rrfp_hint_at(i)->name);

        if (distance < best_distance) {
            best_distance = distance;
            best = rrfp_hint_at(i)->name;
        }
    }
    if (info == NULL) {
        if (best != NULL && rrfp_edit_is_near(o->hint, best_distance)) {
            return rrfp_error_set(error, RRFP_ERR_INVALID,
                                  "--hint '%.60s' is unknown; did you mean '%s'?", o->hint, best);
        }
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "--hint '%.60s' is unknown; 'rrfp hint --help' lists the names, a "
                              "file ends in .csv",
                              o->hint);
    }
    if (info->chunks != 0 && o->virtual_stages != info->chunks) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--hint %s needs --virtual-stages %" PRIu32 ", not %" PRIu32,
                              o->hint, info->chunks, o->virtual_stages);
    }
    if (o->virtual_stages < info->min_chunks) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--hint %s needs --virtual-stages %" PRIu32 " or more, not %" PRIu32,
                              o->hint, info->min_chunks, o->virtual_stages);
    }
    return RRFP_OK;
}

static rrfp_status check_pipeline(const rrfp_options *o, rrfp_error *error)
{
    uint32_t per_stage[RRFP_OPTIONS_MAX_STAGES];
    rrfp_status status = check_hint(o, error);

    if (status != RRFP_OK) {
        return status;
    }
    if (strcmp(o->order, "fixed") == 0 && o->hint_distance != 0 &&
        o->hint_distance != RRFP_DISTANCE_UNBOUNDED) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--order fixed and --hint-distance %" PRIu32 " contradict each "
                              "other: a fixed order overtakes nothing; leave one out",
                              o->hint_distance);
    }
    return rrfp_options_inflight(o, per_stage, error);
}

/* Layer counts per chunk; the sum is checked against `layers` unless that is 0. */
static rrfp_status check_layers(const rrfp_options *o, uint32_t layers, rrfp_error *error)
{
    uint32_t chunks = o->pipeline_model_parallel_size * o->virtual_stages, counted = 0, value = 0;
    uint64_t sum = 0;

    if (o->layers_per_chunk[0] == '\0') {
        return RRFP_OK;
    }
    for (const char *next = o->layers_per_chunk; next != NULL; counted++) {
        if (!next_count(&next, &value)) {
            return rrfp_error_set(error, RRFP_ERR_INVALID,
                                  "--layers-per-chunk '%.60s' is no list of counts separated by "
                                  "commas",
                                  o->layers_per_chunk);
        }
        sum += value;
    }
    if (counted != chunks) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--layers-per-chunk '%.60s' has %" PRIu32 " counts; %" PRIu32
                              " stages x %" PRIu32 " virtual stages need %" PRIu32,
                              o->layers_per_chunk, counted, o->pipeline_model_parallel_size,
                              o->virtual_stages, chunks);
    }
    if (layers != 0 && sum != layers) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--layers-per-chunk '%.60s' adds up to %" PRIu64
                              "; --num-layers is %" PRIu32,
                              o->layers_per_chunk, sum, layers);
    }
    return RRFP_OK;
}

static rrfp_status check_model(const rrfp_options *o, rrfp_error *error)
{
    bool llama = strcmp(o->model, "llama") == 0;
    uint32_t heads = o->num_attention_heads, groups = o->num_query_groups;
    uint64_t message_bytes = (uint64_t)o->micro_batch_size * o->seq_length;

    if (o->hidden_size % heads != 0) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--hidden-size %" PRIu32 " is not a multiple of "
                              "--num-attention-heads %" PRIu32,
                              o->hidden_size, heads);
    }
    if (!llama && groups != 0 && groups != heads) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--num-query-groups %" PRIu32 " with --model gpt2: only llama has "
                              "grouped queries; leave it out",
                              groups);
    }
    if (groups != 0 && heads % groups != 0) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--num-attention-heads %" PRIu32 " is not a multiple of "
                              "--num-query-groups %" PRIu32,
                              heads, groups);
    }
    if (llama && o->hidden_size / heads % 2 != 0) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--hidden-size %" PRIu32 " / --num-attention-heads %" PRIu32
                              " gives an odd head size; llama's rotary embedding needs an even "
                              "one",
                              o->hidden_size, heads);
    }
    if (o->max_position_embeddings != 0 && o->seq_length > o->max_position_embeddings) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--seq-length %" PRIu32 " exceeds --max-position-embeddings %" PRIu32,
                              o->seq_length, o->max_position_embeddings);
    }
    /* A message carries its size in 32 bits; the two factors above fit 37. */
    if (message_bytes > UINT32_MAX / sizeof(float) / o->hidden_size) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--micro-batch-size %" PRIu32 " x --seq-length %" PRIu32
                              " x --hidden-size %" PRIu32 " floats make a message over 4 GiB; "
                              "lower the micro batch size",
                              o->micro_batch_size, o->seq_length, o->hidden_size);
    }
    return check_layers(o, o->num_layers, error);
}

static rrfp_status check_batch(const rrfp_options *o, rrfp_error *error)
{
    if (o->global_batch_size % o->micro_batch_size != 0) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--global-batch-size %" PRIu32 " is not a multiple of "
                              "--micro-batch-size %" PRIu32,
                              o->global_batch_size, o->micro_batch_size);
    }
    if (o->global_batch_size / o->micro_batch_size > RRFP_MAX_MICROBATCHES) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--global-batch-size %" PRIu32 " / --micro-batch-size %" PRIu32
                              " gives over %d microbatches",
                              o->global_batch_size, o->micro_batch_size, RRFP_MAX_MICROBATCHES);
    }
    return RRFP_OK;
}

static rrfp_status check_training(const rrfp_options *o, rrfp_error *error)
{
    if (o->min_lr > o->lr) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--min-lr %g exceeds --lr %g; lower --min-lr", o->min_lr, o->lr);
    }
    if (o->lr_decay_iters != 0 && o->lr_warmup_iters > o->lr_decay_iters) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--lr-warmup-iters %" PRIu32 " exceeds --lr-decay-iters %" PRIu32,
                              o->lr_warmup_iters, o->lr_decay_iters);
    }
    if (o->eval_interval != 0 && o->valid_fraction == 0) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--eval-interval %" PRIu32 " with --valid-fraction 0: nothing is "
                              "kept to evaluate on",
                              o->eval_interval);
    }
    if (o->save_interval != 0 && o->save[0] == '\0') {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--save-interval %" PRIu32 " without --save DIR", o->save_interval);
    }
    return RRFP_OK;
}

static rrfp_status check_tokenizer(const rrfp_options *o, rrfp_error *error)
{
    bool bpe = strcmp(o->tokenizer_type, "gpt2-bpe") == 0;
    const char *given = o->vocab_file[0] != '\0' ? "vocab-file" : "merge-file";

    if (bpe && (o->vocab_file[0] == '\0' || o->merge_file[0] == '\0')) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--tokenizer-type gpt2-bpe needs --vocab-file and --merge-file; "
                              "%s%s%s missing",
                              o->vocab_file[0] == '\0' ? "--vocab-file" : "",
                              o->vocab_file[0] == '\0' && o->merge_file[0] == '\0' ? " and " : "",
                              o->merge_file[0] != '\0'   ? " is"
                              : o->vocab_file[0] == '\0' ? "--merge-file are"
                                                         : "--merge-file is");
    }
    if (!bpe && (o->vocab_file[0] != '\0' || o->merge_file[0] != '\0')) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "--%s has no use with --tokenizer-type byte; add --tokenizer-type "
                              "gpt2-bpe or leave it out",
                              given);
    }
    return RRFP_OK;
}

/* Inputs a subcommand cannot do without. */
static rrfp_status check_inputs(const rrfp_options *o, rrfp_command command, rrfp_error *error)
{
    const char *name = rrfp_command_find(command)->name;

    if (o->print_config) {
        return RRFP_OK;
    }
    if (command != RRFP_COMMAND_GENERATE && o->data_path_count == 0) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "'rrfp %s' needs data: --data-path FILE, or data-path in the TOML "
                              "file",
                              name);
    }
    if (command != RRFP_COMMAND_TRAIN && o->load[0] == '\0') {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "'rrfp %s' needs a checkpoint: --load DIR", name);
    }
    if (o->finetune && o->load[0] == '\0') {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "finetune needs weights to start from: --load DIR");
    }
    if (command == RRFP_COMMAND_GENERATE && o->prompt[0] == '\0') {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "'rrfp generate' needs a text to continue: --prompt TEXT");
    }
    return RRFP_OK;
}

rrfp_status rrfp_options_check(const rrfp_options *options, rrfp_command command,
                               rrfp_error *error)
{
    rrfp_status status;

    if (command == RRFP_COMMAND_DOCTOR) {
        return RRFP_OK;
    }
    status = check_pipeline(options, error);
    if (status != RRFP_OK || command == RRFP_COMMAND_HINT) {
        return status;
    }
    status = check_tokenizer(options, error);
    if (status == RRFP_OK && command != RRFP_COMMAND_GENERATE) {
        status = check_batch(options, error);
    }
    if (status == RRFP_OK && command == RRFP_COMMAND_TRAIN) {
        status = check_model(options, error);
    }
    if (status == RRFP_OK && command == RRFP_COMMAND_TRAIN) {
        status = check_training(options, error);
    }
    /* The layer count of eval and generate is the checkpoint's. */
    if (status == RRFP_OK && command != RRFP_COMMAND_TRAIN) {
        status = check_layers(options, 0, error);
    }
    return status == RRFP_OK ? check_inputs(options, command, error) : status;
}
