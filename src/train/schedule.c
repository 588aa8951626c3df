/* schedule.c - see schedule.h. */
#include "train/schedule.h"

#include <math.h>
#include <string.h>

double rrfp_learning_rate(const rrfp_options *options, uint64_t iteration)
{
    double warmup = options->lr_warmup_iters;
    double end = options->lr_decay_iters > 0 ? options->lr_decay_iters : options->train_iters;
    double at = (double)iteration;
    if (at <= warmup) {
        return options->lr * at / warmup;
    }
    if (strcmp(options->lr_decay_style, "constant") == 0) {
        return options->lr;
    }
    if (at >= end) {
        return options->min_lr;
    }
    double done = (at - warmup) / (end - warmup);
    double share = strcmp(options->lr_decay_style, "linear") == 0
                       ? 1.0 - done
                       : 0.5 * (1.0 + cos(acos(-1.0) * done));
    return options->min_lr + share * (options->lr - options->min_lr);
}
