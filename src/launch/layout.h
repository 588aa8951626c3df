/*
 * layout.h - which rank is what: Megatron-LM's default order, tensor-parallel ranks next to each
 * other, then data-parallel ones, pipeline stages outermost ("tp-dp-pp").
 *
 *   rank = tp + T * (dp + D * stage)
 */
#ifndef RRFP_LAYOUT_H
#define RRFP_LAYOUT_H

#include <stdint.h>

typedef struct rrfp_layout {
    uint32_t tensor, data, pipeline; /* sizes; their product is the number of ranks */
} rrfp_layout;

typedef struct rrfp_layout_place {
    uint32_t tensor_rank, data_rank, stage;
} rrfp_layout_place;

static inline rrfp_layout_place rrfp_layout_place_of(const rrfp_layout *layout, uint32_t rank)
{
    return (rrfp_layout_place){rank % layout->tensor, rank / layout->tensor % layout->data,
                               rank / layout->tensor / layout->data};
}

static inline uint32_t rrfp_layout_rank_of(const rrfp_layout *layout, rrfp_layout_place place)
{
    return place.tensor_rank + layout->tensor * (place.data_rank + layout->data * place.stage);
}

#endif /* RRFP_LAYOUT_H */
