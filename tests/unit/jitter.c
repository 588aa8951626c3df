/* jitter.c - parsing, hand-worked delays and the distribution of many draws. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "jitter/jitter.h"
#include "kernels/rng.h"

enum { DRAWS = 100000 };

static rrfp_error error;

static rrfp_jitter parsed(const char *spec)
{
    rrfp_jitter jitter;
    assert_int_equal(rrfp_jitter_parse(spec, 42, &jitter, &error), RRFP_OK);
    return jitter;
}

static rrfp_task task_of(rrfp_kind kind, uint32_t chunk, uint32_t microbatch)
{
    return (rrfp_task){(uint8_t)kind, 0, (uint16_t)chunk, microbatch};
}

static void accepts_the_specs(void **state)
{
    (void)state;
    rrfp_jitter jitter = parsed("none");
    assert_int_equal(jitter.model, RRFP_JITTER_NONE);
    assert_true(jitter.seed == 42 && jitter.scale == 1.0);
    jitter = parsed("lognormal:0.25");
    assert_int_equal(jitter.model, RRFP_JITTER_LOGNORMAL);
    assert_true(jitter.cv == 0.25);
    jitter = parsed("J0");
    assert_int_equal(jitter.model, RRFP_JITTER_NONE);
    jitter = parsed("J1");
    assert_int_equal(jitter.model, RRFP_JITTER_PAPER);
    assert_true(jitter.probability == 0.1 && jitter.floor_s == 0.005 && jitter.alpha == 0.5);
    jitter = parsed("J2");
    assert_true(jitter.probability == 0.2 && jitter.floor_s == 0.010 && jitter.alpha == 1.0);
    jitter = parsed("J3,scale:0.5");
    assert_true(jitter.probability == 0.3 && jitter.floor_s == 0.015 && jitter.alpha == 1.5);
    assert_true(jitter.scale == 0.5);
    assert_true(parsed("lognormal:1,scale:2e-1").scale == 0.2);
}

static void refuses_the_rest(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *names;
    } bad[] = {
        {"", "''"},
        {"J4", "'J4'"},
        {"j1", "'j1'"},
        {"J11", "'J11'"},
        {"nonee", "'nonee'"},
        {"lognormal", "'lognormal'"},
        {"lognormal:", "''"},
        {"lognormal:-1", "'-1'"},
        {"lognormal:x", "'x'"},
        {"lognormal:nan", "'nan'"},
        {"lognormal:inf", "'inf'"},
        {"lognormal:0x1", "'0x1'"},
        {"lognormal: 1", "' 1'"},
        {"lognormal:1e3", "'1e3'"},
        {"lognormal:1.2.3", "'1.2.3'"},
        {"J1,", "option ''"},
        {"J1,factor:2", "'factor:2'"},
        {"J1,scale:", "scale ''"},
        {"J1,scale:-2", "'-2'"},
        {"J1,scale:2,scale:3", "'2,scale:3'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        rrfp_jitter jitter = {.seed = 7};
        assert_int_equal(rrfp_jitter_parse(bad[i].spec, 1, &jitter, &error), RRFP_ERR_INVALID);
        if (strstr(error.text, bad[i].names) == NULL) {
            fail_msg("'%s' gives: %s", bad[i].spec, error.text);
        }
        assert_int_equal(jitter.seed, 7);
    }
}

/* p = 1 and a floor above the task: 2 * 10 ms * (0.5 + u), u the second draw of the key. */
static void paper_delay_by_hand(void **state)
{
    (void)state;
    rrfp_jitter jitter = {.model = RRFP_JITTER_PAPER, .probability = 1.0, .floor_s = 0.010,
                          .alpha = 2.0, .scale = 1.0, .seed = 9};
    rrfp_jitter_ema ema = {0.0, false};
    /* stage 3, chunk 1, kind B: 3 * 65536 + 1 * 16 + 1 * 2 */
    rrfp_rng_key key = {.seed = 9, .stream = RRFP_RNG_JITTER, .a = 196626, .b = 5, .step = 7};
    double u = (double)rrfp_rng_uniform(&key, 1);
    double delay = rrfp_jitter_task_delay(&jitter, 3, task_of(RRFP_B, 1, 5), 7, 0.001, &ema);
    assert_float_equal(delay, 2.0 * 0.010 * (0.5 + u), 1e-12);
    assert_float_equal(ema.seconds, 0.001, 1e-12);

    /* Average: 0.9 * 1 ms + 0.1 * 201 ms = 21 ms, above the floor. */
    delay = rrfp_jitter_task_delay(&jitter, 3, task_of(RRFP_B, 1, 5), 7, 0.201, &ema);
    assert_float_equal(ema.seconds, 0.021, 1e-12);
    assert_float_equal(delay, 2.0 * 0.021 * (0.5 + u), 1e-12);

    jitter.scale = 0.25;
    ema.seconds = 0.0;
    delay = rrfp_jitter_task_delay(&jitter, 3, task_of(RRFP_B, 1, 5), 7, 0.001, &ema);
    assert_float_equal(delay, 0.25 * 2.0 * 0.010 * (0.5 + u), 1e-12);
    jitter.probability = 0.0;
    assert_true(rrfp_jitter_task_delay(&jitter, 3, task_of(RRFP_B, 1, 5), 7, 0.1, &ema) == 0.0);
}

/* CV sqrt(e - 1): log variance 1, so L = exp(z - 1/2). */
static void lognormal_delay_by_hand(void **state)
{
    (void)state;
    rrfp_jitter jitter = {.model = RRFP_JITTER_LOGNORMAL, .cv = sqrt(exp(1.0) - 1.0),
                          .scale = 1.0, .seed = 4};
    int longer = 0, same = 0;
    for (uint32_t m = 0; m < 64; m++) {
        rrfp_jitter_ema ema = {0.0, false};
        /* stage 2, chunk 0, kind F: 2 * 65536; the message of it: one more */
        rrfp_rng_key key = {.seed = 4, .stream = RRFP_RNG_JITTER, .a = 131072, .b = m, .step = 1};
        double factor = exp(rrfp_rng_normal(&key, 0) - 0.5);
        double expect = factor > 1.0 ? 0.1 * (factor - 1.0) : 0.0;
        double delay = rrfp_jitter_task_delay(&jitter, 2, task_of(RRFP_F, 0, m), 1, 0.1, &ema);
        assert_float_equal(delay, expect, 1e-12);
        longer += expect > 0.0;
        same += expect == 0.0;
        key.a = 131073;
        factor = exp(rrfp_rng_normal(&key, 0) - 0.5);
        delay = rrfp_jitter_message_delay(&jitter, 2, task_of(RRFP_F, 0, m), 1, 0.002);
        assert_float_equal(delay, 0.002 * factor, 1e-12);
    }
    assert_true(longer > 5 && same > 5);
}

/* Mean 1 and the wanted CV within 5 standard errors (of the CV: from the fourth moment). */
static void many_message_draws(void **state)
{
    (void)state;
    static const double cvs[] = {0.05, 0.3, 0.6};
    static const char *const specs[] = {"lognormal:0.05", "lognormal:0.3", "lognormal:0.6"};
    for (size_t c = 0; c < 3; c++) {
        rrfp_jitter jitter = parsed(specs[c]);
        double sum = 0.0, square = 0.0;
        for (uint32_t i = 0; i < DRAWS; i++) {
            double draw = rrfp_jitter_message_delay(&jitter, i % 7, task_of(RRFP_B, i % 3, i), 11,
                                                    2.0) / 2.0;
            sum += draw;
            square += (draw - 1.0) * (draw - 1.0);
        }
        double w = 1.0 + cvs[c] * cvs[c]; /* moments of a lognormal: kurtosis w^4+2w^3+3w^2-3 */
        double kurtosis = pow(w, 4) + 2 * pow(w, 3) + 3 * w * w - 3.0;
        double variance = square / DRAWS, expect = cvs[c] * cvs[c];
        assert_true(fabs(sum / DRAWS - 1.0) < 5.0 * cvs[c] / sqrt(DRAWS));
        assert_true(fabs(variance - expect) < 5.0 * expect * sqrt((kurtosis - 1.0) / DRAWS));
    }
}

/* J3, tasks of 1 ms: a share of 0.3 is delayed by 11.25 to 33.75 ms, uniformly. */
static void many_paper_draws(void **state)
{
    (void)state;
    rrfp_jitter jitter = parsed("J3");
    rrfp_jitter_ema ema = {0.0, false};
    double sum = 0.0, square = 0.0, least = 1.0, most = 0.0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < DRAWS; i++) {
        double delay = rrfp_jitter_task_delay(&jitter, 1, task_of(RRFP_F, 0, i % 1000),
                                              1 + i / 1000, 0.001, &ema);
        if (delay > 0.0) {
            count++;
            sum += delay;
            square += (delay - 0.0225) * (delay - 0.0225);
            least = delay < least ? delay : least;
            most = delay > most ? delay : most;
        }
    }
    double width = 0.0225; /* a uniform of this width: variance width^2 / 12 */
    assert_true(fabs((double)count / DRAWS - 0.3) < 5.0 * sqrt(0.3 * 0.7 / DRAWS));
    assert_true(fabs(sum / count - 0.0225) < 5.0 * width / sqrt(12.0 * count));
    assert_true(fabs(square / count / (width * width / 12.0) - 1.0) < 5.0 * sqrt(0.8 / count));
    assert_true(least >= 0.01125 && least < 0.01130 && most < 0.03375 && most > 0.03370);
}

static void draws_depend_on_every_part_of_the_key(void **state)
{
    (void)state;
    rrfp_jitter jitter = parsed("lognormal:0.5"), other;
    rrfp_task task = task_of(RRFP_F, 1, 2);
    double draw = rrfp_jitter_message_delay(&jitter, 3, task, 4, 1.0);
    assert_true(draw == rrfp_jitter_message_delay(&jitter, 3, task, 4, 1.0));
    assert_true(draw != rrfp_jitter_message_delay(&jitter, 4, task, 4, 1.0));
    assert_true(draw != rrfp_jitter_message_delay(&jitter, 3, task_of(RRFP_B, 1, 2), 4, 1.0));
    assert_true(draw != rrfp_jitter_message_delay(&jitter, 3, task_of(RRFP_F, 0, 2), 4, 1.0));
    assert_true(draw != rrfp_jitter_message_delay(&jitter, 3, task_of(RRFP_F, 1, 3), 4, 1.0));
    assert_true(draw != rrfp_jitter_message_delay(&jitter, 3, task, 5, 1.0));
    assert_true(draw != rrfp_jitter_message_delay(&jitter, 3, task, 4 + ((uint64_t)1 << 32), 1.0));
    assert_int_equal(rrfp_jitter_parse("lognormal:0.5", 43, &other, &error), RRFP_OK);
    assert_true(draw != rrfp_jitter_message_delay(&other, 3, task, 4, 1.0));
}

static void no_jitter_no_delay(void **state)
{
    (void)state;
    rrfp_jitter none = parsed("none"), paper = parsed("J3");
    /* The paper's injection is into forwards and backwards: a split W gets none of its own. */
    for (uint32_t m = 0; m < 1000; m++) {
        rrfp_task weight = {RRFP_W, 0, 0, m};
        rrfp_jitter_ema ema = {0};
        assert_true(rrfp_jitter_task_delay(&paper, 0, weight, 1, 0.001, &ema) == 0.0);
    }
    for (uint32_t m = 0; m < 100; m++) {
        rrfp_jitter_ema ema = {0.0, false};
        rrfp_task task = task_of(RRFP_BW, 0, m);
        assert_true(rrfp_jitter_task_delay(&none, 0, task, 1, 0.5, &ema) == 0.0);
        assert_true(rrfp_jitter_message_delay(&none, 0, task, 1, 0.5) == 0.0);
        assert_true(rrfp_jitter_message_delay(&paper, 0, task, 1, 0.5) == 0.0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_the_specs),
        cmocka_unit_test(refuses_the_rest),
        cmocka_unit_test(paper_delay_by_hand),
        cmocka_unit_test(lognormal_delay_by_hand),
        cmocka_unit_test(many_message_draws),
        cmocka_unit_test(many_paper_draws),
        cmocka_unit_test(draws_depend_on_every_part_of_the_key),
        cmocka_unit_test(no_jitter_no_delay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
