/*
 * embedding.c - token and position embedding, rotary position embedding.
 */
#include "kernels/kernels.h"

#include <string.h>

#include "kernels/team.h"
#include "kernels/vec.h"

typedef struct embedding {
    const int32_t *tokens;
    const float *wte, *wpe, *dy;
    float *y, *dwte, *dwpe;
    size_t batch, t, c;
    rrfp_vocab_part part;
} embedding;

static const rrfp_vocab_part whole = {0, INT32_MAX};

/* The row of a token in this part, or -1. */
static int32_t row_of(const embedding *a, int32_t token)
{
    return token >= a->part.first && token - a->part.first < a->part.count
               ? token - a->part.first
               : -1;
}

static void embedding_fwd_body(void *context, size_t begin, size_t end)
{
    const embedding *a = context;
    size_t c = a->c;
    for (size_t row = begin; row < end; row++) {
        int32_t entry = row_of(a, a->tokens[row]);
        const float *token = entry >= 0 ? a->wte + (size_t)entry * c : NULL;
        const float *position = a->wpe != NULL ? a->wpe + row % a->t * c : NULL;
        float *y = a->y + row * c;
        if (token == NULL && position == NULL) {
            memset(y, 0, c * sizeof *y);
            continue;
        }
        if (token == NULL || position == NULL) {
            memcpy(y, token != NULL ? token : position, c * sizeof *y);
            continue;
        }
        RRFP_VECTOR_LOOP
        for (size_t j = 0; j < c; j++)
            y[j] = token[j] + position[j];
    }
}

void rrfp_embedding_part_fwd(const int32_t *tokens, const float *wte, const float *wpe, float *y,
                             size_t batch, size_t t, size_t c, rrfp_vocab_part part)
{
    embedding a = {.tokens = tokens, .wte = wte, .wpe = wpe, .y = y, .batch = batch, .t = t,
                   .c = c, .part = part};
    rrfp_team_for(batch * t, 16, embedding_fwd_body, &a);
}

void rrfp_embedding_fwd(const int32_t *tokens, const float *wte, const float *wpe, float *y,
                        size_t batch, size_t t, size_t c)
{
    rrfp_embedding_part_fwd(tokens, wte, wpe, y, batch, t, c, whole);
}

/* Rows that share a token meet in one weight row, so a team divides the columns. */
static void embedding_wgrad_body(void *context, size_t begin, size_t end)
{
    const embedding *a = context;
    size_t c = a->c;
    for (size_t row = 0; row < a->batch * a->t; row++) {
        const float *dy = a->dy + row * c;
        int32_t entry = row_of(a, a->tokens[row]);
        if (entry >= 0) {
            float *dtoken = a->dwte + (size_t)entry * c;
            RRFP_VECTOR_LOOP
            for (size_t j = begin; j < end; j++)
                dtoken[j] += dy[j];
        }
        if (a->dwpe == NULL)
            continue;
        float *dposition = a->dwpe + row % a->t * c;
        RRFP_VECTOR_LOOP
        for (size_t j = begin; j < end; j++)
            dposition[j] += dy[j];
    }
}

void rrfp_embedding_part_wgrad(const int32_t *tokens, const float *dy, float *dwte, float *dwpe,
                               size_t batch, size_t t, size_t c, rrfp_vocab_part part)
{
    embedding a = {.tokens = tokens, .dy = dy, .dwte = dwte, .dwpe = dwpe, .batch = batch,
                   .t = t, .c = c, .part = part};
    rrfp_team_for(c, 64, embedding_wgrad_body, &a);
}

void rrfp_embedding_wgrad(const int32_t *tokens, const float *dy, float *dwte, float *dwpe,
                          size_t batch, size_t t, size_t c)
{
    rrfp_embedding_part_wgrad(tokens, dy, dwte, dwpe, batch, t, c, whole);
}

/* Frequencies handled at a time: their sines and cosines live on the stack. */
enum { FREQUENCIES = 64 };

static void rotate(float *restrict low, float *restrict high, const float *restrict cosine,
                   const float *restrict sine, size_t count)
{
    RRFP_VECTOR_LOOP
    for (size_t i = 0; i < count; i++) {
        float a = low[i], b = high[i];
        low[i] = rrfp_madd(a, cosine[i], -(b * sine[i]));
        high[i] = rrfp_madd(b, cosine[i], a * sine[i]);
    }
}

/*
 * Pairs (x[i], x[i + d/2]) turn by position * theta^(-2i/d) (Su et al. 2021, in
 * the half-split layout).  Frequencies and angles are rounded to float as Hugging
 * Face does, so that long sequences see the same angles; sine and cosine are made
 * once per position and serve all sequences and heads.
 */
void rrfp_rope(float *x, size_t batch, size_t t, size_t heads, size_t d, size_t stride,
               float theta, bool inverse)
{
    size_t half = d / 2;
    for (size_t first = 0; first < half; first += FREQUENCIES) {
        float frequency[FREQUENCIES], cosine[FREQUENCIES], sine[FREQUENCIES];
        size_t count = half - first < FREQUENCIES ? half - first : FREQUENCIES;
        for (size_t i = 0; i < count; i++)
            frequency[i] = (float)pow((double)theta, -2.0 * (double)(first + i) / (double)d);
        for (size_t position = 0; position < t; position++) {
            for (size_t i = 0; i < count; i++) {
                float angle = (float)position * frequency[i];
                cosine[i] = cosf(angle);
                sine[i] = inverse ? -sinf(angle) : sinf(angle);
            }
            for (size_t b = 0; b < batch; b++) {
                float *row = x + (b * t + position) * stride + first;
                for (size_t h = 0; h < heads; h++)
                    rotate(row + h * d, row + h * d + half, cosine, sine, count);
            }
        }
    }
}
