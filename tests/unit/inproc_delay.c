/* inproc_delay.c - messages with delays: order of due times, ownership, clean ends. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/rng.h"
#include "support/endpoints.h"

static rrfp_error error;

/* Seconds by microbatch. */
static double delay_from_table(void *context, const rrfp_message_header *header)
{
    return ((const double *)context)[header->microbatch];
}

static double random_delay(void *context, const rrfp_message_header *header)
{
    rrfp_rng_key key = {.seed = *(const uint64_t *)context, .stream = RRFP_RNG_JITTER,
                        .a = header->source_stage, .b = header->microbatch};
    return 0.002 * (double)rrfp_rng_uniform(&key, 0);
}

static void create(const uint32_t *slots, rrfp_link_delay_fn delay, void *context,
                   rrfp_transport **ends)
{
    rrfp_inproc_config config = {.stages = 2,
                                 .payload_bytes = PAYLOAD_BYTES,
                                 .receive_slots = slots,
                                 .link_delay = delay,
                                 .link_delay_context = context,
                                 .poison = true};
    assert_int_equal(rrfp_inproc_create(&config, ends, &error), RRFP_OK);
}

static void destroy(rrfp_transport **ends)
{
    ends[0]->ops->destroy(ends[0]);
    ends[1]->ops->destroy(ends[1]);
}

static void send(rrfp_transport *from, uint32_t number, uint32_t *words)
{
    rrfp_message_header header = message_from(0, 1, number);
    fill_payload(words, 0, number);
    assert_int_equal(from->ops->send(from, &header, words, &error), RRFP_OK);
}

/* Delays far apart compared with the time between the sends: they arrive by due time. */
static void messages_overtake_each_other(void **state)
{
    (void)state;
    static double delays[] = {1.2, 0.4, 0.0, 0.8, -1.0};
    static const uint32_t slots[] = {1, 5}, order[] = {2, 4, 1, 3, 0};
    static uint32_t words[5][WORDS];
    rrfp_transport *ends[2];
    create(slots, delay_from_table, delays, ends);
    for (uint32_t i = 0; i < 5; i++) {
        send(ends[0], i, words[i]);
    }
    for (uint32_t i = 0; i < 5; i++) {
        rrfp_transport_event event = next_event(ends[1]);
        uint32_t number = event.header.microbatch;
        assert_int_equal(event.kind, RRFP_TRANSPORT_ARRIVED);
        assert_int_equal(number, order[i]);
        assert_int_equal(wrong_words(&event), 0);
        double took = (double)(event.time_ns - event.sent_ns) * 1e-9;
        assert_true(took >= delays[number] - 1e-6); /* never early */
        event = next_event(ends[0]);
        assert_int_equal(event.kind, RRFP_TRANSPORT_SENT);
        assert_int_equal(event.header.microbatch, number);
        assert_ptr_equal(event.payload, words[number]);
        memset(event.payload, 0xff, PAYLOAD_BYTES);
    }
    destroy(ends);
}

enum { TRIALS = 1000, OUTPUTS = 8 };

typedef struct sender {
    rrfp_transport *endpoint;
    uint32_t outputs[OUTPUTS][WORDS];
    uint32_t failures;
} sender;

/* Poisons each buffer as soon as it is reported sent, then uses it again. */
static void *sender_main(void *argument)
{
    sender *self = argument;
    rrfp_transport_event event;
    rrfp_error send_error;
    uint32_t reported = 0;
    for (uint32_t number = 0; reported < TRIALS;) {
        if (number < TRIALS && number < reported + OUTPUTS) {
            size_t output = number;
            if (number >= OUTPUTS) {
                output = (size_t)((uint32_t *)event.payload - self->outputs[0]) / WORDS;
            }
            rrfp_message_header header = message_from(0, 1, number);
            fill_payload(self->outputs[output], 0, number++);
            self->failures += self->endpoint->ops->send(self->endpoint, &header,
                                                        self->outputs[output], &send_error) !=
                              RRFP_OK;
            continue;
        }
        while (!self->endpoint->ops->poll(self->endpoint, &event)) {
            self->endpoint->ops->wait(self->endpoint, SECOND_NS);
        }
        memset(event.payload, 0xff, PAYLOAD_BYTES);
        reported++;
    }
    return NULL;
}

/* S15: the receiver sees the original bytes although the sender's buffer is NaN after SENT. */
static void poisoned_buffers_do_not_show(void **state)
{
    (void)state;
    for (uint32_t capacity = 1; capacity <= 4; capacity += 3) {
        const uint32_t slots[] = {1, capacity};
        uint64_t seed = 20260100 + capacity;
        rrfp_transport *ends[2];
        pthread_t thread;
        sender *from = calloc(1, sizeof *from);
        unsigned char *seen = calloc(1, TRIALS);
        assert_non_null(from);
        assert_non_null(seen);
        print_message("seed %llu\n", (unsigned long long)seed);
        create(slots, random_delay, &seed, ends);
        from->endpoint = ends[0];
        assert_int_equal(pthread_create(&thread, NULL, sender_main, from), 0);
        for (uint32_t i = 0; i < TRIALS; i++) {
            rrfp_transport_event event = next_event(ends[1]);
            assert_int_equal(event.kind, RRFP_TRANSPORT_ARRIVED);
            assert_int_equal(wrong_words(&event), 0);
            assert_int_equal(seen[event.header.microbatch]++, 0);
            ends[1]->ops->release(ends[1], event.payload);
        }
        pthread_join(thread, NULL);
        assert_int_equal(from->failures, 0);
        destroy(ends);
        free(from);
        free(seen);
    }
}

/* Capacity 1 with everything due at once: one delivered, the rest by each release. */
static void one_buffer_progresses(void **state)
{
    (void)state;
    static double delays[16];
    static const uint32_t slots[] = {1, 0};
    static uint32_t words[16][WORDS];
    rrfp_transport *ends[2];
    for (int i = 0; i < 16; i++) {
        delays[i] = 0.001;
    }
    create(slots, delay_from_table, delays, ends);
    for (uint32_t i = 0; i < 16; i++) {
        send(ends[0], i, words[i]);
    }
    for (uint32_t i = 0; i < 16; i++) {
        rrfp_transport_event event = next_event(ends[1]);
        assert_int_equal(event.header.microbatch, i); /* in the order of their due times */
        assert_int_equal(wrong_words(&event), 0);
        ends[1]->ops->release(ends[1], event.payload);
    }
    destroy(ends);
}

static void destroying_forgets_what_is_under_way(void **state)
{
    (void)state;
    static double delays[100];
    static const uint32_t slots[] = {2, 2};
    static uint32_t words[100][WORDS];
    rrfp_transport *ends[2];
    for (int i = 0; i < 100; i++) {
        delays[i] = i % 3 == 0 ? 3600.0 : i % 3 == 1 ? 0.0 : 0.0005;
    }
    delays[0] = INFINITY;
    delays[3] = NAN;
    create(slots, delay_from_table, delays, ends);
    for (uint32_t i = 0; i < 100; i++) {
        send(ends[0], i, words[i]);
    }
    (void)next_event(ends[1]);
    ends[1]->ops->destroy(ends[1]);
    rrfp_transport_event event = next_event(ends[0]); /* the other one still works */
    assert_int_equal(event.kind, RRFP_TRANSPORT_SENT);
    ends[0]->ops->destroy(ends[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_overtake_each_other),
        cmocka_unit_test(poisoned_buffers_do_not_show),
        cmocka_unit_test(one_buffer_progresses),
        cmocka_unit_test(destroying_forgets_what_is_under_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
