/*
 * hint_file.c - training by a schedule file: whatever valid order it holds, the bits are those
 * of one stage.
 *
 * The random files are linearizations of the task graph made here: of all tasks whose inputs
 * have run, any one is next on its row.  They keep F < I < W of each microbatch and are
 * feasible, and are in no microbatch order at all.
 */
#include <stdlib.h>
#include <unistd.h>

#include "support/tiny_run.h"

enum { RANDOM_FILES = 40, MAX_ITEMS = 8 * 8 };

static char path[256];
static tiny_result expect[9]; /* by microbatches */

static int set_up(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "%s/hint_file_%ld.csv", RRFP_TEST_BINARY_DIR, (long)getpid());
    for (uint32_t m = 1; m <= 8; m++) {
        tiny_run reference;
        rrfp_error error = {0};
        tiny_defaults(&reference, RRFP_ARCH_GPT2, m);
        reference.config.hint_distance = 0;
        if (tiny_execute(&reference, &expect[m], &error) != RRFP_OK) {
            print_error("one stage: %s\n", error.text);
            return -1;
        }
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove(path);
    return 0;
}

static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % below);
}

static uint64_t train(uint32_t stages, uint32_t chunks, uint32_t count, uint32_t distance,
                      rrfp_budget budget, uint64_t seed, const char *what)
{
    tiny_run run;
    tiny_result got;
    rrfp_error error = {0};
    char label[200];
    snprintf(label, sizeof label,
             "%s, seed %u: pp %u v %u M %u distance %u max_inflight %u max_pending_w %u", what,
             (unsigned)seed, stages, chunks, count, distance, budget.max_inflight,
             budget.max_pending_w);
    tiny_defaults(&run, RRFP_ARCH_GPT2, count);
    run.config.hint = path;
    run.config.stages = stages;
    run.config.chunks = chunks;
    run.config.hint_distance = distance;
    run.budget = budget;
    assert_int_equal(
        rrfp_jitter_parse("lognormal:1.0,scale:0.2", seed, &run.config.jitter, &error), RRFP_OK);
    if (tiny_execute(&run, &got, &error) != RRFP_OK) {
        fail_msg("%s: %s", label, error.text);
    }
    const tiny_result *one = &expect[count];
    if (memcmp(one->loss_bits, got.loss_bits, sizeof got.loss_bits) != 0 ||
        memcmp(one->norm_bits, got.norm_bits, sizeof got.norm_bits) != 0 ||
        one->eval_bits != got.eval_bits || strcmp(one->sha256, got.sha256) != 0) {
        fail_msg("%s: not the bits of one stage", label);
    }
    for (uint32_t s = 0; s < stages; s++) {
        assert_true(budget.max_inflight == 0 ||
                    got.peak_inflight[s] <= budget.max_inflight * chunks);
        assert_true(budget.max_pending_w == 0 || got.peak_pending_w[s] <= budget.max_pending_w);
    }
    return got.out_of_hint;
}

static void write_named(const char *name, uint32_t stages, uint32_t chunks, uint32_t count)
{
    rrfp_budget budgets[8] = {{0}};
    rrfp_hint_request request = {.struct_size = sizeof request, .hint = name, .stages = stages,
                                 .chunks = chunks, .microbatches = count, .hint_distance = 0,
                                 .budgets = budgets};
    rrfp_hint *hint = NULL;
    rrfp_error error = {0};
    assert_int_equal(rrfp_hint_build(&request, &hint, &error), RRFP_OK);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(rrfp_hint_write_csv(hint, true, file, &error), RRFP_OK);
    assert_int_equal(fclose(file), 0);
    rrfp_hint_destroy(hint);
}

static void named_schedules_by_file(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t stages, chunks, count;
    } cases[] = {{"1f1b", 4, 1, 8}, {"1f1b", 1, 1, 3}, {"interleaved", 2, 2, 4},
                 {"zb-h2", 4, 1, 7}, {"zb-v", 2, 2, 8}, {"bfw", 3, 1, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t p = cases[i].stages, v = cases[i].chunks, m = cases[i].count;
        write_named(cases[i].name, p, v, m);
        /* Microbatch order throughout, so a fixed order is followed to the letter. */
        assert_int_equal(train(p, v, m, 0, (rrfp_budget){0}, i + 1, cases[i].name), 0);
        train(p, v, m, RRFP_DISTANCE_UNBOUNDED, (rrfp_budget){0}, i + 1, cases[i].name);
        train(p, v, m, RRFP_DISTANCE_UNBOUNDED, (rrfp_budget){2, 1, 0}, i + 1, cases[i].name);
    }
}

/* A random linearization; `done` holds bits F=1, I or B=2, W=4 of each (global chunk, m). */
static void write_random(uint32_t stages, uint32_t chunks, uint32_t count, bool v_placement,
                         bool split, uint64_t *random)
{
    enum { ROW_BYTES = 3 * MAX_ITEMS * 12 };
    uint32_t globals = stages * chunks;
    uint8_t done[MAX_ITEMS] = {0};
    char *rows = calloc(stages, ROW_BYTES);
    assert_non_null(rows);
    assert_true(globals * count <= MAX_ITEMS);
    for (;;) {
        struct {
            uint32_t item, bit;
        } ready[3 * MAX_ITEMS];
        uint32_t found = 0;
        for (uint32_t i = 0; i < globals * count; i++) {
            uint32_t g = i / count;
            uint32_t bit = 0;
            if (!(done[i] & 1)) {
                bit = g == 0 || (done[i - count] & 1) ? 1 : 0;
            } else if (!(done[i] & 2)) {
                bit = g + 1 == globals || (done[i + count] & 2) ? 2 : 0;
            } else if (split && !(done[i] & 4)) {
                bit = 4;
            }
            if (bit != 0) {
                ready[found].item = i;
                ready[found++].bit = bit;
            }
        }
        if (found == 0) {
            break;
        }
        uint32_t pick = draw(random, found), i = ready[pick].item, bit = ready[pick].bit;
        uint32_t g = i / count, row = g % stages;
        if (v_placement) {
            row = g < stages ? g : 2 * stages - 1 - g;
        }
        char *text = rows + (size_t)row * ROW_BYTES;
        size_t used = strlen(text);
        snprintf(text + used, ROW_BYTES - used, "%u%c%u,", g,
                 bit == 1   ? 'F'
                 : bit == 4 ? 'W'
                 : split    ? 'I'
                            : 'B',
                 i % count);
        done[i] |= (uint8_t)bit;
    }
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (uint32_t s = 0; s < stages; s++) {
        fprintf(file, "%s\n", rows + (size_t)s * ROW_BYTES);
    }
    assert_int_equal(fclose(file), 0);
    free(rows);
}

static void random_orders_by_file(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= RANDOM_FILES; seed++) {
        uint64_t random = seed * 0x9E3779B97F4A7C15u;
        uint32_t chunks = 1 + draw(&random, 2);
        uint32_t stages = 1 + draw(&random, 4);
        uint32_t count = 1 + draw(&random, 8);
        bool split = draw(&random, 2) == 1, v = chunks == 2 && draw(&random, 2) == 1;
        rrfp_budget tight = {1 + draw(&random, 2), 1 + draw(&random, 2), 0};
        write_random(stages, chunks, count, v, split, &random);
        train(stages, chunks, count, 0, (rrfp_budget){0}, seed, "random file");
        train(stages, chunks, count, RRFP_DISTANCE_UNBOUNDED, (rrfp_budget){0}, seed,
              "random file");
        train(stages, chunks, count, 3, (rrfp_budget){0}, seed, "random file");
        train(stages, chunks, count, 0, tight, seed, "random file");
        train(stages, chunks, count, RRFP_DISTANCE_UNBOUNDED, tight, seed, "random file");
    }
}

/* A file for another shape is refused before anything runs. */
static void another_shape_is_refused(void **state)
{
    (void)state;
    tiny_run run;
    tiny_result got;
    rrfp_error error = {0};
    write_named("1f1b", 2, 1, 4);
    tiny_defaults(&run, RRFP_ARCH_GPT2, 4);
    run.config.hint = path;
    run.config.stages = 3;
    assert_int_equal(tiny_execute(&run, &got, &error), RRFP_ERR_INFEASIBLE);
    assert_non_null(strstr(error.text, "has 2 ranks, the run wants 3"));
    run.config.stages = 2;
    run.config.microbatches = 5;
    assert_int_equal(tiny_execute(&run, &got, &error), RRFP_ERR_INFEASIBLE);
    assert_non_null(strstr(error.text, "has 4 microbatches, the run wants 5"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(named_schedules_by_file),
        cmocka_unit_test(random_orders_by_file),
        cmocka_unit_test(another_shape_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
