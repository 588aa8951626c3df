/*
 * explorer_alone.h - one stage alone, its messages in every order that any pipeline can make.
 *
 * explorer.h runs whole pipelines and sees only the arrivals that these make; their states
 * multiply, which ends at a handful of pieces.  Here the neighbours are replaced by the most
 * general ones: an input of F may come once the stage's own earlier chunk has done F of that
 * microbatch, an input of B once its own F and its later chunk's B are done, in any order
 * between microbatches.  Whatever the other stages do, for any number of them, this stage sees
 * one of these orders.  So what holds here holds in every pipeline: budgets, dependencies, each
 * task once, the order of sums.
 *
 * Nothing gets stuck either.  The referee checks that a stage never idles while
 *   (a) without a bound on overtaking: a W in turn, or a task of the stage's oldest unfinished
 *       microbatch, has its inputs; or
 *   (b) with a bound: the first F or backward of its order that has not started has its inputs,
 *       or a W could run that is due by then.
 * Suppose that all stages idle, no message is on its way and work is left.  (a) Take the oldest
 * microbatch unfinished on any stage.  If its F and B are done everywhere, some stage has its W,
 * in turn, left.  Else the next task of its chain of F and B has its inputs, on a stage whose
 * oldest unfinished microbatch it is.  (b) Orders that can be executed together have a common
 * sequence; its first F or backward not started has its inputs and is the first of its stage.  If
 * all have started, all have ended, and the oldest W left is due.  Either way a stage idles that
 * may not.
 */
#ifndef RRFP_TEST_EXPLORER_ALONE_H
#define RRFP_TEST_EXPLORER_ALONE_H

#include "support/explorer.h"

/* The piece of stage s next to g on the way down (step -1) or up (+1), by chunk; V if none. */
static inline uint32_t alone_neighbour(const pipeline *p, uint32_t s, uint32_t g, int step)
{
    uint32_t pieces = p->setup.shape.stages * p->setup.shape.chunks;
    for (int64_t h = (int64_t)g + step; h >= 0 && h < pieces; h += step) {
        uint32_t stage, chunk;
        pipe_owner(p, (uint32_t)h, &stage, &chunk);
        if (stage == s) {
            return chunk;
        }
    }
    return p->setup.shape.chunks;
}

static inline bool alone_is_local(const pipeline *p, uint32_t s, uint32_t g)
{
    uint32_t stage, chunk;
    pipe_owner(p, g, &stage, &chunk);
    return stage == s;
}

static inline bool alone_may_arrive(const pipeline *p, uint32_t s, uint32_t c, uint32_t m, uint32_t bit)
{
    const rrfp_shape *shape = &p->setup.shape;
    uint32_t w = *pipe_cell(p, s, c, m), g = pipe_global(p, s, c);
    if (bit == MSG_F) {
        if ((w & GOT_F) || g == 0 || alone_is_local(p, s, g - 1)) {
            return false;
        }
        uint32_t earlier = alone_neighbour(p, s, g, -1);
        return earlier == shape->chunks || (*pipe_cell(p, s, earlier, m) & F_END);
    }
    if ((w & GOT_B) || !(w & F_END) || g + 1 == shape->stages * shape->chunks ||
        alone_is_local(p, s, g + 1) || p->setup.forward_only) {
        return false;
    }
    uint32_t later = alone_neighbour(p, s, g, 1);
    return later == shape->chunks || (*pipe_cell(p, s, later, m) & B_END);
}

static inline void alone_begin(pipeline *p, uint32_t s)
{
    rrfp_action actions[RRFP_MAX_ACTIONS];
    memset(p->word, 0, p->words * sizeof *p->word);
    size_t count = rrfp_stage_begin_step(p->machine[s], actions);
    pipe_apply(p, s, actions, count);
}

/* Every event of the state on top; false if there is none. */
static inline bool alone_expand(explorer *x, uint32_t s)
{
    pipeline *p = x->pipe;
    bool any = false;
    explore_load(x, s);
    if (*pipe_stage_word(p, s) & STAGE_RUNS) {
        pipe_finish(p, s);
        explore_sends(x, s);
        explore_push(x, s);
        any = true;
    }
    for (uint32_t c = 0; c < p->setup.shape.chunks; c++) {
        for (uint32_t m = 0; m < p->setup.shape.microbatches; m++) {
            for (uint32_t bit = MSG_F; bit <= MSG_B; bit <<= 1) {
                explore_load(x, s);
                if (alone_may_arrive(p, s, c, m, bit)) {
                    pipe_deliver(p, s, c, m, bit);
                    explore_sends(x, s);
                    explore_push(x, s);
                    any = true;
                }
            }
        }
    }
    return any;
}

/* Explores stage s of the pipe in all of it or to the first fault (in pipe->fault); returns states. */
static inline size_t explore_alone(pipeline *p, uint32_t s, unsigned long *transitions)
{
    explorer x = {.pipe = p};
    x.offset[s] = (p->words * sizeof(uint32_t) + 7) / 8 * 8;
    x.state_bytes = x.offset[s] + rrfp_stage_snapshot_bytes(p->machine[s]);
    x.now = explore_alloc(x.state_bytes);
    alone_begin(p, s);
    explore_sends(&x, s);
    explore_push(&x, s);
    while (x.depth > 0 && p->fault[0] == '\0') {
        x.depth--;
        memcpy(x.now, x.stack + x.depth * x.state_bytes, x.state_bytes);
        if (!alone_expand(&x, s)) {
            explore_load(&x, s);
            pipe_check_stage_end(p, s);
        }
    }
    *transitions += x.transitions;
    free(x.now);
    free(x.stack);
    free(x.seen);
    return x.states;
}

#endif /* RRFP_TEST_EXPLORER_ALONE_H */
