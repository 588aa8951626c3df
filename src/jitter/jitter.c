/* jitter.c - see jitter.h. */
#include "jitter/jitter.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/rng.h"

/* arXiv 2605.18750, RQ4: probability, floor in ms, alpha. */
static const struct {
    double probability, floor_ms, alpha;
} PAPER_LEVELS[4] = {{0.0, 0.0, 0.0}, {0.1, 5.0, 0.5}, {0.2, 10.0, 1.0}, {0.3, 15.0, 1.5}};

static bool parse_number(const char *text, const char *end, double *value)
{
    char buffer[32], *stop;
    size_t length = (size_t)(end - text);
    if (length == 0 || length >= sizeof buffer || !(isdigit((unsigned char)text[0]) || text[0] == '.')) {
        return false;
    }
    memcpy(buffer, text, length);
    buffer[length] = '\0';
    *value = strtod(buffer, &stop);
    return *stop == '\0' && isfinite(*value);
}

static bool parse_model(const char *text, const char *end, rrfp_jitter *jitter)
{
    static const char lognormal[] = "lognormal:";
    size_t length = (size_t)(end - text);
    if (length == 4 && memcmp(text, "none", 4) == 0) {
        return true;
    }
    if (length == 2 && text[0] == 'J' && text[1] >= '0' && text[1] <= '3') {
        int level = text[1] - '0';
        jitter->model = level == 0 ? RRFP_JITTER_NONE : RRFP_JITTER_PAPER;
        jitter->probability = PAPER_LEVELS[level].probability;
        jitter->floor_s = PAPER_LEVELS[level].floor_ms * 1e-3;
        jitter->alpha = PAPER_LEVELS[level].alpha;
        return true;
    }
    if (length > sizeof lognormal - 1 && memcmp(text, lognormal, sizeof lognormal - 1) == 0) {
        jitter->model = RRFP_JITTER_LOGNORMAL;
        return parse_number(text + sizeof lognormal - 1, end, &jitter->cv) && jitter->cv <= 100.0;
    }
    return false;
}

rrfp_status rrfp_jitter_parse(const char *spec, uint64_t seed, rrfp_jitter *jitter,
                              rrfp_error *error)
{
    rrfp_jitter parsed = {.model = RRFP_JITTER_NONE, .scale = 1.0, .seed = seed};
    const char *comma = strchr(spec, ',');
    const char *end = comma == NULL ? spec + strlen(spec) : comma;
    bool ok = parse_model(spec, end, &parsed);
    if (ok && comma != NULL) {
        static const char scale[] = "scale:";
        const char *text = comma + 1;
        ok = strncmp(text, scale, sizeof scale - 1) == 0 &&
             parse_number(text + sizeof scale - 1, text + strlen(text), &parsed.scale) &&
             parsed.scale <= 1e6;
    }
    if (!ok) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "--jitter %.60s: give none, lognormal:CV with CV from 0 to 100, or J0 "
                              "to J3, then perhaps ,scale:FACTOR",
                              spec);
    }
    *jitter = parsed;
    return RRFP_OK;
}

/* One key per (stage, kind, chunk, microbatch, step); `message` keeps the two uses apart. */
static rrfp_rng_key key_of(const rrfp_jitter *jitter, uint32_t stage, rrfp_task task,
                           uint64_t step, bool message)
{
    uint32_t kind = task.kind == RRFP_BW ? RRFP_B : task.kind;
    return (rrfp_rng_key){
        .seed = jitter->seed,
        .stream = RRFP_RNG_JITTER,
        .a = (stage << 12) | ((uint32_t)task.chunk << 3) | (kind << 1) | (message ? 1u : 0u),
        .b = task.microbatch,
        .step = (uint32_t)step,
    };
}

/* Lognormal with mean 1 and the given coefficient of variation. */
static double lognormal(const rrfp_jitter *jitter, const rrfp_rng_key *key)
{
    double variance = log1p(jitter->cv * jitter->cv);
    return exp(sqrt(variance) * rrfp_rng_normal(key, 0) - 0.5 * variance);
}

double rrfp_jitter_task_delay(const rrfp_jitter *jitter, uint32_t stage, rrfp_task task,
                              uint64_t step, double task_s, rrfp_jitter_ema *ema)
{
    ema->seconds = ema->primed ? 0.9 * ema->seconds + 0.1 * task_s : task_s;
    ema->primed = true;
    if (jitter->model == RRFP_JITTER_NONE) {
        return 0.0;
    }
    rrfp_rng_key key = key_of(jitter, stage, task, step, false);
    if (jitter->model == RRFP_JITTER_LOGNORMAL) {
        return jitter->scale * task_s * fmax(0.0, lognormal(jitter, &key) - 1.0);
    }
    if (task.kind == RRFP_W || (double)rrfp_rng_uniform(&key, 0) >= jitter->probability) {
        return 0.0;
    }
    return jitter->scale * jitter->alpha * fmax(jitter->floor_s, ema->seconds) *
           (0.5 + (double)rrfp_rng_uniform(&key, 1));
}

double rrfp_jitter_message_delay(const rrfp_jitter *jitter, uint32_t stage, rrfp_task task,
                                 uint64_t step, double base_s)
{
    if (jitter->model != RRFP_JITTER_LOGNORMAL) {
        return 0.0; /* the paper injects into tasks only */
    }
    rrfp_rng_key key = key_of(jitter, stage, task, step, true);
    return jitter->scale * base_s * lognormal(jitter, &key);
}
