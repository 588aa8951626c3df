/* bpe_fixture.h - vocab.json texts made from the 256 byte characters and a few more tokens. */
#ifndef TESTS_BPE_FIXTURE_H
#define TESTS_BPE_FIXTURE_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* GPT-2's alphabet: printable Latin-1 as it is, the others from U+0100 on. */
static inline void byte_characters(char characters[256][3])
{
    unsigned next = 0x100;

    for (unsigned byte = 0; byte < 256; byte++) {
        int plain = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
        unsigned code = plain ? byte : next++;
        if (code < 0x80) {
            snprintf(characters[byte], 3, "%c", (int)code);
        } else {
            snprintf(characters[byte], 3, "%c%c", (int)(0xc0 | code >> 6),
                     (int)(0x80 | (code & 0x3f)));
        }
    }
}

/*
 * Writes {"<byte 0>": 0, ... "<byte 255>": 255, extra[0]: 256, ...}.  A byte `without`
 * of 0 to 255 is left out, its id going to the token "absent".
 */
static inline size_t make_vocab(char *out, size_t capacity, const char *const *extra, size_t count,
                                int without)
{
    char characters[256][3];
    size_t used = 0;

    byte_characters(characters);
    used += (size_t)snprintf(out, capacity, "{");
    for (int byte = 0; byte < 256; byte++) {
        const char *token = byte == without ? "absent" : characters[byte];
        const char *escape = byte == '"' || byte == '\\' ? "\\" : "";
        used += (size_t)snprintf(out + used, capacity - used, "%s\"%s%s\": %d",
                                 byte == 0 ? "" : ", ", escape, token, byte);
    }
    for (size_t i = 0; i < count; i++) {
        used += (size_t)snprintf(out + used, capacity - used, ", \"%s\": %zu", extra[i], 256 + i);
    }
    used += (size_t)snprintf(out + used, capacity - used, "}\n");
    return used;
}

#endif /* TESTS_BPE_FIXTURE_H */
