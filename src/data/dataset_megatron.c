/*
 * dataset_megatron.c - Megatron indexed datasets: where in .bin each sequence lies.
 *
 *   .idx   9 bytes  "MMIDIDX\0\0"
 *          u64      version, 1
 *          u8       token type
 *          u64      sequence count S
 *          u64      document count D
 *          S x i32  length of each sequence, in tokens
 *          S x i64  its byte offset in .bin
 *          D x i64  first sequence of each document, the last entry being S
 *          S x i8   mode of each sequence, in multimodal files only
 *   .bin   tokens, in whatever order the offsets say
 */
#include "data/dataset_internal.h"

#include <string.h>

enum { HEADER_BYTES = 34, VERSION = 1 };

static const char index_magic[] = "MMIDIDX\0"; /* nine bytes with the implicit NUL */

typedef struct index_view {
    const char *path;
    const char *bin_path;
    token_type type;
    uint64_t sequences, documents;
    const uint8_t *lengths, *offsets, *document_starts;
    const uint8_t *modes; /* NULL if none */
} index_view;

bool rrfp_megatron_is_index(const rrfp_file_map *map)
{
    return map->size_bytes >= sizeof index_magic &&
           memcmp(map->bytes, index_magic, sizeof index_magic) == 0;
}

static rrfp_status token_type_of_code(unsigned code, const char *path, token_type *type,
                                      rrfp_error *error)
{
    switch (code) {
    case 1:
        *type = TOKEN_U8;
        return RRFP_OK;
    case 2:
        *type = TOKEN_I8;
        return RRFP_OK;
    case 3:
        *type = TOKEN_I16;
        return RRFP_OK;
    case 4:
        *type = TOKEN_I32;
        return RRFP_OK;
    case 5:
        *type = TOKEN_I64;
        return RRFP_OK;
    case 8:
        *type = TOKEN_U16;
        return RRFP_OK;
    case 6:
    case 7:
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "Megatron index '%s' has dtype code %u, floating point; tokens are "
                              "whole numbers",
                              path, code);
    default:
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "Megatron index '%s' has the unknown dtype code %u; codes are 1 to 8",
                              path, code);
    }
}

/* Finds the arrays, each checked to lie inside the file. */
static rrfp_status view_index(const rrfp_file_map *map, index_view *view, rrfp_error *error)
{
    if (!rrfp_megatron_is_index(map)) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "'%s' is no Megatron index: it does not start with MMIDIDX",
                              view->path);
    }
    if (map->size_bytes < HEADER_BYTES) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "Megatron index '%s' has %zu bytes, less than its header of %d",
                              view->path, map->size_bytes, (int)HEADER_BYTES);
    }
    uint64_t version = rrfp_load_u64(map->bytes + 9);
    if (version != VERSION) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "Megatron index '%s' has version %llu; version %d is read",
                              view->path, (unsigned long long)version, (int)VERSION);
    }
    rrfp_status status = token_type_of_code(map->bytes[17], view->path, &view->type, error);
    if (status != RRFP_OK) {
        return status;
    }
    uint64_t left = map->size_bytes - HEADER_BYTES;
    view->sequences = rrfp_load_u64(map->bytes + 18);
    view->documents = rrfp_load_u64(map->bytes + 26);
    if (view->sequences == 0 || view->sequences > left / 12) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "Megatron index '%s' has a sequence count of %llu, which its %zu "
                              "bytes cannot be; is it cut short?",
                              view->path, (unsigned long long)view->sequences, map->size_bytes);
    }
    left -= 12 * view->sequences;
    if (view->documents < 2 || view->documents > left / 8) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "Megatron index '%s' has a document count of %llu, which its %zu "
                              "bytes cannot be; is it cut short?",
                              view->path, (unsigned long long)view->documents, map->size_bytes);
    }
    left -= 8 * view->documents;
    if (left != 0 && left != view->sequences) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "Megatron index '%s' has %llu bytes after its document index, but "
                              "%llu sequences; is it damaged?",
                              view->path, (unsigned long long)left,
                              (unsigned long long)view->sequences);
    }
    view->lengths = map->bytes + HEADER_BYTES;
    view->offsets = view->lengths + 4 * view->sequences;
    view->document_starts = view->offsets + 8 * view->sequences;
    view->modes = left == 0 ? NULL : view->document_starts + 8 * view->documents;
    return RRFP_OK;
}

static rrfp_status check_documents(const index_view *view, rrfp_error *error)
{
    uint64_t last = 0;

    for (uint64_t i = 0; i < view->documents; i++) {
        uint64_t start = rrfp_load_u64(view->document_starts + 8 * i);
        if (start < last || start > view->sequences || (i == 0 && start != 0)) {
            return rrfp_error_set(error, RRFP_ERR_FORMAT,
                                  "Megatron index '%s': document %llu starts at sequence %lld; "
                                  "starts must grow from 0 to %llu",
                                  view->path, (unsigned long long)i, (long long)start,
                                  (unsigned long long)view->sequences);
        }
        last = start;
    }
    if (last != view->sequences) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "Megatron index '%s': the document index ends at sequence %llu, not "
                              "at the sequence count %llu",
                              view->path, (unsigned long long)last,
                              (unsigned long long)view->sequences);
    }
    return RRFP_OK;
}

static rrfp_status add_sequence(rrfp_dataset *dataset, uint32_t source, const index_view *view,
                                uint64_t i, rrfp_error *error)
{
    const rrfp_file_map *bin = &dataset->sources[source].map;
    const size_t width = rrfp_token_type_bytes(view->type);
    int32_t length = (int32_t)rrfp_load_u32(view->lengths + 4 * i);
    uint64_t offset = rrfp_load_u64(view->offsets + 8 * i);

    if (length < 0) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "Megatron index '%s': sequence %llu has length %d", view->path,
                              (unsigned long long)i, (int)length);
    }
    if (offset % width != 0) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "Megatron index '%s': sequence %llu has byte offset %lld, not a "
                              "multiple of its %zu-byte tokens",
                              view->path, (unsigned long long)i, (long long)offset, width);
    }
    if (offset > bin->size_bytes || (uint64_t)length > (bin->size_bytes - offset) / width) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "Megatron index '%s': sequence %llu (byte offset %lld, length %d) "
                              "lies outside '%s' of %zu bytes",
                              view->path, (unsigned long long)i, (long long)offset, (int)length,
                              view->bin_path, bin->size_bytes);
    }
    if (view->modes != NULL && view->modes[i] != 0) {
        return rrfp_error_set(error, RRFP_ERR_UNSUPPORTED,
                              "Megatron index '%s': sequence %llu has mode %d; only text, mode 0, "
                              "is read",
                              view->path, (unsigned long long)i, (int)(int8_t)view->modes[i]);
    }
    return rrfp_dataset_add_tokens(dataset, source, view->type, bin->bytes + offset,
                                   (uint64_t)length, offset / width, error);
}

rrfp_status rrfp_dataset_add_megatron(rrfp_dataset *dataset, const char *index_path,
                                      const char *bin_path, rrfp_error *error)
{
    rrfp_file_map index = {NULL, 0};
    rrfp_file_map bin = {NULL, 0};
    index_view view = {.path = index_path, .bin_path = bin_path};
    int32_t *no_encoding = NULL;
    uint32_t source = 0;
    rrfp_status status = rrfp_file_map_open(index_path, &index, error);

    if (status == RRFP_OK) {
        status = view_index(&index, &view, error);
    }
    if (status == RRFP_OK) {
        status = check_documents(&view, error);
    }
    if (status == RRFP_OK) {
        status = rrfp_file_map_open(bin_path, &bin, error);
    }
    if (status == RRFP_OK && bin.size_bytes == 0) {
        status = rrfp_error_set(error, RRFP_ERR_FORMAT, "'%s' is empty", bin_path);
    }
    if (status == RRFP_OK) {
        status = rrfp_dataset_add_source(dataset, bin_path, &bin, &no_encoding, &source, error);
    }
    for (uint64_t i = 0; status == RRFP_OK && i < view.sequences; i++) {
        status = add_sequence(dataset, source, &view, i, error);
    }
    rrfp_file_map_close(&index);
    rrfp_file_map_close(&bin);
    return status;
}
