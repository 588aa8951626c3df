/*
 * fuzz_safetensors.c - any bytes as a safetensors file: refused, or every view lies inside them.
 */
#include <stdlib.h>

#include "checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rrfp_safetensors *file = NULL;
    rrfp_error error;
    unsigned sum = 0;
    if (rrfp_safetensors_open_memory("fuzz", data, size, &file, &error) != RRFP_OK) {
        return 0;
    }
    for (size_t i = 0; i < rrfp_safetensors_count(file); i++) {
        const rrfp_tensor_view *view = rrfp_safetensors_at(file, i);
        const unsigned char *bytes = view->data;
        uint64_t count = view->bytes;
        if (rrfp_safetensors_find(file, view->name) != view) {
            abort();
        }
        if (count > 0) {
            sum += bytes[0] + (unsigned)bytes[count - 1];
        }
    }
    const char *value = rrfp_safetensors_metadata(file, "format");
    sum += value != NULL ? (unsigned char)value[0] : 0;
    rrfp_safetensors_close(file);
    return sum == 0x7fffffff; /* keeps the reads */
}
