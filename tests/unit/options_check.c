/* options_check.c - each impossible combination gives its own line; the possible ones pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "config/options.h"

static rrfp_options options;
static rrfp_error error;

/* Flags in one text, separated by spaces. */
static rrfp_status parse(rrfp_command command, const char *flags)
{
    char copy[512], *words[24], *next = NULL;
    int count = 0;
    bool help = false;

    snprintf(copy, sizeof copy, "%s", flags);
    for (char *w = strtok_r(copy, " ", &next); w != NULL; w = strtok_r(NULL, " ", &next)) {
        words[count++] = w;
    }
    error.status = RRFP_OK;
    error.text[0] = '\0';
    return rrfp_options_parse(&options, command, count, words, &help, &error);
}

static const struct {
    rrfp_command command;
    const char *flags, *part; /* part NULL: accepted */
} cases[] = {
    {RRFP_COMMAND_TRAIN, "", "needs data: --data-path"},
    {RRFP_COMMAND_TRAIN, "--print-config", NULL},
    {RRFP_COMMAND_EVAL, "--data-path x", "needs a checkpoint: --load"},
    {RRFP_COMMAND_TRAIN, "--data-path x --finetune", "finetune needs weights"},
    {RRFP_COMMAND_TRAIN, "--data-path x --finetune --load d", NULL},
    {RRFP_COMMAND_EVAL, "--load d", "needs data: --data-path"},
    {RRFP_COMMAND_EVAL, "--load d --data-path x", NULL},
    {RRFP_COMMAND_GENERATE, "--prompt p", "needs a checkpoint: --load"},
    {RRFP_COMMAND_GENERATE, "--load d", "needs a text to continue: --prompt"},
    {RRFP_COMMAND_GENERATE, "--load d --prompt p", NULL},
    {RRFP_COMMAND_HINT, "", NULL},
    /* batches */
    {RRFP_COMMAND_TRAIN, "--data-path x --global-batch-size 30",
     "--global-batch-size 30 is not a multiple of --micro-batch-size 4"},
    {RRFP_COMMAND_TRAIN, "--data-path x --global-batch-size 4", NULL},
    {RRFP_COMMAND_TRAIN, "--data-path x --micro-batch-size 1 --global-batch-size 65536", NULL},
    {RRFP_COMMAND_TRAIN, "--data-path x --micro-batch-size 1 --global-batch-size 65537",
     "gives over 65536 microbatches"},
    {RRFP_COMMAND_EVAL, "--data-path x --load d --global-batch-size 30", "not a multiple"},
    /* the model */
    {RRFP_COMMAND_TRAIN, "--data-path x --hidden-size 250",
     "--hidden-size 250 is not a multiple of --num-attention-heads 4"},
    {RRFP_COMMAND_TRAIN, "--data-path x --num-query-groups 2", "only llama has grouped queries"},
    {RRFP_COMMAND_TRAIN, "--data-path x --num-query-groups 4", NULL},
    {RRFP_COMMAND_TRAIN, "--data-path x --model llama --num-query-groups 2", NULL},
    {RRFP_COMMAND_TRAIN, "--data-path x --model llama --num-query-groups 3",
     "--num-attention-heads 4 is not a multiple of --num-query-groups 3"},
    {RRFP_COMMAND_TRAIN, "--data-path x --model llama --hidden-size 12 --num-attention-heads 4",
     "odd head size"},
    {RRFP_COMMAND_TRAIN, "--data-path x --model gpt2 --hidden-size 12 --num-attention-heads 4",
     NULL},
    {RRFP_COMMAND_TRAIN, "--data-path x --seq-length 257 --max-position-embeddings 256",
     "--seq-length 257 exceeds --max-position-embeddings 256"},
    {RRFP_COMMAND_TRAIN, "--data-path x --seq-length 256 --max-position-embeddings 256", NULL},
    /* 4 x 1048576 x 256 floats are exactly 4 GiB, one byte more than a message's size holds */
    {RRFP_COMMAND_TRAIN, "--data-path x --seq-length 1048576", "message over 4 GiB"},
    {RRFP_COMMAND_TRAIN, "--data-path x --seq-length 1048575", NULL},
    {RRFP_COMMAND_TRAIN,
     "--data-path x --seq-length 1048576 --micro-batch-size 65536 --global-batch-size 65536 "
     "--hidden-size 65536",
     "message over 4 GiB"},
    /* the pipeline */
    {RRFP_COMMAND_TRAIN, "--data-path x --hint zbv", "--hint 'zbv' is unknown; did you mean 'zb-v'?"},
    {RRFP_COMMAND_TRAIN, "--data-path x --hint wavelike", "'rrfp hint --help' lists the names"},
    {RRFP_COMMAND_TRAIN, "--data-path x --hint my.csv", NULL},
    {RRFP_COMMAND_TRAIN, "--data-path x --hint zb-v", "--hint zb-v needs --virtual-stages 2, not 1"},
    {RRFP_COMMAND_TRAIN, "--data-path x --hint zb-v --virtual-stages 2", NULL},
    {RRFP_COMMAND_TRAIN, "--data-path x --hint zb-v --virtual-stages 3", "not 3"},
    {RRFP_COMMAND_TRAIN, "--data-path x --hint interleaved",
     "--hint interleaved needs --virtual-stages 2 or more, not 1"},
    {RRFP_COMMAND_TRAIN, "--data-path x --hint interleaved --virtual-stages 3", NULL},
    {RRFP_COMMAND_TRAIN, "--data-path x --order fixed --hint-distance 3",
     "--order fixed and --hint-distance 3 contradict each other"},
    {RRFP_COMMAND_TRAIN, "--data-path x --order fixed --hint-distance 0", NULL},
    {RRFP_COMMAND_TRAIN, "--data-path x --order ready --hint-distance 3", NULL},
    {RRFP_COMMAND_HINT, "--order fixed --hint-distance 3", "contradict each other"},
    {RRFP_COMMAND_TRAIN, "--data-path x --max-inflight 2,1", "has 2 counts for 1 stages"},
    {RRFP_COMMAND_TRAIN, "--data-path x --max-inflight 0", "counts from 1 to 65536"},
    {RRFP_COMMAND_TRAIN, "--data-path x --max-inflight 65537", "counts from 1 to 65536"},
    {RRFP_COMMAND_TRAIN, "--data-path x --max-inflight=", "counts from 1 to 65536"},
    {RRFP_COMMAND_TRAIN, "--data-path x --max-inflight 2,", "counts from 1 to 65536"},
    {RRFP_COMMAND_TRAIN, "--data-path x --max-inflight 4294967297", "counts from 1 to 65536"},
    {RRFP_COMMAND_TRAIN, "--data-path x --layers-per-chunk 2,2", "has 2 counts; 1 stages x 1"},
    {RRFP_COMMAND_TRAIN,
     "--data-path x --pipeline-model-parallel-size 2 --layers-per-chunk 2,3",
     "adds up to 5; --num-layers is 4"},
    {RRFP_COMMAND_TRAIN,
     "--data-path x --pipeline-model-parallel-size 2 --layers-per-chunk 4294967295,5",
     "adds up to 4294967300; --num-layers is 4"},
    {RRFP_COMMAND_TRAIN,
     "--data-path x --pipeline-model-parallel-size 2 --layers-per-chunk 4,0", NULL},
    {RRFP_COMMAND_TRAIN,
     "--data-path x --pipeline-model-parallel-size 2 --layers-per-chunk a,b", "is no list"},
    {RRFP_COMMAND_GENERATE, "--load d --prompt p --layers-per-chunk 9", NULL},
    {RRFP_COMMAND_GENERATE, "--load d --prompt p --layers-per-chunk 9,9", "has 2 counts"},
    /* training */
    {RRFP_COMMAND_TRAIN, "--data-path x --lr 1e-5", "--min-lr 0.0001 exceeds --lr 1e-05"},
    {RRFP_COMMAND_TRAIN, "--data-path x --lr-decay-iters 19",
     "--lr-warmup-iters 20 exceeds --lr-decay-iters 19"},
    {RRFP_COMMAND_TRAIN, "--data-path x --train-iters 5", NULL},
    {RRFP_COMMAND_TRAIN, "--data-path x --eval-interval 5 --valid-fraction 0",
     "nothing is kept to evaluate on"},
    {RRFP_COMMAND_TRAIN, "--data-path x --valid-fraction 0", NULL},
    {RRFP_COMMAND_TRAIN, "--data-path x --save-interval 5", "--save-interval 5 without --save"},
    {RRFP_COMMAND_TRAIN, "--data-path x --save-interval 5 --save d", NULL},
    /* tokenizers */
    {RRFP_COMMAND_TRAIN, "--data-path x --tokenizer-type gpt2-bpe",
     "--vocab-file and --merge-file are missing"},
    {RRFP_COMMAND_TRAIN, "--data-path x --tokenizer-type gpt2-bpe --vocab-file v",
     "; --merge-file is missing"},
    {RRFP_COMMAND_TRAIN, "--data-path x --tokenizer-type gpt2-bpe --merge-file m",
     "; --vocab-file is missing"},
    {RRFP_COMMAND_TRAIN,
     "--data-path x --tokenizer-type gpt2-bpe --merge-file m --vocab-file v", NULL},
    {RRFP_COMMAND_TRAIN, "--data-path x --vocab-file v", "--vocab-file has no use"},
    {RRFP_COMMAND_TRAIN, "--data-path x --merge-file v", "--merge-file has no use"},
};

static void test_combinations(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rrfp_status status = parse(cases[i].command, cases[i].flags);

        if (cases[i].part == NULL) {
            if (status != RRFP_OK) {
                fail_msg("'%s' is refused: %s", cases[i].flags, error.text);
            }
            continue;
        }
        if (status == RRFP_OK) {
            fail_msg("'%s' is accepted", cases[i].flags);
        }
        assert_int_equal(error.status, status);
        if (strstr(error.text, cases[i].part) == NULL) {
            fail_msg("'%s': '%s' lacks '%s'", cases[i].flags, error.text, cases[i].part);
        }
    }
}

static void expect_inflight(const char *flags, const uint32_t *wanted, uint32_t count)
{
    uint32_t got[RRFP_OPTIONS_MAX_STAGES];

    assert_int_equal(parse(RRFP_COMMAND_HINT, flags), RRFP_OK);
    assert_int_equal(rrfp_options_inflight(&options, got, &error), RRFP_OK);
    for (uint32_t s = 0; s < count; s++) {
        assert_int_equal(got[s], wanted[s]);
    }
}

static void test_inflight(void **state)
{
    (void)state;
    expect_inflight("--pipeline-model-parallel-size 3", (const uint32_t[]){0, 0, 0}, 3);
    expect_inflight("--pipeline-model-parallel-size 3 --max-inflight 1f1b",
                    (const uint32_t[]){3, 2, 1}, 3);
    expect_inflight("--pipeline-model-parallel-size 3 --max-inflight 5",
                    (const uint32_t[]){5, 5, 5}, 3);
    expect_inflight("--pipeline-model-parallel-size 3 --max-inflight 4,1,65536",
                    (const uint32_t[]){4, 1, 65536}, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_combinations),
        cmocka_unit_test(test_inflight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
