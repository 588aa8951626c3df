/* world.c - a world's life, its frames and its collectives; see world.h. */
#include "launch/world.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "launch/world_internal.h"

enum { LOOK_AGAIN_MS = 50 };
static const uint64_t AFTER_FAILURE_NS = 1000000000u;

uint64_t rrfp_world_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

rrfp_status rrfp_world_prepare_socket(int fd, uint64_t timeout_ns, rrfp_error *error)
{
    int on = 1;
    unsigned unacknowledged_ms = (unsigned)(timeout_ns / 1000000u);
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms,
                   sizeof unacknowledged_ms) != 0) {
        return rrfp_error_set(error, RRFP_ERR_IO, "cannot set up a socket: %s", strerror(errno));
    }
    return RRFP_OK;
}

static void wake_control(rrfp_world *world)
{
    uint64_t one = 1;
    if (write(world->wake_fd, &one, sizeof one) < 0) {
        /* full: it is awake */
    }
}

void rrfp_world_set_failure(rrfp_world *world, bool mine, const char *format, ...)
{
    char text[RRFP_ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&world->mutex);
    if (world->failure.status == RRFP_OK) {
        rrfp_error_set(&world->failure, RRFP_ERR_PEER, "%s", text);
        world->failure_mine = mine;
        atomic_store(&world->failed, true);
    }
    pthread_cond_broadcast(&world->arrived);
    pthread_mutex_unlock(&world->mutex);
    wake_control(world);
}

void rrfp_world_fail(rrfp_world *world, const rrfp_error *why)
{
    rrfp_world_set_failure(world, true, "%s", why->text);
}

rrfp_status rrfp_world_failure(rrfp_world *world, rrfp_error *error)
{
    pthread_mutex_lock(&world->mutex);
    rrfp_error failure = world->failure;
    pthread_mutex_unlock(&world->mutex);
    if (failure.status == RRFP_OK) {
        return RRFP_OK;
    }
    return rrfp_error_set(error, RRFP_ERR_PEER, "%.340s; this rank was at step %llu, %s",
                          failure.text, (unsigned long long)atomic_load(&world->step),
                          atomic_load(&world->doing));
}

void rrfp_world_set_activity(rrfp_world *world, uint64_t step, const char *doing)
{
    atomic_store(&world->step, step);
    atomic_store(&world->doing, doing);
}

uint64_t rrfp_world_run_id(const rrfp_world *world)
{
    return world->run_id;
}

/* ---- sending -------------------------------------------------------------------------- */

/* All of `bytes`; false when the link is lost or takes nothing for the peer timeout; after a
 * failure a second is enough. */
static bool write_all(rrfp_world *world, rrfp_link *link, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint64_t begin = rrfp_world_now_ns();
    while (bytes > 0) {
        ssize_t sent = rrfp_link_is_open(link)
                           ? send(link->fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
                           : 0;
        if (sent > 0) {
            at += sent;
            bytes -= (size_t)sent;
            begin = rrfp_world_now_ns();
            continue;
        }
        uint64_t waited = rrfp_world_now_ns() - begin;
        uint64_t most = atomic_load(&world->failed) ? AFTER_FAILURE_NS : world->timeout_ns;
        if (sent == 0 || (errno != EAGAIN && errno != EINTR) || waited > most) {
            return false;
        }
        struct pollfd room = {link->fd, POLLOUT, 0};
        poll(&room, 1, LOOK_AGAIN_MS);
    }
    return true;
}

bool rrfp_world_send_frame(rrfp_world *world, uint32_t rank, rrfp_frame_kind kind,
                           const void *body, size_t bytes, uint64_t total)
{
    rrfp_link *link = &world->links[rank];
    rrfp_frame_header header = {.magic = RRFP_FRAME_MAGIC,
                                .version = RRFP_FRAME_VERSION,
                                .kind = (uint8_t)kind,
                                .rank = (uint16_t)world->rank,
                                .bytes = (uint32_t)bytes,
                                .total = total,
                                .step = atomic_load(&world->step)};
    if (kind == RRFP_FRAME_ALIVE) { /* another frame on its way says as much */
        if (pthread_mutex_trylock(&link->send_mutex) != 0) {
            return true;
        }
    } else {
        pthread_mutex_lock(&link->send_mutex);
    }
    bool ok = !link->broken && write_all(world, link, &header, sizeof header) &&
              write_all(world, link, body, bytes);
    link->broken = link->broken || !ok;
    pthread_mutex_unlock(&link->send_mutex);
    return ok;
}

static rrfp_status send_data(rrfp_world *world, uint32_t rank, const void *data, size_t bytes,
                             rrfp_error *error)
{
    const unsigned char *at = data;
    size_t left = bytes;
    do {
        size_t piece = left < RRFP_FRAME_MOST ? left : RRFP_FRAME_MOST;
        if (atomic_load(&world->failed)) {
            return rrfp_world_failure(world, error);
        }
        if (!rrfp_world_send_frame(world, rank, RRFP_FRAME_DATA, at, piece, bytes)) {
            rrfp_world_set_failure(world, false, "rank %u (stage %u) failed: its connection takes no data", rank,
                                   rank);
            return rrfp_world_failure(world, error);
        }
        at += piece;
        left -= piece;
    } while (left > 0);
    return RRFP_OK;
}

/* ---- receiving ------------------------------------------------------------------------ */

/* The next frame of a rank, the caller's to free; NULL after a failure. */
static rrfp_frame *next_frame(rrfp_world *world, uint32_t rank, rrfp_error *error)
{
    rrfp_link *link = &world->links[rank];
    pthread_mutex_lock(&world->mutex);
    while (link->first == NULL && !atomic_load(&world->failed) &&
           rrfp_link_is_open(link)) {
        pthread_cond_wait(&world->arrived, &world->mutex);
    }
    rrfp_frame *frame = atomic_load(&world->failed) ? NULL : link->first;
    bool was_full = false;
    if (frame != NULL) {
        link->first = frame->next;
        was_full = link->waiting == RRFP_INBOX_MOST;
        link->waiting--;
    }
    pthread_mutex_unlock(&world->mutex);
    if (was_full) {
        wake_control(world); /* reads on */
    }
    if (frame == NULL) {
        rrfp_world_set_failure(world, false,
                               "rank %u (stage %u) failed: it left while others still needed it",
                               rank, rank);
        rrfp_world_failure(world, error);
    }
    return frame;
}

static rrfp_status refuse_piece(rrfp_world *world, uint32_t rank, const rrfp_frame *frame,
                                size_t expected, rrfp_error *error)
{
    rrfp_error_set(error, RRFP_ERR_PEER,
                   "rank %u sent %u of %llu bytes where %zu were expected: do all ranks run the "
                   "same command and build?",
                   rank, frame->header.bytes, (unsigned long long)frame->header.total, expected);
    rrfp_world_fail(world, error);
    return RRFP_ERR_PEER;
}

/* What begins with `frame` and has `total` bytes goes to `data`; frees the frames. */
static rrfp_status receive_rest(rrfp_world *world, uint32_t rank, rrfp_frame *frame,
                                unsigned char *data, size_t total, rrfp_error *error)
{
    rrfp_status status = RRFP_OK;
    size_t got = 0;
    while (status == RRFP_OK) {
        if (frame->header.kind != RRFP_FRAME_DATA || frame->header.total != total ||
            frame->header.bytes > total - got) {
            status = refuse_piece(world, rank, frame, total, error);
        } else {
            memcpy(data + got, frame->body, frame->header.bytes);
            got += frame->header.bytes;
        }
        free(frame);
        if (got == total) {
            break;
        }
        frame = status == RRFP_OK ? next_frame(world, rank, error) : NULL;
        if (frame == NULL) {
            status = RRFP_ERR_PEER;
        }
    }
    return status;
}

/* Any number of bytes up to a GiB, in memory that becomes the caller's. */
static rrfp_status receive_any(rrfp_world *world, uint32_t rank, void **data, size_t *bytes,
                               rrfp_error *error)
{
    rrfp_frame *frame = next_frame(world, rank, error);
    if (frame == NULL) {
        return RRFP_ERR_PEER;
    }
    uint64_t total = frame->header.total;
    void *memory = total <= UINT64_C(1) << 30 ? malloc((size_t)total + 1) : NULL;
    if (memory == NULL) {
        rrfp_status status = refuse_piece(world, rank, frame, (size_t)1 << 30, error);
        free(frame);
        return status;
    }
    rrfp_status status = receive_rest(world, rank, frame, memory, (size_t)total, error);
    if (status != RRFP_OK) {
        free(memory);
        return status;
    }
    *data = memory;
    *bytes = (size_t)total;
    return RRFP_OK;
}

/* ---- collectives ---------------------------------------------------------------------- */

rrfp_status rrfp_world_send(rrfp_world *world, uint32_t rank, const void *data, size_t bytes,
                            rrfp_error *error)
{
    return send_data(world, rank, data, bytes, error);
}

rrfp_status rrfp_world_receive(rrfp_world *world, uint32_t rank, void *data, size_t bytes,
                               rrfp_error *error)
{
    rrfp_frame *frame = next_frame(world, rank, error);
    return frame == NULL ? RRFP_ERR_PEER
                         : receive_rest(world, rank, frame, data, bytes, error);
}

rrfp_status rrfp_world_gather(rrfp_world *world, const void *mine, size_t bytes,
                              rrfp_world_part_fn part, void *context, rrfp_error *error)
{
    if (world->rank != 0) {
        return send_data(world, 0, mine, bytes, error);
    }
    rrfp_status status = part(context, 0, mine, bytes, error);
    for (uint32_t r = 1; status == RRFP_OK && r < world->size; r++) {
        void *data = NULL;
        size_t size = 0;
        status = receive_any(world, r, &data, &size, error);
        if (status == RRFP_OK) {
            status = part(context, r, data, size, error);
        }
        free(data);
    }
    return status;
}

rrfp_status rrfp_world_broadcast(rrfp_world *world, void *data, size_t bytes, rrfp_error *error)
{
    rrfp_status status = RRFP_OK;
    if (world->rank != 0) {
        return rrfp_world_receive(world, 0, data, bytes, error);
    }
    for (uint32_t r = 1; status == RRFP_OK && r < world->size; r++) {
        status = send_data(world, r, data, bytes, error);
    }
    return status;
}

typedef struct collection {
    void **parts;
    size_t *sizes;
} collection;

static rrfp_status keep_part(void *context, uint32_t rank, const void *data, size_t bytes,
                             rrfp_error *error)
{
    const collection *c = context;
    c->parts[rank] = malloc(bytes + 1);
    if (c->parts[rank] == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for %zu bytes of rank %u",
                              bytes, rank);
    }
    memcpy(c->parts[rank], data, bytes);
    c->sizes[rank] = bytes;
    return RRFP_OK;
}

rrfp_status rrfp_world_all_gather(rrfp_world *world, const void *mine, size_t bytes,
                                  void ***parts, size_t **sizes, rrfp_error *error)
{
    collection c = {calloc(world->size, sizeof *c.parts), calloc(world->size, sizeof *c.sizes)};
    rrfp_status status = RRFP_OK;
    if (c.parts == NULL || c.sizes == NULL) {
        status = rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for %u ranks", world->size);
    }
    if (status == RRFP_OK) {
        status = rrfp_world_gather(world, mine, bytes, keep_part, &c, error);
    }
    for (uint32_t r = 0; status == RRFP_OK && r < world->size; r++) {
        if (world->rank == 0) {
            for (uint32_t to = 1; status == RRFP_OK && to < world->size; to++) {
                status = send_data(world, to, c.parts[r], c.sizes[r], error);
            }
        } else {
            status = receive_any(world, 0, &c.parts[r], &c.sizes[r], error);
        }
    }
    if (status != RRFP_OK) {
        rrfp_world_free_parts(c.parts, c.sizes, world->size);
        return status;
    }
    *parts = c.parts;
    *sizes = c.sizes;
    return RRFP_OK;
}

void rrfp_world_free_parts(void **parts, size_t *sizes, uint32_t count)
{
    for (uint32_t r = 0; parts != NULL && r < count; r++) {
        free(parts[r]);
    }
    free(parts);
    free(sizes);
}

/* ---- life ----------------------------------------------------------------------------- */

static void free_world(rrfp_world *world)
{
    for (uint32_t r = 0; world->links != NULL && r < world->size; r++) {
        rrfp_link *link = &world->links[r];
        if (link->fd >= 0) {
            close(link->fd);
        }
        while (link->first != NULL) {
            rrfp_frame *next = link->first->next;
            free(link->first);
            link->first = next;
        }
        free(link->incoming);
        pthread_mutex_destroy(&link->send_mutex);
    }
    if (world->wake_fd >= 0) {
        close(world->wake_fd);
    }
    pthread_mutex_destroy(&world->mutex);
    pthread_cond_destroy(&world->arrived);
    free(world->links);
    free(world);
}

rrfp_status rrfp_world_join(const rrfp_world_config *config, rrfp_world **out, rrfp_error *error)
{
    const rrfp_launch_environment *environment = config->environment;
    rrfp_world *world = calloc(1, sizeof *world);
    if (world == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for a world of %u ranks",
                              environment->size);
    }
    world->rank = environment->rank;
    world->size = environment->size;
    world->timeout_ns = (uint64_t)(config->peer_timeout_s * 1e9);
    memcpy(world->secret, environment->secret, sizeof world->secret);
    world->on_failure = config->on_failure;
    world->context = config->context;
    world->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    atomic_store(&world->doing, "starting");
    pthread_mutex_init(&world->mutex, NULL);
    pthread_cond_init(&world->arrived, NULL);
    world->links = calloc(world->size, sizeof *world->links);
    for (uint32_t r = 0; world->links != NULL && r < world->size; r++) {
        world->links[r].fd = -1;
        pthread_mutex_init(&world->links[r].send_mutex, NULL);
    }
    rrfp_status status = RRFP_OK;
    if (world->links == NULL || world->wake_fd < 0) {
        status = rrfp_error_set(error, RRFP_ERR_NOMEM, "no memory or descriptor for %u ranks",
                                world->size);
    }
    if (status == RRFP_OK) {
        status = rrfp_world_connect(world, environment, error);
    }
    if (status == RRFP_OK) {
        uint64_t now = rrfp_world_now_ns();
        for (uint32_t r = 0; r < world->size; r++) {
            world->links[r].heard_ns = now;
            world->links[r].said_alive_ns = now;
        }
        world->started = pthread_create(&world->control, NULL, rrfp_world_control, world) == 0;
        if (!world->started) {
            status = rrfp_error_set(error, RRFP_ERR_IO, "cannot start the control thread: raise "
                                                        "the limit on processes (ulimit -u)");
        }
    }
    if (status != RRFP_OK) {
        free_world(world);
        return status;
    }
    *out = world;
    return RRFP_OK;
}

void rrfp_world_leave(rrfp_world *world)
{
    if (world == NULL) {
        return;
    }
    atomic_store(&world->leaving, true); /* first: the others may close at once */
    if (!atomic_load(&world->failed)) {
        for (uint32_t r = 0; r < world->size; r++) {
            if (rrfp_link_is_open(&world->links[r])) {
                rrfp_world_send_frame(world, r, RRFP_FRAME_BYE, NULL, 0, 0);
                shutdown(world->links[r].fd, SHUT_WR);
            }
        }
    }
    wake_control(world);
    pthread_join(world->control, NULL);
    free_world(world);
}
