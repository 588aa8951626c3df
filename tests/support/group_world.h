/*
 * group_world.h - the tensor-parallel ranks of one stage, their neighbours replaced by the most
 * general ones, and everything that can be on its way between them.
 *
 * A task has a collective inside: a rank can end it only when all have started it.  An input may
 * reach a rank when all ranks have ended what its sender needs from them: for F of a later chunk
 * the F of the stage's chunk before, for B the own F and the later chunk's B.  The referee knows
 * nothing of the machines' states: it keeps what each rank has, and what it has done.
 */
#ifndef RRFP_TEST_GROUP_WORLD_H
#define RRFP_TEST_GROUP_WORLD_H

#include "rrfp/group.h"
#include "support/state_graph.h"

enum { GROUP_MOST = 3, PIECES_MOST = 6, DECISIONS_MOST = 3 * PIECES_MOST };
typedef enum group_protocol { GROUP_LEAD, GROUP_ALLGATHER, GROUP_ALONE } group_protocol;

enum { HAS_F = 1, HAS_B = 2, F_DONE = 4, B_DONE = 8, W_DONE = 16, NOTICE_F = 32, NOTICE_B = 64 };

typedef struct group_ranks { /* plain bytes */
    uint8_t piece[GROUP_MOST][PIECES_MOST]; /* HAS_F ... of (chunk, microbatch) */
    uint8_t runs[GROUP_MOST], entered[GROUP_MOST], proposes[GROUP_MOST], done[GROUP_MOST];
    uint8_t pad[2];
    uint16_t started[GROUP_MOST];
    uint32_t flying[GROUP_MOST]; /* decisions on their way, by sequence */
    rrfp_task running[GROUP_MOST], proposal[GROUP_MOST], order[DECISIONS_MOST];
    rrfp_decision decisions[DECISIONS_MOST];
    uint32_t decided, pad2;
} group_ranks;

typedef struct group_world {
    rrfp_stage_config config;
    group_protocol protocol;
    uint32_t members, noticed_members; /* the latter: what the lead believes */
    uint32_t ahead;
    rrfp_group_lead *lead;
    rrfp_group_member *member[GROUP_MOST];
    rrfp_stage *machine[GROUP_MOST]; /* without a lead */
    group_ranks now;
    size_t bytes;
    unsigned char *buffer;
    uint64_t rounds_failed;
    char fault[256];
} group_world;

#define GROUP_FAULT(w, ...)                                                                        \
    do {                                                                                           \
        if ((w)->fault[0] == '\0') {                                                               \
            snprintf((w)->fault, sizeof (w)->fault, __VA_ARGS__);                                  \
        }                                                                                          \
    } while (0)

static inline uint32_t group_piece(const group_world *w, uint32_t c, uint32_t m)
{
    return c * w->config.shape.microbatches + m;
}

static inline uint32_t group_global(const group_world *w, uint32_t c)
{
    return rrfp_shape_global_chunk(&w->config.shape, w->config.stage, c);
}

static inline bool group_is_last(const group_world *w, uint32_t c)
{
    return group_global(w, c) + 1 == w->config.shape.stages * w->config.shape.chunks;
}

/* Does the next (or previous) global chunk lie on this stage too? */
static inline bool group_local(const group_world *w, uint32_t c, bool forward)
{
    uint32_t stage, chunk, g = group_global(w, c);
    rrfp_shape_owner(&w->config.shape, forward ? g - 1 : g + 1, &stage, &chunk);
    return stage == w->config.stage;
}

/* A task begins on a rank: does it have what the task needs, and do all do the same? */
static inline void group_check_start(group_world *w, uint32_t rank, rrfp_task task)
{
    group_ranks *now = &w->now;
    uint32_t k = now->started[rank];
    uint8_t has = now->piece[rank][group_piece(w, task.chunk, task.microbatch)];
    uint32_t g = group_global(w, task.chunk);
    bool good = false;
    if (task.kind == RRFP_F) {
        uint32_t before = task.chunk > 0 ? group_piece(w, task.chunk - 1, task.microbatch) : 0;
        good = !(has & F_DONE) && (g == 0 || (has & HAS_F) ||
                                   (group_local(w, task.chunk, true) &&
                                    (now->piece[rank][before] & F_DONE)));
    } else if (task.kind == RRFP_W) {
        good = (has & B_DONE) && !(has & W_DONE);
    } else {
        bool last = group_is_last(w, task.chunk);
        uint32_t after = last ? 0 : group_piece(w, task.chunk + 1, task.microbatch);
        good = (has & F_DONE) && !(has & B_DONE) &&
               (last || (has & HAS_B) ||
                (group_local(w, task.chunk, false) && (now->piece[rank][after] & B_DONE)));
    }
    if (!good) {
        GROUP_FAULT(w, "rank %u starts %s(%u,%u) without its inputs, or twice", rank,
                    rrfp_kind_name((rrfp_kind)task.kind), task.chunk, task.microbatch);
    }
    for (uint32_t other = 0; other < w->members; other++) {
        if (now->started[other] > k && memcmp(&now->order[k], &task, sizeof task) != 0) {
            GROUP_FAULT(w, "rank %u starts %s(%u,%u) as number %u, another rank started another",
                        rank, rrfp_kind_name((rrfp_kind)task.kind), task.chunk, task.microbatch,
                        k);
        }
    }
    now->order[k] = task;
    now->started[rank]++;
    now->runs[rank] = 1;
    now->running[rank] = task;
}

static inline void group_apply(group_world *w, uint32_t rank, const rrfp_action *actions,
                               size_t count)
{
    rrfp_error error;
    for (size_t i = 0; i < count && w->fault[0] == '\0'; i++) {
        rrfp_action more[RRFP_MAX_ACTIONS];
        size_t more_count = 0;
        rrfp_event sent = {RRFP_EVENT_SEND_COMPLETED, actions[i].task};
        switch (actions[i].kind) {
        case RRFP_ACTION_START:
            group_check_start(w, rank, actions[i].task);
            break;
        case RRFP_ACTION_SEND:
            if ((w->protocol == GROUP_LEAD
                     ? rrfp_group_member_handle(w->member[rank], &sent, more, &more_count, &error)
                     : rrfp_stage_handle(w->machine[rank], &sent, more, &more_count, &error)) !=
                RRFP_OK) {
                GROUP_FAULT(w, "%.200s", error.text);
            }
            group_apply(w, rank, more, more_count);
            break;
        case RRFP_ACTION_STEP_DONE:
            w->now.done[rank] = 1;
            break;
        default:
            break;
        }
    }
}

static inline void group_feed(group_world *w, uint32_t rank, rrfp_event_kind kind, rrfp_task task)
{
    rrfp_action actions[RRFP_MAX_ACTIONS];
    rrfp_event event = {kind, task};
    rrfp_error error;
    size_t count = 0;
    if ((w->protocol == GROUP_LEAD
             ? rrfp_group_member_handle(w->member[rank], &event, actions, &count, &error)
             : rrfp_stage_handle(w->machine[rank], &event, actions, &count, &error)) != RRFP_OK) {
        GROUP_FAULT(w, "%.200s", error.text);
        return;
    }
    group_apply(w, rank, actions, count);
}

static inline void group_take_decision(group_world *w, uint32_t rank, uint32_t sequence)
{
    rrfp_action actions[RRFP_MAX_ACTIONS];
    rrfp_error error;
    size_t count = 0;
    w->now.flying[rank] &= ~(1u << sequence);
    if (rrfp_group_member_decided(w->member[rank], &w->now.decisions[sequence], actions, &count,
                                  &error) != RRFP_OK) {
        GROUP_FAULT(w, "%.200s", error.text);
        return;
    }
    group_apply(w, rank, actions, count);
}

/* The lead's own rank hears at once, the others some time. */
static inline void group_decide(group_world *w, const rrfp_decision *decisions, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (decisions[i].sequence != w->now.decided || count > rrfp_group_lead_most(w->lead)) {
            GROUP_FAULT(w, "decision %u after %u decisions", decisions[i].sequence, w->now.decided);
            return;
        }
        w->now.decisions[w->now.decided++] = decisions[i];
        for (uint32_t rank = 1; rank < w->members; rank++) {
            w->now.flying[rank] |= 1u << decisions[i].sequence;
        }
        group_take_decision(w, 0, decisions[i].sequence);
    }
}

static inline void group_notice(group_world *w, uint32_t rank, rrfp_task input)
{
    rrfp_decision decisions[DECISIONS_MOST];
    rrfp_error error;
    size_t count = 0;
    if (rank >= w->noticed_members) {
        return; /* a lead that does not know of this rank */
    }
    if (rrfp_group_lead_notice(w->lead, rank, input, decisions, &count, &error) != RRFP_OK) {
        GROUP_FAULT(w, "%.200s", error.text);
        return;
    }
    group_decide(w, decisions, count);
}

static inline bool group_all_have(const group_world *w, uint32_t c, uint32_t m, uint8_t what)
{
    for (uint32_t rank = 0; rank < w->members; rank++) {
        if (!(w->now.piece[rank][group_piece(w, c, m)] & what)) {
            return false;
        }
    }
    return true;
}

static inline bool group_may_arrive(const group_world *w, uint32_t rank, uint32_t c, uint32_t m,
                                    bool forward)
{
    uint8_t has = w->now.piece[rank][group_piece(w, c, m)];
    if (forward) {
        return !(has & HAS_F) && group_global(w, c) != 0 && !group_local(w, c, true) &&
               (c == 0 || group_all_have(w, c - 1, m, F_DONE));
    }
    return !w->config.forward_only && !(has & HAS_B) && !group_is_last(w, c) &&
           !group_local(w, c, false) && group_all_have(w, c, m, F_DONE) &&
           (c + 1 == w->config.shape.chunks || group_all_have(w, c + 1, m, B_DONE));
}

static inline void group_finish(group_world *w, uint32_t rank)
{
    rrfp_task task = w->now.running[rank];
    uint8_t *piece = &w->now.piece[rank][group_piece(w, task.chunk, task.microbatch)];
    *piece |= task.kind == RRFP_F   ? F_DONE
              : task.kind == RRFP_B ? B_DONE
              : task.kind == RRFP_W ? W_DONE
                                    : B_DONE | W_DONE;
    w->now.runs[rank] = 0;
    w->now.running[rank] = (rrfp_task){0};
    group_feed(w, rank, RRFP_EVENT_TASK_FINISHED, task);
    if (w->protocol == GROUP_LEAD && rank == 0) {
        rrfp_decision decisions[DECISIONS_MOST];
        rrfp_error error;
        size_t count = 0;
        if (rrfp_group_lead_finished(w->lead, decisions, &count, &error) != RRFP_OK) {
            GROUP_FAULT(w, "%.200s", error.text);
            return;
        }
        group_decide(w, decisions, count);
    }
}

/* The last to enter the comparison completes it for all. */
static inline void group_enter(group_world *w, uint32_t rank)
{
    group_ranks *now = &w->now;
    bool hint, agree = true;
    now->entered[rank] = 1;
    now->proposes[rank] = rrfp_stage_propose(w->machine[rank], &now->proposal[rank], &hint);
    if (!now->proposes[rank]) {
        now->proposal[rank] = (rrfp_task){0};
    }
    for (uint32_t r = 0; r < w->members; r++) {
        if (!now->entered[r]) {
            return;
        }
        agree = agree && now->proposes[r] &&
                memcmp(&now->proposal[r], &now->proposal[0], sizeof now->proposal[0]) == 0;
    }
    w->rounds_failed += !agree;
    rrfp_task task = now->proposal[0];
    for (uint32_t r = 0; r < w->members; r++) {
        rrfp_action actions[RRFP_MAX_ACTIONS];
        rrfp_error error;
        size_t count = 0;
        now->entered[r] = now->proposes[r] = 0;
        now->proposal[r] = (rrfp_task){0};
        if (agree && rrfp_stage_start(w->machine[r], task, false, actions, &count, &error) !=
                         RRFP_OK) {
            GROUP_FAULT(w, "%.200s", error.text);
        }
        group_apply(w, r, actions, count);
    }
}

/* ---- states --------------------------------------------------------------------------- */

static inline void group_save(group_world *w)
{
    unsigned char *at = w->buffer;
    memcpy(at, &w->now, sizeof w->now);
    at += sizeof w->now;
    if (w->protocol == GROUP_LEAD) {
        rrfp_group_lead_snapshot(w->lead, at);
        at += rrfp_group_lead_snapshot_bytes(w->lead);
    }
    for (uint32_t r = 0; r < w->members; r++) {
        if (w->protocol == GROUP_LEAD) {
            rrfp_group_member_snapshot(w->member[r], at);
            at += rrfp_group_member_snapshot_bytes(w->member[r]);
        } else {
            rrfp_stage_snapshot(w->machine[r], at);
            at += rrfp_stage_snapshot_bytes(w->machine[r]);
        }
    }
}

static inline void group_load(group_world *w, const unsigned char *state)
{
    const unsigned char *at = state;
    memcpy(&w->now, at, sizeof w->now);
    at += sizeof w->now;
    if (w->protocol == GROUP_LEAD) {
        rrfp_group_lead_restore(w->lead, at);
        at += rrfp_group_lead_snapshot_bytes(w->lead);
    }
    for (uint32_t r = 0; r < w->members; r++) {
        if (w->protocol == GROUP_LEAD) {
            rrfp_group_member_restore(w->member[r], at);
            at += rrfp_group_member_snapshot_bytes(w->member[r]);
        } else {
            rrfp_stage_restore(w->machine[r], at);
            at += rrfp_stage_snapshot_bytes(w->machine[r]);
        }
    }
}

/* Makes the objects and begins the step; false with the fault. */
static inline bool group_begin(group_world *w)
{
    rrfp_error error;
    rrfp_action actions[RRFP_MAX_ACTIONS];
    rrfp_stage_config config = w->config;
    rrfp_status status = RRFP_OK;
    config.struct_size = sizeof config;
    config.follows = w->protocol == GROUP_ALLGATHER;
    memset(&w->now, 0, sizeof w->now);
    w->bytes = sizeof w->now;
    if (w->protocol == GROUP_LEAD) {
        status = rrfp_group_lead_create(&config, w->noticed_members, w->ahead, &w->lead, &error);
        w->bytes += status == RRFP_OK ? rrfp_group_lead_snapshot_bytes(w->lead) : 0;
    }
    for (uint32_t r = 0; status == RRFP_OK && r < w->members; r++) {
        if (w->protocol == GROUP_LEAD) {
            status = rrfp_group_member_create(&config, &w->member[r], &error);
            w->bytes += status == RRFP_OK ? rrfp_group_member_snapshot_bytes(w->member[r]) : 0;
        } else {
            status = rrfp_stage_create(&config, &w->machine[r], &error);
            w->bytes += status == RRFP_OK ? rrfp_stage_snapshot_bytes(w->machine[r]) : 0;
        }
    }
    if (status != RRFP_OK) {
        GROUP_FAULT(w, "%.200s", error.text);
        return false;
    }
    w->buffer = graph_grow(NULL, w->bytes);
    for (uint32_t r = 0; r < w->members; r++) {
        size_t count = w->protocol == GROUP_LEAD
                           ? rrfp_group_member_begin_step(w->member[r], actions)
                           : rrfp_stage_begin_step(w->machine[r], actions);
        group_apply(w, r, actions, count);
    }
    if (w->protocol == GROUP_LEAD) {
        rrfp_decision decisions[DECISIONS_MOST];
        size_t count = 0;
        if (rrfp_group_lead_begin_step(w->lead, decisions, &count, &error) != RRFP_OK) {
            GROUP_FAULT(w, "%.200s", error.text);
        }
        group_decide(w, decisions, count);
    }
    return w->fault[0] == '\0';
}

static inline void group_end(group_world *w)
{
    rrfp_group_lead_destroy(w->lead);
    for (uint32_t r = 0; r < w->members; r++) {
        rrfp_group_member_destroy(w->member[r]);
        rrfp_stage_destroy(w->machine[r]);
    }
    free(w->buffer);
}

/* Every event that can happen in state `index`, each followed by a step of the graph. */
static inline void group_expand(group_world *w, state_graph *g, uint32_t index)
{
    unsigned char *state = graph_grow(NULL, w->bytes);
    memcpy(state, g->states + index * w->bytes, w->bytes);
#define EVENT(happens, what)                                                                       \
    do {                                                                                           \
        group_load(w, state);                                                                      \
        if (w->fault[0] == '\0' && (happens)) {                                                    \
            what;                                                                                  \
            group_save(w);                                                                         \
            graph_step(g, index, w->buffer);                                                       \
        }                                                                                          \
    } while (0)
    for (uint32_t r = 0; r < w->members; r++) {
        bool all_in = true;
        group_load(w, state);
        for (uint32_t other = 0; other < w->members; other++) {
            all_in = all_in && w->now.started[other] >= w->now.started[r];
        }
        EVENT(w->now.runs[r] && all_in, group_finish(w, r));
        EVENT(w->protocol == GROUP_ALLGATHER && !w->now.runs[r] && !w->now.entered[r] &&
                  !w->now.done[r],
              group_enter(w, r));
        for (uint32_t k = 0; k < DECISIONS_MOST; k++) {
            EVENT(w->now.flying[r] >> k & 1u, group_take_decision(w, r, k));
        }
        for (uint32_t c = 0; c < w->config.shape.chunks; c++) {
            for (uint32_t m = 0; m < w->config.shape.microbatches; m++) {
                for (int kind = RRFP_F; kind <= RRFP_B; kind++) {
                    rrfp_task input = {(uint8_t)kind, 0, (uint16_t)c, m};
                    uint8_t here = kind == RRFP_F ? HAS_F : HAS_B;
                    uint8_t notice = kind == RRFP_F ? NOTICE_F : NOTICE_B;
                    uint8_t *piece = &w->now.piece[r][group_piece(w, c, m)];
                    EVENT(group_may_arrive(w, r, c, m, kind == RRFP_F), {
                        *piece |= here;
                        group_feed(w, r, RRFP_EVENT_INPUT, input);
                        if (w->protocol == GROUP_LEAD && r == 0) {
                            group_notice(w, r, input);
                        } else if (w->protocol == GROUP_LEAD) {
                            *piece |= notice;
                        }
                    });
                    EVENT(*piece & notice, {
                        *piece &= (uint8_t)~notice;
                        group_notice(w, r, input);
                    });
                }
            }
        }
    }
#undef EVENT
    free(state);
}

/* Explores all; `fault` says what went wrong.  Returns the number of states. */
static inline size_t group_explore(group_world *w, size_t *steps)
{
    state_graph g = {0};
    size_t states = 0;
    if (group_begin(w)) {
        g.bytes = w->bytes;
        group_save(w);
        graph_add(&g, w->buffer);
        for (; g.expanded < g.count && w->fault[0] == '\0'; g.expanded++) {
            group_load(w, g.states + g.expanded * g.bytes);
            bool all_done = true;
            for (uint32_t r = 0; r < w->members; r++) {
                all_done = all_done && w->now.done[r];
            }
            g.final[g.expanded] = all_done;
            if (!all_done) {
                group_expand(w, &g, (uint32_t)g.expanded);
            }
        }
        if (w->fault[0] == '\0') {
            size_t stuck = graph_stuck(&g);
            if (stuck < g.count) {
                group_load(w, g.states + stuck * g.bytes);
                GROUP_FAULT(w, "no way to the end from a state with %u, %u, %u tasks started",
                            w->now.started[0], w->now.started[1], w->now.started[2]);
            }
        }
        states = g.count;
        *steps += g.edge_count;
    }
    graph_free(&g);
    group_end(w);
    return states;
}

#endif /* RRFP_TEST_GROUP_WORLD_H */
