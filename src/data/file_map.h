/*
 * file_map.h - a whole regular file as read-only memory.
 *
 * The bytes are whatever the user gave: nothing about them may be trusted.
 */
#ifndef RRFP_FILE_MAP_H
#define RRFP_FILE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rrfp/status.h"

typedef struct rrfp_file_map {
    const uint8_t *bytes; /* NULL when the file is empty */
    size_t size_bytes;
} rrfp_file_map;

/* True when `path` names an existing regular file. */
bool rrfp_file_is_regular(const char *path);
/* Maps `path`; an empty file is legal here.  Release with rrfp_file_map_close. */
rrfp_status rrfp_file_map_open(const char *path, rrfp_file_map *out, rrfp_error *error);
void rrfp_file_map_close(rrfp_file_map *map); /* a zeroed map is fine */

#endif /* RRFP_FILE_MAP_H */
