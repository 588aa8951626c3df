/* hint.c - `rrfp hint`: show, convert and check schedules. */
#include "cli/cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/options.h"
#include "rrfp/hint.h"

typedef struct hint_request {
    rrfp_options options;
    bool help, csv, table, bubbles, check;
    bool stages_given, chunks_given;
    uint32_t microbatches; /* 0 = not given */
} hint_request;

static bool is_csv(const char *name)
{
    size_t bytes = strlen(name);

    return bytes >= 4 && strcmp(name + bytes - 4, ".csv") == 0;
}

static rrfp_status read_microbatches(const char *text, uint32_t *count, rrfp_error *error)
{
    char *end = NULL;
    unsigned long value = text[0] >= '0' && text[0] <= '9' ? strtoul(text, &end, 10) : 0;

    if (end == NULL || *end != '\0' || value == 0 || value > RRFP_MAX_MICROBATCHES) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "-m: '%.60s' is not a count from 1 to %d",
                              text, RRFP_MAX_MICROBATCHES);
    }
    *count = (uint32_t)value;
    return RRFP_OK;
}

/* A rewritten word: "-p 4" as "--pipeline-model-parallel-size=4", the name as "--hint=NAME". */
static rrfp_status add_word(char **words, int *count, const char *flag, const char *value,
                            rrfp_error *error)
{
    size_t bytes = strlen(flag) + strlen(value) + 1;
    char *word = malloc(bytes);

    if (word == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory for the command line");
    }
    snprintf(word, bytes, "%s%s", flag, value);
    words[(*count)++] = word;
    return RRFP_OK;
}

/* Takes what only this command knows out of argv; the rest goes to the table of options. */
static rrfp_status sort_words(hint_request *request, int argc, char **argv, char **words,
                              int *count, rrfp_error *error)
{
    static const char stages_flag[] = "--pipeline-model-parallel-size";
    const char *name = NULL;

    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        rrfp_status status = RRFP_OK;

        if (strcmp(word, "--csv") == 0) {
            request->csv = true;
        } else if (strcmp(word, "--table") == 0) {
            request->table = true;
        } else if (strcmp(word, "--bubbles") == 0) {
            request->bubbles = true;
        } else if (strcmp(word, "--check") == 0) {
            request->check = true;
        } else if (strcmp(word, "-p") == 0 || strcmp(word, "-v") == 0 || strcmp(word, "-m") == 0) {
            if (i + 1 == argc) {
                return rrfp_error_set(error, RRFP_ERR_INVALID, "'%s' needs a value: %s N", word,
                                      word);
            }
            i++;
            if (word[1] == 'm') {
                status = read_microbatches(argv[i], &request->microbatches, error);
            } else if (word[1] == 'p') {
                request->stages_given = true;
                status = add_word(words, count, "--pipeline-model-parallel-size=", argv[i], error);
            } else {
                request->chunks_given = true;
                status = add_word(words, count, "--virtual-stages=", argv[i], error);
            }
        } else if (word[0] != '-' && i == 0) {
            name = word;
            status = add_word(words, count, "--hint=", word, error);
        } else {
            request->stages_given |= strncmp(word, stages_flag, sizeof stages_flag - 1) == 0;
            request->chunks_given |= strstr(word, "virtual-stages") != NULL;
            status = add_word(words, count, word, "", error);
        }
        if (status != RRFP_OK) {
            return status;
        }
    }
    /* "rrfp hint zb-v -p 4" means the two chunks it needs. */
    if (name != NULL && !request->chunks_given && rrfp_hint_find(name) != NULL &&
        rrfp_hint_find(name)->min_chunks > 1) {
        char chunks[16];
        rrfp_status status;

        snprintf(chunks, sizeof chunks, "%" PRIu32, rrfp_hint_find(name)->min_chunks);
        status = add_word(words, count, "--virtual-stages=", chunks, error);
        if (status != RRFP_OK) {
            return status;
        }
    }
    for (int i = 0; i < *count; i++) {
        request->help |= strcmp(words[i], "--help") == 0 || strcmp(words[i], "-h") == 0;
    }
    if (name == NULL && !request->help) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "a schedule comes first: 'rrfp hint NAME -p 4 -m 8' or 'rrfp hint "
                              "FILE.csv'; 'rrfp hint --help' lists the names");
    }
    if (request->csv && request->table) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "--csv and --table exclude each other");
    }
    if (request->bubbles && !request->csv) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "--bubbles is about cells of --csv; add --csv");
    }
    return RRFP_OK;
}

static rrfp_status parse(hint_request *request, int argc, char **argv, rrfp_error *error)
{
    char **words = calloc((size_t)argc + 2, sizeof *words);
    int count = 0;
    rrfp_status status;

    if (words == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory for the command line");
    }
    status = sort_words(request, argc, argv, words, &count, error);
    if (status == RRFP_OK && !request->help) {
        status = rrfp_options_parse(&request->options, RRFP_COMMAND_HINT, count, words,
                                    &request->help, error);
    }
    for (int i = 0; i < count; i++) {
        free(words[i]);
    }
    free(words);
    return status;
}

/* What the command line leaves open is what the file holds. */
static rrfp_status read_file(const hint_request *request, rrfp_hint **hint, rrfp_error *error)
{
    const rrfp_options *o = &request->options;
    uint32_t stages = request->stages_given ? o->pipeline_model_parallel_size : 0;
    uint32_t chunks = request->chunks_given ? o->virtual_stages : 0;

    return rrfp_hint_read_csv(o->hint, stages, chunks, request->microbatches, hint, error);
}

static rrfp_status build(const hint_request *request, rrfp_hint **hint, rrfp_error *error)
{
    const rrfp_options *o = &request->options;
    const rrfp_hint_info *info = rrfp_hint_find(o->hint);
    uint32_t stages = o->pipeline_model_parallel_size;
    uint32_t per_stage[RRFP_OPTIONS_MAX_STAGES];
    rrfp_budget *budgets = calloc(stages, sizeof *budgets);
    rrfp_hint_request wanted = {.struct_size = sizeof wanted,
                                .hint = o->hint,
                                .stages = stages,
                                .chunks = o->virtual_stages,
                                .microbatches = request->microbatches,
                                .hint_distance = o->hint_distance,
                                .budgets = budgets,
                                .accumulate = RRFP_ACCUMULATE_ORDERED};
    rrfp_status status;

    if (budgets == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory for %" PRIu32 " budgets", stages);
    }
    if (wanted.microbatches == 0) {
        wanted.microbatches = 2 * stages;
    }
    /* A rule without a list has an order only as the record of a unit-time execution. */
    if (strcmp(o->order, "fixed") == 0 || (info != NULL && info->rule != RRFP_RULE_LIST)) {
        wanted.hint_distance = 0;
    }
    status = rrfp_options_inflight(o, per_stage, error);
    for (uint32_t s = 0; status == RRFP_OK && s < stages; s++) {
        budgets[s].max_inflight = per_stage[s];
        budgets[s].max_pending_w = o->max_pending_w;
    }
    if (status == RRFP_OK) {
        status = rrfp_hint_build(&wanted, hint, error);
    }
    free(budgets);
    return status;
}

static void print_note(const hint_request *request, const rrfp_hint *hint, FILE *out)
{
    const rrfp_hint_info *info = rrfp_hint_find(request->options.hint);

    if (info != NULL && info->rule != RRFP_RULE_LIST) {
        fprintf(out,
                "# %s is a rule without an order of its own: this is its execution with unit task "
                "times\n",
                hint->name);
    } else if (hint->adapted) {
        fprintf(out, "# %s does not fit the budgets: this is its execution within them, with unit "
                     "task times\n",
                hint->name);
    }
}

static void print_check(const rrfp_hint *hint)
{
    uint32_t least = UINT32_MAX, most = 0;
    char range[32];

    for (uint32_t s = 0; s < hint->shape.stages; s++) {
        uint32_t inflight = hint->budgets[s].max_inflight;

        least = inflight < least ? inflight : least;
        most = inflight > most ? inflight : most;
    }
    if (least == most) {
        snprintf(range, sizeof range, "%" PRIu32, most);
    } else {
        snprintf(range, sizeof range, "%" PRIu32 " to %" PRIu32, least, most);
    }
    printf("%s: ok: %" PRIu32 " stages x %" PRIu32 " chunks, %" PRIu32
           " microbatches, %s backward, %s placement, in flight at most %s%s\n",
           hint->name, hint->shape.stages, hint->shape.chunks, hint->shape.microbatches,
           hint->split_backward ? "split" : "fused",
           hint->shape.placement == RRFP_PLACEMENT_V ? "V" : "looped", range,
           hint->adapted ? ", adapted to the budgets" : "");
}

static rrfp_status show(const hint_request *request, rrfp_error *error)
{
    rrfp_hint *hint = NULL;
    rrfp_status status = is_csv(request->options.hint) ? read_file(request, &hint, error)
                                                       : build(request, &hint, error);

    if (status != RRFP_OK) {
        return status;
    }
    if (request->check) {
        print_check(hint);
    }
    if (request->csv) {
        print_note(request, hint, stderr);
        status = rrfp_hint_write_csv(hint, request->bubbles, stdout, error);
    } else if (request->table || !request->check) {
        print_note(request, hint, stdout);
        status = rrfp_hint_write_table(hint, stdout, error);
    }
    rrfp_hint_destroy(hint);
    return status;
}

static void print_help(void)
{
    rrfp_options_print_help(RRFP_COMMAND_HINT, stdout);
    printf("\nSchedules\n");
    for (size_t i = 0; i < rrfp_hint_count(); i++) {
        const rrfp_hint_info *info = rrfp_hint_at(i);

        printf("  %-27s %s\n", info->name, info->summary);
    }
}

int rrfp_cli_hint(int argc, char **argv)
{
    static hint_request request; /* large: paths of every option */
    rrfp_error error;

    if (parse(&request, argc, argv, &error) != RRFP_OK) {
        return rrfp_cli_fail(&error);
    }
    if (request.help) {
        print_help();
        return RRFP_EXIT_OK;
    }
    return show(&request, &error) == RRFP_OK ? RRFP_EXIT_OK : rrfp_cli_fail(&error);
}
