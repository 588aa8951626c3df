/* dataset_megatron.c - the stream follows the index, and every field of the index is checked. */
#include "data_files.h"

/* Three sequences in .bin as [30 31][10 11 12][20], but indexed as 10.., 20, 30... */
typedef struct index_fields {
    uint64_t version;
    uint8_t type;
    uint64_t sequences, documents;
    int32_t lengths[3];
    int64_t offsets[3];
    int64_t starts[3];
    bool with_modes;
    uint8_t modes[3];
} index_fields;

static const index_fields good = {.version = 1,
                                  .type = 8,
                                  .sequences = 3,
                                  .documents = 3,
                                  .lengths = {3, 1, 2},
                                  .offsets = {4, 10, 0},
                                  .starts = {0, 1, 3}};

static const int32_t good_stream[] = {10, 11, 12, 20, 30, 31};

static byte_buffer index_bytes(const index_fields *fields)
{
    byte_buffer buffer = {.count = 0};

    memcpy(buffer.bytes, "MMIDIDX\0\0", 9);
    buffer.count = 9;
    put(&buffer, fields->version, 8);
    put(&buffer, fields->type, 1);
    put(&buffer, fields->sequences, 8);
    put(&buffer, fields->documents, 8);
    for (int i = 0; i < 3; i++) {
        put(&buffer, (uint32_t)fields->lengths[i], 4);
    }
    for (int i = 0; i < 3; i++) {
        put(&buffer, (uint64_t)fields->offsets[i], 8);
    }
    for (int i = 0; i < 3; i++) {
        put(&buffer, (uint64_t)fields->starts[i], 8);
    }
    for (int i = 0; fields->with_modes && i < 3; i++) {
        put(&buffer, fields->modes[i], 1);
    }
    return buffer;
}

static void write_pair(const char *index_name, const char *bin_name, const index_fields *fields,
                       unsigned width)
{
    static const int tokens[] = {30, 31, 10, 11, 12, 20};
    byte_buffer index = index_bytes(fields);
    byte_buffer bin = {.count = 0};

    for (int i = 0; i < 6; i++) {
        put(&bin, (uint64_t)tokens[i], width);
    }
    write_file(index_name, index.bytes, index.count);
    write_file(bin_name, bin.bytes, bin.count);
}

static void refuse_index(const index_fields *fields, const char *field)
{
    write_pair("bad.idx", "bad.bin", fields, 2);
    refuse_file(path_of("bad"), RRFP_ERR_FORMAT, "bad.idx", field);
}

static void the_stream_follows_the_index(void **state)
{
    (void)state;
    write_pair("g.idx", "g.bin", &good, 2);
    check_stream(path_of("g"), 100, good_stream, 6);
    check_stream(path_of("g.idx"), 100, good_stream, 6);
    check_stream(path_of("g.bin"), 100, good_stream, 6);
}

static void every_whole_number_type_is_read(void **state)
{
    static const struct {
        uint8_t code;
        unsigned width;
    } types[] = {{1, 1}, {2, 1}, {3, 2}, {4, 4}, {5, 8}, {8, 2}};

    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        index_fields fields = good;
        fields.type = types[i].code;
        for (int s = 0; s < 3; s++) {
            fields.offsets[s] = good.offsets[s] / 2 * types[i].width;
        }
        write_pair("t.idx", "t.bin", &fields, types[i].width);
        check_stream(path_of("t"), 100, good_stream, 6);
    }
}

static void adjoining_and_empty_sequences_are_one_stream(void **state)
{
    static const int32_t expected[] = {30, 31, 10, 11, 12, 20};
    index_fields fields = good;

    (void)state;
    fields.lengths[0] = 4;
    fields.lengths[1] = 0;
    fields.lengths[2] = 2;
    fields.offsets[0] = 0;
    fields.offsets[1] = 8;
    fields.offsets[2] = 8;
    write_pair("e.idx", "e.bin", &fields, 2);
    check_stream(path_of("e"), 100, expected, 6);
}

static void samples_cross_segments(void **state)
{
    const char *paths[] = {path_of("x")};
    rrfp_dataset_config config = config_of(paths, 1, 2, 100);
    bool seen[2] = {false, false};
    rrfp_error error;

    (void)state;
    write_pair("x.idx", "x.bin", &good, 2);
    rrfp_dataset *dataset = open_files(&config);
    assert_string_equal(rrfp_dataset_format(dataset), "megatron");
    assert_int_equal(rrfp_dataset_samples(dataset, RRFP_SPLIT_TRAIN), 2); /* (6 - 1) / 2 */
    for (uint64_t i = 0; i < 2; i++) {
        int32_t tokens[2], targets[2];
        assert_int_equal(rrfp_dataset_sample(dataset, RRFP_SPLIT_TRAIN, i, tokens, targets, &error),
                         RRFP_OK);
        int which = tokens[0] == 10 ? 0 : 1;
        assert_memory_equal(tokens, good_stream + 2 * which, sizeof tokens);
        assert_memory_equal(targets, good_stream + 2 * which + 1, sizeof targets);
        seen[which] = true;
    }
    assert_true(seen[0] && seen[1]);
    rrfp_dataset_close(dataset);
}

static void foreign_tokens_are_named(void **state)
{
    index_fields fields = good;

    (void)state;
    write_pair("v.idx", "v.bin", &good, 2);
    /* 20 is the fourth of the stream, but element 5 of the file. */
    refuse_sample(path_of("v"), 20, 5, "v.bin", "token 5 is 20, outside the vocabulary of 20");
    fields.type = 3;
    byte_buffer index = index_bytes(&fields);
    byte_buffer bin = {.count = 0};
    put(&bin, 0x001f001e, 4);
    put(&bin, 0x000bfffe, 4); /* -2, 11 */
    put(&bin, 0x0014000c, 4);
    write_file("n.idx", index.bytes, index.count);
    write_file("n.bin", bin.bytes, bin.count);
    refuse_sample(path_of("n"), 100, 5, "n.bin", "token 2 is -2");
}

static void headers_are_checked(void **state)
{
    index_fields fields = good;
    byte_buffer index = index_bytes(&good);

    (void)state;
    write_pair("h.idx", "h.bin", &good, 2);
    index.bytes[0] = 'm';
    write_file("h.idx", index.bytes, index.count);
    refuse_file(path_of("h"), RRFP_ERR_FORMAT, "h.idx", "MMIDIDX");
    refuse_file(path_of("h.idx"), RRFP_ERR_FORMAT, "h.idx", "MMIDIDX");
    index.bytes[0] = 'M';
    write_file("h.idx", index.bytes, 33);
    refuse_file(path_of("h"), RRFP_ERR_FORMAT, "h.idx", "header of 34");
    fields.version = 2;
    refuse_index(&fields, "version 2");
    fields = good;
    fields.type = 6;
    refuse_index(&fields, "dtype code 6, floating point");
    fields.type = 7;
    refuse_index(&fields, "dtype code 7, floating point");
    fields.type = 9;
    refuse_index(&fields, "unknown dtype code 9");
    fields.type = 0;
    refuse_index(&fields, "unknown dtype code 0");
}

static void counts_are_checked(void **state)
{
    index_fields fields = good;

    (void)state;
    fields.sequences = 0;
    refuse_index(&fields, "sequence count of 0");
    fields.sequences = 6; /* 72 bytes would do, 60 are there */
    refuse_index(&fields, "sequence count of 6");
    fields.sequences = UINT64_C(0x1555555555555556); /* times 12 is 8 modulo 2^64 */
    refuse_index(&fields, "sequence count of 1537228672809129302");
    fields = good;
    fields.documents = 1;
    refuse_index(&fields, "document count of 1");
    fields.documents = 4;
    refuse_index(&fields, "document count of 4");
    fields.documents = UINT64_C(0x2000000000000003); /* times 8 is 24 modulo 2^64 */
    refuse_index(&fields, "document count of 2305843009213693955");
    fields.documents = 2;
    refuse_index(&fields, "8 bytes after its document index");
}

static void sequences_are_checked(void **state)
{
    index_fields fields = good;

    (void)state;
    fields.lengths[1] = -1;
    refuse_index(&fields, "sequence 1 has length -1");
    fields = good;
    fields.offsets[2] = 3;
    refuse_index(&fields, "sequence 2 has byte offset 3, not a multiple");
    fields = good;
    fields.offsets[0] = -2;
    refuse_index(&fields, "sequence 0 (byte offset -2, length 3) lies outside");
    fields = good;
    fields.offsets[1] = 12;
    refuse_index(&fields, "sequence 1 (byte offset 12, length 1) lies outside");
    fields.offsets[1] = INT64_MAX - 1;
    refuse_index(&fields, "sequence 1 (byte offset 9223372036854775806, length 1) lies outside");
    fields = good;
    fields.lengths[0] = INT32_MAX;
    refuse_index(&fields, "sequence 0 (byte offset 4, length 2147483647) lies outside");
}

static void document_starts_are_checked(void **state)
{
    index_fields fields = good;

    (void)state;
    fields.starts[0] = 1;
    refuse_index(&fields, "document 0 starts at sequence 1");
    fields = good;
    fields.starts[1] = 4;
    refuse_index(&fields, "document 1 starts at sequence 4");
    fields.starts[1] = -1;
    refuse_index(&fields, "document 1 starts at sequence -1");
    fields = good;
    fields.starts[1] = 2;
    fields.starts[2] = 1;
    refuse_index(&fields, "document 2 starts at sequence 1");
    fields.starts[2] = 2;
    refuse_index(&fields, "ends at sequence 2");
}

static void only_text_modes_are_read(void **state)
{
    index_fields fields = good;

    (void)state;
    fields.with_modes = true;
    write_pair("m.idx", "m.bin", &fields, 2);
    check_stream(path_of("m"), 100, good_stream, 6);
    fields.modes[1] = 1;
    write_pair("m.idx", "m.bin", &fields, 2);
    refuse_file(path_of("m"), RRFP_ERR_UNSUPPORTED, "m.idx", "sequence 1 has mode 1");
}

static void lone_halves_are_refused(void **state)
{
    byte_buffer index = index_bytes(&good);

    (void)state;
    write_file("lone.idx", index.bytes, index.count);
    refuse_file(path_of("lone"), RRFP_ERR_IO, "lone.bin", "No such file");
    refuse_file(path_of("lone.idx"), RRFP_ERR_IO, "lone.bin", "No such file");
    write_file("lone.bin", "", 0);
    refuse_file(path_of("lone"), RRFP_ERR_FORMAT, "lone.bin", "empty");
    write_file("half.bin", "abcdef", 6);
    refuse_file(path_of("half"), RRFP_ERR_IO, "half.bin", "half.idx");
    refuse_file(write_file("renamed", index.bytes, index.count), RRFP_ERR_INVALID, "renamed",
                "name it PREFIX.idx");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_stream_follows_the_index),
        cmocka_unit_test(every_whole_number_type_is_read),
        cmocka_unit_test(adjoining_and_empty_sequences_are_one_stream),
        cmocka_unit_test(samples_cross_segments),
        cmocka_unit_test(foreign_tokens_are_named),
        cmocka_unit_test(headers_are_checked),
        cmocka_unit_test(counts_are_checked),
        cmocka_unit_test(sequences_are_checked),
        cmocka_unit_test(document_starts_are_checked),
        cmocka_unit_test(only_text_modes_are_read),
        cmocka_unit_test(lone_halves_are_refused),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
