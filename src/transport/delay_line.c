/* delay_line.c - a binary heap of due times and the thread that waits for the first. */
#include "transport/delay_line.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct heap_entry {
    uint64_t due_ns;
    uint64_t order; /* equal times leave in the order they came */
    void *item;
} heap_entry;

struct rrfp_delay_line {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    rrfp_delay_deliver_fn deliver;
    heap_entry *heap;
    size_t count, capacity;
    uint64_t added;
    bool stop;
};

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool earlier(const heap_entry *a, const heap_entry *b)
{
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->order < b->order;
}

static void heap_push(rrfp_delay_line *line, heap_entry entry)
{
    size_t hole = line->count++;
    while (hole > 0 && earlier(&entry, &line->heap[(hole - 1) / 2])) {
        line->heap[hole] = line->heap[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    line->heap[hole] = entry;
}

static heap_entry heap_pop(rrfp_delay_line *line)
{
    heap_entry top = line->heap[0], last = line->heap[--line->count];
    size_t hole = 0;
    for (;;) {
        size_t child = 2 * hole + 1;
        if (child >= line->count) {
            break;
        }
        if (child + 1 < line->count && earlier(&line->heap[child + 1], &line->heap[child])) {
            child++;
        }
        if (!earlier(&line->heap[child], &last)) {
            break;
        }
        line->heap[hole] = line->heap[child];
        hole = child;
    }
    line->heap[hole] = last;
    return top;
}

static void *delay_line_main(void *argument)
{
    rrfp_delay_line *line = argument;
    pthread_mutex_lock(&line->mutex);
    while (!line->stop) {
        if (line->count == 0) {
            pthread_cond_wait(&line->changed, &line->mutex);
        } else if (line->heap[0].due_ns > now_ns()) {
            uint64_t due = line->heap[0].due_ns;
            struct timespec until = {(time_t)(due / 1000000000u), (long)(due % 1000000000u)};
            pthread_cond_timedwait(&line->changed, &line->mutex, &until);
        } else {
            heap_entry entry = heap_pop(line);
            pthread_mutex_unlock(&line->mutex);
            line->deliver(entry.item);
            pthread_mutex_lock(&line->mutex);
        }
    }
    pthread_mutex_unlock(&line->mutex);
    return NULL;
}

rrfp_status rrfp_delay_line_create(size_t capacity, rrfp_delay_deliver_fn deliver,
                                   rrfp_delay_line **out, rrfp_error *error)
{
    rrfp_delay_line *line = calloc(1, sizeof *line);
    heap_entry *heap = calloc(capacity > 0 ? capacity : 1, sizeof *heap);
    if (line == NULL || heap == NULL) {
        free(line);
        free(heap);
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for %zu delayed messages",
                              capacity);
    }
    line->heap = heap;
    line->capacity = capacity > 0 ? capacity : 1;
    line->deliver = deliver;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&line->mutex, NULL);
    pthread_cond_init(&line->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    int failure = pthread_create(&line->thread, NULL, delay_line_main, line);
    if (failure != 0) {
        pthread_cond_destroy(&line->changed);
        pthread_mutex_destroy(&line->mutex);
        free(line->heap);
        free(line);
        return rrfp_error_set(error, RRFP_ERR_IO, "cannot start the message delivery thread: %s",
                              strerror(failure));
    }
    *out = line;
    return RRFP_OK;
}

void rrfp_delay_line_destroy(rrfp_delay_line *line)
{
    if (line == NULL) {
        return;
    }
    pthread_mutex_lock(&line->mutex);
    line->stop = true;
    pthread_cond_signal(&line->changed);
    pthread_mutex_unlock(&line->mutex);
    pthread_join(line->thread, NULL);
    pthread_cond_destroy(&line->changed);
    pthread_mutex_destroy(&line->mutex);
    free(line->heap);
    free(line);
}

rrfp_status rrfp_delay_line_add(rrfp_delay_line *line, uint64_t due_ns, void *item,
                                rrfp_error *error)
{
    rrfp_status status = RRFP_OK;
    pthread_mutex_lock(&line->mutex);
    if (line->count == line->capacity) {
        heap_entry *larger = reallocarray(line->heap, 2 * line->capacity, sizeof *larger);
        if (larger == NULL) {
            status = rrfp_error_set(error, RRFP_ERR_NOMEM,
                                    "out of memory for %zu delayed messages", 2 * line->capacity);
        } else {
            line->heap = larger;
            line->capacity *= 2;
        }
    }
    if (status == RRFP_OK) {
        heap_push(line, (heap_entry){due_ns, line->added++, item});
        if (line->heap[0].item == item) { /* the thread sleeps for a later one */
            pthread_cond_signal(&line->changed);
        }
    }
    pthread_mutex_unlock(&line->mutex);
    return status;
}
