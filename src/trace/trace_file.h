/*
 * trace_file.h - a text file that appears complete or not at all, and text in it.
 *
 * Open writes beside `path`; commit syncs and renames.  A path that is there and
 * not a regular file (/dev/stdout) is written directly.
 */
#ifndef RRFP_TRACE_FILE_H
#define RRFP_TRACE_FILE_H

#include <stdio.h>

#include "rrfp/status.h"

typedef struct rrfp_trace_file {
    FILE *stream;
    const char *path; /* borrowed */
    char *temporary;  /* NULL: written directly */
} rrfp_trace_file;

rrfp_status rrfp_trace_file_open(rrfp_trace_file *file, const char *path, rrfp_error *error);
/* Either makes the file appear or removes what was written; the file is closed in any case. */
rrfp_status rrfp_trace_file_commit(rrfp_trace_file *file, rrfp_error *error);

/* A JSON string with its quotes.  Bytes that are not UTF-8 become U+FFFD. */
void rrfp_trace_write_json_string(FILE *out, const char *text);
/* Text between XML tags or in a quoted attribute; what XML cannot hold becomes U+FFFD. */
void rrfp_trace_write_xml_text(FILE *out, const char *text);

#endif /* RRFP_TRACE_FILE_H */
