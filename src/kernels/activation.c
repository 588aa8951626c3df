/*
 * activation.c - GELU (tanh form) and SwiGLU.
 *
 * GELU: 0.5 x (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3),
 * because tanh u = 2 sigmoid(2u) - 1; one exponential, no cancellation at
 * negative x.  (Hendrycks and Gimpel 2016, equation 3.)
 */
#include "kernels/kernels.h"

#include "kernels/team.h"
#include "kernels/vec.h"

enum { ELEMENT_GRAIN = 4096 };

#define GELU_SLOPE 1.59576912160573071f /* 2 sqrt(2/pi) */
#define GELU_CUBIC 0.044715f

typedef struct activation {
    const float *dy, *x, *up;
    float *y, *dup; /* y is dx or dgate in the backward */
} activation;

static void gelu_fwd_body(void *context, size_t begin, size_t end)
{
    const activation *a = context;
    const float *x = a->x;
    float *y = a->y;
    RRFP_VECTOR_LOOP
    for (size_t i = begin; i < end; i++) {
        float v = x[i];
        float slope = GELU_SLOPE * rrfp_madd(GELU_CUBIC * v, v, 1.0f);
        y[i] = v * rrfp_sigmoid(v * slope);
    }
}

void rrfp_gelu_fwd(const float *x, float *y, size_t count)
{
    rrfp_team_for(count, ELEMENT_GRAIN, gelu_fwd_body, &(activation){.x = x, .y = y});
}

static void gelu_dgrad_body(void *context, size_t begin, size_t end)
{
    const activation *a = context;
    const float *x = a->x, *dy = a->dy;
    float *dx = a->y;
    RRFP_VECTOR_LOOP
    for (size_t i = begin; i < end; i++) {
        float v = x[i], square = v * v;
        float s = rrfp_sigmoid(v * (GELU_SLOPE * rrfp_madd(GELU_CUBIC, square, 1.0f)));
        float inner = GELU_SLOPE * rrfp_madd(3.0f * GELU_CUBIC, square, 1.0f);
        dx[i] = dy[i] * rrfp_madd(v * inner, s * (1.0f - s), s);
    }
}

void rrfp_gelu_dgrad(const float *dy, const float *x, float *dx, size_t count)
{
    rrfp_team_for(count, ELEMENT_GRAIN, gelu_dgrad_body,
                  &(activation){.dy = dy, .x = x, .y = dx});
}

static void swiglu_fwd_body(void *context, size_t begin, size_t end)
{
    const activation *a = context;
    const float *gate = a->x, *up = a->up;
    float *y = a->y;
    RRFP_VECTOR_LOOP
    for (size_t i = begin; i < end; i++)
        y[i] = gate[i] * rrfp_sigmoid(gate[i]) * up[i];
}

void rrfp_swiglu_fwd(const float *gate, const float *up, float *y, size_t count)
{
    rrfp_team_for(count, ELEMENT_GRAIN, swiglu_fwd_body,
                  &(activation){.x = gate, .up = up, .y = y});
}

static void swiglu_dgrad_body(void *context, size_t begin, size_t end)
{
    const activation *a = context;
    const float *gate = a->x, *up = a->up, *dy = a->dy;
    float *dgate = a->y, *dup = a->dup;
    RRFP_VECTOR_LOOP
    for (size_t i = begin; i < end; i++) {
        float v = gate[i], d = dy[i], s = rrfp_sigmoid(v);
        dgate[i] = d * up[i] * s * rrfp_madd(v, 1.0f - s, 1.0f);
        dup[i] = d * v * s;
    }
}

void rrfp_swiglu_dgrad(const float *dy, const float *gate, const float *up, float *dgate,
                       float *dup, size_t count)
{
    rrfp_team_for(count, ELEMENT_GRAIN, swiglu_dgrad_body,
                  &(activation){.dy = dy, .x = gate, .up = up, .y = dgate, .dup = dup});
}
