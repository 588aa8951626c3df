/*
 * stage_events.c - one step of a stage machine: events in, actions out.
 *
 * Each event first changes the state of its task and of those that waited for
 * it, then, if the stage is free, the arbiter is asked what starts.
 */
#include <string.h>

#include "core/mutant.h"
#include "core/stage_internal.h"

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
    *action = (rrfp_action){
        .kind = kind,
        .task = {.kind = (uint8_t)task_kind, .chunk = (uint16_t)chunk, .microbatch = microbatch}};
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
        bool can = rrfp_arbiter_choose(stage, &choice);
        if (can && !stage->follows) {
            start(stage, &choice, out);
        } else if (can) {
            put(out, RRFP_ACTION_IDLE, RRFP_F, 0, 0)->reason = RRFP_IDLE_GROUP;
        } else if (head->tasks_left == 0 && head->sends_left == 0) {
            put(out, RRFP_ACTION_STEP_DONE, RRFP_F, 0, 0);
        } else {
            put(out, RRFP_ACTION_IDLE, RRFP_F, 0, 0)->reason = rrfp_arbiter_idle_reason(stage);
        }
    }
    rrfp_stage_note_peaks(stage);
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

static rrfp_status refuse(const rrfp_stage *stage, rrfp_task task, const char *event,
                          const char *why, rrfp_error *error)
{
    return rrfp_error_set(error, RRFP_ERR_INVALID,
                          "stage %u: %s of %s of chunk %u, microbatch %u: %s", stage->stage, event,
                          rrfp_kind_name((rrfp_kind)task.kind), task.chunk, task.microbatch, why);
}

bool rrfp_stage_propose(const rrfp_stage *stage, rrfp_task *task, bool *out_of_hint)
{
    rrfp_choice choice;
    if (stage->head->running || !stage->head->begun || !rrfp_arbiter_choose(stage, &choice)) {
        return false;
    }
    *task = choice.task;
    *out_of_hint = choice.out_of_hint;
    return true;
}

rrfp_status rrfp_stage_start(rrfp_stage *stage, rrfp_task task, bool out_of_hint,
                             rrfp_action *actions, size_t *count, rrfp_error *error)
{
    output out = {.actions = actions};
    const char *fault = !stage->follows       ? "this machine decides by itself"
                        : !stage->head->begun ? "no step has begun"
                        : stage->head->running ? "another task runs"
                        : task.kind > RRFP_BW || task.chunk >= stage->shape.chunks ||
                                task.microbatch >= stage->shape.microbatches
                            ? "there is no such task"
                            : rrfp_arbiter_fault(stage, task);
    if (fault != NULL) {
        return refuse(stage, task, "start", fault, error);
    }
    /* The phase of the rule must follow from the sequence of tasks alone: ranks that start the
     * same W for different reasons would otherwise disagree for ever after. */
    rrfp_choice choice = {.task = task, .out_of_hint = out_of_hint, .gap = task.kind == RRFP_W};
    start(stage, &choice, &out);
    rrfp_stage_note_peaks(stage);
    *count = out.count;
    return RRFP_OK;
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
    rrfp_action *action = put(out, local ? RRFP_ACTION_DELIVER : RRFP_ACTION_SEND, kind, c, m);
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
