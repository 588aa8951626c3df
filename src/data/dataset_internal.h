/*
 * dataset_internal.h - the token stream behind a dataset, and who fills it.
 *
 * The stream is a list of segments; a segment is a run of tokens that lie one
 * after the other in a mapped file or in memory:
 *
 *   stream   0 ........... 99 | 100 ...... 149 | 150 ................ 299
 *   segment  file 0, u16      | file 1, u16    | file 0, u16 (out of order in .idx)
 *
 * Token values are untrusted until a sample is drawn.
 */
#ifndef RRFP_DATASET_INTERNAL_H
#define RRFP_DATASET_INTERNAL_H

#include <stdbool.h>

#include "data/dataset.h"
#include "data/file_map.h"

typedef enum token_type {
    TOKEN_U8,
    TOKEN_I8,
    TOKEN_I16,
    TOKEN_I32,
    TOKEN_I64,
    TOKEN_U16,
    TOKEN_U32
} token_type;

typedef struct token_segment {
    uint64_t first;       /* place in the stream */
    uint64_t count;       /* > 0 */
    uint64_t file_offset; /* tokens before it in the data of its source, for messages */
    const uint8_t *bytes; /* little-endian, not necessarily aligned */
    token_type type;
    uint32_t source;
} token_segment;

/* What has to be kept alive, and named, while segments point into it. */
typedef struct token_source {
    char *path; /* the file that holds the tokens */
    rrfp_file_map map;
    int32_t *encoded; /* text encoded at open, else NULL */
} token_source;

struct rrfp_dataset {
    token_source *sources;
    uint32_t source_count, source_capacity;
    token_segment *segments;
    size_t segment_count, segment_capacity;
    uint64_t token_count;
    const char *format;
    uint32_t seq_length;
    uint32_t vocab;
    uint64_t seed;
    uint64_t train_samples, valid_samples;
};

static inline uint32_t rrfp_load_u32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

static inline uint64_t rrfp_load_u64(const uint8_t *bytes)
{
    return rrfp_load_u32(bytes) | (uint64_t)rrfp_load_u32(bytes + 4) << 32;
}

size_t rrfp_token_type_bytes(token_type type);

/*
 * Adds a source; *map and *encoded (either may be empty) are *taken* on success
 * and emptied.  The path is copied.
 */
rrfp_status rrfp_dataset_add_source(rrfp_dataset *dataset, const char *path, rrfp_file_map *map,
                                    int32_t **encoded, uint32_t *source, rrfp_error *error);
/* Appends `count` tokens to the stream; grows the last segment where they adjoin it. */
rrfp_status rrfp_dataset_add_tokens(rrfp_dataset *dataset, uint32_t source, token_type type,
                                    const uint8_t *bytes, uint64_t count, uint64_t file_offset,
                                    rrfp_error *error);

/* True when the bytes open with the magic number of a Megatron index. */
bool rrfp_megatron_is_index(const rrfp_file_map *map);
bool rrfp_llmc_is_shard(const rrfp_file_map *map);
/* Each appends one file (pair) to the stream; *map, not empty, is *taken* on success. */
rrfp_status rrfp_dataset_add_megatron(rrfp_dataset *dataset, const char *index_path,
                                      const char *bin_path, rrfp_error *error);
rrfp_status rrfp_dataset_add_llmc(rrfp_dataset *dataset, const char *path, rrfp_file_map *map,
                                  rrfp_error *error);
rrfp_status rrfp_dataset_add_text(rrfp_dataset *dataset, const char *path, rrfp_file_map *map,
                                  const rrfp_tokenizer *tokenizer, rrfp_error *error);

#endif /* RRFP_DATASET_INTERNAL_H */
