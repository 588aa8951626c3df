/*
 * gemm.c - GFLOP/s of the built-in GEMM library on a small GPT's own products:
 * forward, input gradient and weight gradient of its linear layers and the two
 * shapes of attention.  One thread.  docs/gemm.md holds the results.
 *
 *   bench_gemm [repeats]
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/kernels.h"
#include "timing.h"

enum { MAX_REPEATS = 101 };

/* One timing lasts about this many multiply-adds: some 5 ms. */
#define WORK_PER_TIMING 2.5e8

typedef struct product {
    const char *name;
    bool trans_a, trans_b;
    size_t m, n, k, lda, ldb, ldc;
    float beta;
} product;

static void measure(const product *p, int repeats)
{
    size_t rows_a = p->trans_a ? p->k : p->m, rows_b = p->trans_b ? p->n : p->k;
    float *a = bench_filled(rows_a * p->lda), *b = bench_filled(rows_b * p->ldb), *c = bench_filled(p->m * p->ldc);
    double work = (double)p->m * (double)p->n * (double)p->k, rate[MAX_REPEATS];
    size_t calls = (size_t)(WORK_PER_TIMING / work) + 1;
    for (int r = -1; r < repeats; r++) { /* the first timing only warms up */
        double start = bench_seconds();
        for (size_t i = 0; i < calls; i++)
            rrfp_gemm(p->trans_a, p->trans_b, p->m, p->n, p->k, a, p->lda, b, p->ldb, p->beta, c,
                      p->ldc);
        double seconds = bench_seconds() - start;
        if (r >= 0)
            rate[r] = 2e-9 * work * (double)calls / seconds;
    }
    qsort(rate, (size_t)repeats, sizeof *rate, bench_ascending);
    printf("| %s | %zux%zux%zu | %.1f | %.1f | %.1f |\n", p->name, p->m, p->n, p->k, rate[0],
           rate[repeats / 2], rate[repeats - 1]);
    free(a);
    free(b);
    free(c);
}

/* The three products of y(N,O) = x(N,I) w(I,O). */
static void measure_linear(const char *name, size_t n, size_t in, size_t out, int repeats)
{
    char label[3][64];
    const char *form[3] = {"forward", "dgrad", "wgrad"};
    for (int i = 0; i < 3; i++)
        snprintf(label[i], sizeof label[i], "%s %s", name, form[i]);
    const product products[3] = {
        {label[0], false, false, n, out, in, in, out, out, 1.0f},
        {label[1], false, true, n, in, out, out, out, in, 0.0f},
        {label[2], true, false, in, out, n, in, out, out, 1.0f},
    };
    for (int i = 0; i < 3; i++)
        measure(&products[i], repeats);
}

/* A block of query rows against its keys: q k^T, P v, P^T dy; qkv row stride 3C. */
static void measure_attention(size_t rows, size_t keys, size_t d, size_t stride, int repeats)
{
    const product products[3] = {
        {"attention q k^T", false, true, rows, keys, d, stride, stride, keys, 0.0f},
        {"attention P v", false, false, rows, d, keys, keys, stride, stride, 0.0f},
        {"attention P^T dy", true, false, keys, d, rows, keys, stride, stride, 1.0f},
    };
    for (int i = 0; i < 3; i++)
        measure(&products[i], repeats);
}

int main(int argc, char **argv)
{
    int repeats = argc > 1 ? atoi(argv[1]) : 11;
    if (repeats < 1 || repeats > MAX_REPEATS) {
        fprintf(stderr, "bench_gemm: repeats must be 1..%d, got %s\n", MAX_REPEATS, argv[1]);
        return 2;
    }
    rrfp_kernels_thread_init(1);
    printf("%s, one thread, GFLOP/s over %d timings\n\n", rrfp_kernels_gemm_name(), repeats);
    printf("| product | m x n x k | min | median | max |\n|---|---|---|---|---|\n");
    for (size_t n = 256; n <= 1024; n *= 4) {
        measure_linear("qkv", n, 256, 768, repeats);
        measure_linear("proj", n, 256, 256, repeats);
        measure_linear("fc", n, 256, 1024, repeats);
        measure_linear("fcproj", n, 1024, 256, repeats);
    }
    measure_linear("head", 256, 256, 256, repeats);
    measure_linear("head", 256, 256, 50257, repeats);
    measure_attention(128, 256, 64, 768, repeats);
    measure_attention(64, 256, 64, 768, repeats);
    measure_attention(64, 64, 64, 768, repeats);
    return 0;
}
