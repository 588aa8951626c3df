/*
 * options_table.h - the table behind options.h, for the files of this folder and its tests.
 *
 * Every row can be set from one text, whatever the source: a flag's value, a
 * TOML value (converted after its type was checked) or the row's own default.
 * So bounds and messages exist once.
 */
#ifndef RRFP_OPTIONS_TABLE_H
#define RRFP_OPTIONS_TABLE_H

#include <stddef.h>

#include "config/options.h"

typedef enum rrfp_option_type {
    RRFP_OPTION_UINT32,
    RRFP_OPTION_UINT64,
    RRFP_OPTION_BYTES,    /* uint64_t; suffixes KiB, MiB, GiB */
    RRFP_OPTION_DISTANCE, /* uint32_t; "unbounded" is RRFP_DISTANCE_UNBOUNDED */
    RRFP_OPTION_REAL,     /* double */
    RRFP_OPTION_BOOLEAN,
    RRFP_OPTION_CHOICE, /* char[]; one word of `choices` */
    RRFP_OPTION_TEXT,   /* char[] */
    RRFP_OPTION_LIST,   /* char[]; a word or comma-separated counts; TOML: also int or array */
    RRFP_OPTION_PATHS   /* data_path: may be given again; TOML: string or array */
} rrfp_option_type;

typedef struct rrfp_option {
    const char *name;  /* long flag without the dashes, e.g. "num-layers" */
    const char *alias; /* Megatron's other name, or NULL */
    const char *group; /* heading in the help */
    rrfp_option_type type;
    size_t offset;            /* in rrfp_options */
    size_t bytes;             /* of the field */
    const char *default_text; /* read by rrfp_option_set; "" of TEXT, LIST, PATHS: none */
    uint64_t min, max;        /* UINT32, UINT64, BYTES, DISTANCE: inclusive */
    double real_min, real_max; /* REAL: inclusive */
    const char *choices;      /* CHOICE: "ready|fixed" */
    const char *placeholder;  /* of the value in the help, e.g. "N" or "FILE" */
    const char *help;
    unsigned commands; /* rrfp_command bits that take the flag */
    const char *since; /* first version that has it */
} rrfp_option;

size_t rrfp_option_count(void);
const rrfp_option *rrfp_option_at(size_t index); /* borrowed; NULL behind the end */

/* Finds a row by name or alias; '-' and '_' are the same. NULL if unknown. */
const rrfp_option *rrfp_option_find(const char *name);

/*
 * Sets one row from text.  `place` opens the message, e.g. "--lr" or
 * "run.toml:3: lr".  PATHS appends; the caller empties the list first.
 */
rrfp_status rrfp_option_set(const rrfp_option *option, rrfp_options *options,
                            const char *place, const char *text, rrfp_error *error);

/* The value of a row as text that rrfp_option_set reads back; not for PATHS. */
void rrfp_option_format(const rrfp_option *option, const rrfp_options *options, char *out,
                        size_t out_bytes);

/* Allowed values for people: "1 to 1024", "ready or fixed"; "" when anything goes. */
void rrfp_option_describe(const rrfp_option *option, char *out, size_t out_bytes);

/* Nearest name among rows that `commands` may use, or NULL when none is near. */
const char *rrfp_option_nearest(const char *name, unsigned commands);

/* Flags of Megatron that this build accepts with one value only. */
typedef struct rrfp_option_fixed {
    const char *name, *value, *reason;
} rrfp_option_fixed;
const rrfp_option_fixed *rrfp_option_fixed_find(const char *name);
const rrfp_option_fixed *rrfp_option_fixed_at(size_t index); /* NULL behind the end */

/* Names of subcommands and what stands before their options. */
typedef struct rrfp_command_info {
    rrfp_command command;
    const char *name, *arguments, *summary;
    const char *extra; /* options outside the table, lines "flag\thelp\n", or NULL */
} rrfp_command_info;
size_t rrfp_command_count(void);
const rrfp_command_info *rrfp_command_at(size_t index);
const rrfp_command_info *rrfp_command_find(rrfp_command command);

#endif /* RRFP_OPTIONS_TABLE_H */
