/* message_header.c - sealing a message's header and checking it against the plan. */
#include "transport/transport.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/crc32c.h"

enum { CHECKED_BYTES = 60 };

static_assert(sizeof(rrfp_message_header) == RRFP_MESSAGE_HEADER_BYTES, "the header is 64 bytes");
static_assert(offsetof(rrfp_message_header, version) == 4, "header layout");
static_assert(offsetof(rrfp_message_header, ndim) == 7, "header layout");
static_assert(offsetof(rrfp_message_header, run_id) == 8, "header layout");
static_assert(offsetof(rrfp_message_header, step) == 16, "header layout");
static_assert(offsetof(rrfp_message_header, source_stage) == 24, "header layout");
static_assert(offsetof(rrfp_message_header, microbatch) == 32, "header layout");
static_assert(offsetof(rrfp_message_header, dims) == 36, "header layout");
static_assert(offsetof(rrfp_message_header, payload_bytes) == 48, "header layout");
static_assert(offsetof(rrfp_message_header, source_tensor_rank) == 52, "header layout");
static_assert(offsetof(rrfp_message_header, reserved) == 56, "header layout");
static_assert(offsetof(rrfp_message_header, checksum) == CHECKED_BYTES, "header layout");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "headers travel as they lie in memory");

void rrfp_message_header_seal(rrfp_message_header *header)
{
    header->magic = RRFP_MESSAGE_MAGIC;
    header->version = RRFP_MESSAGE_VERSION;
    header->reserved = 0;
    header->checksum = rrfp_crc32c(header, CHECKED_BYTES);
}

static rrfp_status wrong(rrfp_error *error, const char *field, uint64_t value, uint64_t expected)
{
    return rrfp_error_set(error, RRFP_ERR_FORMAT,
                          "message header: %s is %" PRIu64 ", expected %" PRIu64, field, value,
                          expected);
}

static rrfp_status too_large(rrfp_error *error, const char *field, uint64_t value, uint64_t count)
{
    return rrfp_error_set(error, RRFP_ERR_FORMAT,
                          "message header: %s is %" PRIu64 ", expected less than %" PRIu64, field,
                          value, count);
}

static rrfp_status check_envelope(const rrfp_message_header *header, rrfp_error *error)
{
    if (header->magic != RRFP_MESSAGE_MAGIC) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "message header: magic is 0x%08" PRIx32 ", expected 0x%08x",
                              header->magic, (unsigned)RRFP_MESSAGE_MAGIC);
    }
    if (header->version != RRFP_MESSAGE_VERSION) {
        return wrong(error, "version", header->version, RRFP_MESSAGE_VERSION);
    }
    uint32_t checksum = rrfp_crc32c(header, CHECKED_BYTES);
    if (header->checksum != checksum) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "message header: checksum is 0x%08" PRIx32
                              ", expected 0x%08" PRIx32 "; the header was damaged on its way",
                              header->checksum, checksum);
    }
    return header->reserved == 0 ? RRFP_OK : wrong(error, "reserved", header->reserved, 0);
}

bool rrfp_message_header_is_whole(const rrfp_message_header *header, rrfp_error *error)
{
    return check_envelope(header, error) == RRFP_OK;
}

/* The route: who may send what to whom follows from the shape alone. */
static rrfp_status check_route(const rrfp_message_header *header,
                               const rrfp_message_expectation *expect, rrfp_error *error)
{
    const rrfp_shape *shape = &expect->shape;
    if (header->destination_stage != expect->stage) {
        return wrong(error, "destination stage", header->destination_stage, expect->stage);
    }
    if (header->destination_chunk >= shape->chunks) {
        return too_large(error, "destination chunk", header->destination_chunk, shape->chunks);
    }
    if (header->destination_tensor_rank != expect->tensor_rank) {
        return wrong(error, "destination tensor rank", header->destination_tensor_rank,
                     expect->tensor_rank);
    }
    if (header->source_tensor_rank != expect->tensor_rank) {
        return wrong(error, "source tensor rank", header->source_tensor_rank,
                     expect->tensor_rank);
    }
    uint32_t last = shape->stages * shape->chunks - 1;
    uint32_t to = rrfp_shape_global_chunk(shape, expect->stage, header->destination_chunk);
    if (to == (header->kind == RRFP_F ? 0 : last)) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "message header: destination chunk is %u on stage %u, global chunk "
                              "%" PRIu32 ", expected one that takes %s; nothing comes before it",
                              header->destination_chunk, header->destination_stage, to,
                              header->kind == RRFP_F ? "activations" : "gradients");
    }
    uint32_t stage, chunk;
    rrfp_shape_owner(shape, header->kind == RRFP_F ? to - 1 : to + 1, &stage, &chunk);
    if (header->source_stage != stage) {
        return wrong(error, "source stage", header->source_stage, stage);
    }
    if (header->source_chunk != chunk) {
        return wrong(error, "source chunk", header->source_chunk, chunk);
    }
    if (header->microbatch >= shape->microbatches) {
        return too_large(error, "microbatch", header->microbatch, shape->microbatches);
    }
    return RRFP_OK;
}

static rrfp_status check_payload(const rrfp_message_header *header,
                                 const rrfp_message_expectation *expect, rrfp_error *error)
{
    static const char *const names[] = {"dims[0]", "dims[1]", "dims[2]"};
    uint64_t bytes = expect->dtype == RRFP_MESSAGE_BF16 ? 2 : 4;
    for (int i = 0; i < 3; i++) {
        if (header->dims[i] != expect->dims[i]) {
            return wrong(error, names[i], header->dims[i], expect->dims[i]);
        }
        bytes *= expect->dims[i];
    }
    if (header->payload_bytes != bytes) {
        return wrong(error, "payload bytes", header->payload_bytes, bytes);
    }
    return RRFP_OK;
}

/* Between the ranks of this stage's group: notices to rank 0, decisions from it. */
static rrfp_status check_signal(const rrfp_message_header *header,
                                const rrfp_message_expectation *expect, rrfp_error *error)
{
    bool notice = header->kind == RRFP_MESSAGE_NOTICE;
    uint32_t ours = header->destination_tensor_rank, theirs = header->source_tensor_rank;
    uint32_t most_kind = notice ? RRFP_B : RRFP_BW;
    if (header->source_stage != expect->stage || header->destination_stage != expect->stage) {
        return wrong(error, "stage of a signal",
                     header->source_stage != expect->stage ? header->source_stage
                                                           : header->destination_stage,
                     expect->stage);
    }
    if (ours != expect->tensor_rank || (notice && ours != 0)) {
        return wrong(error, "destination tensor rank", ours, notice ? 0 : expect->tensor_rank);
    }
    if (theirs >= expect->tensor_size) {
        return too_large(error, "source tensor rank", theirs, expect->tensor_size);
    }
    if (theirs == ours || (!notice && theirs != 0)) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "message header: source tensor rank is %u, expected %s", theirs,
                              notice ? "another than the lead's" : "the lead's, 0");
    }
    if (header->destination_chunk >= expect->shape.chunks) {
        return too_large(error, "destination chunk", header->destination_chunk,
                         expect->shape.chunks);
    }
    if (header->source_chunk != header->destination_chunk) {
        return wrong(error, "source chunk", header->source_chunk, header->destination_chunk);
    }
    if (header->microbatch >= expect->shape.microbatches) {
        return too_large(error, "microbatch", header->microbatch, expect->shape.microbatches);
    }
    if (header->dims[0] > most_kind) {
        return too_large(error, "the task's kind", header->dims[0], most_kind + 1);
    }
    if (header->dims[2] > 1 || (notice && (header->dims[1] != 0 || header->dims[2] != 0))) {
        return wrong(error, "dims of a signal", header->dims[2] > 1 ? header->dims[2] : 1, 0);
    }
    return header->payload_bytes == 0 ? RRFP_OK
                                      : wrong(error, "payload bytes", header->payload_bytes, 0);
}

rrfp_status rrfp_message_header_check(const rrfp_message_header *header,
                                      const rrfp_message_expectation *expect, bool *next_step,
                                      rrfp_error *error)
{
    rrfp_status status = check_envelope(header, error);
    bool signal = expect->tensor_size > 1 && (header->kind == RRFP_MESSAGE_NOTICE ||
                                              header->kind == RRFP_MESSAGE_DECISION);
    if (status != RRFP_OK) {
        return status;
    }
    if (header->kind != RRFP_F && header->kind != RRFP_B && !signal) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "message header: kind is %u, expected %d (F) or %d (B)",
                              header->kind, RRFP_F, RRFP_B);
    }
    if (header->dtype != (signal ? 0 : expect->dtype)) {
        return wrong(error, "dtype", header->dtype, signal ? 0 : expect->dtype);
    }
    if (header->ndim != (signal ? 0 : 3)) {
        return wrong(error, "ndim", header->ndim, signal ? 0 : 3);
    }
    if (header->run_id != expect->run_id) {
        return wrong(error, "run id", header->run_id, expect->run_id);
    }
    if (header->step != expect->step && header->step != expect->step + 1) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "message header: step is %" PRIu64 ", expected %" PRIu64
                              " or %" PRIu64,
                              header->step, expect->step, expect->step + 1);
    }
    if (signal) {
        status = check_signal(header, expect, error);
    } else {
        status = check_route(header, expect, error);
        if (status == RRFP_OK) {
            status = check_payload(header, expect, error);
        }
    }
    if (status == RRFP_OK) {
        *next_step = header->step != expect->step;
    }
    return status;
}
