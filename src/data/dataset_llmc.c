/*
 * dataset_llmc.c - llm.c token shards.
 *
 *   256 x i32 header   [0] magic, [1] version, [2] token count
 *   tokens             u16 (magic 20240520, version 1) or u32 (20240801, version 7)
 */
#include "data/dataset_internal.h"

enum {
    HEADER_BYTES = 1024,
    MAGIC_GPT2 = 20240520,
    MAGIC_LLAMA3 = 20240801,
    VERSION_GPT2 = 1,
    VERSION_LLAMA3 = 7
};

bool rrfp_llmc_is_shard(const rrfp_file_map *map)
{
    if (map->size_bytes < 4) {
        return false;
    }
    uint32_t magic = rrfp_load_u32(map->bytes);
    return magic == MAGIC_GPT2 || magic == MAGIC_LLAMA3;
}

rrfp_status rrfp_dataset_add_llmc(rrfp_dataset *dataset, const char *path, rrfp_file_map *map,
                                  rrfp_error *error)
{
    int32_t *no_encoding = NULL;
    uint32_t source = 0;

    if (map->size_bytes < HEADER_BYTES) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "llm.c shard '%s' has %zu bytes, less than its header of %d", path,
                              map->size_bytes, (int)HEADER_BYTES);
    }
    bool gpt2 = rrfp_load_u32(map->bytes) == MAGIC_GPT2;
    uint32_t version = rrfp_load_u32(map->bytes + 4);
    int64_t count = (int32_t)rrfp_load_u32(map->bytes + 8);
    uint32_t expected_version = gpt2 ? VERSION_GPT2 : VERSION_LLAMA3;
    token_type type = gpt2 ? TOKEN_U16 : TOKEN_U32;
    if (version != expected_version) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "llm.c shard '%s' has version %u; version %u is read", path,
                              (unsigned)version, (unsigned)expected_version);
    }
    if (count < 1) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT, "llm.c shard '%s' has a token count of %lld",
                              path, (long long)count);
    }
    uint64_t expected = HEADER_BYTES + (uint64_t)count * rrfp_token_type_bytes(type);
    if (map->size_bytes != expected) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "llm.c shard '%s' has %zu bytes, but its token count %lld means "
                              "%llu; is it cut short?",
                              path, map->size_bytes, (long long)count,
                              (unsigned long long)expected);
    }
    rrfp_status status = rrfp_dataset_add_source(dataset, path, map, &no_encoding, &source, error);
    if (status != RRFP_OK) {
        return status;
    }
    return rrfp_dataset_add_tokens(dataset, source, type,
                                   dataset->sources[source].map.bytes + HEADER_BYTES,
                                   (uint64_t)count, 0, error);
}
