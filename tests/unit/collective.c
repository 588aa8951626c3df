/* collective.c - all-reduce, reduce-scatter and all-gather of threads, against sums by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "collective/collective.h"

enum { MOST = 8, ROUNDS = 200 };

typedef struct rank {
    rrfp_collective *group;
    pthread_t thread;
    size_t count;
    bool ok;
} rank;

/* What member m contributes as element i of round n: not representable sums, so order shows. */
static float value(uint32_t m, size_t i, uint32_t n)
{
    return (float)((double)((m * 7919 + i * 104729 + n * 31) % 1000) / 7.0 - 60.0) *
           (m % 2 == 0 ? 1.0f : 1e-3f);
}

static float sum_in_member_order(uint32_t members, size_t i, uint32_t n)
{
    float total = value(0, i, n);
    for (uint32_t m = 1; m < members; m++) {
        total += value(m, i, n);
    }
    return total;
}

static bool check_rounds(rank *self)
{
    const uint32_t size = self->group->size, me = self->group->rank;
    const size_t count = self->count;
    float *data = malloc((count * size + 1) * sizeof *data);
    float *part = malloc((count + 1) * sizeof *part);
    bool ok = data != NULL && part != NULL;
    for (uint32_t n = 0; ok && n < ROUNDS; n++) {
        for (size_t i = 0; i < count; i++) {
            data[i] = value(me, i, n);
        }
        rrfp_all_reduce(self->group, data, count);
        for (size_t i = 0; i < count; i++) {
            ok = ok && data[i] == sum_in_member_order(size, i, n);
        }
        for (size_t i = 0; i < count * size; i++) {
            data[i] = value(me, i, n);
        }
        rrfp_reduce_scatter(self->group, data, part, count);
        for (size_t i = 0; i < count; i++) {
            ok = ok && part[i] == sum_in_member_order(size, me * count + i, n);
        }
        rrfp_all_gather(self->group, part, data, count * sizeof *part);
        for (size_t i = 0; i < count * size; i++) {
            ok = ok && data[i] == sum_in_member_order(size, i, n);
        }
        /* In place. */
        float *mine = data + me * count;
        for (size_t i = 0; i < count; i++) {
            mine[i] = value(me, i, n);
        }
        rrfp_all_gather(self->group, mine, data, count * sizeof *data);
        for (size_t i = 0; i < count * size; i++) {
            ok = ok && data[i] == value((uint32_t)(i / count), i % count, n);
        }
    }
    free(data);
    free(part);
    return ok;
}

static void *rounds_main(void *argument)
{
    rank *self = argument;
    self->ok = check_rounds(self);
    return NULL;
}

static void run_all(uint32_t members, size_t count)
{
    rank ranks[MOST];
    rrfp_collective *handles[MOST];
    rrfp_error error;
    assert_int_equal(rrfp_collective_threads(members, handles, &error), RRFP_OK);
    for (uint32_t m = 0; m < members; m++) {
        ranks[m] = (rank){.group = handles[m], .count = count};
        assert_int_equal(pthread_create(&ranks[m].thread, NULL, rounds_main, &ranks[m]), 0);
    }
    for (uint32_t m = 0; m < members; m++) {
        pthread_join(ranks[m].thread, NULL);
        assert_true(ranks[m].ok);
        assert_int_equal(rrfp_collective_failure(handles[m], &error), RRFP_OK);
        rrfp_collective_destroy(handles[m]);
    }
}

static void test_sums_in_member_order(void **state)
{
    (void)state;
    const size_t counts[] = {0, 1, 3, 17, 4099};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        run_all(1, counts[i]);
        run_all(2, counts[i]);
        run_all(3, counts[i]);
        run_all(8, counts[i]);
    }
}

static void *wait_main(void *argument)
{
    rank *self = argument;
    float data = 1.0f;
    rrfp_error error;
    rrfp_all_reduce(self->group, &data, 1);
    self->ok = rrfp_collective_failure(self->group, &error) == RRFP_ERR_PEER;
    rrfp_all_reduce(self->group, &data, 1); /* returns at once */
    return NULL;
}

static void test_abort_ends_those_who_wait(void **state)
{
    (void)state;
    rrfp_collective *handles[3];
    rank ranks[2];
    rrfp_error error;
    float data = 0.0f;
    assert_int_equal(rrfp_collective_threads(3, handles, &error), RRFP_OK);
    for (uint32_t m = 0; m < 2; m++) {
        ranks[m] = (rank){.group = handles[m]};
        assert_int_equal(pthread_create(&ranks[m].thread, NULL, wait_main, &ranks[m]), 0);
    }
    rrfp_collective_abort(handles[2]);
    rrfp_all_reduce(handles[2], &data, 1);
    for (uint32_t m = 0; m < 2; m++) {
        pthread_join(ranks[m].thread, NULL);
        assert_true(ranks[m].ok);
    }
    for (uint32_t m = 0; m < 3; m++) {
        rrfp_collective_destroy(handles[m]);
    }
}

static void *gather_main(void *argument)
{
    rank *self = argument;
    float all[2], one = 1.0f;
    rrfp_error error;
    rrfp_all_gather(self->group, &one, all, sizeof one);
    self->ok = rrfp_collective_failure(self->group, &error) == RRFP_ERR_INTERNAL;
    return NULL;
}

static void test_different_calls_are_an_error(void **state)
{
    (void)state;
    rrfp_collective *handles[2];
    rank other;
    rrfp_error error;
    float data[2] = {0.0f, 0.0f};
    assert_int_equal(rrfp_collective_threads(2, handles, &error), RRFP_OK);
    other = (rank){.group = handles[1]};
    assert_int_equal(pthread_create(&other.thread, NULL, gather_main, &other), 0);
    rrfp_all_reduce(handles[0], data, 2);
    pthread_join(other.thread, NULL);
    assert_true(other.ok);
    assert_int_equal(rrfp_collective_failure(handles[0], &error), RRFP_ERR_INTERNAL);
    assert_non_null(strstr(error.text, "different collective calls"));
    rrfp_collective_destroy(handles[0]);
    rrfp_collective_destroy(handles[1]);
}

static void test_size_is_checked(void **state)
{
    (void)state;
    rrfp_collective *handle;
    rrfp_error error;
    assert_int_equal(rrfp_collective_threads(0, &handle, &error), RRFP_ERR_INVALID);
    assert_int_equal(rrfp_collective_threads(1025, &handle, &error), RRFP_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_in_member_order),
        cmocka_unit_test(test_abort_ends_those_who_wait),
        cmocka_unit_test(test_different_calls_are_an_error),
        cmocka_unit_test(test_size_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
