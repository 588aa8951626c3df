/*
 * transport.h - messages between stages.
 *
 * Every message carries its identity in a fixed 64-byte header; nothing is
 * matched by position or by peer.
 *
 *   0        4    6    8                16        24
 *   +--------+----+----+----------------+---------+------------------
 *   | magic  |ver |kind| run id         | step    | src stage, chunk, dst stage, chunk,
 *   +--------+----+----+----------------+---------+ microbatch, dims[3], payload bytes,
 *                                                   src and dst tensor rank, reserved, checksum
 *
 * An endpoint belongs to one tensor-parallel rank of one stage: number stage * T + tensor rank.
 * send() never waits for the receiver: the payload stays the sender's until
 * RRFP_TRANSPORT_SENT reports it, and a receive never stands in the way of a send.
 * The receiver owns a payload from RRFP_TRANSPORT_ARRIVED until it gives it back
 * with release().
 *
 * A signal is a header alone, between the tensor-parallel ranks of a stage: it takes no buffer,
 * needs no release() (its payload is NULL), is not delayed, and nobody is told that it was sent.
 *
 * When the receiver holds all its buffers, a message waits at its sender and
 * is delivered by the release() that frees a buffer.  So a receiver with one
 * buffer still gets every message, one at a time.
 *
 * send, poll, wait and release of an endpoint are called by one thread at a
 * time, wake by any.  Messages may overtake each other.
 */
#ifndef RRFP_TRANSPORT_H
#define RRFP_TRANSPORT_H

#include "rrfp/task.h"

enum { RRFP_MESSAGE_MAGIC = 0x50465252 /* "RRFP" */, RRFP_MESSAGE_VERSION = 2,
       RRFP_MESSAGE_HEADER_BYTES = 64 };

typedef enum rrfp_message_dtype { RRFP_MESSAGE_F32 = 1, RRFP_MESSAGE_BF16 = 2 } rrfp_message_dtype;

/* Kinds beside RRFP_F and RRFP_B: the signals of group.h. */
enum { RRFP_MESSAGE_NOTICE = 16, RRFP_MESSAGE_DECISION = 17 };

typedef struct rrfp_message_header { /* exactly 64 bytes, little-endian */
    uint32_t magic;
    uint8_t version;
    uint8_t kind; /* RRFP_F: activation for the next chunk; RRFP_B: gradient for the one before */
    uint8_t dtype;
    uint8_t ndim; /* 3: B, T, C; signals: 0 */
    uint64_t run_id;
    uint64_t step;
    uint16_t source_stage, source_chunk, destination_stage, destination_chunk;
    uint32_t microbatch;
    uint32_t dims[3]; /* B, T, C; signals: the task's kind, sequence, out of hint (group.h) */
    uint32_t payload_bytes;
    uint16_t source_tensor_rank, destination_tensor_rank;
    uint32_t reserved; /* 0 */
    uint32_t checksum; /* CRC-32C of the 60 bytes before it */
} rrfp_message_header;

static inline bool rrfp_message_is_signal(const rrfp_message_header *header)
{
    return header->kind >= RRFP_MESSAGE_NOTICE;
}

/* Completes magic, version, the reserved field and the checksum. */
void rrfp_message_header_seal(rrfp_message_header *header);

/* Magic, version, checksum and the reserved field are right; else false and which is not. */
bool rrfp_message_header_is_whole(const rrfp_message_header *header, rrfp_error *error);

/* What a receiver expects; built from the plan, never from the message. */
typedef struct rrfp_message_expectation {
    rrfp_shape shape;
    uint64_t run_id, step; /* the current step; the next one is accepted too, see below */
    uint32_t stage;
    uint32_t tensor_rank, tensor_size; /* signals come only to groups, of a size above 1 */
    uint8_t dtype;
    uint32_t dims[3];
} rrfp_message_expectation;

/*
 * Checks every field against the plan, naming the first that is wrong with its
 * value and the expected one.  step + 1 is legal (a peer may run ahead across
 * the step's end) and reported in *next_step.
 */
rrfp_status rrfp_message_header_check(const rrfp_message_header *header,
                                      const rrfp_message_expectation *expect, bool *next_step,
                                      rrfp_error *error);

typedef enum rrfp_transport_event_kind {
    RRFP_TRANSPORT_ARRIVED,
    RRFP_TRANSPORT_SENT
} rrfp_transport_event_kind;

typedef struct rrfp_transport_event {
    rrfp_transport_event_kind kind;
    rrfp_message_header header;
    void *payload;    /* ARRIVED: the receiver's until release(); SENT: the sender's buffer */
    uint64_t time_ns; /* CLOCK_MONOTONIC when it happened */
    uint64_t sent_ns; /* ARRIVED: when the sender called send() */
} rrfp_transport_event;

typedef struct rrfp_transport rrfp_transport; /* one endpoint */

typedef struct rrfp_transport_ops {
    rrfp_status (*send)(rrfp_transport *, const rrfp_message_header *, const void *payload,
                        rrfp_error *);
    /* Takes one event; returns false at once when there is none. */
    bool (*poll)(rrfp_transport *, rrfp_transport_event *);
    /* Sleeps until an event is there, wake() is called, or `timeout_ns` passed. */
    void (*wait)(rrfp_transport *, uint64_t timeout_ns);
    void (*release)(rrfp_transport *, void *payload);
    /* From any thread: makes wait() of this endpoint return. */
    void (*wake)(rrfp_transport *);
    void (*destroy)(rrfp_transport *);
    /* Before the caller turns to something else for long: whatever poll() may hold back in the hope
     * of company is sent.  wait() does so too.  NULL: nothing is ever held back. */
    void (*flush)(rrfp_transport *);
    /*
     * At the end of step `step`, when no stage has anything of it to send or to release: waits
     * until all that belongs to this endpoint is back in its place.  RRFP_ERR_INTERNAL names what
     * is not: an event nobody polled, a buffer nobody released, a send or a credit that did not
     * come back within `timeout_ns`, or until wake().  Messages of a later step may be there: a
     * neighbour may have begun it.
     */
    rrfp_status (*settle)(rrfp_transport *, uint64_t step, uint64_t timeout_ns, rrfp_error *);
    /* RRFP_OK, or why no message comes or goes any more; NULL where that cannot be. */
    rrfp_status (*failure)(const rrfp_transport *, rrfp_error *);
} rrfp_transport_ops;

struct rrfp_transport { const rrfp_transport_ops *ops; };

/* Delay of a message in seconds, for injected link jitter; called on the sender's thread. */
typedef double (*rrfp_link_delay_fn)(void *context, const rrfp_message_header *header);

typedef struct rrfp_inproc_config {
    uint32_t stages;
    uint32_t tensor_size;          /* endpoints of a stage; 0 is 1 */
    uint64_t payload_bytes;        /* of every message, at most */
    const uint32_t *receive_slots; /* per stage: buffers an endpoint must hold at most; 0 is 1 */
    rrfp_link_delay_fn link_delay; /* NULL: delivered at once */
    void *link_delay_context;
    bool poison; /* fill released buffers with bytes 0xff: NaN as float32 and bfloat16 */
} rrfp_inproc_config;

/*
 * Endpoints of all stages of one process: lock-free multi-producer queues,
 * payloads copied once into a buffer of the receiver when they are delivered,
 * a delivery thread only when link_delay is given.  `endpoints` has room for
 * stages * tensor_size pointers; destroying the last endpoint frees what they share, messages
 * on their way included.
 *
 * Nothing is allocated after this call, except when a stage has more sends
 * unfinished at once (not yet reported to both sides) than ever before and than
 * twice its receive slots: its table of sends then doubles.  Releasing a buffer
 * twice, or one that is not this endpoint's, prints a line and aborts in
 * RRFP_DEBUG builds; otherwise it changes nothing.
 */
rrfp_status rrfp_inproc_create(const rrfp_inproc_config *config, rrfp_transport **endpoints,
                               rrfp_error *error);

#endif /* RRFP_TRANSPORT_H */
