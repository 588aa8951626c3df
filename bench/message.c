/*
 * message.c - one-way latency and bandwidth between two processes of one host:
 *
 *   ours      the UCX transport of src/transport: header, credits, the receiver's buffers
 *   mpi       MPI_Isend / MPI_Irecv of the payload alone
 *   threads   over MPI, a thread for sending and one for receiving with queues between them and the
 *             stage, as in the paper (arXiv 2605.18750, section 5): a baseline, only here
 *
 *   bench_message ours [SIZE...]        starts its peer itself; UCX_TLS chooses the way
 *   mpirun -n 2 bench_message mpi|threads [SIZE...]
 *
 * Sizes are in bytes.  Latency is that of ping-pongs, bandwidth that of a stream with at most
 * WINDOW messages open.  Prints SIZE LATENCY_US BANDWIDTH_MIB_S per line.  bench/message.sh compares them with raw UCX.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "transport/buffers.h"
#include "transport/transport.h"

enum { WINDOW = 16, MOST_BYTES = 64 << 20 };
static const size_t sizes[] = {64, 1024, 8192, 65536, 1 << 20, 4 << 20, MOST_BYTES};

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Rounds that take some 0.2 s. */
static unsigned rounds_of(size_t bytes)
{
    return bytes <= 8192 ? 20000 : bytes <= 65536 ? 4000 : bytes <= (4 << 20) ? 200 : 12;
}

static void print_row(size_t bytes, double ping_pongs_s, unsigned rounds, double stream_s,
                      unsigned streamed)
{
    printf("%zu %.3f %.0f\n", bytes, ping_pongs_s / rounds / 2 * 1e6,
           (double)bytes * streamed / stream_s / (1 << 20));
    fflush(stdout);
}

/* What each kind offers: a payload to the other side, and the arrival of one from there. */
typedef struct channel {
    void (*send)(struct channel *, const void *data, size_t bytes); /* at most WINDOW are open */
    void (*receive)(struct channel *); /* any payload, used and given back */
    void (*flush)(struct channel *);   /* all sends are done */
    int me;
    unsigned rarer; /* rounds are divided by it */
} channel;

static void bounce(channel *c, const void *data, size_t bytes, unsigned rounds)
{
    for (unsigned r = 0; r < rounds; r++) {
        if (c->me == 0) {
            c->send(c, data, bytes);
            c->receive(c);
        } else {
            c->receive(c);
            c->send(c, data, bytes);
        }
        c->flush(c);
    }
}

/* Rank 0 sends without a pause; the last word of the receiver ends it. */
static void stream(channel *c, const void *data, size_t bytes, unsigned count)
{
    for (unsigned r = 0; r < count; r++) {
        if (c->me == 0) {
            c->send(c, data, bytes);
        } else {
            c->receive(c);
        }
    }
    if (c->me == 0) {
        c->receive(c);
    } else {
        c->send(c, data, 64);
    }
    c->flush(c);
}

static void measure(channel *c, void *data, char **arguments)
{
    for (size_t i = 0; arguments[0] == NULL ? i < sizeof sizes / sizeof *sizes
                                            : arguments[i] != NULL; i++) {
        size_t bytes = arguments[0] == NULL ? sizes[i] : strtoul(arguments[i], NULL, 10);
        if (bytes < 64 || bytes > MOST_BYTES) {
            fprintf(stderr, "size %zu is not one of 64 to %d\n", bytes, MOST_BYTES);
            exit(2);
        }
        unsigned rounds = rounds_of(bytes) / c->rarer + 1, streamed = rounds + WINDOW;
        stream(c, data, bytes, WINDOW); /* now every buffer has its pages */
        bounce(c, data, bytes, rounds / 10 + 1);
        double begin = seconds();
        bounce(c, data, bytes, rounds);
        double ping_pongs = seconds() - begin;
        begin = seconds();
        stream(c, data, bytes, streamed);
        if (c->me == 0) {
            print_row(bytes, ping_pongs, rounds, seconds() - begin, streamed);
        }
    }
}

#ifdef RRFP_HAVE_UCX

#include "transport/ucx.h"

typedef struct ours {
    channel base;
    rrfp_transport *transport;
    unsigned sent, done, arrived, taken;
    void *payloads[WINDOW];
} ours;

static void look(ours *o)
{
    rrfp_transport_event event;
    if (o->transport->ops->poll(o->transport, &event)) {
        if (event.kind == RRFP_TRANSPORT_SENT) {
            o->done++;
        } else {
            o->payloads[o->arrived++ % WINDOW] = event.payload;
        }
    }
}

static void ours_send(channel *c, const void *data, size_t bytes)
{
    ours *o = (ours *)c;
    rrfp_error error;
    while (o->sent - o->done >= WINDOW) {
        look(o);
    }
    rrfp_message_header header = {.kind = c->me == 0 ? RRFP_F : RRFP_B, .dtype = 1, .ndim = 3,
                                  .run_id = 1, .source_stage = (uint16_t)c->me,
                                  .destination_stage = (uint16_t)(1 - c->me),
                                  .payload_bytes = (uint32_t)bytes};
    rrfp_message_header_seal(&header);
    if (o->transport->ops->send(o->transport, &header, data, &error) != RRFP_OK) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    o->sent++;
}

static void ours_receive(channel *c)
{
    ours *o = (ours *)c;
    while (o->taken == o->arrived) {
        look(o);
    }
    o->transport->ops->release(o->transport, o->payloads[o->taken++ % WINDOW]);
}

static void ours_flush(channel *c)
{
    ours *o = (ours *)c;
    while (o->done < o->sent) {
        look(o);
    }
}

static int run_ours(char **sizes_wanted)
{
    static unsigned char theirs[8192];
    int up[2], down[2];
    if (pipe(up) != 0 || pipe(down) != 0) {
        return 1;
    }
    pid_t child = fork();
    int me = child == 0, in = me ? down[0] : up[0], out = me ? up[1] : down[1];
    uint32_t slots[2] = {WINDOW, WINDOW};
    slots[me] = 0;
    static const bool here[2] = {true, true};
    rrfp_ucx_config config = {.stages = 2, .stage = (uint32_t)me, .local_ranks = 2,
                              .same_host = here, .payload_bytes = MOST_BYTES,
                              .receive_slots = slots, .send_credits = slots, .run_id = 1};
    ours o = {.base = {ours_send, ours_receive, ours_flush, me, 1}};
    rrfp_error error;
    const void *addresses[2];
    size_t bytes[2];
    rrfp_status status = rrfp_ucx_create(&config, &o.transport, &error);
    if (status == RRFP_OK) {
        status = rrfp_ucx_address(o.transport, &addresses[me], &bytes[me], &error);
    }
    uint32_t mine = (uint32_t)bytes[me], length = 0;
    if (status != RRFP_OK || write(out, &mine, sizeof mine) < 0 ||
        write(out, addresses[me], mine) < 0 || read(in, &length, sizeof length) < 0 ||
        length > sizeof theirs || read(in, theirs, length) != (ssize_t)length) {
        fprintf(stderr, "no exchange of addresses\n");
        return 1;
    }
    addresses[1 - me] = theirs;
    bytes[1 - me] = length;
    void *data = rrfp_message_buffers(MOST_BYTES);
    if (data == NULL ||
        rrfp_ucx_connect(o.transport, addresses, bytes, 10000000000u, &error) != RRFP_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    measure(&o.base, data, sizes_wanted);
    o.transport->ops->destroy(o.transport);
    free(data);
    if (me) {
        _exit(0);
    }
    waitpid(child, NULL, 0);
    return 0;
}

#else

static int run_ours(char **sizes_wanted)
{
    (void)sizes_wanted;
    fprintf(stderr, "built without UCX\n");
    return 77;
}

#endif

#ifdef RRFP_HAVE_MPI

#include <mpi.h>

typedef struct over_mpi {
    channel base;
    MPI_Request sends[WINDOW], receives[WINDOW];
    unsigned send_count, receive_count;
    unsigned char *buffers; /* WINDOW of MOST_BYTES */
    /* threads: queues of one entry a message */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    const void *out[WINDOW];
    size_t out_bytes[WINDOW];
    unsigned queued, sent, arrived, taken;
    bool end;
} over_mpi;

static void mpi_send(channel *c, const void *data, size_t bytes)
{
    over_mpi *m = (over_mpi *)c;
    MPI_Request *request = &m->sends[m->send_count++ % WINDOW];
    MPI_Wait(request, MPI_STATUS_IGNORE);
    MPI_Isend(data, (int)bytes, MPI_BYTE, 1 - c->me, 0, MPI_COMM_WORLD, request);
}

static void post_receive(over_mpi *m, unsigned i)
{
    MPI_Irecv(m->buffers + (size_t)i * MOST_BYTES, MOST_BYTES, MPI_BYTE, 1 - m->base.me, 0,
              MPI_COMM_WORLD, &m->receives[i]);
}

static void mpi_receive(channel *c)
{
    over_mpi *m = (over_mpi *)c;
    unsigned i = m->receive_count++ % WINDOW;
    MPI_Wait(&m->receives[i], MPI_STATUS_IGNORE);
    post_receive(m, i);
}

static void mpi_flush(channel *c)
{
    over_mpi *m = (over_mpi *)c;
    MPI_Waitall(WINDOW, m->sends, MPI_STATUSES_IGNORE);
}

static void *sender(void *argument)
{
    over_mpi *m = argument;
    pthread_mutex_lock(&m->mutex);
    for (;;) {
        while (m->sent == m->queued && !m->end) {
            pthread_cond_wait(&m->changed, &m->mutex);
        }
        if (m->sent == m->queued) {
            pthread_mutex_unlock(&m->mutex);
            return NULL;
        }
        const void *data = m->out[m->sent % WINDOW];
        size_t bytes = m->out_bytes[m->sent % WINDOW];
        pthread_mutex_unlock(&m->mutex);
        MPI_Send(data, (int)bytes, MPI_BYTE, 1 - m->base.me, 0, MPI_COMM_WORLD);
        pthread_mutex_lock(&m->mutex);
        m->sent++;
        pthread_cond_broadcast(&m->changed);
    }
}

static void *receiver(void *argument)
{
    over_mpi *m = argument;
    for (;;) {
        MPI_Status status;
        int bytes;
        pthread_mutex_lock(&m->mutex);
        while (m->arrived - m->taken >= WINDOW) {
            pthread_cond_wait(&m->changed, &m->mutex);
        }
        unsigned char *buffer = m->buffers + (size_t)(m->arrived % WINDOW) * MOST_BYTES;
        pthread_mutex_unlock(&m->mutex);
        MPI_Recv(buffer, MOST_BYTES, MPI_BYTE, 1 - m->base.me, 0, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        if (bytes == 1) {
            return NULL;
        }
        pthread_mutex_lock(&m->mutex);
        m->arrived++;
        pthread_cond_broadcast(&m->changed);
        pthread_mutex_unlock(&m->mutex);
    }
}

static void threads_send(channel *c, const void *data, size_t bytes)
{
    over_mpi *m = (over_mpi *)c;
    pthread_mutex_lock(&m->mutex);
    while (m->queued - m->sent >= WINDOW) {
        pthread_cond_wait(&m->changed, &m->mutex);
    }
    m->out[m->queued % WINDOW] = data;
    m->out_bytes[m->queued++ % WINDOW] = bytes;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->mutex);
}

static void threads_receive(channel *c)
{
    over_mpi *m = (over_mpi *)c;
    pthread_mutex_lock(&m->mutex);
    while (m->taken == m->arrived) {
        pthread_cond_wait(&m->changed, &m->mutex);
    }
    m->taken++;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->mutex);
}

static void threads_flush(channel *c)
{
    over_mpi *m = (over_mpi *)c;
    pthread_mutex_lock(&m->mutex);
    while (m->sent < m->queued) {
        pthread_cond_wait(&m->changed, &m->mutex);
    }
    pthread_mutex_unlock(&m->mutex);
}

static int run_mpi(bool threads, char **sizes_wanted)
{
    static over_mpi m;
    pthread_t workers[2];
    int provided, size;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &m.base.me);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    void *data = rrfp_message_buffers(MOST_BYTES);
    m.buffers = rrfp_message_buffers((size_t)WINDOW * MOST_BYTES);
    if (size != 2 || data == NULL || m.buffers == NULL ||
        (threads && provided != MPI_THREAD_MULTIPLE)) {
        fprintf(stderr, "two ranks are needed, and MPI_THREAD_MULTIPLE for threads\n");
        return 1;
    }
    m.base.rarer = threads ? 40 : 1; /* its threads may take turns on few cores */
    m.base.send = threads ? threads_send : mpi_send;
    m.base.receive = threads ? threads_receive : mpi_receive;
    m.base.flush = threads ? threads_flush : mpi_flush;
    pthread_mutex_init(&m.mutex, NULL);
    pthread_cond_init(&m.changed, NULL);
    if (threads) {
        pthread_create(&workers[0], NULL, sender, &m);
        pthread_create(&workers[1], NULL, receiver, &m);
    }
    for (unsigned i = 0; i < WINDOW; i++) {
        m.sends[i] = m.receives[i] = MPI_REQUEST_NULL;
        if (!threads) {
            post_receive(&m, i);
        }
    }
    measure(&m.base, data, sizes_wanted);
    for (unsigned i = 0; !threads && i < WINDOW; i++) {
        MPI_Cancel(&m.receives[i]);
        MPI_Wait(&m.receives[i], MPI_STATUS_IGNORE);
    }
    if (threads) {
        threads_send(&m.base, data, 1);
        pthread_mutex_lock(&m.mutex);
        m.end = true;
        pthread_cond_broadcast(&m.changed);
        pthread_mutex_unlock(&m.mutex);
        pthread_join(workers[0], NULL);
        pthread_join(workers[1], NULL);
    }
    MPI_Finalize();
    free(data);
    free(m.buffers);
    return 0;
}

#else

static int run_mpi(bool threads, char **sizes_wanted)
{
    (void)threads;
    (void)sizes_wanted;
    fprintf(stderr, "built without MPI\n");
    return 77;
}

#endif

int main(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "ours") == 0) {
        return run_ours(argv + 2);
    }
    if (argc >= 2 && (strcmp(argv[1], "mpi") == 0 || strcmp(argv[1], "threads") == 0)) {
        return run_mpi(strcmp(argv[1], "threads") == 0, argv + 2);
    }
    fprintf(stderr, "usage: bench_message ours [SIZE...] | mpirun -n 2 bench_message mpi|threads "
                    "[SIZE...]\n");
    return 2;
}
