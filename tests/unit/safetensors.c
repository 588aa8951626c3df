/* safetensors.c - the container: what is written is read, and what is wrong is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint/safetensors.h"

static rrfp_error error;

/* Header text and data as a file in memory; *given*. */
static unsigned char *file_of(const char *header, size_t data_bytes, size_t *size)
{
    size_t length = strlen(header);
    unsigned char *bytes = calloc(1, 8 + length + data_bytes + 1);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)((uint64_t)length >> (8 * i));
    }
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++) {
        bytes[8 + length + i] = (unsigned char)i;
    }
    *size = 8 + length + data_bytes;
    return bytes;
}

static void refused(const char *header, size_t data_bytes, const char *why)
{
    size_t size;
    rrfp_safetensors *file = NULL;
    unsigned char *bytes = file_of(header, data_bytes, &size);
    assert_int_not_equal(rrfp_safetensors_open_memory("f.safetensors", bytes, size, &file, &error),
                         RRFP_OK);
    if (strstr(error.text, why) == NULL || strstr(error.text, "f.safetensors") == NULL) {
        fail_msg("%s: said \"%s\", expected \"%s\"", header, error.text, why);
    }
    free(bytes);
}

static void reads_a_foreign_file(void **state)
{
    (void)state;
    size_t size;
    rrfp_safetensors *file = NULL;
    unsigned char *bytes =
        file_of("{\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[2,10]},"
                "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                "\"empty\":{\"dtype\":\"I64\",\"shape\":[0,3],\"data_offsets\":[10,10]},"
                "\"scalar\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[10,12]},"
                "\"__metadata__\":{\"format\":\"pt\"}}  ",
                12, &size);
    assert_int_equal(rrfp_safetensors_open_memory("f", bytes, size, &file, &error), RRFP_OK);
    assert_int_equal(rrfp_safetensors_count(file), 4);
    const rrfp_tensor_view *b = rrfp_safetensors_find(file, "b");
    assert_int_equal(b->ndim, 2);
    assert_int_equal(b->dims[0], 2);
    assert_int_equal(b->bytes, 8);
    assert_int_equal(((const unsigned char *)b->data)[0], 2);
    assert_int_equal(rrfp_safetensors_find(file, "scalar")->bytes, 2);
    assert_null(rrfp_safetensors_find(file, "c"));
    assert_string_equal(rrfp_safetensors_metadata(file, "format"), "pt");
    assert_null(rrfp_safetensors_metadata(file, "other"));
    rrfp_safetensors_close(file);
    free(bytes);
}

static void refuses_what_is_wrong(void **state)
{
    (void)state;
    refused("[]", 0, "does not start with '{'");
    refused("{\"a\":1}", 0, "dtype, shape and data_offsets");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
            "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
            8, "duplicate");
    refused("{\"a\":{\"dtype\":\"F99\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "F99");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "need 8");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 3, "truncated");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5,
            "bytes behind the last tensor");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "hole");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
            "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}",
            6, "overlaps");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "range");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "whole number");
    refused("{\"a\":{\"dtype\":\"F64\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0,
            "overflows");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
            "dimensions");
    refused("{\"__metadata__\":{\"a\":1}}", 0, "not a string");
    refused("{\"a\":", 0, "header");
    rrfp_safetensors *file = NULL;
    unsigned char huge[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, '{', '}'};
    assert_int_equal(rrfp_safetensors_open_memory("f", huge, 10, &file, &error), RRFP_ERR_FORMAT);
    assert_int_equal(rrfp_safetensors_open_memory("f", huge, 3, &file, &error), RRFP_ERR_FORMAT);
    assert_int_equal(rrfp_safetensors_open("/nonexistent/x", &file, &error), RRFP_ERR_IO);
    assert_int_equal(rrfp_safetensors_open("/tmp", &file, &error), RRFP_ERR_IO);
}

static void writes_what_it_reads(void **state)
{
    (void)state;
    char path[] = "/tmp/rrfp-safetensors-XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    const float z[3] = {1.0f, -2.5f, 3.0f}, a[2] = {0.5f, 0.25f};
    const rrfp_tensor_view tensors[2] = {
        {"z \"quoted\"", RRFP_DTYPE_F32, 1, {3}, sizeof z, z},
        {"a", RRFP_DTYPE_F32, 2, {1, 2}, sizeof a, a},
    };
    const rrfp_metadata_pair pair = {"key", "value"};
    rrfp_safetensors *file = NULL;
    char written[65], read[65];
    assert_int_equal(rrfp_safetensors_write(path, tensors, 2, &pair, 1, &error), RRFP_OK);
    assert_int_equal(rrfp_safetensors_open(path, &file, &error), RRFP_OK);
    assert_memory_equal(rrfp_safetensors_find(file, "z \"quoted\"")->data, z, sizeof z);
    assert_memory_equal(rrfp_safetensors_find(file, "a")->data, a, sizeof a);
    assert_int_equal(rrfp_safetensors_find(file, "a")->dims[1], 2);
    assert_string_equal(rrfp_safetensors_metadata(file, "key"), "value");
    /* Data starts at a multiple of 8, in order of names: "a" first. */
    assert_int_equal((uintptr_t)rrfp_safetensors_find(file, "a")->data % 8, 0);
    assert_int_equal(rrfp_tensors_sha256(tensors, 2, written, &error), RRFP_OK);
    rrfp_safetensors_data_sha256(file, read);
    assert_string_equal(written, read);
    rrfp_safetensors_close(file);
    unlink(path);
    assert_int_equal(rrfp_safetensors_write("/nonexistent/x", tensors, 2, &pair, 1, &error),
                     RRFP_ERR_IO);
    assert_non_null(strstr(error.text, "/nonexistent/x"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_foreign_file),
        cmocka_unit_test(refuses_what_is_wrong),
        cmocka_unit_test(writes_what_it_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
