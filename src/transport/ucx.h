/*
 * ucx.h - messages between stages that are processes, by UCX active messages.
 *
 *   send() ─► queue of the edge ──(a credit)──► UCX: shared memory, TCP or RDMA ──► a buffer of
 *                                                                     the edge ─► poll()
 *   credit ◄──────────────────────────────────────────────────── release()
 *
 * A process has one endpoint, that of its stage.  Every directed edge has its own buffers at the
 * receiver and as many credits at the sender, so a message that was let go finds its buffer, and
 * one edge cannot starve another.  UCX copies a small payload once into that buffer and reads a
 * large one right into it.
 *
 * Between hosts UCX tells of a peer that it lost.  Its shared memory (1.13) cannot, so on one host
 * it is asked not to, and somebody else has to notice: src/launch does.
 *
 * destroy() of an endpoint whose peer is gone leaves memory to the end of the process when UCX does
 * not give its requests back.
 *
 * What arrives is not trusted: a message that is not of this run, not of an edge, without a credit,
 * of a wrong size, or refused by `admit`, is dropped with a line on standard error (ten at most)
 * and counted; it takes no buffer and no memory.
 */
#ifndef RRFP_TRANSPORT_UCX_H
#define RRFP_TRANSPORT_UCX_H

#include "transport/transport.h"

enum { RRFP_UCX_SECRET_BYTES = 32 };

typedef struct rrfp_ucx_config {
    uint32_t stages, stage;        /* of the pipeline; the one of this process */
    uint32_t local_ranks;          /* processes of this run on this host */
    const bool *same_host;         /* [stages] which stages run on this host; NULL: none */
    uint64_t payload_bytes;        /* of every message, at most */
    const uint32_t *receive_slots; /* [stages] buffers for messages of each stage; 0: no edge */
    const uint32_t *send_credits;  /* [stages] buffers that each stage keeps for ours */
    rrfp_link_delay_fn link_delay; /* NULL: sent at once */
    void *link_delay_context;
    /* Asked about a header that is ours by all appearances, before it takes a buffer. */
    bool (*admit)(void *context, const rrfp_message_header *header, rrfp_error *error);
    void *admit_context;
    uint64_t run_id;
    uint8_t secret[RRFP_UCX_SECRET_BYTES]; /* shared by the ranks of the run */
    bool poison; /* fill released buffers with bytes 0xff */
} rrfp_ucx_config;

/* Makes the endpoint; `config` and its arrays are borrowed during the call. */
rrfp_status rrfp_ucx_create(const rrfp_ucx_config *config, rrfp_transport **transport,
                            rrfp_error *error);

/* What the peers need to connect; borrowed, valid until destroy(). */
rrfp_status rrfp_ucx_address(rrfp_transport *transport, const void **address, size_t *bytes,
                             rrfp_error *error);

/*
 * Connects the edges in the order of stages, and proves to each peer, and has it prove, that it
 * knows the secret (HMAC-SHA256).  Every rank must call it.  RRFP_ERR_PEER names who did not
 * answer within the time.
 */
rrfp_status rrfp_ucx_connect(rrfp_transport *transport, const void *const *addresses,
                             const size_t *address_bytes, uint64_t timeout_ns, rrfp_error *error);

/* RRFP_OK, or RRFP_ERR_PEER with what UCX said of the first peer that it lost. */
rrfp_status rrfp_ucx_failure(const rrfp_transport *transport, rrfp_error *error);

/* Messages dropped so far. */
uint64_t rrfp_ucx_refused(const rrfp_transport *transport);

/* Credits for `stage` that are at home, and its buffers here that are free: both back to
 * send_credits and receive_slots when all was sent, received, released and told. */
uint32_t rrfp_ucx_credits(const rrfp_transport *transport, uint32_t stage);
uint32_t rrfp_ucx_free_slots(const rrfp_transport *transport, uint32_t stage);

/* Version of the library, "UCX 1.13.1". */
const char *rrfp_ucx_version(void);

#endif /* RRFP_TRANSPORT_UCX_H */
