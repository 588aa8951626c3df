/* jitter.c - delays as pure functions of seed, stage, task and step. */
#include "jitter/jitter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/rng.h"

typedef struct paper_level {
    const char *name;
    rrfp_jitter_model model;
    double probability, floor_s, alpha;
} paper_level;

/* arXiv 2605.18750, table 6. */
static const paper_level paper_levels[] = {
    {"J0", RRFP_JITTER_NONE, 0.0, 0.0, 0.0},
    {"J1", RRFP_JITTER_PAPER, 0.1, 0.005, 0.5},
    {"J2", RRFP_JITTER_PAPER, 0.2, 0.010, 1.0},
    {"J3", RRFP_JITTER_PAPER, 0.3, 0.015, 1.5},
};

static const double LARGEST_CV = 100.0;
static const double LARGEST_SCALE = 1e6;

static bool starts_with(const char *text, size_t length, const char *prefix)
{
    return length >= strlen(prefix) && strncmp(text, prefix, strlen(prefix)) == 0;
}

/* A plain decimal number that is all of text[0..length). */
static bool parse_number(const char *text, size_t length, double most, double *number)
{
    char copy[64];
    char *end;
    if (length == 0 || length >= sizeof copy) {
        return false;
    }
    memcpy(copy, text, length);
    copy[length] = '\0';
    if (strspn(copy, "0123456789.eE+-") != length) {
        return false; /* strtod would take "inf", "nan", blanks and hexadecimal */
    }
    *number = strtod(copy, &end);
    return *end == '\0' && *number >= 0.0 && *number <= most;
}

static rrfp_status parse_model(const char *text, size_t length, rrfp_jitter *jitter,
                               rrfp_error *error)
{
    static const char lognormal[] = "lognormal:";
    if (length == 4 && strncmp(text, "none", 4) == 0) {
        return RRFP_OK;
    }
    if (starts_with(text, length, lognormal)) {
        size_t skip = strlen(lognormal);
        if (!parse_number(text + skip, length - skip, LARGEST_CV, &jitter->cv)) {
            return rrfp_error_set(error, RRFP_ERR_INVALID,
                                  "jitter: coefficient of variation '%.*s' must be a number from "
                                  "0 to %g",
                                  (int)(length - skip > 100 ? 100 : length - skip), text + skip,
                                  LARGEST_CV);
        }
        jitter->model = RRFP_JITTER_LOGNORMAL;
        return RRFP_OK;
    }
    for (size_t i = 0; i < sizeof paper_levels / sizeof paper_levels[0]; i++) {
        const paper_level *level = &paper_levels[i];
        if (length == 2 && strncmp(text, level->name, 2) == 0) {
            jitter->model = level->model;
            jitter->probability = level->probability;
            jitter->floor_s = level->floor_s;
            jitter->alpha = level->alpha;
            return RRFP_OK;
        }
    }
    return rrfp_error_set(error, RRFP_ERR_INVALID,
                          "jitter: '%.*s' is unknown; use none, lognormal:CV, J0, J1, J2 or J3",
                          (int)(length > 100 ? 100 : length), text);
}

rrfp_status rrfp_jitter_parse(const char *spec, uint64_t seed, rrfp_jitter *jitter,
                              rrfp_error *error)
{
    static const char scale[] = "scale:";
    rrfp_jitter parsed = {.model = RRFP_JITTER_NONE, .scale = 1.0, .seed = seed};
    size_t length = strcspn(spec, ",");
    rrfp_status status = parse_model(spec, length, &parsed, error);
    if (status != RRFP_OK) {
        return status;
    }
    if (spec[length] == ',') {
        const char *option = spec + length + 1;
        if (!starts_with(option, strlen(option), scale)) {
            return rrfp_error_set(error, RRFP_ERR_INVALID,
                                  "jitter: option '%.100s' is unknown; use scale:FACTOR", option);
        }
        option += strlen(scale);
        if (!parse_number(option, strlen(option), LARGEST_SCALE, &parsed.scale)) {
            return rrfp_error_set(error, RRFP_ERR_INVALID,
                                  "jitter: scale '%.100s' must be a number from 0 to %g", option,
                                  LARGEST_SCALE);
        }
    }
    *jitter = parsed;
    return RRFP_OK;
}

/* Stages need 14 bits, chunks 6, kinds 2. */
static rrfp_rng_key key_of(const rrfp_jitter *jitter, uint32_t stage, rrfp_task task,
                           uint64_t step, bool message)
{
    return (rrfp_rng_key){
        .seed = jitter->seed,
        .stream = RRFP_RNG_JITTER,
        .a = stage << 16 | (uint32_t)task.chunk << 4 | (uint32_t)task.kind << 1 | message,
        .b = task.microbatch,
        .step = (uint32_t)step,
    };
}

/* The upper half of a step chooses the pair of draws, the key has no room for it. */
static uint64_t first_draw(uint64_t step)
{
    return step >> 32 << 1;
}

/* Lognormal with mean 1 and the wanted coefficient of variation. */
static double lognormal(const rrfp_jitter *jitter, const rrfp_rng_key *key, uint64_t step)
{
    double variance = log1p(jitter->cv * jitter->cv);
    return exp(sqrt(variance) * rrfp_rng_normal(key, first_draw(step)) - 0.5 * variance);
}

double rrfp_jitter_task_delay(const rrfp_jitter *jitter, uint32_t stage, rrfp_task task,
                              uint64_t step, double task_s, rrfp_jitter_ema *ema)
{
    rrfp_rng_key key = key_of(jitter, stage, task, step, false);
    double delay = 0.0;
    ema->seconds = ema->primed ? 0.9 * ema->seconds + 0.1 * task_s : task_s;
    ema->primed = true;
    if (jitter->model == RRFP_JITTER_LOGNORMAL) {
        double factor = lognormal(jitter, &key, step);
        delay = factor > 1.0 ? task_s * (factor - 1.0) : 0.0;
    } else if (jitter->model == RRFP_JITTER_PAPER && task.kind != RRFP_W &&
               (double)rrfp_rng_uniform(&key, first_draw(step)) < jitter->probability) {
        double base = ema->seconds > jitter->floor_s ? ema->seconds : jitter->floor_s;
        double uniform = (double)rrfp_rng_uniform(&key, first_draw(step) + 1);
        delay = jitter->alpha * base * (0.5 + uniform);
    }
    return delay * jitter->scale;
}

double rrfp_jitter_message_delay(const rrfp_jitter *jitter, uint32_t stage, rrfp_task task,
                                 uint64_t step, double base_s)
{
    if (jitter->model != RRFP_JITTER_LOGNORMAL) {
        return 0.0; /* the paper delays computation only */
    }
    rrfp_rng_key key = key_of(jitter, stage, task, step, true);
    return base_s * lognormal(jitter, &key, step) * jitter->scale;
}
