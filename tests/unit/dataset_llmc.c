/* dataset_llmc.c - llm.c shards of both kinds, and every way in which one can be wrong. */
#include "data_files.h"

static byte_buffer shard(uint32_t magic, uint32_t version, uint32_t count)
{
    byte_buffer buffer = {.count = 0};

    put(&buffer, magic, 4);
    put(&buffer, version, 4);
    put(&buffer, count, 4);
    while (buffer.count < 1024) {
        put(&buffer, 0, 4);
    }
    return buffer;
}

static void gpt2_shards_hold_16_bits(void **state)
{
    static const int32_t expected[] = {1, 50256, 65535, 0, 258};
    byte_buffer buffer = shard(20240520, 1, 5);

    (void)state;
    for (int i = 0; i < 5; i++) {
        put(&buffer, (uint64_t)expected[i], 2);
    }
    const char *path = write_file("gpt2.bin", buffer.bytes, buffer.count);
    check_stream(path, 65536, expected, 5);
    refuse_sample(path, 50257, 4, "gpt2.bin", "token 2 is 65535");
}

static void llama_shards_hold_32_bits(void **state)
{
    static const int32_t expected[] = {128000, 7, 70000};
    byte_buffer buffer = shard(20240801, 7, 3);

    (void)state;
    for (int i = 0; i < 3; i++) {
        put(&buffer, (uint64_t)expected[i], 4);
    }
    check_stream(write_file("llama.bin", buffer.bytes, buffer.count), 128256, expected, 3);
    buffer.bytes[1024 + 4 + 3] = 0xff; /* token 1 becomes 0xff000007, not a negative number */
    refuse_sample(write_file("llama.bin", buffer.bytes, buffer.count), 128256, 2, "llama.bin",
                  "token 1 is 4278190087");
}

static void format_is_told(void **state)
{
    byte_buffer buffer = shard(20240520, 1, 4);
    rrfp_dataset *dataset = NULL;

    (void)state;
    put(&buffer, 0x0004000300020001, 8);
    /* The name does not matter. */
    const char *paths[] = {write_file("tokens", buffer.bytes, buffer.count)};
    rrfp_dataset_config config = config_of(paths, 1, 1, 10);
    dataset = open_files(&config);
    assert_string_equal(rrfp_dataset_format(dataset), "llm.c");
    rrfp_dataset_close(dataset);
}

static void shards_join_in_order(void **state)
{
    byte_buffer first = shard(20240520, 1, 2);
    byte_buffer second = shard(20240801, 7, 3);
    int32_t tokens[4], targets[4];
    rrfp_error error;

    (void)state;
    put(&first, 1, 2);
    put(&first, 2, 2);
    put(&second, 3, 4);
    put(&second, 4, 4);
    put(&second, 5, 4);
    const char *paths[] = {write_file("a.bin", first.bytes, first.count),
                           write_file("b.bin", second.bytes, second.count)};
    rrfp_dataset_config config = config_of(paths, 2, 4, 10);
    rrfp_dataset *dataset = open_files(&config);
    assert_int_equal(rrfp_dataset_sample(dataset, RRFP_SPLIT_TRAIN, 0, tokens, targets, &error),
                     RRFP_OK);
    static const int32_t expected[] = {1, 2, 3, 4, 5};
    assert_memory_equal(tokens, expected, sizeof tokens);
    assert_memory_equal(targets, expected + 1, sizeof targets);
    rrfp_dataset_close(dataset);
    config.vocab = 5; /* the place is that inside its own file */
    dataset = open_files(&config);
    assert_int_equal(rrfp_dataset_sample(dataset, RRFP_SPLIT_TRAIN, 0, tokens, targets, &error),
                     RRFP_ERR_FORMAT);
    assert_non_null(strstr(error.text, "b.bin': token 2 is 5"));
    rrfp_dataset_close(dataset);
}

static void damaged_shards_are_refused(void **state)
{
    byte_buffer buffer = shard(20240520, 2, 4);

    (void)state;
    put(&buffer, 0, 8);
    refuse_file(write_file("s.bin", buffer.bytes, buffer.count), RRFP_ERR_FORMAT, "s.bin",
                "version 2; version 1");
    buffer = shard(20240801, 1, 4);
    put(&buffer, 0, 8);
    put(&buffer, 0, 8);
    refuse_file(write_file("s.bin", buffer.bytes, buffer.count), RRFP_ERR_FORMAT, "s.bin",
                "version 1; version 7");
    buffer = shard(20240520, 1, 4);
    refuse_file(write_file("s.bin", buffer.bytes, 1023), RRFP_ERR_FORMAT, "s.bin",
                "header of 1024");
    put(&buffer, 0, 8);
    refuse_file(write_file("s.bin", buffer.bytes, buffer.count - 1), RRFP_ERR_FORMAT, "s.bin",
                "token count 4 means 1032");
    refuse_file(write_file("s.bin", buffer.bytes, buffer.count + 1), RRFP_ERR_FORMAT, "s.bin",
                "has 1033 bytes");
    buffer = shard(20240520, 1, 0);
    refuse_file(write_file("s.bin", buffer.bytes, buffer.count), RRFP_ERR_FORMAT, "s.bin",
                "token count of 0");
    buffer = shard(20240520, 1, 0xffffffff);
    refuse_file(write_file("s.bin", buffer.bytes, buffer.count), RRFP_ERR_FORMAT, "s.bin",
                "token count of -1");
    buffer = shard(20240801, 7, 0x7fffffff);
    refuse_file(write_file("s.bin", buffer.bytes, buffer.count), RRFP_ERR_FORMAT, "s.bin",
                "means 8589935612"); /* 1024 + 4 * 2147483647 */
}

static void other_bin_files_are_refused(void **state)
{
    (void)state;
    refuse_file(write_file("lost.bin", "\1\0\2\0\3\0\4\0", 8), RRFP_ERR_FORMAT, "lost.bin",
                "no llm.c shard, and has no Megatron index");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_shards_hold_16_bits),
        cmocka_unit_test(llama_shards_hold_32_bits),
        cmocka_unit_test(format_is_told),
        cmocka_unit_test(shards_join_in_order),
        cmocka_unit_test(damaged_shards_are_refused),
        cmocka_unit_test(other_bin_files_are_refused),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
