/* trace.c - `rrfp trace`: a table or a picture from the files of `rrfp train --trace`. */
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trace/trace.h"

enum { MOST_TRACES = 2 };

typedef struct trace_request {
    const char *paths[MOST_TRACES];
    size_t path_count;
    const char *svg;
    int64_t step; /* RRFP_TRACE_ALL_STEPS: not given */
    bool help;
} trace_request;

static void print_help(void)
{
    printf("Usage: rrfp trace FILE.json [FILE.json] [--step N] [--svg OUT.svg]\n\n"
           "Reads traces written by 'rrfp train --trace FILE.json'.  Without --svg: a table of\n"
           "each, one line per stage: time in tasks, idle time by reason, bubble, how long ready\n"
           "tasks waited, tasks started out of the hint's order.\n\n"
           "  --step N       this step alone; without it the table sums all steps, and the\n"
           "                 picture shows the last one\n"
           "  --svg OUT.svg  draws the step; of two files, one above the other on the same axis\n");
}

static rrfp_status parse_step(const char *text, int64_t *step, rrfp_error *error)
{
    char *end = NULL;
    errno = 0;
    long long value = text[0] >= '0' && text[0] <= '9' ? strtoll(text, &end, 10) : 0;
    if (end == NULL || *end != '\0' || errno != 0) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "--step: '%.60s' is not a step number",
                              text);
    }
    *step = value;
    return RRFP_OK;
}

/* The value of `flag` in argv[*i] ("--step=3") or the word after it; NULL if it is another word. */
static const char *value_of(const char *flag, int argc, char **argv, int *i, bool *missing)
{
    const char *word = argv[*i];
    size_t bytes = strlen(flag);
    if (word == NULL || strncmp(word, flag, bytes) != 0) {
        return NULL;
    }
    if (word[bytes] == '=') {
        return word + bytes + 1;
    }
    if (word[bytes] != '\0') {
        return NULL;
    }
    if (*i + 1 == argc) {
        *missing = true;
        return NULL;
    }
    return argv[++*i];
}

static rrfp_status parse(int argc, char **argv, trace_request *request, rrfp_error *error)
{
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i], *value;
        bool missing = false;
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            request->help = true;
            return RRFP_OK;
        }
        if ((value = value_of("--step", argc, argv, &i, &missing)) != NULL) {
            rrfp_status status = parse_step(value, &request->step, error);
            if (status != RRFP_OK) {
                return status;
            }
        } else if ((value = value_of("--svg", argc, argv, &i, &missing)) != NULL) {
            request->svg = value;
        } else if (missing) {
            return rrfp_error_set(error, RRFP_ERR_INVALID, "'%s' needs a value", word);
        } else if (word[0] == '-') {
            return rrfp_error_set(error, RRFP_ERR_INVALID,
                                  "unknown option '%.80s'; 'rrfp trace --help' lists them", word);
        } else if (request->path_count == MOST_TRACES) {
            return rrfp_error_set(error, RRFP_ERR_INVALID,
                                  "'%.200s' is a third trace; one or two can be shown", word);
        } else {
            request->paths[request->path_count++] = word;
        }
    }
    if (request->path_count == 0) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "name a trace: 'rrfp trace FILE.json'; 'rrfp train --trace "
                              "FILE.json' writes one");
    }
    return RRFP_OK;
}

static rrfp_status draw(const trace_request *request, rrfp_trace *const *traces,
                        const rrfp_trace_labels *labels, rrfp_error *error)
{
    rrfp_trace_picture pictures[MOST_TRACES];
    for (size_t i = 0; i < request->path_count; i++) {
        uint64_t first = 0, last = 0;
        rrfp_trace_steps(traces[i], &first, &last);
        pictures[i] = (rrfp_trace_picture){
            traces[i], labels[i],
            request->step == RRFP_TRACE_ALL_STEPS ? last : (uint64_t)request->step};
    }
    return rrfp_trace_write_svg_compare(pictures, request->path_count, request->svg, error);
}

static rrfp_status show(const trace_request *request, rrfp_error *error)
{
    rrfp_trace *traces[MOST_TRACES] = {NULL, NULL};
    rrfp_trace_file_labels texts[MOST_TRACES];
    rrfp_trace_labels labels[MOST_TRACES];
    rrfp_status status = RRFP_OK;
    for (size_t i = 0; status == RRFP_OK && i < request->path_count; i++) {
        status = rrfp_trace_read_chrome(request->paths[i], &traces[i], &texts[i], error);
        labels[i] = (rrfp_trace_labels){texts[i].order, texts[i].hint, texts[i].title};
    }
    if (status == RRFP_OK && request->svg != NULL) {
        status = draw(request, traces, labels, error);
    }
    for (size_t i = 0; status == RRFP_OK && request->svg == NULL && i < request->path_count; i++) {
        if (request->path_count > 1) {
            printf("%s%s\n", i > 0 ? "\n" : "", request->paths[i]);
        }
        status = rrfp_trace_write_report(traces[i], &labels[i], request->step, stdout, error);
    }
    for (size_t i = 0; i < MOST_TRACES; i++) {
        rrfp_trace_destroy(traces[i]);
    }
    return status;
}

int rrfp_cli_trace(int argc, char **argv)
{
    trace_request request = {.step = RRFP_TRACE_ALL_STEPS};
    rrfp_error error;
    if (parse(argc, argv, &request, &error) != RRFP_OK) {
        return rrfp_cli_fail(&error);
    }
    if (request.help) {
        print_help();
        return RRFP_EXIT_OK;
    }
    return show(&request, &error) == RRFP_OK ? RRFP_EXIT_OK : rrfp_cli_fail(&error);
}
