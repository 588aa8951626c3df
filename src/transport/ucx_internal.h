/* ucx_internal.h - what the files behind ucx.h share. */
#ifndef RRFP_TRANSPORT_UCX_INTERNAL_H
#define RRFP_TRANSPORT_UCX_INTERNAL_H

#include <stdatomic.h>
#include <ucp/api/ucp.h>

#include "transport/ucx.h"

enum { RRFP_UCX_AM_DATA = 1, RRFP_UCX_AM_CREDIT = 2, RRFP_UCX_AM_HELLO = 3 };
enum { RRFP_UCX_MAC_BYTES = 32 };

/*
 * Headers as they travel.  Buffers given back are told by their count since the start, so that a
 * later word makes up for all before; it rides on data going the other way, or alone.
 */
typedef struct rrfp_ucx_data {
    rrfp_message_header header;
    uint64_t sent_ns; /* the sender's CLOCK_MONOTONIC */
    uint64_t released;
    uint64_t check; /* rrfp_ucx_check() of the two */
} rrfp_ucx_data;

typedef struct rrfp_ucx_credit {
    uint64_t run_id;
    uint64_t released;
    uint16_t from, to;
    uint32_t zero;
    uint64_t check;
} rrfp_ucx_credit;

typedef struct rrfp_ucx_hello {
    uint64_t run_id;
    uint16_t from, to;
    uint32_t zero;
    uint8_t mac[RRFP_UCX_MAC_BYTES]; /* HMAC-SHA256 of the 16 bytes before it */
} rrfp_ucx_hello;

typedef struct rrfp_ucx_parcel { /* one send */
    struct rrfp_ucx_parcel *next;
    rrfp_ucx_data wire;
    const void *payload;
    uint64_t due_ns;
    uint64_t done_ns;
    struct rrfp_ucx *owner;
} rrfp_ucx_parcel;

typedef struct rrfp_ucx_slot { /* one buffer of an edge */
    struct rrfp_ucx_slot *next;
    rrfp_ucx_data wire;
    uint64_t arrived_ns;
    uint32_t stage; /* the edge */
    bool held;
    void *descriptor; /* of a large payload that was not fetched yet */
    struct rrfp_ucx *owner;
} rrfp_ucx_slot;

typedef struct rrfp_ucx_edge { /* to and from one stage */
    ucp_ep_h endpoint;         /* NULL: none */
    uint32_t receive_slots, send_credits;
    uint64_t sent, returned;      /* messages let go; of them, buffers given back */
    uint64_t released, announced; /* buffers given back here; of them, told to the peer */
    rrfp_ucx_parcel *first, *last; /* wait for a credit */
    rrfp_ucx_slot *free_slots;
    uint32_t free_count;
    bool same_host;
    bool greeted; /* the peer has proved itself */
} rrfp_ucx_edge;

typedef struct rrfp_ucx {
    rrfp_transport base;
    uint32_t stages, stage;
    uint64_t payload_bytes;
    size_t stride;
    rrfp_link_delay_fn link_delay;
    void *link_delay_context;
    bool (*admit)(void *, const rrfp_message_header *, rrfp_error *);
    void *admit_context;
    uint64_t run_id;
    uint8_t secret[RRFP_UCX_SECRET_BYTES];
    bool poison;

    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    size_t address_bytes;
    int worker_fd, wake_fd;
    atomic_bool woken;
    uint32_t spin, spin_most;

    rrfp_ucx_edge *edges; /* [stages] */
    unsigned char *buffers;
    rrfp_ucx_slot *slots; /* [slot_count]; buffer i belongs to slot i */
    uint32_t slot_count;
    rrfp_ucx_slot *arrived_first, *arrived_last; /* complete, not yet polled */
    rrfp_ucx_slot *fetch_first;                  /* large payloads to fetch */
    rrfp_ucx_parcel *sent_first, *sent_last;     /* done, not yet polled */
    rrfp_ucx_parcel *delayed;                    /* by due time */
    rrfp_ucx_parcel *free_parcels;
    struct rrfp_ucx_block *blocks;
    size_t parcel_count;
    uint32_t credits_to_tell; /* edges with released > announced */
    uint32_t pending;         /* requests that UCX has not completed */

    uint64_t refused;
    rrfp_error failure; /* status RRFP_OK: none */
} rrfp_ucx;

uint64_t rrfp_ucx_now_ns(void);
void rrfp_ucx_fail(rrfp_ucx *self, const char *what, ucs_status_t status);
/* Prints and counts a dropped message. */
void rrfp_ucx_refuse(rrfp_ucx *self, const rrfp_error *why);

/* ucx_connect.c */
ucs_status_t rrfp_ucx_on_hello(void *argument, const void *header, size_t header_bytes, void *data,
                               size_t bytes, const ucp_am_recv_param_t *param);

/* ucx_receive.c */
ucs_status_t rrfp_ucx_on_data(void *argument, const void *header, size_t header_bytes, void *data,
                              size_t bytes, const ucp_am_recv_param_t *param);
ucs_status_t rrfp_ucx_on_credit(void *argument, const void *header, size_t header_bytes,
                                void *data, size_t bytes, const ucp_am_recv_param_t *param);
/* Against damage, not against an attacker: a change of any one argument changes it. */
static inline uint64_t rrfp_ucx_check(uint64_t run_id, uint64_t sent_ns, uint64_t released,
                                      uint32_t from, uint32_t to)
{
    return ~((run_id ^ released * UINT64_C(0x9e3779b97f4a7c15)) +
             sent_ns * UINT64_C(0xbf58476d1ce4e5b9) + ((uint64_t)from << 16 | to));
}
/* Fetches the large payloads whose headers arrived. */
void rrfp_ucx_fetch(rrfp_ucx *self);
/* Gives the buffer back; the peer is told by rrfp_ucx_tell_credits(). */
void rrfp_ucx_free_slot(rrfp_ucx *self, rrfp_ucx_slot *slot);

/* ucx_send.c */
rrfp_status rrfp_ucx_send(rrfp_transport *transport, const rrfp_message_header *header,
                          const void *payload, rrfp_error *error);
/* Lets go the delayed messages whose time has come; returns when the next one is due. */
uint64_t rrfp_ucx_push(rrfp_ucx *self);
void rrfp_ucx_push_edge(rrfp_ucx *self, rrfp_ucx_edge *edge);
/* Tells the peers of released buffers: of all, or of edges that hold back half of them. */
void rrfp_ucx_tell_credits(rrfp_ucx *self, bool all);
void rrfp_ucx_give_parcel(rrfp_ucx *self, rrfp_ucx_parcel *parcel);
rrfp_status rrfp_ucx_add_parcels(rrfp_ucx *self, size_t count, rrfp_error *error);
void rrfp_ucx_free_parcels(rrfp_ucx *self);
/* A small header without payload: copied, sent and forgotten. */
void rrfp_ucx_send_small(rrfp_ucx *self, uint32_t stage, unsigned id, const void *header,
                         size_t bytes);

#endif /* RRFP_TRANSPORT_UCX_INTERNAL_H */
