/*
 * checkpoint.c - directories: round trip, every kind of damage refused by name,
 * nothing lost when a save fails.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_config.h"

enum { TENSORS = 3 };

static rrfp_error error;
static char dir[64], iteration_dir[128];

static float values[TENSORS][12], grads[12], avg[TENSORS][12], avg_sq[TENSORS][12];
static rrfp_param params[TENSORS];
static rrfp_checkpoint_entry entries[TENSORS];
static rrfp_model_config model;

static void fill(float base)
{
    static const char *const names[TENSORS] = {"wte.weight", "h.1.ln_1.weight", "h.10.ln_1.weight"};
    for (int i = 0; i < TENSORS; i++) {
        memset(&params[i], 0, sizeof params[i]);
        snprintf(params[i].name, sizeof params[i].name, "%s", names[i]);
        params[i].ndim = i == 0 ? 2 : 1;
        params[i].dims[0] = i == 0 ? 3 : 4;
        params[i].dims[1] = i == 0 ? 4 : 0;
        params[i].count = i == 0 ? 12 : 4;
        params[i].global_index = (uint32_t)i;
        params[i].value = values[i];
        params[i].grad = grads;
        for (int k = 0; k < 12; k++) {
            values[i][k] = base + (float)(100 * i + k);
            avg[i][k] = values[i][k] * 0.5f;
            avg_sq[i][k] = values[i][k] * 0.25f;
        }
        entries[i] = (rrfp_checkpoint_entry){&params[i], avg[i], avg_sq[i], false};
    }
    model = (rrfp_model_config){.arch = RRFP_ARCH_GPT2, .num_layers = 11, .hidden = 4, .heads = 2,
                                .kv_heads = 2, .ffn_hidden = 16, .vocab = 3, .max_positions = 8,
                                .norm_eps = 1e-5f, .tied = true};
}

static rrfp_checkpoint_state state_of(uint64_t iteration)
{
    return (rrfp_checkpoint_state){.iteration = iteration, .consumed_samples = iteration * 8,
                                   .adam_step = iteration - 1, .seed = 7, .skipped_iterations = 1,
                                   .nan_iterations = 1};
}

static void save(uint64_t iteration)
{
    rrfp_checkpoint_state saved = state_of(iteration);
    if (rrfp_checkpoint_save(dir, &model, &saved, entries, TENSORS, &error) != RRFP_OK) {
        fail_msg("%s", error.text);
    }
    assert_int_equal(rrfp_checkpoint_resolve(dir, iteration_dir, sizeof iteration_dir, &error),
                     RRFP_OK);
}

static rrfp_status load(rrfp_checkpoint_state *state)
{
    rrfp_status status = rrfp_checkpoint_resolve(dir, iteration_dir, sizeof iteration_dir, &error);
    return status != RRFP_OK
               ? status
               : rrfp_checkpoint_load(iteration_dir, entries, TENSORS, true, state, &error);
}

/* Loading must fail, name `why`, and leave the values alone. */
static void load_refused(const char *why)
{
    rrfp_checkpoint_state state = {0};
    float before[TENSORS][12];
    memcpy(before, values, sizeof before);
    assert_int_not_equal(load(&state), RRFP_OK);
    if (strstr(error.text, why) == NULL) {
        fail_msg("said \"%s\", expected \"%s\"", error.text, why);
    }
    assert_memory_equal(before, values, sizeof before);
}

static char *path_in(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", iteration_dir, name);
    return path;
}

static void change_byte(const char *name, long from_end)
{
    FILE *file = fopen(path_in(name), "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, from_end, SEEK_END), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, from_end, SEEK_END), 0);
    fputc(byte ^ 1, file);
    fclose(file);
}

static int set_up(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/rrfp-checkpoint-XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int tear_down(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

static void round_trip(void **state)
{
    (void)state;
    float kept[3][TENSORS][12];
    fill(1.0f);
    memcpy(kept[0], values, sizeof values);
    memcpy(kept[1], avg, sizeof avg);
    memcpy(kept[2], avg_sq, sizeof avg_sq);
    save(5);
    save(5); /* again over the same iteration */
    fill(9.0f);
    rrfp_checkpoint_state got;
    assert_int_equal(load(&got), RRFP_OK);
    for (int i = 0; i < TENSORS; i++) {
        size_t bytes = params[i].count * sizeof(float);
        assert_memory_equal(values[i], kept[0][i], bytes);
        assert_memory_equal(avg[i], kept[1][i], bytes);
        assert_memory_equal(avg_sq[i], kept[2][i], bytes);
    }
    assert_int_equal(got.iteration, 5);
    assert_int_equal(got.consumed_samples, 40);
    assert_int_equal(got.adam_step, 4);
    assert_int_equal(got.seed, 7);
    assert_int_equal(got.skipped_iterations, 1);
    rrfp_model_config read;
    assert_int_equal(rrfp_checkpoint_read_config(iteration_dir, &read, &error), RRFP_OK);
    assert_int_equal(read.num_layers, 11);
    assert_int_equal(read.vocab, 3);
    assert_true(read.tied);
}

static void damage_is_named(void **state)
{
    (void)state;
    fill(1.0f);
    save(1);
    change_byte("model.safetensors", -3);
    load_refused("does not match its SHA-256");
    save(1);
    change_byte("optimizer.safetensors", -3);
    load_refused("optimizer.safetensors: its data does not match");
    save(1);
    assert_int_equal(truncate(path_in("model.safetensors"), 300), 0);
    load_refused("truncated");
    save(1);
    unlink(path_in("model.safetensors"));
    load_refused("is missing");
    save(1);
    snprintf(params[1].name, sizeof params[1].name, "h.100.ln_1.weight"); /* not h.1, not h.10 */
    load_refused("h.1.ln_1.weight has no place");
    fill(1.0f);
    params[2].dims[0] = params[2].count = 3;
    load_refused("h.10.ln_1.weight has shape (4, 1), the model needs (3, 1)");
    fill(1.0f);
    assert_int_equal(rrfp_checkpoint_load(iteration_dir, entries, TENSORS - 1, true,
                                          &(rrfp_checkpoint_state){0}, &error),
                     RRFP_ERR_FORMAT);
    assert_non_null(strstr(error.text, "h.10.ln_1.weight has no place"));
}

static void files_of_different_saves_do_not_mix(void **state)
{
    (void)state;
    char from[256], command[600];
    fill(1.0f);
    save(1);
    snprintf(from, sizeof from, "%s", path_in("optimizer.safetensors"));
    fill(2.0f);
    save(2);
    snprintf(command, sizeof command, "cp '%s' '%s'", from, path_in("optimizer.safetensors"));
    assert_int_equal(system(command), 0);
    load_refused("different saves");
}

static void a_failed_save_keeps_the_old_one(void **state)
{
    (void)state;
    fill(1.0f);
    save(3);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 200; /* as a full disk: the model file does not fit */
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    rrfp_checkpoint_state saved = state_of(4);
    fill(2.0f);
    rrfp_status status = rrfp_checkpoint_save(dir, &model, &saved, entries, TENSORS, &error);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, RRFP_ERR_IO);
    assert_non_null(strstr(error.text, "cannot write"));
    rrfp_checkpoint_state got;
    assert_int_equal(load(&got), RRFP_OK);
    assert_int_equal(got.iteration, 3);
    char command[160];
    snprintf(command, sizeof command, "ls '%s' | grep -q tmp-", dir);
    assert_int_not_equal(system(command), 0); /* nothing left behind */
}

static void a_dead_process_leaves_nothing_behind(void **state)
{
    (void)state;
    char stale[160];
    fill(1.0f);
    save(1);
    snprintf(stale, sizeof stale, "%s/iter_0000002.tmp-2147483646", dir);
    assert_int_equal(mkdir(stale, 0777), 0);
    save(2);
    assert_int_not_equal(access(stale, F_OK), 0);
}

static void places_that_hold_no_checkpoint(void **state)
{
    (void)state;
    char path[256];
    assert_int_equal(rrfp_checkpoint_resolve(dir, path, sizeof path, &error), RRFP_ERR_IO);
    assert_non_null(strstr(error.text, dir));
    snprintf(path, sizeof path, "%s/latest_checkpointed_iteration.txt", dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("12x\n", file);
    fclose(file);
    assert_int_equal(rrfp_checkpoint_resolve(dir, path, sizeof path, &error), RRFP_ERR_FORMAT);
    fill(1.0f);
    rrfp_checkpoint_state saved = state_of(1);
    assert_int_equal(rrfp_checkpoint_save("/proc/x/y", &model, &saved, entries, TENSORS, &error),
                     RRFP_ERR_IO);
    assert_non_null(strstr(error.text, "/proc/x"));
}

/* The one config.json of `dir`; returns its path. */
static const char *write_config(const char *json)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(json, file);
    fclose(file);
    return path;
}

static void config_refused(const char *json, const char *why)
{
    rrfp_model_config read;
    const char *path = write_config(json);
    assert_int_not_equal(rrfp_hf_config_read(path, &read, &error), RRFP_OK);
    if (strstr(error.text, why) == NULL) {
        fail_msg("said \"%s\", expected \"%s\"", error.text, why);
    }
}

static void foreign_configs(void **state)
{
    (void)state;
    char path[160];
    rrfp_model_config llama = {.arch = RRFP_ARCH_LLAMA, .num_layers = 2, .hidden = 16, .heads = 4,
                               .kv_heads = 2, .ffn_hidden = 48, .vocab = 50, .max_positions = 32,
                               .norm_eps = 1e-6f, .rope_theta = 500000.0f, .tied = false};
    rrfp_model_config read;
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(rrfp_hf_config_write(path, &llama, &error), RRFP_OK);
    assert_int_equal(rrfp_hf_config_read(path, &read, &error), RRFP_OK);
    assert_memory_equal(&llama, &read, sizeof read);

    /* As version 5 of transformers writes it. */
    write_config("{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":16,"
                 "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":48,"
                 "\"vocab_size\":50,\"max_position_embeddings\":32,\"rope_parameters\":"
                 "{\"rope_type\":\"default\",\"rope_theta\":500000.0}}");
    assert_int_equal(rrfp_hf_config_read(path, &read, &error), RRFP_OK);
    assert_memory_equal(&llama, &read, sizeof read);

    config_refused("{\"model_type\":\"bert\"}", "model_type");
    config_refused("{\"model_type\":\"gpt2\",\"scale_attn_weights\":false}",
                   "scale_attn_weights");
    config_refused("{\"model_type\":\"llama\",\"rope_parameters\":{\"rope_type\":\"yarn\"}}",
                   "rope_parameters");
    config_refused("{\"model_type\":\"llama\",\"rope_parameters\":[]}", "rope_parameters");
    config_refused("{\"model_type\":\"llama\",\"rope_parameters\":{\"rope_type\":\"default\","
                   "\"partial_rotary_factor\":0.5}}",
                   "partial_rotary_factor");
    config_refused("{\"model_type\":\"llama\",\"rope_parameters\":{\"rope_type\":\"default\","
                   "\"rope_theta\":\"x\"}}",
                   "rope_theta");
    config_refused("{\"model_type\":\"gpt2\",\"activation_function\":\"relu\"}",
                   "activation_function");
    config_refused("{\"model_type\":\"gpt2\",\"n_layer\":0}", "n_layer");
    config_refused("{\"model_type\":\"llama\",\"rope_scaling\":{\"type\":\"linear\"}}",
                   "rope_scaling");
    config_refused("{\"model_type\":", "line 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(round_trip, set_up, tear_down),
        cmocka_unit_test_setup_teardown(damage_is_named, set_up, tear_down),
        cmocka_unit_test_setup_teardown(files_of_different_saves_do_not_mix, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_failed_save_keeps_the_old_one, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_dead_process_leaves_nothing_behind, set_up, tear_down),
        cmocka_unit_test_setup_teardown(places_that_hold_no_checkpoint, set_up, tear_down),
        cmocka_unit_test_setup_teardown(foreign_configs, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
