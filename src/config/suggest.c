/* suggest.c - edit distance for "did you mean". */
#include "config/suggest.h"

#include <stdint.h>
#include <string.h>

enum { MAX_NAME = 96 };

static char fold(char c)
{
    if (c == '_') {
        return '-';
    }
    return (c >= 'A' && c <= 'Z') ? (char)(c - 'A' + 'a') : c;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t rrfp_edit_distance(const char *a, const char *b)
{
    size_t a_bytes = strnlen(a, MAX_NAME), b_bytes = strnlen(b, MAX_NAME);
    size_t rows[3][MAX_NAME]; /* the row now, the one before and the one before that */

    if (a_bytes == MAX_NAME || b_bytes == MAX_NAME) {
        return SIZE_MAX;
    }
    for (size_t j = 0; j <= b_bytes; j++) {
        rows[0][j] = j;
    }
    for (size_t i = 1; i <= a_bytes; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];

        row[0] = i;
        for (size_t j = 1; j <= b_bytes; j++) {
            char x = fold(a[i - 1]), y = fold(b[j - 1]);

            row[j] = above[j - 1] + (x != y);
            row[j] = least(row[j], least(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && x == fold(b[j - 2]) && fold(a[i - 2]) == y) {
                row[j] = least(row[j], above2[j - 2] + 1);
            }
        }
    }
    return rows[a_bytes % 3][b_bytes];
}

int rrfp_edit_is_near(const char *name, size_t distance)
{
    size_t bytes = strnlen(name, MAX_NAME);
    size_t most = bytes < 4 ? 1 : bytes < 9 ? 2 : bytes / 3;

    return distance <= most;
}
