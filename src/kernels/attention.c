/*
 * attention.c - causal attention with grouped queries, block by block.
 *
 *   S = q k^T / sqrt(D), causal    P = softmax(S)    y = P v
 *   dv = P^T dy    dS = P (dy v^T - rowsum(dy y))    dq = dS k    dk = dS^T q
 *
 * One block of query rows against the keys it may see is held at a time:
 *
 *        keys 0 .. i0+rows
 *      +-------------------\          S is (rows, columns), columns = i0 + rows;
 *   i0 |                    \         the corner above the diagonal is computed
 *      +---------------------\        by the product and then set to zero.
 *
 * The backward makes P again from the kept log-sum-exp (Dao et al. 2022) and holds
 * P and dS, together 128 rows.  q, k and v go
 * into the products where they lie, by their strides.
 */
#include "kernels/kernels.h"

#include "kernels/philox.h"
#include "kernels/team.h"
#include "kernels/vec.h"

/* Half of 128: the corner above the diagonal wastes less (measured, bench/kernels.c). */
enum { BLOCK_ROWS = 64 };

typedef struct block {
    float *scores, *dscores; /* (rows, columns) each */
    size_t first, rows, columns;
    float scale, dropout;
    rrfp_rng_stream stream;
    uint64_t element; /* random index of score (first, 0) */
    size_t t, d;
    float *lse; /* of row `first` onwards, as all below */
    const float *kept_lse;
    float *y;
    const float *saved_y, *dy;
    size_t y_stride;
    float inverse_sum[BLOCK_ROWS];
} block;

size_t rrfp_attention_scratch_floats(size_t t, size_t d)
{
    (void)d; /* q, k, v and y are used where they lie */
    return 2 * (t < BLOCK_ROWS ? t : BLOCK_ROWS) * t;
}

static size_t rows_from(size_t first, size_t t)
{
    return t - first < BLOCK_ROWS ? t - first : BLOCK_ROWS;
}

/* Multiplies row i, columns [0, count), by its dropout factors. */
static void drop_row(const block *a, size_t i, float *row, size_t count)
{
    float factor[RRFP_DROPOUT_RUN];
    for (size_t j = 0; j < count; j += RRFP_DROPOUT_RUN) {
        size_t run = count - j < RRFP_DROPOUT_RUN ? count - j : RRFP_DROPOUT_RUN;
        rrfp_dropout_factors(&a->stream, a->element + i * a->t + j, run, a->dropout, factor);
        RRFP_VECTOR_LOOP
        for (size_t l = 0; l < run; l++)
            row[j + l] *= factor[l];
    }
}

/* exp(scale (s - max)) in place, not yet divided by the sum. */
static void softmax_body(void *context, size_t begin, size_t end)
{
    block *a = context;
    float scale = a->scale;
    for (size_t i = begin; i < end; i++) {
        float *row = a->scores + i * a->columns;
        size_t count = a->first + i + 1;
        float max = rrfp_lane_max(row, count);
        RRFP_VECTOR_LOOP
        for (size_t j = 0; j < count; j++)
            row[j] = rrfp_exp((row[j] - max) * scale);
        float sum = rrfp_lane_sum(row, count);
        a->lse[i] = (float)((double)max * (double)scale + log((double)sum));
        a->inverse_sum[i] = 1.0f / sum;
        if (a->dropout > 0.0f)
            drop_row(a, i, row, count);
        memset(row + count, 0, (a->columns - count) * sizeof *row);
    }
}

/* The division by the sum, on D values a row in place of up to T. */
static void divide_body(void *context, size_t begin, size_t end)
{
    block *a = context;
    for (size_t i = begin; i < end; i++) {
        float *y = a->y + i * a->y_stride, inverse = a->inverse_sum[i];
        RRFP_VECTOR_LOOP
        for (size_t j = 0; j < a->d; j++)
            y[j] *= inverse;
    }
}

/* The place of head h of sequence b among those that draw random numbers. */
static uint64_t random_head(const rrfp_attention_shape *shape, size_t b, size_t h)
{
    size_t all = shape->all_heads > 0 ? shape->all_heads : shape->heads;
    return (uint64_t)b * all + shape->first_head + h;
}

static block block_of(const rrfp_attention_shape *shape, float *scratch)
{
    block a = {.scores = scratch, .t = shape->t, .d = shape->d, .dropout = shape->dropout,
               .scale = (float)(1.0 / sqrt((double)shape->d)), .y_stride = shape->y_stride};
    if (shape->dropout > 0.0f)
        a.stream = rrfp_rng_stream_of(shape->rng);
    return a;
}

void rrfp_attention_fwd(const rrfp_attention_shape *shape, const float *q, const float *k,
                        const float *v, float *y, float *lse, float *scratch)
{
    size_t t = shape->t, d = shape->d, heads = shape->heads;
    block a = block_of(shape, scratch);
    for (size_t b = 0; b < shape->batch; b++) {
        for (size_t h = 0; h < heads; h++) {
            size_t g = h * shape->kv_heads / heads;
            const float *keys = k + b * t * shape->kv_stride + g * d;
            const float *values = v + b * t * shape->kv_stride + g * d;
            for (a.first = 0; a.first < t; a.first += BLOCK_ROWS) {
                size_t position = b * t + a.first;
                a.rows = rows_from(a.first, t);
                a.columns = a.first + a.rows;
                a.lse = lse + (b * heads + h) * t + a.first;
                a.element = (random_head(shape, b, h) * t + a.first) * t;
                a.y = y + position * shape->y_stride + h * d;
                rrfp_gemm(false, true, a.rows, a.columns, d,
                          q + position * shape->q_stride + h * d, shape->q_stride, keys,
                          shape->kv_stride, 0.0f, a.scores, a.columns);
                rrfp_team_for(a.rows, 1, softmax_body, &a);
                rrfp_gemm(false, false, a.rows, d, a.columns, a.scores, a.columns, values,
                          shape->kv_stride, 0.0f, a.y, shape->y_stride);
                rrfp_team_for(a.rows, 1, divide_body, &a);
            }
        }
    }
}

/* One row: scores become P, dscores become scale * dS. */
static void backward_row(const block *a, float *restrict row, float *restrict drow, size_t count,
                         float lse, float delta)
{
    float scale = a->scale;
    RRFP_VECTOR_LOOP
    for (size_t j = 0; j < count; j++) {
        float p = rrfp_exp(rrfp_madd(row[j], scale, -lse));
        row[j] = p;
        drow[j] = p * (drow[j] - delta) * scale;
    }
}

/* The same with the mask of row i: dropped and scaled P goes into dv, the bare P into dS. */
static void backward_row_dropout(const block *a, size_t i, float *restrict row,
                                 float *restrict drow, size_t count, float lse, float delta)
{
    float factor[RRFP_DROPOUT_RUN], scale = a->scale;
    for (size_t j = 0; j < count; j += RRFP_DROPOUT_RUN) {
        size_t run = count - j < RRFP_DROPOUT_RUN ? count - j : RRFP_DROPOUT_RUN;
        float *restrict p_row = row + j, *restrict ds_row = drow + j;
        rrfp_dropout_factors(&a->stream, a->element + i * a->t + j, run, a->dropout, factor);
        RRFP_VECTOR_LOOP
        for (size_t l = 0; l < run; l++) {
            float p = rrfp_exp(rrfp_madd(p_row[l], scale, -lse));
            p_row[l] = p * factor[l];
            ds_row[l] = p * (ds_row[l] * factor[l] - delta) * scale;
        }
    }
}

static void backward_body(void *context, size_t begin, size_t end)
{
    block *a = context;
    for (size_t i = begin; i < end; i++) {
        float *row = a->scores + i * a->columns, *drow = a->dscores + i * a->columns;
        size_t count = a->first + i + 1;
        float lse = a->kept_lse[i];
        float delta = rrfp_lane_dot(a->dy + i * a->y_stride, a->saved_y + i * a->y_stride, a->d);
        if (a->dropout > 0.0f)
            backward_row_dropout(a, i, row, drow, count, lse, delta);
        else
            backward_row(a, row, drow, count, lse, delta);
        memset(row + count, 0, (a->columns - count) * sizeof *row);
        memset(drow + count, 0, (a->columns - count) * sizeof *drow);
    }
}

void rrfp_attention_dgrad(const rrfp_attention_shape *shape, const float *dy, const float *q,
                          const float *k, const float *v, const float *y, const float *lse,
                          float *dq, float *dk, float *dv, float *scratch)
{
    size_t t = shape->t, d = shape->d, heads = shape->heads;
    size_t q_stride = shape->q_stride, kv_stride = shape->kv_stride, y_stride = shape->y_stride;
    size_t block_count = (t + BLOCK_ROWS - 1) / BLOCK_ROWS;
    block a = block_of(shape, scratch);
    for (size_t b = 0; b < shape->batch; b++) {
        for (size_t h = 0; h < heads; h++) {
            size_t g = h * shape->kv_heads / heads;
            size_t kv_at = b * t * kv_stride + g * d;
            bool first_of_group = h == 0 || (h - 1) * shape->kv_heads / heads != g;
            /* The last block sees every key: it alone writes dk and dv, the others add. */
            for (size_t index = block_count; index-- > 0;) {
                float beta = first_of_group && index + 1 == block_count ? 0.0f : 1.0f;
                a.first = index * BLOCK_ROWS;
                a.rows = rows_from(a.first, t);
                a.columns = a.first + a.rows;
                a.dscores = a.scores + a.rows * a.columns;
                a.kept_lse = lse + (b * heads + h) * t + a.first;
                a.element = (random_head(shape, b, h) * t + a.first) * t;
                size_t position = b * t + a.first;
                size_t q_at = position * q_stride + h * d, y_at = position * y_stride + h * d;
                a.dy = dy + y_at;
                a.saved_y = y + y_at;
                rrfp_gemm(false, true, a.rows, a.columns, d, q + q_at, q_stride, k + kv_at,
                          kv_stride, 0.0f, a.scores, a.columns);
                rrfp_gemm(false, true, a.rows, a.columns, d, a.dy, y_stride, v + kv_at,
                          kv_stride, 0.0f, a.dscores, a.columns);
                rrfp_team_for(a.rows, 1, backward_body, &a);
                rrfp_gemm(true, false, a.columns, d, a.rows, a.scores, a.columns, a.dy, y_stride,
                          beta, dv + kv_at, kv_stride);
                rrfp_gemm(false, false, a.rows, d, a.columns, a.dscores, a.columns, k + kv_at,
                          kv_stride, 0.0f, dq + q_at, q_stride);
                rrfp_gemm(true, false, a.columns, d, a.rows, a.dscores, a.columns, q + q_at,
                          q_stride, beta, dk + kv_at, kv_stride);
            }
        }
    }
}
