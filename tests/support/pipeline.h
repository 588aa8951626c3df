/*
 * pipeline.h - P stage machines and a referee that believes none of them.
 *
 * The referee keeps its own record of every task, message and buffer (one word
 * a (stage, chunk, microbatch), bits below) and checks each action against it:
 * dependencies, budgets, order of accumulation, reasons of idling, releases.
 * It counts by looking at all tasks, not with the machine's counters.
 */
#ifndef RRFP_TEST_PIPELINE_H
#define RRFP_TEST_PIPELINE_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rrfp/stage.h"

enum { PIPE_MAX_STAGES = 16, PIPE_MAX_CHUNKS = 4 };

enum {
    F_START = 1 << 0,
    F_END = 1 << 1,
    B_START = 1 << 2,
    B_END = 1 << 3,
    W_START = 1 << 4,
    W_END = 1 << 5,
    FUSED = 1 << 6,  /* B and W were one task */
    MSG_F = 1 << 7,  /* the input of F is on its way */
    MSG_B = 1 << 8,  /* the input of B is on its way */
    GOT_F = 1 << 9,  /* the input of F is here */
    GOT_B = 1 << 10, /* the input of B is here */
    OUT_F = 1 << 11, /* the output of F is being sent */
    OUT_B = 1 << 12,
    LOCAL_F = 1 << 13, /* the output of F waits for its reader on the same stage */
    LOCAL_B = 1 << 14,
    FREED_ACTIVATION = 1 << 15,
    FREED_RETAINED = 1 << 16,
    FREED_F = 1 << 17, /* output of F released */
    FREED_B = 1 << 18
};

/* Word of a stage behind its tasks: bit 31 running, bit 30 step done, kind, chunk, microbatch. */
#define STAGE_RUNS (UINT32_C(1) << 31)
#define STAGE_DONE (UINT32_C(1) << 30)

typedef struct pipe_setup {
    rrfp_shape shape;
    rrfp_rule rule;
    bool split;
    bool forward_only;
    rrfp_accumulate accumulate;
    uint32_t distance;
    uint32_t max_inflight;
    uint32_t max_pending_w;
    uint64_t max_bytes; /* 0: unlimited */
    uint64_t activation[PIPE_MAX_CHUNKS];
    uint64_t retained[PIPE_MAX_CHUNKS];
    rrfp_task *orders[PIPE_MAX_STAGES]; /* or NULL */
    size_t order_counts[PIPE_MAX_STAGES];
} pipe_setup;

typedef struct pipeline {
    pipe_setup setup;
    rrfp_stage *machine[PIPE_MAX_STAGES];
    uint32_t *word; /* P*V*M tasks, then P stages */
    uint32_t words;
    char fault[512]; /* what the referee found; empty: nothing */
    unsigned long starts;
} pipeline;

static inline void pipe_fault(pipeline *p, const char *format, ...)
{
    if (p->fault[0] == '\0') {
        va_list args;
        va_start(args, format);
        vsnprintf(p->fault, sizeof p->fault, format, args);
        va_end(args);
    }
}

static inline uint32_t *pipe_cell(const pipeline *p, uint32_t s, uint32_t c, uint32_t m)
{
    return &p->word[(s * p->setup.shape.chunks + c) * p->setup.shape.microbatches + m];
}

static inline uint32_t *pipe_stage_word(const pipeline *p, uint32_t s)
{
    const rrfp_shape *shape = &p->setup.shape;
    return &p->word[shape->stages * shape->chunks * shape->microbatches + s];
}

/* Placement, worked out here once more: piece g of the model. */
static inline uint32_t pipe_global(const pipeline *p, uint32_t s, uint32_t c)
{
    const rrfp_shape *shape = &p->setup.shape;
    return shape->placement == RRFP_PLACEMENT_V && c == 1 ? 2 * shape->stages - 1 - s
                                                          : c * shape->stages + s;
}

static inline void pipe_owner(const pipeline *p, uint32_t g, uint32_t *s, uint32_t *c)
{
    for (*s = 0; *s < p->setup.shape.stages; ++*s) {
        for (*c = 0; *c < p->setup.shape.chunks; ++*c) {
            if (pipe_global(p, *s, *c) == g) {
                return;
            }
        }
    }
    abort();
}

static inline bool pipe_f_input(const pipeline *p, uint32_t s, uint32_t c, uint32_t m)
{
    uint32_t g = pipe_global(p, s, c);
    uint32_t ps;
    uint32_t pc;
    if (g == 0) {
        return true;
    }
    pipe_owner(p, g - 1, &ps, &pc);
    return ps == s ? (*pipe_cell(p, ps, pc, m) & F_END) != 0
                   : (*pipe_cell(p, s, c, m) & GOT_F) != 0;
}

static inline bool pipe_b_input(const pipeline *p, uint32_t s, uint32_t c, uint32_t m)
{
    uint32_t g = pipe_global(p, s, c);
    uint32_t ps;
    uint32_t pc;
    if (!(*pipe_cell(p, s, c, m) & F_END)) {
        return false;
    }
    if (g + 1 == p->setup.shape.stages * p->setup.shape.chunks) {
        return true;
    }
    pipe_owner(p, g + 1, &ps, &pc);
    return ps == s ? (*pipe_cell(p, ps, pc, m) & B_END) != 0
                   : (*pipe_cell(p, s, c, m) & GOT_B) != 0;
}

/* All older microbatches of the chunk have done their W. */
static inline bool pipe_w_turn(const pipeline *p, uint32_t s, uint32_t c, uint32_t m)
{
    for (uint32_t older = 0; older < m; older++) {
        if (!(*pipe_cell(p, s, c, older) & W_END)) {
            return false;
        }
    }
    return true;
}

static inline bool pipe_stage_finished(const pipeline *p, uint32_t s)
{
    const rrfp_shape *shape = &p->setup.shape;
    uint32_t last = p->setup.forward_only ? F_END : W_END;
    for (uint32_t i = 0; i < shape->chunks * shape->microbatches; i++) {
        uint32_t w = *pipe_cell(p, s, 0, i);
        if (!(w & last) || (w & (OUT_F | OUT_B))) {
            return false;
        }
    }
    return true;
}

/* Counts what the stage holds, from the record alone, and compares. */
static inline void pipe_check_budgets(pipeline *p, uint32_t s)
{
    const pipe_setup *u = &p->setup;
    uint64_t slots = 0;
    uint64_t bytes = 0;
    uint32_t pending = 0;
    for (uint32_t c = 0; c < u->shape.chunks; c++) {
        for (uint32_t m = 0; m < u->shape.microbatches; m++) {
            uint32_t w = *pipe_cell(p, s, c, m);
            bool holds = (w & F_START) && !(w & (u->forward_only ? F_END : B_END));
            bool keeps = (w & F_START) && !(w & (u->forward_only ? F_END : W_END));
            slots += holds;
            bytes += (holds ? u->activation[c] : 0) + (keeps ? u->retained[c] : 0);
            pending += (w & B_START) && !(w & FUSED) && !(w & W_END);
        }
    }
    if (slots > (uint64_t)u->max_inflight * u->shape.chunks) {
        pipe_fault(p, "stage %u holds %llu activations", s, (unsigned long long)slots);
    }
    if (u->max_bytes != 0 && bytes > u->max_bytes) {
        pipe_fault(p, "stage %u holds %llu bytes", s, (unsigned long long)bytes);
    }
    if (u->max_pending_w != 0 && pending > u->max_pending_w) {
        pipe_fault(p, "stage %u has %u pending W", s, pending);
    }
    const rrfp_stage_counters *counters = rrfp_stage_get_counters(p->machine[s]);
    if (counters->inflight != slots || counters->live_bytes != bytes ||
        counters->pending_w != pending) {
        pipe_fault(p, "stage %u counts %u slots, %llu bytes, %u W; they are %llu, %llu, %u", s,
                   counters->inflight, (unsigned long long)counters->live_bytes,
                   counters->pending_w, (unsigned long long)slots, (unsigned long long)bytes,
                   pending);
    }
}

/* With the fixed order: is this the next F or backward of the order as it was given? */
static inline void pipe_check_order(pipeline *p, uint32_t s, rrfp_task task)
{
    const pipe_setup *u = &p->setup;
    for (size_t i = 0; i < u->order_counts[s]; i++) {
        rrfp_task entry = u->orders[s][i];
        uint32_t w = *pipe_cell(p, s, entry.chunk, entry.microbatch);
        bool started = entry.kind == RRFP_F ? (w & F_START) != 0 : (w & B_START) != 0;
        if (entry.kind == RRFP_W || started || (u->forward_only && entry.kind != RRFP_F)) {
            continue;
        }
        if ((entry.kind == RRFP_F) != (task.kind == RRFP_F) || entry.chunk != task.chunk ||
            entry.microbatch != task.microbatch) {
            pipe_fault(p, "stage %u leaves the fixed order at entry %zu", s, i);
        }
        return;
    }
}

static inline void pipe_on_start(pipeline *p, uint32_t s, rrfp_task task)
{
    const pipe_setup *u = &p->setup;
    uint32_t c = task.chunk;
    uint32_t m = task.microbatch;
    uint32_t *cell = pipe_cell(p, s, c, m);
    uint32_t *word = pipe_stage_word(p, s);
    const char *name = rrfp_kind_name((rrfp_kind)task.kind);
    p->starts++;
    if (*word & STAGE_RUNS) {
        pipe_fault(p, "stage %u starts %s(%u,%u) while it runs", s, name, c, m);
    }
    if (u->distance == 0 && task.kind != RRFP_W) {
        pipe_check_order(p, s, task);
    }
    switch (task.kind) {
    case RRFP_F:
        if ((*cell & F_START) || !pipe_f_input(p, s, c, m)) {
            pipe_fault(p, "stage %u: F(%u,%u) twice or without its input", s, c, m);
        }
        *cell |= F_START;
        break;
    case RRFP_W:
        if ((*cell & W_START) || !(*cell & B_END)) {
            pipe_fault(p, "stage %u: W(%u,%u) twice or before B", s, c, m);
        }
        *cell |= W_START;
        break;
    default:
        if ((*cell & B_START) || !pipe_b_input(p, s, c, m)) {
            pipe_fault(p, "stage %u: %s(%u,%u) twice or without its inputs", s, name, c, m);
        }
        if (task.kind == RRFP_BW && u->split) {
            pipe_fault(p, "stage %u: BW in a split backward", s);
        }
        *cell |= task.kind == RRFP_BW ? (uint32_t)(B_START | W_START | FUSED) : B_START;
        break;
    }
    if ((task.kind == RRFP_W || task.kind == RRFP_BW) && u->accumulate == RRFP_ACCUMULATE_ORDERED &&
        !pipe_w_turn(p, s, c, m)) {
        pipe_fault(p, "stage %u: %s(%u,%u) before an older microbatch", s, name, c, m);
    }
    *word |= STAGE_RUNS | (uint32_t)task.kind << 26 | (uint32_t)c << 18 | m;
}

/* The next W of chunk c could run: its B is done and, when sums are ordered, it is in turn. */
static inline bool pipe_w_ready(const pipeline *p, uint32_t s, uint32_t c)
{
    bool ordered = p->setup.accumulate == RRFP_ACCUMULATE_ORDERED;
    for (uint32_t m = 0; m < p->setup.shape.microbatches; m++) {
        uint32_t w = *pipe_cell(p, s, c, m);
        if ((w & B_END) && !(w & W_START) && (!ordered || pipe_w_turn(p, s, c, m))) {
            return true;
        }
    }
    return false;
}

/*
 * With a bounded distance: has the first F or backward of the order that has not started its
 * inputs, or could a W run whose place, or that of another W of the chunk, comes before?
 */
static inline bool pipe_head_ready(const pipeline *p, uint32_t s)
{
    const pipe_setup *u = &p->setup;
    int64_t owed[PIPE_MAX_CHUNKS] = {0};
    for (size_t i = 0; i < u->order_counts[s]; i++) {
        rrfp_task t = u->orders[s][i];
        uint32_t w = *pipe_cell(p, s, t.chunk, t.microbatch);
        if (u->forward_only && t.kind != RRFP_F) {
            continue;
        }
        if (t.kind != RRFP_W && !(w & (t.kind == RRFP_F ? F_START : B_START))) {
            if (t.kind == RRFP_F ? pipe_f_input(p, s, t.chunk, t.microbatch)
                                 : pipe_b_input(p, s, t.chunk, t.microbatch)) {
                return true;
            }
            break;
        }
        owed[t.chunk] += t.kind == RRFP_W || t.kind == RRFP_BW;
    }
    for (uint32_t c = 0; c < u->shape.chunks; c++) {
        for (uint32_t m = 0; m < u->shape.microbatches; m++) {
            owed[c] -= (*pipe_cell(p, s, c, m) & W_START) != 0;
        }
        if (owed[c] > 0 && pipe_w_ready(p, s, c)) {
            return true;
        }
    }
    return false;
}

static inline void pipe_on_idle(pipeline *p, uint32_t s, rrfp_idle_reason reason)
{
    const pipe_setup *u = &p->setup;
    bool ordered = u->accumulate == RRFP_ACCUMULATE_ORDERED;
    bool any = false;
    bool forwards_left = false;
    bool left = false;
    bool work_w = false;
    bool oldest_ready = false;
    uint32_t oldest = u->shape.microbatches;
    for (uint32_t m = u->shape.microbatches; m-- > 0;) {
        for (uint32_t c = 0; c < u->shape.chunks; c++) {
            uint32_t w = *pipe_cell(p, s, c, m);
            bool f = !(w & F_START) && pipe_f_input(p, s, c, m);
            bool b = !u->forward_only && !(w & B_START) && pipe_b_input(p, s, c, m);
            bool g = (w & B_END) && !(w & W_START) && (!ordered || pipe_w_turn(p, s, c, m));
            if (!(w & (u->forward_only ? F_END : W_END))) {
                oldest_ready = m == oldest && oldest_ready;
                oldest = m;
                oldest_ready = oldest_ready || f || b || g;
                left = true;
            }
            any = any || f || b || g;
            work_w = work_w || g;
            forwards_left = forwards_left || !(w & F_START);
        }
    }
    if (u->distance == RRFP_DISTANCE_UNBOUNDED && (work_w || oldest_ready)) {
        pipe_fault(p, "stage %u idles though it may always go on", s);
    }
    if (u->distance != RRFP_DISTANCE_UNBOUNDED && pipe_head_ready(p, s)) {
        pipe_fault(p, "stage %u idles though the head of its order is ready", s);
    }
    bool right = any ? reason == RRFP_IDLE_BUDGET ||
                           (reason == RRFP_IDLE_ORDER && u->distance != RRFP_DISTANCE_UNBOUNDED)
                 : !left         ? reason == RRFP_IDLE_DRAIN
                 : forwards_left ? reason == RRFP_IDLE_INPUT_F
                                 : reason == RRFP_IDLE_INPUT_B;
    if (!right) {
        pipe_fault(p, "stage %u idles for '%s', wrongly", s, rrfp_idle_reason_name(reason));
    }
}

static inline void pipe_on_output(pipeline *p, uint32_t s, const rrfp_action *action)
{
    rrfp_task task = action->task;
    uint32_t *cell = pipe_cell(p, s, task.chunk, task.microbatch);
    bool f = task.kind == RRFP_F;
    uint32_t g = pipe_global(p, s, task.chunk);
    uint32_t ps;
    uint32_t pc;
    if (f ? g + 1 == p->setup.shape.stages * p->setup.shape.chunks : g == 0) {
        pipe_fault(p, "stage %u sends what nobody reads", s);
        return;
    }
    pipe_owner(p, f ? g + 1 : g - 1, &ps, &pc);
    bool local = action->kind == RRFP_ACTION_DELIVER;
    if (ps != action->peer_stage || pc != action->peer_chunk || local != (ps == s)) {
        pipe_fault(p, "stage %u sends to the wrong place", s);
    }
    if (!(*cell & (f ? F_END : B_END)) ||
        (*cell & (f ? OUT_F | LOCAL_F | FREED_F : OUT_B | LOCAL_B | FREED_B))) {
        pipe_fault(p, "stage %u sends twice or too early", s);
    }
    *cell |= local ? (f ? LOCAL_F : LOCAL_B) : (f ? OUT_F : OUT_B);
    if (!local) {
        *pipe_cell(p, ps, pc, task.microbatch) |= f ? MSG_F : MSG_B;
    }
}

static inline void pipe_on_release(pipeline *p, uint32_t s, const rrfp_action *action)
{
    rrfp_task task = action->task;
    uint32_t c = task.chunk;
    uint32_t m = task.microbatch;
    uint32_t *cell = pipe_cell(p, s, c, m);
    bool forward_only = p->setup.forward_only;
    uint32_t bit = 0;
    bool due = false;
    switch (action->buffer) {
    case RRFP_BUFFER_ACTIVATION:
        bit = FREED_ACTIVATION;
        due = task.kind == RRFP_F && (*cell & (forward_only ? F_END : B_END));
        break;
    case RRFP_BUFFER_RETAINED:
        bit = FREED_RETAINED;
        due = task.kind == RRFP_F && (*cell & (forward_only ? F_END : W_END));
        break;
    case RRFP_BUFFER_OUTPUT:
        if (task.kind == RRFP_F) {
            bit = FREED_F;
            due = (*cell & LOCAL_F) ? (*pipe_cell(p, s, c + 1, m) & F_END) != 0
                                    : !(*cell & OUT_F) && (*cell & F_END);
        } else {
            bit = FREED_B;
            due = (*cell & LOCAL_B) ? c > 0 && (*pipe_cell(p, s, c - 1, m) & B_END)
                                    : !(*cell & OUT_B) && (*cell & B_END);
        }
        break;
    }
    if (!due || (*cell & bit)) {
        pipe_fault(p, "stage %u releases a buffer of (%u,%u) twice or too early", s, c, m);
    }
    *cell |= bit;
}

static inline void pipe_apply(pipeline *p, uint32_t s, const rrfp_action *actions, size_t count)
{
    bool decided = (*pipe_stage_word(p, s) & STAGE_RUNS) != 0;
    if (count > RRFP_MAX_ACTIONS) {
        pipe_fault(p, "stage %u: %zu actions", s, count);
    }
    for (size_t i = 0; i < count; i++) {
        switch (actions[i].kind) {
        case RRFP_ACTION_START:
            pipe_on_start(p, s, actions[i].task);
            decided = true;
            break;
        case RRFP_ACTION_SEND:
        case RRFP_ACTION_DELIVER:
            pipe_on_output(p, s, &actions[i]);
            break;
        case RRFP_ACTION_RELEASE:
            pipe_on_release(p, s, &actions[i]);
            break;
        case RRFP_ACTION_IDLE:
            pipe_on_idle(p, s, actions[i].reason);
            decided = true;
            break;
        case RRFP_ACTION_STEP_DONE:
            if ((*pipe_stage_word(p, s) & STAGE_DONE) || !pipe_stage_finished(p, s)) {
                pipe_fault(p, "stage %u says done, twice or too early", s);
            }
            *pipe_stage_word(p, s) |= STAGE_DONE;
            decided = true;
            break;
        }
    }
    if (!decided) {
        pipe_fault(p, "stage %u is free and says nothing", s);
    }
    pipe_check_budgets(p, s);
}

static inline void pipe_feed(pipeline *p, uint32_t s, rrfp_event_kind kind, rrfp_task task)
{
    rrfp_action actions[RRFP_MAX_ACTIONS];
    rrfp_event event = {.kind = kind, .task = task};
    rrfp_error error;
    size_t count = 0;
    if (rrfp_stage_handle(p->machine[s], &event, actions, &count, &error) != RRFP_OK) {
        pipe_fault(p, "an event that is due was refused: %s", error.text);
        return;
    }
    pipe_apply(p, s, actions, count);
}

/* --- what may happen next ------------------------------------------------------------------ */

static inline rrfp_task pipe_running(const pipeline *p, uint32_t s)
{
    uint32_t word = *pipe_stage_word(p, s);
    return (rrfp_task){.kind = (uint8_t)(word >> 26 & 3),
                       .chunk = (uint16_t)(word >> 18 & 255),
                       .microbatch = word & 0x3ffff};
}

static inline void pipe_finish(pipeline *p, uint32_t s)
{
    rrfp_task task = pipe_running(p, s);
    uint32_t *cell = pipe_cell(p, s, task.chunk, task.microbatch);
    *pipe_stage_word(p, s) &= STAGE_DONE;
    *cell |= task.kind == RRFP_F   ? F_END
             : task.kind == RRFP_B ? B_END
             : task.kind == RRFP_W ? W_END
                                   : (uint32_t)(B_END | W_END);
    pipe_feed(p, s, RRFP_EVENT_TASK_FINISHED, task);
}

/* bit: MSG_F or MSG_B */
static inline void pipe_deliver(pipeline *p, uint32_t s, uint32_t c, uint32_t m, uint32_t bit)
{
    uint32_t *cell = pipe_cell(p, s, c, m);
    *cell = (*cell & ~bit) | (bit == MSG_F ? GOT_F : GOT_B);
    pipe_feed(
        p, s, RRFP_EVENT_INPUT,
        (rrfp_task){.kind = bit == MSG_F ? RRFP_F : RRFP_B, .chunk = (uint16_t)c, .microbatch = m});
}

/* bit: OUT_F or OUT_B */
static inline void pipe_sent(pipeline *p, uint32_t s, uint32_t c, uint32_t m, uint32_t bit)
{
    *pipe_cell(p, s, c, m) &= ~bit;
    pipe_feed(
        p, s, RRFP_EVENT_SEND_COMPLETED,
        (rrfp_task){.kind = bit == OUT_F ? RRFP_F : RRFP_B, .chunk = (uint16_t)c, .microbatch = m});
}

/* Nothing can happen any more on stage s: is everything done and every buffer free? */
static inline void pipe_check_stage_end(pipeline *p, uint32_t s)
{
    const rrfp_shape *shape = &p->setup.shape;
    if (!(*pipe_stage_word(p, s) & STAGE_DONE)) {
        pipe_fault(p, "stuck: stage %u cannot go on", s);
        return;
    }
    for (uint32_t i = 0; i < shape->chunks * shape->microbatches; i++) {
        uint32_t w = *pipe_cell(p, s, 0, i);
        uint32_t g = pipe_global(p, s, i / shape->microbatches);
        uint32_t want = FREED_ACTIVATION | FREED_RETAINED |
                        (g + 1 < shape->stages * shape->chunks ? FREED_F : 0) |
                        (g > 0 && !p->setup.forward_only ? FREED_B : 0);
        if ((w & (FREED_ACTIVATION | FREED_RETAINED | FREED_F | FREED_B)) != want) {
            pipe_fault(p, "stage %u keeps a buffer after the step", s);
        }
    }
}

static inline void pipe_check_end(pipeline *p)
{
    for (uint32_t s = 0; s < p->setup.shape.stages && p->fault[0] == '\0'; s++) {
        pipe_check_stage_end(p, s);
    }
}

/* --- life ---------------------------------------------------------------------------------- */

static inline void pipe_destroy(pipeline *p)
{
    for (uint32_t s = 0; s < PIPE_MAX_STAGES; s++) {
        rrfp_stage_destroy(p->machine[s]);
    }
    free(p->word);
    memset(p, 0, sizeof *p);
}

static inline rrfp_status pipe_create(pipeline *p, const pipe_setup *setup, rrfp_error *error)
{
    memset(p, 0, sizeof *p);
    p->setup = *setup;
    p->words = setup->shape.stages * (setup->shape.chunks * setup->shape.microbatches + 1);
    p->word = calloc(p->words, sizeof *p->word);
    if (p->word == NULL) {
        abort();
    }
    for (uint32_t s = 0; s < setup->shape.stages; s++) {
        rrfp_stage_config config = {
            .struct_size = sizeof config,
            .shape = setup->shape,
            .stage = s,
            .rule = setup->rule,
            .split_backward = setup->split,
            .forward_only = setup->forward_only,
            .accumulate = setup->accumulate,
            .hint_distance = setup->distance,
            .budget = {.max_inflight = setup->max_inflight,
                       .max_pending_w = setup->max_pending_w,
                       .max_inflight_bytes = setup->max_bytes},
            .activation_bytes = setup->activation,
            .retained_bytes = setup->retained,
            .order = setup->orders[s],
            .order_count = setup->order_counts[s],
        };
        rrfp_status status = rrfp_stage_create(&config, &p->machine[s], error);
        if (status != RRFP_OK) {
            pipe_destroy(p);
            return status;
        }
    }
    return RRFP_OK;
}

static inline void pipe_begin(pipeline *p)
{
    memset(p->word, 0, p->words * sizeof *p->word);
    for (uint32_t s = 0; s < p->setup.shape.stages; s++) {
        rrfp_action actions[RRFP_MAX_ACTIONS];
        size_t count = rrfp_stage_begin_step(p->machine[s], actions);
        pipe_apply(p, s, actions, count);
    }
}

static inline void pipe_describe(const pipe_setup *u, FILE *out)
{
    static const char *const rules[] = {"list", "bf", "bfw", "fb", "b-prio", "f-prio"};
    fprintf(out,
            "P=%u V=%u M=%u placement=%d rule=%s split=%d forward_only=%d accumulate=%d "
            "distance=%d max_inflight=%u max_pending_w=%u max_bytes=%llu\n",
            u->shape.stages, u->shape.chunks, u->shape.microbatches, (int)u->shape.placement,
            rules[u->rule], u->split, u->forward_only, (int)u->accumulate, (int)u->distance,
            u->max_inflight, u->max_pending_w, (unsigned long long)u->max_bytes);
    for (uint32_t s = 0; s < u->shape.stages && u->orders[s] != NULL; s++) {
        fprintf(out, "  order %u:", s);
        for (size_t i = 0; i < u->order_counts[s]; i++) {
            rrfp_task t = u->orders[s][i];
            fprintf(out, " %s(%u,%u)", rrfp_kind_name((rrfp_kind)t.kind), t.chunk, t.microbatch);
        }
        fputc('\n', out);
    }
}

#endif /* RRFP_TEST_PIPELINE_H */
