/* safetensors_read.c - a mapped file, trusted in nothing; see safetensors.h. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/safetensors.h"
#include "checkpoint/sha256.h"

static const uint64_t HEADER_MOST_BYTES = 100000000;

static const struct {
    const char *name;
    size_t bytes;
} DTYPES[RRFP_DTYPE_COUNT] = {
    [RRFP_DTYPE_F32] = {"F32", 4}, [RRFP_DTYPE_F64] = {"F64", 8}, [RRFP_DTYPE_F16] = {"F16", 2},
    [RRFP_DTYPE_BF16] = {"BF16", 2}, [RRFP_DTYPE_I64] = {"I64", 8}, [RRFP_DTYPE_I32] = {"I32", 4},
    [RRFP_DTYPE_I16] = {"I16", 2}, [RRFP_DTYPE_I8] = {"I8", 1},   [RRFP_DTYPE_U8] = {"U8", 1},
    [RRFP_DTYPE_U16] = {"U16", 2}, [RRFP_DTYPE_U32] = {"U32", 4}, [RRFP_DTYPE_U64] = {"U64", 8},
    [RRFP_DTYPE_BOOL] = {"BOOL", 1},
};

const char *rrfp_dtype_name(rrfp_dtype dtype)
{
    return (unsigned)dtype < RRFP_DTYPE_COUNT ? DTYPES[dtype].name : "?";
}

size_t rrfp_dtype_bytes(rrfp_dtype dtype)
{
    return (unsigned)dtype < RRFP_DTYPE_COUNT ? DTYPES[dtype].bytes : 0;
}

struct rrfp_safetensors {
    const char *name; /* borrowed while opening */
    const unsigned char *bytes;
    size_t size;
    void *mapping;         /* NULL when the bytes are the caller's */
    json_t *header;        /* owns the names */
    rrfp_tensor_view *views; /* by name */
    size_t count;
};

static rrfp_status bad(const rrfp_safetensors *file, const char *tensor, const char *problem,
                       rrfp_error *error)
{
    if (tensor == NULL) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT, "%s: %s", file->name, problem);
    }
    return rrfp_error_set(error, RRFP_ERR_FORMAT, "%s: tensor %.100s: %s", file->name, tensor,
                          problem);
}

static bool unsigned_of(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0) {
        return false;
    }
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static rrfp_status read_entry(rrfp_safetensors *file, const char *name, const json_t *entry,
                              uint64_t data_bytes, rrfp_error *error)
{
    rrfp_tensor_view *view = &file->views[file->count];
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    uint64_t begin, end, need;
    if (!json_is_object(entry) || dtype == NULL || !json_is_array(shape) ||
        !json_is_array(offsets) || json_array_size(offsets) != 2 || json_object_size(entry) != 3) {
        return bad(file, name, "it must have dtype, shape and data_offsets, and nothing else",
                   error);
    }
    int kind = 0;
    while (kind < RRFP_DTYPE_COUNT && strcmp(DTYPES[kind].name, dtype) != 0) {
        kind++;
    }
    if (kind == RRFP_DTYPE_COUNT) {
        return rrfp_error_set(error, RRFP_ERR_UNSUPPORTED, "%s: tensor %.100s: dtype %.20s is unknown",
                              file->name, name, dtype);
    }
    if (json_array_size(shape) > RRFP_TENSOR_MAX_DIMS) {
        return bad(file, name, "more than 8 dimensions", error);
    }
    need = DTYPES[kind].bytes;
    bool empty = false;
    for (size_t i = 0; i < json_array_size(shape); i++) {
        if (!unsigned_of(json_array_get(shape, i), &view->dims[i])) {
            return bad(file, name, "a dimension is not a whole number", error);
        }
        empty = empty || view->dims[i] == 0;
    }
    for (size_t i = 0; i < json_array_size(shape) && !empty; i++) {
        if (view->dims[i] > UINT64_MAX / need) {
            return bad(file, name, "its shape overflows", error);
        }
        need *= view->dims[i];
    }
    need = empty ? 0 : need;
    if (!unsigned_of(json_array_get(offsets, 0), &begin) ||
        !unsigned_of(json_array_get(offsets, 1), &end) || begin > end) {
        return bad(file, name, "data_offsets are not a range", error);
    }
    if (end > data_bytes) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "%s: tensor %.100s ends at byte %llu of the data, which has %llu: the "
                              "file is truncated or damaged",
                              file->name, name, (unsigned long long)end,
                              (unsigned long long)data_bytes);
    }
    if (end - begin != need) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "%s: tensor %.100s has %llu bytes, its shape and dtype need %llu",
                              file->name, name, (unsigned long long)(end - begin),
                              (unsigned long long)need);
    }
    view->name = name;
    view->dtype = (rrfp_dtype)kind;
    view->ndim = (uint32_t)json_array_size(shape);
    view->bytes = need;
    view->data = file->bytes + (file->size - data_bytes) + begin;
    file->count++;
    return RRFP_OK;
}

static int by_data(const void *a, const void *b)
{
    const rrfp_tensor_view *x = a, *y = b;
    if (x->data != y->data) {
        return x->data < y->data ? -1 : 1;
    }
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* empty ones first */
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const rrfp_tensor_view *)a)->name, ((const rrfp_tensor_view *)b)->name);
}

/* Data without holes or overlap. */
static rrfp_status check_cover(rrfp_safetensors *file, uint64_t data_bytes, rrfp_error *error)
{
    const unsigned char *at = file->bytes + (file->size - data_bytes);
    qsort(file->views, file->count, sizeof *file->views, by_data);
    for (size_t i = 0; i < file->count; i++) {
        const unsigned char *data = file->views[i].data;
        if (data != at) {
            return bad(file, file->views[i].name,
                       data > at ? "a hole in the data lies before it" : "it overlaps another tensor",
                       error);
        }
        at += file->views[i].bytes;
    }
    if (at != file->bytes + file->size) {
        return bad(file, NULL, "bytes behind the last tensor belong to none", error);
    }
    qsort(file->views, file->count, sizeof *file->views, by_name);
    return RRFP_OK;
}

static rrfp_status parse(rrfp_safetensors *file, rrfp_error *error)
{
    uint64_t header_bytes = 0;
    json_error_t where;
    if (file->size < 8) {
        return bad(file, NULL, "shorter than the 8 bytes of a safetensors file: truncated?", error);
    }
    for (int i = 7; i >= 0; i--) {
        header_bytes = header_bytes << 8 | file->bytes[i];
    }
    if (header_bytes > HEADER_MOST_BYTES || header_bytes > file->size - 8) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "%s: header of %llu bytes in a file of %zu: truncated, or not a "
                              "safetensors file",
                              file->name, (unsigned long long)header_bytes, file->size);
    }
    if (header_bytes == 0 || file->bytes[8] != '{') {
        return bad(file, NULL, "the header does not start with '{': not a safetensors file", error);
    }
    file->header = json_loadb((const char *)file->bytes + 8, header_bytes, JSON_REJECT_DUPLICATES,
                              &where);
    if (!json_is_object(file->header)) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT, "%s: header: %.150s", file->name, where.text);
    }
    size_t entries = json_object_size(file->header);
    uint64_t data_bytes = file->size - 8 - header_bytes;
    file->views = calloc(entries + 1, sizeof *file->views);
    if (file->views == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "%s: out of memory", file->name);
    }
    const char *name;
    json_t *entry;
    json_object_foreach(file->header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            const char *key;
            json_t *value;
            if (!json_is_object(entry)) {
                return bad(file, NULL, "__metadata__ is not an object", error);
            }
            json_object_foreach(entry, key, value)
            {
                if (!json_is_string(value)) {
                    return bad(file, NULL, "a value of __metadata__ is not a string", error);
                }
            }
            continue;
        }
        rrfp_status status = read_entry(file, name, entry, data_bytes, error);
        if (status != RRFP_OK) {
            return status;
        }
    }
    return check_cover(file, data_bytes, error);
}

rrfp_status rrfp_safetensors_open_memory(const char *name, const void *bytes, size_t size,
                                         rrfp_safetensors **out, rrfp_error *error)
{
    rrfp_safetensors *file = calloc(1, sizeof *file);
    if (file == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "%s: out of memory", name);
    }
    file->name = name;
    file->bytes = bytes;
    file->size = size;
    rrfp_status status = parse(file, error);
    file->name = NULL;
    if (status != RRFP_OK) {
        rrfp_safetensors_close(file);
        return status;
    }
    *out = file;
    return RRFP_OK;
}

rrfp_status rrfp_safetensors_open(const char *path, rrfp_safetensors **out, rrfp_error *error)
{
    struct stat info;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0 || fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
        int number = errno;
        bool irregular = descriptor >= 0 && !S_ISREG(info.st_mode);
        if (descriptor >= 0) {
            close(descriptor);
        }
        return rrfp_error_set(error, RRFP_ERR_IO, "cannot read %s: %s", path,
                              irregular ? "not a regular file" : strerror(number));
    }
    size_t size = (size_t)info.st_size;
    void *mapping = size == 0 ? NULL : mmap(NULL, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    int number = errno;
    close(descriptor);
    if (mapping == MAP_FAILED) {
        return rrfp_error_set(error, RRFP_ERR_IO, "cannot map %s: %s", path, strerror(number));
    }
    rrfp_status status = rrfp_safetensors_open_memory(path, mapping, size, out, error);
    if (status == RRFP_OK) {
        (*out)->mapping = mapping;
    } else if (mapping != NULL) {
        munmap(mapping, size);
    }
    return status;
}

void rrfp_safetensors_close(rrfp_safetensors *file)
{
    if (file == NULL) {
        return;
    }
    if (file->mapping != NULL) {
        munmap(file->mapping, file->size);
    }
    json_decref(file->header);
    free(file->views);
    free(file);
}

size_t rrfp_safetensors_count(const rrfp_safetensors *file)
{
    return file->count;
}

const rrfp_tensor_view *rrfp_safetensors_at(const rrfp_safetensors *file, size_t index)
{
    return index < file->count ? &file->views[index] : NULL;
}

const rrfp_tensor_view *rrfp_safetensors_find(const rrfp_safetensors *file, const char *name)
{
    rrfp_tensor_view key = {.name = name};
    return bsearch(&key, file->views, file->count, sizeof *file->views, by_name);
}

const char *rrfp_safetensors_metadata(const rrfp_safetensors *file, const char *key)
{
    return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), key));
}

void rrfp_safetensors_data_sha256(const rrfp_safetensors *file, char hex_out[65])
{
    struct sha256_ctx context;
    uint64_t bytes = 0;
    for (size_t i = 0; i < file->count; i++) {
        bytes += file->views[i].bytes; /* no holes: all bytes behind the header */
    }
    sha256_init(&context);
    sha256_update(&context, bytes, file->bytes + (file->size - bytes));
    rrfp_sha256_hex(&context, hex_out);
}
