/*
 * gemm.c - matrix products on the library chosen at configure time; the only
 * file that knows which one (docs/gemm.md has the measurements).
 */
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/team.h"

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
    return "OpenBLAS" RRFP_GEMM_VERSION;
#else
    return "BLIS " RRFP_GEMM_VERSION;
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
    dnnl_status_t status = dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', (dnnl_dim_t)m,
                                      (dnnl_dim_t)n, (dnnl_dim_t)k, 1.0f, a, (dnnl_dim_t)lda, b,
                                      (dnnl_dim_t)ldb, beta, c, (dnnl_dim_t)ldc);
    if (status != dnnl_success) {
        /* Only its own work space can be lacking here; no op has a way to go on without. */
        fprintf(stderr, "rrfp: oneDNN failed (status %d) on a %zu x %zu x %zu product\n",
                (int)status, m, n, k);
        abort();
    }
#else
    cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans,
                trans_b ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, 1.0f, a, (int)lda, b,
                (int)ldb, beta, c, (int)ldc);
#endif
}
