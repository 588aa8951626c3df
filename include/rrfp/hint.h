/*
 * hint.h - named schedules, as rankings or as committed orders.
 *
 * A hint is a name from the table below or a CSV file in PyTorch's
 * compute-only form.  rrfp_hint_build turns it into what every stage machine
 * of a pipeline needs: a rule, whether the backward is split, the placement,
 * and (for list hints, or when a finite distance is asked for) one task list
 * per stage.
 *
 * A list that does not fit the budgets (gpipe with max_inflight 2, say) is
 * re-planned for committed orders: the pipeline is run with unit task times
 * through the very stage machines, the hint ranking what is ready, and the
 * sequence each stage executed becomes its committed order.  Being the record
 * of a real execution it fits the budgets and cannot deadlock.  `adapted`
 * tells so.
 */
#ifndef RRFP_HINT_H
#define RRFP_HINT_H

#include <stdio.h>

#include "rrfp/stage.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rrfp_hint_info {
    const char *name;    /* "gpipe" */
    const char *summary; /* one line for --help */
    rrfp_rule rule;      /* RRFP_RULE_LIST for generated lists */
    bool split_backward;
    rrfp_placement placement;
    uint32_t chunks; /* V it needs; 0 = any; for interleaved: at least 2 */
    uint32_t min_chunks;
} rrfp_hint_info;

/* The table: gpipe 1f1b eager-1f1b interleaved zb-h1 zb-h2 zb-v bf bfw fb b-prio f-prio. */
size_t rrfp_hint_count(void);
const rrfp_hint_info *rrfp_hint_at(size_t index);
const rrfp_hint_info *rrfp_hint_find(const char *name); /* NULL if unknown */

typedef struct rrfp_hint_request {
    size_t struct_size;
    const char *hint; /* a name, or a path ending in .csv */
    uint32_t stages, chunks, microbatches;
    uint32_t hint_distance;     /* 0 = fixed, RRFP_DISTANCE_UNBOUNDED = the paper's rule */
    const rrfp_budget *budgets; /* borrowed; one per stage; max_inflight 0 = automatic */
    rrfp_accumulate accumulate;
    const uint64_t *activation_bytes; /* borrowed; [stage*V + chunk]; may be NULL */
    const uint64_t *retained_bytes;   /* borrowed; [stage*V + chunk]; may be NULL */
} rrfp_hint_request;

typedef struct rrfp_hint {
    rrfp_shape shape;
    rrfp_rule rule;
    bool split_backward;
    bool adapted; /* the committed orders differ from the plain list, see above */
    uint32_t hint_distance;
    char name[64];
    rrfp_budget *budgets; /* owned; per stage, automatic values filled in */
    rrfp_task **orders;   /* owned; per stage, NULL when the rule needs no list */
    size_t *order_counts; /* owned; per stage */
} rrfp_hint;

/*
 * Builds a hint (*given*; free with rrfp_hint_destroy).  Automatic max_inflight:
 * the larger of ceil(1.5 P) and what the plain list needs on that stage.
 */
rrfp_status rrfp_hint_build(const rrfp_hint_request *request, rrfp_hint **hint_out,
                            rrfp_error *error);
void rrfp_hint_destroy(rrfp_hint *hint);

/*
 * Writes one row per rank: cells <global chunk><F|I|W|B><microbatch>, I = input
 * gradient, B = full backward (BW), empty = bubble of the unit-time execution
 * when `bubbles`.  PyTorch's compute-only schedule form.
 */
rrfp_status rrfp_hint_write_csv(const rrfp_hint *hint, bool bubbles, FILE *out,
                                rrfp_error *error);

/* The same as a table for people, one line per stage. */
rrfp_status rrfp_hint_write_table(const rrfp_hint *hint, FILE *out, rrfp_error *error);

/*
 * Reads such a file and checks it: every task of every global chunk exactly
 * once on the rank that owns it (ownership is inferred and must be looped or
 * V), kinds consistent, each stage's own order F<I<W, and feasible across
 * stages.  0 infers stages, chunks or microbatches.  The error names row and cell.
 */
rrfp_status rrfp_hint_read_csv(const char *path, uint32_t stages, uint32_t chunks,
                               uint32_t microbatches, rrfp_hint **hint_out, rrfp_error *error);
/* The same from memory; `name` is for messages. */
rrfp_status rrfp_hint_parse_csv(const char *name, const char *text, size_t text_bytes,
                                uint32_t stages, uint32_t chunks, uint32_t microbatches,
                                rrfp_hint **hint_out, rrfp_error *error);

#ifdef __cplusplus
}
#endif
#endif /* RRFP_HINT_H */
