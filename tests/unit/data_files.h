/* data_files.h - a temporary directory, small files in it, and checks of what opening them says. */
#ifndef TESTS_DATA_FILES_H
#define TESTS_DATA_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "data/dataset.h"

static char test_directory[64];

static inline int make_directory(void **state)
{
    (void)state;
    strcpy(test_directory, "/tmp/rrfp-data-XXXXXX");
    return mkdtemp(test_directory) == NULL ? -1 : 0;
}

static inline int remove_directory(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", test_directory);
    return system(command) == 0 ? 0 : -1;
}

/* The path of `name` in the directory; eight are alive at a time. */
static inline const char *path_of(const char *name)
{
    static char paths[8][128];
    static unsigned next;
    char *path = paths[next++ % 8];

    snprintf(path, sizeof paths[0], "%s/%s", test_directory, name);
    return path;
}

static inline const char *write_file(const char *name, const void *bytes, size_t count)
{
    const char *path = path_of(name);
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
    return path;
}

/* Little-endian bytes put together field by field. */
typedef struct byte_buffer {
    uint8_t bytes[8192];
    size_t count;
} byte_buffer;

static inline void put(byte_buffer *buffer, uint64_t value, unsigned width)
{
    for (unsigned i = 0; i < width; i++) {
        assert_true(buffer->count < sizeof buffer->bytes);
        buffer->bytes[buffer->count++] = (uint8_t)(value >> (8 * i));
    }
}

static inline rrfp_dataset_config config_of(const char *const *paths, size_t count, uint32_t length,
                                            uint32_t vocab)
{
    rrfp_dataset_config config = {
        .paths = paths, .path_count = count, .seq_length = length, .vocab = vocab, .seed = 1};
    return config;
}

static inline rrfp_dataset *open_files(const rrfp_dataset_config *config)
{
    rrfp_dataset *dataset = NULL;
    rrfp_error error = {RRFP_OK, ""};

    if (rrfp_dataset_open(config, &dataset, &error) != RRFP_OK) {
        fail_msg("%s", error.text);
    }
    return dataset;
}

/* Opening must fail with `status`, in a line that holds both texts. */
static inline void refuse(const rrfp_dataset_config *config, rrfp_status status, const char *first,
                          const char *second)
{
    rrfp_dataset *dataset = NULL;
    rrfp_error error = {RRFP_OK, ""};

    assert_int_equal(rrfp_dataset_open(config, &dataset, &error), status);
    assert_null(dataset);
    if (strstr(error.text, first) == NULL || strstr(error.text, second) == NULL) {
        fail_msg("'%s' lacks '%s' or '%s'", error.text, first, second);
    }
}

static inline void refuse_file(const char *path, rrfp_status status, const char *name,
                               const char *field)
{
    const char *paths[] = {path};
    rrfp_dataset_config config = config_of(paths, 1, 2, 1000);

    refuse(&config, status, name, field);
}

/* The whole stream through sequences of one token, all but the last as inputs. */
static inline void check_stream(const char *path, uint32_t vocab, const int32_t *expected,
                                size_t count)
{
    const char *paths[] = {path};
    rrfp_dataset_config config = config_of(paths, 1, (uint32_t)count - 1, vocab);
    int32_t tokens[64], targets[64];
    rrfp_error error = {RRFP_OK, ""};
    rrfp_dataset *dataset = open_files(&config);

    assert_true(count <= 64);
    assert_int_equal(rrfp_dataset_tokens(dataset), count);
    assert_int_equal(rrfp_dataset_samples(dataset, RRFP_SPLIT_TRAIN), 1);
    if (rrfp_dataset_sample(dataset, RRFP_SPLIT_TRAIN, 0, tokens, targets, &error) != RRFP_OK) {
        fail_msg("%s", error.text);
    }
    assert_memory_equal(tokens, expected, (count - 1) * sizeof *expected);
    assert_memory_equal(targets, expected + 1, (count - 1) * sizeof *expected);
    rrfp_dataset_close(dataset);
}

/* The only sample cannot be drawn; the line names the file and the place. */
static inline void refuse_sample(const char *path, uint32_t vocab, uint32_t length,
                                 const char *name, const char *place)
{
    const char *paths[] = {path};
    rrfp_dataset_config config = config_of(paths, 1, length, vocab);
    int32_t tokens[64], targets[64];
    rrfp_error error = {RRFP_OK, ""};
    rrfp_dataset *dataset = open_files(&config);

    assert_int_equal(rrfp_dataset_sample(dataset, RRFP_SPLIT_TRAIN, 0, tokens, targets, &error),
                     RRFP_ERR_FORMAT);
    if (strstr(error.text, name) == NULL || strstr(error.text, place) == NULL) {
        fail_msg("'%s' lacks '%s' or '%s'", error.text, name, place);
    }
    rrfp_dataset_close(dataset);
}

#endif /* TESTS_DATA_FILES_H */
