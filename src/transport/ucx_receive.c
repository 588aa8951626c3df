/* ucx_receive.c - what arrives, and what of it is believed; see ucx.h. */
#include <string.h>

#include "transport/ucx_internal.h"

static void report_arrived(rrfp_ucx *self, rrfp_ucx_slot *slot)
{
    slot->arrived_ns = rrfp_ucx_now_ns();
    slot->next = NULL;
    if (self->arrived_first == NULL) {
        self->arrived_first = slot;
    } else {
        self->arrived_last->next = slot;
    }
    self->arrived_last = slot;
}

static unsigned char *buffer_of(const rrfp_ucx_slot *slot)
{
    return slot->owner->buffers + (size_t)(slot - slot->owner->slots) * slot->owner->stride;
}

static bool believe_credit(const rrfp_ucx_edge *edge, uint32_t from, uint64_t released,
                           rrfp_error *error)
{
    if (released > edge->sent) {
        rrfp_error_set(error, RRFP_ERR_FORMAT,
                       "stage %u gives back %llu messages, but only %llu were sent", from,
                       (unsigned long long)released, (unsigned long long)edge->sent);
        return false;
    }
    return true;
}

static void take_credit(rrfp_ucx *self, rrfp_ucx_edge *edge, uint64_t released)
{
    if (released > edge->returned) { /* else a later word was faster */
        edge->returned = released;
        rrfp_ucx_push_edge(self, edge);
    }
}

/* The edge of a data message, or NULL and why not. */
static rrfp_ucx_edge *believe(rrfp_ucx *self, const rrfp_ucx_data *wire, size_t bytes,
                              rrfp_error *error)
{
    const rrfp_message_header *header = &wire->header;
    if (!rrfp_message_header_is_whole(header, error)) {
        return NULL;
    }
    if (header->run_id != self->run_id) {
        rrfp_error_set(error, RRFP_ERR_FORMAT, "run id %016llx is not this run's",
                       (unsigned long long)header->run_id);
        return NULL;
    }
    uint32_t from = header->source_stage;
    if (from >= self->stages || !self->edges[from].greeted ||
        self->edges[from].receive_slots == 0) {
        rrfp_error_set(error, RRFP_ERR_FORMAT, "source stage %u is no connected neighbour", from);
        return NULL;
    }
    if (wire->check != rrfp_ucx_check(self->run_id, wire->sent_ns, wire->released, from,
                                      self->stage)) {
        rrfp_error_set(error, RRFP_ERR_FORMAT,
                       "check is %016llx, not that of a message from stage %u",
                       (unsigned long long)wire->check, from);
        return NULL;
    }
    if (header->payload_bytes != bytes || bytes > self->payload_bytes) {
        rrfp_error_set(error, RRFP_ERR_FORMAT,
                       "payload bytes is %u in the header, %zu came, at most %llu are expected",
                       header->payload_bytes, bytes, (unsigned long long)self->payload_bytes);
        return NULL;
    }
    if (self->edges[from].free_slots == NULL) {
        rrfp_error_set(error, RRFP_ERR_FORMAT,
                       "source stage %u has no credit left for this message", from);
        return NULL;
    }
    if (!believe_credit(&self->edges[from], from, wire->released, error)) {
        return NULL;
    }
    if (self->admit != NULL && !self->admit(self->admit_context, header, error)) {
        return NULL;
    }
    return &self->edges[from];
}

ucs_status_t rrfp_ucx_on_data(void *argument, const void *header, size_t header_bytes, void *data,
                              size_t bytes, const ucp_am_recv_param_t *param)
{
    rrfp_ucx *self = argument;
    rrfp_ucx_data wire;
    rrfp_error error = {RRFP_ERR_FORMAT, ""};
    rrfp_ucx_edge *edge = NULL;
    if (header_bytes == sizeof wire) {
        memcpy(&wire, header, sizeof wire);
        edge = believe(self, &wire, bytes, &error);
    } else {
        rrfp_error_set(&error, RRFP_ERR_FORMAT, "the header has %zu bytes, expected %zu",
                       header_bytes, sizeof wire);
    }
    if (edge == NULL) {
        rrfp_ucx_refuse(self, &error);
        return UCS_OK; /* UCX drops it, and lets the sender of a large one go */
    }
    rrfp_ucx_slot *slot = edge->free_slots;
    edge->free_slots = slot->next;
    edge->free_count--;
    slot->held = true;
    slot->wire = wire;
    take_credit(self, edge, wire.released);
    if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) {
        slot->descriptor = data;
        slot->next = self->fetch_first;
        self->fetch_first = slot;
        return UCS_INPROGRESS;
    }
    if (bytes > 0) {
        memcpy(buffer_of(slot), data, bytes);
    }
    report_arrived(self, slot);
    return UCS_OK;
}

static void on_fetched(void *request, ucs_status_t status, size_t bytes, void *argument)
{
    rrfp_ucx_slot *slot = argument;
    rrfp_ucx *self = slot->owner;
    ucp_request_free(request);
    self->pending--;
    if (status != UCS_OK || bytes != slot->wire.header.payload_bytes) {
        rrfp_ucx_fail(self, "receiving", status != UCS_OK ? status : UCS_ERR_MESSAGE_TRUNCATED);
        return;
    }
    report_arrived(self, slot);
}

void rrfp_ucx_fetch(rrfp_ucx *self)
{
    while (self->fetch_first != NULL) {
        rrfp_ucx_slot *slot = self->fetch_first;
        ucp_request_param_t param = {
            .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                            UCP_OP_ATTR_FIELD_MEMORY_TYPE,
            .memory_type = UCS_MEMORY_TYPE_HOST,
            .cb.recv_am = on_fetched,
            .user_data = slot,
        };
        self->fetch_first = slot->next;
        ucs_status_ptr_t request =
            ucp_am_recv_data_nbx(self->worker, slot->descriptor, buffer_of(slot),
                                 slot->wire.header.payload_bytes, &param);
        slot->descriptor = NULL;
        if (UCS_PTR_IS_ERR(request)) {
            rrfp_ucx_fail(self, "receiving", UCS_PTR_STATUS(request));
        } else if (request == NULL) {
            report_arrived(self, slot);
        } else {
            self->pending++;
        }
    }
}

ucs_status_t rrfp_ucx_on_credit(void *argument, const void *header, size_t header_bytes,
                                void *data, size_t bytes, const ucp_am_recv_param_t *param)
{
    rrfp_ucx *self = argument;
    rrfp_ucx_credit credit;
    rrfp_error error;
    (void)data;
    (void)param;
    if (header_bytes != sizeof credit || bytes != 0) {
        rrfp_error_set(&error, RRFP_ERR_FORMAT, "a credit of %zu + %zu bytes, expected %zu + 0",
                       header_bytes, bytes, sizeof credit);
        rrfp_ucx_refuse(self, &error);
        return UCS_OK;
    }
    memcpy(&credit, header, sizeof credit);
    rrfp_ucx_edge *edge = credit.from < self->stages ? &self->edges[credit.from] : NULL;
    if (credit.run_id != self->run_id || credit.zero != 0 ||
        credit.check != rrfp_ucx_check(credit.run_id, 0, credit.released, credit.from,
                                       credit.to) ||
        edge == NULL || !edge->greeted || credit.to != self->stage) {
        rrfp_error_set(&error, RRFP_ERR_FORMAT,
                       "a credit of run %016llx from stage %u to stage %u is not one of ours",
                       (unsigned long long)credit.run_id, credit.from, credit.to);
        rrfp_ucx_refuse(self, &error);
        return UCS_OK;
    }
    if (!believe_credit(edge, credit.from, credit.released, &error)) {
        rrfp_ucx_refuse(self, &error);
        return UCS_OK;
    }
    take_credit(self, edge, credit.released);
    return UCS_OK;
}

void rrfp_ucx_free_slot(rrfp_ucx *self, rrfp_ucx_slot *slot)
{
    rrfp_ucx_edge *edge = &self->edges[slot->stage];
    slot->held = false;
    slot->next = edge->free_slots;
    edge->free_slots = slot;
    edge->free_count++;
    if (edge->released == edge->announced) {
        self->credits_to_tell++;
    }
    edge->released++;
}
