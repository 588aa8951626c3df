/*
 * fuzz_bpe.c - BPE files and text from hostile bytes.
 *
 * Input: VOCAB NUL MERGES NUL TEXT.  An empty VOCAB stands for a small valid one, so
 * that merges and text are reached without finding 256 tokens first.  What opens must
 * encode any text and give it back.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/bpe_fixture.h"
#include "data/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Cuts the input at its next NUL. */
static const char *next_field(const char **rest, size_t *left, size_t *bytes)
{
    const char *field = *rest;
    const char *end = *left == 0 ? NULL : memchr(field, '\0', *left);

    *bytes = end == NULL ? *left : (size_t)(end - field);
    *rest = end == NULL ? field + *left : end + 1;
    *left -= *bytes + (end == NULL ? 0 : 1);
    return field;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const extra[] = {"aa", "ab", "aab", "aaaa", ("\xc4\xa0" "a"), "ba"};
    static char built_in[8192];
    const char *rest = (const char *)data;
    size_t left = size, vocab_bytes = 0, merges_bytes = 0;
    const char *vocab = next_field(&rest, &left, &vocab_bytes);
    const char *merges = next_field(&rest, &left, &merges_bytes);
    rrfp_tokenizer *tokenizer = NULL;
    rrfp_error error;

    if (vocab_bytes == 0) {
        vocab_bytes = make_vocab(built_in, sizeof built_in, extra, sizeof extra / sizeof extra[0],
                                 -1);
        vocab = built_in;
    }
    if (rrfp_tokenizer_open_bpe_memory(vocab, vocab_bytes, "vocab", merges, merges_bytes, "merges",
                                       &tokenizer, &error) != RRFP_OK) {
        return 0;
    }
    int32_t *ids = NULL;
    size_t count = 0, back_bytes = 0;
    char *back = NULL;
    if (rrfp_tokenizer_encode(tokenizer, rest, left, &ids, &count, &error) != RRFP_OK ||
        rrfp_tokenizer_decode(tokenizer, ids, count, &back, &back_bytes, &error) != RRFP_OK ||
        back_bytes != left || (left > 0 && memcmp(back, rest, left) != 0)) {
        abort();
    }
    free(ids);
    free(back);
    rrfp_tokenizer_close(tokenizer);
    return 0;
}
