/* main.c - picks the subcommand. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "config/options_table.h"
#include "config/suggest.h"

static int run_man(int argc, char **argv);
static int run_docs(int argc, char **argv);

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary; /* NULL: the table of commands has it */
} commands[] = {
    {"train", rrfp_cli_train, NULL},
    {"eval", rrfp_cli_eval, NULL},
    {"generate", rrfp_cli_generate, NULL},
    {"hint", rrfp_cli_hint, NULL},
    {"doctor", rrfp_cli_doctor, NULL},
    {"trace", rrfp_cli_trace, "summarize or draw the traces of runs"},
    {"man", run_man, "print the manual page (roff)"},
    {"docs", run_docs, "print the table of options (Markdown)"},
};

enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

/* Standard output may be a full disk or a closed pipe; losing text silently is a failure. */
static int finish_output(void)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "rrfp: cannot write standard output\n");
        return RRFP_EXIT_FAILED;
    }
    return RRFP_EXIT_OK;
}

static int refuse_arguments(const char *command, char **argv)
{
    fprintf(stderr, "rrfp: '%s' takes no argument, not '%.80s'\n", command, argv[0]);
    return RRFP_EXIT_USAGE;
}

static int run_man(int argc, char **argv)
{
    if (argc > 0) {
        return refuse_arguments("man", argv);
    }
    rrfp_options_print_man(stdout);
    return RRFP_EXIT_OK;
}

static int run_docs(int argc, char **argv)
{
    if (argc > 0) {
        return refuse_arguments("docs", argv);
    }
    rrfp_options_print_markdown(stdout);
    return RRFP_EXIT_OK;
}

int rrfp_cli_fail(const rrfp_error *error)
{
    fprintf(stderr, "rrfp: %s\n", error->text);
    switch (error->status) {
    case RRFP_ERR_INVALID:
    case RRFP_ERR_INFEASIBLE:
    case RRFP_ERR_UNSUPPORTED:
        return RRFP_EXIT_USAGE;
    default:
        return RRFP_EXIT_FAILED;
    }
}

static void print_usage(FILE *out)
{
    fprintf(out, "Usage: rrfp COMMAND [ARGUMENTS]\n\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        const char *summary = commands[i].summary;

        for (size_t k = 0; summary == NULL && k < rrfp_command_count(); k++) {
            if (strcmp(rrfp_command_at(k)->name, commands[i].name) == 0) {
                summary = rrfp_command_at(k)->summary;
            }
        }
        fprintf(out, "  %-10s %s\n", commands[i].name, summary);
    }
    fprintf(out, "\n'rrfp COMMAND --help' lists the options of a command; 'rrfp --version' prints "
                 "the version.\n");
}

static int unknown_command(const char *name)
{
    const char *best = NULL;
    size_t best_distance = (size_t)-1;

    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        size_t distance = rrfp_edit_distance(name, commands[i].name);

        if (distance < best_distance) {
            best_distance = distance;
            best = commands[i].name;
        }
    }
    if (best != NULL && rrfp_edit_is_near(name, best_distance)) {
        fprintf(stderr, "rrfp: unknown command '%.80s'; did you mean '%s'?\n", name, best);
    } else {
        fprintf(stderr, "rrfp: unknown command '%.80s'; 'rrfp --help' lists them\n", name);
    }
    return RRFP_EXIT_USAGE;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_usage(stderr);
        return RRFP_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_usage(stdout);
        return finish_output();
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("rrfp %s\n", RRFP_VERSION_STRING);
        return finish_output();
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            int code = commands[i].run(argc - 2, argv + 2);
            int written = finish_output();

            return code != RRFP_EXIT_OK ? code : written;
        }
    }
    return unknown_command(argv[1]);
}
