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

static void cross_entropy_body(void *context, size_t begin, size_t end)
{
    cross_entropy *a = context;
    size_t vocab = a->vocab;
    float buffer[EXP_RUN];
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
        double sum = 0.0;
        for (size_t j = 0; j < vocab; j += EXP_RUN) {
            size_t count = vocab - j < EXP_RUN ? vocab - j : EXP_RUN;
            sum += (double)exp_run(x + j, dx != NULL ? dx + j : buffer, count, max);
        }
        a->loss[row] = log(sum) + (double)max - (double)at_target;
        if (dx == NULL)
            continue;
        float factor = (float)((double)a->scale / sum);
        RRFP_VECTOR_LOOP
        for (size_t j = 0; j < vocab; j++)
            dx[j] *= factor;
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
