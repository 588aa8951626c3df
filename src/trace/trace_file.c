/* trace_file.c - complete-or-absent text files and the escaping of labels. */
#include "trace/trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint32_t REPLACEMENT = 0xfffd;

rrfp_status rrfp_trace_file_open(rrfp_trace_file *file, const char *path, rrfp_error *error)
{
    struct stat info;
    *file = (rrfp_trace_file){.path = path};
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        file->stream = fopen(path, "w");
    } else {
        if (asprintf(&file->temporary, "%s.tmp.%ld", path, (long)getpid()) < 0) {
            file->temporary = NULL;
            return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for '%s'", path);
        }
        int descriptor = open(file->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        file->stream = descriptor >= 0 ? fdopen(descriptor, "w") : NULL;
        if (file->stream == NULL && descriptor >= 0) {
            close(descriptor);
            unlink(file->temporary);
        }
    }
    if (file->stream == NULL) {
        rrfp_error_set(error, RRFP_ERR_IO, "cannot write '%s': %s", path, strerror(errno));
        free(file->temporary);
        return RRFP_ERR_IO;
    }
    return RRFP_OK;
}

rrfp_status rrfp_trace_file_commit(rrfp_trace_file *file, rrfp_error *error)
{
    int failure = 0;
    errno = 0;
    if (fflush(file->stream) != 0 || ferror(file->stream) ||
        (file->temporary != NULL && fsync(fileno(file->stream)) != 0)) {
        failure = errno != 0 ? errno : EIO;
    }
    if (fclose(file->stream) != 0 && failure == 0) {
        failure = errno;
    }
    if (file->temporary != NULL) {
        if (failure == 0 && rename(file->temporary, file->path) != 0) {
            failure = errno;
        }
        if (failure != 0) {
            unlink(file->temporary);
        }
        free(file->temporary);
    }
    if (failure != 0) {
        return rrfp_error_set(error, RRFP_ERR_IO, "cannot write '%s': %s", file->path,
                              strerror(failure));
    }
    return RRFP_OK;
}

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
