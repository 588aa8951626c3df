/* message_header.c - sealing and checking the 64-byte header; see transport.h. */
#include "transport/transport.h"

#include <assert.h>
#include <inttypes.h>

static_assert(sizeof(rrfp_message_header) == RRFP_MESSAGE_HEADER_BYTES, "header is 64 bytes");
static_assert(offsetof(rrfp_message_header, run_id) == 8, "run id at 8");
static_assert(offsetof(rrfp_message_header, step) == 16, "step at 16");
static_assert(offsetof(rrfp_message_header, source_stage) == 24, "stages at 24");
static_assert(offsetof(rrfp_message_header, dims) == 36, "dims at 36");
static_assert(offsetof(rrfp_message_header, payload_bytes) == 48, "payload bytes at 48");
static_assert(offsetof(rrfp_message_header, checksum) == 60, "checksum last");

/* FNV-1a over the bytes before the checksum: against torn and stray headers, not attackers. */
static uint32_t checksum(const rrfp_message_header *header)
{
    const unsigned char *bytes = (const unsigned char *)header;
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < offsetof(rrfp_message_header, checksum); i++) {
        hash = (hash ^ bytes[i]) * 16777619u;
    }
    return hash;
}

void rrfp_message_header_seal(rrfp_message_header *header)
{
    header->magic = RRFP_MESSAGE_MAGIC;
    header->version = RRFP_MESSAGE_VERSION;
    header->checksum = checksum(header);
}

static rrfp_status wrong(const rrfp_message_expectation *expect, const char *field, uint64_t got,
                         uint64_t wanted, rrfp_error *error)
{
    return rrfp_error_set(error, RRFP_ERR_FORMAT,
                          "stage %u refused a message: %s is %" PRIu64 ", the plan says %" PRIu64
                          ": are all stages of the same run and version?",
                          expect->stage, field, got, wanted);
}

/* The neighbour that must have sent this: the chunk before for F, the chunk after for B. */
static rrfp_status check_route(const rrfp_message_header *header,
                               const rrfp_message_expectation *expect, rrfp_error *error)
{
    const rrfp_shape *shape = &expect->shape;
    uint32_t last = shape->stages * shape->chunks - 1, stage, chunk;
    if (header->destination_stage != expect->stage) {
        return wrong(expect, "destination stage", header->destination_stage, expect->stage, error);
    }
    if (header->destination_chunk >= shape->chunks) {
        return wrong(expect, "destination chunk", header->destination_chunk, shape->chunks - 1,
                     error);
    }
    uint32_t here = rrfp_shape_global_chunk(shape, expect->stage, header->destination_chunk);
    if (header->kind == RRFP_F ? here == 0 : here == last) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "stage %u refused a message: its chunk %u takes no input of kind %s",
                              expect->stage, header->destination_chunk,
                              rrfp_kind_name((rrfp_kind)header->kind));
    }
    rrfp_shape_owner(shape, header->kind == RRFP_F ? here - 1 : here + 1, &stage, &chunk);
    if (header->source_stage != stage) {
        return wrong(expect, "source stage", header->source_stage, stage, error);
    }
    if (header->source_chunk != chunk) {
        return wrong(expect, "source chunk", header->source_chunk, chunk, error);
    }
    return RRFP_OK;
}

rrfp_status rrfp_message_header_check(const rrfp_message_header *header,
                                      const rrfp_message_expectation *expect, bool *next_step,
                                      rrfp_error *error)
{
    static const char *const dim_names[3] = {"dim 0 (batch)", "dim 1 (sequence)", "dim 2 (width)"};
    uint64_t bytes = expect->dtype == RRFP_MESSAGE_BF16 ? 2 : 4;
    if (header->magic != RRFP_MESSAGE_MAGIC) {
        return wrong(expect, "magic", header->magic, RRFP_MESSAGE_MAGIC, error);
    }
    if (header->version != RRFP_MESSAGE_VERSION) {
        return wrong(expect, "version", header->version, RRFP_MESSAGE_VERSION, error);
    }
    if (header->checksum != checksum(header)) {
        return wrong(expect, "checksum", header->checksum, checksum(header), error);
    }
    if (header->run_id != expect->run_id) {
        return wrong(expect, "run id", header->run_id, expect->run_id, error);
    }
    if (header->step != expect->step && header->step != expect->step + 1) {
        return wrong(expect, "step", header->step, expect->step, error);
    }
    if (header->kind != RRFP_F && header->kind != RRFP_B) {
        return wrong(expect, "kind", header->kind, RRFP_B, error);
    }
    rrfp_status status = check_route(header, expect, error);
    if (status != RRFP_OK) {
        return status;
    }
    if (header->microbatch >= expect->shape.microbatches) {
        return wrong(expect, "microbatch", header->microbatch, expect->shape.microbatches - 1,
                     error);
    }
    if (header->dtype != expect->dtype) {
        return wrong(expect, "dtype", header->dtype, expect->dtype, error);
    }
    if (header->ndim != 3) {
        return wrong(expect, "number of dims", header->ndim, 3, error);
    }
    for (int i = 0; i < 3; i++) {
        if (header->dims[i] != expect->dims[i]) {
            return wrong(expect, dim_names[i], header->dims[i], expect->dims[i], error);
        }
        bytes *= expect->dims[i];
    }
    if (header->payload_bytes != bytes) {
        return wrong(expect, "payload bytes", header->payload_bytes, bytes, error);
    }
    if (header->reserved != 0) {
        return wrong(expect, "reserved field", header->reserved, 0, error);
    }
    *next_step = header->step != expect->step;
    return RRFP_OK;
}
