/*
 * atomic_file.h - files that appear whole or not at all.
 *
 * Bytes go to PATH.tmp-PID in the same directory; commit flushes, fsyncs,
 * renames over PATH and fsyncs the directory.  After an error, or abort, the
 * old file is untouched and the temporary one is gone.  A path that is there
 * and not a regular file (/dev/stdout) is written directly, never replaced.
 */
#ifndef RRFP_ATOMIC_FILE_H
#define RRFP_ATOMIC_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "rrfp/status.h"

enum { RRFP_PATH_BYTES = 4096 };

typedef struct rrfp_atomic_file {
    FILE *stream; /* write here; owned */
    bool direct;
    char path[RRFP_PATH_BYTES], temporary[RRFP_PATH_BYTES];
} rrfp_atomic_file;

rrfp_status rrfp_atomic_file_open(const char *path, rrfp_atomic_file *file, rrfp_error *error);
/* Ends the file either way. */
rrfp_status rrfp_atomic_file_commit(rrfp_atomic_file *file, rrfp_error *error);
void rrfp_atomic_file_abort(rrfp_atomic_file *file);

/* All three in one. */
rrfp_status rrfp_atomic_file_write(const char *path, const void *bytes, size_t count,
                                   rrfp_error *error);

/* Makes a directory and those above it; fine if it is there. */
rrfp_status rrfp_make_directories(const char *dir, rrfp_error *error);

/* Makes the directory of PATH and says at once whether PATH can be written later. */
rrfp_status rrfp_atomic_file_prepare(const char *path, rrfp_error *error);

/* fsync of the directory that holds `path`, so that a rename in it survives a power cut. */
rrfp_status rrfp_sync_parent_directory(const char *path, rrfp_error *error);

#endif /* RRFP_ATOMIC_FILE_H */
