/*
 * kernels.c - time of each op at the shapes of a small GPT (width C, 4C hidden,
 * heads of 64), one call each way.  One thread.
 *
 *   bench_kernels [batch] [t] [c] [vocab]
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/kernels.h"
#include "kernels/rng.h"
#include "timing.h"

enum { TIMINGS = 15 };

/* Median and least time of CALL; `flops` 0 where the work is no product. */
#define MEASURE(NAME, FLOPS, CALL)                                                                 \
    do {                                                                                           \
        double seconds_[TIMINGS], flops_ = (FLOPS);                                                \
        for (int r_ = 0; r_ < TIMINGS; r_++) {                                                     \
            double start_ = bench_seconds();                                                         \
            CALL;                                                                                  \
            seconds_[r_] = bench_seconds() - start_;                                                 \
        }                                                                                          \
        qsort(seconds_, TIMINGS, sizeof *seconds_, bench_ascending);                                     \
        printf("%-18s min %9.1f us  median %9.1f us", NAME, 1e6 * seconds_[0],                     \
               1e6 * seconds_[TIMINGS / 2]);                                                       \
        if (flops_ > 0.0)                                                                          \
            printf("  %6.1f GFLOP/s", 1e-9 * flops_ / seconds_[TIMINGS / 2]);                      \
        printf("\n");                                                                              \
    } while (0)

static size_t argument(int argc, char **argv, int index, size_t otherwise)
{
    long value = argc > index ? atol(argv[index]) : (long)otherwise;
    if (value < 1 || value > 1 << 20) {
        fprintf(stderr, "bench_kernels: argument %d must be 1..1048576, got %s\n", index,
                argv[index]);
        exit(2);
    }
    return (size_t)value;
}

int main(int argc, char **argv)
{
    size_t batch = argument(argc, argv, 1, 4), t = argument(argc, argv, 2, 256);
    size_t c = argument(argc, argv, 3, 256), vocab = argument(argc, argv, 4, 256);
    size_t n = batch * t, heads = c < 64 ? 1 : c / 64, d = c / heads, hidden = 4 * c;
    rrfp_kernels_thread_init(1);
    printf("%s; N %zu, T %zu, C %zu, V %zu\n", rrfp_kernels_gemm_name(), n, t, c, vocab);

    float *x = bench_filled(n * hidden), *y = bench_filled(n * hidden), *dy = bench_filled(n * hidden);
    float *dx = bench_filled(n * hidden), *w = bench_filled(c * hidden), *dw = bench_filled(c * hidden);
    float *bias = bench_filled(hidden), *gamma = bench_filled(c), *beta = bench_filled(c);
    float *mean = bench_filled(n), *rstd = bench_filled(n), *lse = bench_filled(n * heads);
    float *scratch = bench_filled(rrfp_attention_scratch_floats(t, d));
    float *qkv = bench_filled(n * 3 * c), *dqkv = bench_filled(n * 3 * c), *logits = bench_filled(n * vocab);
    float *wte = bench_filled(vocab * c), *dwte = bench_filled(vocab * c);
    float *m = bench_filled(c * hidden), *v = bench_filled(c * hidden);
    int32_t *tokens = malloc(n * sizeof *tokens);
    if (tokens == NULL) {
        perror("bench_kernels: out of memory");
        return 1;
    }
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(i * 31 % vocab);
    for (size_t i = 0; i < c * hidden; i++)
        v[i] = 1.0f;
    rrfp_rng_key key = {.seed = 1, .stream = RRFP_RNG_DROPOUT};

    double work = 2.0 * (double)n * (double)c * (double)hidden;
    MEASURE("fc forward", work, rrfp_linear_fwd(x, w, bias, y, n, c, hidden, false));
    MEASURE("fc dgrad", work, rrfp_linear_dgrad(dy, w, dx, n, c, hidden, false, false));
    MEASURE("fc wgrad", work, rrfp_linear_wgrad(x, dy, dw, bias, n, c, hidden, false));
    MEASURE("fcproj forward", work, rrfp_linear_fwd(x, w, bias, y, n, hidden, c, false));
    MEASURE("fcproj dgrad", work, rrfp_linear_dgrad(dy, w, dx, n, hidden, c, false, false));
    MEASURE("fcproj wgrad", work, rrfp_linear_wgrad(x, dy, dw, bias, n, hidden, c, false));
    MEASURE("layernorm forward", 0.0,
            rrfp_layernorm_fwd(x, gamma, beta, 1e-5f, y, mean, rstd, n, c));
    MEASURE("layernorm dgrad", 0.0,
            rrfp_layernorm_dgrad(dy, x, gamma, mean, rstd, dx, n, c, true));
    MEASURE("layernorm wgrad", 0.0, rrfp_layernorm_wgrad(dy, x, mean, rstd, gamma, beta, n, c));
    MEASURE("rmsnorm forward", 0.0, rrfp_rmsnorm_fwd(x, gamma, 1e-5f, y, rstd, n, c));
    MEASURE("rmsnorm dgrad", 0.0, rrfp_rmsnorm_dgrad(dy, x, gamma, rstd, dx, n, c, true));
    MEASURE("gelu forward", 0.0, rrfp_gelu_fwd(x, y, n * hidden));
    MEASURE("gelu dgrad", 0.0, rrfp_gelu_dgrad(dy, x, dx, n * hidden));
    MEASURE("swiglu forward", 0.0, rrfp_swiglu_fwd(x, dy, y, n * hidden));
    MEASURE("swiglu dgrad", 0.0, rrfp_swiglu_dgrad(dy, x, w, dx, y, c * hidden));
    MEASURE("rope", 0.0, rrfp_rope(qkv, batch, t, heads, d, 3 * c, 1e4f, false));
    rrfp_attention_shape shape = {batch, t, heads, heads, d, 3 * c, 3 * c, c, 0.0f, NULL, 0, 0};
    double scores = 2.0 * (double)(batch * heads * d) * (double)t * (double)(t + 1) / 2.0;
    MEASURE("attention forward", 2.0 * scores,
            rrfp_attention_fwd(&shape, qkv, qkv + c, qkv + 2 * c, y, lse, scratch));
    MEASURE("attention dgrad", 5.0 * scores,
            rrfp_attention_dgrad(&shape, dy, qkv, qkv + c, qkv + 2 * c, y, lse, dqkv, dqkv + c,
                                 dqkv + 2 * c, scratch));
    shape.dropout = 0.1f;
    shape.rng = &key;
    MEASURE("  with dropout", 2.0 * scores,
            rrfp_attention_fwd(&shape, qkv, qkv + c, qkv + 2 * c, y, lse, scratch));
    MEASURE("  with dropout", 5.0 * scores,
            rrfp_attention_dgrad(&shape, dy, qkv, qkv + c, qkv + 2 * c, y, lse, dqkv, dqkv + c,
                                 dqkv + 2 * c, scratch));
    MEASURE("dropout", 0.0, rrfp_dropout(x, y, n * c, 0.1f, 0, &key));
    MEASURE("add", 0.0, rrfp_add(y, x, n * c));
    MEASURE("embedding forward", 0.0, rrfp_embedding_fwd(tokens, wte, qkv, y, batch, t, c));
    MEASURE("embedding wgrad", 0.0, rrfp_embedding_wgrad(tokens, dy, dwte, dqkv, batch, t, c));
    MEASURE("cross-entropy", 0.0, rrfp_cross_entropy(logits, tokens, n, vocab, 1e-3f));
    double norm = 0.0;
    MEASURE("sum of squares", 0.0, norm += rrfp_sum_of_squares(w, c * hidden));
    rrfp_adamw opt = {1e-3f, 0.9f, 0.999f, 1e-8f, 0.1f, 1.0f, 10};
    MEASURE("adamw", 0.0, rrfp_adamw_update(&opt, w, dw, m, v, c * hidden));

    float *buffers[] = {x, y, dy, dx, w, dw, bias, gamma, beta, mean, rstd, lse, scratch, qkv,
                        dqkv, logits, wte, dwte, m, v};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        free(buffers[i]);
    free(tokens);
    return norm >= 0.0 ? 0 : 1;
}
