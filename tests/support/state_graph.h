/*
 * state_graph.h - all states of a small system, once each, and the steps between them.
 *
 * The user pushes states (plain bytes, equal iff the same) and pops those not yet expanded.  At the
 * end graph_stuck() names a state from which no final one can be reached: a deadlock, or a circle
 * without a way out.
 */
#ifndef RRFP_TEST_STATE_GRAPH_H
#define RRFP_TEST_STATE_GRAPH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct state_graph {
    size_t bytes;
    size_t count, expanded, room;
    unsigned char *states; /* [count * bytes] */
    uint32_t *table;       /* open addressing, index + 1 */
    size_t table_size;     /* a power of two */
    bool *final;           /* [room] */
    uint32_t (*edges)[2];
    size_t edge_count, edge_room;
} state_graph;

static inline void *graph_grow(void *memory, size_t bytes)
{
    void *grown = realloc(memory, bytes);
    if (grown == NULL) {
        fprintf(stderr, "out of memory for %zu bytes of states\n", bytes);
        exit(1);
    }
    return grown;
}

static inline uint64_t graph_hash(const unsigned char *state, size_t bytes)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ state[i]) * UINT64_C(0x100000001b3);
    }
    return hash ^ hash >> 29;
}

static inline void graph_place(state_graph *g, uint32_t index)
{
    size_t at = graph_hash(g->states + index * g->bytes, g->bytes) & (g->table_size - 1);
    while (g->table[at] != 0) {
        at = (at + 1) & (g->table_size - 1);
    }
    g->table[at] = index + 1;
}

static inline void graph_make_room(state_graph *g)
{
    if (g->count < g->room) {
        return;
    }
    g->room = g->room == 0 ? 1024 : 2 * g->room;
    g->states = graph_grow(g->states, g->room * g->bytes);
    g->final = graph_grow(g->final, g->room * sizeof *g->final);
    free(g->table);
    g->table_size = 4 * g->room;
    g->table = graph_grow(NULL, g->table_size * sizeof *g->table);
    memset(g->table, 0, g->table_size * sizeof *g->table);
    for (uint32_t i = 0; i < g->count; i++) {
        graph_place(g, i);
    }
}

/* Index of the state, which is added if it is new. */
static inline uint32_t graph_add(state_graph *g, const void *state)
{
    graph_make_room(g);
    size_t at = graph_hash(state, g->bytes) & (g->table_size - 1);
    for (; g->table[at] != 0; at = (at + 1) & (g->table_size - 1)) {
        if (memcmp(g->states + (g->table[at] - 1) * g->bytes, state, g->bytes) == 0) {
            return g->table[at] - 1;
        }
    }
    memcpy(g->states + g->count * g->bytes, state, g->bytes);
    g->final[g->count] = false;
    g->table[at] = (uint32_t)g->count + 1;
    return (uint32_t)g->count++;
}

static inline void graph_step(state_graph *g, uint32_t from, const void *state)
{
    uint32_t to = graph_add(g, state);
    if (g->edge_count == g->edge_room) {
        g->edge_room = g->edge_room == 0 ? 4096 : 2 * g->edge_room;
        g->edges = graph_grow(g->edges, g->edge_room * sizeof *g->edges);
    }
    g->edges[g->edge_count][0] = from;
    g->edges[g->edge_count++][1] = to;
}

/* Index of a state from which no final one can be reached, or `count`. */
static inline size_t graph_stuck(const state_graph *g)
{
    bool *leads = calloc(g->count + 1, sizeof *leads);
    size_t stuck = 0;
    bool changed = leads != NULL;
    for (size_t i = 0; leads != NULL && i < g->count; i++) {
        leads[i] = g->final[i];
    }
    while (changed) { /* edges were made roughly forwards, so few rounds do */
        changed = false;
        for (size_t e = g->edge_count; e-- > 0;) {
            if (!leads[g->edges[e][0]] && leads[g->edges[e][1]]) {
                leads[g->edges[e][0]] = changed = true;
            }
        }
    }
    while (leads != NULL && stuck < g->count && leads[stuck]) {
        stuck++;
    }
    free(leads);
    return stuck;
}

static inline void graph_free(state_graph *g)
{
    free(g->states);
    free(g->table);
    free(g->final);
    free(g->edges);
}

#endif /* RRFP_TEST_STATE_GRAPH_H */
