/*
 * stage_internal.h - the inside of the stage machine, for src/core alone.
 *
 * A machine is two pieces.  Everything that changes within a step and steers
 * behaviour lies in one block of plain bytes without pointers, so a snapshot
 * is a memcpy and equal behaviour means equal bytes:
 *
 *   block  [ head | next_f next_b next_w | ready sets | unstarted | trees | state ]
 *            |      |                      |            |           |       |
 *            |      |                      |            |           |       one byte a
 *            |      |                      |            |           |       (chunk, microbatch)
 *            |      |                      |            |           held slots, held bytes
 *            |      |                      |            entries of a committed order
 *            |      |                      F, B, W per chunk
 *            |      smallest microbatch per chunk not started (F, B), not ended (W)
 *            running task, counts, phase of the rule
 *
 * Configuration, tables made at creation and statistics lie outside of it.
 */
#ifndef RRFP_CORE_STAGE_INTERNAL_H
#define RRFP_CORE_STAGE_INTERNAL_H

#include "core/bitset.h"
#include "rrfp/stage.h"

/* Life of one (chunk, microbatch), in this order; forward_only goes F_RUNS -> DONE. */
enum {
    RRFP_STATE_F_WAITS = 0, /* for its activation */
    RRFP_STATE_F_READY,
    RRFP_STATE_F_RUNS,
    RRFP_STATE_B_WAITS, /* for its gradient */
    RRFP_STATE_B_READY,
    RRFP_STATE_B_RUNS,  /* B or BW */
    RRFP_STATE_W_WAITS, /* for older microbatches */
    RRFP_STATE_W_READY,
    RRFP_STATE_W_RUNS,
    RRFP_STATE_DONE,
    RRFP_STATE_MASK = 15,
    RRFP_STATE_F_SENDS = 16, /* output of F is being sent */
    RRFP_STATE_B_SENDS = 32
};

enum { RRFP_CLASS_F = 0, RRFP_CLASS_B = 1, RRFP_CLASS_W = 2, RRFP_CLASS_COUNT = 3 };

/*
 * One budget of the activations: slots or bytes.  (c,m) holds start[c] from the
 * start of F, keep[c] from the end of B, nothing from the end of W.  See
 * ledger.c for the rule of admission.
 */
typedef struct rrfp_ledger {
    bool limited;
    uint64_t capacity;
    uint64_t start[RRFP_MAX_CHUNKS];
    uint64_t keep[RRFP_MAX_CHUNKS];
    uint64_t need[RRFP_MAX_CHUNKS]; /* start[c] + start[c+1] + ...: what F(c..V-1) still take */
    uint64_t
        *tree; /* in the block: Fenwick sums of what each microbatch holds; NULL if unlimited */
    uint64_t *used; /* in the block */
} rrfp_ledger;

enum { RRFP_LEDGER_SLOTS = 0, RRFP_LEDGER_BYTES = 1, RRFP_LEDGER_COUNT = 2 };

typedef struct rrfp_stage_head { /* no padding: compared as bytes */
    uint64_t used[RRFP_LEDGER_COUNT];
    uint32_t pending_w;
    uint32_t tasks_left;    /* (chunk, microbatch) pairs not DONE */
    uint32_t forwards_left; /* F not ended */
    uint32_t sends_left;
    uint32_t cursor; /* list rule: first entry of the list not started */
    uint32_t microbatch;
    uint16_t chunk;
    uint8_t kind;
    uint8_t running; /* kind, chunk, microbatch are valid; else they are zero */
    uint8_t begun;
    uint8_t forward_next; /* phase of the BF and FB rounds */
    uint8_t pad[2];
} rrfp_stage_head;

_Static_assert(sizeof(rrfp_stage_head) == 48, "no padding the compiler may leave unset");

/* How candidates are found. */
typedef enum rrfp_ranking {
    RRFP_RANKING_RULE,  /* all ready tasks, ranked by a dynamic rule */
    RRFP_RANKING_LIST,  /* all ready tasks, ranked by their place in the list */
    RRFP_RANKING_WINDOW /* the first entries of a committed order */
} rrfp_ranking;

struct rrfp_stage {
    /* configuration */
    rrfp_shape shape;
    uint32_t stage;
    rrfp_rule rule;
    rrfp_ranking ranking;
    bool split;
    bool forward_only;
    bool follows;
    bool ordered;
    uint32_t distance;
    uint32_t pending_limit; /* UINT32_MAX: unlimited */
    uint32_t global_chunk[RRFP_MAX_CHUNKS];
    rrfp_ledger ledger[RRFP_LEDGER_COUNT];

    /* list or committed order (normalised); NULL for a dynamic rule */
    rrfp_task *order;
    uint32_t order_count;
    /*
     * List: the k-th task of a class (kind, chunk) in list order is microbatch
     * item_of_rank[class*M + k] at list place place_of_rank[class*M + k]; the
     * ready set of the class holds ranks k.  NULL: rank = microbatch.
     */
    uint32_t *rank_of_item;
    uint32_t *item_of_rank;
    uint32_t *place_of_rank;
    uint32_t *place; /* window: entry of (class, microbatch) */

    /* the block and what lies in it */
    uint8_t *block;
    size_t block_bytes;
    rrfp_stage_head *head;
    uint32_t *next_f;    /* [V] smallest microbatch whose F has not started */
    uint32_t *next_b;    /* [V] smallest microbatch whose B has not started */
    uint32_t *next_w;    /* [V] smallest microbatch whose W has not ended */
    uint64_t *ready;     /* [3*V] sets of ranks */
    uint64_t *ready_f;   /* [V] sets of microbatches; list only, else the F part of ready */
    uint64_t *unstarted; /* window: set of places */
    uint8_t *state;      /* [V*M] */
    rrfp_bitset_layout ready_layout;
    rrfp_bitset_layout order_layout;

    rrfp_stage_counters counters;
};

typedef struct rrfp_choice {
    rrfp_task task; /* kind as it will run */
    bool out_of_hint;
    bool gap; /* a W that filled a gap: a new round of BF or FB begins */
} rrfp_choice;

/* ledger.c */
void rrfp_ledger_take(rrfp_ledger *ledger, uint32_t microbatches, uint32_t chunk,
                      uint32_t microbatch);
void rrfp_ledger_give(rrfp_ledger *ledger, uint32_t microbatches, uint32_t microbatch,
                      uint64_t amount);
bool rrfp_ledger_admits(const rrfp_ledger *ledger, const rrfp_shape *shape, const uint32_t *next_f,
                        uint32_t chunk, uint32_t *barrier);

/* stage.c: brings the public counters up to date */
void rrfp_stage_note_peaks(rrfp_stage *stage);

/* order.c: tables made at creation */
rrfp_status rrfp_stage_order_build(rrfp_stage *stage, const rrfp_stage_config *config,
                                   rrfp_error *error);

/* arbiter.c */
bool rrfp_arbiter_choose(const rrfp_stage *stage, rrfp_choice *choice);
/* NULL if `task` can start now for inputs and budgets, whatever its rank; else why not. */
const char *rrfp_arbiter_fault(const rrfp_stage *stage, rrfp_task task);
rrfp_idle_reason rrfp_arbiter_idle_reason(const rrfp_stage *stage);

static inline uint32_t rrfp_stage_class(uint8_t kind)
{
    return kind == RRFP_F ? RRFP_CLASS_F : kind == RRFP_W ? RRFP_CLASS_W : RRFP_CLASS_B;
}

static inline size_t rrfp_stage_item(const rrfp_stage *stage, uint32_t chunk, uint32_t microbatch)
{
    return (size_t)chunk * stage->shape.microbatches + microbatch;
}

static inline uint8_t rrfp_stage_state(const rrfp_stage *stage, uint32_t chunk, uint32_t microbatch)
{
    return stage->state[rrfp_stage_item(stage, chunk, microbatch)] & RRFP_STATE_MASK;
}

static inline uint64_t *rrfp_stage_ready_set(const rrfp_stage *stage, uint32_t class,
                                             uint32_t chunk)
{
    return stage->ready + (size_t)(class * stage->shape.chunks + chunk) * stage->ready_layout.words;
}

static inline uint64_t *rrfp_stage_ready_f(const rrfp_stage *stage, uint32_t chunk)
{
    return stage->ready_f + (size_t)chunk * stage->ready_layout.words;
}

static inline size_t rrfp_stage_class_base(const rrfp_stage *stage, uint32_t class, uint32_t chunk)
{
    return (size_t)(class * stage->shape.chunks + chunk) * stage->shape.microbatches;
}

static inline uint32_t rrfp_stage_rank(const rrfp_stage *stage, uint32_t class, uint32_t chunk,
                                       uint32_t microbatch)
{
    return stage->rank_of_item == NULL
               ? microbatch
               : stage->rank_of_item[rrfp_stage_class_base(stage, class, chunk) + microbatch];
}

/* A backward that starts now does its W in the same task. */
static inline bool rrfp_stage_fuses(const rrfp_stage *stage, uint32_t chunk, uint32_t microbatch)
{
    return !stage->split && (!stage->ordered || stage->next_w[chunk] == microbatch);
}

static inline bool rrfp_stage_entry_started(const rrfp_stage *stage, rrfp_task entry)
{
    uint8_t state = rrfp_stage_state(stage, entry.chunk, entry.microbatch);
    switch (entry.kind) {
    case RRFP_F:
        return state >= RRFP_STATE_F_RUNS;
    case RRFP_W:
        return state >= RRFP_STATE_W_RUNS;
    default:
        return state >= RRFP_STATE_B_RUNS;
    }
}

#endif /* RRFP_CORE_STAGE_INTERNAL_H */
