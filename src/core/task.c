/* task.c - the shape of a pipeline: who owns which piece of the model. */
#include "rrfp/task.h"

rrfp_status rrfp_shape_check(const rrfp_shape *shape, rrfp_error *error)
{
    if (shape->stages < 1 || shape->stages > RRFP_MAX_STAGES) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "stages is %u; it must be between 1 and %d",
                              shape->stages, RRFP_MAX_STAGES);
    }
    if (shape->chunks < 1 || shape->chunks > RRFP_MAX_CHUNKS) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "chunks per stage is %u; it must be between 1 and %d", shape->chunks,
                              RRFP_MAX_CHUNKS);
    }
    if (shape->microbatches < 1 || shape->microbatches > RRFP_MAX_MICROBATCHES) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "microbatches is %u; it must be between 1 and %d",
                              shape->microbatches, RRFP_MAX_MICROBATCHES);
    }
    if (shape->placement != RRFP_PLACEMENT_LOOPED && shape->placement != RRFP_PLACEMENT_V) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "placement is %d; it must be looped (0) or V (1)",
                              (int)shape->placement);
    }
    if (shape->placement == RRFP_PLACEMENT_V && shape->chunks != 2) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "the V placement needs 2 chunks per stage, not %u; set chunks to 2 "
                              "or use the looped placement",
                              shape->chunks);
    }
    return RRFP_OK;
}

uint32_t rrfp_shape_global_chunk(const rrfp_shape *shape, uint32_t stage, uint32_t chunk)
{
    if (shape->placement == RRFP_PLACEMENT_V && chunk == 1) {
        return 2 * shape->stages - 1 - stage;
    }
    return chunk * shape->stages + stage;
}

void rrfp_shape_owner(const rrfp_shape *shape, uint32_t global_chunk, uint32_t *stage,
                      uint32_t *chunk)
{
    *chunk = global_chunk / shape->stages;
    *stage = global_chunk % shape->stages;
    if (shape->placement == RRFP_PLACEMENT_V && *chunk == 1) {
        *stage = shape->stages - 1 - *stage;
    }
}

const char *rrfp_kind_name(rrfp_kind kind)
{
    switch (kind) {
    case RRFP_F:
        return "F";
    case RRFP_B:
        return "B";
    case RRFP_W:
        return "W";
    case RRFP_BW:
        return "BW";
    }
    return "?";
}
