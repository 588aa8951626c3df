/* suggest.h - the known name nearest to a mistyped one. */
#ifndef RRFP_SUGGEST_H
#define RRFP_SUGGEST_H

#include <stddef.h>

/*
 * Edits (insert, delete, change, swap of neighbours) from `a` to `b`, where '-'
 * equals '_' and letter case is ignored; SIZE_MAX when either is longer than 95 bytes.
 */
size_t rrfp_edit_distance(const char *a, const char *b);

/* True when `distance` edits are few enough for `name` to be a slip. */
int rrfp_edit_is_near(const char *name, size_t distance);

#endif /* RRFP_SUGGEST_H */
