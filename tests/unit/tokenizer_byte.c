/* tokenizer_byte.c - id = byte value, lossless, unknown ids refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "data/tokenizer.h"

static int open_tokenizer(void **state)
{
    rrfp_tokenizer *tokenizer = NULL;
    rrfp_error error;

    if (rrfp_tokenizer_open_byte(&tokenizer, &error) != RRFP_OK) {
        return -1;
    }
    *state = tokenizer;
    return 0;
}

static int close_tokenizer(void **state)
{
    rrfp_tokenizer_close(*state);
    return 0;
}

static void names_itself(void **state)
{
    assert_string_equal(rrfp_tokenizer_name(*state), "byte");
    assert_int_equal(rrfp_tokenizer_vocab(*state), 256);
    assert_int_equal(rrfp_tokenizer_end_of_text(*state), -1);
    rrfp_tokenizer_close(NULL);
}

static void every_byte_is_its_own_id(void **state)
{
    char text[256];
    int32_t *ids = NULL;
    size_t count = 0;
    char *back = NULL;
    size_t back_bytes = 0;
    rrfp_error error;

    for (int i = 0; i < 256; i++) {
        text[i] = (char)(unsigned char)i;
    }
    assert_int_equal(rrfp_tokenizer_encode(*state, text, 256, &ids, &count, &error), RRFP_OK);
    assert_int_equal(count, 256);
    for (int i = 0; i < 256; i++) {
        assert_int_equal(ids[i], i);
    }
    assert_int_equal(rrfp_tokenizer_decode(*state, ids, count, &back, &back_bytes, &error),
                     RRFP_OK);
    assert_int_equal(back_bytes, 256);
    assert_memory_equal(back, text, 256);
    assert_int_equal(back[256], 0);
    free(ids);
    free(back);
}

static void empty_text_is_no_tokens(void **state)
{
    int32_t *ids = NULL;
    size_t count = 9;
    char *back = NULL;
    size_t back_bytes = 9;
    rrfp_error error;

    assert_int_equal(rrfp_tokenizer_encode(*state, NULL, 0, &ids, &count, &error), RRFP_OK);
    assert_int_equal(count, 0);
    assert_int_equal(rrfp_tokenizer_decode(*state, ids, 0, &back, &back_bytes, &error), RRFP_OK);
    assert_int_equal(back_bytes, 0);
    assert_string_equal(back, "");
    free(ids);
    free(back);
}

static void unknown_ids_are_refused(void **state)
{
    static const int32_t wrong[] = {256, -1, INT32_MAX, INT32_MIN};
    rrfp_error error;

    for (size_t i = 0; i < 4; i++) {
        int32_t ids[2] = {65, wrong[i]};
        char *text = NULL;
        size_t bytes = 0;
        assert_int_equal(rrfp_tokenizer_decode(*state, ids, 2, &text, &bytes, &error),
                         RRFP_ERR_INVALID);
        assert_null(text);
        assert_non_null(strstr(error.text, "token 1 is"));
        assert_non_null(strstr(error.text, "0 to 255"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_itself),
        cmocka_unit_test(every_byte_is_its_own_id),
        cmocka_unit_test(empty_text_is_no_tokens),
        cmocka_unit_test(unknown_ids_are_refused),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
