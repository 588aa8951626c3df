/*
 * adamw.c - AdamW with decoupled decay (Loshchilov and Hutter 2019, algorithm 2).
 */
#include "kernels/kernels.h"

#include "kernels/team.h"
#include "kernels/vec.h"

typedef struct adamw {
    float *param, *m, *v;
    const float *grad;
    float beta1, beta2, eps, grad_scale;
    float keep, step_size, inverse_root_bias2;
} adamw;

static void adamw_body(void *context, size_t begin, size_t end)
{
    const adamw *a = context;
    const float *grad = a->grad;
    float *param = a->param, *m = a->m, *v = a->v;
    float beta1 = a->beta1, beta2 = a->beta2, eps = a->eps, scale = a->grad_scale;
    float keep = a->keep, step_size = a->step_size, root = a->inverse_root_bias2;
    float rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
    RRFP_VECTOR_LOOP
    for (size_t i = begin; i < end; i++) {
        float g = grad[i] * scale;
        float m1 = rrfp_madd(beta1, m[i], rest1 * g);
        float v1 = rrfp_madd(beta2, v[i], rest2 * (g * g));
        m[i] = m1;
        v[i] = v1;
        float divisor = rrfp_madd(sqrtf(v1), root, eps);
        param[i] = rrfp_madd(param[i], keep, -(step_size * m1 / divisor));
    }
}

void rrfp_adamw_update(const rrfp_adamw *opt, float *param, const float *grad, float *m,
                       float *v, size_t count)
{
    /* What is the same for all elements is worked out once, in double. */
    double bias1 = 1.0 - pow((double)opt->beta1, (double)opt->step);
    double bias2 = 1.0 - pow((double)opt->beta2, (double)opt->step);
    adamw a = {.param = param, .m = m, .v = v, .grad = grad, .beta1 = opt->beta1,
               .beta2 = opt->beta2, .eps = opt->eps, .grad_scale = opt->grad_scale,
               .keep = (float)(1.0 - (double)opt->lr * (double)opt->weight_decay),
               .step_size = (float)((double)opt->lr / bias1),
               .inverse_root_bias2 = (float)(1.0 / sqrt(bias2))};
    rrfp_team_for(count, 4096, adamw_body, &a);
}
