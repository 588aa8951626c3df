/* ucx_connect.c - edges, and proof that a peer belongs to the run; see ucx.h. */
#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <stddef.h>
#include <string.h>

#include "transport/ucx_internal.h"

static const uint64_t AGAIN_NS = 100000000u;

static void sign(const rrfp_ucx *self, const rrfp_ucx_hello *hello,
                 uint8_t mac[RRFP_UCX_MAC_BYTES])
{
    struct hmac_sha256_ctx context;
    hmac_sha256_set_key(&context, sizeof self->secret, self->secret);
    hmac_sha256_update(&context, offsetof(rrfp_ucx_hello, mac), (const uint8_t *)hello);
    hmac_sha256_digest(&context, RRFP_UCX_MAC_BYTES, mac);
}

ucs_status_t rrfp_ucx_on_hello(void *argument, const void *header, size_t header_bytes, void *data,
                               size_t bytes, const ucp_am_recv_param_t *param)
{
    rrfp_ucx *self = argument;
    rrfp_ucx_hello hello;
    uint8_t mac[RRFP_UCX_MAC_BYTES];
    rrfp_error error;
    (void)data;
    (void)param;
    if (header_bytes != sizeof hello || bytes != 0) {
        rrfp_error_set(&error, RRFP_ERR_FORMAT, "a greeting of %zu + %zu bytes, expected %zu + 0",
                       header_bytes, bytes, sizeof hello);
        rrfp_ucx_refuse(self, &error);
        return UCS_OK;
    }
    memcpy(&hello, header, sizeof hello);
    sign(self, &hello, mac);
    if (!memeql_sec(mac, hello.mac, sizeof mac) || hello.run_id != self->run_id ||
        hello.from >= self->stages || hello.to != self->stage) {
        rrfp_error_set(&error, RRFP_ERR_FORMAT,
                       "a greeting from stage %u to stage %u of run %016llx does not know this "
                       "run's secret",
                       hello.from, hello.to, (unsigned long long)hello.run_id);
        rrfp_ucx_refuse(self, &error);
        return UCS_OK;
    }
    self->edges[hello.from].greeted = true;
    return UCS_OK;
}

static void on_error(void *argument, ucp_ep_h endpoint, ucs_status_t status)
{
    rrfp_ucx *self = argument;
    for (uint32_t s = 0; s < self->stages; s++) {
        if (self->edges[s].endpoint == endpoint && self->failure.status == RRFP_OK) {
            rrfp_error_set(&self->failure, RRFP_ERR_PEER, "stage %u lost stage %u: %s",
                           self->stage, s, ucs_status_string(status));
        }
    }
    rrfp_ucx_fail(self, "connected", status);
}

static bool is_edge(const rrfp_ucx_edge *edge)
{
    return edge->receive_slots > 0 || edge->send_credits > 0;
}

static void greet(rrfp_ucx *self, uint32_t stage)
{
    rrfp_ucx_hello hello = {
        .run_id = self->run_id, .from = (uint16_t)self->stage, .to = (uint16_t)stage};
    sign(self, &hello, hello.mac);
    rrfp_ucx_send_small(self, stage, RRFP_UCX_AM_HELLO, &hello, sizeof hello);
}

/* Stage that has not greeted yet, or `stages`. */
static uint32_t missing(const rrfp_ucx *self)
{
    uint32_t s = 0;
    while (s < self->stages && (!is_edge(&self->edges[s]) || self->edges[s].greeted)) {
        s++;
    }
    return s;
}

rrfp_status rrfp_ucx_connect(rrfp_transport *transport, const void *const *addresses,
                             const size_t *address_bytes, uint64_t timeout_ns, rrfp_error *error)
{
    rrfp_ucx *self = (rrfp_ucx *)transport;
    uint64_t deadline = rrfp_ucx_now_ns() + timeout_ns;
    for (uint32_t s = 0; s < self->stages; s++) {
        if (!is_edge(&self->edges[s]) || self->edges[s].endpoint != NULL) {
            continue;
        }
        if (addresses[s] == NULL || address_bytes[s] == 0) {
            return rrfp_error_set(error, RRFP_ERR_PEER, "stage %u gave no address", s);
        }
        ucp_ep_params_t params = {
            .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                          UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
            .address = addresses[s],
            .err_mode = self->edges[s].same_host ? UCP_ERR_HANDLING_MODE_NONE
                                                 : UCP_ERR_HANDLING_MODE_PEER,
            .err_handler = {.cb = on_error, .arg = self},
        };
        ucs_status_t made = ucp_ep_create(self->worker, &params, &self->edges[s].endpoint);
        if (made != UCS_OK) {
            self->edges[s].endpoint = NULL;
            return rrfp_error_set(error, RRFP_ERR_PEER,
                                  "stage %u cannot reach stage %u: %s; look at UCX_TLS and "
                                  "UCX_NET_DEVICES, which must fit on both hosts",
                                  self->stage, s, ucs_status_string(made));
        }
        greet(self, s);
    }
    while (missing(self) < self->stages && self->failure.status == RRFP_OK) {
        if (rrfp_ucx_now_ns() >= deadline) {
            return rrfp_error_set(error, RRFP_ERR_PEER,
                                  "stage %u did not answer stage %u in %.0f s: is it running, with "
                                  "the same secret, and reachable by UCX (UCX_NET_DEVICES)?",
                                  missing(self), self->stage, (double)timeout_ns * 1e-9);
        }
        self->base.ops->wait(transport, AGAIN_NS);
    }
    return rrfp_ucx_failure(transport, error);
}
