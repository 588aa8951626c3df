/*
 * orders.h - committed orders for tests, made here and not by src/hint.
 *
 * One global sequence in which every task comes after those it needs is dealt
 * to the stages: the orders of all stages can be executed together.
 */
#ifndef RRFP_TEST_ORDERS_H
#define RRFP_TEST_ORDERS_H

#include "support/pipeline.h"

typedef enum order_style {
    ORDER_SEQUENTIAL = 0, /* one microbatch after the other: fits every budget */
    ORDER_GPIPE,          /* all F, then all backwards */
    ORDER_1F1B,           /* backwards first, F while few are in flight */
    ORDER_RANDOM,         /* any */
    ORDER_STYLES
} order_style;

static inline uint64_t test_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static inline uint32_t test_below(uint64_t *state, uint32_t bound)
{
    return (uint32_t)(test_random(state) % bound);
}

/* Smaller runs first. */
static inline uint64_t order_key(order_style style, uint32_t kind, uint32_t g, uint32_t m,
                                 uint32_t pieces, bool few, uint64_t *seed)
{
    uint64_t depth = kind == RRFP_F ? g : 2 * pieces - g;
    switch (style) {
    case ORDER_SEQUENTIAL:
        return (uint64_t)m << 32 | depth << 1 | (kind == RRFP_W);
    case ORDER_GPIPE:
        return (uint64_t)(kind == RRFP_F   ? 0
                          : kind == RRFP_W ? 2
                                           : 1)
                   << 48 |
               (uint64_t)m << 16 | depth;
    case ORDER_1F1B:
        return (uint64_t)(kind == RRFP_F   ? (few ? 2 : 3)
                          : kind == RRFP_W ? 1
                                           : 0)
                   << 48 |
               (uint64_t)m << 16 | depth;
    default:
        return test_random(seed) >> 8;
    }
}

/* Fills setup->orders from its shape, split and forward_only; frees with orders_free. */
static inline void orders_make(pipe_setup *u, order_style style, uint64_t seed)
{
    pipeline p = {.setup = *u}; /* for the placement alone */
    uint32_t P = u->shape.stages;
    uint32_t V = u->shape.chunks;
    uint32_t M = u->shape.microbatches;
    uint32_t pieces = P * V;
    uint32_t kinds = u->forward_only ? 1 : u->split ? 3 : 2;
    uint8_t *done = calloc((size_t)pieces * M, 1); /* bits F, B, W of (piece, microbatch) */
    uint32_t flying[PIPE_MAX_STAGES] = {0};
    if (done == NULL) {
        abort();
    }
    for (uint32_t s = 0; s < P; s++) {
        u->orders[s] = calloc((size_t)kinds * V * M, sizeof(rrfp_task));
        u->order_counts[s] = 0;
        if (u->orders[s] == NULL) {
            abort();
        }
    }
    for (uint32_t n = 0; n < kinds * pieces * M; n++) {
        uint64_t least = UINT64_MAX;
        rrfp_task task = {0};
        uint32_t stage = 0;
        uint32_t piece = 0;
        for (uint32_t g = 0; g < pieces; g++) {
            uint32_t s;
            uint32_t c;
            pipe_owner(&p, g, &s, &c);
            for (uint32_t m = 0; m < M; m++) {
                uint8_t own = done[g * M + m];
                bool can[3] = {
                    !(own & 1) && (g == 0 || (done[(g - 1) * M + m] & 1)),
                    kinds > 1 && (own & 1) && !(own & 2) &&
                        (g + 1 == pieces || (done[(g + 1) * M + m] & 2)),
                    kinds > 2 && (own & 2) && !(own & 4),
                };
                for (uint32_t k = 0; k < 3; k++) {
                    uint64_t key =
                        can[k] ? order_key(style, k, g, m, pieces, flying[s] < (P - s) * V, &seed)
                               : UINT64_MAX;
                    if (key < least) {
                        least = key;
                        task = (rrfp_task){.kind = (uint8_t)(k == 1 && !u->split ? RRFP_BW : k),
                                           .chunk = (uint16_t)c,
                                           .microbatch = m};
                        stage = s;
                        piece = g;
                    }
                }
            }
        }
        done[piece * M + task.microbatch] |= (uint8_t)(task.kind == RRFP_F   ? 1
                                                       : task.kind == RRFP_W ? 4
                                                                             : 2);
        flying[stage] += task.kind == RRFP_F;
        flying[stage] -= task.kind == RRFP_B || task.kind == RRFP_BW;
        u->orders[stage][u->order_counts[stage]++] = task;
    }
    free(done);
}

static inline void orders_free(pipe_setup *u)
{
    for (uint32_t s = 0; s < PIPE_MAX_STAGES; s++) {
        free(u->orders[s]);
        u->orders[s] = NULL;
        u->order_counts[s] = 0;
    }
}

/* A list is a ranking only: any permutation will do. */
static inline void orders_shuffle(pipe_setup *u, uint64_t seed)
{
    for (uint32_t s = 0; s < u->shape.stages; s++) {
        for (size_t i = u->order_counts[s]; i > 1; i--) {
            size_t j = test_random(&seed) % i;
            rrfp_task t = u->orders[s][i - 1];
            u->orders[s][i - 1] = u->orders[s][j];
            u->orders[s][j] = t;
        }
    }
}

/* What executing the orders takes at most on any stage. */
typedef struct order_needs {
    uint64_t slots;
    uint64_t bytes;
    uint64_t pending_w;
} order_needs;

/* How many W of chunk c are done after the first n entries of the order of stage s. */
static inline uint32_t orders_w_done(const pipe_setup *u, uint32_t s, uint32_t c, size_t n)
{
    bool b_done[256] = {false};
    uint32_t places = 0; /* of the chunk's W, or BW */
    uint32_t in_turn = 0;
    for (size_t i = 0; i < n; i++) {
        rrfp_task t = u->orders[s][i];
        if (t.chunk == c && (t.kind == RRFP_B || t.kind == RRFP_BW)) {
            b_done[t.microbatch] = true;
        }
        places += t.chunk == c && (t.kind == RRFP_W || t.kind == RRFP_BW);
    }
    if (u->accumulate == RRFP_ACCUMULATE_ARRIVAL) {
        return places;
    }
    while (in_turn < places && b_done[in_turn]) {
        in_turn++;
    }
    return in_turn;
}

/*
 * Counted from the orders as given, entry by entry and from scratch each time,
 * at the start of every F and B; creation must refuse what is above the budgets
 * and nothing else.
 */
static inline order_needs orders_need(const pipe_setup *u)
{
    order_needs most = {0, 0, 0};
    for (uint32_t s = 0; s < u->shape.stages; s++) {
        for (size_t n = 0; n < u->order_counts[s]; n++) {
            rrfp_task now = u->orders[s][n];
            order_needs here = {0, 0, 0};
            for (uint32_t c = 0; c < u->shape.chunks; c++) {
                uint64_t f = now.kind == RRFP_F && now.chunk == c;
                uint64_t b = 0;
                uint64_t w = orders_w_done(u, s, c, n);
                for (size_t i = 0; i < n; i++) {
                    rrfp_task t = u->orders[s][i];
                    f += t.kind == RRFP_F && t.chunk == c && !u->forward_only;
                    b += (t.kind == RRFP_B || t.kind == RRFP_BW) && t.chunk == c;
                }
                here.slots += f - b;
                here.bytes +=
                    (f - b) * u->activation[c] + (f - (u->forward_only ? 0 : w)) * u->retained[c];
                bool fuses = now.kind == RRFP_BW && orders_w_done(u, s, c, n + 1) > w;
                here.pending_w += b - w;
                here.pending_w +=
                    now.chunk == c && (now.kind == RRFP_B || (now.kind == RRFP_BW && !fuses));
            }
            bool backward = now.kind == RRFP_B || now.kind == RRFP_BW;
            most.slots = here.slots > most.slots ? here.slots : most.slots;
            most.bytes = here.bytes > most.bytes ? here.bytes : most.bytes;
            if (backward && here.pending_w > most.pending_w) {
                most.pending_w = here.pending_w;
            }
        }
    }
    return most;
}

static inline bool orders_fit(const pipe_setup *u)
{
    order_needs n = orders_need(u);
    return n.slots <= (uint64_t)u->max_inflight * u->shape.chunks &&
           (u->max_bytes == 0 || n.bytes <= u->max_bytes) &&
           (u->max_pending_w == 0 || n.pending_w <= u->max_pending_w);
}

#endif /* RRFP_TEST_ORDERS_H */
