/*
 * fuzz_dataset.c - token files from hostile bytes.
 *
 * The input is written to a memory-backed file and opened as a Megatron index over a
 * fixed .bin, or as an llm.c shard where its magic says so.  Whatever opens must give
 * its first samples, or refuse them, inside the file.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/dataset.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char index_path[128], bin_path[128];

static void write_all(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");

    if (file == NULL || fwrite(bytes, 1, size, file) != size || fclose(file) != 0) {
        abort();
    }
}

static void clean_up(void)
{
    unlink(index_path);
    unlink(bin_path);
    *strrchr(index_path, '/') = '\0';
    rmdir(index_path);
}

static void make_directory(void)
{
    static const uint8_t tokens[64] = {1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0};
    char directory[] = "/dev/shm/rrfp-fuzz-XXXXXX";

    if (mkdtemp(directory) == NULL) {
        abort();
    }
    snprintf(index_path, sizeof index_path, "%s/x.idx", directory);
    snprintf(bin_path, sizeof bin_path, "%s/x.bin", directory);
    write_all(bin_path, tokens, sizeof tokens);
    atexit(clean_up);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char shard_path[160];
    rrfp_dataset *dataset = NULL;
    rrfp_error error;

    if (index_path[0] == '\0') {
        make_directory();
        snprintf(shard_path, sizeof shard_path, "%.*s/shard",
                 (int)(strrchr(index_path, '/') - index_path), index_path);
    }
    /* 20240520 and 20240801, little-endian. */
    const int shard = size >= 4 && (memcmp(data, "\x88\xd8\x34\x01", 4) == 0 ||
                                    memcmp(data, "\xa1\xd9\x34\x01", 4) == 0);
    const char *path = shard ? shard_path : index_path;
    write_all(path, data, size);
    const rrfp_dataset_config config = {.paths = &path,
                                        .path_count = 1,
                                        .seq_length = 3,
                                        .vocab = 1000,
                                        .valid_fraction = 0.2,
                                        .seed = 1};
    if (rrfp_dataset_open(&config, &dataset, &error) == RRFP_OK) {
        int32_t tokens[3], targets[3];
        for (uint64_t i = 0; i < 32; i++) {
            (void)rrfp_dataset_sample(dataset, i % 2 == 0 ? RRFP_SPLIT_TRAIN : RRFP_SPLIT_VALID, i,
                                      tokens, targets, &error);
        }
        (void)rrfp_dataset_unigram_entropy(dataset);
        rrfp_dataset_close(dataset);
    }
    if (shard) {
        unlink(shard_path);
    }
    return 0;
}
