/*
 * task.h - what a pipeline is made of: tasks and the shape they live in.
 *
 *   global chunk g in [0, P*V)     the model, cut into P*V consecutive pieces
 *   looped placement               g = v*P + s          (chunk v of stage s)
 *   V placement (V must be 2)      v=0: g = s           v=1: g = 2P-1-s
 *
 * A task is (kind, chunk, microbatch) on one stage; `chunk` is the local
 * index v.  Dependencies:
 *   F(g,m)  needs F(g-1,m)                      (g = 0: nothing)
 *   B(g,m)  needs F(g,m) and B(g+1,m)           (last g: F(g,m) alone)
 *   W(g,m)  needs B(g,m)
 * BW is B and W fused into one task: a schedule of an unsplit backward.
 */
#ifndef RRFP_TASK_H
#define RRFP_TASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rrfp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum rrfp_kind {
    RRFP_F = 0, /* forward */
    RRFP_B = 1, /* input-gradient backward (dgrad) */
    RRFP_W = 2, /* weight-gradient (wgrad) */
    RRFP_BW = 3 /* fused backward: B and W in one task */
} rrfp_kind;

typedef enum rrfp_placement {
    RRFP_PLACEMENT_LOOPED = 0,
    RRFP_PLACEMENT_V = 1
} rrfp_placement;

enum {
    RRFP_MAX_STAGES = 16384,
    RRFP_MAX_CHUNKS = 64, /* per stage */
    RRFP_MAX_MICROBATCHES = 65536
};

typedef struct rrfp_task {
    uint8_t kind;   /* rrfp_kind */
    uint8_t pad;    /* 0 */
    uint16_t chunk; /* local chunk v in [0, V) */
    uint32_t microbatch;
} rrfp_task;

typedef struct rrfp_shape {
    uint32_t stages;       /* P >= 1 */
    uint32_t chunks;       /* V >= 1, per stage */
    uint32_t microbatches; /* M >= 1 */
    rrfp_placement placement;
} rrfp_shape;

/* Checks bounds, and V == 2 for the V placement. */
rrfp_status rrfp_shape_check(const rrfp_shape *shape, rrfp_error *error);

/* Global chunk of local chunk `chunk` on `stage`; arguments must be in range. */
uint32_t rrfp_shape_global_chunk(const rrfp_shape *shape, uint32_t stage, uint32_t chunk);

/* Stage and local chunk that own global chunk `global_chunk`; must be in range. */
void rrfp_shape_owner(const rrfp_shape *shape, uint32_t global_chunk, uint32_t *stage,
                      uint32_t *chunk);

/* "F", "B", "W" or "BW"; "?" for anything else.  Constant. */
const char *rrfp_kind_name(rrfp_kind kind);

#ifdef __cplusplus
}
#endif
#endif /* RRFP_TASK_H */
