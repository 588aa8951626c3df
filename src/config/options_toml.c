/* options_toml.c - a TOML document onto the table of options. */
#include "config/options_table.h"
#include "config/toml_bridge.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OPTIONS = 128, MAX_DOCUMENT_BYTES = 1 << 20 };

typedef struct reader {
    rrfp_options *options;
    const char *name;
    uint32_t seen_line[MAX_OPTIONS];  /* by row; 0 = not yet */
    char seen_table[MAX_OPTIONS][64]; /* by row; the table it stood in */
} reader;

static rrfp_status wrong_type(const char *place, const rrfp_toml_value *value, const char *wanted,
                              rrfp_error *error)
{
    char shown[96];

    if (value->in_array) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "%.160s: an array%s%s%s where %s is wanted",
                              place, value->array_count > 0 ? " with an element of type '" : "",
                              value->array_count > 0 ? value->type_name : "",
                              value->array_count > 0 ? "'" : "", wanted);
    }

    switch (value->kind) {
    case RRFP_TOML_INTEGER:
        snprintf(shown, sizeof shown, "integer %" PRId64, value->integer);
        break;
    case RRFP_TOML_REAL:
        snprintf(shown, sizeof shown, "number %g", value->real);
        break;
    case RRFP_TOML_BOOLEAN:
        snprintf(shown, sizeof shown, "boolean %s", value->boolean ? "true" : "false");
        break;
    case RRFP_TOML_STRING:
        snprintf(shown, sizeof shown, "string '%.60s'", value->text);
        break;
    case RRFP_TOML_OTHER:
        snprintf(shown, sizeof shown, "%s", value->type_name);
        break;
    }
    return rrfp_error_set(error, RRFP_ERR_INVALID, "%.160s: %s where %s is wanted", place, shown,
                          wanted);
}

/* What a row of this type takes, for messages. */
static const char *wanted_type(const rrfp_option *option)
{
    switch (option->type) {
    case RRFP_OPTION_UINT32:
    case RRFP_OPTION_UINT64:
        return "an integer";
    case RRFP_OPTION_BYTES:
        return "an integer or a string like \"512 MiB\"";
    case RRFP_OPTION_DISTANCE:
        return "an integer or \"unbounded\"";
    case RRFP_OPTION_REAL:
        return "a number";
    case RRFP_OPTION_BOOLEAN:
        return "true or false";
    case RRFP_OPTION_LIST:
        return "a string, an integer or an array of integers";
    case RRFP_OPTION_PATHS:
        return "a string or an array of strings";
    case RRFP_OPTION_CHOICE:
    case RRFP_OPTION_TEXT:
        break;
    }
    return "a string";
}

static bool type_fits(const rrfp_option *option, const rrfp_toml_value *value)
{
    if (value->in_array) {
        return (option->type == RRFP_OPTION_LIST && value->kind == RRFP_TOML_INTEGER) ||
               (option->type == RRFP_OPTION_PATHS && value->kind == RRFP_TOML_STRING);
    }
    switch (option->type) {
    case RRFP_OPTION_UINT32:
    case RRFP_OPTION_UINT64:
        return value->kind == RRFP_TOML_INTEGER;
    case RRFP_OPTION_BYTES:
    case RRFP_OPTION_DISTANCE:
    case RRFP_OPTION_LIST:
        return value->kind == RRFP_TOML_INTEGER || value->kind == RRFP_TOML_STRING;
    case RRFP_OPTION_REAL:
        return value->kind == RRFP_TOML_INTEGER || value->kind == RRFP_TOML_REAL;
    case RRFP_OPTION_BOOLEAN:
        return value->kind == RRFP_TOML_BOOLEAN;
    case RRFP_OPTION_CHOICE:
    case RRFP_OPTION_TEXT:
    case RRFP_OPTION_PATHS:
        return value->kind == RRFP_TOML_STRING;
    }
    return false;
}

/* An element of an array of integers goes behind what the list holds. */
static rrfp_status append_integer(const rrfp_option *option, rrfp_options *options,
                                  const char *place, const rrfp_toml_value *value,
                                  rrfp_error *error)
{
    char *list = (char *)options + option->offset;
    size_t used = value->array_index == 0 ? 0 : strlen(list);
    int written = snprintf(list + used, option->bytes - used, "%s%" PRId64,
                           value->array_index == 0 ? "" : ",", value->integer);

    if (written < 0 || (size_t)written >= option->bytes - used) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "%.160s: the array is too long", place);
    }
    return RRFP_OK;
}

static rrfp_status set_value(const rrfp_option *option, rrfp_options *options, const char *place,
                             const rrfp_toml_value *value, rrfp_error *error)
{
    char text[64];

    if (value->in_array && value->array_count == 0 &&
        (option->type == RRFP_OPTION_LIST || option->type == RRFP_OPTION_PATHS)) {
        /* visit() has emptied the paths already. */
        return option->type == RRFP_OPTION_PATHS
                   ? RRFP_OK
                   : rrfp_option_set(option, options, place, "", error);
    }
    if (!type_fits(option, value)) {
        return wrong_type(place, value, wanted_type(option), error);
    }
    switch (value->kind) {
    case RRFP_TOML_INTEGER:
        if (value->in_array) {
            return append_integer(option, options, place, value, error);
        }
        snprintf(text, sizeof text, "%" PRId64, value->integer);
        return rrfp_option_set(option, options, place, text, error);
    case RRFP_TOML_REAL:
        snprintf(text, sizeof text, "%.17g", value->real);
        return rrfp_option_set(option, options, place, text, error);
    case RRFP_TOML_BOOLEAN:
        return rrfp_option_set(option, options, place, value->boolean ? "true" : "false", error);
    case RRFP_TOML_STRING:
        if (strlen(value->text) != value->text_bytes) {
            return rrfp_error_set(error, RRFP_ERR_INVALID, "%.160s: the string holds a NUL",
                                  place);
        }
        return rrfp_option_set(option, options, place, value->text, error);
    case RRFP_TOML_OTHER:
        break;
    }
    return wrong_type(place, value, wanted_type(option), error);
}

static rrfp_status unknown_key(const char *place, const char *key, rrfp_error *error)
{
    const rrfp_option_fixed *fixed = rrfp_option_fixed_find(key);
    const char *nearest = rrfp_option_nearest(key, ~0u);

    if (fixed != NULL) {
        return rrfp_error_set(error, RRFP_ERR_UNSUPPORTED, "%.160s: %s; leave it out", place,
                              fixed->reason);
    }
    if (nearest != NULL) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "%.160s: unknown option; did you mean '%s'?", place, nearest);
    }
    return rrfp_error_set(error, RRFP_ERR_INVALID,
                          "%.160s: unknown option; docs/flags.md lists them all", place);
}

static rrfp_status given_twice(const reader *r, size_t row, const char *table, const char *name,
                               uint32_t line, rrfp_error *error)
{
    const char *tables[2] = {r->seen_table[row], table};
    uint32_t lines[2] = {r->seen_line[row], line};
    size_t later = lines[1] >= lines[0]; /* keys come in alphabetical order, not by line */

    return rrfp_error_set(error, RRFP_ERR_INVALID,
                          "%.80s:%" PRIu32 ": %.60s: given twice, here %s%.60s%s and on line %" PRIu32
                          " %s%.60s%s; keep one",
                          r->name, lines[later], name, tables[later][0] ? "in [" : "at the top",
                          tables[later], tables[later][0] ? "]" : "", lines[1 - later],
                          tables[1 - later][0] ? "in [" : "at the top", tables[1 - later],
                          tables[1 - later][0] ? "]" : "");
}

static rrfp_status visit(void *context, const char *table, const char *key,
                         const rrfp_toml_value *value, rrfp_error *error)
{
    reader *r = context;
    const rrfp_option *option = rrfp_option_find(key);
    const rrfp_option_fixed *fixed = rrfp_option_fixed_find(key);
    char place[160];
    size_t row;

    snprintf(place, sizeof place, "%.80s:%" PRIu32 ": %.60s", r->name, value->line, key);
    if (fixed != NULL && value->kind == RRFP_TOML_INTEGER && !value->in_array &&
        value->integer == 1) {
        return RRFP_OK;
    }
    if (option == NULL) {
        return unknown_key(place, key, error);
    }
    row = (size_t)(option - rrfp_option_at(0));
    if (value->array_index == 0) {
        if (r->seen_line[row] != 0) {
            return given_twice(r, row, table, option->name, value->line, error);
        }
        r->seen_line[row] = value->line == 0 ? 1 : value->line;
        snprintf(r->seen_table[row], sizeof r->seen_table[row], "%.63s", table);
        if (option->type == RRFP_OPTION_PATHS) {
            r->options->data_path_count = 0;
        }
    }
    return set_value(option, r->options, place, value, error);
}

rrfp_status rrfp_options_parse_toml(rrfp_options *options, rrfp_command command, const char *name,
                                    const char *text, size_t text_bytes, rrfp_error *error)
{
    rrfp_options *copy;
    reader *r;
    rrfp_status status;

    /* One file serves train, eval and generate: every option is read for every command. */
    (void)command;
    if (text_bytes > MAX_DOCUMENT_BYTES) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "%.120s: %zu bytes; a configuration has at most %d", name,
                              text_bytes, MAX_DOCUMENT_BYTES);
    }
    if (rrfp_option_count() > MAX_OPTIONS) {
        return rrfp_error_set(error, RRFP_ERR_INTERNAL, "the table of options has grown too long");
    }
    copy = malloc(sizeof *copy);
    r = calloc(1, sizeof *r);
    if (copy == NULL || r == NULL) {
        free(copy);
        free(r);
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "%.120s: no memory to read it", name);
    }
    *copy = *options;
    r->options = copy;
    r->name = name;
    status = rrfp_toml_walk(name, text, text_bytes, visit, r, error);
    if (status == RRFP_OK) {
        *options = *copy;
    }
    free(r);
    free(copy);
    return status;
}
