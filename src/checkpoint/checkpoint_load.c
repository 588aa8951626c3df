/*
 * checkpoint_load.c - weights and moments out of a directory of ours or of
 * Hugging Face; see checkpoint.h.  Everything is checked before the first
 * value is written.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_config.h"

enum { MAX_SHARDS = 4096 };

/* The files that hold one set of tensors. */
typedef struct tensor_set {
    char directory[RRFP_PATH_BYTES];
    rrfp_safetensors **files;
    char (*names)[256];
    size_t count;
} tensor_set;

static rrfp_status join(char *out, const char *dir, const char *name, rrfp_error *error)
{
    int length = snprintf(out, RRFP_PATH_BYTES, "%s/%s", dir, name);
    if (length < 0 || length >= RRFP_PATH_BYTES) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "path %.100s/%.60s is too long", dir, name);
    }
    return RRFP_OK;
}

static bool exists(const char *dir, const char *name)
{
    char path[RRFP_PATH_BYTES];
    return join(path, dir, name, NULL) == RRFP_OK && access(path, F_OK) == 0;
}

rrfp_status rrfp_checkpoint_resolve(const char *dir, char *path_out, size_t path_bytes,
                                    rrfp_error *error)
{
    char path[RRFP_PATH_BYTES], text[32] = "";
    unsigned long long iteration = 0;
    int used = 0;
    if (exists(dir, "model.safetensors") || exists(dir, "model.safetensors.index.json")) {
        snprintf(path, sizeof path, "%s", dir);
    } else {
        rrfp_status status = join(path, dir, "latest_checkpointed_iteration.txt", error);
        FILE *file = status == RRFP_OK ? fopen(path, "r") : NULL;
        if (status != RRFP_OK) {
            return status;
        }
        if (file == NULL) {
            return rrfp_error_set(error, RRFP_ERR_IO,
                                  "%s holds no checkpoint: neither model.safetensors nor "
                                  "latest_checkpointed_iteration.txt can be read",
                                  dir);
        }
        bool read = fgets(text, sizeof text, file) != NULL;
        fclose(file);
        if (!read || sscanf(text, "%19llu%n", &iteration, &used) != 1 ||
            (text[used] != '\n' && text[used] != '\0')) {
            return rrfp_error_set(error, RRFP_ERR_FORMAT, "%s does not hold an iteration number",
                                  path);
        }
        snprintf(path, sizeof path, "%s/iter_%07llu", dir, iteration);
        if (!exists(path, "model.safetensors")) {
            return rrfp_error_set(error, RRFP_ERR_IO,
                                  "%s/latest_checkpointed_iteration.txt names iteration %llu, but "
                                  "%s/model.safetensors is missing",
                                  dir, iteration, path);
        }
    }
    if (strlen(path) >= path_bytes) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "path %.100s is too long", path);
    }
    strcpy(path_out, path);
    return RRFP_OK;
}

rrfp_status rrfp_checkpoint_read_config(const char *path, rrfp_model_config *model,
                                        rrfp_error *error)
{
    char file[RRFP_PATH_BYTES];
    rrfp_status status = join(file, path, "config.json", error);
    return status == RRFP_OK ? rrfp_hf_config_read(file, model, error) : status;
}

/* --- the files ------------------------------------------------------------------------------ */

static void close_set(tensor_set *set)
{
    for (size_t i = 0; set->files != NULL && i < set->count; i++) {
        rrfp_safetensors_close(set->files[i]);
    }
    free(set->files);
    free(set->names);
    memset(set, 0, sizeof *set);
}

static rrfp_status open_file(tensor_set *set, const char *name, rrfp_error *error)
{
    char path[RRFP_PATH_BYTES];
    rrfp_status status = join(path, set->directory, name, error);
    for (size_t i = 0; i < set->count; i++) {
        if (strcmp(set->names[i], name) == 0) {
            return RRFP_OK;
        }
    }
    if (status == RRFP_OK && set->count == MAX_SHARDS) {
        status = rrfp_error_set(error, RRFP_ERR_FORMAT, "%s: more than %d files", set->directory,
                                (int)MAX_SHARDS);
    }
    if (status == RRFP_OK) {
        status = rrfp_safetensors_open(path, &set->files[set->count], error);
    }
    if (status == RRFP_OK) {
        snprintf(set->names[set->count++], sizeof set->names[0], "%.255s", name);
    }
    return status;
}

static rrfp_status open_shards(tensor_set *set, rrfp_error *error)
{
    char path[RRFP_PATH_BYTES];
    json_error_t where;
    const char *tensor;
    json_t *value;
    rrfp_status status = join(path, set->directory, "model.safetensors.index.json", error);
    if (status != RRFP_OK) {
        return status;
    }
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &where);
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map)) {
        status = rrfp_error_set(error, RRFP_ERR_FORMAT, "%s: %s", path,
                                root == NULL ? where.text : "it has no weight_map");
    }
    json_object_foreach(map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (name == NULL || strchr(name, '/') != NULL || name[0] == '\0' || strlen(name) > 255) {
            status = rrfp_error_set(error, RRFP_ERR_FORMAT,
                                    "%s: the file of tensor %.100s is not a plain file name", path,
                                    tensor);
        }
        if (status == RRFP_OK) {
            status = open_file(set, name, error);
        }
        if (status != RRFP_OK) {
            break;
        }
    }
    json_decref(root);
    return status;
}

static rrfp_status open_set(tensor_set *set, const char *directory, const char *single,
                            rrfp_error *error)
{
    memset(set, 0, sizeof *set);
    snprintf(set->directory, sizeof set->directory, "%s", directory);
    set->files = calloc(MAX_SHARDS, sizeof *set->files);
    set->names = calloc(MAX_SHARDS, sizeof *set->names);
    rrfp_status status;
    if (set->files == NULL || set->names == NULL) {
        status = rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for %s", directory);
    } else if (exists(directory, single)) {
        status = open_file(set, single, error);
    } else {
        status = open_shards(set, error);
    }
    if (status != RRFP_OK) {
        close_set(set);
    }
    return status;
}

static const rrfp_tensor_view *find(const tensor_set *set, const char *name, size_t *file)
{
    for (size_t i = 0; i < set->count; i++) {
        const rrfp_tensor_view *view = rrfp_safetensors_find(set->files[i], name);
        if (view != NULL) {
            *file = i;
            return view;
        }
    }
    return NULL;
}

/* GPT-2 files of some makers prefix every name. */
static const rrfp_tensor_view *find_param(const tensor_set *set, const char *name, size_t *file)
{
    char prefixed[128];
    const rrfp_tensor_view *view = find(set, name, file);
    if (view == NULL) {
        snprintf(prefixed, sizeof prefixed, "transformer.%s", name);
        view = find(set, prefixed, file);
    }
    return view;
}

/* --- checks --------------------------------------------------------------------------------- */

static rrfp_status check_sha256(const tensor_set *set, size_t i, rrfp_error *error)
{
    char actual[65];
    const char *stored = rrfp_safetensors_metadata(set->files[i], "rrfp_sha256");
    if (stored == NULL) {
        return RRFP_OK; /* not ours: nothing to compare with */
    }
    rrfp_safetensors_data_sha256(set->files[i], actual);
    if (strcmp(stored, actual) != 0) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "%s/%s: its data does not match its SHA-256: damaged or changed since "
                              "it was saved",
                              set->directory, set->names[i]);
    }
    return RRFP_OK;
}

static rrfp_status check_tensor(const tensor_set *set, size_t file, const rrfp_tensor_view *view,
                                const char *name, const rrfp_param *param, rrfp_error *error)
{
    bool same = view->ndim == param->ndim;
    for (uint32_t d = 0; same && d < param->ndim; d++) {
        same = view->dims[d] == param->dims[d];
    }
    if (!same) {
        return rrfp_error_set(
            error, RRFP_ERR_FORMAT,
            "%s/%s: tensor %s has shape (%llu, %llu), the model needs (%llu, %llu)", set->directory,
            set->names[file], name, (unsigned long long)(view->ndim > 0 ? view->dims[0] : 1),
            (unsigned long long)(view->ndim > 1 ? view->dims[1] : 1),
            (unsigned long long)param->dims[0],
            (unsigned long long)(param->ndim > 1 ? param->dims[1] : 1));
    }
    if (view->dtype != RRFP_DTYPE_F32 && view->dtype != RRFP_DTYPE_BF16 &&
        view->dtype != RRFP_DTYPE_F16) {
        return rrfp_error_set(error, RRFP_ERR_UNSUPPORTED,
                              "%s/%s: tensor %s has dtype %s; F32, BF16 and F16 can be loaded",
                              set->directory, set->names[file], name,
                              rrfp_dtype_name(view->dtype));
    }
    return RRFP_OK;
}

static bool ends_with(const char *text, const char *end)
{
    size_t a = strlen(text), b = strlen(end);
    return a >= b && strcmp(text + a - b, end) == 0;
}

static bool wanted(const rrfp_checkpoint_entry *entries, size_t count, const char *name)
{
    static const char prefix[] = "transformer.";
    if (strncmp(name, prefix, sizeof prefix - 1) == 0) {
        name += sizeof prefix - 1;
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(entries[i].param->name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* A tensor the model has no place for: a known companion of GPT-2 files, or an error. */
static rrfp_status check_extra(const tensor_set *set, size_t file, const rrfp_tensor_view *view,
                               const rrfp_checkpoint_entry *entries, size_t count,
                               rrfp_error *error)
{
    size_t other = 0;
    if (ends_with(view->name, ".attn.bias") || ends_with(view->name, ".attn.masked_bias")) {
        return RRFP_OK;
    }
    if (strcmp(view->name, "lm_head.weight") == 0) {
        const char *embedding = wanted(entries, count, "wte.weight") ? "wte.weight"
                                                                     : "model.embed_tokens.weight";
        const rrfp_tensor_view *tied = find_param(set, embedding, &other);
        if (tied != NULL && tied->bytes == view->bytes && tied->dtype == view->dtype &&
            memcmp(tied->data, view->data, tied->bytes) == 0) {
            return RRFP_OK;
        }
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "%s/%s: lm_head.weight differs from %s, but the model ties them: set "
                              "tie_word_embeddings to false in config.json",
                              set->directory, set->names[file], embedding);
    }
    return rrfp_error_set(error, RRFP_ERR_FORMAT,
                          "%s/%s: tensor %.100s has no place in this model: is config.json the one "
                          "of these weights?",
                          set->directory, set->names[file], view->name);
}

static rrfp_status check_model(const tensor_set *set, const rrfp_checkpoint_entry *entries,
                               size_t count, rrfp_error *error)
{
    for (size_t i = 0; i < set->count; i++) {
        rrfp_status status = check_sha256(set, i, error);
        for (size_t t = 0; status == RRFP_OK && t < rrfp_safetensors_count(set->files[i]); t++) {
            const rrfp_tensor_view *view = rrfp_safetensors_at(set->files[i], t);
            if (!wanted(entries, count, view->name)) {
                status = check_extra(set, i, view, entries, count, error);
            }
        }
        if (status != RRFP_OK) {
            return status;
        }
    }
    for (size_t i = 0; i < count; i++) {
        size_t file = 0;
        const rrfp_param *param = entries[i].param;
        const rrfp_tensor_view *view = find_param(set, param->name, &file);
        if (view == NULL) {
            return rrfp_error_set(error, RRFP_ERR_FORMAT, "%s: tensor %s is missing",
                                  set->directory, param->name);
        }
        rrfp_status status = check_tensor(set, file, view, param->name, param, error);
        if (status != RRFP_OK) {
            return status;
        }
    }
    return RRFP_OK;
}

static rrfp_status read_number(const tensor_set *set, const char *key, uint64_t most,
                               uint64_t *value, rrfp_error *error)
{
    const char *text = rrfp_safetensors_metadata(set->files[0], key);
    char *end = NULL;
    errno = 0;
    uint64_t number = text == NULL ? 0 : strtoull(text, &end, 10);
    if (text == NULL || text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 ||
        number > most) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT, "%s/%s: metadata %s is missing or not a number",
                              set->directory, set->names[0], key);
    }
    *value = number;
    return RRFP_OK;
}

static rrfp_status read_state(const tensor_set *set, rrfp_checkpoint_state *state,
                              rrfp_error *error)
{
    uint64_t skipped = 0, nan = 0;
    rrfp_status status = read_number(set, "iteration", UINT64_MAX, &state->iteration, error);
    if (status == RRFP_OK) {
        status = read_number(set, "consumed_samples", UINT64_MAX, &state->consumed_samples, error);
    }
    if (status == RRFP_OK) {
        status = read_number(set, "adam_step", UINT64_MAX, &state->adam_step, error);
    }
    if (status == RRFP_OK) {
        status = read_number(set, "seed", UINT64_MAX, &state->seed, error);
    }
    if (status == RRFP_OK) {
        status = read_number(set, "skipped_iterations", UINT32_MAX, &skipped, error);
    }
    if (status == RRFP_OK) {
        status = read_number(set, "nan_iterations", UINT32_MAX, &nan, error);
    }
    state->skipped_iterations = (uint32_t)skipped;
    state->nan_iterations = (uint32_t)nan;
    return status;
}

typedef struct moments {
    const rrfp_tensor_view *exp_avg, *exp_avg_sq;
} moments;

static rrfp_status check_optimizer(const tensor_set *set, const tensor_set *model,
                                   const rrfp_checkpoint_entry *entries, size_t count,
                                   moments *found, rrfp_error *error)
{
    char model_sha256[65];
    const char *stored = rrfp_safetensors_metadata(set->files[0], "model_sha256");
    size_t used = 0, file = 0;
    rrfp_status status = check_sha256(set, 0, error);
    if (status != RRFP_OK) {
        return status;
    }
    rrfp_safetensors_data_sha256(model->files[0], model_sha256);
    if (model->count != 1 || stored == NULL || strcmp(stored, model_sha256) != 0) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "%s/optimizer.safetensors belongs to other weights than "
                              "model.safetensors: files of different saves were mixed",
                              set->directory);
    }
    for (size_t i = 0; i < count; i++) {
        const rrfp_param *param = entries[i].param;
        char name[2][112];
        snprintf(name[0], sizeof name[0], "%s.exp_avg", param->name);
        snprintf(name[1], sizeof name[1], "%s.exp_avg_sq", param->name);
        if (entries[i].exp_avg == NULL) {
            continue; /* shares its owner's memory */
        }
        for (int k = 0; k < 2; k++) {
            const rrfp_tensor_view *view = find(set, name[k], &file);
            if (view == NULL) {
                return rrfp_error_set(error, RRFP_ERR_FORMAT,
                                      "%s/optimizer.safetensors: tensor %s is missing",
                                      set->directory, name[k]);
            }
            status = check_tensor(set, file, view, name[k], param, error);
            if (status == RRFP_OK && view->dtype != RRFP_DTYPE_F32) {
                status = rrfp_error_set(error, RRFP_ERR_UNSUPPORTED,
                                        "%s/optimizer.safetensors: tensor %s is not F32",
                                        set->directory, name[k]);
            }
            if (status != RRFP_OK) {
                return status;
            }
            *(k == 0 ? &found[i].exp_avg : &found[i].exp_avg_sq) = view;
        }
        used += param->tied_copy ? 0 : 2;
    }
    if (used != rrfp_safetensors_count(set->files[0])) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT,
                              "%s/optimizer.safetensors has %zu tensors, the model needs %zu",
                              set->directory, rrfp_safetensors_count(set->files[0]), used);
    }
    return RRFP_OK;
}

/* --- values --------------------------------------------------------------------------------- */

static float from_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31u;
    uint32_t fraction = half & 0x3ffu, bits;
    float value;
    if (exponent == 0) { /* zero or subnormal: fraction * 2^-24 */
        value = (float)fraction * 5.9604644775390625e-8f;
        return sign ? -value : value;
    }
    bits = exponent == 31 ? sign | 0x7f800000u | fraction << 13
                          : sign | (exponent + 112) << 23 | fraction << 13;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void copy_values(const rrfp_tensor_view *view, float *out, uint64_t count)
{
    const unsigned char *bytes = view->data;
    if (view->dtype == RRFP_DTYPE_F32) {
        memcpy(out, bytes, count * sizeof *out);
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        uint16_t half = (uint16_t)(bytes[2 * i] | bytes[2 * i + 1] << 8);
        if (view->dtype == RRFP_DTYPE_F16) {
            out[i] = from_half(half);
        } else {
            uint32_t bits = (uint32_t)half << 16;
            memcpy(&out[i], &bits, sizeof bits);
        }
    }
}

static void take_values(const tensor_set *model, const moments *found,
                        const rrfp_checkpoint_entry *entries, size_t count, bool with_optimizer)
{
    for (size_t i = 0; i < count; i++) {
        const rrfp_param *param = entries[i].param;
        size_t file;
        if (entries[i].elsewhere) {
            continue;
        }
        copy_values(find_param(model, param->name, &file), param->value, param->count);
        if (with_optimizer && entries[i].exp_avg != NULL) {
            copy_values(found[i].exp_avg, entries[i].exp_avg, param->count);
            copy_values(found[i].exp_avg_sq, entries[i].exp_avg_sq, param->count);
        }
    }
}

rrfp_status rrfp_checkpoint_load(const char *path, const rrfp_checkpoint_entry *entries,
                                 size_t entry_count, bool with_optimizer,
                                 rrfp_checkpoint_state *state, rrfp_error *error)
{
    tensor_set model, optimizer = {0};
    rrfp_checkpoint_state read = {0};
    moments *found = calloc(entry_count + 1, sizeof *found);
    if (found == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for %s", path);
    }
    rrfp_status status = open_set(&model, path, "model.safetensors", error);
    if (status == RRFP_OK) {
        status = check_model(&model, entries, entry_count, error);
    }
    if (status == RRFP_OK && with_optimizer) {
        status = open_set(&optimizer, path, "optimizer.safetensors", error);
        if (status == RRFP_OK) {
            status = check_optimizer(&optimizer, &model, entries, entry_count, found, error);
        }
        if (status == RRFP_OK) {
            status = read_state(&optimizer, &read, error);
        }
    }
    if (status == RRFP_OK) {
        take_values(&model, found, entries, entry_count, with_optimizer);
        *state = read;
    }
    close_set(&model);
    close_set(&optimizer);
    free(found);
    return status;
}
