/*
 * script.h - one stage machine, told events and heard in short words.
 *
 *   F0.2       starts F of chunk 0, microbatch 2      F0.2*  the same, out of hint
 *   >B0.1@2.0  sends the output of B to stage 2, chunk 0
 *   =F0.1@1    delivers it to chunk 1 on the stage
 *   -aF0.1     releases the activation; r: retained, o: output
 *   idle:REASON, done
 */
#ifndef RRFP_TEST_SCRIPT_H
#define RRFP_TEST_SCRIPT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "rrfp/stage.h"

enum { SCRIPT_TASKS = 64 };

typedef struct script {
    rrfp_stage_config config;
    rrfp_task order[SCRIPT_TASKS];
    rrfp_stage *stage;
    char text[512];
} script;

/* "BW1.12" -> task; fails the test on nonsense. */
static inline rrfp_task script_task(const char *word)
{
    rrfp_task task = {0};
    unsigned chunk;
    unsigned microbatch;
    size_t letters = strcspn(word, "0123456789");
    if (letters == 2 && word[0] == 'B' && word[1] == 'W') {
        task.kind = RRFP_BW;
    } else if (letters == 1 && strchr("FBW", word[0]) != NULL) {
        task.kind = word[0] == 'F' ? RRFP_F : word[0] == 'B' ? RRFP_B : RRFP_W;
    } else {
        fail_msg("no task: '%s'", word);
    }
    if (sscanf(word + letters, "%u.%u", &chunk, &microbatch) != 2) {
        fail_msg("no task: '%s'", word);
    }
    task.chunk = (uint16_t)chunk;
    task.microbatch = microbatch;
    return task;
}

/* A stage with generous budgets; tests change what they are about. */
static inline script script_make(uint32_t P, uint32_t V, uint32_t M, uint32_t stage, rrfp_rule rule)
{
    script x = {.config = {.struct_size = sizeof(rrfp_stage_config),
                           .shape = {.stages = P, .chunks = V, .microbatches = M},
                           .stage = stage,
                           .rule = rule,
                           .split_backward = rule == RRFP_RULE_BFW,
                           .hint_distance = RRFP_DISTANCE_UNBOUNDED,
                           .budget = {.max_inflight = M}}};
    return x;
}

/* Order from words with spaces between. */
static inline void script_order(script *x, const char *words)
{
    char copy[512];
    char *rest = NULL;
    snprintf(copy, sizeof copy, "%s", words);
    x->config.order_count = 0;
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        assert_true(x->config.order_count < SCRIPT_TASKS);
        x->order[x->config.order_count++] = script_task(word);
    }
    x->config.order = x->order;
}

static inline const char *script_said(script *x, const rrfp_action *actions, size_t count)
{
    size_t at = 0;
    x->text[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        const rrfp_action *a = &actions[i];
        char task[32];
        char *end = x->text + at;
        size_t room = sizeof x->text - at;
        const char *gap = i > 0 ? " " : "";
        snprintf(task, sizeof task, "%s%u.%u", rrfp_kind_name((rrfp_kind)a->task.kind),
                 a->task.chunk, a->task.microbatch);
        switch (a->kind) {
        case RRFP_ACTION_START:
            at += (size_t)snprintf(end, room, "%s%s%s", gap, task, a->out_of_hint ? "*" : "");
            break;
        case RRFP_ACTION_SEND:
            at +=
                (size_t)snprintf(end, room, "%s>%s@%u.%u", gap, task, a->peer_stage, a->peer_chunk);
            break;
        case RRFP_ACTION_DELIVER:
            at += (size_t)snprintf(end, room, "%s=%s@%u", gap, task, a->peer_chunk);
            break;
        case RRFP_ACTION_RELEASE:
            at += (size_t)snprintf(end, room, "%s-%c%s", gap, "aro"[a->buffer], task);
            break;
        case RRFP_ACTION_IDLE:
            at += (size_t)snprintf(end, room, "%sidle:%s", gap, rrfp_idle_reason_name(a->reason));
            break;
        case RRFP_ACTION_STEP_DONE:
            at += (size_t)snprintf(end, room, "%sdone", gap);
            break;
        }
    }
    return x->text;
}

static inline const char *script_begin(script *x)
{
    rrfp_action actions[RRFP_MAX_ACTIONS];
    rrfp_error error;
    if (rrfp_stage_create(&x->config, &x->stage, &error) != RRFP_OK) {
        fail_msg("%s", error.text);
    }
    return script_said(x, actions, rrfp_stage_begin_step(x->stage, actions));
}

static inline const char *script_feed(script *x, rrfp_event_kind kind, const char *word)
{
    rrfp_action actions[RRFP_MAX_ACTIONS];
    rrfp_event event = {.kind = kind, .task = script_task(word)};
    rrfp_error error;
    size_t count = 0;
    if (rrfp_stage_handle(x->stage, &event, actions, &count, &error) != RRFP_OK) {
        fail_msg("%s", error.text);
    }
    return script_said(x, actions, count);
}

#define expect_begin(x, text) assert_string_equal(script_begin(x), text)
#define expect_input(x, task, text)                                                                \
    assert_string_equal(script_feed(x, RRFP_EVENT_INPUT, task), text)
#define expect_end(x, task, text)                                                                  \
    assert_string_equal(script_feed(x, RRFP_EVENT_TASK_FINISHED, task), text)
#define expect_sent(x, task, text)                                                                 \
    assert_string_equal(script_feed(x, RRFP_EVENT_SEND_COMPLETED, task), text)

static inline void script_finish(script *x)
{
    rrfp_stage_destroy(x->stage);
    x->stage = NULL;
}

/* Creation fails with this status, and a line that contains `text`. */
static inline void expect_refused(script *x, rrfp_status status, const char *text)
{
    rrfp_error error = {.text = ""};
    rrfp_stage *stage = NULL;
    rrfp_status got = rrfp_stage_create(&x->config, &stage, &error);
    assert_null(stage);
    assert_int_equal(got, status);
    if (strstr(error.text, text) == NULL) {
        fail_msg("the line '%s' does not say '%s'", error.text, text);
    }
}

#endif /* RRFP_TEST_SCRIPT_H */
