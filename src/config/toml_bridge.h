/*
 * toml_bridge.h - a TOML document as a walk of C callbacks.
 *
 * The only C++ of the library lies behind this header; no exception leaves it.
 */
#ifndef RRFP_TOML_BRIDGE_H
#define RRFP_TOML_BRIDGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rrfp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum rrfp_toml_kind {
    RRFP_TOML_INTEGER = 0,
    RRFP_TOML_REAL,
    RRFP_TOML_BOOLEAN,
    RRFP_TOML_STRING,
    RRFP_TOML_OTHER /* date, time, table or array where none belongs: see type_name */
} rrfp_toml_kind;

typedef struct rrfp_toml_value {
    rrfp_toml_kind kind;
    int64_t integer;
    double real;
    bool boolean;
    const char *text;      /* STRING: NUL-terminated, may hold NULs before that */
    size_t text_bytes;
    const char *type_name; /* "integer", "date", ...: for messages */
    uint32_t line;         /* 1-based */
    bool in_array;         /* an element, number array_index of array_count */
    uint32_t array_index, array_count; /* an empty array: in_array, count 0, kind OTHER */
} rrfp_toml_value;

/*
 * Called for every value of the document and of its tables (one level), key by
 * key, elements of an array one by one.  `table` is "" at the top.  All
 * pointers are borrowed during the call.  A status other than OK ends the walk.
 */
typedef rrfp_status (*rrfp_toml_visit_fn)(void *context, const char *table, const char *key,
                                          const rrfp_toml_value *value, rrfp_error *error);

/* RRFP_ERR_INVALID, naming file and line, when the text is no TOML or tables lie deeper. */
rrfp_status rrfp_toml_walk(const char *name, const char *text, size_t text_bytes,
                           rrfp_toml_visit_fn visit, void *context, rrfp_error *error);

#ifdef __cplusplus
}
#endif
#endif /* RRFP_TOML_BRIDGE_H */
