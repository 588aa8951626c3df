/* options_parse.c - the command line: one optional TOML file, then flags. */
#include "config/options_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 1 << 20 };

static rrfp_status read_file(const char *path, char **text, size_t *text_bytes, rrfp_error *error)
{
    FILE *file = fopen(path, "rb");
    char *bytes;
    size_t count;
    rrfp_status status = RRFP_OK;

    if (file == NULL) {
        return rrfp_error_set(error, RRFP_ERR_IO, "cannot open configuration '%.300s': %s", path,
                              strerror(errno));
    }
    bytes = malloc(MAX_FILE_BYTES + 1);
    if (bytes == NULL) {
        fclose(file);
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory to read '%.300s'", path);
    }
    errno = 0;
    count = fread(bytes, 1, MAX_FILE_BYTES + 1, file);
    if (ferror(file)) {
        status = rrfp_error_set(error, RRFP_ERR_IO, "cannot read configuration '%.300s': %s", path,
                                strerror(errno));
    } else if (count > MAX_FILE_BYTES) {
        status = rrfp_error_set(error, RRFP_ERR_INVALID,
                                "'%.300s' is over %d bytes; that is no configuration", path,
                                MAX_FILE_BYTES);
    }
    fclose(file);
    if (status != RRFP_OK) {
        free(bytes);
        return status;
    }
    *text = bytes;
    *text_bytes = count;
    return RRFP_OK;
}

static rrfp_status load_toml(rrfp_options *options, rrfp_command command, const char *path,
                             rrfp_error *error)
{
    char *text = NULL;
    size_t text_bytes = 0;
    rrfp_status status = read_file(path, &text, &text_bytes, error);

    if (status == RRFP_OK) {
        status = rrfp_options_parse_toml(options, command, path, text, text_bytes, error);
        free(text);
    }
    return status;
}

static rrfp_status unknown_flag(const char *name, rrfp_command command, rrfp_error *error)
{
    const char *nearest = rrfp_option_nearest(name, (unsigned)command);
    const rrfp_command_info *info = rrfp_command_find(command);

    if (nearest != NULL) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "unknown option '--%.80s'; did you mean '--%s'?", name, nearest);
    }
    return rrfp_error_set(error, RRFP_ERR_INVALID,
                          "unknown option '--%.80s'; 'rrfp %s --help' lists them all", name,
                          info->name);
}

/* "train, eval and generate" of a row's commands. */
static void list_commands(unsigned commands, char *out, size_t out_bytes)
{
    size_t used = 0;

    out[0] = '\0';
    for (size_t i = 0; i < rrfp_command_count(); i++) {
        const rrfp_command_info *info = rrfp_command_at(i);

        if ((commands & (unsigned)info->command) != 0 && used < out_bytes) {
            unsigned later = commands & ~(((unsigned)info->command << 1) - 1);
            const char *joint = used == 0 ? "" : later == 0 ? " and " : ", ";

            used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", joint, info->name);
        }
    }
}

/* One flag at argv[0]; *used says how many words it took. */
static rrfp_status apply_flag(rrfp_options *options, rrfp_command command, int argc,
                              char *const *argv, bool *paths_given, int *used, rrfp_error *error)
{
    const char *word = argv[0] + 2, *equals = strchr(word, '='), *value = NULL;
    const rrfp_option_fixed *fixed;
    const rrfp_option *option;
    size_t bytes = equals == NULL ? strlen(word) : (size_t)(equals - word);
    bool negated = false;
    char name[96], place[112], listed[64];

    if (bytes >= sizeof name) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "unknown option '%.80s...'", argv[0]);
    }
    memcpy(name, word, bytes);
    name[bytes] = '\0';
    option = rrfp_option_find(name);
    fixed = rrfp_option_fixed_find(name);
    if (option == NULL && strncmp(name, "no-", 3) == 0) {
        option = rrfp_option_find(name + 3);
        negated = option != NULL && option->type == RRFP_OPTION_BOOLEAN;
        option = negated ? option : NULL;
    }
    if (option == NULL && fixed == NULL) {
        return unknown_flag(name, command, error);
    }
    if (option != NULL && (option->commands & (unsigned)command) == 0) {
        list_commands(option->commands, listed, sizeof listed);
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "'--%s' is an option of %s, not of '%s'; leave it out", option->name,
                              listed, rrfp_command_find(command)->name);
    }
    *used = 1;
    snprintf(place, sizeof place, "--%s", name);
    if (equals != NULL) {
        value = equals + 1;
        if (negated) {
            return rrfp_error_set(error, RRFP_ERR_INVALID, "'--%s' takes no value", name);
        }
    } else if (option != NULL && option->type == RRFP_OPTION_BOOLEAN) {
        value = negated ? "false" : "true";
    } else if (argc < 2 || strncmp(argv[1], "--", 2) == 0) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "'--%s' needs a value: --%s %s", name, name,
                              option != NULL ? option->placeholder : "1");
    } else {
        value = argv[1];
        *used = 2;
    }
    if (option == NULL) {
        return strcmp(value, fixed->value) == 0
                   ? RRFP_OK
                   : rrfp_error_set(error, RRFP_ERR_UNSUPPORTED, "--%s %.40s: %s; use %s", name,
                                    value, fixed->reason, fixed->value);
    }
    if (option->type == RRFP_OPTION_PATHS && !*paths_given) {
        options->data_path_count = 0; /* flags replace the file's list, they do not extend it */
        *paths_given = true;
    }
    return rrfp_option_set(option, options, place, value, error);
}

static rrfp_status parse_into(rrfp_options *options, rrfp_command command, int argc,
                              char *const *argv, rrfp_error *error)
{
    bool paths_given = false;
    int i = 0;

    rrfp_options_defaults(options);
    if (argc > 0 && argv[0][0] != '-') {
        rrfp_status status = load_toml(options, command, argv[0], error);

        if (status != RRFP_OK) {
            return status;
        }
        i = 1;
    }
    while (i < argc) {
        rrfp_status status;
        int used = 0;

        if (strncmp(argv[i], "--", 2) != 0 || argv[i][2] == '\0') {
            return rrfp_error_set(error, RRFP_ERR_INVALID,
                                  "unexpected argument '%.80s'; a TOML file comes first, and an "
                                  "option with several values is given several times",
                                  argv[i]);
        }
        status = apply_flag(options, command, argc - i, argv + i, &paths_given, &used, error);
        if (status != RRFP_OK) {
            return status;
        }
        i += used;
    }
    return rrfp_options_check(options, command, error);
}

rrfp_status rrfp_options_parse(rrfp_options *options, rrfp_command command, int argc,
                               char *const *argv, bool *help, rrfp_error *error)
{
    rrfp_options *copy;
    rrfp_status status;

    *help = false;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            *help = true;
            return RRFP_OK;
        }
    }
    copy = malloc(sizeof *copy);
    if (copy == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory for the configuration");
    }
    status = parse_into(copy, command, argc, argv, error);
    if (status == RRFP_OK) {
        *options = *copy;
    }
    free(copy);
    return status;
}
