/* stage.c - the stage machine: creation, events in, actions out, snapshots. */
#include <stdlib.h>
#include <string.h>

#include "core/mutant.h"
#include "core/stage_internal.h"

const char *rrfp_idle_reason_name(rrfp_idle_reason reason)
{
    switch (reason) {
    case RRFP_IDLE_NONE:
        return "none";
    case RRFP_IDLE_BUDGET:
        return "budget";
    case RRFP_IDLE_ORDER:
        return "order";
    case RRFP_IDLE_INPUT_F:
        return "input-f";
    case RRFP_IDLE_INPUT_B:
        return "input-b";
    case RRFP_IDLE_DRAIN:
        return "drain";
    case RRFP_IDLE_REASON_COUNT:
        break;
    }
    return "?";
}

/* --- creation ----------------------------------------------------------------------------- */

static rrfp_status check_config(const rrfp_stage_config *config, rrfp_error *error)
{
    if (config->struct_size != sizeof *config) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage configuration has struct_size %zu, this library expects %zu",
                              config->struct_size, sizeof *config);
    }
    rrfp_status status = rrfp_shape_check(&config->shape, error);
    if (status != RRFP_OK) {
        return status;
    }
    if (config->stage >= config->shape.stages) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "stage is %u; there are %u stages",
                              config->stage, config->shape.stages);
    }
    if ((unsigned)config->rule > RRFP_RULE_F_PRIO) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "stage %u: unknown rule %d", config->stage,
                              (int)config->rule);
    }
    if ((unsigned)config->accumulate > RRFP_ACCUMULATE_ARRIVAL) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage %u: accumulate is %d; it must be ordered (0) or arrival (1)",
                              config->stage, (int)config->accumulate);
    }
    if (config->rule == RRFP_RULE_BFW && !config->split_backward && !config->forward_only) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage %u: rule bfw needs split_backward; use bf for a fused backward",
                              config->stage);
    }
    if (config->budget.max_inflight < 1) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage %u: max_inflight is 0; it must be at least 1", config->stage);
    }
    return RRFP_OK;
}

/* The budgets: what each chunk takes and what is there. */
static rrfp_status set_ledgers(rrfp_stage *stage, const rrfp_stage_config *config,
                               rrfp_error *error)
{
    rrfp_ledger *slots = &stage->ledger[RRFP_LEDGER_SLOTS];
    rrfp_ledger *bytes = &stage->ledger[RRFP_LEDGER_BYTES];
    uint64_t V = stage->shape.chunks;
    uint64_t M = stage->shape.microbatches;
    uint64_t most = UINT64_MAX / 2 / M; /* of one microbatch: all together stay countable */
    uint64_t slots_needed = 0;
    uint64_t bytes_needed = 0;
    for (uint32_t c = stage->shape.chunks; c-- > 0;) {
        uint64_t activation = config->activation_bytes != NULL ? config->activation_bytes[c] : 0;
        uint64_t retained = config->retained_bytes != NULL ? config->retained_bytes[c] : 0;
        if (activation > most || retained > most - activation ||
            activation + retained > most - bytes_needed) {
            return rrfp_error_set(error, RRFP_ERR_INVALID,
                                  "stage %u: activation_bytes %llu and retained_bytes %llu of chunk "
                                  "%u are too large to count for %u microbatches",
                                  stage->stage, (unsigned long long)activation,
                                  (unsigned long long)retained, c, stage->shape.microbatches);
        }
        slots->start[c] = 1;
        slots->need[c] = ++slots_needed;
        bytes->start[c] = activation + retained;
        bytes->keep[c] = retained;
        bytes_needed += activation + retained;
        bytes->need[c] = bytes_needed;
    }
    slots->limited = config->budget.max_inflight < M;
    slots->capacity = config->budget.max_inflight * V;
    bytes->capacity = config->budget.max_inflight_bytes;
    bytes->limited = bytes->capacity != 0 && bytes->capacity < bytes_needed * M;
    if (config->budget.max_inflight_bytes != 0 && bytes->capacity < bytes_needed) {
        return rrfp_error_set(error, RRFP_ERR_INFEASIBLE,
                              "stage %u: max_inflight_bytes %llu is less than one microbatch takes; "
                              "it must be at least %llu",
                              stage->stage, (unsigned long long)bytes->capacity,
                              (unsigned long long)bytes_needed);
    }
    return RRFP_OK;
}

/* Next `bytes` of the block, aligned for uint64_t; the total in *at. */
static size_t carve(size_t *at, size_t bytes)
{
    size_t offset = *at;
    *at += (bytes + 7) / 8 * 8;
    return offset;
}

static rrfp_status lay_out(rrfp_stage *stage, rrfp_error *error)
{
    size_t V = stage->shape.chunks;
    size_t M = stage->shape.microbatches;
    size_t at = 0;
    bool list = stage->ranking == RRFP_RANKING_LIST;
    stage->ready_layout = rrfp_bitset_layout_make(stage->shape.microbatches);
    stage->order_layout = rrfp_bitset_layout_make(
        stage->ranking == RRFP_RANKING_WINDOW ? stage->order_count : 1);
    size_t set = stage->ready_layout.words * sizeof(uint64_t);
    size_t head = carve(&at, sizeof(rrfp_stage_head));
    size_t next_f = carve(&at, V * sizeof(uint32_t));
    size_t next_b = carve(&at, V * sizeof(uint32_t));
    size_t next_w = carve(&at, V * sizeof(uint32_t));
    size_t ready = carve(&at, RRFP_CLASS_COUNT * V * set);
    size_t ready_f = list ? carve(&at, V * set) : ready;
    size_t unstarted = carve(&at, stage->order_layout.words * sizeof(uint64_t));
    size_t trees[RRFP_LEDGER_COUNT] = {0};
    for (size_t i = 0; i < RRFP_LEDGER_COUNT; i++) {
        trees[i] = stage->ledger[i].limited ? carve(&at, M * sizeof(uint64_t)) : 0;
    }
    size_t state = carve(&at, V * M);
    stage->block = calloc(1, at);
    if (stage->block == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "stage %u: no memory for %zu bytes of state",
                              stage->stage, at);
    }
    stage->block_bytes = at;
    stage->head = (rrfp_stage_head *)(void *)(stage->block + head);
    stage->next_f = (uint32_t *)(void *)(stage->block + next_f);
    stage->next_b = (uint32_t *)(void *)(stage->block + next_b);
    stage->next_w = (uint32_t *)(void *)(stage->block + next_w);
    stage->ready = (uint64_t *)(void *)(stage->block + ready);
    stage->ready_f = (uint64_t *)(void *)(stage->block + ready_f);
    stage->unstarted = (uint64_t *)(void *)(stage->block + unstarted);
    stage->state = stage->block + state;
    for (size_t i = 0; i < RRFP_LEDGER_COUNT; i++) {
        stage->ledger[i].used = &stage->head->used[i];
        if (stage->ledger[i].limited) {
            stage->ledger[i].tree = (uint64_t *)(void *)(stage->block + trees[i]);
        }
    }
    return RRFP_OK;
}

rrfp_status rrfp_stage_create(const rrfp_stage_config *config, rrfp_stage **stage_out,
                              rrfp_error *error)
{
    rrfp_status status = check_config(config, error);
    if (status != RRFP_OK) {
        return status;
    }
    rrfp_stage *stage = calloc(1, sizeof *stage);
    if (stage == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "stage %u: no memory", config->stage);
    }
    stage->shape = config->shape;
    stage->stage = config->stage;
    stage->rule = config->rule;
    stage->split = config->split_backward;
    stage->forward_only = config->forward_only;
    stage->ordered = config->accumulate == RRFP_ACCUMULATE_ORDERED;
    stage->distance = config->hint_distance;
    stage->pending_limit =
        config->budget.max_pending_w == 0 ? UINT32_MAX : config->budget.max_pending_w;
    if (config->hint_distance != RRFP_DISTANCE_UNBOUNDED) {
        stage->ranking = RRFP_RANKING_WINDOW;
    } else if (config->rule == RRFP_RULE_LIST) {
        stage->ranking = RRFP_RANKING_LIST;
    } else {
        stage->ranking = RRFP_RANKING_RULE;
    }
    for (uint32_t c = 0; c < stage->shape.chunks; c++) {
        stage->global_chunk[c] = rrfp_shape_global_chunk(&stage->shape, stage->stage, c);
    }
    status = set_ledgers(stage, config, error);
    if (status == RRFP_OK && stage->ranking != RRFP_RANKING_RULE) {
        status = rrfp_stage_order_build(stage, config, error);
    }
    if (status == RRFP_OK) {
        status = lay_out(stage, error);
    }
    if (status != RRFP_OK) {
        rrfp_stage_destroy(stage);
        return status;
    }
    *stage_out = stage;
    return RRFP_OK;
}

void rrfp_stage_destroy(rrfp_stage *stage)
{
    if (stage == NULL) {
        return;
    }
    free(stage->order);
    free(stage->rank_of_item);
    free(stage->item_of_rank);
    free(stage->place_of_rank);
    free(stage->place);
    free(stage->block);
    free(stage);
}

/* --- state changes ------------------------------------------------------------------------ */

/* Actions being written. */
typedef struct output {
    rrfp_action *actions;
    size_t count;
} output;

static rrfp_action *put(output *out, rrfp_action_kind kind, rrfp_kind task_kind, uint32_t chunk,
                        uint32_t microbatch)
{
    rrfp_action *action = &out->actions[out->count++];
    *action = (rrfp_action){.kind = kind,
                            .task = {.kind = (uint8_t)task_kind,
                                     .chunk = (uint16_t)chunk,
                                     .microbatch = microbatch}};
    return action;
}

static void release(output *out, rrfp_buffer buffer, rrfp_kind kind, uint32_t chunk,
                    uint32_t microbatch)
{
    put(out, RRFP_ACTION_RELEASE, kind, chunk, microbatch)->buffer = buffer;
}

static void set_state(rrfp_stage *stage, uint32_t chunk, uint32_t microbatch, uint8_t state)
{
    uint8_t *byte = &stage->state[rrfp_stage_item(stage, chunk, microbatch)];
    *byte = (uint8_t)((*byte & ~RRFP_STATE_MASK) | state);
}

static void make_ready(rrfp_stage *stage, uint32_t class, uint32_t chunk, uint32_t microbatch)
{
    static const uint8_t states[] = {RRFP_STATE_F_READY, RRFP_STATE_B_READY, RRFP_STATE_W_READY};
    set_state(stage, chunk, microbatch, states[class]);
    rrfp_bitset_add(&stage->ready_layout, rrfp_stage_ready_set(stage, class, chunk),
                    rrfp_stage_rank(stage, class, chunk, microbatch));
    if (class == RRFP_CLASS_F && stage->rank_of_item != NULL) {
        rrfp_bitset_add(&stage->ready_layout, rrfp_stage_ready_f(stage, chunk), microbatch);
    }
}

static void unmake_ready(rrfp_stage *stage, uint32_t class, uint32_t chunk, uint32_t microbatch)
{
    rrfp_bitset_remove(&stage->ready_layout, rrfp_stage_ready_set(stage, class, chunk),
                       rrfp_stage_rank(stage, class, chunk, microbatch));
    if (class == RRFP_CLASS_F && stage->rank_of_item != NULL) {
        rrfp_bitset_remove(&stage->ready_layout, rrfp_stage_ready_f(stage, chunk), microbatch);
    }
}

static void advance(rrfp_stage *stage, uint32_t *next, uint32_t chunk, uint8_t reached)
{
    while (next[chunk] < stage->shape.microbatches &&
           rrfp_stage_state(stage, chunk, next[chunk]) >= reached) {
        next[chunk]++;
    }
}

static void leave_order(rrfp_stage *stage, uint32_t class, uint32_t chunk, uint32_t microbatch,
                        rrfp_kind kind)
{
    if (stage->ranking == RRFP_RANKING_WINDOW) {
        uint32_t place = stage->place[rrfp_stage_class_base(stage, class, chunk) + microbatch];
        if (stage->order[place].kind == RRFP_BW && kind == RRFP_B) {
            return; /* stays for its owed W */
        }
        rrfp_bitset_remove(&stage->order_layout, stage->unstarted, place);
    }
    rrfp_stage_head *head = stage->head;
    while (stage->ranking == RRFP_RANKING_LIST && head->cursor < stage->order_count &&
           rrfp_stage_entry_started(stage, stage->order[head->cursor])) {
        head->cursor++;
    }
}

static void note_peaks(rrfp_stage *stage)
{
    rrfp_stage_counters *c = &stage->counters;
    c->inflight = (uint32_t)stage->head->used[RRFP_LEDGER_SLOTS];
    c->live_bytes = stage->head->used[RRFP_LEDGER_BYTES];
    c->pending_w = stage->head->pending_w;
    if (c->inflight > c->peak_inflight) {
        c->peak_inflight = c->inflight;
    }
    if (c->live_bytes > c->peak_live_bytes) {
        c->peak_live_bytes = c->live_bytes;
    }
    if (c->pending_w > c->peak_pending_w) {
        c->peak_pending_w = c->pending_w;
    }
}

static void start(rrfp_stage *stage, const rrfp_choice *choice, output *out)
{
    rrfp_stage_head *head = stage->head;
    rrfp_task task = choice->task;
    uint32_t c = task.chunk;
    uint32_t m = task.microbatch;
    uint32_t class = RRFP_CLASS_B;
    switch (task.kind) {
    case RRFP_F:
        class = RRFP_CLASS_F;
        set_state(stage, c, m, RRFP_STATE_F_RUNS);
        for (uint32_t i = 0; i < RRFP_LEDGER_COUNT; i++) {
            rrfp_ledger_take(&stage->ledger[i], stage->shape.microbatches, c, m);
        }
        advance(stage, stage->next_f, c, RRFP_STATE_F_RUNS);
        head->forward_next = 0;
        break;
    case RRFP_W:
        class = RRFP_CLASS_W;
        set_state(stage, c, m, RRFP_STATE_W_RUNS);
        if (choice->gap) {
            head->forward_next = stage->rule == RRFP_RULE_FB;
        }
        break;
    default:
        set_state(stage, c, m, RRFP_STATE_B_RUNS);
        head->pending_w += task.kind == RRFP_B;
        advance(stage, stage->next_b, c, RRFP_STATE_B_RUNS);
        head->forward_next = 1;
        break;
    }
    unmake_ready(stage, class, c, m);
    leave_order(stage, class, c, m, (rrfp_kind)task.kind);
    head->running = 1;
    head->kind = task.kind;
    head->chunk = task.chunk;
    head->microbatch = m;
    stage->counters.dispatches++;
    stage->counters.out_of_hint += choice->out_of_hint;
    put(out, RRFP_ACTION_START, (rrfp_kind)task.kind, c, m)->out_of_hint = choice->out_of_hint;
}

/* The stage is free, or all is done: say what happens next. */
static void decide(rrfp_stage *stage, output *out)
{
    rrfp_stage_head *head = stage->head;
    rrfp_choice choice;
    if (!head->running) {
        if (rrfp_arbiter_choose(stage, &choice)) {
            start(stage, &choice, out);
        } else if (head->tasks_left == 0 && head->sends_left == 0) {
            put(out, RRFP_ACTION_STEP_DONE, RRFP_F, 0, 0);
        } else {
            put(out, RRFP_ACTION_IDLE, RRFP_F, 0, 0)->reason = rrfp_arbiter_idle_reason(stage);
        }
    }
    note_peaks(stage);
}

size_t rrfp_stage_begin_step(rrfp_stage *stage, rrfp_action *actions)
{
    output out = {.actions = actions};
    rrfp_stage_head *head = stage->head;
    uint32_t M = stage->shape.microbatches;
    memset(stage->block, 0, stage->block_bytes);
    memset(&stage->counters, 0, sizeof stage->counters);
    head->begun = 1;
    head->tasks_left = stage->shape.chunks * M;
    head->forwards_left = head->tasks_left;
    head->forward_next = stage->rule == RRFP_RULE_FB;
    if (stage->ranking == RRFP_RANKING_WINDOW) {
        for (uint32_t i = 0; i < stage->order_count; i++) {
            rrfp_bitset_add(&stage->order_layout, stage->unstarted, i);
        }
    }
    if (stage->global_chunk[0] == 0) { /* its inputs are data, always here */
        for (uint32_t m = 0; m < M; m++) {
            make_ready(stage, RRFP_CLASS_F, 0, m);
        }
    }
    decide(stage, &out);
    return out.count;
}

/* --- events ------------------------------------------------------------------------------- */

/* Does the input of this kind of `chunk` come from the same stage? */
static bool is_local(const rrfp_stage *stage, rrfp_kind kind, uint32_t chunk)
{
    uint32_t V = stage->shape.chunks;
    return kind == RRFP_F
               ? chunk > 0 && stage->global_chunk[chunk - 1] + 1 == stage->global_chunk[chunk]
               : chunk + 1 < V && stage->global_chunk[chunk] + 1 == stage->global_chunk[chunk + 1];
}

static bool is_last_chunk(const rrfp_stage *stage, uint32_t chunk)
{
    return stage->global_chunk[chunk] + 1 == stage->shape.stages * stage->shape.chunks;
}

/* The output of F or B goes to the neighbour, if there is one. */
static void pass_on(rrfp_stage *stage, rrfp_kind kind, uint32_t c, uint32_t m, output *out)
{
    uint32_t global = stage->global_chunk[c];
    bool forward = kind == RRFP_F;
    if (forward ? is_last_chunk(stage, c) : global == 0) {
        return;
    }
    uint32_t peer_stage;
    uint32_t peer_chunk;
    rrfp_shape_owner(&stage->shape, forward ? global + 1 : global - 1, &peer_stage, &peer_chunk);
    bool local = peer_stage == stage->stage;
    rrfp_action *action =
        put(out, local ? RRFP_ACTION_DELIVER : RRFP_ACTION_SEND, kind, c, m);
    action->peer_stage = peer_stage;
    action->peer_chunk = peer_chunk;
    if (local) {
        make_ready(stage, forward ? RRFP_CLASS_F : RRFP_CLASS_B, peer_chunk, m);
    } else {
        stage->state[rrfp_stage_item(stage, c, m)] |=
            forward ? RRFP_STATE_F_SENDS : RRFP_STATE_B_SENDS;
        stage->head->sends_left++;
    }
}

static void give_back(rrfp_stage *stage, uint32_t c, uint32_t m, bool kept, bool all)
{
    for (uint32_t i = 0; i < RRFP_LEDGER_COUNT; i++) {
        rrfp_ledger *ledger = &stage->ledger[i];
        uint64_t holds = kept ? ledger->keep[c] : ledger->start[c];
        uint64_t rest = all ? 0 : ledger->keep[c];
        rrfp_ledger_give(ledger, stage->shape.microbatches, m, holds - rest);
    }
}

/* The W of (c,m) is done: whose turn is next? */
static void end_w(rrfp_stage *stage, uint32_t c, uint32_t m, output *out)
{
    set_state(stage, c, m, RRFP_STATE_DONE);
    stage->head->tasks_left--;
    advance(stage, stage->next_w, c, RRFP_STATE_DONE);
    uint32_t next = stage->next_w[c];
    if (stage->ordered && next < stage->shape.microbatches &&
        rrfp_stage_state(stage, c, next) == RRFP_STATE_W_WAITS) {
        make_ready(stage, RRFP_CLASS_W, c, next);
    }
    release(out, RRFP_BUFFER_RETAINED, RRFP_F, c, m);
}

static void end_f(rrfp_stage *stage, uint32_t c, uint32_t m, output *out)
{
    stage->head->forwards_left--;
    if (is_local(stage, RRFP_F, c)) {
        release(out, RRFP_BUFFER_OUTPUT, RRFP_F, c - 1, m);
    }
    if (stage->forward_only) {
        give_back(stage, c, m, false, true);
        release(out, RRFP_BUFFER_ACTIVATION, RRFP_F, c, m);
        release(out, RRFP_BUFFER_RETAINED, RRFP_F, c, m);
        set_state(stage, c, m, RRFP_STATE_DONE);
        stage->head->tasks_left--;
    } else if (is_last_chunk(stage, c)) {
        make_ready(stage, RRFP_CLASS_B, c, m);
    } else {
        set_state(stage, c, m, RRFP_STATE_B_WAITS);
    }
    pass_on(stage, RRFP_F, c, m, out);
}

static void end_b(rrfp_stage *stage, uint32_t c, uint32_t m, bool fused, output *out)
{
    give_back(stage, c, m, false, fused);
    if (is_local(stage, RRFP_B, c)) {
        release(out, RRFP_BUFFER_OUTPUT, RRFP_B, c + 1, m);
    }
    release(out, RRFP_BUFFER_ACTIVATION, RRFP_F, c, m);
    if (fused) {
        end_w(stage, c, m, out);
    } else if (!stage->ordered || stage->next_w[c] == m || RRFP_MUTANT_IS(RRFP_MUTANT_W_FIFO)) {
        make_ready(stage, RRFP_CLASS_W, c, m);
    } else {
        set_state(stage, c, m, RRFP_STATE_W_WAITS);
    }
    pass_on(stage, RRFP_B, c, m, out);
}

static void finish(rrfp_stage *stage, output *out)
{
    rrfp_stage_head *head = stage->head;
    uint32_t c = head->chunk;
    uint32_t m = head->microbatch;
    rrfp_kind kind = (rrfp_kind)head->kind;
    head->running = 0;
    head->kind = 0;
    head->chunk = 0;
    head->microbatch = 0;
    switch (kind) {
    case RRFP_F:
        end_f(stage, c, m, out);
        break;
    case RRFP_W:
        head->pending_w--;
        give_back(stage, c, m, true, true);
        end_w(stage, c, m, out);
        break;
    default:
        end_b(stage, c, m, kind == RRFP_BW, out);
        break;
    }
}

static rrfp_status refuse(const rrfp_stage *stage, rrfp_task task, const char *event,
                          const char *why, rrfp_error *error)
{
    return rrfp_error_set(error, RRFP_ERR_INVALID,
                          "stage %u: %s of %s of chunk %u, microbatch %u: %s", stage->stage, event,
                          rrfp_kind_name((rrfp_kind)task.kind), task.chunk, task.microbatch, why);
}

/* NULL if the input may come now, else why not. */
static const char *input_fault(const rrfp_stage *stage, rrfp_task task)
{
    uint32_t c = task.chunk;
    uint32_t m = task.microbatch;
    uint8_t state = rrfp_stage_state(stage, c, m);
    if (task.kind == RRFP_F) {
        if (stage->global_chunk[c] == 0) {
            return "the first chunk takes no activation";
        }
        if (is_local(stage, RRFP_F, c)) {
            return "this activation is made on the stage itself";
        }
        if (state != RRFP_STATE_F_WAITS) {
            return "the activation came before";
        }
        if (c > 0 && rrfp_stage_state(stage, c - 1, m) < RRFP_STATE_B_WAITS) {
            return "F of the chunk before it has not ended here";
        }
        return NULL;
    }
    if (task.kind != RRFP_B) {
        return "only F and B take inputs";
    }
    if (stage->forward_only) {
        return "there is no backward in a forward-only step";
    }
    if (is_last_chunk(stage, c)) {
        return "the last chunk takes no gradient";
    }
    if (is_local(stage, RRFP_B, c)) {
        return "this gradient is made on the stage itself";
    }
    if (state > RRFP_STATE_B_WAITS) {
        return "the gradient came before";
    }
    if (state < RRFP_STATE_B_WAITS) {
        return "its F has not ended";
    }
    if (c + 1 < stage->shape.chunks && rrfp_stage_state(stage, c + 1, m) < RRFP_STATE_W_WAITS) {
        return "B of the chunk after it has not ended here";
    }
    return NULL;
}

static rrfp_status handle_input(rrfp_stage *stage, rrfp_task task, rrfp_error *error)
{
    if (RRFP_MUTANT_IS(RRFP_MUTANT_INPUT_FIFO)) {
        for (uint32_t m = 0; m < task.microbatch; m++) {
            rrfp_task older = {.kind = task.kind, .chunk = task.chunk, .microbatch = m};
            if (input_fault(stage, older) == NULL) {
                task = older;
            }
        }
    }
    const char *fault = input_fault(stage, task);
    if (fault != NULL) {
        return refuse(stage, task, "input", fault, error);
    }
    make_ready(stage, task.kind == RRFP_F ? RRFP_CLASS_F : RRFP_CLASS_B, task.chunk,
               task.microbatch);
    return RRFP_OK;
}

static rrfp_status handle_finished(rrfp_stage *stage, rrfp_task task, output *out,
                                   rrfp_error *error)
{
    const rrfp_stage_head *head = stage->head;
    if (!head->running || head->kind != task.kind || head->chunk != task.chunk ||
        head->microbatch != task.microbatch) {
        return refuse(stage, task, "end", "this task is not running", error);
    }
    finish(stage, out);
    return RRFP_OK;
}

static rrfp_status handle_sent(rrfp_stage *stage, rrfp_task task, output *out, rrfp_error *error)
{
    uint8_t *state = &stage->state[rrfp_stage_item(stage, task.chunk, task.microbatch)];
    uint8_t bit = task.kind == RRFP_F   ? RRFP_STATE_F_SENDS
                  : task.kind == RRFP_B ? RRFP_STATE_B_SENDS
                                        : 0;
    if (!(*state & bit)) {
        return refuse(stage, task, "end of send", "its output is not being sent", error);
    }
    *state = (uint8_t)(*state & ~bit);
    stage->head->sends_left--;
    release(out, RRFP_BUFFER_OUTPUT, (rrfp_kind)task.kind, task.chunk, task.microbatch);
    return RRFP_OK;
}

rrfp_status rrfp_stage_handle(rrfp_stage *stage, const rrfp_event *event, rrfp_action *actions,
                              size_t *count, rrfp_error *error)
{
    output out = {.actions = actions};
    rrfp_task task = event->task;
    rrfp_status status;
    if (!stage->head->begun) {
        return refuse(stage, task, "event", "no step has begun", error);
    }
    if (task.kind > RRFP_BW || task.chunk >= stage->shape.chunks ||
        task.microbatch >= stage->shape.microbatches) {
        return refuse(stage, task, "event", "there is no such task", error);
    }
    switch (event->kind) {
    case RRFP_EVENT_INPUT:
        status = handle_input(stage, task, error);
        break;
    case RRFP_EVENT_TASK_FINISHED:
        status = handle_finished(stage, task, &out, error);
        break;
    case RRFP_EVENT_SEND_COMPLETED:
        status = handle_sent(stage, task, &out, error);
        break;
    default:
        status = refuse(stage, task, "event", "there is no such event", error);
        break;
    }
    if (status == RRFP_OK) {
        decide(stage, &out);
        *count = out.count;
    }
    return status;
}

/* --- looking in --------------------------------------------------------------------------- */

const rrfp_stage_counters *rrfp_stage_get_counters(const rrfp_stage *stage)
{
    return &stage->counters;
}

bool rrfp_stage_is_ready(const rrfp_stage *stage, rrfp_task task)
{
    if (task.chunk >= stage->shape.chunks || task.microbatch >= stage->shape.microbatches) {
        return false;
    }
    uint8_t state = rrfp_stage_state(stage, task.chunk, task.microbatch);
    switch (task.kind) {
    case RRFP_F:
        return state == RRFP_STATE_F_READY;
    case RRFP_B:
        return stage->split && state == RRFP_STATE_B_READY;
    case RRFP_BW:
        return !stage->split && state == RRFP_STATE_B_READY;
    case RRFP_W:
        return state == RRFP_STATE_W_READY;
    default:
        return false;
    }
}

size_t rrfp_stage_snapshot_bytes(const rrfp_stage *stage)
{
    return stage->block_bytes;
}

void rrfp_stage_snapshot(const rrfp_stage *stage, void *bytes)
{
    memcpy(bytes, stage->block, stage->block_bytes);
}

void rrfp_stage_restore(rrfp_stage *stage, const void *bytes)
{
    memcpy(stage->block, bytes, stage->block_bytes);
    note_peaks(stage);
}
