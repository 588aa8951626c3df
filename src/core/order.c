/*
 * order.c - lists and committed orders, checked and put into the form the
 * arbiter reads.  Runs at creation only; may allocate.
 */
#include <stdlib.h>
#include <string.h>

#include "core/stage_internal.h"

#define NO_PLACE UINT32_MAX

/* --- every task exactly once -------------------------------------------------------------- */

static bool kind_fits(const rrfp_stage *stage, uint8_t kind)
{
    return kind == RRFP_F || (stage->split ? kind == RRFP_B || kind == RRFP_W : kind == RRFP_BW);
}

static rrfp_status check_entry(const rrfp_stage *stage, size_t index, rrfp_task entry,
                               uint8_t *seen, rrfp_error *error)
{
    const rrfp_shape *shape = &stage->shape;
    const char *name = rrfp_kind_name((rrfp_kind)entry.kind);
    if (!kind_fits(stage, entry.kind)) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage %u: entry %zu of the order has kind %s (%u); a %s backward is "
                              "made of %s",
                              stage->stage, index + 1, name, entry.kind,
                              stage->split ? "split" : "fused",
                              stage->split ? "F, B and W" : "F and BW");
    }
    if (entry.chunk >= shape->chunks || entry.microbatch >= shape->microbatches) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage %u: entry %zu of the order is %s of chunk %u, microbatch %u; "
                              "there are %u chunks and %u microbatches",
                              stage->stage, index + 1, name, entry.chunk, entry.microbatch,
                              shape->chunks, shape->microbatches);
    }
    uint8_t bit = (uint8_t)(1u << rrfp_stage_class(entry.kind));
    size_t item = rrfp_stage_item(stage, entry.chunk, entry.microbatch);
    if (seen[item] & bit) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage %u: entry %zu of the order repeats %s of chunk %u, "
                              "microbatch %u",
                              stage->stage, index + 1, name, entry.chunk, entry.microbatch);
    }
    seen[item] |= bit;
    return RRFP_OK;
}

static rrfp_status check_complete(const rrfp_stage *stage, const uint8_t *seen, rrfp_error *error)
{
    const rrfp_shape *shape = &stage->shape;
    static const rrfp_kind split_kinds[] = {RRFP_F, RRFP_B, RRFP_W};
    static const rrfp_kind fused_kinds[] = {RRFP_F, RRFP_BW};
    const rrfp_kind *kinds = stage->split ? split_kinds : fused_kinds;
    uint32_t count = stage->forward_only ? 1 : stage->split ? 3 : 2;
    for (uint32_t k = 0; k < count; k++) {
        for (uint32_t c = 0; c < shape->chunks; c++) {
            for (uint32_t m = 0; m < shape->microbatches; m++) {
                if (!(seen[rrfp_stage_item(stage, c, m)] &
                      1u << rrfp_stage_class((uint8_t)kinds[k]))) {
                    return rrfp_error_set(error, RRFP_ERR_INVALID,
                                          "stage %u: the order lacks %s of chunk %u, microbatch "
                                          "%u; every task must appear once",
                                          stage->stage, rrfp_kind_name(kinds[k]), c, m);
                }
            }
        }
    }
    return RRFP_OK;
}

/* --- committed orders ---------------------------------------------------------------------- */

/* Can the entry come after those before it, on this stage taken alone? */
static rrfp_status check_legal(const rrfp_stage *stage, size_t index, rrfp_task entry,
                               uint8_t *seen, rrfp_error *error)
{
    uint32_t c = entry.chunk;
    uint32_t m = entry.microbatch;
    uint8_t own = seen[rrfp_stage_item(stage, c, m)];
    rrfp_kind needs = RRFP_F;
    uint32_t needs_chunk = c;
    bool legal = true;
    if (entry.kind == RRFP_F) {
        needs_chunk = c > 0 ? c - 1 : 0;
        legal = c == 0 || (seen[rrfp_stage_item(stage, c - 1, m)] & 1u << RRFP_CLASS_F);
    } else if (entry.kind == RRFP_W) {
        needs = RRFP_B;
        legal = own & 1u << RRFP_CLASS_B;
    } else {
        legal = own & 1u << RRFP_CLASS_F;
        if (legal && c + 1 < stage->shape.chunks) {
            needs = (rrfp_kind)entry.kind;
            needs_chunk = c + 1;
            legal = seen[rrfp_stage_item(stage, c + 1, m)] & 1u << RRFP_CLASS_B;
        }
    }
    if (!legal) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "stage %u: entry %zu of the committed order, %s of chunk %u, "
                              "microbatch %u, comes before %s of chunk %u, microbatch %u, which it "
                              "needs",
                              stage->stage, index + 1, rrfp_kind_name((rrfp_kind)entry.kind), c, m,
                              rrfp_kind_name(needs), needs_chunk, m);
    }
    seen[rrfp_stage_item(stage, c, m)] |= (uint8_t)(1u << rrfp_stage_class(entry.kind));
    return RRFP_OK;
}

/* Scratch of the walk over a committed order. */
typedef struct walk {
    uint8_t *seen;                      /* classes of (chunk, microbatch) passed so far */
    uint8_t *owed;                      /* B emitted, W not */
    uint32_t next_w[RRFP_MAX_CHUNKS];   /* microbatch whose W is next in turn */
    uint32_t may_emit[RRFP_MAX_CHUNKS]; /* W entries passed and not emitted yet (split) */
    /* what following the order takes */
    uint64_t used[RRFP_LEDGER_COUNT];
    uint64_t peak[RRFP_LEDGER_COUNT];
    size_t peak_at[RRFP_LEDGER_COUNT]; /* entry that first went over the budget */
    uint32_t pending;
    uint32_t pending_peak;
    size_t pending_at;
} walk;

#define NO_ENTRY SIZE_MAX

/* Appends a task to the order and accounts for it. */
static void emit(rrfp_stage *stage, walk *w, size_t index, rrfp_kind kind, uint32_t c, uint32_t m)
{
    stage->order[stage->order_count++] =
        (rrfp_task){.kind = (uint8_t)kind, .chunk = (uint16_t)c, .microbatch = m};
    if (kind == RRFP_B) {
        if (++w->pending > w->pending_peak) {
            w->pending_peak = w->pending;
        }
        if (w->pending > stage->pending_limit && w->pending_at == NO_ENTRY) {
            w->pending_at = index;
        }
    }
    for (uint32_t i = 0; i < RRFP_LEDGER_COUNT; i++) {
        const rrfp_ledger *ledger = &stage->ledger[i];
        if (kind == RRFP_F) {
            w->used[i] += ledger->start[c];
        } else if (kind == RRFP_B) {
            w->used[i] -= ledger->start[c] - ledger->keep[c];
        } else {
            w->used[i] -= kind == RRFP_W ? ledger->keep[c] : ledger->start[c];
        }
        if (w->used[i] > w->peak[i]) {
            w->peak[i] = w->used[i];
        }
        if (ledger->limited && w->used[i] > ledger->capacity && w->peak_at[i] == NO_ENTRY) {
            w->peak_at[i] = index;
        }
        if (kind == RRFP_F && stage->forward_only) {
            w->used[i] -= ledger->start[c];
        }
    }
    if (kind == RRFP_W) {
        w->pending--;
    }
}

/*
 * Sums in microbatch order: the W entries of a chunk are places where its next W
 * in turn runs, the first one for microbatch 0 and so on; a place whose B has not
 * come yet moves behind that B.  A BW out of turn becomes a B here and a W right
 * behind the one whose turn comes before it.
 */
static void emit_owed(rrfp_stage *stage, walk *w, size_t index, uint32_t c)
{
    while (w->next_w[c] < stage->shape.microbatches &&
           w->owed[rrfp_stage_item(stage, c, w->next_w[c])] &&
           (!stage->split || w->may_emit[c] > 0)) {
        emit(stage, w, index, RRFP_W, c, w->next_w[c]++);
        if (stage->split) {
            w->may_emit[c]--;
        }
    }
}

static void emit_in_turn(rrfp_stage *stage, walk *w, size_t index, rrfp_task entry)
{
    uint32_t c = entry.chunk;
    uint32_t m = entry.microbatch;
    if (entry.kind == RRFP_W) {
        w->may_emit[c]++;
    } else if (entry.kind == RRFP_BW && w->next_w[c] == m) {
        emit(stage, w, index, RRFP_BW, c, m);
        w->next_w[c]++;
    } else {
        emit(stage, w, index, RRFP_B, c, m);
        w->owed[rrfp_stage_item(stage, c, m)] = 1;
    }
    emit_owed(stage, w, index, c);
}

static rrfp_status check_budgets(const rrfp_stage *stage, const walk *w,
                                 const rrfp_stage_config *config, rrfp_error *error)
{
    static const char *const names[] = {"max_inflight", "max_inflight_bytes"};
    for (uint32_t i = 0; i < RRFP_LEDGER_COUNT; i++) {
        if (w->peak_at[i] != NO_ENTRY) {
            rrfp_task entry = config->order[w->peak_at[i]];
            uint64_t chunks = stage->shape.chunks;
            uint64_t least =
                i == RRFP_LEDGER_SLOTS ? (w->peak[i] + chunks - 1) / chunks : w->peak[i];
            uint64_t given = i == RRFP_LEDGER_SLOTS ? config->budget.max_inflight
                                                    : config->budget.max_inflight_bytes;
            return rrfp_error_set(
                error, RRFP_ERR_INFEASIBLE,
                "stage %u: entry %zu of the committed order, %s of chunk %u, "
                "microbatch %u, does not fit %s %llu; the order needs %llu",
                stage->stage, w->peak_at[i] + 1, rrfp_kind_name((rrfp_kind)entry.kind), entry.chunk,
                entry.microbatch, names[i], (unsigned long long)given, (unsigned long long)least);
        }
    }
    if (w->pending_at != NO_ENTRY) {
        rrfp_task entry = config->order[w->pending_at];
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "stage %u: entry %zu of the committed order, %s of chunk %u, "
                              "microbatch %u, does not fit max_pending_w %u; the order needs %u",
                              stage->stage, w->pending_at + 1,
                              rrfp_kind_name((rrfp_kind)entry.kind), entry.chunk, entry.microbatch,
                              stage->pending_limit, w->pending_peak);
    }
    return RRFP_OK;
}

static void index_places(rrfp_stage *stage)
{
    for (uint32_t p = 0; p < stage->order_count; p++) {
        rrfp_task entry = stage->order[p];
        size_t base = rrfp_stage_class_base(stage, rrfp_stage_class(entry.kind), entry.chunk);
        stage->place[base + entry.microbatch] = p;
        if (entry.kind == RRFP_BW) { /* an owed W keeps the place of its BW */
            base = rrfp_stage_class_base(stage, RRFP_CLASS_W, entry.chunk);
            stage->place[base + entry.microbatch] = p;
        }
    }
}

static rrfp_status commit(rrfp_stage *stage, walk *w, const rrfp_stage_config *config,
                          rrfp_error *error)
{
    rrfp_status status = RRFP_OK;
    memset(w->seen, 0, (size_t)stage->shape.chunks * stage->shape.microbatches);
    for (size_t i = 0; i < config->order_count && status == RRFP_OK; i++) {
        rrfp_task entry = config->order[i];
        if (stage->forward_only && entry.kind != RRFP_F) {
            continue;
        }
        status = check_legal(stage, i, entry, w->seen, error);
        if (status != RRFP_OK) {
            break;
        }
        if (stage->ordered && entry.kind != RRFP_F) {
            emit_in_turn(stage, w, i, entry);
        } else {
            emit(stage, w, i, (rrfp_kind)entry.kind, entry.chunk, entry.microbatch);
        }
    }
    if (status == RRFP_OK) {
        status = check_budgets(stage, w, config, error);
    }
    if (status == RRFP_OK) {
        index_places(stage);
    }
    return status;
}

/* --- lists -------------------------------------------------------------------------------- */

static void rank_list(rrfp_stage *stage, const rrfp_stage_config *config)
{
    const rrfp_shape *shape = &stage->shape;
    uint32_t next_rank[RRFP_CLASS_COUNT][RRFP_MAX_CHUNKS] = {{0}};
    for (size_t i = 0; i < config->order_count; i++) {
        rrfp_task entry = config->order[i];
        if (stage->forward_only && entry.kind != RRFP_F) {
            continue;
        }
        uint32_t class = rrfp_stage_class(entry.kind);
        uint32_t rank = next_rank[class][entry.chunk]++;
        size_t base = rrfp_stage_class_base(stage, class, entry.chunk);
        stage->rank_of_item[base + entry.microbatch] = rank;
        stage->item_of_rank[base + rank] = entry.microbatch;
        stage->place_of_rank[base + rank] = stage->order_count;
        stage->order[stage->order_count++] = entry;
    }
    for (uint32_t class = 0; class < RRFP_CLASS_COUNT; class ++) {
        for (uint32_t c = 0; c < shape->chunks; c++) {
            size_t base = rrfp_stage_class_base(stage, class, c);
            for (uint32_t m = 0; next_rank[class][c] == 0 && m < shape->microbatches; m++) {
                stage->rank_of_item[base + m] = m; /* owed W: not in the list, oldest first */
                stage->item_of_rank[base + m] = m;
                stage->place_of_rank[base + m] = NO_PLACE;
            }
        }
    }
}

/* ------------------------------------------------------------------------------------------ */

static rrfp_status build(rrfp_stage *stage, walk *w, const rrfp_stage_config *config,
                         rrfp_error *error)
{
    rrfp_status status = RRFP_OK;
    for (size_t i = 0; i < config->order_count && status == RRFP_OK; i++) {
        status = check_entry(stage, i, config->order[i], w->seen, error);
    }
    if (status == RRFP_OK) {
        status = check_complete(stage, w->seen, error);
    }
    if (status != RRFP_OK) {
        return status;
    }
    size_t items = (size_t)stage->shape.chunks * stage->shape.microbatches;
    size_t all = RRFP_CLASS_COUNT * items;
    bool ok;
    stage->order = calloc(all, sizeof *stage->order);
    if (stage->ranking == RRFP_RANKING_LIST) {
        stage->rank_of_item = calloc(all, sizeof(uint32_t));
        stage->item_of_rank = calloc(all, sizeof(uint32_t));
        stage->place_of_rank = calloc(all, sizeof(uint32_t));
        ok = stage->rank_of_item != NULL && stage->item_of_rank != NULL &&
             stage->place_of_rank != NULL;
    } else {
        stage->place = calloc(all, sizeof(uint32_t));
        ok = stage->place != NULL;
    }
    if (!ok || stage->order == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM,
                              "stage %u: no memory for an order of %zu entries", stage->stage, all);
    }
    if (stage->ranking == RRFP_RANKING_WINDOW) {
        return commit(stage, w, config, error);
    }
    rank_list(stage, config);
    return RRFP_OK;
}

rrfp_status rrfp_stage_order_build(rrfp_stage *stage, const rrfp_stage_config *config,
                                   rrfp_error *error)
{
    size_t items = (size_t)stage->shape.chunks * stage->shape.microbatches;
    walk w = {.peak_at = {NO_ENTRY, NO_ENTRY}, .pending_at = NO_ENTRY};
    if (config->order == NULL) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage %u: %s needs an order of tasks; none was given", stage->stage,
                              stage->ranking == RRFP_RANKING_LIST ? "the list rule"
                                                                  : "a finite hint_distance");
    }
    w.seen = calloc(items, 1);
    w.owed = calloc(items, 1);
    rrfp_status status;
    if (w.seen == NULL || w.owed == NULL) {
        status = rrfp_error_set(error, RRFP_ERR_NOMEM, "stage %u: no memory for %zu tasks",
                                stage->stage, items);
    } else {
        status = build(stage, &w, config, error);
    }
    free(w.seen);
    free(w.owed);
    return status;
}
