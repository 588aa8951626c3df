/* options_output.c - help, man page, Markdown and TOML hold every row; TOML reads back equal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/options_table.h"
#include "rrfp/hint.h"

static rrfp_options options, again;
static rrfp_error error;

static char *text; /* what the last print wrote */

static FILE *begin(void)
{
    static size_t bytes;
    FILE *out;

    free(text);
    text = NULL;
    out = open_memstream(&text, &bytes);
    assert_non_null(out);
    return out;
}

/* "--name" as a whole word, so that --lr is not found inside --lr-decay-style. */
static bool has_word(const char *haystack, const char *prefix, const char *name)
{
    char word[128];

    snprintf(word, sizeof word, "%s%s", prefix, name);
    for (const char *at = strstr(haystack, word); at != NULL; at = strstr(at + 1, word)) {
        char after = at[strlen(word)];

        if (strchr(" \n`=.", after) != NULL) {
            return true;
        }
    }
    return false;
}

static void test_help_has_the_rows_of_its_command(void **state)
{
    (void)state;
    for (size_t c = 0; c < rrfp_command_count(); c++) {
        const rrfp_command_info *info = rrfp_command_at(c);
        FILE *out = begin();

        rrfp_options_print_help(info->command, out);
        fclose(out);
        assert_non_null(strstr(text, info->summary));
        for (size_t i = 0; i < rrfp_option_count(); i++) {
            const rrfp_option *option = rrfp_option_at(i);
            bool boolean = option->type == RRFP_OPTION_BOOLEAN;
            bool shown = has_word(text, boolean ? "--[no-]" : "--", option->name);

            /* Words of a subcommand's own may have a row's name. */
            shown = shown && (info->extra == NULL || !has_word(info->extra, "--", option->name) ||
                              (option->commands & (unsigned)info->command) != 0);

            if (shown != ((option->commands & (unsigned)info->command) != 0)) {
                fail_msg("%s --help %s --%s", info->name, shown ? "shows" : "lacks", option->name);
            }
        }
        for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
            assert_true(strlen(line) <= 100);
        }
    }
}

static void test_hint_row_names_every_schedule(void **state)
{
    const char *help = rrfp_option_find("hint")->help;

    (void)state;
    for (size_t i = 0; i < rrfp_hint_count(); i++) {
        char name[80];

        snprintf(name, sizeof name, " %s,", rrfp_hint_at(i)->name);
        if (strstr(help, name) == NULL) {
            fail_msg("the help of --hint lacks %s", rrfp_hint_at(i)->name);
        }
    }
}

static void test_man_page_has_every_row(void **state)
{
    FILE *out = begin();

    (void)state;
    rrfp_options_print_man(out);
    fclose(out);
    assert_int_equal(strncmp(text, ".TH RRFP 1 ", 11), 0);
    for (size_t i = 0; i < rrfp_option_count(); i++) {
        const rrfp_option *option = rrfp_option_at(i);
        char escaped[256] = "", *p = escaped;

        for (const char *c = option->name; *c != '\0'; c++) {
            p += sprintf(p, *c == '-' ? "\\-" : "%c", *c);
        }
        if (!has_word(text, option->type == RRFP_OPTION_BOOLEAN ? "[no\\-]" : "\\-\\-", escaped)) {
            fail_msg("the man page lacks --%s", option->name);
        }
    }
    /* Only requests begin with a dot; a quote at a line's start would be one too. */
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        assert_true(line[0] != '\'');
        assert_true(line[0] != '.' || (line[1] >= 'A' && line[1] <= 'Z') ||
                    strcmp(line, ".br") == 0);
    }
}

static void test_markdown_is_the_committed_file(void **state)
{
    FILE *out = begin(), *file = fopen(RRFP_TEST_SOURCE_DIR "/docs/flags.md", "rb");
    static char committed[1 << 17];
    size_t bytes;

    (void)state;
    assert_non_null(file);
    bytes = fread(committed, 1, sizeof committed - 1, file);
    fclose(file);
    committed[bytes] = '\0';
    rrfp_options_print_markdown(out);
    fclose(out);
    for (size_t i = 0; i < rrfp_option_count(); i++) {
        assert_true(has_word(text, "| `", rrfp_option_at(i)->name));
    }
    if (strcmp(text, committed) != 0) {
        fail_msg("docs/flags.md is old; run: build/rrfp docs > docs/flags.md");
    }
}

static void test_toml_reads_back_equal(void **state)
{
    FILE *out;

    (void)state;
    rrfp_options_defaults(&options);
    options.num_layers = 24;
    options.hint_distance = 7;
    options.lr = 0.1 + 0.2; /* needs 17 digits */
    options.min_lr = 1.0 / 3;
    options.max_inflight_bytes = UINT64_C(9223372036854775807);
    options.recompute_activations = true;
    snprintf(options.save, sizeof options.save, "a \"b\" \\c\ttab \x7f \xc3\xa9");
    snprintf(options.max_inflight, sizeof options.max_inflight, "4,3");
    snprintf(options.data_path[0], sizeof options.data_path[0], "x\ny");
    snprintf(options.data_path[1], sizeof options.data_path[1], "z");
    options.data_path_count = 2;
    out = begin();
    rrfp_options_print_toml(&options, RRFP_COMMAND_TRAIN, out);
    fclose(out);
    rrfp_options_defaults(&again);
    if (rrfp_options_parse_toml(&again, RRFP_COMMAND_TRAIN, "back", text, strlen(text), &error) !=
        RRFP_OK) {
        fail_msg("%s in %s", error.text, text);
    }
    assert_int_equal(memcmp(&options, &again, sizeof options), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_help_has_the_rows_of_its_command),
        cmocka_unit_test(test_hint_row_names_every_schedule),
        cmocka_unit_test(test_man_page_has_every_row),
        cmocka_unit_test(test_markdown_is_the_committed_file),
        cmocka_unit_test(test_toml_reads_back_equal),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);

    free(text);
    return failed;
}
