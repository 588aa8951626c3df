/*
 * loss.c - softmax cross-entropy over logits(N,V).
 *
 *   loss = log(sum_j exp(l_j - max)) + max - l_target
 *   dl   = (softmax(l) - onehot(target)) scale
 */
#include "kernels/kernels.h"

#include <assert.h>
#include <string.h>

#include "kernels/team.h"
#include "kernels/vec.h"

/* EXP_RUN: exponentials summed in float before they join a double; ROW_RUN: rows
 * whose losses wait for their turn, so that a team adds them in row order. */
enum { EXP_RUN = 1024, ROW_RUN = 64 };

typedef struct cross_entropy {
    const float *logits;
    float *dlogits; /* NULL for evaluation, else the logits themselves */
    const int32_t *targets;
    size_t first, vocab;
    float scale;
    double loss[ROW_RUN];
} cross_entropy;

/* Exponentials of one run to `out`, their sum returned. */
static float exp_run(const float *x, float *out, size_t count, float max)
{
    RRFP_VECTOR_LOOP
    for (size_t j = 0; j < count; j++)
        out[j] = rrfp_exp(x[j] - max);
    return rrfp_lane_sum(out, count);
}

/* The same of a whole row.  `out` may be x; NULL: the exponentials go nowhere. */
static double exp_row(const float *x, float *out, size_t count, float max)
{
    float buffer[EXP_RUN];
    double sum = 0.0;
    for (size_t j = 0; j < count; j += EXP_RUN) {
        size_t run = count - j < EXP_RUN ? count - j : EXP_RUN;
        sum += (double)exp_run(x + j, out != NULL ? out + j : buffer, run, max);
    }
    return sum;
}

static void scale_row(float *row, size_t count, float factor)
{
    RRFP_VECTOR_LOOP
    for (size_t j = 0; j < count; j++)
        row[j] *= factor;
}

static void cross_entropy_body(void *context, size_t begin, size_t end)
{
    cross_entropy *a = context;
    size_t vocab = a->vocab;
    for (size_t row = begin; row < end; row++) {
        const float *x = a->logits + (a->first + row) * vocab;
        float *dx = a->dlogits != NULL ? a->dlogits + (a->first + row) * vocab : NULL;
        int32_t target = a->targets[a->first + row];
        assert(target < 0 || (size_t)target < vocab);
        a->loss[row] = 0.0;
        if (target < 0) {
            if (dx != NULL)
                memset(dx, 0, vocab * sizeof *dx);
            continue;
        }
        float max = rrfp_lane_max(x, vocab), at_target = x[target];
        double sum = exp_row(x, dx, vocab, max);
        a->loss[row] = log(sum) + (double)max - (double)at_target;
        if (dx == NULL)
            continue;
        scale_row(dx, vocab, (float)((double)a->scale / sum));
        dx[target] -= a->scale;
    }
}

static double cross_entropy_rows(const float *logits, float *dlogits, const int32_t *targets,
                                 size_t n, size_t vocab, float scale)
{
    cross_entropy a = {.logits = logits, .dlogits = dlogits, .targets = targets,
                       .vocab = vocab, .scale = scale};
    double loss = 0.0;
    for (; a.first < n; a.first += ROW_RUN) {
        size_t rows = n - a.first < ROW_RUN ? n - a.first : ROW_RUN;
        rrfp_team_for(rows, 1, cross_entropy_body, &a);
        for (size_t row = 0; row < rows; row++)
            loss += a.loss[row];
    }
    return loss;
}

double rrfp_cross_entropy(float *logits, const int32_t *targets, size_t n, size_t vocab,
                          float scale)
{
    return cross_entropy_rows(logits, logits, targets, n, vocab, scale);
}

double rrfp_cross_entropy_loss(const float *logits, const int32_t *targets, size_t n,
                               size_t vocab)
{
    return cross_entropy_rows(logits, NULL, targets, n, vocab, 0.0f);
}

/* ---- each member of a group has a part of every row ---- */

typedef struct vocab_rows {
    const float *logits;
    float *out; /* the logits themselves, or NULL */
    const int32_t *targets;
    rrfp_vocab_part part;
    const float *row_max;
    float *row_max_out;
    rrfp_cross_entropy_sums *sums;
    const rrfp_cross_entropy_sums *all_sums;
    float scale;
} vocab_rows;

static bool in_part(rrfp_vocab_part part, int32_t target)
{
    return target >= part.first && target - part.first < part.count;
}

static void part_max_body(void *context, size_t begin, size_t end)
{
    const vocab_rows *a = context;
    size_t width = (size_t)a->part.count;
    for (size_t row = begin; row < end; row++)
        a->row_max_out[row] = rrfp_lane_max(a->logits + row * width, width);
}

void rrfp_cross_entropy_part_max(const float *logits, size_t n, rrfp_vocab_part part,
                                 float *row_max)
{
    vocab_rows a = {.logits = logits, .part = part, .row_max_out = row_max};
    rrfp_team_for(n, 1, part_max_body, &a);
}

static void part_exp_body(void *context, size_t begin, size_t end)
{
    const vocab_rows *a = context;
    size_t width = (size_t)a->part.count;
    for (size_t row = begin; row < end; row++) {
        float *x = a->out + row * width, max = a->row_max[row];
        int32_t target = a->targets[row];
        rrfp_cross_entropy_sums *sums = &a->sums[row];
        sums->target = 0.0;
        if (in_part(a->part, target))
            sums->target = (double)x[target - a->part.first] - (double)max;
        sums->exponentials = exp_row(x, x, width, max);
    }
}

void rrfp_cross_entropy_part_exp(float *logits, const int32_t *targets, size_t n,
                                 rrfp_vocab_part part, const float *row_max,
                                 rrfp_cross_entropy_sums *sums)
{
    vocab_rows a = {.out = logits, .targets = targets, .part = part, .row_max = row_max,
                    .sums = sums};
    rrfp_team_for(n, 1, part_exp_body, &a);
}

static void part_finish_body(void *context, size_t begin, size_t end)
{
    const vocab_rows *a = context;
    size_t width = (size_t)a->part.count;
    for (size_t row = begin; row < end; row++) {
        float *dx = a->out + row * width;
        int32_t target = a->targets[row];
        if (target < 0) {
            memset(dx, 0, width * sizeof *dx);
            continue;
        }
        scale_row(dx, width, (float)((double)a->scale / a->all_sums[row].exponentials));
        if (in_part(a->part, target))
            dx[target - a->part.first] -= a->scale;
    }
}

double rrfp_cross_entropy_part_finish(float *logits, const int32_t *targets, size_t n,
                                      rrfp_vocab_part part, const rrfp_cross_entropy_sums *sums,
                                      float scale)
{
    vocab_rows a = {.out = logits, .targets = targets, .part = part, .all_sums = sums,
                    .scale = scale};
    double loss = 0.0;
    rrfp_team_for(n, 1, part_finish_body, &a);
    for (size_t row = 0; row < n; row++)
        loss += targets[row] < 0 ? 0.0 : log(sums[row].exponentials) - sums[row].target;
    return loss;
}
