/*
 * bpe_encode.c - encodes a file and writes its token ids to stdout as i32, for bpe_test.py.
 *
 * usage: bpe_encode VOCAB MERGES TEXT
 */
#include <stdio.h>
#include <stdlib.h>

#include "data/file_map.h"
#include "data/tokenizer.h"

int main(int argc, char **argv)
{
    rrfp_tokenizer *tokenizer = NULL;
    rrfp_file_map text = {NULL, 0};
    int32_t *ids = NULL;
    size_t count = 0, written = 0;
    rrfp_error error = {RRFP_ERR_INVALID, "usage: bpe_encode VOCAB MERGES TEXT"};
    rrfp_status status = RRFP_ERR_INVALID;

    if (argc == 4) {
        status = rrfp_tokenizer_open_bpe(argv[1], argv[2], &tokenizer, &error);
    }
    if (status == RRFP_OK) {
        status = rrfp_file_map_open(argv[3], &text, &error);
    }
    if (status == RRFP_OK) {
        status = rrfp_tokenizer_encode(tokenizer, (const char *)text.bytes, text.size_bytes, &ids,
                                       &count, &error);
    }
    if (status != RRFP_OK) {
        fprintf(stderr, "%s\n", error.text);
    } else {
        written = fwrite(ids, sizeof *ids, count, stdout);
    }
    free(ids);
    rrfp_file_map_close(&text);
    rrfp_tokenizer_close(tokenizer);
    return status == RRFP_OK && written == count && fflush(stdout) == 0 ? 0 : 1;
}
