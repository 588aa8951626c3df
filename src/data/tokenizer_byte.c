/* tokenizer_byte.c - 256 tokens, id = byte value; lossless on any input. */
#include "data/tokenizer_internal.h"

#include <stdlib.h>

static rrfp_status byte_encode(const rrfp_tokenizer *tokenizer, const uint8_t *text,
                               size_t text_bytes, int32_t **ids, size_t *count, rrfp_error *error)
{
    int32_t *out = NULL;

    (void)tokenizer;
    if (text_bytes < SIZE_MAX / sizeof *out) {
        out = malloc((text_bytes + 1) * sizeof *out); /* + 1: never a NULL for empty text */
    }
    if (out == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory to encode %zu bytes of text",
                              text_bytes);
    }
    for (size_t i = 0; i < text_bytes; i++) {
        out[i] = text[i];
    }
    *ids = out;
    *count = text_bytes;
    return RRFP_OK;
}

static rrfp_status byte_decode(const rrfp_tokenizer *tokenizer, const int32_t *ids, size_t count,
                               char **text, size_t *text_bytes, rrfp_error *error)
{
    char *out = count < SIZE_MAX ? malloc(count + 1) : NULL;

    (void)tokenizer;
    if (out == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory to decode %zu tokens", count);
    }
    for (size_t i = 0; i < count; i++) {
        out[i] = (char)(unsigned char)ids[i];
    }
    out[count] = '\0';
    *text = out;
    *text_bytes = count;
    return RRFP_OK;
}

static void byte_close(rrfp_tokenizer *tokenizer)
{
    free(tokenizer);
}

rrfp_status rrfp_tokenizer_open_byte(rrfp_tokenizer **out, rrfp_error *error)
{
    static const rrfp_tokenizer_ops ops = {byte_encode, byte_decode, byte_close};
    rrfp_tokenizer *tokenizer = malloc(sizeof *tokenizer);

    if (tokenizer == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory for a tokenizer");
    }
    *tokenizer = (rrfp_tokenizer){.ops = &ops, .name = "byte", .vocab = 256, .end_of_text = -1};
    *out = tokenizer;
    return RRFP_OK;
}
