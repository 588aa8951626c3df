/* checkpoint_save.c - an iteration's directory, whole or not at all; see checkpoint.h. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/sha256.h"

static rrfp_status failed(const char *verb, const char *path, rrfp_error *error)
{
    int number = errno;
    return rrfp_error_set(error, RRFP_ERR_IO, "cannot %s %s: %s", verb, path, strerror(number));
}

static rrfp_status join(char *out, size_t bytes, const char *dir, const char *name,
                        rrfp_error *error)
{
    int length = snprintf(out, bytes, "%s/%s", dir, name);
    if (length < 0 || (size_t)length >= bytes) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "path %.100s/%.60s is too long", dir, name);
    }
    return RRFP_OK;
}

/* Our own directories hold plain files only. */
static void remove_directory(const char *path)
{
    char name[RRFP_PATH_BYTES];
    DIR *dir = opendir(path);
    struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            join(name, sizeof name, path, entry->d_name, NULL) == RRFP_OK) {
            unlink(name);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    rmdir(path);
}

/* What a process that died while saving left: iter_0000100.tmp-PID, with no such PID now. */
static void remove_stale(const char *path)
{
    char name[RRFP_PATH_BYTES];
    DIR *dir = opendir(path);
    struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        const char *mark = strstr(entry->d_name, ".tmp-");
        if (strncmp(entry->d_name, "iter_", 5) != 0 || mark == NULL ||
            !isdigit((unsigned char)mark[5])) {
            continue;
        }
        long pid = strtol(mark + 5, NULL, 10);
        bool gone = pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
        if (gone && join(name, sizeof name, path, entry->d_name, NULL) == RRFP_OK) {
            remove_directory(name);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
}

static rrfp_tensor_view view_of(const rrfp_param *param, const char *name, const float *data)
{
    rrfp_tensor_view view = {.name = name,
                             .dtype = RRFP_DTYPE_F32,
                             .ndim = param->ndim,
                             .dims = {param->dims[0], param->dims[1]},
                             .bytes = param->count * sizeof(float),
                             .data = data};
    return view;
}

static rrfp_status write_tensors(const char *dir, const char *file, const rrfp_tensor_view *views,
                                 size_t count, rrfp_metadata_pair *metadata, size_t metadata_count,
                                 char sha256[65], rrfp_error *error)
{
    char path[RRFP_PATH_BYTES];
    rrfp_status status = join(path, sizeof path, dir, file, error);
    if (status == RRFP_OK) {
        status = rrfp_tensors_sha256(views, count, sha256, error);
    }
    metadata[0] = (rrfp_metadata_pair){"rrfp_sha256", sha256};
    if (status == RRFP_OK) {
        status = rrfp_safetensors_write(path, views, count, metadata, metadata_count, error);
    }
    return status;
}

static rrfp_status write_model(const char *dir, const rrfp_checkpoint_entry *entries, size_t count,
                               char sha256[65], rrfp_error *error)
{
    rrfp_tensor_view *views = calloc(count + 1, sizeof *views);
    rrfp_metadata_pair metadata[2] = {{NULL, NULL}, {"format", "pt"}};
    size_t used = 0;
    if (views == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for %zu tensors", count);
    }
    for (size_t i = 0; i < count; i++) {
        const rrfp_param *param = entries[i].param;
        if (!param->tied_copy) {
            views[used++] = view_of(param, param->name, param->value);
        }
    }
    rrfp_status status =
        write_tensors(dir, "model.safetensors", views, used, metadata, 2, sha256, error);
    free(views);
    return status;
}

typedef struct moment_name {
    char text[112];
} moment_name;

static rrfp_status write_optimizer(const char *dir, const rrfp_checkpoint_state *state,
                                   const rrfp_checkpoint_entry *entries, size_t count,
                                   const char *model_sha256, rrfp_error *error)
{
    rrfp_tensor_view *views = calloc(2 * count + 1, sizeof *views);
    moment_name *names = calloc(2 * count + 1, sizeof *names);
    char numbers[6][24], sha256[65];
    size_t used = 0;
    if (views == NULL || names == NULL) {
        free(views);
        free(names);
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for %zu tensors", count);
    }
    for (size_t i = 0; i < count; i++) {
        const rrfp_checkpoint_entry *entry = &entries[i];
        if (entry->param->tied_copy || entry->exp_avg == NULL) {
            continue;
        }
        snprintf(names[used].text, sizeof names[used].text, "%s.exp_avg", entry->param->name);
        views[used] = view_of(entry->param, names[used].text, entry->exp_avg);
        used++;
        snprintf(names[used].text, sizeof names[used].text, "%s.exp_avg_sq", entry->param->name);
        views[used] = view_of(entry->param, names[used].text, entry->exp_avg_sq);
        used++;
    }
    snprintf(numbers[0], sizeof numbers[0], "%" PRIu64, state->iteration);
    snprintf(numbers[1], sizeof numbers[1], "%" PRIu64, state->consumed_samples);
    snprintf(numbers[2], sizeof numbers[2], "%" PRIu64, state->adam_step);
    snprintf(numbers[3], sizeof numbers[3], "%" PRIu64, state->seed);
    snprintf(numbers[4], sizeof numbers[4], "%u", state->skipped_iterations);
    snprintf(numbers[5], sizeof numbers[5], "%u", state->nan_iterations);
    rrfp_metadata_pair metadata[] = {{NULL, NULL},
                                     {"model_sha256", model_sha256},
                                     {"iteration", numbers[0]},
                                     {"consumed_samples", numbers[1]},
                                     {"adam_step", numbers[2]},
                                     {"seed", numbers[3]},
                                     {"skipped_iterations", numbers[4]},
                                     {"nan_iterations", numbers[5]}};
    rrfp_status status = write_tensors(dir, "optimizer.safetensors", views, used, metadata,
                                       sizeof metadata / sizeof metadata[0], sha256, error);
    free(views);
    free(names);
    return status;
}

static rrfp_status write_directory(const char *dir, const rrfp_model_config *model,
                                   const rrfp_checkpoint_state *state,
                                   const rrfp_checkpoint_entry *entries, size_t count,
                                   rrfp_error *error)
{
    char path[RRFP_PATH_BYTES], sha256[65];
    rrfp_status status = join(path, sizeof path, dir, "config.json", error);
    if (status == RRFP_OK && mkdir(dir, 0777) != 0) {
        status = failed("make directory", dir, error);
    }
    if (status == RRFP_OK) {
        status = rrfp_hf_config_write(path, model, error);
    }
    if (status == RRFP_OK) {
        status = write_model(dir, entries, count, sha256, error);
    }
    if (status == RRFP_OK) {
        status = write_optimizer(dir, state, entries, count, sha256, error);
    }
    return status;
}

/* `temporary` takes the place of `final`; an older one of that name is swapped out and removed,
 * so that a complete directory of this name exists at every moment. */
static rrfp_status put_in_place(const char *temporary, const char *final, rrfp_error *error)
{
    if (rename(temporary, final) == 0) {
        return RRFP_OK;
    }
    if (errno != EEXIST && errno != ENOTEMPTY) {
        return failed("replace", final, error);
    }
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, final, RENAME_EXCHANGE) != 0) {
        return failed("replace", final, error);
    }
    remove_directory(temporary);
    return RRFP_OK;
}

rrfp_status rrfp_checkpoint_save(const char *dir, const rrfp_model_config *model,
                                 const rrfp_checkpoint_state *state,
                                 const rrfp_checkpoint_entry *entries, size_t entry_count,
                                 rrfp_error *error)
{
    char name[40], temporary[RRFP_PATH_BYTES], final[RRFP_PATH_BYTES], latest[RRFP_PATH_BYTES];
    char text[32];
    rrfp_status status = rrfp_make_directories(dir, error);
    if (status == RRFP_OK) {
        remove_stale(dir);
        snprintf(name, sizeof name, "iter_%07" PRIu64, state->iteration);
        status = join(final, sizeof final, dir, name, error);
    }
    if (status == RRFP_OK) {
        int length = snprintf(temporary, sizeof temporary, "%s.tmp-%ld", final, (long)getpid());
        status = length < (int)sizeof temporary
                     ? join(latest, sizeof latest, dir, "latest_checkpointed_iteration.txt", error)
                     : rrfp_error_set(error, RRFP_ERR_INVALID, "path %.100s is too long", final);
    }
    if (status != RRFP_OK) {
        return status;
    }
    remove_directory(temporary);
    status = write_directory(temporary, model, state, entries, entry_count, error);
    if (status == RRFP_OK) {
        status = put_in_place(temporary, final, error);
    }
    if (status != RRFP_OK) {
        remove_directory(temporary);
        return status;
    }
    status = rrfp_sync_parent_directory(final, error);
    if (status == RRFP_OK) {
        int length = snprintf(text, sizeof text, "%" PRIu64 "\n", state->iteration);
        status = rrfp_atomic_file_write(latest, text, (size_t)length, error);
    }
    return status;
}

static int by_index(const void *a, const void *b)
{
    uint32_t x = (*(const rrfp_param *const *)a)->global_index;
    uint32_t y = (*(const rrfp_param *const *)b)->global_index;
    return x < y ? -1 : x > y;
}

void rrfp_checkpoint_weights_sha256(const rrfp_param *const *params, size_t count,
                                    char hex_out[65])
{
    struct sha256_ctx context;
    const rrfp_param **order = calloc(count + 1, sizeof *order);
    hex_out[0] = '\0';
    if (order == NULL) {
        return;
    }
    memcpy(order, params, count * sizeof *order);
    qsort(order, count, sizeof *order, by_index);
    sha256_init(&context);
    for (size_t i = 0; i < count; i++) {
        sha256_update(&context, order[i]->count * sizeof(float), (const uint8_t *)order[i]->value);
    }
    rrfp_sha256_hex(&context, hex_out);
    free(order);
}
