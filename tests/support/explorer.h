/*
 * explorer.h - every interleaving of a small pipeline.
 *
 * A state is the record of the referee and the snapshots of all machines.  From
 * each state every event that may come next is tried; states seen before (by a
 * 128-bit hash) are not expanded again.
 *
 * Two reductions, unless `full`:
 *   - the end of a send is delivered at once: the machine lets it release a
 *     buffer and end the step, never start a task, so it commutes with all;
 *   - a message for a busy stage is held back until that stage's task ends, as
 *     a busy stage decides nothing: the end of a task comes with every subset
 *     of the messages on their way.
 */
#ifndef RRFP_TEST_EXPLORER_H
#define RRFP_TEST_EXPLORER_H

#include "support/pipeline.h"

typedef struct explorer {
    pipeline *pipe;
    bool full;
    size_t state_bytes;
    size_t record_bytes;
    size_t offset[PIPE_MAX_STAGES];
    uint8_t *stack;
    size_t depth;
    size_t capacity;
    uint64_t *seen; /* pairs; 0,0 is free */
    size_t slots;
    size_t states;
    unsigned long transitions;
    uint8_t *now; /* state being expanded */
} explorer;

static inline void *explore_alloc(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (memory == NULL) {
        abort();
    }
    return memory;
}

static inline void explore_hash(const uint8_t *bytes, size_t count, uint64_t hash[2])
{
    uint64_t a = UINT64_C(0x243f6a8885a308d3);
    uint64_t b = UINT64_C(0x13198a2e03707344);
    for (size_t i = 0; i < count; i += 8) {
        uint64_t w;
        memcpy(&w, bytes + i, 8);
        a = (a ^ w) * UINT64_C(0x9e3779b97f4a7c15);
        a ^= a >> 29;
        b = (b + w) * UINT64_C(0xd6e8feb86659fd93);
        b ^= b >> 32;
    }
    hash[0] = a | 1; /* never the free pair */
    hash[1] = b;
}

static inline bool explore_insert(explorer *x, const uint64_t hash[2])
{
    if (2 * (x->states + 1) > x->slots) {
        size_t old_slots = x->slots;
        uint64_t *old = x->seen;
        x->slots = old_slots == 0 ? 1024 : 2 * old_slots;
        x->seen = explore_alloc(x->slots * 2 * sizeof(uint64_t));
        x->states = 0;
        for (size_t i = 0; i < old_slots; i++) {
            if (old[2 * i] != 0) {
                explore_insert(x, &old[2 * i]);
            }
        }
        free(old);
    }
    size_t i = hash[1] & (x->slots - 1);
    while (x->seen[2 * i] != 0) {
        if (x->seen[2 * i] == hash[0] && x->seen[2 * i + 1] == hash[1]) {
            return false;
        }
        i = (i + 1) & (x->slots - 1);
    }
    x->seen[2 * i] = hash[0];
    x->seen[2 * i + 1] = hash[1];
    x->states++;
    return true;
}

/* The state after a change on stage s (all machines: s = UINT32_MAX) goes on the stack if new. */
static inline void explore_push(explorer *x, uint32_t s)
{
    if (x->depth == x->capacity) {
        x->capacity = x->capacity == 0 ? 64 : 2 * x->capacity;
        x->stack = realloc(x->stack, x->capacity * x->state_bytes);
        if (x->stack == NULL) {
            abort();
        }
    }
    uint8_t *state = x->stack + x->depth * x->state_bytes;
    uint64_t hash[2];
    memcpy(state, x->now, x->state_bytes);
    memcpy(state, x->pipe->word, x->pipe->words * sizeof(uint32_t));
    for (uint32_t i = 0; i < x->pipe->setup.shape.stages; i++) {
        if (i == s || s == UINT32_MAX) {
            rrfp_stage_snapshot(x->pipe->machine[i], state + x->offset[i]);
        }
    }
    explore_hash(state, x->state_bytes, hash);
    x->transitions++;
    if (explore_insert(x, hash)) {
        x->depth++;
    }
}

static inline void explore_load(explorer *x, uint32_t s)
{
    memcpy(x->pipe->word, x->now, x->pipe->words * sizeof(uint32_t));
    rrfp_stage_restore(x->pipe->machine[s], x->now + x->offset[s]);
}

static inline void explore_sends(explorer *x, uint32_t s)
{
    pipeline *p = x->pipe;
    for (uint32_t c = 0; c < p->setup.shape.chunks && !x->full; c++) {
        for (uint32_t m = 0; m < p->setup.shape.microbatches; m++) {
            for (uint32_t bit = OUT_F; bit <= OUT_B; bit <<= 1) {
                if (*pipe_cell(p, s, c, m) & bit) {
                    pipe_sent(p, s, c, m, bit);
                }
            }
        }
    }
}

typedef struct message {
    uint32_t chunk, microbatch, bit;
} message;

static inline uint32_t explore_list(const pipeline *p, uint32_t s, uint32_t first_bit,
                                    message *list)
{
    uint32_t count = 0;
    for (uint32_t c = 0; c < p->setup.shape.chunks; c++) {
        for (uint32_t m = 0; m < p->setup.shape.microbatches; m++) {
            for (uint32_t bit = first_bit; bit <= first_bit << 1; bit <<= 1) {
                if (*pipe_cell(p, s, c, m) & bit) {
                    list[count++] = (message){c, m, bit};
                }
            }
        }
    }
    return count;
}

/* All events that may come next on stage s; false if there are none. */
static inline bool explore_stage(explorer *x, uint32_t s)
{
    pipeline *p = x->pipe;
    message list[64];
    explore_load(x, s);
    bool running = (*pipe_stage_word(p, s) & STAGE_RUNS) != 0;
    uint32_t count = explore_list(p, s, MSG_F, list);
    bool any = running || count > 0;
    bool together = running && !x->full;
    for (uint32_t i = 0; !together && i < count; i++) {
        explore_load(x, s);
        pipe_deliver(p, s, list[i].chunk, list[i].microbatch, list[i].bit);
        explore_sends(x, s);
        explore_push(x, s);
    }
    for (uint32_t subset = 0; running && subset < (together ? 1u << count : 1u); subset++) {
        explore_load(x, s);
        for (uint32_t i = 0; i < count; i++) {
            if (subset & 1u << i) {
                pipe_deliver(p, s, list[i].chunk, list[i].microbatch, list[i].bit);
            }
        }
        pipe_finish(p, s);
        explore_sends(x, s);
        explore_push(x, s);
    }
    if (x->full) {
        explore_load(x, s);
        count = explore_list(p, s, OUT_F, list);
        for (uint32_t i = 0; i < count; i++) {
            explore_load(x, s);
            pipe_sent(p, s, list[i].chunk, list[i].microbatch, list[i].bit);
            explore_push(x, s);
        }
        any = any || count > 0;
    }
    return any;
}

/* Explores all of it or to the first fault (in pipe->fault); returns the states seen. */
static inline size_t explore(pipeline *pipe, bool full, unsigned long *transitions)
{
    explorer x = {.pipe = pipe, .full = full};
    uint32_t P = pipe->setup.shape.stages;
    x.state_bytes = (pipe->words * sizeof(uint32_t) + 7) / 8 * 8;
    for (uint32_t s = 0; s < P; s++) {
        x.offset[s] = x.state_bytes;
        x.state_bytes += rrfp_stage_snapshot_bytes(pipe->machine[s]);
    }
    x.now = explore_alloc(x.state_bytes);
    pipe_begin(pipe);
    for (uint32_t s = 0; s < P; s++) {
        explore_sends(&x, s);
    }
    explore_push(&x, UINT32_MAX);
    while (x.depth > 0 && pipe->fault[0] == '\0') {
        bool any = false;
        x.depth--;
        memcpy(x.now, x.stack + x.depth * x.state_bytes, x.state_bytes);
        for (uint32_t s = 0; s < P && pipe->fault[0] == '\0'; s++) {
            any = explore_stage(&x, s) || any;
        }
        if (!any) {
            pipe_check_end(pipe);
        }
    }
    *transitions += x.transitions;
    free(x.now);
    free(x.stack);
    free(x.seen);
    return x.states;
}

#endif /* RRFP_TEST_EXPLORER_H */
