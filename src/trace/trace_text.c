/* trace_text.c - see trace_text.h. */
#include "trace/trace_text.h"

#include <stdint.h>

static const uint32_t REPLACEMENT = 0xfffd;

/* Takes one character from *text; bytes that are not UTF-8 give U+FFFD, one by one. */
static uint32_t next_character(const char **text)
{
    static const uint32_t least[4] = {0, 0x80, 0x800, 0x10000};
    const unsigned char *bytes = (const unsigned char *)*text;
    int more = bytes[0] < 0x80                             ? 0
               : bytes[0] >= 0xc2 && bytes[0] <= 0xdf      ? 1
               : bytes[0] >= 0xe0 && bytes[0] <= 0xef      ? 2
               : bytes[0] >= 0xf0 && bytes[0] <= 0xf4      ? 3
                                                           : -1;
    *text += 1;
    if (more <= 0) {
        return more == 0 ? bytes[0] : REPLACEMENT;
    }
    uint32_t character = bytes[0] & (0x3fu >> more);
    for (int i = 1; i <= more; i++) {
        if ((bytes[i] & 0xc0) != 0x80) { /* the end of the string, too */
            return REPLACEMENT;
        }
        character = character << 6 | (bytes[i] & 0x3f);
    }
    if (character < least[more] || character > 0x10ffff ||
        (character >= 0xd800 && character <= 0xdfff)) {
        return REPLACEMENT;
    }
    *text += more;
    return character;
}

void rrfp_trace_write_json_string(FILE *out, const char *text)
{
    putc('"', out);
    while (*text != '\0') {
        const char *begin = text;
        uint32_t character = next_character(&text);
        if (character == '"' || character == '\\') {
            fprintf(out, "\\%c", (int)character);
        } else if (character < 0x20 || character == 0x7f || character == REPLACEMENT) {
            fprintf(out, "\\u%04x", character);
        } else {
            fwrite(begin, 1, (size_t)(text - begin), out);
        }
    }
    putc('"', out);
}

void rrfp_trace_write_xml_text(FILE *out, const char *text)
{
    while (*text != '\0') {
        const char *begin = text;
        uint32_t character = next_character(&text);
        if (character == '&') {
            fputs("&amp;", out);
        } else if (character == '<') {
            fputs("&lt;", out);
        } else if (character == '>') {
            fputs("&gt;", out);
        } else if (character == '"') {
            fputs("&quot;", out);
        } else if (character < 0x20 || character == 0x7f || character == REPLACEMENT ||
                   character == 0xfffe || character == 0xffff) {
            fputs("&#xfffd;", out);
        } else {
            fwrite(begin, 1, (size_t)(text - begin), out);
        }
    }
}
