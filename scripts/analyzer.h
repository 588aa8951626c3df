/*
 * analyzer.h - included before every source under clang-tidy: rrfp_error_set returns the status
 * it is given. The analyzer cannot look into another file, and would otherwise follow paths on
 * which a failed call reports success.
 */
#include "rrfp/status.h"
#define rrfp_error_set(error, status, ...) ((rrfp_error_set)(error, status, __VA_ARGS__), (status))
