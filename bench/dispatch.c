/*
 * dispatch.c - what one decision of the stage machine costs.
 *
 * The last stage of a pipeline of two is fed by hand: N activations are ready
 * all the time (arriving up to 16 places out of order), and each F that ends is
 * followed by one more.  Timed is everything the machine does for a task: its
 * end, the input that follows an F, release and ready set, and the choice of
 * the next task.  The work should not grow with N.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rrfp/stage.h"

enum { MICROBATCHES = RRFP_MAX_MICROBATCHES, TASKS = 32768, REPEATS = 21 };

typedef struct hint {
    const char *name;
    rrfp_rule rule;
    bool split;
} hint;

static void fail(const char *what)
{
    fprintf(stderr, "bench_dispatch: %s\n", what);
    exit(1);
}

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static void print_machine(void)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    printf("machine: ");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':') != NULL) {
            printf("%s", strchr(line, ':') + 2);
            fclose(file);
            return;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    printf("unknown processor\n");
}

/* All microbatches, each group of 16 shuffled. */
static uint32_t *arrival_order(void)
{
    uint32_t *order = malloc(MICROBATCHES * sizeof *order);
    uint64_t seed = 1;
    if (order == NULL) {
        fail("no memory");
    }
    for (uint32_t i = 0; i < MICROBATCHES; i++) {
        order[i] = i;
    }
    for (uint32_t i = 0; i < MICROBATCHES; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint32_t j = i - i % 16 + (uint32_t)((seed >> 33) % (i % 16 + 1));
        uint32_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    return order;
}

/* F(0) BW(0) F(1) BW(1) .... */
static rrfp_task *list_of(bool split, size_t *count)
{
    rrfp_task *list = calloc(3 * (size_t)MICROBATCHES, sizeof *list);
    if (list == NULL) {
        fail("no memory");
    }
    *count = 0;
    for (uint32_t m = 0; m < MICROBATCHES; m++) {
        list[(*count)++] = (rrfp_task){.kind = RRFP_F, .microbatch = m};
        list[(*count)++] = (rrfp_task){.kind = split ? RRFP_B : RRFP_BW, .microbatch = m};
        if (split) {
            list[(*count)++] = (rrfp_task){.kind = RRFP_W, .microbatch = m};
        }
    }
    return list;
}

static const rrfp_action *feed(rrfp_stage *stage, rrfp_event_kind kind, rrfp_task task,
                               rrfp_action *actions)
{
    rrfp_event event = {.kind = kind, .task = task};
    rrfp_error error;
    size_t count;
    if (rrfp_stage_handle(stage, &event, actions, &count, &error) != RRFP_OK) {
        fail(error.text);
    }
    for (size_t i = 0; i < count; i++) {
        if (actions[i].kind == RRFP_ACTION_START) {
            return &actions[i];
        }
    }
    return NULL;
}

/* Nanoseconds per task of one timed run with `outstanding` activations ready. */
static double run_once(rrfp_stage *stage, const uint32_t *arrivals, uint32_t outstanding)
{
    rrfp_action actions[RRFP_MAX_ACTIONS];
    rrfp_task running = {.microbatch = 0};
    uint32_t next = 0;
    rrfp_stage_begin_step(stage, actions);
    while (next < outstanding) {
        const rrfp_action *start =
            feed(stage, RRFP_EVENT_INPUT,
                 (rrfp_task){.kind = RRFP_F, .microbatch = arrivals[next++]}, actions);
        running = start != NULL ? start->task : running;
    }
    double before = now_ns();
    for (uint32_t i = 0; i < TASKS; i++) {
        rrfp_task ended = running;
        const rrfp_action *start = feed(stage, RRFP_EVENT_TASK_FINISHED, ended, actions);
        if (start == NULL) {
            fail("the stage ran out of work");
        }
        running = start->task;
        if (ended.kind == RRFP_F) {
            feed(stage, RRFP_EVENT_INPUT,
                 (rrfp_task){.kind = RRFP_F, .microbatch = arrivals[next++]}, actions);
        }
    }
    return (now_ns() - before) / TASKS;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const hint *h, uint32_t outstanding, const uint32_t *arrivals)
{
    double ns[REPEATS];
    size_t count = 0;
    rrfp_task *list = h->rule == RRFP_RULE_LIST ? list_of(h->split, &count) : NULL;
    rrfp_stage_config config = {.struct_size = sizeof config,
                                .shape = {.stages = 2, .chunks = 1, .microbatches = MICROBATCHES},
                                .stage = 1,
                                .rule = h->rule,
                                .split_backward = h->split,
                                .accumulate = RRFP_ACCUMULATE_ORDERED,
                                .hint_distance = RRFP_DISTANCE_UNBOUNDED,
                                .budget = {.max_inflight = 32, .max_pending_w = 32},
                                .order = list,
                                .order_count = count};
    rrfp_stage *stage = NULL;
    rrfp_error error;
    if (rrfp_stage_create(&config, &stage, &error) != RRFP_OK) {
        fail(error.text);
    }
    for (int i = 0; i < REPEATS; i++) {
        ns[i] = run_once(stage, arrivals, outstanding);
    }
    qsort(ns, REPEATS, sizeof ns[0], by_value);
    printf("%-12s %8u %10.1f %10.1f %10.1f\n", h->name, outstanding, ns[0], ns[REPEATS / 2],
           ns[REPEATS - 1]);
    rrfp_stage_destroy(stage);
    free(list);
}

int main(void)
{
    static const hint hints[] = {{"bf", RRFP_RULE_BF, false},
                                 {"bfw", RRFP_RULE_BFW, true},
                                 {"list", RRFP_RULE_LIST, false},
                                 {"list, split", RRFP_RULE_LIST, true}};
    static const uint32_t outstanding[] = {64, 1024, 16384};
    uint32_t *arrivals = arrival_order();
    print_machine();
    printf("nanoseconds per task, %d tasks, %d repeats\n", TASKS, REPEATS);
    printf("%-12s %8s %10s %10s %10s\n", "hint", "ready", "min", "median", "max");
    for (size_t h = 0; h < sizeof hints / sizeof hints[0]; h++) {
        for (size_t n = 0; n < 3; n++) {
            measure(&hints[h], outstanding[n], arrivals);
        }
    }
    free(arrivals);
    return 0;
}
