/*
 * gemm.c - matrix products on the library chosen at configure time; the only
 * file that knows which one (docs/gemm.md has the measurements).
 */
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/team.h"
#include "kernels/vec.h"

#if defined(RRFP_GEMM_ONEDNN)
#include <dnnl.h>
#elif defined(RRFP_GEMM_OPENBLAS)
#include <cblas.h>
#elif defined(RRFP_GEMM_BLIS)
#include <blis.h>
#include <cblas.h>
#else
#error "define one of RRFP_GEMM_ONEDNN, RRFP_GEMM_OPENBLAS, RRFP_GEMM_BLIS"
#endif

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const char *rrfp_kernels_gemm_name(void)
{
#if defined(RRFP_GEMM_ONEDNN)
    return "oneDNN " TEXT(DNNL_VERSION_MAJOR) "." TEXT(DNNL_VERSION_MINOR) "." TEXT(
        DNNL_VERSION_PATCH);
#elif defined(RRFP_GEMM_OPENBLAS)
    return "OpenBLAS " RRFP_GEMM_VERSION;
#else
    /* Its version is known at run time only. */
    static _Thread_local char name[64];
    snprintf(name, sizeof name, "BLIS %s", bli_info_get_version_str());
    return name;
#endif
}

void rrfp_gemm_thread_init(int threads)
{
#if defined(RRFP_GEMM_ONEDNN)
    (void)threads; /* follows OpenMP's count of the calling thread */
#elif defined(RRFP_GEMM_OPENBLAS)
    openblas_set_num_threads(threads); /* one count for the process */
#else
    bli_thread_set_num_threads(threads); /* one count for the process */
#endif
}

/* What remains of C = op(A) op(B) + beta C when the inner dimension is empty. */
static void scale_rows(size_t m, size_t n, float beta, float *c, size_t ldc)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            c[i * ldc + j] = beta == 0.0f ? 0.0f : beta * c[i * ldc + j];
}

#if defined(RRFP_GEMM_ONEDNN)

/*
 * oneDNN's AVX2 kernel for narrow products (the smaller side under some 500)
 * reads its operands where they lie.  Walking down k with a stride that is a
 * multiple of 2 KiB then hits the same few cache sets at every step (33 in place
 * of 75 GFLOP/s for a 256 x 1024 weight gradient), and a transposed A is slower
 * than a plain one in any case.  Such operands are copied panel by panel into
 * padded rows on the stack first; the order of sums depends on the shape alone.
 */
enum { PADDING = 16, BAD_STRIDE = 512, WORTH_PACKING = 64 };
/* A^T B: panels of A are TALL_M x TALL_K.  A B: k is cut at WIDE_K, A stays. */
enum { TALL_K = 128, TALL_M = 256, ROW_A = TALL_K + PADDING, WIDE_K = 256, COLUMN_GRAIN = 128 };
enum { PACKED_B_FLOATS = WIDE_K * (128 + PADDING) };
_Static_assert(TALL_K * (256 + PADDING) <= PACKED_B_FLOATS, "both widths of B panels fit");

typedef struct product {
    bool trans_a, trans_b;
    size_t m, n, k, lda, ldb, ldc;
    const float *a, *b;
    float beta;
    float *c;
} product;

static void multiply(const product *p)
{
    dnnl_status_t status =
        dnnl_sgemm(p->trans_a ? 'T' : 'N', p->trans_b ? 'T' : 'N', (dnnl_dim_t)p->m,
                   (dnnl_dim_t)p->n, (dnnl_dim_t)p->k, 1.0f, p->a, (dnnl_dim_t)p->lda, p->b,
                   (dnnl_dim_t)p->ldb, p->beta, p->c, (dnnl_dim_t)p->ldc);
    if (status != dnnl_success) {
        /* Only its own work space can be lacking here; no op has a way to go on without. */
        fprintf(stderr, "rrfp: oneDNN failed (status %d) on a %zu x %zu x %zu product\n",
                (int)status, p->m, p->n, p->k);
        abort();
    }
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* out(i,l) = a(l,i): k rows of m become m rows of k, ROW_A apart. */
static void transpose_panel(const float *restrict a, size_t lda, float *restrict out, size_t k,
                            size_t m)
{
    size_t l = 0;
    /* Eight rows of a at a time, along the rows: each cache line is read once. */
    for (; l + 8 <= k; l += 8) {
        size_t i = 0;
        for (; i + 8 <= m; i += 8)
            rrfp_transpose_8x8(a + l * lda + i, lda, out + i * ROW_A + l, ROW_A);
        for (; i < m; i++)
            for (size_t x = l; x < l + 8; x++)
                out[i * ROW_A + x] = a[x * lda + i];
    }
    for (; l < k; l++)
        for (size_t i = 0; i < m; i++)
            out[i * ROW_A + l] = a[l * lda + i];
}

/* One k-panel of the columns [0, p->n): B by B panel through the stack. */
static void multiply_packing_b(product p)
{
    float packed[PACKED_B_FLOATS] __attribute__((aligned(64)));
    const float *b = p.b;
    size_t n = p.n, ldb = p.ldb, width = p.k <= TALL_K ? 256 : 128;
    float *c = p.c;
    p.b = packed;
    p.ldb = width + PADDING;
    for (size_t j = 0; j < n; j += width) {
        p.n = smaller(n - j, width);
        p.c = c + j;
        for (size_t l = 0; l < p.k; l++)
            memcpy(packed + l * p.ldb, b + l * ldb + j, p.n * sizeof *packed);
        multiply(&p);
    }
}

static void multiply_k_panel(const product *p)
{
    if (p->ldb % BAD_STRIDE == 0)
        multiply_packing_b(*p);
    else
        multiply(p);
}

/* C rows [begin, end) of A^T B. */
static void transposed_a_body(void *context, size_t begin, size_t end)
{
    const product *whole = context;
    float packed[TALL_M * ROW_A] __attribute__((aligned(64)));
    product p = *whole;
    p.trans_a = false;
    p.a = packed;
    p.lda = ROW_A;
    for (size_t l = 0; l < whole->k; l += TALL_K) {
        p.k = smaller(whole->k - l, TALL_K);
        p.b = whole->b + l * whole->ldb;
        p.beta = l == 0 ? whole->beta : 1.0f;
        for (size_t i = begin; i < end; i += TALL_M) {
            p.m = smaller(end - i, TALL_M);
            p.c = whole->c + i * whole->ldc;
            transpose_panel(whole->a + l * whole->lda + i, whole->lda, packed, p.k, p.m);
            multiply_k_panel(&p);
        }
    }
}

/* C columns [begin, end) of A B. */
static void plain_body(void *context, size_t begin, size_t end)
{
    const product *whole = context;
    product p = *whole;
    p.n = end - begin;
    p.c = whole->c + begin;
    for (size_t l = 0; l < whole->k; l += WIDE_K) {
        p.k = smaller(whole->k - l, WIDE_K);
        p.a = whole->a + l;
        p.b = whole->b + l * whole->ldb + begin;
        p.beta = l == 0 ? whole->beta : 1.0f;
        multiply_k_panel(&p);
    }
}

static void multiply_by_panels(product *p)
{
    /* Above this size the library packs by itself (its own threshold for AVX2). */
    bool packs_itself = 1.0 / (double)p->m + 1.0 / (double)p->n < 0.0038;
    bool worth = p->m >= WORTH_PACKING && p->n >= WORTH_PACKING && p->k >= WORTH_PACKING;
    if (p->trans_b || packs_itself || !worth)
        multiply(p);
    else if (p->trans_a)
        rrfp_team_for(p->m, TALL_M, transposed_a_body, p);
    else
        rrfp_team_for(p->n, COLUMN_GRAIN, plain_body, p);
}

#endif /* RRFP_GEMM_ONEDNN */

void rrfp_gemm(bool trans_a, bool trans_b, size_t m, size_t n, size_t k, const float *a,
               size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc)
{
    if (m == 0 || n == 0)
        return;
    if (k == 0) {
        scale_rows(m, n, beta, c, ldc);
        return;
    }
#if defined(RRFP_GEMM_ONEDNN)
    multiply_by_panels(&(product){trans_a, trans_b, m, n, k, lda, ldb, ldc, a, b, beta, c});
#else
    cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans,
                trans_b ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, 1.0f, a, (int)lda, b,
                (int)ldb, beta, c, (int)ldc);
#endif
}
