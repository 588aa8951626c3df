/*
 * bpe.h - the tables of a byte-level BPE tokenizer, and how they are filled.
 *
 * GPT-2's files write each byte of a token as one printable character: bytes that
 * are printable in Latin-1 stand for themselves, the other 68 for U+0100 onwards
 * in order.  Here tokens are plain bytes; only loading knows of the characters.
 */
#ifndef RRFP_BPE_H
#define RRFP_BPE_H

#include "data/pretokenize.h"
#include "data/tokenizer_internal.h"

enum {
    BPE_MAX_VOCAB = 1 << 20,
    BPE_MAX_FILE_BYTES = 256 << 20,
    BPE_NO_RANK = -1
};

typedef struct bpe_merge {
    int32_t left, right; /* ids of the two parts */
    int32_t merged;      /* id of their concatenation */
} bpe_merge;

typedef struct rrfp_bpe {
    rrfp_tokenizer base; /* first, so that the two pointers convert */
    rrfp_pretokenizer *pretokenizer;
    uint8_t *token_bytes;    /* all tokens one after the other, by id */
    size_t *token_offsets;   /* vocab + 1 of them */
    int32_t byte_ids[256];   /* the token of each single byte */
    bpe_merge *merges;       /* by rank: the lowest is merged first */
    uint32_t merge_count;
    uint32_t *pair_slots;    /* hash (left, right) -> rank + 1, 0 = empty */
    uint32_t pair_slot_mask; /* slots - 1, slots a power of two */
} rrfp_bpe;

/* Rank of the merge of the two tokens, BPE_NO_RANK if there is none. */
int64_t rrfp_bpe_rank(const rrfp_bpe *bpe, int32_t left, int32_t right);

/* Fill a zeroed `bpe` from untrusted bytes; on failure rrfp_bpe_free is still the caller's. */
rrfp_status rrfp_bpe_load_vocab(rrfp_bpe *bpe, const char *json, size_t json_bytes,
                                const char *name, rrfp_error *error);
/* After the vocabulary. */
rrfp_status rrfp_bpe_load_merges(rrfp_bpe *bpe, const char *text, size_t text_bytes,
                                 const char *name, rrfp_error *error);
void rrfp_bpe_free(rrfp_bpe *bpe);

#endif /* RRFP_BPE_H */
