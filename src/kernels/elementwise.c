/*
 * elementwise.c - dropout, sums, bfloat16.
 */
#include "kernels/kernels.h"

#include "kernels/philox.h"
#include "kernels/team.h"
#include "kernels/vec.h"

enum { ELEMENT_GRAIN = 4096 };

typedef struct dropout {
    const float *x;
    float *y;
    float p;
    uint64_t element; /* of x[0] */
    rrfp_rng_stream stream;
} dropout;

static void dropout_body(void *context, size_t begin, size_t end)
{
    const dropout *a = context;
    float factor[RRFP_DROPOUT_RUN];
    for (size_t first = begin; first < end; first += RRFP_DROPOUT_RUN) {
        size_t count = end - first < RRFP_DROPOUT_RUN ? end - first : RRFP_DROPOUT_RUN;
        const float *x = a->x + first;
        float *y = a->y + first;
        rrfp_dropout_factors(&a->stream, a->element + first, count, a->p, factor);
        RRFP_VECTOR_LOOP
        for (size_t i = 0; i < count; i++)
            y[i] = factor[i] == 0.0f ? 0.0f : x[i] * factor[i];
    }
}

void rrfp_dropout(const float *x, float *y, size_t count, float p, uint64_t first,
                  const struct rrfp_rng_key *rng)
{
    dropout a = {.x = x, .y = y, .p = p, .element = first, .stream = rrfp_rng_stream_of(rng)};
    rrfp_team_for(count, ELEMENT_GRAIN, dropout_body, &a);
}

typedef struct addition {
    const float *x;
    float *y;
} addition;

static void add_body(void *context, size_t begin, size_t end)
{
    const addition *a = context;
    const float *x = a->x;
    float *y = a->y;
    RRFP_VECTOR_LOOP
    for (size_t i = begin; i < end; i++)
        y[i] += x[i];
}

void rrfp_add(float *y, const float *x, size_t count)
{
    rrfp_team_for(count, ELEMENT_GRAIN, add_body, &(addition){x, y});
}

double rrfp_sum_of_squares(const float *x, size_t count)
{
    rrfp_v8d a = {0}, b = {0};
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        rrfp_v8d low = __builtin_convertvector(*(const rrfp_v8 *)(x + i), rrfp_v8d);
        rrfp_v8d high = __builtin_convertvector(*(const rrfp_v8 *)(x + i + 8), rrfp_v8d);
        a += low * low;
        b += high * high;
    }
    a += b;
    double sum = rrfp_v8d_sum(&a);
    for (; i < count; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

void rrfp_bf16_from_float(const float *x, uint16_t *y, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        /* Half of the last kept place, less one when that place is even: ties go to even. */
        uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
        /* The quiet bit keeps a NaN whose payload lies in the dropped half. */
        uint32_t quiet = (bits >> 16) | 0x40u;
        y[i] = (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
    }
}

void rrfp_bf16_to_float(const uint16_t *x, float *y, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)x[i] << 16;
        memcpy(y + i, &bits, sizeof bits);
    }
}
