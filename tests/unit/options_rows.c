/* options_rows.c - every row of the table: default, flag, TOML key, bounds, place in the struct. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/options_table.h"

/* Written by hand: default, and a legal other value as flag, as TOML and as it must read back. */
static const struct sample {
    const char *name, *initial, *flag, *toml, *stored;
    const char *extra; /* another flag that makes the value possible, or NULL */
} samples[] = {
    {"pipeline-model-parallel-size", "1", "4", "4", "4", NULL},
    {"virtual-stages", "1", "2", "2", "2", NULL},
    {"order", "ready", "fixed", "\"fixed\"", "fixed", NULL},
    {"hint", "bf", "gpipe", "\"gpipe\"", "gpipe", NULL},
    {"hint-distance", "unbounded", "3", "3", "3", NULL},
    {"max-inflight", "auto", "7", "7", "7", NULL},
    {"max-inflight-bytes", "0", "3KiB", "\"3 KiB\"", "3072", NULL},
    {"max-pending-w", "0", "5", "5", "5", NULL},
    {"accumulate", "ordered", "arrival", "'arrival'", "arrival", NULL},
    {"jitter", "none", "J2", "\"J2\"", "J2", NULL},
    {"jitter-seed", "1", "77", "77", "77", NULL},
    {"message-dtype", "fp32", "bf16", "\"bf16\"", "bf16", NULL},
    {"threads-per-stage", "1", "2", "2", "2", NULL},
    {"layers-per-chunk", "", "4", "[4]", "4", NULL},
    {"model", "gpt2", "llama", "\"llama\"", "llama", NULL},
    {"num-layers", "4", "12", "12", "12", NULL},
    {"hidden-size", "256", "768", "768", "768", NULL},
    {"num-attention-heads", "4", "8", "8", "8", NULL},
    {"num-query-groups", "0", "2", "2", "2", "--model=llama"},
    {"ffn-hidden-size", "0", "1024", "1024", "1024", NULL},
    {"seq-length", "256", "64", "64", "64", NULL},
    {"max-position-embeddings", "0", "512", "512", "512", NULL},
    {"vocab-size", "0", "50257", "50_257", "50257", NULL},
    {"untie-embeddings-and-output-weights", "false", "true", "true", "true", NULL},
    {"dropout", "0", "0.1", "0.1", "0.1", NULL},
    {"norm-epsilon", "1e-05", "1e-6", "1e-6", "1e-06", NULL},
    {"rotary-base", "10000", "500000", "500000", "500000", NULL},
    {"recompute-activations", "false", "true", "true", "true", NULL},
    {"micro-batch-size", "4", "8", "8", "8", NULL},
    {"global-batch-size", "32", "64", "64", "64", NULL},
    {"train-iters", "100", "5", "5", "5", NULL},
    {"eval-interval", "0", "50", "50", "50", NULL},
    {"eval-iters", "10", "3", "3", "3", NULL},
    {"log-interval", "10", "1", "1", "1", NULL},
    {"save-interval", "0", "20", "20", "20", "--save=d"},
    {"lr", "0.001", "6e-4", "6e-4", "0.0006", NULL},
    {"min-lr", "0.0001", "0", "0", "0", NULL},
    {"lr-warmup-iters", "20", "0", "0", "0", NULL},
    {"lr-decay-iters", "0", "400", "400", "400", NULL},
    {"lr-decay-style", "cosine", "linear", "\"linear\"", "linear", NULL},
    {"weight-decay", "0.1", "0.01", "0.01", "0.01", NULL},
    {"adam-beta1", "0.9", "0.8", "0.8", "0.8", NULL},
    {"adam-beta2", "0.95", "0.999", "0.999", "0.999", NULL},
    {"adam-eps", "1e-08", "1e-6", "1e-6", "1e-06", NULL},
    {"clip-grad", "1", "0.5", "0.5", "0.5", NULL},
    {"seed", "1234", "9223372036854775807", "9223372036854775807", "9223372036854775807", NULL},
    {"on-nonfinite", "skip", "stop", "\"stop\"", "stop", NULL},
    {"exit-duration-in-mins", "0", "1.5", "1.5", "1.5", NULL},
    {"data-path", NULL, "b", "\"b\"", NULL, NULL},
    {"tokenizer-type", "byte", "gpt2-bpe", "\"gpt2-bpe\"", "gpt2-bpe",
     "--vocab-file=v --merge-file=m"},
    {"vocab-file", "", "v.json", "\"v.json\"", "v.json",
     "--tokenizer-type=gpt2-bpe --merge-file=m"},
    {"merge-file", "", "m.txt", "\"m.txt\"", "m.txt", "--tokenizer-type=gpt2-bpe --vocab-file=v"},
    {"valid-fraction", "0.05", "0.25", "0.25", "0.25", NULL},
    {"save", "", "ck", "\"ck\"", "ck", NULL},
    {"load", "", "hf", "\"hf\"", "hf", NULL},
    {"finetune", "false", "true", "true", "true", "--load=hf"},
    {"trace", "", "t.json", "\"t.json\"", "t.json", NULL},
    {"trace-svg", "", "t.svg", "\"t.svg\"", "t.svg", NULL},
    {"summary", "", "s.json", "\"s.json\"", "s.json", NULL},
    {"nproc", "1", "4", "4", "4", NULL},
    {"restarts", "0", "3", "3", "3", NULL},
    {"cpu-bind", "none", "share", "\"share\"", "share", NULL},
    {"peer-timeout", "30", "2.5", "2.5", "2.5", NULL},
    {"prompt", "", "Once \"x\"", "'Once \"x\"'", "Once \"x\"", NULL},
    {"max-new-tokens", "100", "7", "7", "7", NULL},
    {"temperature", "0.8", "0", "0", "0", NULL},
    {"top-k", "0", "40", "40", "40", NULL},
    {"print-config", "false", "true", "true", "true", NULL},
};
enum { SAMPLE_COUNT = sizeof samples / sizeof samples[0], MAX_WORDS = 12 };

static rrfp_options options;
static rrfp_error error;

static rrfp_command first_command(const rrfp_option *option)
{
    for (unsigned bit = 1;; bit <<= 1) {
        if ((option->commands & bit) != 0) {
            return (rrfp_command)bit;
        }
    }
}

/* Parses flags behind those a command cannot do without. */
static rrfp_status parse_flags(rrfp_command command, const char *extra, const char *const *flags)
{
    char copy[256], *words[MAX_WORDS], *next = NULL;
    int count = 0;
    bool help = false;
    char data[] = "--data-path=first", load[] = "--load=dir", prompt[] = "--prompt=hello";

    if (command == RRFP_COMMAND_TRAIN || command == RRFP_COMMAND_EVAL) {
        words[count++] = data;
    }
    if (command == RRFP_COMMAND_EVAL || command == RRFP_COMMAND_GENERATE) {
        words[count++] = load;
    }
    if (command == RRFP_COMMAND_GENERATE) {
        words[count++] = prompt;
    }
    snprintf(copy, sizeof copy, "%s", extra == NULL ? "" : extra);
    for (char *w = strtok_r(copy, " ", &next); w != NULL; w = strtok_r(NULL, " ", &next)) {
        words[count++] = w;
    }
    for (; *flags != NULL; flags++) {
        words[count++] = (char *)*flags;
    }
    error.text[0] = '\0';
    return rrfp_options_parse(&options, command, count, words, &help, &error);
}

static void test_every_row_has_a_sample(void **state)
{
    (void)state;
    assert_int_equal(rrfp_option_count(), SAMPLE_COUNT);
    for (size_t i = 0; i < SAMPLE_COUNT; i++) {
        assert_non_null(rrfp_option_find(samples[i].name));
    }
}

static void test_defaults(void **state)
{
    char text[4096];

    (void)state;
    memset(&options, 0xa5, sizeof options);
    rrfp_options_defaults(&options);
    assert_int_equal(options.data_path_count, 0);
    for (size_t i = 0; i < SAMPLE_COUNT; i++) {
        if (samples[i].initial != NULL) {
            rrfp_option_format(rrfp_option_find(samples[i].name), &options, text, sizeof text);
            assert_string_equal(text, samples[i].initial);
        }
    }
}

/* No two rows share a byte of the struct, and together they fill its named fields. */
static void test_rows_own_their_fields(void **state)
{
    unsigned char *owner = calloc(1, sizeof(rrfp_options));
    size_t free_bytes = 0;

    (void)state;
    assert_non_null(owner);
    for (size_t i = 0; i < rrfp_option_count(); i++) {
        const rrfp_option *option = rrfp_option_at(i);

        assert_true(option->offset + option->bytes <= sizeof(rrfp_options));
        for (size_t k = 0; k < option->bytes; k++) {
            assert_int_equal(owner[option->offset + k], 0);
            owner[option->offset + k] = 1;
        }
    }
    for (size_t k = 0; k < sizeof(rrfp_options); k++) {
        free_bytes += owner[k] == 0;
    }
    /* data_path_count, and padding before 8-byte fields: far less than any text field. */
    assert_true(free_bytes >= sizeof options.data_path_count && free_bytes < 48);
    free(owner);
}

static void check_stored(const struct sample *sample)
{
    const rrfp_option *option = rrfp_option_find(sample->name);
    char text[4096];

    if (option->type == RRFP_OPTION_PATHS) {
        assert_string_equal(options.data_path[options.data_path_count - 1], "b");
        return;
    }
    rrfp_option_format(option, &options, text, sizeof text);
    assert_string_equal(text, sample->stored);
}

static void test_flags_set_every_row(void **state)
{
    (void)state;
    for (size_t i = 0; i < SAMPLE_COUNT; i++) {
        const struct sample *sample = &samples[i];
        const rrfp_option *option = rrfp_option_find(sample->name);
        char flag[128], underscored[128], joined[160];
        const char *separate[] = {flag, sample->flag, NULL};
        const char *one[] = {joined, NULL};

        snprintf(flag, sizeof flag, "--%s", sample->name);
        snprintf(underscored, sizeof underscored, "--%s", sample->name);
        for (char *p = underscored + 2; *p != '\0'; p++) {
            *p = *p == '-' ? '_' : *p;
        }
        snprintf(joined, sizeof joined, "%s=%s", underscored, sample->flag);
        if (option->type == RRFP_OPTION_BOOLEAN) {
            separate[1] = NULL;
        }
        if (parse_flags(first_command(option), sample->extra, separate) != RRFP_OK) {
            fail_msg("%s: %s", sample->name, error.text);
        }
        check_stored(sample);
        if (parse_flags(first_command(option), sample->extra, one) != RRFP_OK) {
            fail_msg("%s: %s", sample->name, error.text);
        }
        check_stored(sample);
    }
}

static void test_booleans_can_be_taken_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < rrfp_option_count(); i++) {
        const rrfp_option *option = rrfp_option_at(i);
        char yes[96], no[96];
        const char *flags[] = {yes, no, NULL};

        if (option->type != RRFP_OPTION_BOOLEAN) {
            continue;
        }
        snprintf(yes, sizeof yes, "--%s", option->name);
        snprintf(no, sizeof no, "--no-%s", option->name);
        assert_int_equal(parse_flags(first_command(option), NULL, flags), RRFP_OK);
        assert_false(*(const bool *)((const char *)&options + option->offset));
    }
}

static void test_toml_sets_every_row(void **state)
{
    (void)state;
    for (size_t i = 0; i < SAMPLE_COUNT; i++) {
        const struct sample *sample = &samples[i];
        char name[96], text[256];

        snprintf(name, sizeof name, "%s", sample->name);
        for (char *p = name; *p != '\0' && i % 2 == 0; p++) {
            *p = *p == '-' ? '_' : *p;
        }
        snprintf(text, sizeof text, "%s%s = %s\n", i % 3 == 0 ? "[any]\n" : "", name,
                 sample->toml);
        rrfp_options_defaults(&options);
        if (rrfp_options_parse_toml(&options, RRFP_COMMAND_TRAIN, "t.toml", text, strlen(text),
                                    &error) != RRFP_OK) {
            fail_msg("%s: %s", text, error.text);
        }
        check_stored(sample);
    }
}

static void expect_refused(const rrfp_option *option, const char *text)
{
    rrfp_options before = options;

    error.text[0] = '\0';
    if (rrfp_option_set(option, &options, "place", text, &error) == RRFP_OK) {
        fail_msg("%s takes '%s'", option->name, text);
    }
    assert_int_equal(memcmp(&before, &options, sizeof before), 0);
    assert_non_null(strstr(error.text, "place"));
}

static void test_bounds(void **state)
{
    char text[64];

    (void)state;
    rrfp_options_defaults(&options);
    for (size_t i = 0; i < rrfp_option_count(); i++) {
        const rrfp_option *option = rrfp_option_at(i);

        switch (option->type) {
        case RRFP_OPTION_UINT32:
        case RRFP_OPTION_UINT64:
        case RRFP_OPTION_BYTES:
        case RRFP_OPTION_DISTANCE:
            snprintf(text, sizeof text, "%llu", (unsigned long long)option->max);
            assert_int_equal(rrfp_option_set(option, &options, "p", text, &error), RRFP_OK);
            snprintf(text, sizeof text, "%llu", (unsigned long long)option->max + 1);
            expect_refused(option, text);
            snprintf(text, sizeof text, "%llu", (unsigned long long)option->min);
            assert_int_equal(rrfp_option_set(option, &options, "p", text, &error), RRFP_OK);
            if (option->min > 0) {
                snprintf(text, sizeof text, "%llu", (unsigned long long)option->min - 1);
                expect_refused(option, text);
            }
            expect_refused(option, "18446744073709551616"); /* 2^64 */
            expect_refused(option, "-1");
            expect_refused(option, "+1");
            expect_refused(option, " 1");
            expect_refused(option, "1 x");
            expect_refused(option, "1.0");
            expect_refused(option, "1e1");
            expect_refused(option, "0x1");
            expect_refused(option, "");
            break;
        case RRFP_OPTION_REAL:
            snprintf(text, sizeof text, "%.17g", option->real_max);
            assert_int_equal(rrfp_option_set(option, &options, "p", text, &error), RRFP_OK);
            snprintf(text, sizeof text, "%.17g", option->real_max * 1.0001);
            expect_refused(option, text);
            snprintf(text, sizeof text, "%.17g", option->real_min);
            assert_int_equal(rrfp_option_set(option, &options, "p", text, &error), RRFP_OK);
            expect_refused(option, "-0.001");
            expect_refused(option, "nan");
            expect_refused(option, "inf");
            expect_refused(option, "1e999");
            expect_refused(option, "0x1p-3");
            expect_refused(option, " 0.5");
            expect_refused(option, "0.5 ");
            expect_refused(option, "1-2");
            expect_refused(option, "");
            break;
        case RRFP_OPTION_BOOLEAN:
            expect_refused(option, "yes");
            expect_refused(option, "");
            break;
        case RRFP_OPTION_CHOICE:
            expect_refused(option, "");
            expect_refused(option, "nonsense");
            expect_refused(option, option->choices); /* "a|b" as a whole is no choice */
            break;
        case RRFP_OPTION_TEXT:
        case RRFP_OPTION_LIST:
        case RRFP_OPTION_PATHS:
            break;
        }
    }
}

static void test_text_lengths(void **state)
{
    static char text[8192];

    (void)state;
    rrfp_options_defaults(&options);
    for (size_t i = 0; i < rrfp_option_count(); i++) {
        const rrfp_option *option = rrfp_option_at(i);
        bool path = option->type == RRFP_OPTION_PATHS;
        size_t most = path ? sizeof options.data_path[0] - 1 : option->bytes - 1;

        if (!path && option->type != RRFP_OPTION_TEXT && option->type != RRFP_OPTION_LIST) {
            continue;
        }
        memset(text, 'x', sizeof text);
        text[most] = '\0';
        assert_int_equal(rrfp_option_set(option, &options, "p", text, &error), RRFP_OK);
        text[most] = 'x';
        text[most + 1] = '\0';
        expect_refused(option, text);
    }
}

static void test_sizes(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"17", 17},          {"17B", 17},
                {"1KiB", 1024},      {"3 MiB", 3u << 20},
                {"2GiB", 1ull << 31}, {"8589934591GiB", 8589934591ull << 30}};
    static const char *const bad[] = {"1kib", "1 K", "1KB", "KiB", "1  KiB", "1.5GiB",
                                      "8589934592GiB", "18446744073709551615KiB"};
    const rrfp_option *option = rrfp_option_find("max-inflight-bytes");

    (void)state;
    rrfp_options_defaults(&options);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(rrfp_option_set(option, &options, "p", good[i].text, &error), RRFP_OK);
        assert_true(options.max_inflight_bytes == good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        expect_refused(option, bad[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_has_a_sample),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_rows_own_their_fields),
        cmocka_unit_test(test_flags_set_every_row),
        cmocka_unit_test(test_booleans_can_be_taken_back),
        cmocka_unit_test(test_toml_sets_every_row),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_text_lengths),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
