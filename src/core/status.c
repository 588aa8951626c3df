/* status.c - names of statuses and the writing of error lines. */
#include "rrfp/status.h"

#include <stdarg.h>
#include <stdio.h>

const char *rrfp_strerror(rrfp_status status)
{
    switch (status) {
    case RRFP_OK:
        return "ok";
    case RRFP_ERR_INVALID:
        return "invalid value";
    case RRFP_ERR_INFEASIBLE:
        return "infeasible combination";
    case RRFP_ERR_FORMAT:
        return "malformed data";
    case RRFP_ERR_IO:
        return "input/output error";
    case RRFP_ERR_NOMEM:
        return "out of memory";
    case RRFP_ERR_UNSUPPORTED:
        return "not supported";
    case RRFP_ERR_NONFINITE:
        return "non-finite value";
    case RRFP_ERR_INTERRUPTED:
        return "interrupted";
    case RRFP_ERR_PEER:
        return "peer failed";
    case RRFP_ERR_INTERNAL:
        return "internal error";
    }
    return "unknown status";
}

rrfp_status rrfp_error_set(rrfp_error *error, rrfp_status status, const char *format, ...)
{
    if (error != NULL) {
        va_list args;
        error->status = status;
        va_start(args, format);
        if (vsnprintf(error->text, sizeof error->text, format, args) < 0) {
            error->text[0] = '\0';
        }
        va_end(args);
        for (char *p = error->text; *p != '\0'; p++) {
            unsigned char c = (unsigned char)*p;
            if (c < 0x20 || c == 0x7f) {
                *p = '?';
            }
        }
    }
    return status;
}
