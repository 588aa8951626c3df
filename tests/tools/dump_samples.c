/*
 * dump_samples.c - the training samples of a run as raw int32, for parity scripts.
 *
 *   dump_samples TEXT T COUNT SEED VALID_FRACTION >OUT
 *
 * Byte tokenizer; T + 1 tokens a sample: the inputs and the last target.
 */
#include <stdio.h>
#include <stdlib.h>

#include "data/dataset.h"

int main(int argc, char **argv)
{
    rrfp_error error = {RRFP_OK, "usage: dump_samples TEXT T COUNT SEED VALID_FRACTION"};
    rrfp_tokenizer *tokenizer = NULL;
    rrfp_dataset *dataset = NULL;
    rrfp_status status = argc == 6 ? rrfp_tokenizer_open_byte(&tokenizer, &error)
                                   : RRFP_ERR_INVALID;
    uint32_t t = argc == 6 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
    int32_t *tokens = calloc(2 * (size_t)t + 1, sizeof *tokens);
    if (status == RRFP_OK) {
        const char *path = argv[1];
        rrfp_dataset_config config = {.paths = &path, .path_count = 1, .tokenizer = tokenizer,
                                      .seq_length = t, .vocab = 256,
                                      .valid_fraction = strtod(argv[5], NULL),
                                      .seed = strtoull(argv[4], NULL, 10)};
        status = rrfp_dataset_open(&config, &dataset, &error);
    }
    for (uint64_t i = 0; status == RRFP_OK && i < strtoull(argv[3], NULL, 10); i++) {
        status = rrfp_dataset_sample(dataset, RRFP_SPLIT_TRAIN, i, tokens, tokens + t, &error);
        if (status == RRFP_OK) {
            fwrite(tokens, sizeof *tokens, t, stdout);
            fwrite(tokens + 2 * (size_t)t - 1, sizeof *tokens, 1, stdout);
        }
    }
    if (status != RRFP_OK) {
        fprintf(stderr, "dump_samples: %s\n", error.text);
    }
    rrfp_dataset_close(dataset);
    rrfp_tokenizer_close(tokenizer);
    free(tokens);
    return status != RRFP_OK;
}
