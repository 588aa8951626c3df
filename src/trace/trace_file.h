/*
 * trace_file.h - output files of a trace, and the escaping of text in them.
 *
 * A file appears whole or not at all, unless its path is there and not a regular
 * file (/dev/stdout): that is written directly, never replaced.
 */
#ifndef RRFP_TRACE_FILE_H
#define RRFP_TRACE_FILE_H

#include <stdbool.h>

#include "base/atomic_file.h"

typedef struct rrfp_trace_file {
    FILE *stream;
    const char *path; /* borrowed */
    bool direct;
    rrfp_atomic_file atomic;
} rrfp_trace_file;

rrfp_status rrfp_trace_file_open(rrfp_trace_file *file, const char *path, rrfp_error *error);
/* Ends the file either way. */
rrfp_status rrfp_trace_file_commit(rrfp_trace_file *file, rrfp_error *error);

/* A JSON string with its quotes.  Bytes that are not UTF-8 become U+FFFD. */
void rrfp_trace_write_json_string(FILE *out, const char *text);
/* Text between XML tags or in a quoted attribute; what XML cannot hold becomes U+FFFD. */
void rrfp_trace_write_xml_text(FILE *out, const char *text);

#endif /* RRFP_TRACE_FILE_H */
