/*
 * pretokenize.h - GPT-2's cutting of text into pieces that BPE never merges across.
 *
 * Every byte of the text lands in exactly one piece, in order.  Text that is
 * not UTF-8 is cut around the offending bytes, each of which is a piece alone.
 *
 * Thread-safety: the pretokenizer is immutable; a cursor belongs to one thread.
 */
#ifndef RRFP_PRETOKENIZE_H
#define RRFP_PRETOKENIZE_H

#include <stddef.h>
#include <stdint.h>

#include "rrfp/status.h"

typedef struct rrfp_pretokenizer rrfp_pretokenizer;
typedef struct rrfp_piece_cursor rrfp_piece_cursor;

rrfp_status rrfp_pretokenizer_open(rrfp_pretokenizer **out, rrfp_error *error);
void rrfp_pretokenizer_close(rrfp_pretokenizer *pretokenizer); /* NULL is fine */

/* Both the pretokenizer and the text are borrowed until the cursor is closed. */
rrfp_status rrfp_piece_cursor_open(const rrfp_pretokenizer *pretokenizer, const uint8_t *text,
                                   size_t text_bytes, rrfp_piece_cursor **out, rrfp_error *error);
void rrfp_piece_cursor_close(rrfp_piece_cursor *cursor); /* NULL is fine */
/* The next piece lies in the text at *piece, *piece_bytes long; 0 bytes means the end. */
rrfp_status rrfp_piece_cursor_next(rrfp_piece_cursor *cursor, const uint8_t **piece,
                                   size_t *piece_bytes, rrfp_error *error);

#endif /* RRFP_PRETOKENIZE_H */
