/*
 * linear.c - y(N,O) = x(N,I) w + bias(O) and its gradients.
 *
 *   dx = dy w^T      dw += x^T dy      dbias += column sums of dy
 *
 * With `transposed` the weight is stored (O,I); only the GEMM's transposition
 * flags change.
 */
#include "kernels/kernels.h"

#include <string.h>

#include "kernels/team.h"
#include "kernels/vec.h"

typedef struct bias_rows {
    const float *bias;
    float *y;
    size_t out;
} bias_rows;

static void bias_rows_body(void *context, size_t begin, size_t end)
{
    const bias_rows *a = context;
    for (size_t row = begin; row < end; row++)
        memcpy(a->y + row * a->out, a->bias, a->out * sizeof *a->y);
}

void rrfp_linear_fwd(const float *x, const float *w, const float *bias, float *y, size_t n,
                     size_t in, size_t out, bool transposed)
{
    /* The bias is what the product is added to: one pass less over y. */
    if (bias != NULL)
        rrfp_team_for(n, 16, bias_rows_body, &(bias_rows){bias, y, out});
    rrfp_gemm(false, transposed, n, out, in, x, in, w, transposed ? in : out,
              bias != NULL ? 1.0f : 0.0f, y, out);
}

void rrfp_linear_dgrad(const float *dy, const float *w, float *dx, size_t n, size_t in,
                       size_t out, bool transposed, bool accumulate)
{
    rrfp_gemm(false, !transposed, n, in, out, dy, out, w, transposed ? in : out,
              accumulate ? 1.0f : 0.0f, dx, in);
}

typedef struct column_sums {
    const float *dy;
    float *dbias;
    size_t n, out;
} column_sums;

static void column_sums_body(void *context, size_t begin, size_t end)
{
    const column_sums *a = context;
    size_t out = a->out, row = 0;
    float *dbias = a->dbias;
    /* Four rows at a time: a quarter of the traffic on dbias. */
    for (; row + 4 <= a->n; row += 4) {
        const float *dy = a->dy + row * out;
        RRFP_VECTOR_LOOP
        for (size_t j = begin; j < end; j++)
            dbias[j] += (dy[j] + dy[out + j]) + (dy[2 * out + j] + dy[3 * out + j]);
    }
    for (; row < a->n; row++) {
        const float *dy = a->dy + row * out;
        RRFP_VECTOR_LOOP
        for (size_t j = begin; j < end; j++)
            dbias[j] += dy[j];
    }
}

void rrfp_linear_wgrad(const float *x, const float *dy, float *dw, float *dbias, size_t n,
                       size_t in, size_t out, bool transposed)
{
    if (transposed)
        rrfp_gemm(true, false, out, in, n, dy, out, x, in, 1.0f, dw, in);
    else
        rrfp_gemm(true, false, in, out, n, x, in, dy, out, 1.0f, dw, out);
    if (dbias != NULL)
        rrfp_team_for(out, 64, column_sums_body, &(column_sums){dy, dbias, n, out});
}
