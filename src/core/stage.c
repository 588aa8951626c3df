/* stage.c - creation and destruction of a stage machine, and the views into it. */
#include <stdlib.h>
#include <string.h>

#include "core/stage_internal.h"

const char *rrfp_idle_reason_name(rrfp_idle_reason reason)
{
    switch (reason) {
    case RRFP_IDLE_NONE:
        return "none";
    case RRFP_IDLE_BUDGET:
        return "budget";
    case RRFP_IDLE_ORDER:
        return "order";
    case RRFP_IDLE_INPUT_F:
        return "input-f";
    case RRFP_IDLE_INPUT_B:
        return "input-b";
    case RRFP_IDLE_DRAIN:
        return "drain";
    case RRFP_IDLE_GROUP:
        return "group";
    case RRFP_IDLE_REASON_COUNT:
        break;
    }
    return "?";
}

/* --- creation ----------------------------------------------------------------------------- */

static rrfp_status check_config(const rrfp_stage_config *config, rrfp_error *error)
{
    if (config->struct_size != sizeof *config) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage configuration has struct_size %zu, this library expects %zu",
                              config->struct_size, sizeof *config);
    }
    rrfp_status status = rrfp_shape_check(&config->shape, error);
    if (status != RRFP_OK) {
        return status;
    }
    if (config->stage >= config->shape.stages) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "stage is %u; there are %u stages",
                              config->stage, config->shape.stages);
    }
    if ((unsigned)config->rule > RRFP_RULE_F_PRIO) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "stage %u: unknown rule %d", config->stage,
                              (int)config->rule);
    }
    if ((unsigned)config->accumulate > RRFP_ACCUMULATE_ARRIVAL) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage %u: accumulate is %d; it must be ordered (0) or arrival (1)",
                              config->stage, (int)config->accumulate);
    }
    if (config->rule == RRFP_RULE_BFW && !config->split_backward && !config->forward_only) {
        return rrfp_error_set(
            error, RRFP_ERR_INVALID,
            "stage %u: rule bfw needs split_backward; use bf for a fused backward", config->stage);
    }
    if (config->budget.max_inflight < 1) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "stage %u: max_inflight is 0; it must be at least 1", config->stage);
    }
    return RRFP_OK;
}

/* The budgets: what each chunk takes and what is there. */
static rrfp_status set_ledgers(rrfp_stage *stage, const rrfp_stage_config *config,
                               rrfp_error *error)
{
    rrfp_ledger *slots = &stage->ledger[RRFP_LEDGER_SLOTS];
    rrfp_ledger *bytes = &stage->ledger[RRFP_LEDGER_BYTES];
    uint64_t V = stage->shape.chunks;
    uint64_t M = stage->shape.microbatches;
    uint64_t most = UINT64_MAX / 2 / M; /* of one microbatch: all together stay countable */
    uint64_t slots_needed = 0;
    uint64_t bytes_needed = 0;
    for (uint32_t c = stage->shape.chunks; c-- > 0;) {
        uint64_t activation = config->activation_bytes != NULL ? config->activation_bytes[c] : 0;
        uint64_t retained = config->retained_bytes != NULL ? config->retained_bytes[c] : 0;
        if (activation > most || retained > most - activation ||
            activation + retained > most - bytes_needed) {
            return rrfp_error_set(
                error, RRFP_ERR_INVALID,
                "stage %u: activation_bytes %llu and retained_bytes %llu of chunk "
                "%u are too large to count for %u microbatches",
                stage->stage, (unsigned long long)activation, (unsigned long long)retained, c,
                stage->shape.microbatches);
        }
        slots->start[c] = 1;
        slots->need[c] = ++slots_needed;
        bytes->start[c] = activation + retained;
        bytes->keep[c] = retained;
        bytes_needed += activation + retained;
        bytes->need[c] = bytes_needed;
    }
    slots->limited = config->budget.max_inflight < M;
    slots->capacity = config->budget.max_inflight * V;
    bytes->capacity = config->budget.max_inflight_bytes;
    bytes->limited = bytes->capacity != 0 && bytes->capacity < bytes_needed * M;
    if (config->budget.max_inflight_bytes != 0 && bytes->capacity < bytes_needed) {
        return rrfp_error_set(
            error, RRFP_ERR_INFEASIBLE,
            "stage %u: max_inflight_bytes %llu is less than one microbatch takes; "
            "it must be at least %llu",
            stage->stage, (unsigned long long)bytes->capacity, (unsigned long long)bytes_needed);
    }
    return RRFP_OK;
}

/* Next `bytes` of the block, aligned for uint64_t; the total in *at. */
static size_t carve(size_t *at, size_t bytes)
{
    size_t offset = *at;
    *at += (bytes + 7) / 8 * 8;
    return offset;
}

/* What lies at an offset of carve(). */
static void *part(const rrfp_stage *stage, size_t offset)
{
    return stage->block + offset;
}

static rrfp_status lay_out(rrfp_stage *stage, rrfp_error *error)
{
    size_t V = stage->shape.chunks;
    size_t M = stage->shape.microbatches;
    size_t at = 0;
    bool list = stage->ranking == RRFP_RANKING_LIST;
    stage->ready_layout = rrfp_bitset_layout_make(stage->shape.microbatches);
    stage->order_layout =
        rrfp_bitset_layout_make(stage->ranking == RRFP_RANKING_WINDOW ? stage->order_count : 1);
    size_t set = stage->ready_layout.words * sizeof(uint64_t);
    size_t head = carve(&at, sizeof(rrfp_stage_head));
    size_t next_f = carve(&at, V * sizeof(uint32_t));
    size_t next_b = carve(&at, V * sizeof(uint32_t));
    size_t next_w = carve(&at, V * sizeof(uint32_t));
    size_t ready = carve(&at, RRFP_CLASS_COUNT * V * set);
    size_t ready_f = list ? carve(&at, V * set) : ready;
    size_t unstarted = carve(&at, stage->order_layout.words * sizeof(uint64_t));
    size_t trees[RRFP_LEDGER_COUNT] = {0};
    for (size_t i = 0; i < RRFP_LEDGER_COUNT; i++) {
        trees[i] = stage->ledger[i].limited ? carve(&at, M * sizeof(uint64_t)) : 0;
    }
    size_t state = carve(&at, V * M);
    stage->block = calloc(1, at);
    if (stage->block == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "stage %u: no memory for %zu bytes of state",
                              stage->stage, at);
    }
    stage->block_bytes = at;
    stage->head = part(stage, head);
    stage->next_f = part(stage, next_f);
    stage->next_b = part(stage, next_b);
    stage->next_w = part(stage, next_w);
    stage->ready = part(stage, ready);
    stage->ready_f = part(stage, ready_f);
    stage->unstarted = part(stage, unstarted);
    stage->state = stage->block + state;
    for (size_t i = 0; i < RRFP_LEDGER_COUNT; i++) {
        stage->ledger[i].used = &stage->head->used[i];
        if (stage->ledger[i].limited) {
            stage->ledger[i].tree = part(stage, trees[i]);
        }
    }
    return RRFP_OK;
}

rrfp_status rrfp_stage_create(const rrfp_stage_config *config, rrfp_stage **stage_out,
                              rrfp_error *error)
{
    rrfp_status status = check_config(config, error);
    if (status != RRFP_OK) {
        return status;
    }
    rrfp_stage *stage = calloc(1, sizeof *stage);
    if (stage == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "stage %u: no memory", config->stage);
    }
    stage->shape = config->shape;
    stage->stage = config->stage;
    stage->rule = config->rule;
    stage->split = config->split_backward;
    stage->forward_only = config->forward_only;
    stage->follows = config->follows;
    stage->ordered = config->accumulate == RRFP_ACCUMULATE_ORDERED;
    stage->distance = config->hint_distance;
    stage->pending_limit =
        config->budget.max_pending_w == 0 ? UINT32_MAX : config->budget.max_pending_w;
    if (config->hint_distance != RRFP_DISTANCE_UNBOUNDED) {
        stage->ranking = RRFP_RANKING_WINDOW;
    } else if (config->rule == RRFP_RULE_LIST) {
        stage->ranking = RRFP_RANKING_LIST;
    } else {
        stage->ranking = RRFP_RANKING_RULE;
    }
    for (uint32_t c = 0; c < stage->shape.chunks; c++) {
        stage->global_chunk[c] = rrfp_shape_global_chunk(&stage->shape, stage->stage, c);
    }
    status = set_ledgers(stage, config, error);
    if (status == RRFP_OK && stage->ranking != RRFP_RANKING_RULE) {
        status = rrfp_stage_order_build(stage, config, error);
    }
    if (status == RRFP_OK) {
        status = lay_out(stage, error);
    }
    if (status != RRFP_OK) {
        rrfp_stage_destroy(stage);
        return status;
    }
    *stage_out = stage;
    return RRFP_OK;
}

void rrfp_stage_destroy(rrfp_stage *stage)
{
    if (stage == NULL) {
        return;
    }
    free(stage->order);
    free(stage->rank_of_item);
    free(stage->item_of_rank);
    free(stage->place_of_rank);
    free(stage->place);
    free(stage->block);
    free(stage);
}

/* --- looking in --------------------------------------------------------------------------- */

void rrfp_stage_note_peaks(rrfp_stage *stage)
{
    rrfp_stage_counters *c = &stage->counters;
    c->inflight = (uint32_t)stage->head->used[RRFP_LEDGER_SLOTS];
    c->live_bytes = stage->head->used[RRFP_LEDGER_BYTES];
    c->pending_w = stage->head->pending_w;
    if (c->inflight > c->peak_inflight) {
        c->peak_inflight = c->inflight;
    }
    if (c->live_bytes > c->peak_live_bytes) {
        c->peak_live_bytes = c->live_bytes;
    }
    if (c->pending_w > c->peak_pending_w) {
        c->peak_pending_w = c->pending_w;
    }
}

const rrfp_stage_counters *rrfp_stage_get_counters(const rrfp_stage *stage)
{
    return &stage->counters;
}

bool rrfp_stage_is_ready(const rrfp_stage *stage, rrfp_task task)
{
    if (task.chunk >= stage->shape.chunks || task.microbatch >= stage->shape.microbatches) {
        return false;
    }
    uint8_t state = rrfp_stage_state(stage, task.chunk, task.microbatch);
    switch (task.kind) {
    case RRFP_F:
        return state == RRFP_STATE_F_READY;
    case RRFP_B:
        return stage->split && state == RRFP_STATE_B_READY;
    case RRFP_BW:
        return !stage->split && state == RRFP_STATE_B_READY;
    case RRFP_W:
        return state == RRFP_STATE_W_READY;
    default:
        return false;
    }
}

size_t rrfp_stage_snapshot_bytes(const rrfp_stage *stage)
{
    return stage->block_bytes;
}

void rrfp_stage_snapshot(const rrfp_stage *stage, void *bytes)
{
    memcpy(bytes, stage->block, stage->block_bytes);
}

void rrfp_stage_restore(rrfp_stage *stage, const void *bytes)
{
    memcpy(stage->block, bytes, stage->block_bytes);
    rrfp_stage_note_peaks(stage);
}
