/* safetensors_write.c - tensors by name into one file, whole or not at all. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/sha256.h"

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const rrfp_tensor_view *const *)a)->name,
                  (*(const rrfp_tensor_view *const *)b)->name);
}

/* *given*: pointers to the tensors in the order of the file. */
static const rrfp_tensor_view **sorted(const rrfp_tensor_view *tensors, size_t count)
{
    const rrfp_tensor_view **order = calloc(count + 1, sizeof *order);
    for (size_t i = 0; order != NULL && i < count; i++) {
        order[i] = &tensors[i];
    }
    if (order != NULL) {
        qsort(order, count, sizeof *order, by_name);
    }
    return order;
}

rrfp_status rrfp_tensors_sha256(const rrfp_tensor_view *tensors, size_t count, char hex_out[65],
                                rrfp_error *error)
{
    struct sha256_ctx context;
    const rrfp_tensor_view **order = sorted(tensors, count);
    if (order == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for %zu tensors", count);
    }
    sha256_init(&context);
    for (size_t i = 0; i < count; i++) {
        sha256_update(&context, order[i]->bytes, order[i]->data);
    }
    rrfp_sha256_hex(&context, hex_out);
    free(order);
    return RRFP_OK;
}

static json_t *entry_json(const rrfp_tensor_view *tensor, uint64_t begin)
{
    json_t *shape = json_array();
    for (uint32_t i = 0; i < tensor->ndim; i++) {
        json_array_append_new(shape, json_integer((json_int_t)tensor->dims[i]));
    }
    uint64_t end = begin + tensor->bytes;
    return json_pack("{s:s,s:o,s:[I,I]}", "dtype", rrfp_dtype_name(tensor->dtype), "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)end);
}

static char *header_text(const rrfp_tensor_view **order, size_t count,
                         const rrfp_metadata_pair *metadata, size_t metadata_count)
{
    json_t *header = json_object(), *pairs = json_object();
    uint64_t begin = 0;
    for (size_t i = 0; i < metadata_count; i++) {
        json_object_set_new(pairs, metadata[i].key, json_string(metadata[i].value));
    }
    json_object_set_new(header, "__metadata__", pairs);
    for (size_t i = 0; i < count; i++) {
        json_object_set_new(header, order[i]->name, entry_json(order[i], begin));
        begin += order[i]->bytes;
    }
    bool whole = json_object_size(header) == count + 1 && json_object_size(pairs) == metadata_count;
    char *text = whole ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    return text;
}

static bool put(FILE *stream, const void *bytes, size_t count)
{
    return fwrite(bytes, 1, count, stream) == count;
}

static bool write_all(FILE *stream, const char *header, const rrfp_tensor_view **order,
                      size_t count)
{
    size_t length = strlen(header), padded = (length + 7) / 8 * 8;
    unsigned char size[8];
    for (int i = 0; i < 8; i++) {
        size[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    }
    bool ok = put(stream, size, sizeof size) && put(stream, header, length) &&
              put(stream, "        ", padded - length);
    for (size_t i = 0; ok && i < count; i++) {
        ok = put(stream, order[i]->data, order[i]->bytes);
    }
    return ok;
}

rrfp_status rrfp_safetensors_write(const char *path, const rrfp_tensor_view *tensors,
                                   size_t tensor_count, const rrfp_metadata_pair *metadata,
                                   size_t metadata_count, rrfp_error *error)
{
    const rrfp_tensor_view **order = sorted(tensors, tensor_count);
    char *header =
        order == NULL ? NULL : header_text(order, tensor_count, metadata, metadata_count);
    rrfp_atomic_file file;
    rrfp_status status;
    if (header == NULL) {
        free(order);
        return rrfp_error_set(error, RRFP_ERR_NOMEM,
                              "%s: out of memory for its header, or a name stands twice", path);
    }
    status = rrfp_atomic_file_open(path, &file, error);
    if (status == RRFP_OK) {
        if (write_all(file.stream, header, order, tensor_count)) {
            status = rrfp_atomic_file_commit(&file, error);
        } else {
            status = rrfp_error_set(error, RRFP_ERR_IO, "cannot write %s: %s", path,
                                    strerror(errno));
            rrfp_atomic_file_abort(&file);
        }
    }
    free(header);
    free(order);
    return status;
}
