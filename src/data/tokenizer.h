/*
 * tokenizer.h - text to token ids and back.
 *
 * byte   256 tokens, id = byte value; lossless on any input.
 * bpe    GPT-2's byte-level BPE from vocab.json + merges.txt given by the user.
 *
 * Thread-safety: a tokenizer is immutable after open; encode and decode may be
 * called from several threads.
 */
#ifndef RRFP_TOKENIZER_H
#define RRFP_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "rrfp/status.h"

typedef struct rrfp_tokenizer rrfp_tokenizer;

rrfp_status rrfp_tokenizer_open_byte(rrfp_tokenizer **out, rrfp_error *error);
/* Both files are untrusted input: sizes, ids (dense, unique), merge parts are checked. */
rrfp_status rrfp_tokenizer_open_bpe(const char *vocab_path, const char *merges_path,
                                    rrfp_tokenizer **out, rrfp_error *error);
/* The same from memory (all borrowed during the call); the names appear in error lines only. */
rrfp_status rrfp_tokenizer_open_bpe_memory(const char *vocab, size_t vocab_bytes,
                                           const char *vocab_name, const char *merges,
                                           size_t merges_bytes, const char *merges_name,
                                           rrfp_tokenizer **out, rrfp_error *error);
void rrfp_tokenizer_close(rrfp_tokenizer *tokenizer); /* NULL is fine */

const char *rrfp_tokenizer_name(const rrfp_tokenizer *tokenizer); /* "byte", "gpt2-bpe" */
uint32_t rrfp_tokenizer_vocab(const rrfp_tokenizer *tokenizer);
int32_t rrfp_tokenizer_end_of_text(const rrfp_tokenizer *tokenizer); /* -1 if none */

/* *ids is *given* (free()). Invalid UTF-8 is encoded byte by byte. */
rrfp_status rrfp_tokenizer_encode(const rrfp_tokenizer *tokenizer, const char *text,
                                  size_t text_bytes, int32_t **ids, size_t *count,
                                  rrfp_error *error);
/* *text is *given* (free()), NUL-terminated behind *text_bytes. Unknown ids are an error. */
rrfp_status rrfp_tokenizer_decode(const rrfp_tokenizer *tokenizer, const int32_t *ids,
                                  size_t count, char **text, size_t *text_bytes,
                                  rrfp_error *error);

#endif /* RRFP_TOKENIZER_H */
