/* dataset_text.c - text files, samples and their targets, splits, epochs, entropy, refusals. */
#include <math.h>
#include <sys/stat.h>

#include "bpe_fixture.h"
#include "data_files.h"

static rrfp_tokenizer *bytes_tokenizer;

static int set_up(void **state)
{
    rrfp_error error;

    return rrfp_tokenizer_open_byte(&bytes_tokenizer, &error) == RRFP_OK ? make_directory(state)
                                                                         : -1;
}

static int tear_down(void **state)
{
    rrfp_tokenizer_close(bytes_tokenizer);
    return remove_directory(state);
}

static rrfp_dataset_config text_config(const char *const *paths, size_t count, uint32_t length)
{
    rrfp_dataset_config config = config_of(paths, count, length, 256);

    config.tokenizer = bytes_tokenizer;
    return config;
}

/* Bytes 0 to 99 in order: a token tells its own place. */
static const char *write_count(void)
{
    uint8_t bytes[100];

    for (int i = 0; i < 100; i++) {
        bytes[i] = (uint8_t)i;
    }
    return write_file("count", bytes, sizeof bytes);
}

static void samples_are_aligned_and_split(void **state)
{
    const char *paths[] = {write_count()};
    rrfp_dataset_config config = text_config(paths, 1, 4);
    bool seen[18] = {false};
    int32_t tokens[4], targets[4];
    rrfp_error error;

    (void)state;
    config.valid_fraction = 0.25;
    rrfp_dataset *dataset = open_files(&config);
    assert_string_equal(rrfp_dataset_format(dataset), "text");
    assert_int_equal(rrfp_dataset_tokens(dataset), 100);
    /* (100 - 1) / 4 = 24 samples, a quarter of them 6. */
    assert_int_equal(rrfp_dataset_samples(dataset, RRFP_SPLIT_TRAIN), 18);
    assert_int_equal(rrfp_dataset_samples(dataset, RRFP_SPLIT_VALID), 6);
    for (uint64_t i = 0; i < 18; i++) {
        assert_int_equal(rrfp_dataset_sample(dataset, RRFP_SPLIT_TRAIN, i, tokens, targets, &error),
                         RRFP_OK);
        assert_int_equal(tokens[0] % 4, 0);
        assert_in_range(tokens[0], 0, 68);
        assert_false(seen[tokens[0] / 4]);
        seen[tokens[0] / 4] = true;
        for (int t = 0; t < 4; t++) {
            assert_int_equal(tokens[t], tokens[0] + t);
            assert_int_equal(targets[t], tokens[t] + 1);
        }
    }
    for (uint64_t i = 0; i < 12; i++) { /* in file order, and around again */
        assert_int_equal(rrfp_dataset_sample(dataset, RRFP_SPLIT_VALID, i, tokens, targets, &error),
                         RRFP_OK);
        assert_int_equal(tokens[0], 72 + 4 * (i % 6));
        assert_int_equal(targets[3], 76 + 4 * (i % 6));
    }
    rrfp_dataset_close(dataset);
}

static void epochs_visit_all_in_another_order(void **state)
{
    const char *paths[] = {write_count()};
    rrfp_dataset_config config = text_config(paths, 1, 1);
    int32_t first[99], second[99], token, target;
    rrfp_error error;

    (void)state;
    rrfp_dataset *dataset = open_files(&config);
    rrfp_dataset *again = open_files(&config);
    bool seen[99] = {false};
    int same = 0;
    for (uint64_t i = 0; i < 99; i++) {
        assert_int_equal(rrfp_dataset_sample(dataset, RRFP_SPLIT_TRAIN, i, &first[i], &target,
                                             &error),
                         RRFP_OK);
        assert_int_equal(rrfp_dataset_sample(dataset, RRFP_SPLIT_TRAIN, 99 + i, &second[i], &target,
                                             &error),
                         RRFP_OK);
        assert_int_equal(target, second[i] + 1);
        assert_int_equal(rrfp_dataset_sample(again, RRFP_SPLIT_TRAIN, 99 + i, &token, &target,
                                             &error),
                         RRFP_OK);
        assert_int_equal(token, second[i]);
        assert_false(seen[second[i]]);
        seen[second[i]] = true;
        same += first[i] == second[i];
    }
    assert_in_range(same, 0, 10); /* about one by chance */
    rrfp_dataset_close(again);
    config.seed = 2;
    again = open_files(&config);
    same = 0;
    for (uint64_t i = 0; i < 99; i++) {
        assert_int_equal(rrfp_dataset_sample(again, RRFP_SPLIT_TRAIN, i, &token, &target, &error),
                         RRFP_OK);
        same += first[i] == token;
    }
    assert_in_range(same, 0, 10);
    rrfp_dataset_close(again);
    rrfp_dataset_close(dataset);
}

static void a_split_may_be_empty(void **state)
{
    const char *paths[] = {write_file("tiny", "abcde", 5)};
    rrfp_dataset_config config = text_config(paths, 1, 4);
    int32_t tokens[4], targets[4];
    rrfp_error error;

    (void)state;
    config.valid_fraction = 0.9999999;
    rrfp_dataset *dataset = open_files(&config);
    assert_int_equal(rrfp_dataset_samples(dataset, RRFP_SPLIT_TRAIN), 1);
    assert_int_equal(rrfp_dataset_samples(dataset, RRFP_SPLIT_VALID), 0);
    assert_int_equal(rrfp_dataset_sample(dataset, RRFP_SPLIT_VALID, 0, tokens, targets, &error),
                     RRFP_ERR_INVALID);
    assert_non_null(strstr(error.text, "validation split is empty"));
    rrfp_dataset_close(dataset);
}

static void files_join_in_order(void **state)
{
    const char *paths[] = {write_file("2", "def", 3), write_file("1", "abc", 3)};
    rrfp_dataset_config config = text_config(paths, 2, 5);
    int32_t tokens[5], targets[5];
    rrfp_error error;

    (void)state;
    rrfp_dataset *dataset = open_files(&config);
    assert_int_equal(rrfp_dataset_sample(dataset, RRFP_SPLIT_TRAIN, 0, tokens, targets, &error),
                     RRFP_OK);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(tokens[i], "defabc"[i]);
        assert_int_equal(targets[i], "defabc"[i + 1]);
    }
    rrfp_dataset_close(dataset);
}

static void bpe_encodes_file_by_file(void **state)
{
    static const char *const extra[] = {"he", "ll"};
    static const char merges[] = "h e\nl l\n";
    char vocab[8192];
    rrfp_tokenizer *bpe = NULL;
    rrfp_error error;
    size_t bytes = make_vocab(vocab, sizeof vocab, extra, 2, -1);
    const char *paths[] = {write_file("3", "hel", 3), write_file("4", "lhell", 5)};
    rrfp_dataset_config config = config_of(paths, 2, 4, 258);
    int32_t tokens[4], targets[4];

    (void)state;
    assert_int_equal(rrfp_tokenizer_open_bpe_memory(vocab, bytes, "v", merges, strlen(merges), "m",
                                                    &bpe, &error),
                     RRFP_OK);
    config.tokenizer = bpe;
    rrfp_dataset *dataset = open_files(&config);
    static const int32_t expected[] = {256, 'l', 'l', 256, 257}; /* he l | l he ll */
    assert_int_equal(rrfp_dataset_tokens(dataset), 5);
    assert_int_equal(rrfp_dataset_sample(dataset, RRFP_SPLIT_TRAIN, 0, tokens, targets, &error),
                     RRFP_OK);
    assert_memory_equal(tokens, expected, sizeof tokens);
    assert_memory_equal(targets, expected + 1, sizeof targets);
    rrfp_dataset_close(dataset);
    config.vocab = 257;
    dataset = open_files(&config);
    assert_int_equal(rrfp_dataset_sample(dataset, RRFP_SPLIT_TRAIN, 0, tokens, targets, &error),
                     RRFP_ERR_FORMAT);
    assert_non_null(strstr(error.text, "/4': token 2 is 257, outside the vocabulary of 257"));
    rrfp_dataset_close(dataset);
    rrfp_tokenizer_close(bpe);
}

static void entropy_is_that_of_the_training_split(void **state)
{
    /* 17 tokens, length 2: 8 samples, 4 of them for validation; the first 4 see "aaaabbcda". */
    const char *paths[] = {write_file("freq", "aaaabbcdazzzzzzzz", 17)};
    rrfp_dataset_config config = text_config(paths, 1, 2);

    (void)state;
    config.valid_fraction = 0.5;
    rrfp_dataset *dataset = open_files(&config);
    /* 5/9, 2/9, 1/9, 1/9: ln 9 - (5 ln 5 + 2 ln 2) / 9 */
    double expected = log(9.0) - (5.0 * log(5.0) + 2.0 * log(2.0)) / 9.0;
    assert_true(fabs(rrfp_dataset_unigram_entropy(dataset) - expected) < 1e-12);
    rrfp_dataset_close(dataset);
    paths[0] = write_file("flat", "abababab", 8);
    config.valid_fraction = 0.0;
    config.seq_length = 7;
    dataset = open_files(&config);
    assert_true(fabs(rrfp_dataset_unigram_entropy(dataset) - 0.69314718055994531) < 1e-12);
    rrfp_dataset_close(dataset);
}

static void missing_and_short_files_are_refused(void **state)
{
    const char *paths[] = {write_file("short", "abcd", 4), write_file("more", "ef", 2)};
    rrfp_dataset_config config = text_config(paths, 1, 4);

    (void)state;
    refuse(&config, RRFP_ERR_INVALID, "short", "4 tokens in all, but one sample takes 5");
    config.path_count = 2;
    config.seq_length = 6;
    refuse(&config, RRFP_ERR_INVALID, "short' and others", "6 tokens in all");
    refuse_file(path_of("absent"), RRFP_ERR_IO, "absent", "No such file");
    refuse_file(test_directory, RRFP_ERR_IO, test_directory, "not a regular file");
    refuse_file("-", RRFP_ERR_INVALID, "'-'", "file on disk");
    refuse_file(write_file("empty", "", 0), RRFP_ERR_FORMAT, "empty", "is empty");
    refuse_file(paths[0], RRFP_ERR_INVALID, "short", "needs a tokenizer");
    const char *pipe = path_of("pipe");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    refuse_file(pipe, RRFP_ERR_IO, "pipe", "not a regular file");
}

static void formats_do_not_mix(void **state)
{
    byte_buffer shard = {.count = 0};

    (void)state;
    put(&shard, 20240520, 4);
    put(&shard, 1, 4);
    put(&shard, 2, 4);
    while (shard.count < 1028) {
        put(&shard, 0, 4);
    }
    const char *paths[] = {write_file("plain", "abcd", 4),
                           write_file("shard", shard.bytes, shard.count)};
    rrfp_dataset_config config = text_config(paths, 2, 2);
    refuse(&config, RRFP_ERR_INVALID, "shard' is llm.c", "before it are text");
}

static void bad_numbers_are_refused(void **state)
{
    const char *paths[] = {write_count()};
    const rrfp_dataset_config good = text_config(paths, 1, 4);
    static const double fractions[] = {-0.1, 1.0, NAN, INFINITY};
    rrfp_dataset_config config = good;

    (void)state;
    config.path_count = 0;
    refuse(&config, RRFP_ERR_INVALID, "no data file", "");
    config = good;
    config.seq_length = 0;
    refuse(&config, RRFP_ERR_INVALID, "sequence length of 0", "");
    config.seq_length = UINT32_MAX;
    refuse(&config, RRFP_ERR_INVALID, "sequence length of 4294967295", "");
    config = good;
    config.vocab = 0;
    refuse(&config, RRFP_ERR_INVALID, "vocabulary of 0", "");
    config.vocab = UINT32_C(1) << 31;
    refuse(&config, RRFP_ERR_INVALID, "vocabulary of 2147483648", "");
    for (size_t i = 0; i < 4; i++) {
        config = good;
        config.valid_fraction = fractions[i];
        refuse(&config, RRFP_ERR_INVALID, "validation fraction", "below 1");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_are_aligned_and_split),
        cmocka_unit_test(epochs_visit_all_in_another_order),
        cmocka_unit_test(a_split_may_be_empty),
        cmocka_unit_test(files_join_in_order),
        cmocka_unit_test(bpe_encodes_file_by_file),
        cmocka_unit_test(entropy_is_that_of_the_training_split),
        cmocka_unit_test(missing_and_short_files_are_refused),
        cmocka_unit_test(formats_do_not_mix),
        cmocka_unit_test(bad_numbers_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
