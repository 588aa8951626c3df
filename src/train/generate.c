/*
 * generate.c - continuing a prompt with a loaded model.
 *
 * The whole model is one chunk on the caller's thread.  The window is the last
 * T tokens, padded on the right: attention is causal, so padding changes
 * nothing before it.  Sampling draws from the counter-based generator: the same
 * seed and prompt give the same text.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/rng.h"
#include "train/loop.h"
#include "train/session.h"

typedef struct generator {
    rrfp_session session;
    rrfp_chunk *chunk;
    void *activation, *retained, *scratch;
    float *logits;
    int32_t *window;
    int32_t *ids; /* prompt and what follows */
    size_t count;
    float *sorted;
} generator;

static void *allocate(uint64_t bytes)
{
    return aligned_alloc(64, (bytes + 127) / 64 * 64);
}

static rrfp_status prepare(generator *g, rrfp_error *error)
{
    rrfp_chunk_range whole;
    rrfp_chunk_sizes sizes;
    rrfp_status status = rrfp_model_partition(&g->session.model, 1, &whole, error);
    if (status == RRFP_OK) {
        status = rrfp_chunk_create(&g->session.model, &whole, NULL, &g->chunk, error);
    }
    if (status != RRFP_OK) {
        return status;
    }
    size_t count = rrfp_chunk_param_count(g->chunk);
    rrfp_checkpoint_entry *entries = calloc(count, sizeof *entries);
    if (entries == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < count; i++) {
        entries[i].param = rrfp_chunk_param(g->chunk, i);
    }
    status = rrfp_checkpoint_load(g->session.load_path, entries, count, false, &g->session.state,
                                  error);
    free(entries);
    if (status != RRFP_OK) {
        return status;
    }
    rrfp_chunk_get_sizes(g->chunk, &sizes);
    uint64_t t = g->session.model.seq_length, vocab = g->session.model.vocab;
    g->activation = allocate(sizes.activation_bytes);
    g->retained = allocate(sizes.retained_bytes);
    g->scratch = allocate(sizes.scratch_bytes);
    g->logits = allocate(t * vocab * sizeof(float));
    g->window = allocate(t * sizeof(int32_t));
    g->sorted = allocate(vocab * sizeof(float));
    if (g->activation == NULL || g->retained == NULL || g->scratch == NULL || g->logits == NULL ||
        g->window == NULL || g->sorted == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for generation");
    }
    return RRFP_OK;
}

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

static int32_t pick(generator *g, const float *logits, uint32_t usable, uint64_t index)
{
    const rrfp_options *options = g->session.options;
    int32_t best = 0;
    for (uint32_t i = 1; i < usable; i++) {
        best = logits[i] > logits[best] ? (int32_t)i : best;
    }
    if (options->temperature <= 0.0) {
        return best;
    }
    float floor = -FLT_MAX;
    if (options->top_k > 0 && options->top_k < usable) {
        memcpy(g->sorted, logits, usable * sizeof(float));
        qsort(g->sorted, usable, sizeof(float), descending);
        floor = g->sorted[options->top_k - 1];
    }
    double sum = 0.0;
    for (uint32_t i = 0; i < usable; i++) {
        if (logits[i] >= floor) {
            sum += exp((double)(logits[i] - logits[best]) / options->temperature);
        }
    }
    rrfp_rng_key key = {.seed = options->seed, .stream = RRFP_RNG_SAMPLE};
    double draw = (double)rrfp_rng_uniform(&key, index) * sum;
    for (uint32_t i = 0; i < usable; i++) {
        if (logits[i] >= floor) {
            draw -= exp((double)(logits[i] - logits[best]) / options->temperature);
            if (draw < 0.0) {
                return (int32_t)i;
            }
        }
    }
    return best;
}

static int32_t next_token(generator *g, uint32_t usable)
{
    size_t t = g->session.model.seq_length, vocab = g->session.model.vocab;
    size_t used = g->count < t ? g->count : t;
    memset(g->window, 0, t * sizeof *g->window);
    memcpy(g->window, g->ids + (g->count - used), used * sizeof *g->window);
    rrfp_microbatch microbatch = {.tokens = g->window};
    rrfp_chunk_infer(g->chunk, &microbatch, NULL, NULL, g->activation, g->retained, g->scratch,
                     g->logits);
    return pick(g, g->logits + (used - 1) * vocab, usable, g->count);
}

static rrfp_status generate(generator *g, FILE *out, rrfp_error *error)
{
    const rrfp_options *options = g->session.options;
    const rrfp_tokenizer *tokenizer = g->session.tokenizer;
    int32_t end = rrfp_tokenizer_end_of_text(tokenizer), *prompt = NULL;
    char *text = NULL;
    size_t text_bytes = 0, prompt_count = 0;
    rrfp_status status = rrfp_tokenizer_encode(tokenizer, options->prompt, strlen(options->prompt),
                                               &prompt, &prompt_count, error);
    if (status == RRFP_OK && prompt_count == 0) {
        status = rrfp_error_set(error, RRFP_ERR_INVALID,
                                "--prompt is empty: give the text to continue");
    }
    if (status == RRFP_OK) {
        g->ids = malloc((prompt_count + options->max_new_tokens) * sizeof *g->ids);
        if (g->ids == NULL) {
            status = rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for %u tokens",
                                    options->max_new_tokens);
        }
    }
    if (status == RRFP_OK) {
        memcpy(g->ids, prompt, prompt_count * sizeof *g->ids);
        g->count = prompt_count;
        for (uint32_t i = 0; i < options->max_new_tokens; i++) {
            int32_t id = next_token(g, rrfp_tokenizer_vocab(tokenizer));
            if (id == end) {
                break;
            }
            g->ids[g->count++] = id;
        }
        status = rrfp_tokenizer_decode(tokenizer, g->ids, g->count, &text, &text_bytes, error);
    }
    if (status == RRFP_OK) {
        fwrite(text, 1, text_bytes, out);
        fputc('\n', out);
    }
    free(prompt);
    free(text);
    return status;
}

rrfp_status rrfp_generate_run(const rrfp_options *options, FILE *out, rrfp_error *error)
{
    generator g = {0};
    rrfp_options one = *options;
    one.micro_batch_size = 1;
    if (options->load[0] == '\0') {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "generate needs a trained model: give --load DIRECTORY");
    }
    rrfp_kernels_thread_init((int)options->threads_per_stage);
    rrfp_status status = rrfp_session_open_model(&g.session, &one, error);
    if (status == RRFP_OK) {
        status = prepare(&g, error);
    }
    if (status == RRFP_OK) {
        status = generate(&g, out, error);
    }
    rrfp_chunk_destroy(g.chunk);
    rrfp_session_close(&g.session);
    free(g.activation);
    free(g.retained);
    free(g.scratch);
    free(g.logits);
    free(g.window);
    free(g.sorted);
    free(g.ids);
    return status;
}
