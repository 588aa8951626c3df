/* tokenizer_bpe.c - merges worked out by hand and by brute force, loss-free bytes, bad files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "bpe_fixture.h"
#include "data/tokenizer.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static char vocab_text[16384];

static rrfp_tokenizer *open_memory(const char *const *extra, size_t count, const char *merges)
{
    rrfp_tokenizer *tokenizer = NULL;
    rrfp_error error = {RRFP_OK, ""};
    size_t bytes = make_vocab(vocab_text, sizeof vocab_text, extra, count, -1);

    if (rrfp_tokenizer_open_bpe_memory(vocab_text, bytes, "v.json", merges, strlen(merges), "m.txt",
                                       &tokenizer, &error) != RRFP_OK) {
        fail_msg("%s", error.text);
    }
    return tokenizer;
}

static void check_ids(const rrfp_tokenizer *tokenizer, const char *text, const int32_t *expected,
                      size_t expected_count)
{
    int32_t *ids = NULL;
    size_t count = 0;
    rrfp_error error;

    assert_int_equal(rrfp_tokenizer_encode(tokenizer, text, strlen(text), &ids, &count, &error),
                     RRFP_OK);
    assert_int_equal(count, expected_count);
    assert_memory_equal(ids, expected, count * sizeof *ids);
    free(ids);
}

#define CHECK_IDS(tokenizer, text, ...)                                                            \
    do {                                                                                           \
        const int32_t expected_[] = {__VA_ARGS__};                                                 \
        check_ids(tokenizer, text, expected_, COUNT(expected_));                                   \
    } while (0)

static const char *const hello[] = {"he", "ll", "hell", "hello", "\xc4\xa0w", "or",
                                    "<|endoftext|>"};
#define HELLO_MERGES "#version: 0.2\nh e\nl l\nhe ll\nhell o\n\xc4\xa0 w\no r\n"
enum { HE = 256, LL, HELL, HELLO, SPACE_W, OR, END };

static void merges_apply_in_rank_order(void **state)
{
    rrfp_tokenizer *tokenizer = open_memory(hello, COUNT(hello), HELLO_MERGES);

    (void)state;
    assert_string_equal(rrfp_tokenizer_name(tokenizer), "gpt2-bpe");
    assert_int_equal(rrfp_tokenizer_vocab(tokenizer), 263);
    assert_int_equal(rrfp_tokenizer_end_of_text(tokenizer), END);
    CHECK_IDS(tokenizer, "hello", HELLO);
    CHECK_IDS(tokenizer, "hell", HELL);
    CHECK_IDS(tokenizer, "helo", HE, 'l', 'o');
    CHECK_IDS(tokenizer, "hello world", HELLO, SPACE_W, OR, 'l', 'd');
    CHECK_IDS(tokenizer, "hello hello", HELLO, ' ', HELLO);
    /* No merge reaches across pieces: l|l are apart here. */
    CHECK_IDS(tokenizer, "l\nl", 'l', '\n', 'l');
    /* The mark of the end stays ordinary text. */
    CHECK_IDS(tokenizer, "<|endoftext|>", '<', '|', 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x', 't',
              '|', '>');
    rrfp_tokenizer_close(tokenizer);
}

static void the_lower_rank_wins(void **state)
{
    static const char *const extra[] = {"ab", "bc"};
    rrfp_tokenizer *tokenizer = open_memory(extra, 2, "a b\nb c\n");

    (void)state;
    assert_int_equal(rrfp_tokenizer_end_of_text(tokenizer), -1);
    CHECK_IDS(tokenizer, "abc", 256, 'c');
    rrfp_tokenizer_close(tokenizer);
    tokenizer = open_memory(extra, 2, "b c\r\na b\r\n"); /* also without a version, with CRLF */
    CHECK_IDS(tokenizer, "abc", 'a', 257);
    rrfp_tokenizer_close(tokenizer);
}

static void equal_pairs_merge_from_the_left(void **state)
{
    static const char *const extra[] = {"aa", "aaaa"};
    rrfp_tokenizer *tokenizer = open_memory(extra, 2, "a a\naa aa");

    (void)state;
    CHECK_IDS(tokenizer, "aaa", 256, 'a');
    CHECK_IDS(tokenizer, "aaaa", 257);
    CHECK_IDS(tokenizer, "aaaaaaa", 257, 256, 'a');
    rrfp_tokenizer_close(tokenizer);
}

/* A pair born in a round waits for the end of the round, even with a lower rank. */
static void a_rank_is_applied_everywhere_first(void **state)
{
    static const char *const extra[] = {"aba", "ab"};
    rrfp_tokenizer *tokenizer = open_memory(extra, 2, "ab a\na b\n");

    (void)state;
    CHECK_IDS(tokenizer, "abab", 257, 257);
    CHECK_IDS(tokenizer, "aba", 256);
    rrfp_tokenizer_close(tokenizer);
}

static void bytes_map_to_gpt2_characters(void **state)
{
    /* Published pairs of byte and character. */
    static const char *const extra[] = {"\xc4\xa0\xc4\x8a", "\xc4\x80\xc4\xa1", "\xc5\x82\xc5\x83",
                                        "\xc4\xa2\xc5\x81"};
    static const char *const texts[] = {" \n", "\0\x7f", "\xa0\xad", "\x80\x9f"};
    rrfp_tokenizer *tokenizer = open_memory(extra, 4, "");
    rrfp_error error;

    (void)state;
    for (int32_t i = 0; i < 4; i++) {
        int32_t id = 256 + i;
        char *text = NULL;
        size_t bytes = 0;
        assert_int_equal(rrfp_tokenizer_decode(tokenizer, &id, 1, &text, &bytes, &error), RRFP_OK);
        assert_int_equal(bytes, 2);
        assert_memory_equal(text, texts[i], 2);
        assert_int_equal(text[2], 0);
        free(text);
    }
    int32_t unknown = 260;
    char *text = NULL;
    size_t bytes = 0;
    assert_int_equal(rrfp_tokenizer_decode(tokenizer, &unknown, 1, &text, &bytes, &error),
                     RRFP_ERR_INVALID);
    assert_non_null(strstr(error.text, "token 0 is 260"));
    rrfp_tokenizer_close(tokenizer);
}

static uint64_t random_state;

static uint32_t random_below(uint32_t bound)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % bound);
}

static void seed_random(void)
{
    const char *given = getenv("RRFP_TEST_SEED");

    random_state = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("RRFP_TEST_SEED=%llu\n", (unsigned long long)random_state);
}

static void any_bytes_come_back(void **state)
{
    rrfp_tokenizer *tokenizer = open_memory(hello, COUNT(hello), HELLO_MERGES);
    static const char *const parts[] = {"hello", " world", "\xc3\xa9", "\xff", "\xe2\x82", "  ",
                                        "\n", "'s", "\xf0\x9f\x98\x80", "12"};
    char text[600];

    (void)state;
    seed_random();
    for (int round = 0; round < 500; round++) {
        size_t bytes = 0, limit = random_below(500);
        while (bytes < limit) {
            if (random_below(2) == 0) {
                text[bytes++] = (char)(unsigned char)random_below(256); /* NUL included */
            } else {
                const char *part = parts[random_below(COUNT(parts))];
                memcpy(text + bytes, part, strlen(part));
                bytes += strlen(part);
            }
        }
        int32_t *ids = NULL;
        size_t count = 0, back_bytes = 0;
        char *back = NULL;
        rrfp_error error;
        assert_int_equal(rrfp_tokenizer_encode(tokenizer, text, bytes, &ids, &count, &error),
                         RRFP_OK);
        assert_int_equal(rrfp_tokenizer_decode(tokenizer, ids, count, &back, &back_bytes, &error),
                         RRFP_OK);
        assert_int_equal(back_bytes, bytes);
        assert_memory_equal(back, text, bytes);
        free(ids);
        free(back);
    }
    rrfp_tokenizer_close(tokenizer);
}

/* The definition, on strings: find the best pair, merge it everywhere, again. */
static size_t brute_force(const char *text, char parts[][40], char rules[][2][40],
                          size_t rule_count)
{
    size_t count = strlen(text);

    for (size_t i = 0; i < count; i++) {
        snprintf(parts[i], 40, "%c", text[i]);
    }
    for (;;) {
        size_t best = rule_count;
        for (size_t i = 0; i + 1 < count; i++) {
            for (size_t r = 0; r < best; r++) {
                if (strcmp(parts[i], rules[r][0]) == 0 && strcmp(parts[i + 1], rules[r][1]) == 0) {
                    best = r;
                }
            }
        }
        if (best == rule_count) {
            return count;
        }
        size_t kept = 0;
        for (size_t i = 0; i < count; kept++) {
            bool here = i + 1 < count && strcmp(parts[i], rules[best][0]) == 0 &&
                        strcmp(parts[i + 1], rules[best][1]) == 0;
            if (kept != i) {
                strcpy(parts[kept], parts[i]);
            }
            if (here) {
                strcat(parts[kept], rules[best][1]);
            }
            i += here ? 2 : 1;
        }
        count = kept;
    }
}

static void random_merges_agree_with_brute_force(void **state)
{
    (void)state;
    seed_random();
    for (int round = 0; round < 200; round++) {
        static char rules[24][2][40], tokens[27][40], parts[64][40];
        const char *extra[24];
        char merges[2048] = "";
        size_t rule_count = 0, token_count = 3;
        strcpy(tokens[0], "a");
        strcpy(tokens[1], "b");
        strcpy(tokens[2], "c");
        for (int attempt = 0; attempt < 40 && token_count < 20; attempt++) {
            char joined[80];
            const char *left = tokens[random_below((uint32_t)token_count)];
            const char *right = tokens[random_below((uint32_t)token_count)];
            snprintf(joined, sizeof joined, "%s%s", left, right);
            bool known = strlen(joined) > 30;
            for (size_t i = 0; i < token_count; i++) {
                known = known || strcmp(tokens[i], joined) == 0;
            }
            if (!known) {
                strcpy(rules[rule_count][0], left);
                strcpy(rules[rule_count++][1], right);
                memcpy(tokens[token_count++], joined, strlen(joined) + 1);
            }
        }
        /* Ranks in any order, not only that of birth. */
        for (size_t i = rule_count; i-- > 1;) {
            char kept[2][40];
            size_t j = random_below((uint32_t)(i + 1));
            memcpy(kept, rules[i], sizeof kept);
            memmove(rules[i], rules[j], sizeof kept);
            memcpy(rules[j], kept, sizeof kept);
        }
        for (size_t i = 0; i < rule_count; i++) {
            extra[i] = tokens[3 + i];
            size_t used = strlen(merges);
            snprintf(merges + used, sizeof merges - used, "%s %s\n", rules[i][0], rules[i][1]);
        }
        rrfp_tokenizer *tokenizer = open_memory(extra, rule_count, merges);
        for (int sample = 0; sample < 10; sample++) {
            char text[64];
            int32_t expected[64];
            size_t bytes = 1 + random_below(30);
            for (size_t i = 0; i < bytes; i++) {
                text[i] = (char)('a' + (int)random_below(3));
            }
            text[bytes] = '\0';
            size_t count = brute_force(text, parts, rules, rule_count);
            for (size_t i = 0; i < count; i++) {
                expected[i] = parts[i][0];
                for (size_t t = 0; t < rule_count && parts[i][1] != '\0'; t++) {
                    if (strcmp(extra[t], parts[i]) == 0) {
                        expected[i] = (int32_t)(256 + t);
                    }
                }
            }
            check_ids(tokenizer, text, expected, count);
        }
        rrfp_tokenizer_close(tokenizer);
    }
}

/* Quadratic work would be 10^12 steps here. */
static void a_long_word_is_encoded(void **state)
{
    static const char *const extra[] = {"aa", "aaaa"};
    const size_t bytes = 1 << 20;
    rrfp_tokenizer *tokenizer = open_memory(extra, 2, "a a\naa aa");
    char *text = malloc(bytes);
    int32_t *ids = NULL;
    size_t count = 0;
    rrfp_error error;

    (void)state;
    assert_non_null(text);
    memset(text, 'a', bytes);
    assert_int_equal(rrfp_tokenizer_encode(tokenizer, text, bytes, &ids, &count, &error), RRFP_OK);
    assert_int_equal(count, bytes / 4);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(ids[i], 257);
    }
    free(ids);
    memset(text, ' ', bytes);
    assert_int_equal(rrfp_tokenizer_encode(tokenizer, text, bytes, &ids, &count, &error), RRFP_OK);
    assert_int_equal(count, bytes);
    free(ids);
    free(text);
    rrfp_tokenizer_close(tokenizer);
}

static void refuse(const char *vocab, const char *merges, const char *name, const char *part)
{
    rrfp_tokenizer *tokenizer = NULL;
    rrfp_error error = {RRFP_OK, ""};

    assert_int_equal(rrfp_tokenizer_open_bpe_memory(vocab, strlen(vocab), "v.json", merges,
                                                    strlen(merges), "m.txt", &tokenizer, &error),
                     RRFP_ERR_FORMAT);
    assert_null(tokenizer);
    if (strstr(error.text, name) == NULL || strstr(error.text, part) == NULL) {
        fail_msg("'%s' lacks '%s' or '%s'", error.text, name, part);
    }
}

static void bad_vocabularies_are_refused(void **state)
{
    static const char *const twice[] = {"xx", "xx"};
    static const char *const foreign[] = {"x y"};
    static const char *const empty[] = {""};
    static const char *const wide[] = {"\xe6\x97\xa5"};

    (void)state;
    refuse("", "", "v.json", "line");
    refuse("{\"a\": 0", "", "v.json", "line 1");
    refuse("[1]", "", "v.json", "one JSON object");
    refuse("{}", "", "v.json", "1 to 1048576 tokens");
    refuse("{\"a\": \"0\"}", "", "v.json", "'a' has no whole number");
    refuse("{\"a\": 0.5}", "", "v.json", "'a' has no whole number");
    refuse("{\"a\": 1}", "", "v.json", "'a' has id 1; the ids of 1 tokens must be 0 to 0");
    refuse("{\"a\": -1}", "", "v.json", "'a' has id -1");
    refuse("{\"a\": 0, \"b\": 0}", "", "v.json", "the same id 0");
    refuse("{\"a\": 0}", "", "v.json", "no token for the single byte 0x00");
    make_vocab(vocab_text, sizeof vocab_text, twice, 2, -1);
    refuse(vocab_text, "", "v.json", "duplicate");
    make_vocab(vocab_text, sizeof vocab_text, foreign, 1, -1);
    refuse(vocab_text, "", "v.json", "'x y' (id 256) is not written in the byte alphabet");
    make_vocab(vocab_text, sizeof vocab_text, empty, 1, -1);
    refuse(vocab_text, "", "v.json", "'' (id 256)");
    make_vocab(vocab_text, sizeof vocab_text, wide, 1, -1);
    refuse(vocab_text, "", "v.json", "(id 256) is not written");
    make_vocab(vocab_text, sizeof vocab_text, NULL, 0, 'q');
    refuse(vocab_text, "", "v.json", "no token for the single byte 0x71");
}

static void bad_merges_are_refused(void **state)
{
    static const char *const extra[] = {"ab", "abc"};

    (void)state;
    make_vocab(vocab_text, sizeof vocab_text, extra, 2, -1);
    refuse(vocab_text, "a b\nab\n", "m.txt", "line 2: 'ab' is not two tokens");
    refuse(vocab_text, "a  b\n", "m.txt", "line 1: 'a  b' is not two tokens");
    refuse(vocab_text, " ab\n", "m.txt", "line 1");
    refuse(vocab_text, "ab \n", "m.txt", "line 1");
    refuse(vocab_text, "a b c\n", "m.txt", "line 1");
    refuse(vocab_text, "a b\n\nab c\n", "m.txt", "line 2: '' is not two tokens");
    refuse(vocab_text, "#version: 0.2\na b\na b\n", "m.txt", "line 3: 'a b' is there twice");
    refuse(vocab_text, "xx b\n", "m.txt", "line 1: the left part of 'xx b'");
    refuse(vocab_text, "a bc\n", "m.txt", "line 1: the right part of 'a bc'");
    refuse(vocab_text, "a c\n", "m.txt", "line 1: the merged token of 'a c'");
    refuse(vocab_text, "a \t\n", "m.txt", "line 1: 'a ?' is not written in the byte alphabet");
    refuse(vocab_text, "a b\n#version: 0.2\n", "m.txt", "line 2");
}

static void files_are_read(void **state)
{
    char directory[] = "/tmp/rrfp-bpe-XXXXXX";
    char vocab[64], merges[64], absent[64];
    rrfp_tokenizer *tokenizer = NULL;
    rrfp_error error = {RRFP_OK, ""};
    size_t bytes = make_vocab(vocab_text, sizeof vocab_text, hello, COUNT(hello), -1);

    (void)state;
    assert_non_null(mkdtemp(directory));
    snprintf(vocab, sizeof vocab, "%s/vocab.json", directory);
    snprintf(merges, sizeof merges, "%s/merges.txt", directory);
    snprintf(absent, sizeof absent, "%s/absent", directory);
    FILE *file = fopen(vocab, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(vocab_text, 1, bytes, file), bytes);
    fclose(file);
    file = fopen(merges, "wb");
    assert_non_null(file);
    fputs(HELLO_MERGES, file);
    fclose(file);

    assert_int_equal(rrfp_tokenizer_open_bpe(vocab, merges, &tokenizer, &error), RRFP_OK);
    CHECK_IDS(tokenizer, "hello", HELLO);
    rrfp_tokenizer_close(tokenizer);
    tokenizer = NULL;
    assert_int_equal(rrfp_tokenizer_open_bpe(absent, merges, &tokenizer, &error), RRFP_ERR_IO);
    assert_non_null(strstr(error.text, "absent': No such file"));
    assert_int_equal(rrfp_tokenizer_open_bpe(vocab, absent, &tokenizer, &error), RRFP_ERR_IO);
    assert_non_null(strstr(error.text, "absent': No such file"));
    assert_int_equal(rrfp_tokenizer_open_bpe(directory, merges, &tokenizer, &error), RRFP_ERR_IO);
    assert_non_null(strstr(error.text, "not a regular file"));
    assert_int_equal(rrfp_tokenizer_open_bpe(merges, vocab, &tokenizer, &error), RRFP_ERR_FORMAT);
    assert_non_null(strstr(error.text, "merges.txt' line 1"));
    file = fopen(vocab, "wb");
    fclose(file);
    assert_int_equal(rrfp_tokenizer_open_bpe(vocab, merges, &tokenizer, &error), RRFP_ERR_FORMAT);
    assert_non_null(strstr(error.text, "vocab.json' is empty"));
    assert_null(tokenizer);
    unlink(vocab);
    unlink(merges);
    rmdir(directory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_apply_in_rank_order),
        cmocka_unit_test(the_lower_rank_wins),
        cmocka_unit_test(equal_pairs_merge_from_the_left),
        cmocka_unit_test(a_rank_is_applied_everywhere_first),
        cmocka_unit_test(bytes_map_to_gpt2_characters),
        cmocka_unit_test(any_bytes_come_back),
        cmocka_unit_test(random_merges_agree_with_brute_force),
        cmocka_unit_test(a_long_word_is_encoded),
        cmocka_unit_test(bad_vocabularies_are_refused),
        cmocka_unit_test(bad_merges_are_refused),
        cmocka_unit_test(files_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
