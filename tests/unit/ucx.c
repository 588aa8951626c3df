/*
 * ucx.c - endpoints of the UCX transport: every message once and whole, credits come home,
 * strangers and garbage change nothing, a peer that dies is noticed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#ifndef RRFP_HAVE_UCX

int main(void)
{
    puts("skipped: built without UCX");
    return 77;
}

#else

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport/ucx_internal.h"

enum { MOST = 3, STEP = 5 };
static const uint64_t TIMEOUT_NS = UINT64_C(60000000000);
static const uint64_t RUN = 0x1234567890abcdefu;

static rrfp_error error;

typedef struct net {
    uint32_t stages;
    uint64_t bytes;
    uint32_t slots;
    bool same_host;
    rrfp_transport *at[MOST];
} net;

static const bool all_here[MOST] = {true, true, true};

static rrfp_ucx_config config_of(const net *n, uint32_t stage, uint32_t *slots)
{
    rrfp_ucx_config config = {.stages = n->stages, .stage = stage, .local_ranks = n->stages,
                              .payload_bytes = n->bytes, .receive_slots = slots,
                              .send_credits = slots, .run_id = RUN,
                              .same_host = n->same_host ? all_here : NULL};
    memset(config.secret, 7, sizeof config.secret);
    for (uint32_t s = 0; s < MOST; s++) { /* a chain: only neighbours talk */
        slots[s] = s + 1 == stage || s == stage + 1 ? n->slots : 0;
    }
    return config;
}

typedef struct joiner {
    rrfp_transport *transport;
    const void *addresses[MOST];
    size_t bytes[MOST];
    uint64_t timeout_ns;
    rrfp_error error;
    rrfp_status status;
} joiner;

static void *join(void *argument)
{
    joiner *j = argument;
    j->status = rrfp_ucx_connect(j->transport, j->addresses, j->bytes, j->timeout_ns, &j->error);
    return NULL;
}

static void make(net *n, const char *tls)
{
    pthread_t threads[MOST];
    joiner joiners[MOST];
    memset(joiners, 0, sizeof joiners);
    setenv("UCX_TLS", tls, 1);
    for (uint32_t s = 0; s < n->stages; s++) {
        uint32_t slots[MOST];
        rrfp_ucx_config config = config_of(n, s, slots);
        if (rrfp_ucx_create(&config, &n->at[s], &error) != RRFP_OK) {
            fail_msg("%s", error.text);
        }
    }
    for (uint32_t s = 0; s < n->stages; s++) {
        joiners[s].transport = n->at[s];
        joiners[s].timeout_ns = TIMEOUT_NS;
        for (uint32_t p = 0; p < n->stages; p++) {
            rrfp_ucx_address(n->at[p], &joiners[s].addresses[p], &joiners[s].bytes[p], &error);
        }
        assert_int_equal(pthread_create(&threads[s], NULL, join, &joiners[s]), 0);
    }
    for (uint32_t s = 0; s < n->stages; s++) {
        pthread_join(threads[s], NULL);
        if (joiners[s].status != RRFP_OK) {
            fail_msg("%s", joiners[s].error.text);
        }
    }
}

static void unmake(net *n)
{
    for (uint32_t s = 0; s < n->stages; s++) {
        n->at[s]->ops->destroy(n->at[s]);
    }
}

static rrfp_message_header header_of(uint32_t from, uint32_t to, uint32_t m, size_t bytes)
{
    rrfp_message_header header = {.kind = to > from ? RRFP_F : RRFP_B, .dtype = RRFP_MESSAGE_F32,
                                  .ndim = 3, .run_id = RUN, .step = STEP,
                                  .source_stage = (uint16_t)from,
                                  .destination_stage = (uint16_t)to, .microbatch = m,
                                  .dims = {4, 4, 4},
                                  .payload_bytes = (uint32_t)bytes};
    rrfp_message_header_seal(&header);
    return header;
}

static unsigned char byte_at(uint32_t from, uint32_t m, size_t i)
{
    return (unsigned char)(from * 31 + m * 7 + i * 13 + (i >> 8));
}

/* `count` messages along every edge of the chain; each held back until `hold` lie at a stage. */
static void exchange(net *n, uint32_t count, uint32_t hold)
{
    size_t bytes = n->bytes, edges = 0, arrived = 0, sent = 0;
    uint32_t held[MOST] = {0}, seen[MOST][MOST] = {{0}};
    void *payloads[MOST][64];
    unsigned char *out = malloc(MOST * (size_t)count * 2 * (bytes + 1));
    assert_non_null(out);
    unsigned char *at = out;
    for (uint32_t s = 0; s < n->stages; s++) {
        for (uint32_t to = 0; to < n->stages; to++) {
            if (to + 1 != s && to != s + 1) {
                continue;
            }
            edges++;
            for (uint32_t m = 0; m < count; m++, at += bytes) {
                rrfp_message_header header = header_of(s, to, m, bytes);
                for (size_t i = 0; i < bytes; i++) {
                    at[i] = byte_at(s, m, i);
                }
                assert_int_equal(n->at[s]->ops->send(n->at[s], &header, at, &error), RRFP_OK);
            }
        }
    }
    uint64_t until = rrfp_ucx_now_ns() + TIMEOUT_NS;
    while ((arrived < edges * count || sent < edges * count) && rrfp_ucx_now_ns() < until) {
        for (uint32_t s = 0; s < n->stages; s++) {
            rrfp_transport_event event;
            while (n->at[s]->ops->poll(n->at[s], &event)) {
                if (event.kind == RRFP_TRANSPORT_SENT) {
                    sent++;
                    continue;
                }
                uint32_t from = event.header.source_stage, m = event.header.microbatch;
                assert_int_equal(event.header.destination_stage, s);
                assert_true(m < count && !(seen[s][from] & 1u << m));
                seen[s][from] |= 1u << m;
                for (size_t i = 0; i < bytes; i++) {
                    assert_int_equal(((unsigned char *)event.payload)[i], byte_at(from, m, i));
                }
                arrived++;
                payloads[s][held[s]++] = event.payload;
            }
            for (uint32_t i = 0; held[s] >= hold && i < held[s]; i++) {
                n->at[s]->ops->release(n->at[s], payloads[s][i]);
            }
            held[s] = held[s] >= hold ? 0 : held[s];
            n->at[s]->ops->flush(n->at[s]); /* as before a task */
        }
    }
    assert_int_equal(arrived, edges * count);
    assert_int_equal(sent, edges * count);
    for (uint32_t s = 0; s < n->stages; s++) {
        for (uint32_t i = 0; i < held[s]; i++) {
            n->at[s]->ops->release(n->at[s], payloads[s][i]);
        }
    }
    free(out);
}

/* All credits are at home again, all buffers free, nothing was refused. */
static void expect_at_rest(net *n)
{
    uint64_t until = rrfp_ucx_now_ns() + TIMEOUT_NS;
    for (bool rest = false; !rest;) {
        rest = true;
        for (uint32_t s = 0; s < n->stages; s++) {
            rrfp_transport_event event;
            n->at[s]->ops->flush(n->at[s]);
            assert_false(n->at[s]->ops->poll(n->at[s], &event));
            for (uint32_t p = 0; p < n->stages; p++) {
                uint32_t want = p + 1 == s || p == s + 1 ? n->slots : 0;
                rest = rest && rrfp_ucx_credits(n->at[s], p) == want &&
                       rrfp_ucx_free_slots(n->at[s], p) == want;
            }
        }
        assert_true(rest || rrfp_ucx_now_ns() < until);
    }
    for (uint32_t s = 0; s < n->stages; s++) {
        assert_int_equal(n->at[s]->ops->settle(n->at[s], STEP, 0, &error), RRFP_OK);
        assert_int_equal(rrfp_ucx_refused(n->at[s]), 0);
        assert_int_equal(rrfp_ucx_failure(n->at[s], &error), RRFP_OK);
    }
}

static void exchange_over(const char *tls, bool same_host)
{
    static const uint64_t sizes[] = {0, 64, 8192, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (uint32_t slots = 1; slots <= 5; slots += 2) {
            net n = {.stages = 2 + (uint32_t)i % 2, .bytes = sizes[i], .slots = slots,
                     .same_host = same_host};
            make(&n, tls);
            exchange(&n, 9, 1);
            expect_at_rest(&n);
            exchange(&n, 9, slots); /* all buffers full before one is given back */
            expect_at_rest(&n);
            unmake(&n);
        }
    }
}

static void over_tcp(void **state)
{
    (void)state;
    exchange_over("tcp,self", false);
    exchange_over("tcp,self", true);
}

static void over_shared_memory(void **state)
{
    (void)state;
    exchange_over("posix,sysv,cma,self", true);
}

static double half_a_millisecond(void *context, const rrfp_message_header *header)
{
    (void)context;
    return header->microbatch % 2 == 0 ? 5e-4 : 0.0;
}

static void delayed(void **state)
{
    (void)state;
    net n = {.stages = 2, .bytes = 64, .slots = 2};
    make(&n, "tcp,self");
    for (uint32_t s = 0; s < 2; s++) {
        ((rrfp_ucx *)n.at[s])->link_delay = half_a_millisecond;
    }
    exchange(&n, 9, 1);
    expect_at_rest(&n);
    unmake(&n);
}

static void expect_astray(rrfp_transport *transport, const char *what)
{
    assert_int_equal(transport->ops->settle(transport, STEP, 20000000, &error), RRFP_ERR_INTERNAL);
    if (strstr(error.text, what) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", error.text, what);
    }
}

/* Step by step through a message's life, what is not yet in its place is named. */
static void settle_names_what_is_astray(void **state)
{
    (void)state;
    static unsigned char payload[64];
    net n = {.stages = 2, .bytes = 64, .slots = 1};
    rrfp_transport_event event = {.kind = RRFP_TRANSPORT_SENT}, sent;
    uint64_t until = rrfp_ucx_now_ns() + TIMEOUT_NS;
    make(&n, "tcp,self");
    rrfp_transport *from = n.at[0], *to = n.at[1];
    rrfp_message_header first = header_of(0, 1, 0, 64), second = header_of(0, 1, 1, 64);
    assert_int_equal(from->ops->send(from, &first, payload, &error), RRFP_OK);
    assert_int_equal(from->ops->send(from, &second, payload, &error), RRFP_OK);
    while (!to->ops->poll(to, &event)) {
        assert_true(rrfp_ucx_now_ns() < until);
    }
    expect_astray(from, "stage 0 still has a finished send that nobody has polled, to stage 1");
    assert_true(from->ops->poll(from, &sent));
    expect_astray(from, "stage 0 still has a message that was not let go to stage 1");
    expect_astray(to, "stage 1 still has a buffer that nobody has released, of a message from "
                      "stage 0");
    assert_int_equal(to->ops->settle(to, STEP - 1, 0, &error), RRFP_OK); /* it is of a later step */
    to->ops->release(to, event.payload);
    while (!to->ops->poll(to, &event)) {
        from->ops->poll(from, &sent);
        assert_true(rrfp_ucx_now_ns() < until);
    }
    while (from->ops->poll(from, &sent)) {
    }
    expect_astray(from, "a credit that has not come back from stage 1");
    to->ops->release(to, event.payload);
    assert_int_equal(to->ops->settle(to, STEP, TIMEOUT_NS, &error), RRFP_OK);
    assert_int_equal(from->ops->settle(from, STEP, TIMEOUT_NS, &error), RRFP_OK);
    unmake(&n);
}

static void *wake_later(void *transport)
{
    rrfp_transport *t = transport;
    usleep(2000);
    t->ops->wake(t);
    return NULL;
}

static void wake_ends_wait(void **state)
{
    (void)state;
    pthread_t thread;
    net n = {.stages = 2, .bytes = 64, .slots = 1};
    make(&n, "tcp,self");
    assert_int_equal(pthread_create(&thread, NULL, wake_later, n.at[0]), 0);
    n.at[0]->ops->wait(n.at[0], UINT64_MAX);
    pthread_join(thread, NULL);
    n.at[0]->ops->wait(n.at[0], 1000000); /* not woken: the time ends it */
    unmake(&n);
}

static void wrong_secret_is_refused(void **state)
{
    (void)state;
    net n = {.stages = 2, .bytes = 64, .slots = 1};
    pthread_t threads[2];
    joiner joiners[2];
    memset(joiners, 0, sizeof joiners);
    setenv("UCX_TLS", "tcp,self", 1);
    for (uint32_t s = 0; s < 2; s++) {
        uint32_t slots[MOST];
        rrfp_ucx_config config = config_of(&n, s, slots);
        config.secret[0] = (uint8_t)s;
        assert_int_equal(rrfp_ucx_create(&config, &n.at[s], &error), RRFP_OK);
    }
    for (uint32_t s = 0; s < 2; s++) {
        joiners[s].transport = n.at[s];
        joiners[s].timeout_ns = 300000000u;
        for (uint32_t p = 0; p < 2; p++) {
            rrfp_ucx_address(n.at[p], &joiners[s].addresses[p], &joiners[s].bytes[p], &error);
        }
        pthread_create(&threads[s], NULL, join, &joiners[s]);
    }
    for (uint32_t s = 0; s < 2; s++) {
        pthread_join(threads[s], NULL);
        assert_int_equal(joiners[s].status, RRFP_ERR_PEER);
        assert_non_null(strstr(joiners[s].error.text, "did not answer"));
    }
    unmake(&n);
}

static uint64_t next_random(uint64_t *seed)
{
    uint64_t z = *seed += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void small_done(void *request, ucs_status_t status, void *argument)
{
    (void)status;
    ucp_request_free(request);
    --*(uint32_t *)argument;
}

static bool admit(void *context, const rrfp_message_header *header, rrfp_error *why)
{
    bool next_step;
    return rrfp_message_header_check(header, context, &next_step, why) == RRFP_OK;
}

/* One field is another than the plan has it, and the seal is right: only the plan can tell. */
static rrfp_ucx_data against_the_plan(uint64_t *seed)
{
    rrfp_message_header header = header_of(0, 1, 0, 256);
    uint64_t value = 1 + next_random(seed) % 0xffff; /* added: never what it was */
    switch (next_random(seed) % 13) {
    case 0: header.kind = (uint8_t)(header.kind + 1 + value % 255); break;
    case 1: header.dtype = (uint8_t)(header.dtype + 1 + value % 255); break;
    case 2: header.ndim = (uint8_t)(header.ndim + 1 + value % 255); break;
    case 3: header.run_id += value << 40; break;
    case 4: header.step += 1 + value; break; /* STEP + 1 would be in the window */
    case 5: header.source_stage = (uint16_t)(header.source_stage + value); break;
    case 6: header.source_chunk = (uint16_t)(header.source_chunk + value); break;
    case 7: header.destination_stage = (uint16_t)(header.destination_stage + value); break;
    case 8: header.destination_chunk = (uint16_t)(header.destination_chunk + value); break;
    case 9: header.microbatch = 15 + (uint32_t)value; break;
    case 10: header.dims[value % 3] += (uint32_t)value; break;
    case 11: header.dims[value % 3] <<= 30; break; /* products that overflow */
    default: header.payload_bytes += (uint32_t)value << 8; break;
    }
    rrfp_message_header_seal(&header);
    return (rrfp_ucx_data){.header = header, .sent_ns = 77,
                           .check = rrfp_ucx_check(RUN, 77, 0, header.source_stage, 1)};
}

/*
 * Mutated headers and truncated payloads from an endpoint that has proved itself.  One bit of a
 * data header is wrong, so the checksum or the check catches it; or a field is, which the plan
 * catches; credits and greetings are random.
 */
static void garbage_changes_nothing(void **state)
{
    (void)state;
    const char *text = getenv("RRFP_UCX_GARBAGE");
    unsigned long count = text == NULL ? 20000 : strtoul(text, NULL, 10);
    uint64_t seed = 42;
    uint32_t open = 0;
    net n = {.stages = 2, .bytes = 256, .slots = 2};
    static unsigned char wire[64][128], payload[2048];
    printf("seed %llu\n", (unsigned long long)seed);
    make(&n, "tcp,self");
    rrfp_message_expectation plans[2];
    for (uint32_t s = 0; s < 2; s++) {
        rrfp_ucx *endpoint = (rrfp_ucx *)n.at[s];
        plans[s] = (rrfp_message_expectation){.shape = {2, 1, 16, RRFP_PLACEMENT_LOOPED},
                                              .run_id = RUN, .step = STEP, .stage = s,
                                              .dtype = RRFP_MESSAGE_F32, .dims = {4, 4, 4}};
        endpoint->admit = admit;
        endpoint->admit_context = &plans[s];
    }
    ucp_ep_h raw = ((rrfp_ucx *)n.at[0])->edges[1].endpoint;
    rrfp_transport_event event;
    for (unsigned long i = 0; i < count; i++) {
        unsigned char *bytes = wire[i % 64];
        unsigned id = 1 + (unsigned)(next_random(&seed) % 3);
        size_t length = sizeof(rrfp_ucx_data), data = 256;
        for (size_t k = 0; k < sizeof wire[0]; k++) {
            bytes[k] = (unsigned char)next_random(&seed);
        }
        if (id == RRFP_UCX_AM_DATA) {
            rrfp_ucx_data good = {.header = header_of(0, 1, 0, 256),
                                  .sent_ns = 77,
                                  .check = rrfp_ucx_check(RUN, 77, 0, 0, 1)};
            memcpy(bytes, &good, sizeof good);
            uint64_t kind = next_random(&seed) % 4;
            if (kind == 0) {
                data = next_random(&seed) % 2 == 0 ? next_random(&seed) % 256
                                                   : 257 + next_random(&seed) % 1700;
            } else if (kind == 1) {
                length = next_random(&seed) % (sizeof good);
            } else if (kind == 2) {
                good = against_the_plan(&seed);
                memcpy(bytes, &good, sizeof good);
            } else {
                bytes[next_random(&seed) % sizeof good] ^= (unsigned char)(1u << next_random(&seed) % 8);
            }
        } else {
            length = next_random(&seed) % 100;
            data = next_random(&seed) % 4 == 0 ? next_random(&seed) % 300 : 0;
        }
        ucp_request_param_t param = {
            .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
            .cb.send = small_done,
            .user_data = &open,
        };
        ucs_status_ptr_t request = ucp_am_send_nbx(raw, id, bytes, length, payload, data, &param);
        assert_false(UCS_PTR_IS_ERR(request));
        open += request != NULL;
        for (int k = 0; k < 100000 && (k < 2 || open > 0); k++) {
            assert_false(n.at[0]->ops->poll(n.at[0], &event));
            assert_false(n.at[1]->ops->poll(n.at[1], &event));
        }
        assert_int_equal(open, 0);
    }
    uint64_t until = rrfp_ucx_now_ns() + TIMEOUT_NS;
    while (rrfp_ucx_refused(n.at[1]) < count && rrfp_ucx_now_ns() < until) {
        assert_false(n.at[0]->ops->poll(n.at[0], &event));
        assert_false(n.at[1]->ops->poll(n.at[1], &event));
    }
    assert_int_equal(rrfp_ucx_refused(n.at[1]), count);
    assert_int_equal(rrfp_ucx_free_slots(n.at[1], 0), 2);
    exchange(&n, 9, 2);
    unmake(&n);
}

/* A peer that is killed while a message for it waits. */
static void a_dead_peer_is_noticed(void **state)
{
    (void)state;
    net n = {.stages = 2, .bytes = 64, .slots = 1};
    static const char *const ways[] = {"tcp,self"};
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        int to_child[2], to_parent[2];
        setenv("UCX_TLS", ways[w], 1);
        assert_true(pipe(to_child) == 0 && pipe(to_parent) == 0);
        pid_t child = fork(); /* before UCX starts in either */
        uint32_t me = child == 0 ? 1 : 0, slots[MOST];
        int in = child == 0 ? to_child[0] : to_parent[0];
        int out = child == 0 ? to_parent[1] : to_child[1];
        rrfp_ucx_config config = config_of(&n, me, slots);
        rrfp_transport *mine = NULL;
        joiner j = {.timeout_ns = TIMEOUT_NS};
        unsigned char theirs[4096];
        rrfp_status status = rrfp_ucx_create(&config, &mine, &error);
        if (status == RRFP_OK) {
            rrfp_ucx_address(mine, &j.addresses[me], &j.bytes[me], &error);
            uint32_t length = (uint32_t)j.bytes[me], other = 0;
            if (write(out, &length, sizeof length) < 0 ||
                write(out, j.addresses[me], length) < 0 ||
                read(in, &other, sizeof other) != sizeof other || other > sizeof theirs ||
                read(in, theirs, other) != (ssize_t)other) {
                status = RRFP_ERR_IO;
            }
            j.addresses[1 - me] = theirs;
            j.bytes[1 - me] = other;
        }
        if (status == RRFP_OK) {
            status = rrfp_ucx_connect(mine, j.addresses, j.bytes, TIMEOUT_NS, &error);
        }
        if (child == 0) {
            char ok = status == RRFP_OK;
            if (write(out, &ok, 1) == 1) {
                pause();
            }
            _exit(1);
        }
        char ok = 0;
        assert_int_equal(status, RRFP_OK);
        assert_int_equal(read(in, &ok, 1), 1);
        assert_int_equal(ok, 1);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        unsigned char payload[64] = {0};
        uint64_t until = rrfp_ucx_now_ns() + TIMEOUT_NS;
        while (rrfp_ucx_failure(mine, &error) == RRFP_OK && rrfp_ucx_now_ns() < until) {
            rrfp_message_header header = header_of(0, 1, 0, 64);
            rrfp_transport_event event;
            mine->ops->send(mine, &header, payload, &error);
            while (mine->ops->poll(mine, &event)) {
            }
            mine->ops->wait(mine, 10000000);
        }
        assert_int_equal(rrfp_ucx_failure(mine, &error), RRFP_ERR_PEER);
        assert_non_null(strstr(error.text, "lost"));
        mine->ops->destroy(mine);
        for (int i = 0; i < 2; i++) {
            close(to_child[i]);
            close(to_parent[i]);
        }
    }
}

int main(void)
{
    setenv("UCX_LOG_LEVEL", "fatal", 1); /* a killed peer is no news to a test */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dead_peer_is_noticed), /* forks: before any other starts threads */
        cmocka_unit_test(over_tcp),
        cmocka_unit_test(over_shared_memory),
        cmocka_unit_test(delayed),
        cmocka_unit_test(settle_names_what_is_astray),
        cmocka_unit_test(wake_ends_wait),
        cmocka_unit_test(wrong_secret_is_refused),
        cmocka_unit_test(garbage_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
