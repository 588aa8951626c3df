/* pretokenize.c - text is cut as GPT-2's published pattern says, worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "data/pretokenize.h"

static rrfp_pretokenizer *pretokenizer;

static int open_pretokenizer(void **state)
{
    rrfp_error error;

    (void)state;
    return rrfp_pretokenizer_open(&pretokenizer, &error) == RRFP_OK ? 0 : -1;
}

static int close_pretokenizer(void **state)
{
    (void)state;
    rrfp_pretokenizer_close(pretokenizer);
    rrfp_pretokenizer_close(NULL);
    return 0;
}

/* `pieces` are the expected ones, joined by '|'. */
static void check_pieces(const char *text, size_t text_bytes, const char *pieces)
{
    rrfp_piece_cursor *cursor = NULL;
    char seen[256] = "";
    size_t used = 0;
    rrfp_error error;

    assert_int_equal(rrfp_piece_cursor_open(pretokenizer, (const uint8_t *)text, text_bytes,
                                            &cursor, &error),
                     RRFP_OK);
    for (;;) {
        const uint8_t *piece = NULL;
        size_t bytes = 0;
        assert_int_equal(rrfp_piece_cursor_next(cursor, &piece, &bytes, &error), RRFP_OK);
        if (bytes == 0) {
            break;
        }
        assert_true(used + bytes + 1 < sizeof seen);
        if (used > 0) {
            seen[used++] = '|';
        }
        for (size_t i = 0; i < bytes; i++) {
            seen[used++] = piece[i] == '\0' ? '0' : (char)piece[i];
        }
    }
    rrfp_piece_cursor_close(cursor);
    assert_string_equal(seen, pieces);
}

static void check(const char *text, const char *pieces)
{
    check_pieces(text, strlen(text), pieces);
}

static void words_take_one_space_before_them(void **state)
{
    (void)state;
    check("", "");
    check("Hello world", "Hello| world");
    check("a  b", "a| | b");
    check("  x", " | x");
    check("x   ", "x|   ");
    check("\n\nfoo", "\n|\n|foo");
    check("a\n b\t\tc", "a|\n| b|\t|\t|c");
}

static void contractions_letters_numbers_and_the_rest_part(void **state)
{
    (void)state;
    check("I'm you're it's DON'T", "I|'m| you|'re| it|'s| DON|'|T");
    check("we've I'd he'll can't", "we|'ve| I|'d| he|'ll| can|'t");
    check("abc123 456!", "abc|123| 456|!");
    check("x+=1; //y", "x|+=|1|;| //|y");
}

static void letters_and_spaces_are_those_of_unicode(void **state)
{
    (void)state;
    check("\xc3\xa9t\xc3\xa9 \xc3\x9c" "bung", "\xc3\xa9t\xc3\xa9| \xc3\x9c" "bung");
    check("x\xc2\xb2", "x|\xc2\xb2");                             /* superscript two: a number */
    check("\xe6\x97\xa5\xe6\x9c\xac 1", "\xe6\x97\xa5\xe6\x9c\xac| 1"); /* two ideographs */
    check("a\xc2\xa0" "b", "a|\xc2\xa0|b");                       /* no-break space */
    check("a\xc2\x85!", "a|\xc2\x85|!");                          /* next line is White_Space */
    check("a\xe1\xa0\x8e!", "a|\xe1\xa0\x8e!");                   /* U+180E no longer is */
    check("\xf0\x9f\x98\x80\xf0\x9f\x98\x80 ok", "\xf0\x9f\x98\x80\xf0\x9f\x98\x80| ok");
}

static void invalid_bytes_stand_alone(void **state)
{
    (void)state;
    check("ab\xff\xfe c", "ab|\xff|\xfe| c");
    check("\xe2\x82", "\xe2|\x82");                         /* cut short */
    check("\xc0\x80x", "\xc0|\x80|x");                      /* overlong */
    check("\xe0\x9f\xbf", "\xe0|\x9f|\xbf");                /* overlong */
    check("\xed\xa0\x80", "\xed|\xa0|\x80");                /* surrogate */
    check("\xf4\x90\x80\x80", "\xf4|\x90|\x80|\x80");       /* above U+10FFFF */
    check("\xe2(\xa1", "\xe2|(|\xa1");
    check("a \xff" "b", "a| |\xff|b");
    check_pieces("a\0b", 3, "a|0|b");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_take_one_space_before_them),
        cmocka_unit_test(contractions_letters_numbers_and_the_rest_part),
        cmocka_unit_test(letters_and_spaces_are_those_of_unicode),
        cmocka_unit_test(invalid_bytes_stand_alone),
    };
    return cmocka_run_group_tests(tests, open_pretokenizer, close_pretokenizer);
}
