/* tokenizer_internal.h - what every kind of tokenizer begins with. */
#ifndef RRFP_TOKENIZER_INTERNAL_H
#define RRFP_TOKENIZER_INTERNAL_H

#include "data/tokenizer.h"

typedef struct rrfp_tokenizer_ops {
    rrfp_status (*encode)(const rrfp_tokenizer *tokenizer, const uint8_t *text, size_t text_bytes,
                          int32_t **ids, size_t *count, rrfp_error *error);
    /* Ids are already known to lie in [0, vocab). */
    rrfp_status (*decode)(const rrfp_tokenizer *tokenizer, const int32_t *ids, size_t count,
                          char **text, size_t *text_bytes, rrfp_error *error);
    void (*close)(rrfp_tokenizer *tokenizer);
} rrfp_tokenizer_ops;

struct rrfp_tokenizer {
    const rrfp_tokenizer_ops *ops;
    const char *name;
    uint32_t vocab;
    int32_t end_of_text; /* -1 if none */
};

#endif /* RRFP_TOKENIZER_INTERNAL_H */
