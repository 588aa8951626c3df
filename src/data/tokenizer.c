/* tokenizer.c - the part common to all tokenizers: dispatch and argument checks. */
#include "data/tokenizer_internal.h"

void rrfp_tokenizer_close(rrfp_tokenizer *tokenizer)
{
    if (tokenizer != NULL) {
        tokenizer->ops->close(tokenizer);
    }
}

const char *rrfp_tokenizer_name(const rrfp_tokenizer *tokenizer)
{
    return tokenizer->name;
}

uint32_t rrfp_tokenizer_vocab(const rrfp_tokenizer *tokenizer)
{
    return tokenizer->vocab;
}

int32_t rrfp_tokenizer_end_of_text(const rrfp_tokenizer *tokenizer)
{
    return tokenizer->end_of_text;
}

rrfp_status rrfp_tokenizer_encode(const rrfp_tokenizer *tokenizer, const char *text,
                                  size_t text_bytes, int32_t **ids, size_t *count,
                                  rrfp_error *error)
{
    return tokenizer->ops->encode(tokenizer, (const uint8_t *)text, text_bytes, ids, count, error);
}

rrfp_status rrfp_tokenizer_decode(const rrfp_tokenizer *tokenizer, const int32_t *ids,
                                  size_t count, char **text, size_t *text_bytes,
                                  rrfp_error *error)
{
    for (size_t i = 0; i < count; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= tokenizer->vocab) {
            return rrfp_error_set(error, RRFP_ERR_INVALID,
                                  "token %zu is %d, but the %s tokenizer knows ids 0 to %u", i,
                                  (int)ids[i], tokenizer->name, (unsigned)(tokenizer->vocab - 1));
        }
    }
    return tokenizer->ops->decode(tokenizer, ids, count, text, text_bytes, error);
}
