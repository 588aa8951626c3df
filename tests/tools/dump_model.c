/*
 * dump_model.c - one microbatch through a small model, written out for comparison elsewhere.
 *
 *   dump_model arch=gpt2 layers=2 hidden=64 ... out=FILE
 *
 * Parameters are moved off their initial values, so that norms and biases count.
 * The file is little-endian:
 *
 *   "RRFPDUMP", u32 tensors, then for each tensor
 *   u32 name bytes, name, u32 type (0 float32, 1 int32, 2 float64), u32 dims, u64 dim..., data
 *
 * Tensors: "tokens", "targets" (B,T); "loss" (1), the sum of token losses;
 * "value NAME" and "grad NAME" of every parameter, the gradients of the mean loss.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/rng.h"
#include "model/model.h"

enum { MAX_CHUNKS = 16, TYPE_F32 = 0, TYPE_I32 = 1, TYPE_F64 = 2 };

typedef struct settings {
    rrfp_model_config config;
    uint32_t chunks;
    const char *out;
} settings;

static int usage(const char *problem)
{
    fprintf(stderr,
            "dump_model: %s\nusage: dump_model [arch=gpt2|llama] [layers=N] [hidden=N] [heads=N] "
            "[kv_heads=N] [ffn=N] [vocab=N] [seq=N] [batch=N] [tied=0|1] [recompute=0|1] "
            "[chunks=N] out=FILE\n",
            problem);
    return 2;
}

static int parse(int argc, char **argv, settings *set)
{
    rrfp_model_config *config = &set->config;
    unsigned arch = 0, tied = 0, recompute = 0;
    const struct {
        const char *name;
        uint32_t *value;
    } rows[] = {
        {"layers", &config->num_layers}, {"hidden", &config->hidden}, {"heads", &config->heads},
        {"kv_heads", &config->kv_heads}, {"ffn", &config->ffn_hidden}, {"vocab", &config->vocab},
        {"seq", &config->seq_length}, {"batch", &config->micro_batch}, {"chunks", &set->chunks},
        {"tied", &tied}, {"recompute", &recompute},
    };
    for (int i = 1; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        bool known = false;
        if (equals == NULL) {
            return usage("arguments are name=value");
        }
        const size_t length = (size_t)(equals - argv[i]);
        if (length == 4 && strncmp(argv[i], "arch", 4) == 0) {
            arch = strcmp(equals + 1, "llama") == 0;
            known = true;
        } else if (length == 3 && strncmp(argv[i], "out", 3) == 0) {
            set->out = equals + 1;
            known = true;
        }
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            if (strlen(rows[r].name) == length && strncmp(argv[i], rows[r].name, length) == 0) {
                *rows[r].value = (uint32_t)strtoul(equals + 1, NULL, 10);
                known = true;
            }
        }
        if (!known) {
            return usage(argv[i]);
        }
    }
    config->arch = arch == 1 ? RRFP_ARCH_LLAMA : RRFP_ARCH_GPT2;
    config->tied = tied != 0;
    config->recompute = recompute != 0;
    return set->out == NULL || set->chunks == 0 || set->chunks > MAX_CHUNKS
               ? usage("out=FILE is needed, and 1 to 16 chunks")
               : 0;
}

static void *take(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes / 64 + 1) * 64);
    if (memory == NULL) {
        fprintf(stderr, "dump_model: out of memory\n");
        exit(1);
    }
    return memory;
}

static void write_tensor(FILE *file, const char *prefix, const char *name, uint32_t type,
                         uint32_t ndim, const uint64_t *dims, const void *data)
{
    const uint32_t length = (uint32_t)(strlen(prefix) + strlen(name));
    size_t bytes = type == TYPE_F64 ? 8 : 4;
    fwrite(&length, sizeof length, 1, file);
    fputs(prefix, file);
    fputs(name, file);
    fwrite(&type, sizeof type, 1, file);
    fwrite(&ndim, sizeof ndim, 1, file);
    for (uint32_t i = 0; i < ndim; i++) {
        fwrite(&dims[i], sizeof dims[i], 1, file);
        bytes *= dims[i];
    }
    fwrite(data, 1, bytes, file);
}

static void disturb(rrfp_param *param)
{
    const rrfp_rng_key key = {1, RRFP_RNG_SAMPLE, param->global_index, 0, 0};
    for (uint64_t i = 0; i < param->count; i++) {
        param->value[i] += (float)(0.1 * rrfp_rng_normal(&key, i));
    }
}

static double train_once(rrfp_chunk **chunk, uint32_t chunks, const rrfp_microbatch *microbatch)
{
    float *message[MAX_CHUNKS];
    void *activation[MAX_CHUNKS], *retained[MAX_CHUNKS], *scratch[MAX_CHUNKS];
    float *grad = NULL;
    double loss = 0.0;
    for (uint32_t k = 0; k < chunks; k++) {
        rrfp_chunk_sizes sizes;
        rrfp_chunk_get_sizes(chunk[k], &sizes);
        message[k] = take(sizes.message_floats * sizeof(float));
        activation[k] = take(sizes.activation_bytes);
        retained[k] = take(sizes.retained_bytes);
        scratch[k] = take(sizes.scratch_bytes);
        grad = grad == NULL ? take(sizes.message_floats * sizeof(float)) : grad;
        rrfp_chunk_forward(chunk[k], microbatch, k > 0 ? message[k - 1] : NULL,
                           k + 1 < chunks ? message[k] : NULL, activation[k], retained[k],
                           scratch[k], &loss);
    }
    for (uint32_t k = chunks; k-- > 0;) {
        rrfp_chunk_backward(chunk[k], microbatch, k > 0 ? message[k - 1] : NULL,
                            k + 1 < chunks ? grad : NULL, k > 0 ? grad : NULL, activation[k],
                            retained[k], scratch[k]);
        rrfp_chunk_wgrad(chunk[k], microbatch, retained[k], scratch[k]);
    }
    for (uint32_t k = 0; k < chunks; k++) {
        free(message[k]);
        free(activation[k]);
        free(retained[k]);
        free(scratch[k]);
    }
    free(grad);
    return loss;
}

static int write_all(const settings *set, rrfp_chunk **chunk, const int32_t *tokens,
                     const int32_t *targets, double loss)
{
    const uint64_t shape[2] = {set->config.micro_batch, set->config.seq_length}, one = 1;
    rrfp_chunk *last = chunk[set->chunks - 1];
    FILE *file = fopen(set->out, "wb");
    uint32_t tensors = 3;
    if (file == NULL) {
        perror(set->out);
        return 1;
    }
    for (uint32_t k = 0; k < set->chunks; k++) {
        tensors += 2 * (uint32_t)rrfp_chunk_param_count(chunk[k]);
    }
    tensors -= set->config.tied ? 2 : 0;
    fwrite("RRFPDUMP", 1, 8, file);
    fwrite(&tensors, sizeof tensors, 1, file);
    write_tensor(file, "", "tokens", TYPE_I32, 2, shape, tokens);
    write_tensor(file, "", "targets", TYPE_I32, 2, shape, targets);
    write_tensor(file, "", "loss", TYPE_F64, 1, &one, &loss);
    if (set->config.tied) {
        const rrfp_param *head = rrfp_chunk_param(last, rrfp_chunk_param_count(last) - 1);
        rrfp_add(rrfp_chunk_param(chunk[0], 0)->grad, head->grad, head->count);
    }
    for (uint32_t k = 0; k < set->chunks; k++) {
        for (size_t i = 0; i < rrfp_chunk_param_count(chunk[k]); i++) {
            const rrfp_param *p = rrfp_chunk_param(chunk[k], i);
            if (!p->tied_copy) {
                write_tensor(file, "value ", p->name, TYPE_F32, p->ndim, p->dims, p->value);
                write_tensor(file, "grad ", p->name, TYPE_F32, p->ndim, p->dims, p->grad);
            }
        }
    }
    const bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed) {
        fprintf(stderr, "dump_model: cannot write %s\n", set->out);
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    settings set = {
        .config = {.num_layers = 2, .hidden = 64, .heads = 4, .vocab = 101, .seq_length = 48,
                   .micro_batch = 2, .seed = 5},
        .chunks = 1,
    };
    rrfp_chunk_range ranges[MAX_CHUNKS];
    rrfp_chunk *chunk[MAX_CHUNKS] = {NULL};
    rrfp_error error;
    if (parse(argc, argv, &set) != 0) {
        return 2;
    }
    rrfp_kernels_thread_init(1);
    rrfp_status status = rrfp_model_config_finish(&set.config, &error);
    if (status == RRFP_OK) {
        status = rrfp_model_partition(&set.config, set.chunks, ranges, &error);
    }
    for (uint32_t k = 0; status == RRFP_OK && k < set.chunks; k++) {
        status = rrfp_chunk_create(&set.config, &ranges[k], NULL, &chunk[k], &error);
    }
    if (status != RRFP_OK) {
        fprintf(stderr, "dump_model: %s\n", error.text);
        return 1;
    }
    for (uint32_t k = 0; k < set.chunks; k++) {
        for (size_t i = 0; i < rrfp_chunk_param_count(chunk[k]); i++) {
            rrfp_param *param = rrfp_chunk_param(chunk[k], i);
            const bool same_memory = param->tied_copy && k == 0;
            if (!same_memory) {
                disturb(param);
            }
        }
    }
    const size_t n = (size_t)set.config.micro_batch * set.config.seq_length;
    int32_t *tokens = take(n * sizeof *tokens), *targets = take(n * sizeof *targets);
    const rrfp_rng_key key = {2, RRFP_RNG_DATA, 0, 0, 0};
    for (size_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)(rrfp_rng_u32(&key, i) % set.config.vocab);
        targets[i] = (int32_t)(rrfp_rng_u32(&key, n + i) % set.config.vocab);
    }
    const rrfp_microbatch microbatch = {.training = true, .tokens = tokens, .targets = targets,
                                        .loss_scale = (float)(1.0 / (double)n)};
    const double loss = train_once(chunk, set.chunks, &microbatch);
    const int result = write_all(&set, chunk, tokens, targets, loss);
    for (uint32_t k = 0; k < set.chunks; k++) {
        rrfp_chunk_destroy(chunk[k]);
    }
    free(tokens);
    free(targets);
    return result;
}
