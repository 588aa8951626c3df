/*
 * norm.c - LayerNorm and RMSNorm over rows x(N,C).
 *
 *   LayerNorm  xhat = (x - mean) rstd        y = gamma xhat + beta
 *              dx = rstd (g - mean(g) - xhat mean(g xhat)),  g = dy gamma
 *   RMSNorm    xhat = x rstd                 y = gamma xhat
 *              dx = rstd (g - xhat mean(g xhat))
 *
 * (Ba et al. 2016; Zhang and Sennrich 2019.)  Rows are independent; the weight
 * gradients go down the columns, rows in ascending order.
 */
#include "kernels/kernels.h"

#include "kernels/team.h"
#include "kernels/vec.h"

/* Rows per team cut; small enough for short micro-batches. */
enum { ROW_GRAIN = 8, COLUMN_GRAIN = 64 };

typedef struct norm {
    const float *dy, *x, *gamma, *beta;
    float *y, *mean, *rstd; /* y is dx in the backward */
    const float *saved_mean, *saved_rstd;
    float *dgamma, *dbeta;
    float eps;
    size_t n, c;
    bool accumulate;
} norm;

static void layernorm_fwd_body(void *context, size_t begin, size_t end)
{
    const norm *a = context;
    const float *gamma = a->gamma, *beta = a->beta;
    size_t c = a->c;
    for (size_t row = begin; row < end; row++) {
        const float *x = a->x + row * c;
        float *y = a->y + row * c;
        float mean = rrfp_lane_sum(x, c) / (float)c;
        /* Two passes: the deviations are held in y until they are scaled. */
        RRFP_VECTOR_LOOP
        for (size_t j = 0; j < c; j++)
            y[j] = x[j] - mean;
        float rstd = 1.0f / sqrtf(rrfp_lane_dot(y, y, c) / (float)c + a->eps);
        RRFP_VECTOR_LOOP
        for (size_t j = 0; j < c; j++)
            y[j] = rrfp_madd(y[j] * rstd, gamma[j], beta[j]);
        a->mean[row] = mean;
        a->rstd[row] = rstd;
    }
}

void rrfp_layernorm_fwd(const float *x, const float *gamma, const float *beta, float eps,
                        float *y, float *mean, float *rstd, size_t n, size_t c)
{
    norm a = {.x = x, .gamma = gamma, .beta = beta, .y = y, .mean = mean, .rstd = rstd,
              .eps = eps, .n = n, .c = c};
    rrfp_team_for(n, ROW_GRAIN, layernorm_fwd_body, &a);
}

static rrfp_v8 v8_at(const float *x, size_t i)
{
    return *(const rrfp_v8 *)(x + i);
}

/* Sum of dy gamma (x - mean): mean(g xhat) without its factor rstd / C. */
static float sum_g_deviation(const float *dy, const float *gamma, const float *x, float mean,
                             size_t c)
{
    float sum;
#define LOAD(i) (v8_at(dy, i) * v8_at(gamma, i) * (v8_at(x, i) - mean))
#define TAIL(i, k)                                                                                 \
    (rrfp_v8_partial(dy + (i), (k)) * rrfp_v8_partial(gamma + (i), (k)) *                          \
     (rrfp_v8_partial(x + (i), (k)) - mean))
    RRFP_LANE_SUM(sum, c, LOAD, TAIL);
#undef LOAD
#undef TAIL
    return sum;
}

static void layernorm_dgrad_body(void *context, size_t begin, size_t end)
{
    const norm *a = context;
    const float *gamma = a->gamma;
    size_t c = a->c;
    for (size_t row = begin; row < end; row++) {
        const float *x = a->x + row * c, *dy = a->dy + row * c;
        float *dx = a->y + row * c;
        float mean = a->saved_mean[row], rstd = a->saved_rstd[row];
        float mean_g = rrfp_lane_dot(dy, gamma, c) / (float)c;
        float mean_gx = sum_g_deviation(dy, gamma, x, mean, c) * rstd / (float)c;
        float per_deviation = -mean_gx * rstd;
        if (a->accumulate) {
            RRFP_VECTOR_LOOP
            for (size_t j = 0; j < c; j++) {
                float g = rrfp_madd(dy[j], gamma[j], -mean_g);
                dx[j] += rrfp_madd(x[j] - mean, per_deviation, g) * rstd;
            }
        } else {
            RRFP_VECTOR_LOOP
            for (size_t j = 0; j < c; j++) {
                float g = rrfp_madd(dy[j], gamma[j], -mean_g);
                dx[j] = rrfp_madd(x[j] - mean, per_deviation, g) * rstd;
            }
        }
    }
}

void rrfp_layernorm_dgrad(const float *dy, const float *x, const float *gamma,
                          const float *mean, const float *rstd, float *dx, size_t n, size_t c,
                          bool accumulate)
{
    norm a = {.dy = dy, .x = x, .gamma = gamma, .saved_mean = mean, .saved_rstd = rstd, .y = dx,
              .n = n, .c = c, .accumulate = accumulate};
    rrfp_team_for(n, ROW_GRAIN, layernorm_dgrad_body, &a);
}

static void layernorm_wgrad_body(void *context, size_t begin, size_t end)
{
    const norm *a = context;
    float *dgamma = a->dgamma, *dbeta = a->dbeta;
    size_t c = a->c, row = 0;
    for (; row + 2 <= a->n; row += 2) {
        const float *x = a->x + row * c, *dy = a->dy + row * c;
        const float *x1 = x + c, *dy1 = dy + c;
        float mean = a->saved_mean[row], rstd = a->saved_rstd[row];
        float mean1 = a->saved_mean[row + 1], rstd1 = a->saved_rstd[row + 1];
        RRFP_VECTOR_LOOP
        for (size_t j = begin; j < end; j++) {
            float both = dy[j] * ((x[j] - mean) * rstd);
            dgamma[j] += rrfp_madd(dy1[j], (x1[j] - mean1) * rstd1, both);
            dbeta[j] += dy[j] + dy1[j];
        }
    }
    if (row < a->n) {
        const float *x = a->x + row * c, *dy = a->dy + row * c;
        float mean = a->saved_mean[row], rstd = a->saved_rstd[row];
        RRFP_VECTOR_LOOP
        for (size_t j = begin; j < end; j++) {
            dgamma[j] += dy[j] * ((x[j] - mean) * rstd);
            dbeta[j] += dy[j];
        }
    }
}

void rrfp_layernorm_wgrad(const float *dy, const float *x, const float *mean,
                          const float *rstd, float *dgamma, float *dbeta, size_t n, size_t c)
{
    norm a = {.dy = dy, .x = x, .saved_mean = mean, .saved_rstd = rstd, .dgamma = dgamma,
              .dbeta = dbeta, .n = n, .c = c};
    rrfp_team_for(c, COLUMN_GRAIN, layernorm_wgrad_body, &a);
}

static void rmsnorm_fwd_body(void *context, size_t begin, size_t end)
{
    const norm *a = context;
    const float *gamma = a->gamma;
    size_t c = a->c;
    for (size_t row = begin; row < end; row++) {
        const float *x = a->x + row * c;
        float *y = a->y + row * c;
        float rstd = 1.0f / sqrtf(rrfp_lane_dot(x, x, c) / (float)c + a->eps);
        RRFP_VECTOR_LOOP
        for (size_t j = 0; j < c; j++)
            y[j] = x[j] * rstd * gamma[j];
        a->rstd[row] = rstd;
    }
}

void rrfp_rmsnorm_fwd(const float *x, const float *gamma, float eps, float *y, float *rstd,
                      size_t n, size_t c)
{
    norm a = {.x = x, .gamma = gamma, .y = y, .rstd = rstd, .eps = eps, .n = n, .c = c};
    rrfp_team_for(n, ROW_GRAIN, rmsnorm_fwd_body, &a);
}

static void rmsnorm_dgrad_body(void *context, size_t begin, size_t end)
{
    const norm *a = context;
    const float *gamma = a->gamma;
    size_t c = a->c;
    for (size_t row = begin; row < end; row++) {
        const float *x = a->x + row * c, *dy = a->dy + row * c;
        float *dx = a->y + row * c;
        float rstd = a->saved_rstd[row];
        float per_x = -(sum_g_deviation(dy, gamma, x, 0.0f, c) * rstd / (float)c) * rstd;
        if (a->accumulate) {
            RRFP_VECTOR_LOOP
            for (size_t j = 0; j < c; j++)
                dx[j] += rrfp_madd(x[j], per_x, dy[j] * gamma[j]) * rstd;
        } else {
            RRFP_VECTOR_LOOP
            for (size_t j = 0; j < c; j++)
                dx[j] = rrfp_madd(x[j], per_x, dy[j] * gamma[j]) * rstd;
        }
    }
}

void rrfp_rmsnorm_dgrad(const float *dy, const float *x, const float *gamma,
                        const float *rstd, float *dx, size_t n, size_t c, bool accumulate)
{
    norm a = {.dy = dy, .x = x, .gamma = gamma, .saved_rstd = rstd, .y = dx, .n = n, .c = c,
              .accumulate = accumulate};
    rrfp_team_for(n, ROW_GRAIN, rmsnorm_dgrad_body, &a);
}

static void rmsnorm_wgrad_body(void *context, size_t begin, size_t end)
{
    const norm *a = context;
    float *dgamma = a->dgamma;
    size_t c = a->c, row = 0;
    for (; row + 2 <= a->n; row += 2) {
        const float *x = a->x + row * c, *dy = a->dy + row * c;
        const float *x1 = x + c, *dy1 = dy + c;
        float rstd = a->saved_rstd[row], rstd1 = a->saved_rstd[row + 1];
        RRFP_VECTOR_LOOP
        for (size_t j = begin; j < end; j++)
            dgamma[j] += rrfp_madd(dy1[j], x1[j] * rstd1, dy[j] * (x[j] * rstd));
    }
    if (row < a->n) {
        const float *x = a->x + row * c, *dy = a->dy + row * c;
        float rstd = a->saved_rstd[row];
        RRFP_VECTOR_LOOP
        for (size_t j = begin; j < end; j++)
            dgamma[j] += dy[j] * (x[j] * rstd);
    }
}

void rrfp_rmsnorm_wgrad(const float *dy, const float *x, const float *rstd, float *dgamma,
                        size_t n, size_t c)
{
    norm a = {.dy = dy, .x = x, .saved_rstd = rstd, .dgamma = dgamma, .n = n, .c = c};
    rrfp_team_for(c, COLUMN_GRAIN, rmsnorm_wgrad_body, &a);
}
