/* message_header.c - every field of a header is checked and named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/crc32c.h"
#include "transport/transport.h"

static rrfp_error error;

/* Looped, P = 3, V = 2: global chunk 4 is stage 1, chunk 1; 3 is stage 0, chunk 1. */
static const rrfp_message_expectation plan = {
    .shape = {3, 2, 8, RRFP_PLACEMENT_LOOPED},
    .run_id = 77,
    .step = 5,
    .stage = 1,
    .dtype = RRFP_MESSAGE_F32,
    .dims = {2, 16, 32},
};

static rrfp_message_header good(void)
{
    rrfp_message_header header = {
        .kind = RRFP_F,
        .dtype = RRFP_MESSAGE_F32,
        .ndim = 3,
        .run_id = 77,
        .step = 5,
        .source_stage = 0,
        .source_chunk = 1,
        .destination_stage = 1,
        .destination_chunk = 1,
        .microbatch = 7,
        .dims = {2, 16, 32},
        .payload_bytes = 4096,
    };
    rrfp_message_header_seal(&header);
    return header;
}

/* CRC-32C bit by bit, reflected polynomial 0x82F63B78. */
static uint32_t crc32c(const unsigned char *bytes, size_t count)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = crc & 1 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
        }
    }
    return ~crc;
}

static void seals(void **state)
{
    (void)state;
    rrfp_message_header header;
    /* The check value of the algorithm's catalogue entry. */
    assert_int_equal(crc32c((const unsigned char *)"123456789", 9), 0xE3069283u);
    memset(&header, 0x5a, sizeof header);
    rrfp_message_header_seal(&header);
    assert_int_equal(header.magic, 0x50465252);
    assert_int_equal(header.version, 2);
    assert_int_equal(header.reserved, 0);
    assert_int_equal(header.microbatch, 0x5a5a5a5a);
    assert_int_equal(header.checksum, crc32c((const unsigned char *)&header, 60));
    assert_memory_equal(&header, "RRFP\x02", 5);
}

/* The processor's instruction and the table, for lengths around its words, at every alignment. */
static void checksums_agree(void **state)
{
    (void)state;
    unsigned char bytes[96];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (unsigned char)(i * 37 + 11);
    }
    for (size_t begin = 0; begin < 8; begin++) {
        for (size_t count = 0; count <= 80; count++) {
            uint32_t expected = crc32c(bytes + begin, count);
            assert_int_equal(rrfp_crc32c(bytes + begin, count), expected);
            assert_int_equal(rrfp_crc32c_portable(bytes + begin, count), expected);
        }
    }
    assert_int_equal(rrfp_crc32c("123456789", 9), 0xE3069283u);
}

static void accepts_this_step_and_the_next(void **state)
{
    (void)state;
    rrfp_message_header header = good();
    bool next_step = true;
    assert_int_equal(rrfp_message_header_check(&header, &plan, &next_step, &error), RRFP_OK);
    assert_false(next_step);
    header.step = 6;
    rrfp_message_header_seal(&header);
    assert_int_equal(rrfp_message_header_check(&header, &plan, &next_step, &error), RRFP_OK);
    assert_true(next_step);

    /* The gradient for stage 1, chunk 1 comes from global chunk 5: stage 2, chunk 1. */
    header.kind = RRFP_B;
    header.source_stage = 2;
    rrfp_message_header_seal(&header);
    assert_int_equal(rrfp_message_header_check(&header, &plan, &next_step, &error), RRFP_OK);

    /* V placement, P = 3: stage 1, chunk 1 is global 4; its activation comes from 3: stage 2. */
    rrfp_message_expectation v_plan = plan;
    v_plan.shape.placement = RRFP_PLACEMENT_V;
    header.kind = RRFP_F;
    rrfp_message_header_seal(&header);
    assert_int_equal(rrfp_message_header_check(&header, &v_plan, &next_step, &error), RRFP_OK);

    rrfp_message_expectation bf16 = plan;
    bf16.dtype = RRFP_MESSAGE_BF16;
    header = good();
    header.dtype = RRFP_MESSAGE_BF16;
    header.payload_bytes = 2048;
    rrfp_message_header_seal(&header);
    assert_int_equal(rrfp_message_header_check(&header, &bf16, &next_step, &error), RRFP_OK);
}

static void refused_by(const rrfp_message_expectation *expect, const rrfp_message_header *header,
                       const char *text)
{
    bool next_step = true;
    assert_int_equal(rrfp_message_header_check(header, expect, &next_step, &error),
                     RRFP_ERR_FORMAT);
    if (strstr(error.text, text) == NULL) {
        fail_msg("expected '%s' in: %s", text, error.text);
    }
    assert_true(next_step);
}

static void refused(const rrfp_message_header *header, const char *text)
{
    refused_by(&plan, header, text);
}

#define REFUSED(field, value, text)                                                               \
    do {                                                                                          \
        rrfp_message_header changed = good();                                                     \
        changed.field = value;                                                                    \
        rrfp_message_header_seal(&changed);                                                       \
        refused(&changed, text);                                                                  \
    } while (0)

static void names_the_wrong_field(void **state)
{
    (void)state;
    rrfp_message_header header = good();
    header.magic = 0x12345678;
    refused(&header, "magic is 0x12345678, expected 0x50465252");
    header = good();
    header.version = 1;
    refused(&header, "version is 1, expected 2");
    header = good();
    header.reserved = 1;
    header.checksum = crc32c((const unsigned char *)&header, 60);
    refused(&header, "reserved is 1, expected 0");

    REFUSED(kind, RRFP_W, "kind is 2, expected 0 (F) or 1 (B)");
    REFUSED(dtype, RRFP_MESSAGE_BF16, "dtype is 2, expected 1");
    REFUSED(ndim, 2, "ndim is 2, expected 3");
    REFUSED(run_id, 78, "run id is 78, expected 77");
    REFUSED(step, 4, "step is 4, expected 5 or 6");
    REFUSED(step, 7, "step is 7, expected 5 or 6");
    REFUSED(destination_stage, 2, "destination stage is 2, expected 1");
    REFUSED(destination_chunk, 2, "destination chunk is 2, expected less than 2");
    REFUSED(source_stage, 2, "source stage is 2, expected 0");
    REFUSED(source_chunk, 0, "source chunk is 0, expected 1");
    REFUSED(microbatch, 8, "microbatch is 8, expected less than 8");
    REFUSED(dims[0], 3, "dims[0] is 3, expected 2");
    REFUSED(dims[1], 17, "dims[1] is 17, expected 16");
    REFUSED(dims[2], 0, "dims[2] is 0, expected 32");
    REFUSED(payload_bytes, 4092, "payload bytes is 4092, expected 4096");
    REFUSED(source_tensor_rank, 1, "source tensor rank is 1, expected 0");
    REFUSED(destination_tensor_rank, 1, "destination tensor rank is 1, expected 0");
}

static rrfp_message_header signal_of(uint8_t kind, uint16_t from, uint16_t to)
{
    rrfp_message_header header = {
        .kind = kind,
        .run_id = 77,
        .step = 5,
        .source_stage = 1,
        .source_chunk = 1,
        .destination_stage = 1,
        .destination_chunk = 1,
        .microbatch = 7,
        .dims = {RRFP_B, kind == RRFP_MESSAGE_DECISION ? 3 : 0, 0},
        .source_tensor_rank = from,
        .destination_tensor_rank = to,
    };
    rrfp_message_header_seal(&header);
    return header;
}

/* A group of three: notices go to rank 0, decisions come from it. */
static void checks_signals(void **state)
{
    (void)state;
    rrfp_message_expectation lead = plan, member = plan;
    bool next_step;
    lead.tensor_size = member.tensor_size = 3;
    member.tensor_rank = 2;
    rrfp_message_header notice = signal_of(RRFP_MESSAGE_NOTICE, 2, 0);
    rrfp_message_header decision = signal_of(RRFP_MESSAGE_DECISION, 0, 2);
    assert_true(rrfp_message_is_signal(&notice) && rrfp_message_is_signal(&decision));
    assert_int_equal(rrfp_message_header_check(&notice, &lead, &next_step, &error), RRFP_OK);
    assert_false(next_step);
    assert_int_equal(rrfp_message_header_check(&decision, &member, &next_step, &error), RRFP_OK);

    refused(&notice, "kind is 16, expected 0 (F) or 1 (B)"); /* no group here */
    refused_by(&member, &notice, "destination tensor rank is 0, expected 0");
    refused_by(&lead, &decision, "destination tensor rank is 2, expected 0");
    notice = signal_of(RRFP_MESSAGE_NOTICE, 3, 0);
    refused_by(&lead, &notice, "source tensor rank is 3, expected less than 3");
    notice = signal_of(RRFP_MESSAGE_NOTICE, 0, 0);
    refused_by(&lead, &notice, "source tensor rank is 0, expected another");
    decision = signal_of(RRFP_MESSAGE_DECISION, 1, 2);
    refused_by(&member, &decision, "source tensor rank is 1, expected the lead's, 0");

    static const struct {
        size_t offset;
        uint16_t value;
        const char *text;
    } changes[] = {
        {offsetof(rrfp_message_header, source_stage), 0, "stage of a signal is 0, expected 1"},
        {offsetof(rrfp_message_header, destination_stage), 2, "stage of a signal is 2, expected 1"},
        {offsetof(rrfp_message_header, destination_chunk), 2, "destination chunk is 2, expected"},
        {offsetof(rrfp_message_header, source_chunk), 0, "source chunk is 0, expected 1"},
        {offsetof(rrfp_message_header, microbatch), 8, "microbatch is 8, expected less than 8"},
        {offsetof(rrfp_message_header, dims), RRFP_W, "the task's kind is 2, expected less than 2"},
        {offsetof(rrfp_message_header, dims) + 4, 1, "dims of a signal is 1, expected 0"},
        {offsetof(rrfp_message_header, dims) + 8, 2, "dims of a signal is 2, expected 0"},
        {offsetof(rrfp_message_header, payload_bytes), 4, "payload bytes is 4, expected 0"},
        {offsetof(rrfp_message_header, dtype), 1, "dtype is 1, expected 0"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        rrfp_message_header changed = signal_of(RRFP_MESSAGE_NOTICE, 2, 0);
        memcpy((char *)&changed + changes[i].offset, &changes[i].value, sizeof changes[i].value);
        rrfp_message_header_seal(&changed);
        refused_by(&lead, &changed, changes[i].text);
    }
}

static void ends_of_the_model_take_nothing(void **state)
{
    (void)state;
    rrfp_message_expectation first = plan, last = plan;
    rrfp_message_header header = good();
    bool next_step;
    first.stage = 0;
    header.destination_stage = 0;
    header.destination_chunk = 0;
    rrfp_message_header_seal(&header);
    assert_int_equal(rrfp_message_header_check(&header, &first, &next_step, &error),
                     RRFP_ERR_FORMAT);
    assert_non_null(strstr(error.text, "one that takes activations"));
    last.stage = 2;
    header.kind = RRFP_B;
    header.destination_stage = 2;
    header.destination_chunk = 1;
    rrfp_message_header_seal(&header);
    assert_int_equal(rrfp_message_header_check(&header, &last, &next_step, &error),
                     RRFP_ERR_FORMAT);
    assert_non_null(strstr(error.text, "one that takes gradients"));
}

/* CRC finds every single flipped bit. */
static void any_flipped_bit_is_found(void **state)
{
    (void)state;
    for (unsigned bit = 0; bit < 512; bit++) {
        rrfp_message_header header = good();
        bool next_step;
        ((unsigned char *)&header)[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_int_equal(rrfp_message_header_check(&header, &plan, &next_step, &error),
                         RRFP_ERR_FORMAT);
        if (bit >= 40) { /* behind magic and version */
            assert_non_null(strstr(error.text, "checksum is 0x"));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksums_agree),
        cmocka_unit_test(seals),
        cmocka_unit_test(accepts_this_step_and_the_next),
        cmocka_unit_test(names_the_wrong_field),
        cmocka_unit_test(checks_signals),
        cmocka_unit_test(ends_of_the_model_take_nothing),
        cmocka_unit_test(any_flipped_bit_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
