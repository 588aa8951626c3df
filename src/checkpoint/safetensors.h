/*
 * safetensors.h - reading and writing the safetensors container.
 *
 *   u64 N little-endian | N bytes of JSON header | data, contiguous, no holes
 *
 * Reading maps the file and trusts nothing: header at most 100 MB, starting
 * with '{', no duplicate names, known dtypes, shape x dtype = size without
 * overflow, offsets in bounds, no overlap, no gap.
 */
#ifndef RRFP_SAFETENSORS_H
#define RRFP_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rrfp/status.h"

typedef enum rrfp_dtype {
    RRFP_DTYPE_F32 = 0, RRFP_DTYPE_F64, RRFP_DTYPE_F16, RRFP_DTYPE_BF16, RRFP_DTYPE_I64,
    RRFP_DTYPE_I32, RRFP_DTYPE_I16, RRFP_DTYPE_I8, RRFP_DTYPE_U8, RRFP_DTYPE_U16,
    RRFP_DTYPE_U32, RRFP_DTYPE_U64, RRFP_DTYPE_BOOL, RRFP_DTYPE_COUNT
} rrfp_dtype;
const char *rrfp_dtype_name(rrfp_dtype dtype); /* "F32" */
size_t rrfp_dtype_bytes(rrfp_dtype dtype);

enum { RRFP_TENSOR_MAX_DIMS = 8 };

typedef struct rrfp_tensor_view {
    const char *name;
    rrfp_dtype dtype;
    uint32_t ndim;
    uint64_t dims[RRFP_TENSOR_MAX_DIMS];
    uint64_t bytes;
    const void *data; /* may be unaligned when read from a foreign file */
} rrfp_tensor_view;

typedef struct rrfp_safetensors rrfp_safetensors;

rrfp_status rrfp_safetensors_open(const char *path, rrfp_safetensors **out, rrfp_error *error);
/* The same on bytes in memory (borrowed until close); `name` is for messages.  Fuzz target. */
rrfp_status rrfp_safetensors_open_memory(const char *name, const void *bytes, size_t size,
                                         rrfp_safetensors **out, rrfp_error *error);
void rrfp_safetensors_close(rrfp_safetensors *file); /* NULL is fine */

size_t rrfp_safetensors_count(const rrfp_safetensors *file);
const rrfp_tensor_view *rrfp_safetensors_at(const rrfp_safetensors *file, size_t index);
const rrfp_tensor_view *rrfp_safetensors_find(const rrfp_safetensors *file, const char *name);
const char *rrfp_safetensors_metadata(const rrfp_safetensors *file, const char *key); /* or NULL */

typedef struct rrfp_metadata_pair { const char *key, *value; } rrfp_metadata_pair;

/* SHA-256 (hex, 65 bytes with NUL) of the tensors' data in the order the writer stores it. */
rrfp_status rrfp_tensors_sha256(const rrfp_tensor_view *tensors, size_t count, char hex_out[65],
                                rrfp_error *error);
/* The same of the data of an open file: of all its bytes behind the header. */
void rrfp_safetensors_data_sha256(const rrfp_safetensors *file, char hex_out[65]);

/*
 * Writes tensors, by name, and metadata atomically: PATH.tmp, fsync, rename, fsync of the
 * directory.  On error the old file is untouched and the temporary is gone.
 */
rrfp_status rrfp_safetensors_write(const char *path, const rrfp_tensor_view *tensors,
                                   size_t tensor_count, const rrfp_metadata_pair *metadata,
                                   size_t metadata_count, rrfp_error *error);

#endif /* RRFP_SAFETENSORS_H */
