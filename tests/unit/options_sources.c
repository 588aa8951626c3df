/* options_sources.c - defaults, then the TOML file, then flags; and what a wrong source says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/options_table.h"
#include "config/suggest.h"

static rrfp_options options;
static rrfp_error error;

static rrfp_status read_toml(const char *text)
{
    rrfp_options_defaults(&options);
    error.text[0] = '\0';
    return rrfp_options_parse_toml(&options, RRFP_COMMAND_TRAIN, "run.toml", text, strlen(text),
                                   &error);
}

/* The line must hold each of the parts. */
static void expect_toml_error(const char *text, const char *const *parts)
{
    rrfp_options before;

    rrfp_options_defaults(&before);
    if (read_toml(text) == RRFP_OK) {
        fail_msg("accepted: %s", text);
    }
    assert_int_equal(memcmp(&before, &options, sizeof before), 0);
    for (; *parts != NULL; parts++) {
        if (strstr(error.text, *parts) == NULL) {
            fail_msg("'%s' lacks '%s'", error.text, *parts);
        }
    }
}
#define EXPECT_TOML_ERROR(text, ...)                                                               \
    expect_toml_error(text, (const char *const[]){__VA_ARGS__, NULL})

static rrfp_status parse(rrfp_command command, const char *const *words, bool *help)
{
    char *argv[16];
    int argc = 0;

    for (; words[argc] != NULL; argc++) {
        argv[argc] = (char *)words[argc];
    }
    error.text[0] = '\0';
    return rrfp_options_parse(&options, command, argc, argv, help, &error);
}

static void expect_flag_error(const char *part, const char *const *words)
{
    bool help;

    memset(&options, 0x5a, sizeof options);
    if (parse(RRFP_COMMAND_TRAIN, words, &help) == RRFP_OK) {
        fail_msg("accepted; wanted '%s'", part);
    }
    if (strstr(error.text, part) == NULL) {
        fail_msg("'%s' lacks '%s'", error.text, part);
    }
    assert_int_equal(options.num_layers, 0x5a5a5a5a); /* untouched on error */
}
#define EXPECT_FLAG_ERROR(part, ...)                                                               \
    expect_flag_error(part, (const char *const[]){__VA_ARGS__, NULL})

static void test_later_sources_win(void **state)
{
    char path[] = "/tmp/rrfp_options_XXXXXX";
    int file = mkstemp(path);
    static const char text[] = "num_layers = 6\ndata_path = [\"a\", \"b\"]\n[optimizer]\nlr = 0.5\n"
                               "min_lr = 0.25\n";
    const char *plain[] = {path, NULL};
    const char *flags[] = {path, "--num-layers", "8", "--data-path", "c", "--lr=0.3", NULL};
    bool help = true;

    (void)state;
    assert_true(file >= 0);
    assert_int_equal(write(file, text, sizeof text - 1), sizeof text - 1);
    close(file);
    assert_int_equal(parse(RRFP_COMMAND_TRAIN, plain, &help), RRFP_OK);
    assert_false(help);
    assert_int_equal(options.num_layers, 6);
    assert_int_equal(options.hidden_size, 256);
    assert_int_equal(options.data_path_count, 2);
    assert_string_equal(options.data_path[1], "b");
    assert_true(options.lr == 0.5);
    assert_int_equal(parse(RRFP_COMMAND_TRAIN, flags, &help), RRFP_OK);
    assert_int_equal(options.num_layers, 8);
    assert_int_equal(options.data_path_count, 1);
    assert_string_equal(options.data_path[0], "c");
    assert_true(options.lr == 0.3 && options.min_lr == 0.25);
    unlink(path);
}

static void test_repeated_flags(void **state)
{
    const char *words[] = {"--data-path", "a",  "--data-path=b", "--seed", "1",
                           "--seed",      "99", NULL};
    bool help;

    (void)state;
    assert_int_equal(parse(RRFP_COMMAND_TRAIN, words, &help), RRFP_OK);
    assert_int_equal(options.data_path_count, 2);
    assert_string_equal(options.data_path[0], "a");
    assert_string_equal(options.data_path[1], "b");
    assert_true(options.seed == 99);
}

static void test_help_stops_reading(void **state)
{
    const char *words[] = {"--no-such-flag", "--help", NULL};
    bool help = false;

    (void)state;
    assert_int_equal(parse(RRFP_COMMAND_TRAIN, words, &help), RRFP_OK);
    assert_true(help);
}

static void test_one_file_serves_several_commands(void **state)
{
    (void)state;
    assert_int_equal(read_toml("prompt = \"x\"\ntop-k = 3\ntrain_iters = 7\n"), RRFP_OK);
    assert_int_equal(options.top_k, 3);
    EXPECT_FLAG_ERROR("'--prompt' is an option of generate, not of 'train'", "--prompt", "x");
}

static void test_arrays(void **state)
{
    (void)state;
    assert_int_equal(read_toml("layers_per_chunk = [3, 2, 0]\nmax_inflight = [4, 3]\n"), RRFP_OK);
    assert_string_equal(options.layers_per_chunk, "3,2,0");
    assert_string_equal(options.max_inflight, "4,3");
    assert_int_equal(read_toml("layers_per_chunk = []\ndata_path = []\n"), RRFP_OK);
    assert_string_equal(options.layers_per_chunk, "");
    assert_int_equal(options.data_path_count, 0);
    EXPECT_TOML_ERROR("layers_per_chunk = [1, \"2\"]", "run.toml:1", "layers_per_chunk", "array");
    EXPECT_TOML_ERROR("lr = [1.0]", "lr", "array", "a number");
    EXPECT_TOML_ERROR("data_path = [[\"a\"]]", "data_path", "array");
}

static void test_names_of_megatron(void **state)
{
    const char *words[] = {"--data-path", "x", "--num-virtual-stages-per-pipeline-rank", "2",
                           "--tensor-model-parallel-size", "1", "--context-parallel-size=1", NULL};
    bool help;

    (void)state;
    assert_int_equal(parse(RRFP_COMMAND_TRAIN, words, &help), RRFP_OK);
    assert_int_equal(options.virtual_stages, 2);
    EXPECT_FLAG_ERROR("tensor parallelism is not in this build", "--tensor-model-parallel-size",
                      "2");
    assert_int_equal(read_toml("tensor_model_parallel_size = 1\n"), RRFP_OK);
    EXPECT_TOML_ERROR("tensor_model_parallel_size = 4", "run.toml:1", "not in this build");
}

static void test_wrong_flags(void **state)
{
    (void)state;
    EXPECT_FLAG_ERROR("did you mean '--num-layers'?", "--num-layer", "3");
    EXPECT_FLAG_ERROR("did you mean '--hidden-size'?", "--hiden_size=3");
    EXPECT_FLAG_ERROR("'rrfp train --help' lists them all", "--frobnicate");
    EXPECT_FLAG_ERROR("'--lr' needs a value", "--lr");
    EXPECT_FLAG_ERROR("'--save' needs a value", "--save", "--trace", "x");
    EXPECT_FLAG_ERROR("--lr: 'fast' is not a number; it takes 0 to 1000", "--lr", "fast");
    EXPECT_FLAG_ERROR("--order: 'any' is unknown; it takes ready or fixed", "--order", "any");
    EXPECT_FLAG_ERROR("unexpected argument 'b'", "--data-path", "a", "b");
    EXPECT_FLAG_ERROR("unexpected argument '-x'", "--data-path", "a", "-x");
    EXPECT_FLAG_ERROR("unexpected argument '--'", "--data-path", "a", "--");
    EXPECT_FLAG_ERROR("'--no-recompute-activations' takes no value",
                      "--no-recompute-activations=true");
    EXPECT_FLAG_ERROR("unknown option '--no-lr'", "--no-lr", "3");
    EXPECT_FLAG_ERROR("cannot open configuration '/nonexistent/x.toml'", "/nonexistent/x.toml");
    EXPECT_FLAG_ERROR("the path is empty", "--data-path", "");
}

static void test_wrong_documents(void **state)
{
    (void)state;
    EXPECT_TOML_ERROR("\n\nnum_layer = 3", "run.toml:3", "num_layer", "did you mean 'num-layers'?");
    EXPECT_TOML_ERROR("zzzzzz = 3", "run.toml:1", "zzzzzz", "unknown option");
    EXPECT_TOML_ERROR("[m]\nnum_layers = \"4\"", "run.toml:2", "num_layers", "string '4'",
                      "an integer");
    EXPECT_TOML_ERROR("num_layers = 4.0", "run.toml:1", "number 4", "an integer");
    EXPECT_TOML_ERROR("num_layers = -4", "run.toml:1", "'-4' is out of bounds", "1 to 4096");
    EXPECT_TOML_ERROR("recompute_activations = 1", "integer 1", "true or false");
    EXPECT_TOML_ERROR("hint = true", "boolean true", "a string");
    EXPECT_TOML_ERROR("lr = 1979-05-27", "date", "a number");
    EXPECT_TOML_ERROR("lr = inf", "lr", "it takes 0 to 1000");
    EXPECT_TOML_ERROR("hint = \"a\\u0000b\"", "holds a NUL");
    EXPECT_TOML_ERROR("lr = 1\n[a]\n\nlr = 2", "run.toml:4: lr", "given twice", "[a]",
                      "line 1 at the top");
    EXPECT_TOML_ERROR("[a]\nlr = 1\n[b]\nl-r = 2\n", "l-r", "unknown option");
    EXPECT_TOML_ERROR("[a]\nmin-lr = 1\n[b]\nmin_lr = 2\n", "given twice", "[a]", "[b]");
    EXPECT_TOML_ERROR("lr = 1\nlr = 2", "run.toml:2");
    EXPECT_TOML_ERROR("[a.b]\nlr = 1", "'a.b' is too deep");
    EXPECT_TOML_ERROR("[[a]]\nlr = 1", "run.toml:1", "a", "unknown option");
    EXPECT_TOML_ERROR("lr = ", "run.toml:1");
    EXPECT_TOML_ERROR("hint = \"\xff\"", "run.toml:1");
}

static void test_too_many_paths(void **state)
{
    char text[2048] = "data_path = [";

    (void)state;
    for (int i = 0; i < 64; i++) {
        strcat(text, "\"p\",");
    }
    strcat(text, "]");
    assert_int_equal(read_toml(text), RRFP_OK);
    assert_int_equal(options.data_path_count, 64);
    strcpy(strrchr(text, ']'), "\"p\"]");
    EXPECT_TOML_ERROR(text, "more than 64 paths");
}

static void test_oversized_document(void **state)
{
    size_t bytes = ((size_t)1 << 20) + 1;
    char *text = malloc(bytes);

    (void)state;
    assert_non_null(text);
    memset(text, '\n', bytes);
    rrfp_options_defaults(&options);
    assert_int_equal(rrfp_options_parse_toml(&options, RRFP_COMMAND_TRAIN, "big", text, bytes - 1,
                                             &error),
                     RRFP_OK);
    assert_int_equal(
        rrfp_options_parse_toml(&options, RRFP_COMMAND_TRAIN, "big", text, bytes, &error),
        RRFP_ERR_INVALID);
    free(text);
}

/* Distances counted by hand; swaps of neighbours are one edit. */
static void test_edit_distance(void **state)
{
    static const struct {
        const char *a, *b;
        size_t edits;
    } cases[] = {{"", "", 0},          {"", "abc", 3},           {"kitten", "sitting", 3},
                 {"trian", "train", 1}, {"num_layers", "NUM-LAYERS", 0}, {"ab", "ba", 1},
                 {"abc", "abc", 0},    {"lr", "min-lr", 4},      {"flaw", "lawn", 2}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(rrfp_edit_distance(cases[i].a, cases[i].b), cases[i].edits);
        assert_int_equal(rrfp_edit_distance(cases[i].b, cases[i].a), cases[i].edits);
    }
    assert_true(rrfp_edit_distance("x", "01234567890123456789012345678901234567890123456789"
                                        "01234567890123456789012345678901234567890123456789") ==
                SIZE_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_later_sources_win),
        cmocka_unit_test(test_repeated_flags),
        cmocka_unit_test(test_help_stops_reading),
        cmocka_unit_test(test_one_file_serves_several_commands),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_names_of_megatron),
        cmocka_unit_test(test_wrong_flags),
        cmocka_unit_test(test_wrong_documents),
        cmocka_unit_test(test_too_many_paths),
        cmocka_unit_test(test_oversized_document),
        cmocka_unit_test(test_edit_distance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
