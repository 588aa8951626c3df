/* inproc.c - endpoints of one process: ownership, capacity, sleeping, many threads. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/endpoints.h"

static rrfp_error error;

static void create(uint32_t stages, const uint32_t *slots, bool poison, rrfp_transport **endpoints)
{
    rrfp_inproc_config config = {
        .stages = stages, .payload_bytes = PAYLOAD_BYTES, .receive_slots = slots, .poison = poison};
    assert_int_equal(rrfp_inproc_create(&config, endpoints, &error), RRFP_OK);
}

static void destroy(uint32_t stages, rrfp_transport **endpoints)
{
    for (uint32_t s = 0; s < stages; s++) {
        endpoints[s]->ops->destroy(endpoints[s]);
    }
}

static void send(rrfp_transport *from, uint32_t source, uint32_t destination, uint32_t number,
                 uint32_t *words)
{
    rrfp_message_header header = message_from(source, destination, number);
    fill_payload(words, source, number);
    assert_int_equal(from->ops->send(from, &header, words, &error), RRFP_OK);
}

static bool poll_event(rrfp_transport *endpoint, rrfp_transport_event *event)
{
    return endpoint->ops->poll(endpoint, event);
}

static void expect_astray(rrfp_transport *endpoint, const char *text)
{
    assert_int_equal(endpoint->ops->settle(endpoint, 4, 0, &error), RRFP_ERR_INTERNAL);
    if (strstr(error.text, text) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", error.text, text);
    }
}

static void delivers_a_copy(void **state)
{
    (void)state;
    static const uint32_t slots[] = {2, 2};
    rrfp_transport *ends[2];
    rrfp_transport_event event;
    uint32_t words[WORDS];
    create(2, slots, true, ends);
    assert_false(poll_event(ends[0], &event));
    assert_false(poll_event(ends[1], &event));

    send(ends[0], 0, 1, 3, words);
    assert_true(poll_event(ends[0], &event));
    assert_int_equal(event.kind, RRFP_TRANSPORT_SENT);
    assert_ptr_equal(event.payload, words);
    assert_int_equal(event.header.microbatch, 3);
    assert_false(poll_event(ends[0], &event));
    memset(words, 0xff, sizeof words); /* ours again: S15 */
    expect_astray(ends[0], "stage 0 still has 0 buffers that nobody has released and 1 sends");
    expect_astray(ends[1], "stage 1 still has 1 buffers that nobody has released and 0 sends that "
                           "nobody has polled, and events,");

    assert_true(poll_event(ends[1], &event));
    assert_int_equal(event.kind, RRFP_TRANSPORT_ARRIVED);
    assert_ptr_not_equal(event.payload, words);
    assert_int_equal((uintptr_t)event.payload % 64, 0);
    assert_int_equal(wrong_words(&event), 0);
    assert_true(event.sent_ns > 0 && event.time_ns >= event.sent_ns);
    rrfp_message_header expect = message_from(0, 1, 3);
    assert_memory_equal(&event.header, &expect, sizeof expect);

    uint32_t *payload = event.payload;
    expect_astray(ends[1], "stage 1 still has 1 buffers that nobody has released and 0 sends that "
                           "nobody has polled after");
    ends[1]->ops->release(ends[1], payload);
    for (uint32_t s = 0; s < 2; s++) {
        assert_int_equal(ends[s]->ops->settle(ends[s], 4, 0, &error), RRFP_OK);
    }
    for (uint32_t i = 0; i < WORDS; i++) { /* poisoned; the memory itself stays */
        assert_int_equal(payload[i], 0xffffffffu);
    }
    destroy(2, ends);
}

/* Two stages of two tensor ranks: each has its own endpoint, and signals need no buffer. */
static void signals_pass_a_full_receiver(void **state)
{
    (void)state;
    static const uint32_t slots[] = {1, 1};
    rrfp_transport *ends[4];
    rrfp_transport_event event;
    static uint32_t words[2][WORDS];
    rrfp_inproc_config config = {
        .stages = 2, .tensor_size = 2, .payload_bytes = PAYLOAD_BYTES, .receive_slots = slots};
    assert_int_equal(rrfp_inproc_create(&config, ends, &error), RRFP_OK);
    for (uint32_t i = 0; i < 2; i++) { /* stage 0, rank 1 to stage 1, rank 1; the second waits */
        rrfp_message_header header = message_from(0, 1, i);
        header.source_tensor_rank = header.destination_tensor_rank = 1;
        fill_payload(words[i], 0, i);
        assert_int_equal(ends[1]->ops->send(ends[1], &header, words[i], &error), RRFP_OK);
    }
    rrfp_message_header notice = {.kind = RRFP_MESSAGE_NOTICE, .source_stage = 1,
                                  .destination_stage = 1, .destination_tensor_rank = 1,
                                  .microbatch = 9};
    assert_int_equal(ends[2]->ops->send(ends[2], &notice, NULL, &error), RRFP_OK);
    assert_false(poll_event(ends[2], &event)); /* nobody is told that it was sent */
    assert_true(poll_event(ends[3], &event));
    assert_int_equal(event.header.microbatch, 0);
    void *held = event.payload;
    assert_true(poll_event(ends[3], &event));
    assert_int_equal(event.kind, RRFP_TRANSPORT_ARRIVED);
    assert_int_equal(event.header.kind, RRFP_MESSAGE_NOTICE);
    assert_int_equal(event.header.microbatch, 9);
    assert_null(event.payload);
    ends[3]->ops->release(ends[3], held);
    assert_true(poll_event(ends[3], &event));
    assert_int_equal(event.header.microbatch, 1);
    ends[3]->ops->release(ends[3], event.payload);
    assert_true(poll_event(ends[1], &event) && poll_event(ends[1], &event));
    for (uint32_t i = 0; i < 4; i++) {
        assert_false(poll_event(ends[i], &event));
        assert_int_equal(ends[i]->ops->settle(ends[i], 4, 0, &error), RRFP_OK);
    }
    notice.destination_tensor_rank = 2;
    assert_int_equal(ends[2]->ops->send(ends[2], &notice, NULL, &error), RRFP_ERR_INVALID);
    assert_non_null(strstr(error.text, "tensor rank 2, but there are 2"));
    destroy(4, ends);
}

/* S3: with one buffer, or none asked for, every message still arrives, one at a time. */
static void smallest_capacity_progresses(void **state)
{
    (void)state;
    enum { COUNT = 20 };
    for (uint32_t capacity = 0; capacity < 2; capacity++) {
        const uint32_t slots[] = {1, capacity};
        rrfp_transport *ends[2];
        rrfp_transport_event event;
        static uint32_t words[COUNT][WORDS];
        create(2, slots, true, ends);
        for (uint32_t i = 0; i < COUNT; i++) { /* never blocks, however many are waiting */
            send(ends[0], 0, 1, i, words[i]);
        }
        assert_true(poll_event(ends[0], &event));
        assert_int_equal(event.kind, RRFP_TRANSPORT_SENT);
        assert_false(poll_event(ends[0], &event)); /* the others are still the sender's */
        for (uint32_t i = 0; i < COUNT; i++) {
            assert_true(poll_event(ends[1], &event));
            assert_int_equal(event.header.microbatch, i);
            assert_int_equal(wrong_words(&event), 0);
            void *payload = event.payload;
            assert_false(poll_event(ends[1], &event));
            ends[1]->ops->release(ends[1], payload);
            if (i + 1 < COUNT) {
                assert_true(poll_event(ends[0], &event));
                assert_int_equal(event.kind, RRFP_TRANSPORT_SENT);
                assert_int_equal(event.header.microbatch, i + 1);
                assert_ptr_equal(event.payload, words[i + 1]);
                memset(event.payload, 0xff, PAYLOAD_BYTES);
            }
        }
        destroy(2, ends);
    }
}

/* A full receiver does not keep its own sends from leaving, nor others' traffic. */
static void a_receive_never_blocks_a_send(void **state)
{
    (void)state;
    static const uint32_t slots[] = {1, 1, 1};
    static uint32_t words[6][WORDS];
    rrfp_transport *ends[3];
    rrfp_transport_event event;
    create(3, slots, false, ends);
    send(ends[0], 0, 1, 0, words[0]);
    send(ends[0], 0, 1, 1, words[1]); /* waits: stage 1 is full */
    send(ends[1], 1, 2, 2, words[2]);
    send(ends[0], 0, 2, 3, words[3]); /* waits: stage 2 is full */
    send(ends[2], 2, 0, 4, words[4]);
    send(ends[1], 1, 1, 5, words[5]); /* to itself, behind message 1 */
    event = next_event(ends[0]);
    assert_int_equal(event.header.microbatch, 0);
    event = next_event(ends[0]);
    assert_int_equal(event.header.microbatch, 4);
    event = next_event(ends[1]);
    assert_int_equal(event.header.microbatch, 0);
    void *payload = event.payload;
    event = next_event(ends[1]);
    assert_int_equal(event.kind, RRFP_TRANSPORT_SENT);
    assert_int_equal(event.header.microbatch, 2);
    ends[1]->ops->release(ends[1], payload);
    event = next_event(ends[1]);
    assert_int_equal(event.kind, RRFP_TRANSPORT_ARRIVED);
    assert_int_equal(event.header.microbatch, 1);
    ends[1]->ops->release(ends[1], event.payload);
    event = next_event(ends[1]);
    assert_int_equal(event.kind, RRFP_TRANSPORT_ARRIVED);
    assert_int_equal(event.header.microbatch, 5);
    assert_int_equal(wrong_words(&event), 0);
    event = next_event(ends[1]);
    assert_int_equal(event.kind, RRFP_TRANSPORT_SENT);
    destroy(3, ends); /* message 3 is still on its way */
}

static void refuses_what_cannot_be_sent(void **state)
{
    (void)state;
    static const uint32_t slots[] = {1, 1};
    rrfp_transport *ends[2];
    uint32_t words[WORDS] = {0};
    create(2, slots, false, ends);
    rrfp_message_header header = message_from(0, 2, 0);
    assert_int_equal(ends[0]->ops->send(ends[0], &header, words, &error), RRFP_ERR_INVALID);
    assert_non_null(strstr(error.text, "stage 2"));
    header = message_from(0, 1, 0);
    header.payload_bytes = PAYLOAD_BYTES + 1;
    assert_int_equal(ends[0]->ops->send(ends[0], &header, words, &error), RRFP_ERR_INVALID);
    assert_non_null(strstr(error.text, "193 bytes"));
    destroy(2, ends);

    rrfp_inproc_config config = {.stages = 0, .receive_slots = slots};
    assert_int_equal(rrfp_inproc_create(&config, ends, &error), RRFP_ERR_INVALID);
    config = (rrfp_inproc_config){
        .stages = 2, .receive_slots = slots, .payload_bytes = (uint64_t)1 << 32};
    assert_int_equal(rrfp_inproc_create(&config, ends, &error), RRFP_ERR_INVALID);
}

/* Runs in a child: a debug build ends with a line, others ignore the call. */
static void misuse(rrfp_transport *endpoint, void *payload)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        endpoint->ops->release(endpoint, payload);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
#ifdef RRFP_DEBUG
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
#else
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
#endif
}

static void releasing_twice_is_found(void **state)
{
    (void)state;
    static const uint32_t slots[] = {1, 2};
    rrfp_transport *ends[2];
    uint32_t words[3][WORDS];
    create(2, slots, true, ends);
    send(ends[0], 0, 1, 0, words[0]);
    rrfp_transport_event event = next_event(ends[1]);
    misuse(ends[1], words[0]);
    misuse(ends[1], (char *)event.payload + 4);
    misuse(ends[0], event.payload);
    ends[1]->ops->release(ends[1], event.payload);
    misuse(ends[1], event.payload);
#ifndef RRFP_DEBUG
    /* Ignored: the two buffers still go to two messages. */
    ends[1]->ops->release(ends[1], event.payload);
    send(ends[0], 0, 1, 1, words[1]);
    send(ends[0], 0, 1, 2, words[2]);
    event = next_event(ends[1]);
    rrfp_transport_event other = next_event(ends[1]);
    assert_ptr_not_equal(event.payload, other.payload);
    assert_int_equal(wrong_words(&event) + wrong_words(&other), 0);
#endif
    destroy(2, ends);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

static void *wake_soon(void *argument)
{
    rrfp_transport *endpoint = argument;
    struct timespec pause = {0, 20000000};
    nanosleep(&pause, NULL);
    endpoint->ops->wake(endpoint);
    return NULL;
}

static void waits_until_there_is_a_reason(void **state)
{
    (void)state;
    static const uint32_t slots[] = {1, 1};
    rrfp_transport *ends[2];
    rrfp_transport_event event;
    uint32_t words[WORDS];
    pthread_t thread;
    create(2, slots, false, ends);

    uint64_t begin = now_ns(); /* the time runs out; never early */
    ends[0]->ops->wait(ends[0], 5000000);
    assert_true(now_ns() - begin >= 5000000);
    ends[0]->ops->wait(ends[0], 0);

    ends[0]->ops->wake(ends[0]); /* a wake before the wait is not lost, and counts once */
    ends[0]->ops->wait(ends[0], UINT64_MAX);
    begin = now_ns();
    ends[0]->ops->wait(ends[0], 5000000);
    assert_true(now_ns() - begin >= 5000000);

    assert_int_equal(pthread_create(&thread, NULL, wake_soon, ends[0]), 0);
    ends[0]->ops->wait(ends[0], UINT64_MAX);
    pthread_join(thread, NULL);

    send(ends[1], 1, 0, 0, words); /* an event is a reason until it is taken */
    ends[0]->ops->wait(ends[0], UINT64_MAX);
    ends[0]->ops->wait(ends[0], UINT64_MAX);
    assert_true(poll_event(ends[0], &event));
    begin = now_ns();
    ends[0]->ops->wait(ends[0], 5000000);
    assert_true(now_ns() - begin >= 5000000);
    destroy(2, ends);
}

enum { CROWD = 5, EACH = 3000, HELD = 3 };

typedef struct member {
    pthread_t thread;
    rrfp_transport *endpoint;
    uint32_t stage;
    uint32_t wrong, doubled, arrived, sent;
    unsigned char seen[CROWD][EACH];
    uint32_t outputs[HELD][WORDS]; /* a send's payload, ours again when it is reported */
    bool output_free[HELD];
    void *held[2]; /* buffers kept for a while, so that they run out */
} member;

static void take_event(member *self, const rrfp_transport_event *event)
{
    if (event->kind == RRFP_TRANSPORT_SENT) {
        size_t output = (size_t)((uint32_t *)event->payload - self->outputs[0]) / WORDS;
        memset(event->payload, 0xff, PAYLOAD_BYTES);
        self->output_free[output] = true;
        self->sent++;
        return;
    }
    self->wrong += wrong_words(event);
    self->doubled += self->seen[event->header.source_stage][event->header.microbatch]++;
    self->arrived++;
    if (self->held[0] != NULL) {
        self->endpoint->ops->release(self->endpoint, self->held[0]);
    }
    self->held[0] = self->held[1];
    self->held[1] = event->payload;
    if (self->arrived % 7 == 0) {
        for (int i = 0; i < 2; i++) {
            if (self->held[i] != NULL) {
                self->endpoint->ops->release(self->endpoint, self->held[i]);
                self->held[i] = NULL;
            }
        }
    }
}

/* Sends EACH messages to the others in turn, while taking what comes. */
static void *member_main(void *argument)
{
    member *self = argument;
    rrfp_transport_event event;
    rrfp_error send_error;
    uint32_t next = 0, expected = 0;
    for (uint32_t s = 0; s < CROWD; s++) {
        for (uint32_t i = 0; i < EACH; i++) {
            expected += s != self->stage && (s + 1 + i % (CROWD - 1)) % CROWD == self->stage;
        }
    }
    while (next < EACH || self->sent < EACH || self->arrived < expected) {
        while (self->endpoint->ops->poll(self->endpoint, &event)) {
            take_event(self, &event);
        }
        size_t output = 0;
        while (output < HELD && !self->output_free[output]) {
            output++;
        }
        if (next < EACH && output < HELD) {
            uint32_t to = (self->stage + 1 + next % (CROWD - 1)) % CROWD;
            rrfp_message_header header = message_from(self->stage, to, next);
            fill_payload(self->outputs[output], self->stage, next);
            self->output_free[output] = false;
            self->wrong += self->endpoint->ops->send(self->endpoint, &header,
                                                     self->outputs[output], &send_error) != RRFP_OK;
            next++;
        } else if (self->sent < EACH || self->arrived < expected) {
            /* All may hold two buffers and wait for a third message: give them back first. */
            for (int i = 0; i < 2; i++) {
                if (self->held[i] != NULL) {
                    self->endpoint->ops->release(self->endpoint, self->held[i]);
                    self->held[i] = NULL;
                }
            }
            self->endpoint->ops->wait(self->endpoint, 60 * SECOND_NS);
        }
    }
    return NULL;
}

static void many_threads_lose_and_double_nothing(void **state)
{
    (void)state;
    static const uint32_t slots[CROWD] = {3, 3, 4, 3, 8};
    rrfp_transport *ends[CROWD];
    member *members = calloc(CROWD, sizeof *members);
    uint32_t arrived = 0;
    assert_non_null(members);
    create(CROWD, slots, true, ends);
    for (uint32_t s = 0; s < CROWD; s++) {
        members[s].endpoint = ends[s];
        members[s].stage = s;
        for (int i = 0; i < HELD; i++) {
            members[s].output_free[i] = true;
        }
        assert_int_equal(pthread_create(&members[s].thread, NULL, member_main, &members[s]), 0);
    }
    for (uint32_t s = 0; s < CROWD; s++) {
        pthread_join(members[s].thread, NULL);
        assert_int_equal(members[s].wrong, 0);
        assert_int_equal(members[s].doubled, 0);
        assert_int_equal(members[s].sent, EACH);
        arrived += members[s].arrived;
    }
    assert_int_equal(arrived, CROWD * EACH);
    free(members);
    destroy(CROWD, ends);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(delivers_a_copy), cmocka_unit_test(signals_pass_a_full_receiver),
        cmocka_unit_test(smallest_capacity_progresses),
        cmocka_unit_test(a_receive_never_blocks_a_send),
        cmocka_unit_test(refuses_what_cannot_be_sent),
        cmocka_unit_test(releasing_twice_is_found),
        cmocka_unit_test(waits_until_there_is_a_reason),
        cmocka_unit_test(many_threads_lose_and_double_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
