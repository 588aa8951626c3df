/*
 * world_join.c - coming together.
 *
 *     rank 0                                       rank r
 *       │ ◄──────────── connects ─────────────────── │
 *       │ ── CHALLENGE: number s ──────────────────► │
 *       │ ◄─ HELLO: r, size, number c, HMAC(c, s) ── │
 *       │ ── WELCOME: run id, HMAC(s, c, run id) ──► │
 *       │ ── START, when all are here ─────────────► │
 *
 * A stranger has five seconds to say something right, and takes nothing from those who belong.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "launch/world_internal.h"

enum { NUMBER_BYTES = 16, MAC_BYTES = 32, STRANGERS = 32 };
static const uint64_t STRANGER_NS = 5000000000u;
static const long AGAIN_NS = 50000000;

typedef struct challenge {
    rrfp_frame_header header;
    uint8_t number[NUMBER_BYTES];
} challenge;

typedef struct hello {
    rrfp_frame_header header;
    uint32_t size, zero;
    uint8_t number[NUMBER_BYTES], mac[MAC_BYTES];
} hello;

typedef struct welcome {
    rrfp_frame_header header;
    uint64_t run_id;
    uint8_t mac[MAC_BYTES];
} welcome;

typedef struct guest { /* connected, not yet believed */
    int fd;            /* -1: none */
    uint64_t deadline_ns;
    uint8_t number[NUMBER_BYTES];
    hello said;
    size_t got;
} guest;

static rrfp_frame_header header_of(const rrfp_world *world, rrfp_frame_kind kind, size_t bytes)
{
    return (rrfp_frame_header){.magic = RRFP_FRAME_MAGIC,
                               .version = RRFP_FRAME_VERSION,
                               .kind = (uint8_t)kind,
                               .rank = (uint16_t)world->rank,
                               .bytes = (uint32_t)(bytes - sizeof(rrfp_frame_header))};
}

static void prove(const rrfp_world *world, const char *role, const uint8_t *first,
                  const uint8_t *second, uint64_t about, uint8_t mac[MAC_BYTES])
{
    struct hmac_sha256_ctx context;
    hmac_sha256_set_key(&context, sizeof world->secret, world->secret);
    hmac_sha256_update(&context, strlen(role), (const uint8_t *)role);
    hmac_sha256_update(&context, NUMBER_BYTES, first);
    hmac_sha256_update(&context, NUMBER_BYTES, second);
    hmac_sha256_update(&context, sizeof about, (const uint8_t *)&about);
    hmac_sha256_digest(&context, MAC_BYTES, mac);
}

static rrfp_status draw(void *out, size_t bytes, rrfp_error *error)
{
    if (getrandom(out, bytes, 0) != (ssize_t)bytes) {
        return rrfp_error_set(error, RRFP_ERR_IO, "cannot draw random numbers: %s",
                              strerror(errno));
    }
    return RRFP_OK;
}

/* Both within `until`; false when the time is up or the other has left. */
static bool transfer(int fd, void *data, size_t bytes, bool out, uint64_t until)
{
    unsigned char *at = data;
    while (bytes > 0) {
        ssize_t done = out ? send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
                           : recv(fd, at, bytes, MSG_DONTWAIT);
        if (done > 0) {
            at += done;
            bytes -= (size_t)done;
            continue;
        }
        uint64_t now = rrfp_world_now_ns();
        if (done == 0 || (errno != EAGAIN && errno != EINTR) || now >= until) {
            return false;
        }
        struct pollfd ready = {fd, out ? POLLOUT : POLLIN, 0};
        poll(&ready, 1, (int)((until - now) / 1000000u) + 1);
    }
    return true;
}

static rrfp_status resolve(const rrfp_launch_environment *environment, bool passive,
                           struct addrinfo **found, rrfp_error *error)
{
    char port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = passive ? AI_PASSIVE : 0};
    snprintf(port, sizeof port, "%u", environment->master_port);
    int code = getaddrinfo(environment->master_address, port, &hints, found);
    if (code != 0) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "MASTER_ADDR %.100s: %s",
                              environment->master_address, gai_strerror(code));
    }
    return RRFP_OK;
}

/* ---- rank 0 --------------------------------------------------------------------------- */

static rrfp_status open_listener(const rrfp_launch_environment *environment, int *out,
                                 rrfp_error *error)
{
    struct addrinfo *found = NULL;
    int fd = environment->listen_fd, on = 1;
    rrfp_status status = RRFP_OK;
    if (fd < 0) {
        status = resolve(environment, true, &found, error);
        if (status != RRFP_OK) {
            return status;
        }
        fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
            bind(fd, found->ai_addr, found->ai_addrlen) != 0) {
            status = rrfp_error_set(error, RRFP_ERR_IO,
                                    "rank 0 cannot listen at MASTER_ADDR %.100s, MASTER_PORT %u: "
                                    "%s",
                                    environment->master_address, environment->master_port,
                                    strerror(errno));
        }
        freeaddrinfo(found);
    }
    if (status == RRFP_OK && (listen(fd, 1024) != 0 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0)) {
        status = rrfp_error_set(error, RRFP_ERR_IO, "rank 0 cannot listen: %s", strerror(errno));
    }
    if (status != RRFP_OK && fd >= 0) {
        close(fd);
    }
    *out = fd;
    return status;
}

static void dismiss(guest *g)
{
    close(g->fd);
    g->fd = -1;
}

static void receive_guest(rrfp_world *world, int listener, guest *guests)
{
    rrfp_error error;
    guest *room = guests;
    while (room < guests + STRANGERS && room->fd >= 0) {
        room++;
    }
    if (room == guests + STRANGERS) {
        return; /* waits in the queue of the kernel */
    }
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        return;
    }
    *room = (guest){.fd = fd, .deadline_ns = rrfp_world_now_ns() + STRANGER_NS};
    challenge asks = {.header = header_of(world, RRFP_FRAME_CHALLENGE, sizeof asks)};
    if (rrfp_world_prepare_socket(fd, world->timeout_ns, &error) != RRFP_OK ||
        draw(room->number, sizeof room->number, &error) != RRFP_OK) {
        dismiss(room);
        return;
    }
    memcpy(asks.number, room->number, sizeof asks.number);
    if (send(fd, &asks, sizeof asks, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof asks) {
        dismiss(room);
    }
}

/* What a guest said is whole: a rank of ours, or a stranger. */
static void judge(rrfp_world *world, guest *g, uint32_t *joined)
{
    uint8_t mac[MAC_BYTES];
    uint32_t rank = g->said.header.rank;
    const char *fault = rrfp_frame_fault(world, &g->said.header, rank);
    prove(world, "hello", g->said.number, g->number, (uint64_t)g->said.size << 16 | rank, mac);
    if (fault == NULL && g->said.header.kind != RRFP_FRAME_HELLO) {
        fault = "kind";
    } else if (fault == NULL && g->said.header.bytes != sizeof(hello) - sizeof(rrfp_frame_header)) {
        fault = "size";
    } else if (fault == NULL && !memeql_sec(mac, g->said.mac, sizeof mac)) {
        fault = "proof of the secret (RRFP_SECRET)";
    } else if (fault == NULL && g->said.size != world->size) {
        fault = "number of ranks";
    } else if (fault == NULL && (rank == 0 || world->links[rank].fd >= 0)) {
        fault = "rank, which is here already";
    }
    if (fault != NULL) {
        fprintf(stderr, "rrfp: rank 0 turns a process away: wrong %s\n", fault);
        dismiss(g);
        return;
    }
    welcome answer = {.header = header_of(world, RRFP_FRAME_WELCOME, sizeof answer),
                      .run_id = world->run_id};
    prove(world, "welcome", g->number, g->said.number, world->run_id, answer.mac);
    if (send(g->fd, &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof answer) {
        dismiss(g);
        return;
    }
    world->links[rank].fd = g->fd;
    g->fd = -1;
    ++*joined;
}

static void listen_to(rrfp_world *world, guest *g, uint32_t *joined)
{
    ssize_t got = recv(g->fd, (unsigned char *)&g->said + g->got, sizeof g->said - g->got,
                       MSG_DONTWAIT);
    if (got > 0) {
        g->got += (size_t)got;
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        dismiss(g);
        return;
    }
    if (g->got == sizeof g->said) {
        judge(world, g, joined);
    }
}

/* "1, 2 and 5 more" */
static void name_missing(const rrfp_world *world, char *text, size_t room)
{
    uint32_t missing = 0;
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t r = 1; r < world->size; r++) {
        if (world->links[r].fd < 0 && ++missing <= 8 && used < room) {
            used += (size_t)snprintf(text + used, room - used, "%s%u", missing > 1 ? ", " : "", r);
        }
    }
    if (missing > 8 && used < room) {
        snprintf(text + used, room - used, " and %u more", missing - 8);
    }
}

static rrfp_status gather_ranks(rrfp_world *world, int listener, double timeout_s,
                                rrfp_error *error)
{
    uint64_t deadline = rrfp_world_now_ns() + (uint64_t)(timeout_s * 1e9);
    guest guests[STRANGERS];
    uint32_t joined = 1;
    rrfp_status status = draw(&world->run_id, sizeof world->run_id, error);
    for (int i = 0; i < STRANGERS; i++) {
        guests[i].fd = -1;
    }
    while (status == RRFP_OK && joined < world->size) {
        struct pollfd fds[STRANGERS + 1];
        uint64_t now = rrfp_world_now_ns();
        for (int i = 0; i < STRANGERS; i++) {
            if (guests[i].fd >= 0 && now >= guests[i].deadline_ns) {
                dismiss(&guests[i]);
            }
            fds[i] = (struct pollfd){guests[i].fd, POLLIN, 0};
        }
        fds[STRANGERS] = (struct pollfd){listener, POLLIN, 0};
        if (now >= deadline) {
            char text[128];
            name_missing(world, text, sizeof text);
            status = rrfp_error_set(error, RRFP_ERR_PEER,
                                    "rank 0 waited %.0f s for rank %s: are all %u processes "
                                    "started, and does MASTER_ADDR lead here (RRFP_JOIN_TIMEOUT "
                                    "waits longer)?",
                                    timeout_s, text, world->size);
            break;
        }
        poll(fds, STRANGERS + 1, 200);
        for (int i = 0; i < STRANGERS; i++) {
            if (guests[i].fd >= 0 && fds[i].revents != 0) {
                listen_to(world, &guests[i], &joined);
            }
        }
        if (fds[STRANGERS].revents != 0) {
            receive_guest(world, listener, guests);
        }
    }
    for (int i = 0; i < STRANGERS; i++) {
        if (guests[i].fd >= 0) {
            dismiss(&guests[i]);
        }
    }
    return status;
}

/* ---- the others ----------------------------------------------------------------------- */

/* Tries until rank 0 listens or the time is up. */
static rrfp_status reach_master(rrfp_world *world, const rrfp_launch_environment *environment,
                                uint64_t deadline, int *out, rrfp_error *error)
{
    struct timespec again = {0, AGAIN_NS};
    for (;;) {
        struct addrinfo *found = NULL;
        rrfp_status status = resolve(environment, false, &found, error);
        if (status != RRFP_OK) {
            return status;
        }
        int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), code = 0;
        if (fd < 0 || rrfp_world_prepare_socket(fd, world->timeout_ns, error) != RRFP_OK ||
            connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
            code = errno;
        }
        freeaddrinfo(found);
        if (code == 0) {
            *out = fd;
            return RRFP_OK;
        }
        if (fd >= 0) {
            close(fd);
        }
        if (rrfp_world_now_ns() >= deadline) {
            return rrfp_error_set(error, RRFP_ERR_PEER,
                                  "rank %u cannot reach rank 0 at MASTER_ADDR %.100s, MASTER_PORT "
                                  "%u: %s",
                                  world->rank, environment->master_address,
                                  environment->master_port, strerror(code));
        }
        nanosleep(&again, NULL);
    }
}

static rrfp_status introduce(rrfp_world *world, int fd, uint64_t deadline, rrfp_error *error)
{
    challenge asked;
    hello says = {.header = header_of(world, RRFP_FRAME_HELLO, sizeof says), .size = world->size};
    welcome answer;
    rrfp_frame_header start;
    uint8_t mac[MAC_BYTES];
    rrfp_status status = draw(says.number, sizeof says.number, error);
    if (status != RRFP_OK) {
        return status;
    }
    bool ok = transfer(fd, &asked, sizeof asked, false, deadline);
    prove(world, "hello", says.number, asked.number, (uint64_t)world->size << 16 | world->rank,
          says.mac);
    ok = ok && rrfp_frame_fault(world, &asked.header, 0) == NULL &&
         asked.header.kind == RRFP_FRAME_CHALLENGE &&
         transfer(fd, &says, sizeof says, true, deadline) &&
         transfer(fd, &answer, sizeof answer, false, deadline);
    if (!ok) {
        return rrfp_error_set(error, RRFP_ERR_PEER,
                              "rank %u: rank 0 turned this process away; do RRFP_SECRET, WORLD_SIZE "
                              "and the ranks agree (rank 0 prints what was wrong)?",
                              world->rank);
    }
    prove(world, "welcome", asked.number, says.number, answer.run_id, mac);
    if (rrfp_frame_fault(world, &answer.header, 0) != NULL ||
        answer.header.kind != RRFP_FRAME_WELCOME || !memeql_sec(mac, answer.mac, sizeof mac)) {
        return rrfp_error_set(error, RRFP_ERR_PEER,
                              "rank %u: what answers at MASTER_ADDR does not know this run's secret",
                              world->rank);
    }
    world->run_id = answer.run_id;
    if (!transfer(fd, &start, sizeof start, false, deadline) ||
        rrfp_frame_fault(world, &start, 0) != NULL || start.kind != RRFP_FRAME_START) {
        return rrfp_error_set(error, RRFP_ERR_PEER,
                              "rank %u: rank 0 gave up before all ranks had come", world->rank);
    }
    return RRFP_OK;
}

rrfp_status rrfp_world_connect(rrfp_world *world, const rrfp_launch_environment *environment,
                               rrfp_error *error)
{
    int fd = -1;
    rrfp_status status;
    if (world->rank == 0) {
        status = open_listener(environment, &fd, error);
        if (status != RRFP_OK) {
            return status;
        }
        status = gather_ranks(world, fd, environment->join_timeout_s, error);
        close(fd);
        rrfp_frame_header start = header_of(world, RRFP_FRAME_START, sizeof start);
        for (uint32_t r = 1; status == RRFP_OK && r < world->size; r++) {
            if (send(world->links[r].fd, &start, sizeof start, MSG_NOSIGNAL) != sizeof start) {
                status = rrfp_error_set(error, RRFP_ERR_PEER, "rank %u left before the start", r);
            }
        }
        return status;
    }
    uint64_t deadline = rrfp_world_now_ns() + (uint64_t)(environment->join_timeout_s * 1e9);
    status = reach_master(world, environment, deadline, &fd, error);
    if (status == RRFP_OK) {
        world->links[0].fd = fd; /* free_world() closes it */
        /* Rank 0 may have begun to wait later than this rank did. */
        status = introduce(world, fd, deadline + 5000000000u, error);
    }
    return status;
}
