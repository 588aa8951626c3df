/* options_help.c - the table as help text, man page, Markdown and TOML. */
#include "config/options_table.h"

#include <string.h>

enum { HELP_COLUMN = 30, HELP_WIDTH = 96 };

/* Default of a row for people. */
static const char *shown_default(const rrfp_option *option)
{
    return option->default_text[0] == '\0' ? "none" : option->default_text;
}

static void write_flag(const rrfp_option *option, char *out, size_t out_bytes)
{
    if (option->type == RRFP_OPTION_BOOLEAN) {
        snprintf(out, out_bytes, "--[no-]%s", option->name);
    } else if (option->type == RRFP_OPTION_CHOICE) {
        snprintf(out, out_bytes, "--%s %s", option->name, option->choices);
    } else {
        snprintf(out, out_bytes, "--%s %s", option->name, option->placeholder);
    }
}

/* Prints words of `text` from the column where the cursor is, wrapped and indented. */
static void print_wrapped(const char *text, size_t column, FILE *out)
{
    size_t at = column;

    while (*text != '\0') {
        size_t bytes = strcspn(text, " ");

        if (at > HELP_COLUMN && at + 1 + bytes > HELP_WIDTH) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            at = HELP_COLUMN;
        } else if (at > HELP_COLUMN) {
            fputc(' ', out);
            at++;
        }
        fprintf(out, "%.*s", (int)bytes, text);
        at += bytes;
        text += bytes;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

static void print_entry(const char *flag, const char *help, FILE *out)
{
    int written = fprintf(out, "  %s", flag);

    if (written < 0 || written >= HELP_COLUMN - 1) {
        fprintf(out, "\n%*s", HELP_COLUMN, "");
    } else {
        fprintf(out, "%*s", HELP_COLUMN - written, "");
    }
    print_wrapped(help, HELP_COLUMN, out);
}

static void print_row(const rrfp_option *option, FILE *out)
{
    char flag[128], allowed[160], help[768];
    bool numeric = option->type != RRFP_OPTION_CHOICE && option->type != RRFP_OPTION_BOOLEAN;

    write_flag(option, flag, sizeof flag);
    rrfp_option_describe(option, allowed, sizeof allowed);
    snprintf(help, sizeof help, "%s (default %s%s%s)", option->help, shown_default(option),
             numeric && allowed[0] != '\0' ? "; " : "", numeric ? allowed : "");
    print_entry(flag, help, out);
}

/* Splits "flag\thelp\n..." ; returns what follows, NULL at the end. */
static const char *next_extra(const char *extra, char *flag, size_t flag_bytes, char *help,
                              size_t help_bytes)
{
    size_t tab, end;

    if (extra == NULL || *extra == '\0') {
        return NULL;
    }
    tab = strcspn(extra, "\t");
    end = strcspn(extra, "\n");
    snprintf(flag, flag_bytes, "%.*s", (int)tab, extra);
    snprintf(help, help_bytes, "%.*s", (int)(end - tab - 1), extra + tab + 1);
    return extra + end + 1;
}

void rrfp_options_print_help(rrfp_command command, FILE *out)
{
    const rrfp_command_info *info = rrfp_command_find(command);
    const char *group = "", *extra = info->extra;
    char flag[64], help[256];

    fprintf(out, "Usage: rrfp %s%s%s\n%s\n", info->name, info->arguments[0] ? " " : "",
            info->arguments, info->summary);
    if (extra != NULL) {
        fprintf(out, "\n");
    }
    while ((extra = next_extra(extra, flag, sizeof flag, help, sizeof help)) != NULL) {
        print_entry(flag, help, out);
    }
    for (size_t i = 0; i < rrfp_option_count(); i++) {
        const rrfp_option *option = rrfp_option_at(i);

        if ((option->commands & (unsigned)command) == 0) {
            continue;
        }
        if (strcmp(group, option->group) != 0) {
            group = option->group;
            fprintf(out, "\n%s\n", group);
        }
        print_row(option, out);
    }
    if (command != RRFP_COMMAND_HINT && command != RRFP_COMMAND_DOCTOR) {
        fprintf(out, "\nEvery option may stand in FILE.toml as well, at the top or in a table "
                     "(num_layers = 4);\nflags win over the file.\n");
    }
}

/* Text for roff: '-' and '\' escaped, no line begins with '.' or '\''. */
static void print_roff(const char *text, FILE *out)
{
    if (*text == '.' || *text == '\'') {
        fputs("\\&", out);
    }
    for (; *text != '\0'; text++) {
        if (*text == '-') {
            fputs("\\-", out);
        } else if (*text == '\\') {
            fputs("\\e", out);
        } else {
            fputc(*text, out);
        }
    }
}

static void print_roff_entry(const char *flag, const char *help, FILE *out)
{
    fputs(".TP\n.B ", out);
    print_roff(flag, out);
    fputc('\n', out);
    print_roff(help, out);
    fputc('\n', out);
}

/* "train, eval" of a row. */
static void name_commands(unsigned commands, char *out, size_t out_bytes)
{
    size_t used = 0;

    out[0] = '\0';
    for (size_t i = 0; i < rrfp_command_count() && used < out_bytes; i++) {
        const rrfp_command_info *info = rrfp_command_at(i);

        if ((commands & (unsigned)info->command) != 0) {
            used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", used == 0 ? "" : ", ",
                                     info->name);
        }
    }
}

void rrfp_options_print_man(FILE *out)
{
    const char *group = "";
    char flag[128], allowed[160], names[64], help[1024];

    fprintf(out,
            ".TH RRFP 1 \"\" \"rrfp %s\" \"User Commands\"\n"
            ".SH NAME\nrrfp \\- pipeline\\-parallel training that runs what is ready\n"
            ".SH SYNOPSIS\n",
            RRFP_VERSION_STRING);
    for (size_t i = 0; i < rrfp_command_count(); i++) {
        const rrfp_command_info *info = rrfp_command_at(i);

        fprintf(out, "%s.B rrfp %s\n", i == 0 ? "" : ".br\n", info->name);
        print_roff(info->arguments, out);
        fputs(info->arguments[0] ? "\n" : "", out);
    }
    fputs(".SH DESCRIPTION\n"
          "Trains GPT\\-2 and Llama models cut into pipeline stages. A schedule is only a hint: a "
          "free stage\nruns the best\\-ranked task whose inputs are there, and results are "
          "bit\\-equal whatever order the tasks ran in.\n"
          ".SH COMMANDS\n",
          out);
    for (size_t i = 0; i < rrfp_command_count(); i++) {
        const rrfp_command_info *info = rrfp_command_at(i);
        const char *extra = info->extra;

        print_roff_entry(info->name, info->summary, out);
        if (extra != NULL) {
            fputs(".RS\n", out);
            while ((extra = next_extra(extra, flag, sizeof flag, help, sizeof help)) != NULL) {
                print_roff_entry(flag, help, out);
            }
            fputs(".RE\n", out);
        }
    }
    fputs(".SH OPTIONS\nEvery option may also stand in the TOML file, at the top or in one table, "
          "with \\- or _ in its name. Flags win over the file.\n",
          out);
    for (size_t i = 0; i < rrfp_option_count(); i++) {
        const rrfp_option *option = rrfp_option_at(i);

        if (strcmp(group, option->group) != 0) {
            group = option->group;
            fprintf(out, ".SS %s\n", group);
        }
        write_flag(option, flag, sizeof flag);
        rrfp_option_describe(option, allowed, sizeof allowed);
        name_commands(option->commands, names, sizeof names);
        snprintf(help, sizeof help, "%s. Default %s%s%s. Commands: %s.%s%s%s", option->help,
                 shown_default(option), allowed[0] ? "; takes " : "", allowed, names,
                 option->alias ? " Also --" : "", option->alias ? option->alias : "",
                 option->alias ? "." : "");
        print_roff_entry(flag, help, out);
    }
    fputs(".SS Accepted with one value\n", out);
    for (size_t i = 0; rrfp_option_fixed_at(i) != NULL; i++) {
        const rrfp_option_fixed *fixed = rrfp_option_fixed_at(i);

        snprintf(flag, sizeof flag, "--%s %s", fixed->name, fixed->value);
        print_roff_entry(flag, fixed->reason, out);
    }
    fputs(".SH EXIT STATUS\n0 success, 1 the run failed, 2 the command line or configuration is "
          "wrong.\n",
          out);
}

/* A cell of a Markdown table: '|' would end it, '<' could open a tag. */
static void print_cell(const char *text, FILE *out)
{
    for (; *text != '\0'; text++) {
        if (*text == '|') {
            fputs("\\|", out);
        } else {
            fputc(*text, out);
        }
    }
}

void rrfp_options_print_markdown(FILE *out)
{
    const char *group = "";

    fputs("# Options\n\n"
          "Made by `rrfp docs`; do not edit. Every option is a flag (`--num-layers 4` or "
          "`--num-layers=4`;\nbooleans `--name` and `--no-name`) and a key of the TOML file "
          "(`num_layers = 4`, with `-` or `_`, at the\ntop or in one table). Defaults, then the "
          "file, then flags: the later wins.\n\n"
          "| command | arguments | what it does |\n|---|---|---|\n",
          out);
    for (size_t i = 0; i < rrfp_command_count(); i++) {
        const rrfp_command_info *info = rrfp_command_at(i);

        fprintf(out, "| `rrfp %s` | ", info->name);
        print_cell(info->arguments, out);
        fprintf(out, " | %s |\n", info->summary);
    }
    for (size_t i = 0; i < rrfp_option_count(); i++) {
        const rrfp_option *option = rrfp_option_at(i);
        char allowed[160], names[64];

        if (strcmp(group, option->group) != 0) {
            group = option->group;
            fprintf(out,
                    "\n## %s\n\n| option | takes | default | commands | since | meaning |\n"
                    "|---|---|---|---|---|---|\n",
                    group);
        }
        rrfp_option_describe(option, allowed, sizeof allowed);
        name_commands(option->commands, names, sizeof names);
        fprintf(out, "| `%s`", option->name);
        if (option->alias != NULL) {
            fprintf(out, "<br>also `%s`", option->alias);
        }
        fputs(" | ", out);
        print_cell(allowed[0] != '\0' ? allowed : option->placeholder, out);
        fprintf(out, " | %s | %s | %s | ", shown_default(option), names, option->since);
        print_cell(option->help, out);
        fputs(" |\n", out);
    }
    for (size_t i = 0; i < rrfp_command_count(); i++) {
        const rrfp_command_info *info = rrfp_command_at(i);
        const char *extra = info->extra;
        char flag[64], help[256];

        if (extra != NULL) {
            fprintf(out, "\n## Flags of `rrfp %s` alone\n\n| flag | meaning |\n|---|---|\n",
                    info->name);
        }
        while ((extra = next_extra(extra, flag, sizeof flag, help, sizeof help)) != NULL) {
            fprintf(out, "| `%s` | %s |\n", flag, help);
        }
    }
    fputs("\n## Accepted with one value\n\nFlags of Megatron-LM that scripts often carry.\n\n"
          "| flag | value | why |\n|---|---|---|\n",
          out);
    for (size_t i = 0; rrfp_option_fixed_at(i) != NULL; i++) {
        const rrfp_option_fixed *fixed = rrfp_option_fixed_at(i);

        fprintf(out, "| `%s` | %s | %s |\n", fixed->name, fixed->value, fixed->reason);
    }
}

/* A TOML basic string; bytes above 0x7f pass as they are. */
static void print_toml_string(const char *text, FILE *out)
{
    fputc('"', out);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\') {
            fprintf(out, "\\%c", c);
        } else if (c < 0x20 || c == 0x7f) {
            fprintf(out, "\\u%04X", c);
        } else {
            fputc(c, out);
        }
    }
    fputc('"', out);
}

static void print_toml_value(const rrfp_option *option, const rrfp_options *options, FILE *out)
{
    char text[sizeof options->max_inflight];

    if (option->type == RRFP_OPTION_PATHS) {
        fputc('[', out);
        for (uint32_t i = 0; i < options->data_path_count; i++) {
            fputs(i == 0 ? "" : ", ", out);
            print_toml_string(options->data_path[i], out);
        }
        fputc(']', out);
        return;
    }
    rrfp_option_format(option, options, text, sizeof text);
    switch (option->type) {
    case RRFP_OPTION_CHOICE:
    case RRFP_OPTION_TEXT:
    case RRFP_OPTION_LIST:
        print_toml_string(text, out);
        return;
    case RRFP_OPTION_DISTANCE:
        if (text[0] == 'u') {
            print_toml_string(text, out);
            return;
        }
        break;
    default:
        break;
    }
    fputs(text, out);
}

void rrfp_options_print_toml(const rrfp_options *options, rrfp_command command, FILE *out)
{
    const char *group = "";

    for (size_t i = 0; i < rrfp_option_count(); i++) {
        const rrfp_option *option = rrfp_option_at(i);

        /* print-config itself would make a run from the printed file print and end. */
        if ((option->commands & (unsigned)command) == 0 ||
            option->offset == offsetof(rrfp_options, print_config)) {
            continue;
        }
        if (strcmp(group, option->group) != 0) {
            fprintf(out, "%s# %s\n", group[0] == '\0' ? "" : "\n", option->group);
            group = option->group;
        }
        fprintf(out, "%s = ", option->name);
        print_toml_value(option, options, out);
        fputc('\n', out);
    }
}
