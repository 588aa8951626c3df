/*
 * world_control.c - the control thread: reads frames, keeps links alive, notices failures.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launch/world_internal.h"

static const uint64_t FAREWELL_NS = 1000000000u;

static uint32_t first_link(const rrfp_world *world)
{
    return world->rank == 0 ? 1 : 0;
}

static uint32_t end_of_links(const rrfp_world *world)
{
    return world->rank == 0 ? world->size : 1;
}

const char *rrfp_frame_fault(const rrfp_world *world, const rrfp_frame_header *header,
                             uint32_t from)
{
    return header->magic != RRFP_FRAME_MAGIC       ? "magic"
           : header->version != RRFP_FRAME_VERSION ? "version"
           : header->kind < RRFP_FRAME_CHALLENGE || header->kind > RRFP_FRAME_BYE ? "kind"
           : header->rank != from || from >= world->size                        ? "rank"
           : header->bytes > RRFP_FRAME_MOST                                    ? "size"
           : header->zero != 0                                                  ? "zero"
                                                                                : NULL;
}

/* The link of a rank ends: it has left, or failed; then what it last said of itself is told. */
static void lose(rrfp_world *world, uint32_t rank, const char *how)
{
    rrfp_link *link = &world->links[rank];
    char doing[sizeof link->doing];
    pthread_mutex_lock(&world->mutex);
    uint64_t step = link->step;
    memcpy(doing, link->doing, sizeof doing);
    pthread_mutex_unlock(&world->mutex);
    if (!atomic_load(&link->said_bye) && !atomic_load(&world->leaving)) {
        rrfp_world_set_failure(world, false,
                               "rank %u (stage %u) failed: %s; it was last heard at step %llu, %s",
                               rank, rank, how, (unsigned long long)step,
                               doing[0] == '\0' ? "starting" : doing);
        shutdown(link->fd, SHUT_RDWR);
    }
    pthread_mutex_lock(&world->mutex); /* those who wait for a frame of it look again */
    atomic_store(&link->lost, true);
    pthread_cond_broadcast(&world->arrived);
    pthread_mutex_unlock(&world->mutex);
}

static void take_text(char *out, size_t room, const rrfp_frame *frame)
{
    size_t bytes = frame->header.bytes < room - 1 ? frame->header.bytes : room - 1;
    memcpy(out, frame->body, bytes);
    out[bytes] = '\0';
}

/* A frame is whole. */
static void take_frame(rrfp_world *world, uint32_t rank, rrfp_frame *frame)
{
    rrfp_link *link = &world->links[rank];
    char text[RRFP_ERROR_TEXT_BYTES];
    pthread_mutex_lock(&world->mutex);
    link->step = frame->header.step;
    if (frame->header.kind == RRFP_FRAME_DATA || frame->header.kind == RRFP_FRAME_START) {
        frame->next = NULL;
        if (link->first == NULL) {
            link->first = frame;
        } else {
            link->last->next = frame;
        }
        link->last = frame;
        link->waiting++;
        pthread_cond_broadcast(&world->arrived);
        pthread_mutex_unlock(&world->mutex);
        return;
    }
    if (frame->header.kind == RRFP_FRAME_ALIVE) {
        take_text(link->doing, sizeof link->doing, frame);
    }
    pthread_mutex_unlock(&world->mutex);
    if (frame->header.kind == RRFP_FRAME_BYE) {
        atomic_store(&link->said_bye, true);
    } else if (frame->header.kind == RRFP_FRAME_FAIL) {
        take_text(text, sizeof text, frame);
        if (world->rank == 0) {
            rrfp_world_set_failure(world, false, "rank %u (stage %u) failed: %s", rank, rank, text);
        } else {
            rrfp_world_set_failure(world, false, "%s", text);
        }
    } else if (frame->header.kind < RRFP_FRAME_DATA) {
        lose(world, rank, "it sent a frame of joining after all had joined");
    }
    free(frame);
}

/* Reads what is there of the current frame; false when the link ended. */
static bool read_some(rrfp_world *world, uint32_t rank)
{
    rrfp_link *link = &world->links[rank];
    bool head = link->incoming == NULL;
    unsigned char *at = head ? (unsigned char *)&link->header + link->got
                             : link->incoming->body + link->got;
    size_t want = (head ? sizeof link->header : link->header.bytes) - link->got;
    ssize_t got = want == 0 ? 0 : recv(link->fd, at, want, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return true;
    }
    if (got < 0 || (got == 0 && want > 0)) {
        lose(world, rank, got < 0 ? strerror(errno) : "its process ended");
        return false;
    }
    link->heard_ns = rrfp_world_now_ns();
    link->got += (size_t)got;
    if ((size_t)got < want) {
        return true;
    }
    link->got = 0;
    if (head) {
        const char *fault = rrfp_frame_fault(world, &link->header, rank);
        if (fault != NULL) {
            char how[64];
            snprintf(how, sizeof how, "it sent a frame with a wrong %s", fault);
            lose(world, rank, how);
            return false;
        }
        link->incoming = malloc(sizeof *link->incoming + link->header.bytes);
        if (link->incoming == NULL) {
            rrfp_world_set_failure(world, true, "out of memory for a message of %u bytes",
                                   link->header.bytes);
            return false;
        }
        link->incoming->header = link->header;
        if (link->header.bytes > 0) {
            return true;
        }
    }
    rrfp_frame *frame = link->incoming;
    link->incoming = NULL;
    take_frame(world, rank, frame);
    return true;
}

/* Says that this rank is alive, unless something else is just being said. */
static void say_alive(rrfp_world *world, uint32_t rank)
{
    const char *doing = atomic_load(&world->doing);
    rrfp_world_send_frame(world, rank, RRFP_FRAME_ALIVE, doing, strlen(doing), 0);
}

/* Passes a failure on, once. */
static void tell_failure(rrfp_world *world)
{
    char text[RRFP_ERROR_TEXT_BYTES];
    pthread_mutex_lock(&world->mutex);
    bool tell = world->failure.status != RRFP_OK && !world->fail_told;
    bool mine = world->failure_mine;
    world->fail_told = world->fail_told || tell;
    memcpy(text, world->failure.text, sizeof text);
    rrfp_error failure = world->failure;
    pthread_mutex_unlock(&world->mutex);
    if (!tell) {
        return;
    }
    if (world->rank == 0 || mine) {
        char named[2 * RRFP_ERROR_TEXT_BYTES];
        snprintf(named, sizeof named, "rank 0 (stage 0) failed: %s", text);
        const char *line = world->rank == 0 && mine ? named : text;
        for (uint32_t r = first_link(world); r < end_of_links(world); r++) {
            if (rrfp_link_is_open(&world->links[r])) {
                rrfp_world_send_frame(world, r, RRFP_FRAME_FAIL, line, strlen(line), 0);
            }
        }
    }
    if (!mine && world->on_failure != NULL) {
        world->on_failure(world->context, &failure);
    }
}

/* When the next thing is to be done for a link whose inbox is not full; does what is due. */
static uint64_t care(rrfp_world *world, uint32_t rank, uint64_t now, bool full)
{
    rrfp_link *link = &world->links[rank];
    uint64_t quarter = world->timeout_ns / 4;
    uint64_t silent = link->heard_ns + world->timeout_ns;
    if (full) {
        link->heard_ns = now; /* it speaks, nobody listens */
    } else if (now >= silent && !atomic_load(&link->said_bye)) {
        char how[64];
        snprintf(how, sizeof how, "silent for %.1f s", (double)world->timeout_ns * 1e-9);
        lose(world, rank, how);
        return now;
    }
    if (now >= link->said_alive_ns + quarter && !atomic_load(&world->leaving)) {
        say_alive(world, rank);
        link->said_alive_ns = now;
    }
    uint64_t next = link->said_alive_ns + quarter;
    return next < silent ? next : silent;
}

void *rrfp_world_control(void *argument)
{
    rrfp_world *world = argument;
    struct pollfd *fds = calloc(world->size + 1, sizeof *fds);
    uint64_t farewell = UINT64_MAX;
    if (fds == NULL) {
        rrfp_world_set_failure(world, true, "out of memory for the control thread");
        return NULL;
    }
    for (;;) {
        uint64_t now = rrfp_world_now_ns(), next = UINT64_MAX;
        uint32_t open = 0;
        tell_failure(world);
        if (atomic_load(&world->leaving) && farewell == UINT64_MAX) {
            farewell = now + FAREWELL_NS;
        }
        for (uint32_t r = first_link(world); r < end_of_links(world); r++) {
            rrfp_link *link = &world->links[r];
            bool full = false;
            if (rrfp_link_is_open(link)) {
                pthread_mutex_lock(&world->mutex);
                full = link->waiting >= RRFP_INBOX_MOST && !atomic_load(&world->leaving);
                pthread_mutex_unlock(&world->mutex);
                uint64_t due = care(world, r, now, full);
                next = due < next ? due : next;
            }
            bool is_open = rrfp_link_is_open(link);
            fds[r] = (struct pollfd){is_open ? link->fd : -1, full ? 0 : POLLIN, 0};
            open += is_open;
        }
        if (atomic_load(&world->leaving) && (open == 0 || now >= farewell)) {
            break;
        }
        next = farewell < next ? farewell : next;
        if (world->rank != 0) { /* the links beyond the first are not ours */
            fds[1] = (struct pollfd){world->wake_fd, POLLIN, 0};
        } else {
            fds[0] = (struct pollfd){world->wake_fd, POLLIN, 0};
        }
        uint64_t left = next > now ? next - now : 0;
        struct timespec pause = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
        nfds_t count = world->rank == 0 ? world->size : 2;
        if (ppoll(fds, count, next == UINT64_MAX ? NULL : &pause, NULL) <= 0) {
            continue;
        }
        uint64_t wakes;
        if (fds[world->rank == 0 ? 0 : 1].revents != 0 &&
            read(world->wake_fd, &wakes, sizeof wakes) < 0) {
            /* taken already */
        }
        for (uint32_t r = first_link(world); r < end_of_links(world); r++) {
            if (fds[r].fd >= 0 && fds[r].revents != 0) {
                read_some(world, r);
            }
        }
    }
    tell_failure(world); /* what came up while it was leaving */
    free(fds);
    return NULL;
}
