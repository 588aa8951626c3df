/*
 * csv_read.c - schedules of others, trusted in nothing.
 *
 * One row per rank; cells <global chunk><F|I|B|W><microbatch>; an empty cell is
 * a bubble and is skipped.  Read in two passes: the cells as they are, then
 * shape, ownership and completeness, then an execution through the stage
 * machines that shows whether the rows wait for each other.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "hint/hint_internal.h"

enum { MAX_FILE_BYTES = 64 << 20 };

typedef struct cell {
    uint32_t row, column; /* from 1, as people count */
    uint32_t global_chunk;
    rrfp_task task; /* chunk filled in once the placement is known */
    char text[24];
} cell;

typedef struct reader {
    const char *name;
    rrfp_error *error;
    cell *cells;
    size_t count, capacity;
    uint32_t rows;
    uint32_t *owner; /* per global chunk: its row */
    uint32_t chunk_count;
    rrfp_shape shape;
} reader;

static rrfp_status bad_cell(const reader *r, const cell *c, const char *problem)
{
    return rrfp_error_set(r->error, RRFP_ERR_FORMAT, "%s: row %u, column %u, cell \"%s\": %s",
                          r->name, c->row, c->column, c->text, problem);
}

static bool digits(const char **at, const char *end, uint32_t most, uint32_t *value)
{
    uint64_t number = 0;
    const char *first = *at;
    while (*at < end && **at >= '0' && **at <= '9') {
        number = number * 10 + (uint64_t)(**at - '0');
        if (number > most) {
            return false;
        }
        (*at)++;
    }
    *value = (uint32_t)number;
    return *at > first;
}

static rrfp_status parse_cell(reader *r, cell *c, const char *at, const char *end)
{
    static const char letters[] = "FIWB";
    static const rrfp_kind kinds[] = {RRFP_F, RRFP_B, RRFP_W, RRFP_BW};
    if (!digits(&at, end, (uint32_t)RRFP_MAX_STAGES * RRFP_MAX_CHUNKS - 1, &c->global_chunk)) {
        return bad_cell(r, c, "it must begin with a stage number, as in 2F0");
    }
    const char *letter = at < end && *at != '\0' ? strchr(letters, *at) : NULL;
    if (letter == NULL || (at + 1 < end && (at[1] < '0' || at[1] > '9'))) {
        return bad_cell(r, c,
                        "only the compute actions F, I, W and B are read; take communication, "
                        "FSDP, REDUCE_GRAD and OVERLAP actions out");
    }
    at++;
    c->task.kind = (uint8_t)kinds[letter - letters];
    if (!digits(&at, end, RRFP_MAX_MICROBATCHES - 1, &c->task.microbatch) || at != end) {
        return bad_cell(r, c, "it must end with a microbatch number below 65536, as in 2F0");
    }
    return RRFP_OK;
}

static rrfp_status add_cell(reader *r, uint32_t column, const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t')) {
        at++;
    }
    while (end > at && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r')) {
        end--;
    }
    if (at == end) {
        return RRFP_OK;
    }
    if (r->count == r->capacity) {
        size_t capacity = r->capacity == 0 ? 256 : 2 * r->capacity;
        cell *cells = realloc(r->cells, capacity * sizeof *cells);
        if (cells == NULL) {
            return rrfp_error_set(r->error, RRFP_ERR_NOMEM, "%s: out of memory", r->name);
        }
        r->cells = cells;
        r->capacity = capacity;
    }
    cell *c = &r->cells[r->count];
    memset(c, 0, sizeof *c);
    c->row = r->rows + 1;
    c->column = column;
    size_t length = (size_t)(end - at) < sizeof c->text - 1 ? (size_t)(end - at)
                                                            : sizeof c->text - 1;
    memcpy(c->text, at, length);
    rrfp_status status = parse_cell(r, c, at, end);
    r->count += status == RRFP_OK ? 1 : 0;
    return status;
}

static rrfp_status read_cells(reader *r, const char *text, size_t bytes)
{
    const char *end = text + bytes;
    while (text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        const char *line_end = newline == NULL ? end : newline, *at = text, *comma;
        uint32_t column = 0;
        do {
            comma = memchr(at, ',', (size_t)(line_end - at));
            rrfp_status status = add_cell(r, ++column, at, comma == NULL ? line_end : comma);
            if (status != RRFP_OK) {
                return status;
            }
            at = comma == NULL ? line_end : comma + 1;
        } while (comma != NULL);
        if (++r->rows > RRFP_MAX_STAGES) {
            return rrfp_error_set(r->error, RRFP_ERR_FORMAT, "%s: more than %d rows", r->name,
                                  (int)RRFP_MAX_STAGES);
        }
        text = newline == NULL ? end : newline + 1;
    }
    /* Blank lines at the end are no ranks; a blank line between rows is one without work. */
    while (r->rows > 0 && (r->count == 0 || r->cells[r->count - 1].row < r->rows)) {
        r->rows--;
    }
    if (r->count == 0) {
        return rrfp_error_set(r->error, RRFP_ERR_FORMAT, "%s: no task in it", r->name);
    }
    return RRFP_OK;
}

static rrfp_status expect(const reader *r, const char *what, const char *flag, uint32_t found,
                          uint32_t wanted)
{
    if (wanted == 0 || found == wanted) {
        return RRFP_OK;
    }
    return rrfp_error_set(r->error, RRFP_ERR_INFEASIBLE,
                          "%s has %u %s, the run wants %u: change %s or take another file", r->name,
                          found, what, wanted, flag);
}

/* P, V and M from the cells, and who owns which chunk. */
static rrfp_status infer_shape(reader *r, uint32_t stages, uint32_t chunks, uint32_t microbatches)
{
    uint32_t most_m = 0, most_g = 0;
    for (size_t i = 0; i < r->count; i++) {
        most_m = r->cells[i].task.microbatch > most_m ? r->cells[i].task.microbatch : most_m;
        most_g = r->cells[i].global_chunk > most_g ? r->cells[i].global_chunk : most_g;
    }
    r->chunk_count = most_g + 1;
    if (r->chunk_count % r->rows != 0 || r->chunk_count / r->rows > RRFP_MAX_CHUNKS) {
        return rrfp_error_set(r->error, RRFP_ERR_FORMAT,
                              "%s: %u stages on %u ranks: each rank must hold the same number, at "
                              "most %d",
                              r->name, r->chunk_count, r->rows, (int)RRFP_MAX_CHUNKS);
    }
    r->shape = (rrfp_shape){r->rows, r->chunk_count / r->rows, most_m + 1, RRFP_PLACEMENT_LOOPED};
    rrfp_status status = expect(r, "ranks", "--pipeline-model-parallel-size", r->rows, stages);
    if (status == RRFP_OK) {
        status = expect(r, "stages a rank", "--virtual-stages", r->shape.chunks, chunks);
    }
    if (status == RRFP_OK) {
        status = expect(r, "microbatches", "--global-batch-size", r->shape.microbatches,
                        microbatches);
    }
    if (status != RRFP_OK) {
        return status;
    }
    r->owner = calloc(r->chunk_count, sizeof *r->owner);
    if (r->owner == NULL) {
        return rrfp_error_set(r->error, RRFP_ERR_NOMEM, "%s: out of memory", r->name);
    }
    for (size_t i = 0; i < r->count; i++) {
        const cell *c = &r->cells[i];
        if (r->owner[c->global_chunk] == 0) {
            r->owner[c->global_chunk] = c->row;
        } else if (r->owner[c->global_chunk] != c->row) {
            return bad_cell(r, c, "its stage is on another row too; a stage belongs to one rank");
        }
    }
    return RRFP_OK;
}

static bool placed(const reader *r, rrfp_placement placement)
{
    rrfp_shape shape = r->shape;
    shape.placement = placement;
    if (placement == RRFP_PLACEMENT_V && shape.chunks != 2) {
        return false;
    }
    for (uint32_t g = 0; g < r->chunk_count; g++) {
        uint32_t stage, chunk;
        rrfp_shape_owner(&shape, g, &stage, &chunk);
        if (r->owner[g] != 0 && r->owner[g] != stage + 1) {
            return false;
        }
    }
    return true;
}

static rrfp_status find_placement(reader *r)
{
    if (placed(r, RRFP_PLACEMENT_LOOPED)) {
        return RRFP_OK;
    }
    if (placed(r, RRFP_PLACEMENT_V)) {
        r->shape.placement = RRFP_PLACEMENT_V;
        return RRFP_OK;
    }
    return rrfp_error_set(r->error, RRFP_ERR_UNSUPPORTED,
                          "%s: stages are placed neither in turn (stage g on rank g mod %u) nor in "
                          "a V (rank r holds r and %u-r)",
                          r->name, r->rows, 2 * r->rows - 1);
}

/* Every task once, in an order each rank can follow taken alone. */
static rrfp_status check_tasks(reader *r, bool *split)
{
    enum { HAS_F = 1, HAS_I = 2, HAS_W = 4, HAS_BW = 8 };
    size_t items = (size_t)r->chunk_count * r->shape.microbatches;
    uint8_t *seen = items > r->count ? NULL : calloc(items, 1);
    if (items > r->count) {
        return rrfp_error_set(r->error, RRFP_ERR_FORMAT,
                              "%s: %u stages x %u microbatches need at least %zu tasks, there are "
                              "%zu",
                              r->name, r->chunk_count, r->shape.microbatches, 2 * items, r->count);
    }
    if (seen == NULL) {
        return rrfp_error_set(r->error, RRFP_ERR_NOMEM, "%s: out of memory", r->name);
    }
    rrfp_status status = RRFP_OK;
    unsigned all = 0;
    for (size_t i = 0; i < r->count && status == RRFP_OK; i++) {
        const cell *c = &r->cells[i];
        uint8_t *s = &seen[(size_t)c->global_chunk * r->shape.microbatches + c->task.microbatch];
        unsigned bit = c->task.kind == RRFP_F   ? HAS_F
                       : c->task.kind == RRFP_B ? HAS_I
                       : c->task.kind == RRFP_W ? HAS_W
                                                : HAS_BW;
        all |= bit;
        /* There is a cell, so items >= 1. NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
        if (*s & bit) {
            status = bad_cell(r, c, "this task stands earlier in the row too");
        } else if (bit != HAS_F && !(*s & HAS_F)) {
            status = bad_cell(r, c, "a backward before the forward of its microbatch");
        } else if (bit == HAS_W && !(*s & HAS_I)) {
            status = bad_cell(r, c, "W before the I of its microbatch");
        } else if ((all & HAS_BW) && (all & (HAS_I | HAS_W))) {
            status = bad_cell(r, c,
                              "B (whole backward) mixed with I and W; use one form throughout");
        }
        *s |= (uint8_t)bit;
    }
    *split = (all & HAS_BW) == 0 && (all & (HAS_I | HAS_W)) != 0;
    unsigned complete = *split ? HAS_F | HAS_I | HAS_W : HAS_F | HAS_BW;
    for (size_t i = 0; i < items && status == RRFP_OK; i++) {
        unsigned missing = complete & ~seen[i];
        if (missing != 0) {
            uint32_t row, chunk;
            rrfp_shape_owner(&r->shape, (uint32_t)(i / r->shape.microbatches), &row, &chunk);
            status = rrfp_error_set(
                r->error, RRFP_ERR_FORMAT, "%s: row %" PRIu32 ": task %" PRIu32 "%c%" PRIu32
                " is missing",
                r->name, row + 1, (uint32_t)(i / r->shape.microbatches),
                missing & HAS_F ? 'F' : missing & HAS_I ? 'I' : missing & HAS_W ? 'W' : 'B',
                (uint32_t)(i % r->shape.microbatches));
        }
    }
    free(seen);
    return status;
}

static rrfp_status fill_lists(reader *r, rrfp_lists *lists)
{
    rrfp_status status =
        rrfp_lists_init(lists, r->rows, (size_t)3 * r->shape.chunks * r->shape.microbatches,
                        r->error);
    for (size_t i = 0; status == RRFP_OK && i < r->count; i++) {
        uint32_t stage, chunk;
        rrfp_shape_owner(&r->shape, r->cells[i].global_chunk, &stage, &chunk);
        r->cells[i].task.chunk = (uint16_t)chunk;
        lists->tasks[stage][lists->counts[stage]++] = r->cells[i].task;
    }
    return status;
}

/* Follows the rows exactly; the first rank that gets stuck is named with its cell. */
static rrfp_status check_feasible(reader *r, const rrfp_lists *lists, bool split)
{
    rrfp_budget *budgets = calloc(r->rows, sizeof *budgets);
    size_t *stuck = calloc(r->rows, sizeof *stuck);
    rrfp_lists recorded;
    rrfp_status status = RRFP_ERR_NOMEM;
    if (budgets != NULL && stuck != NULL) {
        for (uint32_t s = 0; s < r->rows; s++) {
            budgets[s].max_inflight = r->shape.microbatches;
        }
        rrfp_plan plan = {.shape = r->shape,
                          .rule = RRFP_RULE_LIST,
                          .split_backward = split,
                          .accumulate = RRFP_ACCUMULATE_ARRIVAL,
                          .budgets = budgets,
                          .orders = lists};
        status = rrfp_plan_run(&plan, &recorded, stuck, r->error);
        if (status == RRFP_OK) {
            rrfp_lists_free(&recorded);
        }
    } else {
        rrfp_error_set(r->error, RRFP_ERR_NOMEM, "%s: out of memory", r->name);
    }
    if (status == RRFP_ERR_INFEASIBLE) {
        uint32_t s = 0;
        while (s + 1 < r->rows && stuck[s] >= lists->counts[s]) {
            s++;
        }
        rrfp_task task = lists->tasks[s][stuck[s] < lists->counts[s] ? stuck[s] : 0];
        for (size_t i = 0; i < r->count; i++) {
            const cell *c = &r->cells[i];
            if (c->row == s + 1 && memcmp(&c->task, &task, sizeof task) == 0) {
                status = bad_cell(r, c,
                                  "never becomes ready: the rows wait for each other from here on");
                break;
            }
        }
    }
    free(budgets);
    free(stuck);
    return status;
}

static rrfp_status read_all(reader *r, const char *text, size_t bytes, uint32_t stages,
                            uint32_t chunks, uint32_t microbatches, rrfp_hint **hint_out)
{
    rrfp_lists lists = {0};
    bool split = false;
    rrfp_status status = read_cells(r, text, bytes);
    if (status == RRFP_OK) {
        status = infer_shape(r, stages, chunks, microbatches);
    }
    if (status == RRFP_OK) {
        status = find_placement(r);
    }
    if (status == RRFP_OK) {
        status = check_tasks(r, &split);
    }
    if (status == RRFP_OK) {
        status = fill_lists(r, &lists);
    }
    if (status == RRFP_OK) {
        status = check_feasible(r, &lists, split);
    }
    rrfp_hint *hint = status == RRFP_OK ? calloc(1, sizeof *hint) : NULL;
    rrfp_budget *budgets = status == RRFP_OK ? calloc(r->rows, sizeof *budgets) : NULL;
    if (status == RRFP_OK && (hint == NULL || budgets == NULL)) {
        status = rrfp_error_set(r->error, RRFP_ERR_NOMEM, "%s: out of memory", r->name);
    }
    if (status != RRFP_OK) {
        free(hint);
        free(budgets);
        rrfp_lists_free(&lists);
        return status;
    }
    for (uint32_t s = 0; s < r->rows; s++) {
        uint32_t slots = rrfp_list_peak_inflight(lists.tasks[s], lists.counts[s]);
        budgets[s].max_inflight = (slots + r->shape.chunks - 1) / r->shape.chunks;
    }
    hint->shape = r->shape;
    hint->rule = RRFP_RULE_LIST;
    hint->split_backward = split;
    hint->hint_distance = RRFP_DISTANCE_UNBOUNDED;
    snprintf(hint->name, sizeof hint->name, "%s", r->name);
    hint->budgets = budgets;
    hint->orders = lists.tasks;
    hint->order_counts = lists.counts;
    lists.tasks = NULL;
    lists.counts = NULL;
    rrfp_lists_free(&lists);
    *hint_out = hint;
    return RRFP_OK;
}

rrfp_status rrfp_hint_parse_csv(const char *name, const char *text, size_t text_bytes,
                                uint32_t stages, uint32_t chunks, uint32_t microbatches,
                                rrfp_hint **hint_out, rrfp_error *error)
{
    rrfp_error unused;
    reader r = {.name = name, .error = error == NULL ? &unused : error};
    rrfp_status status = read_all(&r, text, text_bytes, stages, chunks, microbatches, hint_out);
    free(r.cells);
    free(r.owner);
    return status;
}

rrfp_status rrfp_hint_read_csv(const char *path, uint32_t stages, uint32_t chunks,
                               uint32_t microbatches, rrfp_hint **hint_out, rrfp_error *error)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return rrfp_error_set(error, RRFP_ERR_IO, "cannot read the hint file %s: %s", path,
                              strerror(errno));
    }
    char *text = malloc(MAX_FILE_BYTES + 1);
    rrfp_status status = RRFP_OK;
    size_t bytes = 0;
    if (text == NULL) {
        status = rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory for %s", path);
    } else {
        bytes = fread(text, 1, MAX_FILE_BYTES + 1, file);
        if (ferror(file)) {
            status = rrfp_error_set(error, RRFP_ERR_IO, "cannot read the hint file %s: %s", path,
                                    strerror(errno));
        } else if (bytes > MAX_FILE_BYTES) {
            status = rrfp_error_set(error, RRFP_ERR_FORMAT, "%s is larger than %d MiB", path,
                                    (int)(MAX_FILE_BYTES >> 20));
        }
    }
    fclose(file);
    if (status == RRFP_OK) {
        status = rrfp_hint_parse_csv(path, text, bytes, stages, chunks, microbatches, hint_out,
                                     error);
    }
    free(text);
    return status;
}
