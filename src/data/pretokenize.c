/*
 * pretokenize.c - GPT-2's pattern by PCRE2, run on the valid UTF-8 stretches only.
 *
 * PCRE2 could step over invalid bytes itself, but it would then check the whole
 * rest of the subject at each match, which is quadratic in the text.  So we look
 * for valid stretches once, and match inside them without further checks.
 */
#include "data/pretokenize.h"

#include <stdbool.h>
#include <stdlib.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/*
 * GPT-2's published pattern with \s spelt out as Unicode's White_Space, which is
 * what its reference means: PCRE2's own \s also holds U+180E.
 */
#define SPACE "\\p{Z}\\x09-\\x0d\\x85"
static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+"
                                   "| ?[^" SPACE "\\p{L}\\p{N}]+"
                                   "|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+";

struct rrfp_pretokenizer {
    pcre2_code *code;
};

struct rrfp_piece_cursor {
    const pcre2_code *code;
    pcre2_match_data *match;
    const uint8_t *text;
    size_t text_bytes;
    size_t position;    /* first byte not yet handed out */
    size_t valid_begin; /* the valid stretch that holds `position`, if any */
    size_t valid_end;
};

rrfp_status rrfp_pretokenizer_open(rrfp_pretokenizer **out, rrfp_error *error)
{
    rrfp_pretokenizer *pretokenizer = malloc(sizeof *pretokenizer);
    int code = 0;
    PCRE2_SIZE offset = 0;

    if (pretokenizer == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory for a tokenizer");
    }
    pretokenizer->code =
        pcre2_compile((PCRE2_SPTR)gpt2_pattern, sizeof gpt2_pattern - 1,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &code, &offset, NULL);
    if (pretokenizer->code == NULL) {
        PCRE2_UCHAR reason[128] = "";
        pcre2_get_error_message(code, reason, sizeof reason);
        free(pretokenizer);
        return rrfp_error_set(error, RRFP_ERR_UNSUPPORTED,
                              "this PCRE2 cannot compile the word pattern of GPT-2 (%s); "
                              "it must be built with Unicode support",
                              (const char *)reason);
    }
    /* Only speed depends on it: where JIT is missing or forbidden, matching interprets. */
    (void)pcre2_jit_compile(pretokenizer->code, PCRE2_JIT_COMPLETE);
    *out = pretokenizer;
    return RRFP_OK;
}

void rrfp_pretokenizer_close(rrfp_pretokenizer *pretokenizer)
{
    if (pretokenizer != NULL) {
        pcre2_code_free(pretokenizer->code);
        free(pretokenizer);
    }
}

static bool is_continuation(uint8_t byte)
{
    return (byte & 0xc0) == 0x80;
}

/* Bytes of the UTF-8 character at `text` (RFC 3629), 0 if there is no valid one. */
static size_t utf8_character_bytes(const uint8_t *text, size_t left)
{
    uint8_t first = text[0];
    uint8_t low = 0x80, high = 0xbf; /* bounds of the second byte */
    size_t bytes = 0;

    if (first < 0x80) {
        return 1;
    }
    if (first >= 0xc2 && first <= 0xdf) {
        bytes = 2;
    } else if (first >= 0xe0 && first <= 0xef) {
        bytes = 3;
        low = first == 0xe0 ? 0xa0 : 0x80;  /* no overlong forms */
        high = first == 0xed ? 0x9f : 0xbf; /* no surrogates */
    } else if (first >= 0xf0 && first <= 0xf4) {
        bytes = 4;
        low = first == 0xf0 ? 0x90 : 0x80;
        high = first == 0xf4 ? 0x8f : 0xbf; /* nothing above U+10FFFF */
    } else {
        return 0;
    }
    if (left < bytes || text[1] < low || text[1] > high) {
        return 0;
    }
    for (size_t i = 2; i < bytes; i++) {
        if (!is_continuation(text[i])) {
            return 0;
        }
    }
    return bytes;
}

rrfp_status rrfp_piece_cursor_open(const rrfp_pretokenizer *pretokenizer, const uint8_t *text,
                                   size_t text_bytes, rrfp_piece_cursor **out, rrfp_error *error)
{
    rrfp_piece_cursor *cursor = calloc(1, sizeof *cursor);

    if (cursor != NULL) {
        cursor->code = pretokenizer->code;
        cursor->text = text;
        cursor->text_bytes = text_bytes;
        cursor->match = pcre2_match_data_create(1, NULL);
    }
    if (cursor == NULL || cursor->match == NULL) {
        rrfp_piece_cursor_close(cursor);
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory to cut text into words");
    }
    *out = cursor;
    return RRFP_OK;
}

void rrfp_piece_cursor_close(rrfp_piece_cursor *cursor)
{
    if (cursor != NULL) {
        pcre2_match_data_free(cursor->match);
        free(cursor);
    }
}

rrfp_status rrfp_piece_cursor_next(rrfp_piece_cursor *cursor, const uint8_t **piece,
                                   size_t *piece_bytes, rrfp_error *error)
{
    const uint8_t *start = cursor->text + cursor->position;
    size_t bytes = 0;

    if (cursor->position == cursor->text_bytes) {
        *piece = start;
        *piece_bytes = 0;
        return RRFP_OK;
    }
    if (cursor->position >= cursor->valid_end) {
        size_t end = cursor->position;
        size_t step = 0;
        while (end < cursor->text_bytes &&
               (step = utf8_character_bytes(cursor->text + end, cursor->text_bytes - end)) != 0) {
            end += step;
        }
        cursor->valid_begin = cursor->position;
        cursor->valid_end = end;
    }
    if (cursor->position == cursor->valid_end) {
        bytes = 1; /* not UTF-8: this byte alone */
    } else {
        int result = pcre2_match(cursor->code, cursor->text + cursor->valid_begin,
                                 cursor->valid_end - cursor->valid_begin,
                                 cursor->position - cursor->valid_begin, PCRE2_NO_UTF_CHECK,
                                 cursor->match, NULL);
        if (result < 1) {
            return rrfp_error_set(error, RRFP_ERR_INTERNAL,
                                  "PCRE2 error %d while cutting text into words at byte %zu",
                                  result, cursor->position);
        }
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(cursor->match);
        bytes = range[1] - range[0];
    }
    cursor->position += bytes;
    *piece = start;
    *piece_bytes = bytes;
    return RRFP_OK;
}
