/*
 * arbiter.c - which ready task starts next.
 *
 * A pure function of the machine: it changes nothing.  For the rules and the
 * list a decision looks at the first member of 3V ready sets, whatever their
 * size; for a committed order it walks the window of hint_distance + 1 entries.
 */
#include "core/mutant.h"
#include "core/stage_internal.h"

#define NONE RRFP_BITSET_NONE

/* Which members of a set of ready B's fit the pending-W budget. */
typedef enum admission { ADMIT_NONE, ADMIT_NEXT_W, ADMIT_ALL } admission;

static admission admit_b(const rrfp_stage *stage)
{
    uint32_t pending = stage->head->pending_w;
    uint32_t limit = stage->pending_limit;
    if (limit == UINT32_MAX || RRFP_MUTANT_IS(RRFP_MUTANT_PENDING_UNBOUNDED)) {
        return ADMIT_ALL;
    }
    if (!stage->split) { /* fused: the next in turn leaves no W behind, the others do */
        return !stage->ordered || pending < limit ? ADMIT_ALL : ADMIT_NEXT_W;
    }
    if (!stage->ordered || RRFP_MUTANT_IS(RRFP_MUTANT_PENDING_UNRESERVED)) {
        return pending < limit ? ADMIT_ALL : ADMIT_NONE;
    }
    /* The last slot is for a B whose W can run next, or no W might ever run. */
    if (limit - pending >= 2) {
        return ADMIT_ALL;
    }
    return pending < limit ? ADMIT_NEXT_W : ADMIT_NONE;
}

/* Last microbatch whose F on `chunk` fits the budgets; false for none. */
static bool admit_f(const rrfp_stage *stage, uint32_t chunk, uint32_t *barrier)
{
    *barrier = NONE;
    for (uint32_t i = 0; i < RRFP_LEDGER_COUNT; i++) {
        if (!rrfp_ledger_admits(&stage->ledger[i], &stage->shape, stage->next_f, chunk, barrier)) {
            return false;
        }
    }
    return true;
}

static rrfp_task task_of(rrfp_kind kind, uint32_t chunk, uint32_t microbatch)
{
    return (rrfp_task){.kind = (uint8_t)kind, .chunk = (uint16_t)chunk, .microbatch = microbatch};
}

static rrfp_kind backward_kind(const rrfp_stage *stage, uint32_t chunk, uint32_t microbatch)
{
    return rrfp_stage_fuses(stage, chunk, microbatch) ? RRFP_BW : RRFP_B;
}

/* --- dynamic rules: sets of microbatches ------------------------------------------------- */

static bool rule_f(const rrfp_stage *stage, rrfp_choice *choice)
{
    for (uint32_t c = 0; c < stage->shape.chunks; c++) {
        uint32_t barrier;
        uint32_t m =
            rrfp_bitset_first(&stage->ready_layout, rrfp_stage_ready_set(stage, RRFP_CLASS_F, c));
        if (m != NONE && admit_f(stage, c, &barrier) && m <= barrier) {
            choice->task = task_of(RRFP_F, c, m);
            choice->out_of_hint = m != stage->next_f[c];
            return true;
        }
    }
    return false;
}

static bool rule_w(const rrfp_stage *stage, rrfp_choice *choice)
{
    for (uint32_t c = stage->shape.chunks; c-- > 0;) {
        uint32_t m =
            rrfp_bitset_first(&stage->ready_layout, rrfp_stage_ready_set(stage, RRFP_CLASS_W, c));
        if (m != NONE) {
            choice->task = task_of(RRFP_W, c, m);
            choice->out_of_hint = m != stage->next_w[c];
            return true;
        }
    }
    return false;
}

static bool rule_b(const rrfp_stage *stage, rrfp_choice *choice)
{
    admission admitted = admit_b(stage);
    for (uint32_t c = stage->shape.chunks; c-- > 0;) {
        uint32_t m =
            rrfp_bitset_first(&stage->ready_layout, rrfp_stage_ready_set(stage, RRFP_CLASS_B, c));
        if (m == NONE) {
            continue;
        }
        if (admitted == ADMIT_ALL || (admitted == ADMIT_NEXT_W && m == stage->next_w[c])) {
            choice->task = task_of(backward_kind(stage, c, m), c, m);
            choice->out_of_hint = m != stage->next_b[c];
            return true;
        }
        if (rule_w(stage, choice)) { /* makes room: takes the rank of the B */
            return true;
        }
    }
    return false;
}

static bool forward_first(const rrfp_stage *stage)
{
    switch (stage->rule) {
    case RRFP_RULE_B_PRIO:
        return false;
    case RRFP_RULE_F_PRIO:
        return true;
    default:
        return stage->head->forward_next != 0;
    }
}

static bool choose_by_rule(const rrfp_stage *stage, rrfp_choice *choice)
{
    bool found = forward_first(stage) ? rule_f(stage, choice) || rule_b(stage, choice)
                                      : rule_b(stage, choice) || rule_f(stage, choice);
    if (!found && rule_w(stage, choice)) {
        choice->gap = true;
        found = true;
    }
    return found;
}

/* --- list: sets of ranks ------------------------------------------------------------------ */

/* Best candidate so far; an owed W has no place in the list and comes last. */
typedef struct best {
    uint32_t place; /* NONE: nothing yet, or a W without a place */
    bool found;
    bool makes_room;
    rrfp_task task;
} best;

static void consider(best *b, uint32_t place, rrfp_kind kind, uint32_t chunk, uint32_t microbatch)
{
    if (!b->found || place < b->place) {
        *b = (best){.place = place, .found = true, .task = task_of(kind, chunk, microbatch)};
    }
}

static uint32_t place_of(const rrfp_stage *stage, uint32_t class, uint32_t chunk, uint32_t rank)
{
    return stage->place_of_rank[rrfp_stage_class_base(stage, class, chunk) + rank];
}

static uint32_t item_of(const rrfp_stage *stage, uint32_t class, uint32_t chunk, uint32_t rank)
{
    return stage->item_of_rank[rrfp_stage_class_base(stage, class, chunk) + rank];
}

static best list_w(const rrfp_stage *stage)
{
    best b = {.place = NONE};
    for (uint32_t c = stage->shape.chunks; c-- > 0;) {
        uint32_t rank =
            rrfp_bitset_first(&stage->ready_layout, rrfp_stage_ready_set(stage, RRFP_CLASS_W, c));
        if (rank != NONE) {
            consider(&b, place_of(stage, RRFP_CLASS_W, c, rank), RRFP_W, c,
                     item_of(stage, RRFP_CLASS_W, c, rank));
        }
    }
    return b;
}

static void list_f(const rrfp_stage *stage, uint32_t c, best *b)
{
    uint32_t barrier;
    uint32_t rank =
        rrfp_bitset_first(&stage->ready_layout, rrfp_stage_ready_set(stage, RRFP_CLASS_F, c));
    if (rank == NONE || !admit_f(stage, c, &barrier)) {
        return;
    }
    uint32_t m = item_of(stage, RRFP_CLASS_F, c, rank);
    if (m > barrier) { /* memory is short: the oldest of this chunk, if any */
        m = rrfp_bitset_first(&stage->ready_layout, rrfp_stage_ready_f(stage, c));
        if (m > barrier) {
            return;
        }
        rank = rrfp_stage_rank(stage, RRFP_CLASS_F, c, m);
    }
    consider(b, place_of(stage, RRFP_CLASS_F, c, rank), RRFP_F, c, m);
}

static void list_b(const rrfp_stage *stage, uint32_t c, admission admitted, const best *w, best *b)
{
    const uint64_t *set = rrfp_stage_ready_set(stage, RRFP_CLASS_B, c);
    uint32_t rank = rrfp_bitset_first(&stage->ready_layout, set);
    if (rank == NONE) {
        return;
    }
    uint32_t m = item_of(stage, RRFP_CLASS_B, c, rank);
    uint32_t place = place_of(stage, RRFP_CLASS_B, c, rank);
    uint32_t next = stage->next_w[c];
    if (admitted == ADMIT_ALL || (admitted == ADMIT_NEXT_W && m == next)) {
        consider(b, place, backward_kind(stage, c, m), c, m);
        return;
    }
    if (w->found && (!b->found || place < b->place)) { /* makes room: takes the rank of the B */
        *b = *w;
        b->place = place;
        b->makes_room = true;
    }
    if (admitted == ADMIT_NEXT_W && rrfp_stage_state(stage, c, next) == RRFP_STATE_B_READY) {
        rank = rrfp_stage_rank(stage, RRFP_CLASS_B, c, next);
        consider(b, place_of(stage, RRFP_CLASS_B, c, rank), backward_kind(stage, c, next), c, next);
    }
}

static bool choose_by_list(const rrfp_stage *stage, rrfp_choice *choice)
{
    admission admitted = admit_b(stage);
    best w = list_w(stage);
    best b = {.place = NONE};
    for (uint32_t c = 0; c < stage->shape.chunks; c++) {
        list_f(stage, c, &b);
        list_b(stage, c, admitted, &w, &b);
    }
    if (w.found && (!b.found || w.place < b.place)) {
        b = w;
    }
    choice->task = b.task;
    choice->out_of_hint = b.makes_room || (b.place != NONE && b.place != stage->head->cursor);
    return b.found;
}

/* --- committed order: a window of places -------------------------------------------------- */

/* What the budgets are asked for while the order is followed from here on. */
typedef struct replay {
    uint64_t used[RRFP_LEDGER_COUNT];
    uint64_t peak[RRFP_LEDGER_COUNT];
    uint32_t pending;
    uint32_t pending_peak;
} replay;

static void replay_step(const rrfp_stage *stage, replay *r, rrfp_task entry)
{
    uint32_t c = entry.chunk;
    bool owed = entry.kind == RRFP_BW && rrfp_stage_entry_started(stage, entry);
    if (entry.kind == RRFP_B && ++r->pending > r->pending_peak) {
        r->pending_peak = r->pending;
    }
    if (entry.kind == RRFP_W || owed) {
        r->pending--;
    }
    for (uint32_t i = 0; i < RRFP_LEDGER_COUNT; i++) {
        const rrfp_ledger *ledger = &stage->ledger[i];
        switch (owed ? RRFP_W : entry.kind) {
        case RRFP_F:
            r->used[i] += ledger->start[c];
            break;
        case RRFP_B:
            r->used[i] -= ledger->start[c] - ledger->keep[c];
            break;
        case RRFP_W:
            r->used[i] -= ledger->keep[c];
            break;
        default:
            r->used[i] -= ledger->start[c];
            break;
        }
        if (r->used[i] > r->peak[i]) {
            r->peak[i] = r->used[i];
        }
    }
}

/*
 * `kind` done now, ahead of the entries replayed so far, adds what it takes to
 * each of them and changes nothing behind its own place: the peaks decide.
 */
static bool replay_safe(const rrfp_stage *stage, const replay *r, rrfp_kind kind, uint32_t chunk)
{
    if (RRFP_MUTANT_IS(RRFP_MUTANT_SAFETY_SKIPPED)) {
        return true;
    }
    if (stage->forward_only) { /* holds nothing once it has run */
        return true;
    }
    if (kind == RRFP_B) {
        return r->pending_peak < stage->pending_limit;
    }
    for (uint32_t i = 0; kind == RRFP_F && i < RRFP_LEDGER_COUNT; i++) {
        const rrfp_ledger *ledger = &stage->ledger[i];
        if (ledger->limited && r->peak[i] + ledger->start[chunk] > ledger->capacity) {
            return false;
        }
    }
    return true;
}

/* How a place of the order would run now; false if it is not ready. */
static bool entry_ready(const rrfp_stage *stage, rrfp_task entry, rrfp_task *task)
{
    uint8_t state = rrfp_stage_state(stage, entry.chunk, entry.microbatch);
    *task = entry;
    switch (entry.kind) {
    case RRFP_F:
        return state == RRFP_STATE_F_READY;
    case RRFP_B:
        return state == RRFP_STATE_B_READY;
    case RRFP_W:
        return state == RRFP_STATE_W_READY;
    default:
        if (state == RRFP_STATE_B_READY) {
            task->kind = (uint8_t)backward_kind(stage, entry.chunk, entry.microbatch);
            return true;
        }
        task->kind = RRFP_W;
        return state == RRFP_STATE_W_READY;
    }
}

static bool ranks_before(rrfp_task a, rrfp_task b)
{
    if (a.chunk != b.chunk) {
        return a.kind == RRFP_F ? a.chunk < b.chunk : a.chunk > b.chunk;
    }
    return a.microbatch < b.microbatch;
}

/* *unsafe: a ready task of the window was refused for the budgets. */
static bool choose_in_window(const rrfp_stage *stage, rrfp_choice *choice, bool *unsafe)
{
    const rrfp_stage_head *head = stage->head;
    replay r = {.used = {head->used[0], head->used[1]},
                .peak = {head->used[0], head->used[1]},
                .pending = head->pending_w,
                .pending_peak = head->pending_w};
    uint32_t first = rrfp_bitset_first(&stage->order_layout, stage->unstarted);
    rrfp_task found[RRFP_CLASS_COUNT];
    bool has[RRFP_CLASS_COUNT] = {false};
    uint32_t places[RRFP_CLASS_COUNT] = {0};
    uint32_t place = first;
    *unsafe = false;
    for (uint32_t i = 0; place != NONE && i <= stage->distance; i++) {
        rrfp_task entry = stage->order[place];
        rrfp_task task;
        if (entry_ready(stage, entry, &task)) {
            uint32_t class = rrfp_stage_class(task.kind);
            if (!replay_safe(stage, &r, (rrfp_kind)task.kind, task.chunk)) {
                *unsafe = true;
            } else if (!has[class] ||
                       (stage->rule != RRFP_RULE_LIST && ranks_before(task, found[class]))) {
                found[class] = task;
                has[class] = true;
                places[class] = place;
                if (stage->rule == RRFP_RULE_LIST) {
                    break;
                }
            }
        }
        replay_step(stage, &r, entry);
        place = rrfp_bitset_next(&stage->order_layout, stage->unstarted, place);
    }
    uint32_t ranked[RRFP_CLASS_COUNT] = {RRFP_CLASS_B, RRFP_CLASS_F, RRFP_CLASS_W};
    if (forward_first(stage)) {
        ranked[0] = RRFP_CLASS_F;
        ranked[1] = RRFP_CLASS_B;
    }
    for (uint32_t i = 0; i < RRFP_CLASS_COUNT; i++) {
        uint32_t class = ranked[i];
        if (has[class]) {
            choice->task = found[class];
            choice->out_of_hint = places[class] != first;
            choice->gap = class == RRFP_CLASS_W;
            return true;
        }
    }
    return false;
}

/* ------------------------------------------------------------------------------------------ */

bool rrfp_arbiter_choose(const rrfp_stage *stage, rrfp_choice *choice)
{
    bool unsafe;
    *choice = (rrfp_choice){.gap = false};
    switch (stage->ranking) {
    case RRFP_RANKING_RULE:
        return choose_by_rule(stage, choice);
    case RRFP_RANKING_LIST:
        return choose_by_list(stage, choice);
    case RRFP_RANKING_WINDOW:
        break;
    }
    return choose_in_window(stage, choice, &unsafe);
}

const char *rrfp_arbiter_fault(const rrfp_stage *stage, rrfp_task task)
{
    uint8_t state = rrfp_stage_state(stage, task.chunk, task.microbatch);
    switch (task.kind) {
    case RRFP_F:
        if (state != RRFP_STATE_F_READY) {
            return "its activation is not here, or it has started";
        }
        for (uint32_t i = 0; i < RRFP_LEDGER_COUNT; i++) {
            const rrfp_ledger *ledger = &stage->ledger[i];
            if (ledger->limited && ledger->capacity - *ledger->used < ledger->start[task.chunk]) {
                return "the in-flight budget is full";
            }
        }
        return NULL;
    case RRFP_W:
        return state == RRFP_STATE_W_READY ? NULL : "its turn has not come, or it has started";
    default:
        if (state != RRFP_STATE_B_READY) {
            return "its gradient is not here, or it has started";
        }
        if (backward_kind(stage, task.chunk, task.microbatch) != task.kind) {
            return "its weight gradient is in turn on one rank and not on another";
        }
        return task.kind == RRFP_B && stage->head->pending_w >= stage->pending_limit
                   ? "the pending-W budget is full"
                   : NULL;
    }
}

/* Does some ready F or B not fit the budgets by itself?  *any: is anything ready? */
static bool ready_but_full(const rrfp_stage *stage, bool *any)
{
    bool full = false;
    *any = false;
    for (uint32_t c = 0; c < stage->shape.chunks; c++) {
        bool ready[RRFP_CLASS_COUNT];
        for (uint32_t class = 0; class < RRFP_CLASS_COUNT; class ++) {
            ready[class] = rrfp_bitset_first(&stage->ready_layout,
                                             rrfp_stage_ready_set(stage, class, c)) != NONE;
            *any = *any || ready[class];
        }
        for (uint32_t i = 0; ready[RRFP_CLASS_F] && i < RRFP_LEDGER_COUNT; i++) {
            const rrfp_ledger *ledger = &stage->ledger[i];
            full = full || (ledger->limited && ledger->capacity - *ledger->used < ledger->start[c]);
        }
        bool fuses = !stage->split && stage->next_w[c] < stage->shape.microbatches &&
                     rrfp_stage_state(stage, c, stage->next_w[c]) == RRFP_STATE_B_READY;
        full = full ||
               (ready[RRFP_CLASS_B] && !fuses && stage->head->pending_w >= stage->pending_limit);
    }
    return full;
}

rrfp_idle_reason rrfp_arbiter_idle_reason(const rrfp_stage *stage)
{
    const rrfp_stage_head *head = stage->head;
    bool any;
    bool unsafe = false;
    if (head->tasks_left == 0) {
        return RRFP_IDLE_DRAIN;
    }
    if (stage->ranking == RRFP_RANKING_WINDOW) {
        rrfp_choice choice;
        choose_in_window(stage, &choice, &unsafe);
    }
    if (ready_but_full(stage, &any) || unsafe) {
        return RRFP_IDLE_BUDGET;
    }
    if (any) { /* a rule or a list passes a ready task over for the budgets alone */
        return stage->ranking == RRFP_RANKING_WINDOW ? RRFP_IDLE_ORDER : RRFP_IDLE_BUDGET;
    }
    return head->forwards_left > 0 ? RRFP_IDLE_INPUT_F : RRFP_IDLE_INPUT_B;
}
