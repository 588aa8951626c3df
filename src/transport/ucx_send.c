/* ucx_send.c - the sender's side: delays, credits, parcels; see ucx.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "transport/ucx_internal.h"

typedef struct rrfp_ucx_block {
    struct rrfp_ucx_block *next;
    rrfp_ucx_parcel parcels[];
} rrfp_ucx_block;

static const double LONGEST_DELAY_S = 1e9;

rrfp_status rrfp_ucx_add_parcels(rrfp_ucx *self, size_t count, rrfp_error *error)
{
    rrfp_ucx_block *block = calloc(1, sizeof *block + count * sizeof(rrfp_ucx_parcel));
    if (block == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "stage %u: out of memory for %zu messages",
                              self->stage, count);
    }
    block->next = self->blocks;
    self->blocks = block;
    for (size_t i = 0; i < count; i++) {
        block->parcels[i].owner = self;
        rrfp_ucx_give_parcel(self, &block->parcels[i]);
    }
    self->parcel_count += count;
    return RRFP_OK;
}

void rrfp_ucx_free_parcels(rrfp_ucx *self)
{
    while (self->blocks != NULL) {
        rrfp_ucx_block *next = self->blocks->next;
        free(self->blocks);
        self->blocks = next;
    }
}

void rrfp_ucx_give_parcel(rrfp_ucx *self, rrfp_ucx_parcel *parcel)
{
    parcel->next = self->free_parcels;
    self->free_parcels = parcel;
}

static void report_sent(rrfp_ucx *self, rrfp_ucx_parcel *parcel, uint64_t now)
{
    parcel->done_ns = now;
    parcel->next = NULL;
    if (self->sent_first == NULL) {
        self->sent_first = parcel;
    } else {
        self->sent_last->next = parcel;
    }
    self->sent_last = parcel;
}

/* UCX is done with the parcel of a request. */
static rrfp_ucx *finish(void *request, ucs_status_t status, rrfp_ucx_parcel *parcel)
{
    rrfp_ucx *self = parcel->owner;
    ucp_request_free(request);
    self->pending--;
    if (status != UCS_OK) {
        rrfp_ucx_fail(self, "sending", status);
    }
    return self;
}

static void on_sent(void *request, ucs_status_t status, void *argument)
{
    report_sent(finish(request, status, argument), argument, rrfp_ucx_now_ns());
}

static void on_small_sent(void *request, ucs_status_t status, void *argument)
{
    rrfp_ucx_give_parcel(finish(request, status, argument), argument);
}

static rrfp_ucx_parcel *take_parcel(rrfp_ucx *self, rrfp_error *error)
{
    if (self->free_parcels == NULL &&
        rrfp_ucx_add_parcels(self, self->parcel_count, error) != RRFP_OK) {
        return NULL;
    }
    rrfp_ucx_parcel *parcel = self->free_parcels;
    self->free_parcels = parcel->next;
    return parcel;
}

void rrfp_ucx_send_small(rrfp_ucx *self, uint32_t stage, unsigned id, const void *header,
                         size_t bytes)
{
    _Static_assert(sizeof(rrfp_ucx_hello) <= sizeof(rrfp_ucx_data), "fits a parcel's header");
    _Static_assert(sizeof(rrfp_ucx_credit) <= sizeof(rrfp_ucx_data), "fits a parcel's header");
    if (self->edges[stage].endpoint == NULL) {
        return;
    }
    rrfp_ucx_parcel *parcel = take_parcel(self, &self->failure);
    if (parcel == NULL) {
        return; /* the failure says so */
    }
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_small_sent,
        .user_data = parcel,
    };
    memcpy(&parcel->wire, header, bytes); /* UCX may need it until the send is done */
    ucs_status_ptr_t request = ucp_am_send_nbx(self->edges[stage].endpoint, id, &parcel->wire,
                                               bytes, NULL, 0, &param);
    if (UCS_PTR_IS_PTR(request)) {
        self->pending++;
        return;
    }
    if (UCS_PTR_IS_ERR(request)) {
        rrfp_ucx_fail(self, "sending", UCS_PTR_STATUS(request));
    }
    rrfp_ucx_give_parcel(self, parcel);
}

/* All buffers given back so far are being told. */
static void announce(rrfp_ucx *self, rrfp_ucx_edge *edge)
{
    if (edge->announced != edge->released) {
        edge->announced = edge->released;
        self->credits_to_tell--;
    }
}

/* `now`: the time, or 0 for one who has not looked at the clock. */
static void push_edge(rrfp_ucx *self, rrfp_ucx_edge *edge, uint64_t now)
{
    while (edge->first != NULL && edge->sent - edge->returned < edge->send_credits &&
           self->failure.status == RRFP_OK) {
        rrfp_ucx_parcel *parcel = edge->first;
        ucp_request_param_t param = {
            .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                            UCP_OP_ATTR_FIELD_MEMORY_TYPE,
            .memory_type = UCS_MEMORY_TYPE_HOST,
            .cb.send = on_sent,
            .user_data = parcel,
        };
        edge->first = parcel->next;
        edge->sent++;
        announce(self, edge);
        parcel->wire.released = edge->released;
        parcel->wire.check = rrfp_ucx_check(self->run_id, parcel->wire.sent_ns, edge->released,
                                            parcel->wire.header.source_stage,
                                            parcel->wire.header.destination_stage);
        ucs_status_ptr_t request =
            ucp_am_send_nbx(edge->endpoint, RRFP_UCX_AM_DATA, &parcel->wire, sizeof parcel->wire,
                            parcel->payload, parcel->wire.header.payload_bytes, &param);
        if (UCS_PTR_IS_ERR(request)) {
            rrfp_ucx_fail(self, "sending", UCS_PTR_STATUS(request));
            report_sent(self, parcel, rrfp_ucx_now_ns());
        } else if (request == NULL) {
            report_sent(self, parcel, now != 0 ? now : rrfp_ucx_now_ns());
        } else {
            self->pending++;
        }
    }
}

void rrfp_ucx_push_edge(rrfp_ucx *self, rrfp_ucx_edge *edge)
{
    push_edge(self, edge, 0);
}

static void queue(rrfp_ucx *self, rrfp_ucx_parcel *parcel, uint64_t now)
{
    rrfp_ucx_edge *edge = &self->edges[parcel->wire.header.destination_stage];
    parcel->next = NULL;
    if (edge->first == NULL) {
        edge->first = parcel;
    } else {
        edge->last->next = parcel;
    }
    edge->last = parcel;
    push_edge(self, edge, now);
}

uint64_t rrfp_ucx_push(rrfp_ucx *self)
{
    while (self->delayed != NULL) {
        rrfp_ucx_parcel *parcel = self->delayed;
        uint64_t now = rrfp_ucx_now_ns();
        if (parcel->due_ns > now) {
            return parcel->due_ns;
        }
        self->delayed = parcel->next;
        queue(self, parcel, now);
    }
    return UINT64_MAX;
}

rrfp_status rrfp_ucx_send(rrfp_transport *transport, const rrfp_message_header *header,
                          const void *payload, rrfp_error *error)
{
    rrfp_ucx *self = (rrfp_ucx *)transport;
    uint32_t to = header->destination_stage;
    if (to >= self->stages || self->edges[to].endpoint == NULL ||
        self->edges[to].send_credits == 0) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage %u sends to stage %u, which is no neighbour of it",
                              self->stage, to);
    }
    if (header->payload_bytes > self->payload_bytes) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage %u sends %u bytes; messages have at most %llu", self->stage,
                              header->payload_bytes, (unsigned long long)self->payload_bytes);
    }
    if (self->failure.status != RRFP_OK) {
        return rrfp_ucx_failure(transport, error);
    }
    rrfp_ucx_parcel *parcel = take_parcel(self, error);
    if (parcel == NULL) {
        return RRFP_ERR_NOMEM;
    }
    parcel->wire.header = *header;
    parcel->wire.sent_ns = rrfp_ucx_now_ns();
    parcel->payload = payload;
    double delay = self->link_delay == NULL ? 0.0
                                            : self->link_delay(self->link_delay_context, header);
    if (!(delay > 0.0)) {
        queue(self, parcel, parcel->wire.sent_ns);
        return RRFP_OK;
    }
    parcel->due_ns = parcel->wire.sent_ns + (uint64_t)(fmin(delay, LONGEST_DELAY_S) * 1e9);
    rrfp_ucx_parcel **at = &self->delayed;
    while (*at != NULL && (*at)->due_ns <= parcel->due_ns) {
        at = &(*at)->next;
    }
    parcel->next = *at;
    *at = parcel;
    return RRFP_OK;
}

void rrfp_ucx_tell_credits(rrfp_ucx *self, bool all)
{
    for (uint32_t s = 0; self->credits_to_tell > 0 && s < self->stages; s++) {
        rrfp_ucx_edge *edge = &self->edges[s];
        uint64_t untold = edge->released - edge->announced;
        if (untold == 0 || (!all && 2 * untold < edge->receive_slots)) {
            continue;
        }
        rrfp_ucx_credit credit = {.run_id = self->run_id,
                                  .released = edge->released,
                                  .from = (uint16_t)self->stage,
                                  .to = (uint16_t)s};
        credit.check = rrfp_ucx_check(self->run_id, 0, edge->released, self->stage, s);
        announce(self, edge);
        rrfp_ucx_send_small(self, s, RRFP_UCX_AM_CREDIT, &credit, sizeof credit);
    }
}
