/*
 * binding.h - keeping a stage's threads to their own share of the processors, by hwloc.
 */
#ifndef RRFP_BINDING_H
#define RRFP_BINDING_H

#include <stdbool.h>
#include <stdint.h>

#include "rrfp/status.h"

/*
 * Binds the calling thread, and the threads that it starts later, to share `share` of `shares`
 * equal parts of the processors that it may use; neighbouring shares lie near each other in the
 * machine.  With more shares than processors, shares next to each other get the same one.
 *
 * `launched`: mpirun or srun started this process.  Where it has bound the process already, that
 * is left as it is.
 *
 * RRFP_ERR_UNSUPPORTED without hwloc, RRFP_ERR_IO when the system refuses.
 */
rrfp_status rrfp_bind_thread(uint32_t share, uint32_t shares, bool launched, rrfp_error *error);

/* "hwloc 2.9.0", or NULL when this build has none. */
const char *rrfp_binding_name(void);

#endif /* RRFP_BINDING_H */
