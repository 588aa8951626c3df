/* table.c - the names. */
#include <string.h>

#include "rrfp/hint.h"

static const rrfp_hint_info HINTS[] = {
    {"gpipe", "all forwards, then all backwards", RRFP_RULE_LIST, false,
     RRFP_PLACEMENT_LOOPED, 0, 1},
    {"1f1b", "one forward, one backward after a short warm-up (PipeDream-flush)", RRFP_RULE_LIST,
     false, RRFP_PLACEMENT_LOOPED, 0, 1},
    {"eager-1f1b", "1F1B with the warm-up deepened to the in-flight budget", RRFP_RULE_LIST, false,
     RRFP_PLACEMENT_LOOPED, 0, 1},
    {"interleaved", "Megatron's interleaved 1F1B; needs virtual stages", RRFP_RULE_LIST, false,
     RRFP_PLACEMENT_LOOPED, 0, 2},
    {"zb-h1", "zero-bubble H1: split backward at 1F1B's memory", RRFP_RULE_LIST, true,
     RRFP_PLACEMENT_LOOPED, 0, 1},
    {"zb-h2", "zero-bubble H2: split backward, deeper warm-up", RRFP_RULE_LIST, true,
     RRFP_PLACEMENT_LOOPED, 0, 1},
    {"zb-v", "zero-bubble on the V placement; needs two virtual stages", RRFP_RULE_LIST, true,
     RRFP_PLACEMENT_V, 2, 2},
    {"bf", "rounds of one backward, one forward", RRFP_RULE_BF, false, RRFP_PLACEMENT_LOOPED,
     0, 1},
    {"bfw", "bf on a split backward; weight gradients fill gaps", RRFP_RULE_BFW, true,
     RRFP_PLACEMENT_LOOPED, 0, 1},
    {"fb", "rounds of one forward, one backward", RRFP_RULE_FB, false, RRFP_PLACEMENT_LOOPED, 0, 1},
    {"b-prio", "a backward whenever one is ready", RRFP_RULE_B_PRIO, false, RRFP_PLACEMENT_LOOPED,
     0, 1},
    {"f-prio", "a forward whenever one is ready", RRFP_RULE_F_PRIO, false, RRFP_PLACEMENT_LOOPED,
     0, 1},
};

size_t rrfp_hint_count(void)
{
    return sizeof HINTS / sizeof HINTS[0];
}

const rrfp_hint_info *rrfp_hint_at(size_t index)
{
    return index < rrfp_hint_count() ? &HINTS[index] : NULL;
}

const rrfp_hint_info *rrfp_hint_find(const char *name)
{
    for (size_t i = 0; i < rrfp_hint_count(); i++) {
        if (strcmp(HINTS[i].name, name) == 0) {
            return &HINTS[i];
        }
    }
    return NULL;
}
