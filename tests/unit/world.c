/*
 * world.c - ranks come together, agree, and notice who is gone.
 *
 * Ranks are threads here, or forked processes where one has to die.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/world_internal.h"

enum { MOST = 8 };

typedef struct place {
    rrfp_launch_environment environment;
    double timeout_s;
    rrfp_world *world;
    rrfp_status status;
    rrfp_error error;
    void (*body)(struct place *);
    int calls;   /* of on_failure */
    int garbage; /* which field is wrong */
} place;

/* A listening socket on a free port. */
static int open_port(uint16_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    assert_int_equal(listen(fd, 64), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

static void on_failure(void *context, const rrfp_error *error)
{
    place *p = context;
    (void)error;
    p->calls++;
}

static rrfp_launch_environment environment_of(uint32_t rank, uint32_t size, uint16_t port,
                                              int listener)
{
    rrfp_launch_environment e = {.rank = rank, .size = size, .local_size = size,
                                 .master_address = "127.0.0.1", .master_port = port,
                                 .listen_fd = rank == 0 ? listener : -1, .join_timeout_s = 60};
    memset(e.secret, 5, sizeof e.secret);
    return e;
}

static void *live(void *argument)
{
    place *p = argument;
    rrfp_world_config config = {.environment = &p->environment, .peer_timeout_s = p->timeout_s,
                                .on_failure = on_failure, .context = p};
    p->status = rrfp_world_join(&config, &p->world, &p->error);
    if (p->status == RRFP_OK) {
        p->body(p);
        rrfp_world_leave(p->world);
    }
    return NULL;
}

/* `size` ranks as threads; all must end well. */
static void together(uint32_t size, void (*body)(place *))
{
    static place places[MOST];
    pthread_t threads[MOST];
    uint16_t port;
    int listener = open_port(&port);
    memset(places, 0, sizeof places);
    for (uint32_t r = 0; r < size; r++) {
        places[r].environment = environment_of(r, size, port, listener);
        places[r].timeout_s = 30;
        places[r].body = body;
        assert_int_equal(pthread_create(&threads[r], NULL, live, &places[r]), 0);
    }
    for (uint32_t r = 0; r < size; r++) {
        pthread_join(threads[r], NULL);
    }
    for (uint32_t r = 0; r < size; r++) {
        if (places[r].status != RRFP_OK) {
            fail_msg("rank %u: %s", r, places[r].error.text);
        }
        assert_int_equal(places[r].calls, 0);
    }
}

static unsigned char byte_of(uint32_t rank, size_t i)
{
    return (unsigned char)(rank * 37 + i * 11 + (i >> 9));
}

static bool is_from(const void *data, size_t bytes, uint32_t rank)
{
    for (size_t i = 0; i < bytes; i++) {
        if (((const unsigned char *)data)[i] != byte_of(rank, i)) {
            return false;
        }
    }
    return true;
}

typedef struct seen {
    uint32_t next;
    size_t bytes;
} seen;

static rrfp_status see_part(void *context, uint32_t rank, const void *data, size_t bytes,
                            rrfp_error *error)
{
    seen *s = context;
    if (rank != s->next++ || bytes != s->bytes + rank || !is_from(data, bytes, rank)) {
        return rrfp_error_set(error, RRFP_ERR_INTERNAL, "part %u is wrong", rank);
    }
    return RRFP_OK;
}

static bool went_wrong(place *p, rrfp_status status)
{
    p->status = p->status == RRFP_OK ? status : p->status;
    return status != RRFP_OK;
}

/* Every collective with several sizes; the verdicts are told outside of the threads. */
static void agree(place *p)
{
    static const size_t sizes[] = {0, 1, 1000, (1 << 20) - 3, 5000000};
    uint32_t rank = p->environment.rank, size = p->environment.size;
    unsigned char *data = malloc(5000000 + MOST);
    for (size_t i = 0; data != NULL && i < sizeof sizes / sizeof *sizes; i++) {
        size_t bytes = sizes[i];
        seen s = {0, bytes};
        void **parts;
        size_t *lengths;
        for (size_t k = 0; k < bytes + rank; k++) {
            data[k] = byte_of(rank, k);
        }
        if (went_wrong(p, rrfp_world_gather(p->world, data, bytes + rank, see_part, &s,
                                            &p->error)) ||
            went_wrong(p, rrfp_world_all_gather(p->world, data, bytes + rank, &parts, &lengths,
                                                &p->error))) {
            break;
        }
        for (uint32_t r = 0; r < size; r++) {
            if (lengths[r] != bytes + r || !is_from(parts[r], lengths[r], r)) {
                went_wrong(p, rrfp_error_set(&p->error, RRFP_ERR_INTERNAL, "all_gather"));
            }
        }
        rrfp_world_free_parts(parts, lengths, size);
        if (went_wrong(p, rrfp_world_broadcast(p->world, data, bytes, &p->error))) {
            break;
        }
        if (!is_from(data, bytes, 0)) {
            went_wrong(p, rrfp_error_set(&p->error, RRFP_ERR_INTERNAL, "broadcast"));
        }
        for (uint32_t r = 1; r < size; r++) { /* to rank 0 and back */
            if (rank == r &&
                (went_wrong(p, rrfp_world_send(p->world, 0, data, bytes, &p->error)) ||
                 went_wrong(p, rrfp_world_receive(p->world, 0, data, bytes, &p->error)))) {
                break;
            }
            if (rank == 0 &&
                (went_wrong(p, rrfp_world_receive(p->world, r, data, bytes, &p->error)) ||
                 went_wrong(p, rrfp_world_send(p->world, r, data, bytes, &p->error)))) {
                break;
            }
        }
    }
    free(data);
}

static void many_rounds(place *p)
{
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t value = p->environment.rank == 0 ? i * i : 0;
        rrfp_world_set_activity(p->world, i, "counting");
        if (went_wrong(p, rrfp_world_broadcast(p->world, &value, sizeof value, &p->error))) {
            return;
        }
        if (value != i * i) {
            went_wrong(p, rrfp_error_set(&p->error, RRFP_ERR_INTERNAL, "round %d", (int)i));
        }
    }
}

static void worlds_of_threads(void **state)
{
    (void)state;
    together(2, agree);
    together(3, agree);
    together(MOST, agree);
    together(3, many_rounds);
}

/* A rank that says why it cannot go on. */
static void give_up(place *p)
{
    uint64_t value = 0;
    rrfp_error why;
    rrfp_error_set(&why, RRFP_ERR_IO, "the disk is full");
    if (p->environment.rank == 1) {
        rrfp_world_fail(p->world, &why);
    }
    rrfp_status status = rrfp_world_broadcast(p->world, &value, sizeof value, &p->error);
    while (status == RRFP_OK) { /* the broadcast may have been faster */
        status = rrfp_world_receive(p->world, p->environment.rank == 0 ? 2 : 0, &value,
                                    sizeof value, &p->error);
    }
    bool named = strstr(p->error.text, "the disk is full") != NULL &&
                 (p->environment.rank == 1 || strstr(p->error.text, "rank 1") != NULL);
    p->status = status == RRFP_ERR_PEER && named ? RRFP_OK : RRFP_ERR_INTERNAL;
}

static void a_failure_is_told(void **state)
{
    (void)state;
    static place places[3];
    pthread_t threads[3];
    uint16_t port;
    int listener = open_port(&port);
    memset(places, 0, sizeof places);
    for (uint32_t r = 0; r < 3; r++) {
        places[r].environment = environment_of(r, 3, port, listener);
        places[r].timeout_s = 30;
        places[r].body = give_up;
        assert_int_equal(pthread_create(&threads[r], NULL, live, &places[r]), 0);
    }
    for (uint32_t r = 0; r < 3; r++) {
        pthread_join(threads[r], NULL);
        if (places[r].status != RRFP_OK) {
            fail_msg("rank %u: %s", r, places[r].error.text);
        }
        assert_int_equal(places[r].calls, r == 1 ? 0 : 1);
    }
}

/* In a child: joins, tells the parent, and waits for what happens. */
static void be_rank(uint32_t rank, uint32_t size, uint16_t port, int listener, int out)
{
    rrfp_launch_environment e = environment_of(rank, size, port, listener);
    rrfp_world_config config = {.environment = &e, .peer_timeout_s = 1.0};
    rrfp_world *world;
    rrfp_error error;
    uint64_t value;
    char report[600];
    alarm(60);
    if (rrfp_world_join(&config, &world, &error) != RRFP_OK) {
        _exit(1);
    }
    rrfp_world_set_activity(world, 7, "working");
    if (write(out, "j", 1) != 1) {
        _exit(1);
    }
    rrfp_status status = rank == 0 ? rrfp_world_receive(world, size - 1, &value, 8, &error)
                                   : rrfp_world_receive(world, 0, &value, 8, &error);
    int length = snprintf(report, sizeof report, "%d %s\n", (int)status, error.text);
    if (write(out, report, (size_t)length) != length) {
        _exit(1);
    }
    rrfp_world_leave(world);
    _exit(0);
}

/* Three ranks; one gets the signal, the others must name it. */
static void lose_one(uint32_t victim, int number)
{
    enum { SIZE = 3 };
    int pipes[SIZE][2];
    pid_t children[SIZE];
    uint16_t port;
    int listener = open_port(&port);
    char who[16];
    snprintf(who, sizeof who, "rank %u ", victim);
    for (uint32_t r = 0; r < SIZE; r++) {
        assert_int_equal(pipe(pipes[r]), 0);
        children[r] = fork();
        assert_true(children[r] >= 0);
        if (children[r] == 0) {
            be_rank(r, SIZE, port, listener, pipes[r][1]);
        }
        close(pipes[r][1]);
    }
    close(listener);
    for (uint32_t r = 0; r < SIZE; r++) {
        char joined = 0;
        assert_int_equal(read(pipes[r][0], &joined, 1), 1);
        assert_int_equal(joined, 'j');
    }
    kill(children[victim], number);
    for (uint32_t r = 0; r < SIZE; r++) {
        char text[600];
        size_t used = 0;
        ssize_t got;
        if (r == victim) {
            continue;
        }
        while ((got = read(pipes[r][0], text + used, sizeof text - 1 - used)) > 0) {
            used += (size_t)got;
        }
        text[used] = '\0';
        if (atoi(text) != RRFP_ERR_PEER || strstr(text, who) == NULL ||
            strstr(text, "step 7, working") == NULL) {
            fail_msg("rank %u after signal %d for rank %u: %s", r, number, victim, text);
        }
    }
    kill(children[victim], SIGKILL);
    for (uint32_t r = 0; r < SIZE; r++) {
        waitpid(children[r], NULL, 0);
        close(pipes[r][0]);
    }
}

static void the_lost_are_named(void **state)
{
    (void)state;
    for (uint32_t victim = 0; victim < 3; victim++) {
        lose_one(victim, SIGKILL);
        lose_one(victim, SIGSTOP);
    }
}

static int reach(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

/* Garbage, half a greeting, and a wrong secret: turned away, and the right ones still join. */
static void strangers_are_turned_away(void **state)
{
    (void)state;
    static place places[2], liar;
    pthread_t threads[2], lying;
    uint16_t port;
    int listener = open_port(&port), strangers[6];
    unsigned char noise[4096];
    memset(places, 0, sizeof places);
    memset(&liar, 0, sizeof liar);
    for (size_t i = 0; i < sizeof noise; i++) {
        noise[i] = (unsigned char)(i * 73 + 1);
    }
    places[0].environment = environment_of(0, 2, port, listener);
    places[0].timeout_s = 30;
    places[0].body = many_rounds;
    assert_int_equal(pthread_create(&threads[0], NULL, live, &places[0]), 0);
    for (int i = 0; i < 6; i++) {
        strangers[i] = reach(port);
        size_t bytes = i == 0 ? 0 : i == 1 ? 20 : i == 2 ? 88 : sizeof noise;
        if (i == 5) { /* looks right, of a giant size */
            rrfp_frame_header header = {.magic = RRFP_FRAME_MAGIC, .version = 1, .rank = 1,
                                        .kind = RRFP_FRAME_HELLO, .bytes = UINT32_MAX};
            memcpy(noise, &header, sizeof header);
        }
        assert_true(bytes == 0 || send(strangers[i], noise, bytes, MSG_NOSIGNAL) > 0);
    }
    liar.environment = environment_of(1, 2, port, -1);
    liar.environment.secret[3] ^= 1;
    liar.timeout_s = 30;
    liar.body = many_rounds;
    assert_int_equal(pthread_create(&lying, NULL, live, &liar), 0);
    pthread_join(lying, NULL);
    assert_int_equal(liar.status, RRFP_ERR_PEER);
    assert_non_null(strstr(liar.error.text, "RRFP_SECRET"));
    places[1] = places[0];
    places[1].environment = environment_of(1, 2, port, -1);
    assert_int_equal(pthread_create(&threads[1], NULL, live, &places[1]), 0);
    for (int r = 0; r < 2; r++) {
        pthread_join(threads[r], NULL);
        if (places[r].status != RRFP_OK) {
            fail_msg("rank %d: %s", r, places[r].error.text);
        }
    }
    for (int i = 0; i < 6; i++) {
        close(strangers[i]);
    }
}

static void who_is_missing_is_named(void **state)
{
    (void)state;
    uint16_t port;
    int listener = open_port(&port);
    rrfp_world *world;
    rrfp_error error;
    rrfp_launch_environment e = environment_of(0, 4, port, listener);
    e.join_timeout_s = 0.2;
    rrfp_world_config config = {.environment = &e, .peer_timeout_s = 1.0};
    assert_int_equal(rrfp_world_join(&config, &world, &error), RRFP_ERR_PEER);
    assert_non_null(strstr(error.text, "for rank 1, 2, 3:"));
    e = environment_of(1, 4, port, -1); /* nobody listens there any more */
    e.join_timeout_s = 0.2;
    assert_int_equal(rrfp_world_join(&config, &world, &error), RRFP_ERR_PEER);
    assert_non_null(strstr(error.text, "cannot reach rank 0"));
}

static uint64_t next_random(uint64_t *seed)
{
    uint64_t z = *seed += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    return z ^ z >> 27;
}

/* Some good frames, then one with a wrong field. */
static void send_garbage(place *p)
{
    static const unsigned char body[64];
    uint64_t seed = 99 + (uint64_t)p->garbage;
    rrfp_frame_header header = {.magic = RRFP_FRAME_MAGIC, .version = RRFP_FRAME_VERSION,
                                .kind = RRFP_FRAME_ALIVE, .rank = 1, .bytes = 16};
    int fd = p->world->links[0].fd;
    for (uint64_t i = next_random(&seed) % 5; i > 0; i--) {
        ssize_t sent = send(fd, &header, sizeof header, MSG_NOSIGNAL);
        sent += send(fd, body, 16, MSG_NOSIGNAL);
        (void)sent;
    }
    switch (p->garbage) {
    case 0:
        header.magic ^= 1u << next_random(&seed) % 32;
        break;
    case 1:
        header.bytes = RRFP_FRAME_MOST + 1 + (uint32_t)next_random(&seed) % 1000000;
        break;
    case 2:
        header.kind = (uint8_t)(RRFP_FRAME_BYE + 1 + next_random(&seed) % 100);
        break;
    default:
        header.zero = (uint32_t)next_random(&seed) | 1;
        break;
    }
    ssize_t sent = send(fd, &header, sizeof header, MSG_NOSIGNAL);
    (void)sent;
}

/* A member that sends nonsense is a failure that names it. */
static void nonsense_of_a_member(place *p)
{
    uint64_t value;
    if (p->environment.rank == 1) {
        send_garbage(p);
        rrfp_world_receive(p->world, 0, &value, sizeof value, &p->error); /* until it is cut off */
        return;
    }
    rrfp_status status = rrfp_world_receive(p->world, 1, &value, sizeof value, &p->error);
    p->status = status == RRFP_ERR_PEER && strstr(p->error.text, "rank 1 ") != NULL &&
                        strstr(p->error.text, "a frame with a wrong") != NULL
                    ? RRFP_OK
                    : RRFP_ERR_INTERNAL;
}

static void nonsense_is_a_failure(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++) {
        static place places[2];
        pthread_t threads[2];
        uint16_t port;
        int listener = open_port(&port);
        memset(places, 0, sizeof places);
        for (uint32_t r = 0; r < 2; r++) {
            places[r].environment = environment_of(r, 2, port, listener);
            places[r].timeout_s = 30;
            places[r].body = nonsense_of_a_member;
            places[r].garbage = round;
            assert_int_equal(pthread_create(&threads[r], NULL, live, &places[r]), 0);
        }
        for (uint32_t r = 0; r < 2; r++) {
            pthread_join(threads[r], NULL);
        }
        if (places[0].status != RRFP_OK) {
            fail_msg("%s", places[0].error.text);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_lost_are_named), /* forks: before any thread was started */
        cmocka_unit_test(worlds_of_threads),
        cmocka_unit_test(a_failure_is_told),
        cmocka_unit_test(strangers_are_turned_away),
        cmocka_unit_test(who_is_missing_is_named),
        cmocka_unit_test(nonsense_is_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
