/* dataset_text.c - any file as text: mapped as it is for the byte tokenizer, else encoded whole. */
#include "data/dataset_internal.h"

#include <stdlib.h>
#include <string.h>

rrfp_status rrfp_dataset_add_text(rrfp_dataset *dataset, const char *path, rrfp_file_map *map,
                                  const rrfp_tokenizer *tokenizer, rrfp_error *error)
{
    const bool by_byte = tokenizer != NULL && strcmp(rrfp_tokenizer_name(tokenizer), "byte") == 0;
    token_type type = by_byte ? TOKEN_U8 : TOKEN_I32;
    int32_t *encoded = NULL;
    size_t count = map->size_bytes;
    uint32_t source = 0;
    rrfp_status status = RRFP_OK;

    if (tokenizer == NULL) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "'%s' is text, which needs a tokenizer: choose byte, or give "
                              "vocab.json and merges.txt",
                              path);
    }
    if (!by_byte) {
        status = rrfp_tokenizer_encode(tokenizer, (const char *)map->bytes, map->size_bytes,
                                       &encoded, &count, error);
        if (status != RRFP_OK) {
            return status;
        }
        rrfp_file_map_close(map);
    }
    status = rrfp_dataset_add_source(dataset, path, map, &encoded, &source, error);
    if (status == RRFP_OK) {
        const token_source *kept = &dataset->sources[source];
        const uint8_t *bytes = by_byte ? kept->map.bytes : (const uint8_t *)kept->encoded;
        status = rrfp_dataset_add_tokens(dataset, source, type, bytes, count, 0, error);
    }
    free(encoded);
    return status;
}
