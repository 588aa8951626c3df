/*
 * random_walk.c - larger pipelines, one random interleaving each.
 *
 * RRFP_TEST_SEED repeats a seed, RRFP_TEST_COUNT sets how many are walked.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "support/orders.h"

typedef struct happening {
    uint32_t stage, chunk, microbatch, bit; /* bit 0: the running task ends */
} happening;

static uint32_t pick(uint64_t *seed, const uint32_t *values, uint32_t count)
{
    return values[test_below(seed, count)];
}

static void random_setup(pipe_setup *u, uint64_t *seed)
{
    static const uint32_t small[] = {1, 2, 3, 4};
    static const uint32_t large[] = {1, 2, 5, 8, 16};
    bool big = test_below(seed, 10) == 0;
    memset(u, 0, sizeof *u);
    u->shape.stages = big ? pick(seed, large, 5) : 1 + test_below(seed, 4);
    u->shape.chunks = pick(seed, small, 4);
    u->shape.microbatches = 1 + test_below(seed, big ? 64 : 12);
    if (u->shape.chunks == 2 && test_below(seed, 2)) {
        u->shape.placement = RRFP_PLACEMENT_V;
    }
    u->split = test_below(seed, 2);
    u->forward_only = test_below(seed, 16) == 0;
    u->rule = (rrfp_rule)test_below(seed, RRFP_RULE_F_PRIO + 1);
    if (u->rule == RRFP_RULE_BFW) {
        u->split = true;
    }
    u->accumulate = (rrfp_accumulate)test_below(seed, 2);
    u->max_inflight = 1 + test_below(seed, test_below(seed, 2) ? 3 : 12);
    u->max_pending_w = test_below(seed, 5);
    u->distance = RRFP_DISTANCE_UNBOUNDED;
    if (!big && test_below(seed, 3) == 0) {
        u->distance = test_below(seed, 6);
    }
    uint64_t whole = 0;
    for (uint32_t c = 0; c < u->shape.chunks; c++) {
        u->activation[c] = test_below(seed, 6);
        u->retained[c] = test_below(seed, 6);
        whole += u->activation[c] + u->retained[c];
    }
    if (test_below(seed, 2)) {
        u->max_bytes = whole + test_below(seed, 3 * (uint32_t)whole + 1);
    }
    if (u->distance != RRFP_DISTANCE_UNBOUNDED || u->rule == RRFP_RULE_LIST) {
        orders_make(u, (order_style)test_below(seed, ORDER_STYLES), test_random(seed));
        if (u->distance == RRFP_DISTANCE_UNBOUNDED && test_below(seed, 2)) {
            orders_shuffle(u, test_random(seed));
        }
    }
}

static uint32_t collect(const pipeline *p, happening *list)
{
    uint32_t count = 0;
    const rrfp_shape *shape = &p->setup.shape;
    for (uint32_t s = 0; s < shape->stages; s++) {
        if (*pipe_stage_word(p, s) & STAGE_RUNS) {
            list[count++] = (happening){s, 0, 0, 0};
        }
        for (uint32_t c = 0; c < shape->chunks; c++) {
            for (uint32_t m = 0; m < shape->microbatches; m++) {
                uint32_t w = *pipe_cell(p, s, c, m) & (MSG_F | MSG_B | OUT_F | OUT_B);
                for (; w != 0; w &= w - 1) {
                    list[count++] = (happening){s, c, m, w & (~w + 1)};
                }
            }
        }
    }
    return count;
}

/* Is the event due, or could it be for all that stage s alone can know? */
static bool plausible(const pipeline *p, uint32_t s, const rrfp_event *event)
{
    const rrfp_shape *shape = &p->setup.shape;
    uint32_t c = event->task.chunk;
    uint32_t m = event->task.microbatch;
    rrfp_task running = pipe_running(p, s);
    bool f = event->task.kind == RRFP_F;
    bool b = event->task.kind == RRFP_B;
    if (c >= shape->chunks || m >= shape->microbatches) {
        return false;
    }
    uint32_t w = *pipe_cell(p, s, c, m);
    uint32_t g = pipe_global(p, s, c);
    switch (event->kind) {
    case RRFP_EVENT_TASK_FINISHED:
        return (*pipe_stage_word(p, s) & STAGE_RUNS) && running.kind == event->task.kind &&
               running.chunk == c && running.microbatch == m;
    case RRFP_EVENT_SEND_COMPLETED:
        return (f && (w & OUT_F)) || (b && (w & OUT_B));
    case RRFP_EVENT_INPUT:
        if (f && g > 0) {
            bool local = c > 0 && pipe_global(p, s, c - 1) + 1 == g;
            return !local && !(w & GOT_F) && (c == 0 || (*pipe_cell(p, s, c - 1, m) & F_END));
        }
        if (b && !p->setup.forward_only && g + 1 < shape->stages * shape->chunks) {
            bool inner = c + 1 < shape->chunks;
            bool local = inner && pipe_global(p, s, c + 1) == g + 1;
            return !local && (w & F_END) && !(w & GOT_B) &&
                   (!inner || (*pipe_cell(p, s, c + 1, m) & B_END));
        }
        break;
    }
    return false;
}

/* An event that cannot be is refused and leaves no trace. */
static void try_bad_event(pipeline *p, uint64_t *seed)
{
    const rrfp_shape *shape = &p->setup.shape;
    uint32_t s = test_below(seed, shape->stages);
    uint32_t c = test_below(seed, shape->chunks + 1);
    uint32_t m = test_below(seed, shape->microbatches + 1);
    rrfp_event event = {
        .kind = (rrfp_event_kind)test_below(seed, 3),
        .task = {.kind = (uint8_t)test_below(seed, 5), .chunk = (uint16_t)c, .microbatch = m}};
    if (plausible(p, s, &event)) {
        return;
    }
    size_t bytes = rrfp_stage_snapshot_bytes(p->machine[s]);
    uint8_t *before = malloc(2 * bytes);
    rrfp_action actions[RRFP_MAX_ACTIONS];
    rrfp_error error = {.text = ""};
    size_t count = 77;
    assert_non_null(before);
    rrfp_stage_snapshot(p->machine[s], before);
    rrfp_status status = rrfp_stage_handle(p->machine[s], &event, actions, &count, &error);
    rrfp_stage_snapshot(p->machine[s], before + bytes);
    if (status == RRFP_OK || error.text[0] == '\0' || count != 77 ||
        memcmp(before, before + bytes, bytes) != 0) {
        pipe_fault(p, "stage %u accepts event %d of %s(%u,%u)", s, (int)event.kind,
                   rrfp_kind_name((rrfp_kind)event.task.kind), c, m);
    }
    free(before);
}

static void walk_step(pipeline *p, happening *list, uint64_t *seed)
{
    pipe_begin(p);
    while (p->fault[0] == '\0') {
        uint32_t count = collect(p, list);
        if (count == 0) {
            break;
        }
        happening h = list[test_below(seed, count)];
        if (h.bit == 0) {
            pipe_finish(p, h.stage);
        } else if (h.bit & (MSG_F | MSG_B)) {
            pipe_deliver(p, h.stage, h.chunk, h.microbatch, h.bit);
        } else {
            pipe_sent(p, h.stage, h.chunk, h.microbatch, h.bit);
        }
        if (test_below(seed, 8) == 0) {
            try_bad_event(p, seed);
        }
    }
    pipe_check_end(p);
}

static unsigned long walk(uint64_t first_seed)
{
    uint64_t seed = first_seed;
    pipe_setup u;
    pipeline p;
    rrfp_error error;
    random_setup(&u, &seed);
    bool fits = u.distance == RRFP_DISTANCE_UNBOUNDED || orders_fit(&u);
    rrfp_status status = pipe_create(&p, &u, &error);
    if (status != (fits ? RRFP_OK : RRFP_ERR_INFEASIBLE)) {
        pipe_describe(&u, stderr);
        fail_msg("seed %llu: the order %s, creation says: %s", (unsigned long long)first_seed,
                 fits ? "fits" : "does not fit", status == RRFP_OK ? "fine" : error.text);
    }
    unsigned long starts = 0;
    if (fits) {
        happening *list = calloc((size_t)p.words * 4, sizeof *list);
        assert_non_null(list);
        for (int step = 0; step < 2 && p.fault[0] == '\0'; step++) {
            walk_step(&p, list, &seed);
        }
        free(list);
        if (p.fault[0] != '\0') {
            pipe_describe(&u, stderr);
            fail_msg("seed %llu: %s", (unsigned long long)first_seed, p.fault);
        }
        starts = p.starts;
        pipe_destroy(&p);
    }
    orders_free(&u);
    return starts;
}

static void test_random_walks(void **state)
{
    (void)state;
    const char *seed_text = getenv("RRFP_TEST_SEED");
    const char *count_text = getenv("RRFP_TEST_COUNT");
    uint64_t seed = seed_text != NULL ? strtoull(seed_text, NULL, 10) : 1;
#ifdef RRFP_SANITIZED
    uint64_t count = 200;
#else
    uint64_t count = 2000;
#endif
    count = count_text != NULL ? strtoull(count_text, NULL, 10) : count;
    unsigned long starts = 0;
    printf("seeds %llu to %llu\n", (unsigned long long)seed,
           (unsigned long long)(seed + count - 1));
    for (uint64_t i = 0; i < count; i++) {
        starts += walk(seed + i);
    }
    printf("%lu tasks\n", starts);
    assert_true(starts > count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_walks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
