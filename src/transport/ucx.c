/* ucx.c - an endpoint's life, and its events; see ucx.h. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "transport/buffers.h"
#include "transport/ucx_internal.h"

enum { SPIN_MOST = 2000, SPIN_LEAST = 20, REFUSALS_SHOWN = 10 };
static const uint64_t CLOSE_NS = 2000000000u; /* a peer that is gone does not answer a goodbye */

uint64_t rrfp_ucx_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void rrfp_ucx_fail(rrfp_ucx *self, const char *what, ucs_status_t status)
{
    if (self->failure.status == RRFP_OK) {
        rrfp_error_set(&self->failure, RRFP_ERR_PEER, "stage %u lost a neighbour while %s: %s",
                       self->stage, what, ucs_status_string(status));
    }
}

void rrfp_ucx_refuse(rrfp_ucx *self, const rrfp_error *why)
{
    if (self->refused++ < REFUSALS_SHOWN) {
        fprintf(stderr, "rrfp: stage %u refuses a message: %s\n", self->stage, why->text);
    }
}

const char *rrfp_ucx_version(void)
{
    static char text[32];
    unsigned major, minor, patch;
    ucp_get_version(&major, &minor, &patch);
    snprintf(text, sizeof text, "UCX %u.%u.%u", major, minor, patch);
    return text;
}

/* ---- events --------------------------------------------------------------------------- */

static bool take_event(rrfp_ucx *self, rrfp_transport_event *event)
{
    if (self->arrived_first != NULL) {
        rrfp_ucx_slot *slot = self->arrived_first;
        self->arrived_first = slot->next;
        *event = (rrfp_transport_event){
            .kind = RRFP_TRANSPORT_ARRIVED,
            .header = slot->wire.header,
            .payload = self->buffers + (size_t)(slot - self->slots) * self->stride,
            .time_ns = slot->arrived_ns,
            .sent_ns = slot->wire.sent_ns,
        };
        return true;
    }
    if (self->sent_first != NULL) {
        rrfp_ucx_parcel *parcel = self->sent_first;
        self->sent_first = parcel->next;
        *event = (rrfp_transport_event){
            .kind = RRFP_TRANSPORT_SENT,
            .header = parcel->wire.header,
            .payload = (void *)(uintptr_t)parcel->payload,
            .time_ns = parcel->done_ns,
            .sent_ns = parcel->wire.sent_ns,
        };
        rrfp_ucx_give_parcel(self, parcel);
        return true;
    }
    return false;
}

static bool has_event(const rrfp_ucx *self)
{
    return self->arrived_first != NULL || self->sent_first != NULL;
}

/* Moves what can move; true if UCX did anything. */
static bool progress(rrfp_ucx *self)
{
    bool any = ucp_worker_progress(self->worker) != 0;
    if (self->fetch_first != NULL) {
        rrfp_ucx_fetch(self);
    }
    return any;
}

static bool endpoint_poll(rrfp_transport *transport, rrfp_transport_event *event)
{
    rrfp_ucx *self = (rrfp_ucx *)transport;
    if (self->delayed != NULL) {
        rrfp_ucx_push(self);
    }
    while (!has_event(self) && progress(self)) {
    }
    return take_event(self, event);
}

static void endpoint_flush(rrfp_transport *transport)
{
    rrfp_ucx_tell_credits((rrfp_ucx *)transport, true);
}

static bool has_reason(rrfp_ucx *self)
{
    return has_event(self) || self->failure.status != RRFP_OK || atomic_load(&self->woken);
}

/* Looks for a while; the while grows when it helps and shrinks when it does not. */
static void spin_for_reason(rrfp_ucx *self)
{
    for (uint32_t i = 0; i < self->spin; i++) {
        progress(self);
        if (has_reason(self)) {
            self->spin = 2 * self->spin < self->spin_most ? 2 * self->spin : self->spin_most;
            return;
        }
    }
    if (self->spin > SPIN_LEAST) {
        self->spin /= 2;
    }
}

static void sleep_until(rrfp_ucx *self, uint64_t until)
{
    uint64_t now = rrfp_ucx_now_ns(), left = until > now ? until - now : 0;
    struct pollfd fds[] = {{self->worker_fd, POLLIN, 0}, {self->wake_fd, POLLIN, 0}};
    struct timespec pause = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
    uint64_t count;
    if (ppoll(fds, 2, until == UINT64_MAX ? NULL : &pause, NULL) > 0 && fds[1].revents != 0 &&
        read(self->wake_fd, &count, sizeof count) < 0) {
        /* somebody else's wake was taken already: nothing to do */
    }
}

/* Until UCX has something to do; `until` at the latest. */
static void sleep_armed(rrfp_ucx *self, uint64_t until)
{
    ucs_status_t armed = ucp_worker_arm(self->worker);
    if (armed == UCS_OK) {
        sleep_until(self, until);
    } else if (armed != UCS_ERR_BUSY) {
        rrfp_ucx_fail(self, "waiting", armed);
    }
}

static void endpoint_wait(rrfp_transport *transport, uint64_t timeout_ns)
{
    rrfp_ucx *self = (rrfp_ucx *)transport;
    uint64_t begin = rrfp_ucx_now_ns();
    uint64_t deadline = timeout_ns < UINT64_MAX - begin ? begin + timeout_ns : UINT64_MAX;
    rrfp_ucx_tell_credits(self, true);
    progress(self);
    if (!has_reason(self)) {
        spin_for_reason(self);
    }
    while (!has_reason(self)) {
        uint64_t due = rrfp_ucx_push(self);
        if (progress(self) || has_reason(self)) {
            continue;
        }
        if (rrfp_ucx_now_ns() >= deadline) {
            break;
        }
        sleep_armed(self, due < deadline ? due : deadline);
    }
    atomic_store(&self->woken, false);
}

static void endpoint_wake(rrfp_transport *transport)
{
    rrfp_ucx *self = (rrfp_ucx *)transport;
    uint64_t one = 1;
    atomic_store(&self->woken, true);
    if (write(self->wake_fd, &one, sizeof one) < 0) {
        /* the counter is full: the sleeper is woken already */
    }
}

static void endpoint_release(rrfp_transport *transport, void *payload)
{
    rrfp_ucx *self = (rrfp_ucx *)transport;
    uintptr_t offset = (uintptr_t)payload - (uintptr_t)self->buffers;
    if (offset % self->stride != 0 || offset / self->stride >= self->slot_count ||
        !self->slots[offset / self->stride].held) {
        fprintf(stderr, "rrfp: stage %u releases buffer %p, which is not one that it holds\n",
                self->stage, payload);
#ifdef RRFP_DEBUG
        abort();
#endif
        return;
    }
    if (self->poison) {
        memset(payload, 0xff, self->stride);
    }
    rrfp_ucx_free_slot(self, &self->slots[offset / self->stride]);
    rrfp_ucx_tell_credits(self, false);
}

/* Is a buffer taken by a message of `step` or before? */
static bool has_held(const rrfp_ucx *self, uint64_t step, uint32_t *stage)
{
    for (uint32_t i = 0; i < self->slot_count; i++) {
        if (self->slots[i].held && self->slots[i].wire.header.step <= step) {
            *stage = self->slots[i].stage;
            return true;
        }
    }
    return false;
}

/* What of `step` is not in its place, as text; NULL: all is. */
static const char *astray(const rrfp_ucx *self, uint64_t step, uint32_t *stage)
{
    if (self->sent_first != NULL) {
        *stage = self->sent_first->wire.header.destination_stage;
        return "a finished send that nobody has polled, to";
    }
    if (has_held(self, step, stage)) {
        return "a buffer that nobody has released, of a message from";
    }
    if (self->delayed != NULL) {
        *stage = self->delayed->wire.header.destination_stage;
        return "a message that was not let go to";
    }
    for (*stage = 0; *stage < self->stages; ++*stage) {
        const rrfp_ucx_edge *edge = &self->edges[*stage];
        if (edge->first != NULL) {
            return "a message that was not let go to";
        }
        if (edge->announced != edge->released) {
            return "a credit that was not told to";
        }
        if (edge->sent != edge->returned) {
            return "a credit that has not come back from";
        }
    }
    return NULL;
}

static rrfp_status endpoint_settle(rrfp_transport *transport, uint64_t step, uint64_t timeout_ns,
                                   rrfp_error *error)
{
    rrfp_ucx *self = (rrfp_ucx *)transport;
    uint64_t begin = rrfp_ucx_now_ns();
    uint32_t stage;
    const char *what;
    rrfp_ucx_tell_credits(self, true);
    while ((what = astray(self, step, &stage)) != NULL) {
        if (self->failure.status != RRFP_OK) {
            return rrfp_ucx_failure(transport, error);
        }
        uint64_t now = rrfp_ucx_now_ns();
        if (now - begin >= timeout_ns || atomic_load(&self->woken)) {
            return rrfp_error_set(error, RRFP_ERR_INTERNAL,
                                  "stage %u still has %s stage %u, %.1f s after the end of step "
                                  "%llu",
                                  self->stage, what, stage, (double)(now - begin) * 1e-9,
                                  (unsigned long long)step);
        }
        if (!progress(self)) {
            sleep_armed(self, begin + timeout_ns);
        }
    }
    return RRFP_OK;
}

rrfp_status rrfp_ucx_failure(const rrfp_transport *transport, rrfp_error *error)
{
    const rrfp_ucx *self = (const rrfp_ucx *)transport;
    if (self->failure.status != RRFP_OK && error != NULL) {
        *error = self->failure;
    }
    return self->failure.status;
}

uint64_t rrfp_ucx_refused(const rrfp_transport *transport)
{
    return ((const rrfp_ucx *)transport)->refused;
}

uint32_t rrfp_ucx_credits(const rrfp_transport *transport, uint32_t stage)
{
    const rrfp_ucx_edge *edge = &((const rrfp_ucx *)transport)->edges[stage];
    return edge->send_credits - (uint32_t)(edge->sent - edge->returned);
}

uint32_t rrfp_ucx_free_slots(const rrfp_transport *transport, uint32_t stage)
{
    return ((const rrfp_ucx *)transport)->edges[stage].free_count;
}

/* ---- life ----------------------------------------------------------------------------- */

/*
 * Requests are waited for, but not for long.  Only endpoints whose failures UCX handles may be
 * closed by force; a polite close waits for the peer, so the others are left to the worker's end.
 */
static void close_endpoints(rrfp_ucx *self)
{
    uint64_t until = rrfp_ucx_now_ns() + CLOSE_NS;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};
    while (self->pending > 0 && self->failure.status == RRFP_OK && rrfp_ucx_now_ns() < until) {
        ucp_worker_progress(self->worker);
    }
    for (uint32_t s = 0; s < self->stages; s++) {
        if (self->edges[s].endpoint == NULL || self->edges[s].same_host) {
            continue;
        }
        ucs_status_ptr_t request = ucp_ep_close_nbx(self->edges[s].endpoint, &param);
        while (UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS &&
               rrfp_ucx_now_ns() < until) {
            ucp_worker_progress(self->worker);
        }
        if (UCS_PTR_IS_PTR(request)) {
            ucp_request_free(request);
        }
    }
}

static void endpoint_destroy(rrfp_transport *transport)
{
    rrfp_ucx *self = (rrfp_ucx *)transport;
    if (self == NULL) {
        return;
    }
    if (self->worker != NULL) {
        while (self->fetch_first != NULL) {
            ucp_am_data_release(self->worker, self->fetch_first->descriptor);
            self->fetch_first = self->fetch_first->next;
        }
        if (self->edges != NULL) {
            close_endpoints(self);
        }
        if (self->pending > 0) {
            return; /* a peer is gone and UCX still holds its requests: taking down the worker
                     * would abort (1.18), so all stays until the process ends */
        }
        if (self->address != NULL) {
            ucp_worker_release_address(self->worker, self->address);
        }
        ucp_worker_destroy(self->worker);
    }
    if (self->context != NULL) {
        ucp_cleanup(self->context);
    }
    if (self->wake_fd >= 0) {
        close(self->wake_fd);
    }
    rrfp_ucx_free_parcels(self);
    free(self->edges);
    free(self->buffers);
    free(self->slots);
    free(self);
}

static const rrfp_transport_ops ucx_ops = {
    .send = rrfp_ucx_send,
    .poll = endpoint_poll,
    .wait = endpoint_wait,
    .release = endpoint_release,
    .flush = endpoint_flush,
    .settle = endpoint_settle,
    .wake = endpoint_wake,
    .destroy = endpoint_destroy,
    .failure = rrfp_ucx_failure,
};

static rrfp_status ucx_says(rrfp_ucx *self, const char *what, ucs_status_t status,
                            rrfp_error *error)
{
    if (status == UCS_OK) {
        return RRFP_OK;
    }
    return rrfp_error_set(error, RRFP_ERR_IO,
                          "stage %u: UCX cannot %s: %s; UCX_LOG_LEVEL=info tells more, UCX_TLS "
                          "chooses the ways it may use",
                          self->stage, what, ucs_status_string(status));
}

/* Nobody has chosen a size, and shared memory is among the ways: UCX warns of what it cannot use. */
static bool may_size_segments(void)
{
    static const char *const variables[] = {"UCX_MM_SEG_SIZE", "UCX_POSIX_SEG_SIZE",
                                            "UCX_SYSV_SEG_SIZE"};
    static const char *const ways[] = {"sm", "shm", "mm", "posix", "sysv", "all"};
    const char *chosen = getenv("UCX_TLS");
    bool shared = chosen == NULL;
    for (size_t i = 0; !shared && i < sizeof ways / sizeof *ways; i++) {
        shared = strstr(chosen, ways[i]) != NULL;
    }
    for (size_t i = 0; shared && i < sizeof variables / sizeof *variables; i++) {
        shared = getenv(variables[i]) == NULL;
    }
    return shared;
}

/*
 * A segment of shared memory (8,256 bytes unless told otherwise) is too small for a message of
 * 8 KiB and its header: 5 us one way instead of 1.  Not above 64 KiB: UCX 1.13 has 16 bits for it.
 */
static ucs_status_t start_context(rrfp_ucx *self, const ucp_params_t *params)
{
    ucp_config_t *config;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) {
        return status;
    }
    if (may_size_segments()) {
        (void)ucp_config_modify(config, "MM_SEG_SIZE", "16640"); /* refused: slower, that is all */
    }
    status = ucp_init(params, config, &self->context);
    ucp_config_release(config);
    return status;
}

static rrfp_status open_worker(rrfp_ucx *self, rrfp_error *error)
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .estimated_num_eps = self->stages,
    };
    ucp_worker_params_t worker_params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED, /* connected by one thread, run by another */
    };
    static const struct {
        unsigned id;
        ucp_am_recv_callback_t callback;
    } handlers[] = {{RRFP_UCX_AM_DATA, rrfp_ucx_on_data},
                    {RRFP_UCX_AM_CREDIT, rrfp_ucx_on_credit},
                    {RRFP_UCX_AM_HELLO, rrfp_ucx_on_hello}};
    rrfp_status status = ucx_says(self, "start", start_context(self, &params), error);
    if (status == RRFP_OK) {
        status = ucx_says(self, "make a worker",
                          ucp_worker_create(self->context, &worker_params, &self->worker), error);
    }
    for (size_t i = 0; status == RRFP_OK && i < sizeof handlers / sizeof *handlers; i++) {
        ucp_am_handler_param_t handler = {
            .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                          UCP_AM_HANDLER_PARAM_FIELD_ARG,
            .id = handlers[i].id,
            .cb = handlers[i].callback,
            .arg = self,
        };
        status = ucx_says(self, "register a handler",
                          ucp_worker_set_am_recv_handler(self->worker, &handler), error);
    }
    if (status == RRFP_OK) {
        status = ucx_says(self, "wait by descriptor",
                          ucp_worker_get_efd(self->worker, &self->worker_fd), error);
    }
    if (status == RRFP_OK) {
        status = ucx_says(self, "tell its address",
                          ucp_worker_get_address(self->worker, &self->address,
                                                 &self->address_bytes),
                          error);
    }
    return status;
}

static rrfp_status make_buffers(rrfp_ucx *self, const rrfp_ucx_config *config, rrfp_error *error)
{
    size_t count = 0, messages = 0;
    self->edges = calloc(self->stages, sizeof *self->edges);
    for (uint32_t s = 0; self->edges != NULL && s < self->stages; s++) {
        self->edges[s].receive_slots = s == self->stage ? 0 : config->receive_slots[s];
        self->edges[s].send_credits = s == self->stage ? 0 : config->send_credits[s];
        self->edges[s].same_host = config->same_host != NULL && config->same_host[s];
        count += self->edges[s].receive_slots;
        messages += self->edges[s].send_credits;
    }
    self->slot_count = (uint32_t)count;
    self->slots = calloc(count + 1, sizeof *self->slots);
    self->buffers = count <= SIZE_MAX / self->stride - 1
                        ? rrfp_message_buffers((count + 1) * self->stride)
                        : NULL;
    if (self->edges == NULL || self->slots == NULL || self->buffers == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM,
                              "stage %u: out of memory for %zu message buffers of %zu bytes; use a "
                              "smaller --max-inflight",
                              self->stage, count, self->stride);
    }
    rrfp_ucx_slot *slot = self->slots;
    for (uint32_t s = 0; s < self->stages; s++) {
        for (uint32_t i = 0; i < self->edges[s].receive_slots; i++, slot++) {
            *slot = (rrfp_ucx_slot){.next = self->edges[s].free_slots, .stage = s, .owner = self};
            self->edges[s].free_slots = slot;
        }
        self->edges[s].free_count = self->edges[s].receive_slots;
    }
    return rrfp_ucx_add_parcels(self, 2 * messages + 2, error);
}

rrfp_status rrfp_ucx_create(const rrfp_ucx_config *config, rrfp_transport **transport,
                            rrfp_error *error)
{
    if (config->stages < 1 || config->stages > RRFP_MAX_STAGES ||
        config->stage >= config->stages || config->payload_bytes > UINT32_MAX) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "an endpoint of stage %u of %u for messages of %llu bytes; there may "
                              "be %d stages, and messages are under 4 GiB",
                              config->stage, config->stages,
                              (unsigned long long)config->payload_bytes, RRFP_MAX_STAGES);
    }
    rrfp_ucx *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for a message endpoint");
    }
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    self->base.ops = &ucx_ops;
    self->stages = config->stages;
    self->stage = config->stage;
    self->payload_bytes = config->payload_bytes;
    self->stride = ((size_t)config->payload_bytes + RRFP_CACHE_LINE_BYTES) / RRFP_CACHE_LINE_BYTES *
                   RRFP_CACHE_LINE_BYTES;
    self->link_delay = config->link_delay;
    self->link_delay_context = config->link_delay_context;
    self->admit = config->admit;
    self->admit_context = config->admit_context;
    self->run_id = config->run_id;
    memcpy(self->secret, config->secret, sizeof self->secret);
    self->poison = config->poison;
    /* Spinning takes the processor from the very rank one waits for when there are few. */
    self->spin_most = processors > (long)config->local_ranks ? SPIN_MOST : 0;
    self->spin = self->spin_most < SPIN_LEAST ? self->spin_most : SPIN_LEAST;
    self->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rrfp_status status = make_buffers(self, config, error);
    if (status == RRFP_OK && self->wake_fd < 0) {
        status = rrfp_error_set(error, RRFP_ERR_IO, "stage %u: no file descriptor left: %s",
                                self->stage, strerror(errno));
    }
    if (status == RRFP_OK) {
        status = open_worker(self, error);
    }
    if (status != RRFP_OK) {
        endpoint_destroy(&self->base);
        return status;
    }
    *transport = &self->base;
    return RRFP_OK;
}

rrfp_status rrfp_ucx_address(rrfp_transport *transport, const void **address, size_t *bytes,
                             rrfp_error *error)
{
    const rrfp_ucx *self = (const rrfp_ucx *)transport;
    (void)error;
    *address = self->address;
    *bytes = self->address_bytes;
    return RRFP_OK;
}
