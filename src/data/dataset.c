/* dataset.c - telling formats apart, the token stream, splits and samples. */
#include "data/dataset_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/sample_order.h"

static const uint64_t entropy_token_limit = 50000000;

size_t rrfp_token_type_bytes(token_type type)
{
    switch (type) {
    case TOKEN_U8:
    case TOKEN_I8:
        return 1;
    case TOKEN_I16:
    case TOKEN_U16:
        return 2;
    case TOKEN_I32:
    case TOKEN_U32:
        return 4;
    case TOKEN_I64:
        return 8;
    }
    return 0;
}

static int64_t load_token(const token_segment *segment, uint64_t i)
{
    const uint8_t *bytes = segment->bytes;

    switch (segment->type) {
    case TOKEN_U8:
        return bytes[i];
    case TOKEN_I8:
        return (int8_t)bytes[i];
    case TOKEN_I16:
        return (int16_t)(bytes[2 * i] | bytes[2 * i + 1] << 8);
    case TOKEN_U16:
        return bytes[2 * i] | bytes[2 * i + 1] << 8;
    case TOKEN_I32:
        return (int32_t)rrfp_load_u32(bytes + 4 * i);
    case TOKEN_U32:
        return rrfp_load_u32(bytes + 4 * i);
    case TOKEN_I64:
        return (int64_t)rrfp_load_u64(bytes + 8 * i);
    }
    return -1;
}

rrfp_status rrfp_dataset_add_source(rrfp_dataset *dataset, const char *path, rrfp_file_map *map,
                                    int32_t **encoded, uint32_t *source, rrfp_error *error)
{
    /* One per path of the configuration, for which open has made room. */
    char *copy = dataset->source_count < dataset->source_capacity ? strdup(path) : NULL;

    if (copy == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory to open '%s'", path);
    }
    *source = dataset->source_count++;
    dataset->sources[*source] = (token_source){.path = copy, .map = *map, .encoded = *encoded};
    *map = (rrfp_file_map){NULL, 0};
    *encoded = NULL;
    return RRFP_OK;
}

rrfp_status rrfp_dataset_add_tokens(rrfp_dataset *dataset, uint32_t source, token_type type,
                                    const uint8_t *bytes, uint64_t count, uint64_t file_offset,
                                    rrfp_error *error)
{
    token_segment *last =
        dataset->segment_count == 0 ? NULL : &dataset->segments[dataset->segment_count - 1];
    uint64_t total = 0;

    if (count == 0) {
        return RRFP_OK;
    }
    if (__builtin_add_overflow(dataset->token_count, count, &total) || total > INT64_MAX / 2) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "'%s' makes the stream longer than 2^62 tokens",
                              dataset->sources[source].path);
    }
    if (last != NULL && last->source == source && last->file_offset + last->count == file_offset) {
        last->count += count; /* sequences mostly follow one another: one segment for all */
        dataset->token_count = total;
        return RRFP_OK;
    }
    if (dataset->segment_count == dataset->segment_capacity) {
        size_t capacity = dataset->segment_capacity == 0 ? 8 : 2 * dataset->segment_capacity;
        token_segment *grown = NULL;
        if (capacity <= SIZE_MAX / sizeof *grown) {
            grown = realloc(dataset->segments, capacity * sizeof *grown);
        }
        if (grown == NULL) {
            return rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory for the index of '%s'",
                                  dataset->sources[source].path);
        }
        dataset->segments = grown;
        dataset->segment_capacity = capacity;
    }
    dataset->segments[dataset->segment_count++] = (token_segment){.first = dataset->token_count,
                                                                  .count = count,
                                                                  .file_offset = file_offset,
                                                                  .bytes = bytes,
                                                                  .type = type,
                                                                  .source = source};
    dataset->token_count = total;
    return RRFP_OK;
}

static bool ends_with(const char *text, const char *suffix)
{
    size_t text_bytes = strlen(text), suffix_bytes = strlen(suffix);

    return text_bytes > suffix_bytes && strcmp(text + text_bytes - suffix_bytes, suffix) == 0;
}

static rrfp_status set_format(rrfp_dataset *dataset, const char *format, const char *path,
                              rrfp_error *error)
{
    if (dataset->format != NULL && strcmp(dataset->format, format) != 0) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "'%s' is %s, the files before it are %s; give files of one format",
                              path, format, dataset->format);
    }
    dataset->format = format;
    return RRFP_OK;
}

/* Handles PREFIX, PREFIX.bin and PREFIX.idx; *found stays false if `path` is none of them. */
static rrfp_status try_megatron(rrfp_dataset *dataset, const char *path, bool *found,
                                rrfp_error *error)
{
    rrfp_status status = RRFP_OK;
    const bool exists = rrfp_file_is_regular(path);
    const bool has_suffix = ends_with(path, ".idx") || ends_with(path, ".bin");
    size_t prefix_bytes = strlen(path) - (exists && has_suffix ? 4 : 0);
    char *index_path = NULL;
    char *bin_path = NULL;
    rrfp_file_map map = {NULL, 0};

    if (exists && !has_suffix) {
        /* An index under any other name: without the name we cannot know its .bin. */
        status = rrfp_file_map_open(path, &map, error);
        if (status == RRFP_OK && rrfp_megatron_is_index(&map)) {
            status = rrfp_error_set(error, RRFP_ERR_INVALID,
                                    "'%s' is a Megatron index; name it PREFIX.idx, beside "
                                    "PREFIX.bin",
                                    path);
        }
        rrfp_file_map_close(&map);
        return status;
    }
    if (asprintf(&index_path, "%.*s.idx", (int)prefix_bytes, path) < 0) {
        index_path = NULL;
    }
    if (asprintf(&bin_path, "%.*s.bin", (int)prefix_bytes, path) < 0) {
        bin_path = NULL;
    }
    if (index_path == NULL || bin_path == NULL) {
        status = rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory to open '%s'", path);
    } else if (rrfp_file_is_regular(index_path)) {
        status = rrfp_file_map_open(index_path, &map, error);
        /* A bare prefix or an .idx can be nothing else; there a wrong magic number is an error. */
        *found = status == RRFP_OK &&
                 (!exists || ends_with(path, ".idx") || rrfp_megatron_is_index(&map));
        rrfp_file_map_close(&map);
        if (*found) {
            status = set_format(dataset, "megatron", path, error);
        }
        if (*found && status == RRFP_OK) {
            status = rrfp_dataset_add_megatron(dataset, index_path, bin_path, error);
        }
    } else if (!exists && rrfp_file_is_regular(bin_path)) {
        status = rrfp_error_set(error, RRFP_ERR_IO, "'%s' exists, but its index '%s' does not",
                                bin_path, index_path);
    }
    free(index_path);
    free(bin_path);
    return status;
}

static rrfp_status add_path(rrfp_dataset *dataset, const char *path,
                            const rrfp_tokenizer *tokenizer, rrfp_error *error)
{
    bool found = false;
    rrfp_file_map map = {NULL, 0};
    rrfp_status status = RRFP_OK;

    if (strcmp(path, "-") == 0) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "data cannot come from '-': give a file on disk, it is read more "
                              "than once");
    }
    status = try_megatron(dataset, path, &found, error);
    if (status != RRFP_OK || found) {
        return status;
    }
    status = rrfp_file_map_open(path, &map, error);
    if (status == RRFP_OK && map.size_bytes == 0) {
        status = rrfp_error_set(error, RRFP_ERR_FORMAT, "'%s' is empty; give a file with text or "
                                                        "tokens",
                                path);
    }
    if (status == RRFP_OK && ends_with(path, ".bin") && !rrfp_llmc_is_shard(&map)) {
        /* Read as text, the tokens of a lost index would silently train nonsense. */
        status = rrfp_error_set(error, RRFP_ERR_FORMAT,
                                "'%s' is no llm.c shard, and has no Megatron index beside it; put "
                                "its .idx there, or rename it if it is text",
                                path);
    }
    if (status == RRFP_OK) {
        const bool shard = rrfp_llmc_is_shard(&map);
        status = set_format(dataset, shard ? "llm.c" : "text", path, error);
        if (status == RRFP_OK) {
            status = shard ? rrfp_dataset_add_llmc(dataset, path, &map, error)
                           : rrfp_dataset_add_text(dataset, path, &map, tokenizer, error);
        }
    }
    rrfp_file_map_close(&map);
    return status;
}

static rrfp_status check_config(const rrfp_dataset_config *config, rrfp_error *error)
{
    if (config->path_count == 0) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "no data file given");
    }
    if (config->path_count > UINT32_MAX / 2) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "%zu data files are too many",
                              config->path_count);
    }
    if (config->seq_length == 0 || config->seq_length > INT32_MAX) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "a sequence length of %u is not between 1 and 2147483647",
                              (unsigned)config->seq_length);
    }
    if (config->vocab == 0 || config->vocab > INT32_MAX) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "a vocabulary of %u is not between 1 and 2147483647",
                              (unsigned)config->vocab);
    }
    if (!(config->valid_fraction >= 0.0 && config->valid_fraction < 1.0)) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "a validation fraction of %g is not at least 0 and below 1",
                              config->valid_fraction);
    }
    return RRFP_OK;
}

static rrfp_status cut_samples(rrfp_dataset *dataset, const rrfp_dataset_config *config,
                               rrfp_error *error)
{
    if (dataset->token_count <= config->seq_length) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "'%s'%s: %llu tokens in all, but one sample takes %llu (sequence "
                              "length + 1); give more data or a shorter sequence",
                              config->paths[0], config->path_count > 1 ? " and others" : "",
                              (unsigned long long)dataset->token_count,
                              (unsigned long long)config->seq_length + 1);
    }
    uint64_t samples = (dataset->token_count - 1) / config->seq_length;
    uint64_t valid = (uint64_t)((double)samples * config->valid_fraction);
    /* The product may round up to all of them; at least one is for training. */
    dataset->valid_samples = valid < samples ? valid : samples - 1;
    dataset->train_samples = samples - dataset->valid_samples;
    return RRFP_OK;
}

rrfp_status rrfp_dataset_open(const rrfp_dataset_config *config, rrfp_dataset **out,
                              rrfp_error *error)
{
    rrfp_dataset *dataset = NULL;
    rrfp_status status = check_config(config, error);

    if (status != RRFP_OK) {
        return status;
    }
    dataset = calloc(1, sizeof *dataset);
    if (dataset != NULL) {
        dataset->sources = calloc(config->path_count, sizeof *dataset->sources);
    }
    if (dataset == NULL || dataset->sources == NULL) {
        rrfp_dataset_close(dataset);
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory for a dataset of %zu files",
                              config->path_count);
    }
    dataset->source_capacity = (uint32_t)config->path_count;
    dataset->seq_length = config->seq_length;
    dataset->vocab = config->vocab;
    dataset->seed = config->seed;
    for (size_t i = 0; i < config->path_count && status == RRFP_OK; i++) {
        status = add_path(dataset, config->paths[i], config->tokenizer, error);
    }
    if (status == RRFP_OK) {
        status = cut_samples(dataset, config, error);
    }
    if (status != RRFP_OK) {
        rrfp_dataset_close(dataset);
        return status;
    }
    *out = dataset;
    return RRFP_OK;
}

void rrfp_dataset_close(rrfp_dataset *dataset)
{
    if (dataset == NULL) {
        return;
    }
    for (uint32_t i = 0; i < dataset->source_count; i++) {
        free(dataset->sources[i].path);
        free(dataset->sources[i].encoded);
        rrfp_file_map_close(&dataset->sources[i].map);
    }
    free(dataset->sources);
    free(dataset->segments);
    free(dataset);
}

uint64_t rrfp_dataset_tokens(const rrfp_dataset *dataset)
{
    return dataset->token_count;
}

uint64_t rrfp_dataset_samples(const rrfp_dataset *dataset, rrfp_split split)
{
    return split == RRFP_SPLIT_TRAIN ? dataset->train_samples : dataset->valid_samples;
}

const char *rrfp_dataset_format(const rrfp_dataset *dataset)
{
    return dataset->format;
}

double rrfp_dataset_unigram_entropy(const rrfp_dataset *dataset)
{
    uint64_t left = dataset->train_samples * dataset->seq_length + 1;
    uint64_t *counts = calloc(dataset->vocab, sizeof *counts);
    uint64_t total = 0;
    double entropy = 0.0;

    if (counts == NULL) {
        return NAN;
    }
    left = left < entropy_token_limit ? left : entropy_token_limit;
    for (size_t s = 0; s < dataset->segment_count && left > 0; s++) {
        const token_segment *segment = &dataset->segments[s];
        uint64_t take = segment->count < left ? segment->count : left;
        for (uint64_t i = 0; i < take; i++) {
            int64_t token = load_token(segment, i);
            if (token >= 0 && token < (int64_t)dataset->vocab) {
                counts[token]++;
                total++;
            }
        }
        left -= take;
    }
    for (uint32_t token = 0; token < dataset->vocab; token++) {
        if (counts[token] > 0) {
            double p = (double)counts[token] / (double)total;
            entropy -= p * log(p);
        }
    }
    free(counts);
    return entropy;
}

/* The segment that holds the token at `place` of the stream. */
static const token_segment *segment_at(const rrfp_dataset *dataset, uint64_t place)
{
    size_t low = 0, high = dataset->segment_count;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (dataset->segments[middle].first <= place) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &dataset->segments[low];
}

static rrfp_status refuse_token(const rrfp_dataset *dataset, const token_segment *segment,
                                uint64_t i, int64_t token, rrfp_error *error)
{
    return rrfp_error_set(error, RRFP_ERR_FORMAT,
                          "'%s': token %llu is %lld, outside the vocabulary of %u; use the model's "
                          "own tokenizer or a larger vocabulary",
                          dataset->sources[segment->source].path,
                          (unsigned long long)(segment->file_offset + i), (long long)token,
                          (unsigned)dataset->vocab);
}

rrfp_status rrfp_dataset_sample(const rrfp_dataset *dataset, rrfp_split split, uint64_t index,
                                int32_t *tokens, int32_t *targets, rrfp_error *error)
{
    const uint64_t samples = rrfp_dataset_samples(dataset, split);
    const uint32_t length = dataset->seq_length;
    uint64_t sample = 0;

    if (samples == 0) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "the validation split is empty; raise the validation fraction or "
                              "give more data");
    }
    if (split == RRFP_SPLIT_TRAIN) {
        sample = rrfp_sample_order(dataset->seed, index / samples, samples, index % samples);
    } else {
        sample = dataset->train_samples + index % samples;
    }
    const uint64_t first = sample * length;
    const token_segment *segment = segment_at(dataset, first);
    uint64_t at = first - segment->first;
    for (uint32_t i = 0; i <= length; i++, at++) {
        if (at == segment->count) {
            segment++;
            at = 0;
        }
        int64_t token = load_token(segment, at);
        if (token < 0 || token >= (int64_t)dataset->vocab) {
            return refuse_token(dataset, segment, at, token, error);
        }
        if (i < length) {
            tokens[i] = (int32_t)token;
        }
        if (i > 0) {
            targets[i - 1] = (int32_t)token;
        }
    }
    return RRFP_OK;
}
