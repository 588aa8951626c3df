/* binding.c - shares of the processors: disjoint, complete, inherited; and the order of ranks. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "launch/binding.h"
#include "launch/layout.h"

typedef struct trial {
    const cpu_set_t *before; /* NULL: as it is */
    uint32_t share, shares;
    bool launched;
    rrfp_status status;
    rrfp_error error;
    cpu_set_t own, inherited;
} trial;

static void *look(void *argument)
{
    trial *t = argument;
    sched_getaffinity(0, sizeof t->inherited, &t->inherited);
    return NULL;
}

static void *bind_here(void *argument)
{
    trial *t = argument;
    pthread_t child;
    if (t->before != NULL) {
        sched_setaffinity(0, sizeof *t->before, t->before);
    }
    t->status = rrfp_bind_thread(t->share, t->shares, t->launched, &t->error);
    sched_getaffinity(0, sizeof t->own, &t->own);
    if (pthread_create(&child, NULL, look, t) == 0) {
        pthread_join(child, NULL);
    }
    return NULL;
}

static trial try_share(const cpu_set_t *before, uint32_t share, uint32_t shares, bool launched)
{
    trial t = {.before = before, .share = share, .shares = shares, .launched = launched};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, bind_here, &t), 0);
    pthread_join(thread, NULL);
    if (t.status != RRFP_OK) {
        fail_msg("%s", t.error.text);
    }
    assert_true(CPU_EQUAL(&t.own, &t.inherited));
    return t;
}

static cpu_set_t allowed(void)
{
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    return set;
}

static bool without_hwloc(void)
{
    rrfp_error error;
    if (rrfp_binding_name() != NULL) {
        return false;
    }
    assert_int_equal(rrfp_bind_thread(0, 1, false, &error), RRFP_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.text, "libhwloc-dev"));
    return true;
}

static void shares_divide_the_processors(void **state)
{
    (void)state;
    cpu_set_t all = allowed(), sum, both;
    uint32_t most = (uint32_t)CPU_COUNT(&all);
    for (uint32_t shares = 1; shares <= most && !without_hwloc(); shares++) {
        CPU_ZERO(&sum);
        for (uint32_t share = 0; share < shares; share++) {
            trial t = try_share(NULL, share, shares, false);
            CPU_AND(&both, &sum, &t.own);
            assert_int_equal(CPU_COUNT(&both), 0);
            assert_true(CPU_COUNT(&t.own) >= 1);
            CPU_OR(&sum, &sum, &t.own);
        }
        assert_true(CPU_EQUAL(&sum, &all));
    }
}

/* Twice as many as there are: each has one, each one is had by two. */
static void more_shares_than_processors(void **state)
{
    (void)state;
    cpu_set_t all = allowed();
    uint32_t shares = 2 * (uint32_t)CPU_COUNT(&all);
    unsigned had[CPU_SETSIZE] = {0};
    for (uint32_t share = 0; share < shares && !without_hwloc(); share++) {
        trial t = try_share(NULL, share, shares, false);
        assert_int_equal(CPU_COUNT(&t.own), 1);
        for (int i = 0; i < CPU_SETSIZE; i++) {
            had[i] += CPU_ISSET(i, &t.own) != 0;
        }
    }
    for (int i = 0; i < CPU_SETSIZE && !without_hwloc(); i++) {
        assert_int_equal(had[i], CPU_ISSET(i, &all) ? 2 : 0);
    }
}

/* What taskset left is divided; what a launcher chose for this process is kept. */
static void respects_an_earlier_binding(void **state)
{
    (void)state;
    cpu_set_t all = allowed(), some = all;
    int last = CPU_SETSIZE - 1;
    if (without_hwloc() || CPU_COUNT(&all) < 2) {
        return;
    }
    while (!CPU_ISSET(last, &all)) {
        last--;
    }
    CPU_CLR(last, &some);
    for (uint32_t share = 0; share < 2; share++) {
        trial t = try_share(&some, share, 2, false);
        assert_false(CPU_ISSET(last, &t.own));
        t = try_share(&some, share, 2, true);
        assert_true(CPU_EQUAL(&t.own, &some));
    }
}

/* Two tensor-parallel, three data-parallel, four stages, by hand; and every rank back. */
static void ranks_are_ordered_tp_dp_pp(void **state)
{
    (void)state;
    rrfp_layout layout = {2, 3, 4};
    static const struct {
        uint32_t rank;
        rrfp_layout_place place;
    } rows[] = {{0, {0, 0, 0}}, {1, {1, 0, 0}}, {2, {0, 1, 0}}, {5, {1, 2, 0}},
                {6, {0, 0, 1}}, {9, {1, 1, 1}}, {23, {1, 2, 3}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rrfp_layout_place place = rrfp_layout_place_of(&layout, rows[i].rank);
        assert_int_equal(place.tensor_rank, rows[i].place.tensor_rank);
        assert_int_equal(place.data_rank, rows[i].place.data_rank);
        assert_int_equal(place.stage, rows[i].place.stage);
    }
    for (uint32_t rank = 0; rank < 24; rank++) {
        assert_int_equal(rrfp_layout_rank_of(&layout, rrfp_layout_place_of(&layout, rank)), rank);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_divide_the_processors),
        cmocka_unit_test(more_shares_than_processors),
        cmocka_unit_test(respects_an_earlier_binding),
        cmocka_unit_test(ranks_are_ordered_tp_dp_pp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
