/* endpoints.h - what the transport's tests share: messages that say who made them. */
#ifndef RRFP_TEST_ENDPOINTS_H
#define RRFP_TEST_ENDPOINTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "transport/transport.h"

enum { WORDS = 48, PAYLOAD_BYTES = WORDS * 4 };

static const uint64_t SECOND_NS = 1000000000u;

static inline rrfp_message_header message_from(uint32_t source, uint32_t destination,
                                               uint32_t number)
{
    rrfp_message_header header = {
        .kind = RRFP_F,
        .dtype = RRFP_MESSAGE_F32,
        .ndim = 3,
        .source_stage = (uint16_t)source,
        .destination_stage = (uint16_t)destination,
        .microbatch = number,
        .dims = {1, 1, WORDS},
        .payload_bytes = PAYLOAD_BYTES,
    };
    rrfp_message_header_seal(&header);
    return header;
}

static inline uint32_t word_of(uint32_t source, uint32_t number, uint32_t index)
{
    return source * 0x9e3779b9u + number * 0x85ebca6bu + index * 0xc2b2ae35u;
}

static inline void fill_payload(uint32_t *words, uint32_t source, uint32_t number)
{
    for (uint32_t i = 0; i < WORDS; i++) {
        words[i] = word_of(source, number, i);
    }
}

/* How many words are not what the message's maker wrote. */
static inline uint32_t wrong_words(const rrfp_transport_event *event)
{
    const uint32_t *words = event->payload;
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < WORDS; i++) {
        wrong += words[i] != word_of(event->header.source_stage, event->header.microbatch, i);
    }
    return wrong;
}

/* Takes the next event, sleeping for it; fails the test after a minute. */
static inline rrfp_transport_event next_event(rrfp_transport *endpoint)
{
    rrfp_transport_event event = {0};
    for (int tries = 0; tries < 60; tries++) {
        if (endpoint->ops->poll(endpoint, &event)) {
            return event;
        }
        endpoint->ops->wait(endpoint, SECOND_NS);
    }
    fail_msg("no event within a minute");
    return event;
}

#endif /* RRFP_TEST_ENDPOINTS_H */
