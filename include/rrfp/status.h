/*
 * status.h - the one error vocabulary of RRFP.
 *
 * Every fallible function returns an rrfp_status and takes an optional
 * rrfp_error as its last parameter.  The function that first decides that
 * something is wrong writes the text (naming the thing, the value and the
 * remedy); every caller passes it on untouched.  Outputs are written on
 * success only.
 */
#ifndef RRFP_STATUS_H
#define RRFP_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum rrfp_status {
    RRFP_OK = 0,
    RRFP_ERR_INVALID,     /* an argument, flag or configuration value is wrong */
    RRFP_ERR_INFEASIBLE,  /* values are legal one by one, impossible together */
    RRFP_ERR_FORMAT,      /* a file or message does not follow its format */
    RRFP_ERR_IO,          /* the operating system refused */
    RRFP_ERR_NOMEM,       /* allocation failed */
    RRFP_ERR_UNSUPPORTED, /* legal, but not built in or not implemented here */
    RRFP_ERR_NONFINITE,   /* a loss or gradient is NaN or infinite */
    RRFP_ERR_INTERRUPTED, /* stopped by the user or a signal */
    RRFP_ERR_PEER,        /* another rank or stage failed */
    RRFP_ERR_INTERNAL     /* an invariant of ours broke: a bug */
} rrfp_status;

enum { RRFP_ERROR_TEXT_BYTES = 512 };

/* Filled by the function that first knows the error.  Plain data, no ownership. */
typedef struct rrfp_error {
    rrfp_status status;
    char text[RRFP_ERROR_TEXT_BYTES]; /* one line, no trailing newline */
} rrfp_error;

/* A short constant English name of a status; never NULL.  Thread-safe. */
const char *rrfp_strerror(rrfp_status status);

/*
 * Records `status` and a printf-formatted line in `error` (may be NULL) and
 * returns `status`, so that `return rrfp_error_set(...)` reads naturally.
 * Control characters in the result are replaced by '?', so that hostile file
 * content cannot forge log lines.  Thread-safe for distinct `error`.
 */
rrfp_status rrfp_error_set(rrfp_error *error, rrfp_status status, const char *format, ...);

#ifdef __cplusplus
}
#endif
#endif /* RRFP_STATUS_H */
