/* trace_read_chrome.c - reads back what trace_chrome.c writes; nothing in a file is trusted. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "trace/trace_internal.h"

typedef struct reader {
    const char *path;
    rrfp_trace *trace;
    size_t event; /* number of the one being read, from 0 */
    rrfp_error *error;
} reader;

static rrfp_status bad_event(const reader *from, const char *field)
{
    return rrfp_error_set(from->error, RRFP_ERR_FORMAT,
                          "'%s': event %zu: \"%s\" is missing or out of range; only traces written "
                          "by rrfp can be read",
                          from->path, from->event, field);
}

static bool read_integer(const json_t *object, const char *name, uint64_t least, uint64_t most,
                         uint64_t *value)
{
    const json_t *field = json_object_get(object, name);
    json_int_t integer = json_integer_value(field);
    if (!json_is_integer(field) || integer < 0 || (uint64_t)integer < least ||
        (uint64_t)integer > most) {
        return false;
    }
    *value = (uint64_t)integer;
    return true;
}

/* Microseconds in the file, nanoseconds here.  Up to 2^53 ns (104 days) nothing is lost. */
static bool read_time(const json_t *object, const char *name, uint64_t *time_ns)
{
    const json_t *field = json_object_get(object, name);
    double nanoseconds = json_number_value(field) * 1000.0;
    if (!json_is_number(field) || !(nanoseconds >= 0.0 && nanoseconds < 0x1p53)) {
        return false;
    }
    *time_ns = (uint64_t)llround(nanoseconds);
    return true;
}

static bool read_kind(const json_t *args, uint8_t *kind)
{
    const char *name = json_string_value(json_object_get(args, "kind"));
    for (int i = RRFP_F; name != NULL && i <= RRFP_BW; i++) {
        if (strcmp(name, rrfp_kind_name((rrfp_kind)i)) == 0) {
            *kind = (uint8_t)i;
            return true;
        }
    }
    return false;
}

static rrfp_status read_task(const reader *from, uint32_t stage, const json_t *args,
                             uint64_t start_ns, uint64_t end_ns, uint64_t step)
{
    const rrfp_shape *shape = &from->trace->shape;
    rrfp_trace_task task = {.start_ns = start_ns, .end_ns = end_ns, .step = step};
    uint64_t chunk, microbatch;
    if (!read_kind(args, &task.task.kind)) {
        return bad_event(from, "kind");
    }
    if (!read_integer(args, "chunk", 0, shape->chunks - 1, &chunk)) {
        return bad_event(from, "chunk");
    }
    if (!read_integer(args, "microbatch", 0, shape->microbatches - 1, &microbatch)) {
        return bad_event(from, "microbatch");
    }
    if (!read_time(args, "ready_us", &task.ready_ns)) {
        return bad_event(from, "ready_us");
    }
    task.task.chunk = (uint16_t)chunk;
    task.task.microbatch = (uint32_t)microbatch;
    task.global_chunk = rrfp_shape_global_chunk(shape, stage, (uint32_t)chunk);
    task.out_of_hint = json_is_true(json_object_get(args, "out_of_hint"));
    rrfp_status status = rrfp_trace_make_room(from->trace, stage, 1, 0, 0, 0, from->error);
    if (status == RRFP_OK) {
        rrfp_trace_add_task(from->trace, stage, &task);
    }
    return status;
}

static rrfp_status read_gap(const reader *from, uint32_t stage, const json_t *event,
                            uint64_t start_ns, uint64_t end_ns, uint64_t step)
{
    const char *name = json_string_value(json_object_get(event, "name"));
    rrfp_trace_gap gap = {start_ns, end_ns, step, RRFP_TRACE_IDLE_COUNT};
    for (int i = 0; name != NULL && i < RRFP_TRACE_IDLE_COUNT; i++) {
        if (strcmp(name, rrfp_trace_idle_name((rrfp_trace_idle)i)) == 0) {
            gap.reason = (rrfp_trace_idle)i;
        }
    }
    if (gap.reason == RRFP_TRACE_IDLE_COUNT) {
        return bad_event(from, "name");
    }
    rrfp_status status = rrfp_trace_make_room(from->trace, stage, 0, 0, 1, 0, from->error);
    if (status == RRFP_OK) {
        rrfp_trace_add_gap(from->trace, stage, &gap);
    }
    return status;
}

static rrfp_status read_slice(const reader *from, const json_t *event)
{
    const json_t *args = json_object_get(event, "args");
    const char *category = json_string_value(json_object_get(event, "cat"));
    uint64_t track, start_ns, length_ns, step;
    if (!read_integer(event, "tid", 0, 2 * (uint64_t)from->trace->ranks - 1, &track)) {
        return bad_event(from, "tid");
    }
    if (!read_time(event, "ts", &start_ns)) {
        return bad_event(from, "ts");
    }
    if (!read_time(event, "dur", &length_ns)) {
        return bad_event(from, "dur");
    }
    if (!read_integer(args, "step", 0, INT64_MAX, &step)) {
        return bad_event(from, "step");
    }
    uint32_t stage = (uint32_t)(track / 2);
    if (category != NULL && strcmp(category, "task") == 0) {
        return read_task(from, stage, args, start_ns, start_ns + length_ns, step);
    }
    if (category != NULL && strcmp(category, "idle") == 0) {
        return read_gap(from, stage, event, start_ns, start_ns + length_ns, step);
    }
    if (category != NULL && strcmp(category, "optimizer") == 0) {
        rrfp_status status = rrfp_trace_make_room(from->trace, stage, 0, 0, 0, 1, from->error);
        if (status == RRFP_OK) {
            rrfp_trace_add_optimizer(from->trace, stage, step, start_ns, start_ns + length_ns);
        }
        return status;
    }
    return bad_event(from, "cat");
}

/* The start of an arrow says all about its message. */
static rrfp_status read_message(const reader *from, const json_t *event)
{
    const rrfp_shape *shape = &from->trace->shape;
    const json_t *args = json_object_get(event, "args");
    const char *name = json_string_value(json_object_get(event, "name"));
    rrfp_trace_message message = {0};
    uint64_t source, destination, microbatch, bytes, last = shape->stages * shape->chunks - 1;
    uint64_t track;
    uint32_t chunk, per_stage = from->trace->ranks / shape->stages;
    if (name == NULL || (strcmp(name, "activation") != 0 && strcmp(name, "gradient") != 0)) {
        return bad_event(from, "name");
    }
    message.kind = strcmp(name, "activation") == 0 ? RRFP_F : RRFP_B;
    if (!read_integer(event, "tid", 0, 2 * (uint64_t)from->trace->ranks - 1, &track)) {
        return bad_event(from, "tid");
    }
    if (!read_integer(args, "step", 0, INT64_MAX, &message.step)) {
        return bad_event(from, "step");
    }
    if (!read_integer(args, "microbatch", 0, shape->microbatches - 1, &microbatch)) {
        return bad_event(from, "microbatch");
    }
    if (!read_integer(args, "source_global_chunk", 0, last, &source)) {
        return bad_event(from, "source_global_chunk");
    }
    if (!read_integer(args, "destination_global_chunk", 0, last, &destination)) {
        return bad_event(from, "destination_global_chunk");
    }
    if (!read_integer(args, "bytes", 0, UINT32_MAX, &bytes)) {
        return bad_event(from, "bytes");
    }
    if (!read_time(args, "sent_us", &message.sent_ns)) {
        return bad_event(from, "sent_us");
    }
    if (!read_time(args, "arrived_us", &message.arrived_ns)) {
        return bad_event(from, "arrived_us");
    }
    message.microbatch = (uint32_t)microbatch;
    message.bytes = (uint32_t)bytes;
    message.source_global_chunk = (uint32_t)source;
    message.destination_global_chunk = (uint32_t)destination;
    rrfp_shape_owner(shape, message.source_global_chunk, &message.source_stage, &chunk);
    rrfp_shape_owner(shape, message.destination_global_chunk, &message.destination_stage, &chunk);
    /* The sender's rank of its stage is the receiver's, too. */
    uint32_t rank = message.destination_stage * per_stage + (uint32_t)(track / 2) % per_stage;
    rrfp_status status = rrfp_trace_make_room(from->trace, rank, 0, 1, 0, 0, from->error);
    if (status == RRFP_OK) {
        rrfp_trace_add_message(from->trace, rank, &message);
    }
    return status;
}

static rrfp_status read_shape(reader *from, const json_t *other)
{
    const char *placement = json_string_value(json_object_get(other, "placement"));
    uint64_t stages, chunks, microbatches, tensor = 1, data = 1;
    if (placement == NULL || !read_integer(other, "stages", 1, RRFP_MAX_STAGES, &stages) ||
        !read_integer(other, "chunks", 1, RRFP_MAX_CHUNKS, &chunks) ||
        !read_integer(other, "microbatches", 1, RRFP_MAX_MICROBATCHES, &microbatches) ||
        (json_object_get(other, "tensor") != NULL &&
         !read_integer(other, "tensor", 1, 1024, &tensor)) ||
        (json_object_get(other, "data") != NULL && !read_integer(other, "data", 1, 1024, &data)) ||
        stages * tensor * data > RRFP_MAX_STAGES ||
        (strcmp(placement, "v") != 0 && strcmp(placement, "looped") != 0)) {
        return rrfp_error_set(from->error, RRFP_ERR_FORMAT,
                              "'%s': \"otherData\" does not describe a pipeline; only traces "
                              "written by rrfp can be read",
                              from->path);
    }
    rrfp_shape shape = {(uint32_t)stages, (uint32_t)chunks, (uint32_t)microbatches,
                        strcmp(placement, "v") == 0 ? RRFP_PLACEMENT_V : RRFP_PLACEMENT_LOOPED};
    rrfp_layout layout = {(uint32_t)tensor, (uint32_t)data, (uint32_t)stages};
    return rrfp_trace_create(&shape, &layout, true, &from->trace, from->error);
}

static void read_label(const json_t *other, const char *name, char *label, size_t bytes)
{
    const char *text = json_string_value(json_object_get(other, name));
    label[0] = '\0';
    if (text != NULL) {
        strncat(label, text, bytes - 1);
    }
}

static rrfp_status read_events(reader *from, const json_t *root)
{
    const json_t *events = json_object_get(root, "traceEvents"), *event;
    rrfp_status status = RRFP_OK;
    if (!json_is_array(events)) {
        return rrfp_error_set(from->error, RRFP_ERR_FORMAT, "'%s': \"traceEvents\" is missing",
                              from->path);
    }
    json_array_foreach (events, from->event, event) {
        const char *phase = json_string_value(json_object_get(event, "ph"));
        if (phase == NULL) {
            return bad_event(from, "ph");
        }
        if (strcmp(phase, "X") == 0) {
            status = read_slice(from, event);
        } else if (strcmp(phase, "s") == 0) {
            status = read_message(from, event);
        }
        if (status != RRFP_OK) {
            return status;
        }
    }
    return RRFP_OK;
}

rrfp_status rrfp_trace_read_chrome(const char *path, rrfp_trace **out,
                                   rrfp_trace_file_labels *labels, rrfp_error *error)
{
    json_error_t json_error;
    reader from = {.path = path, .error = error};
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &json_error);
    if (root == NULL) {
        bool unreadable = json_error_code(&json_error) == json_error_cannot_open_file;
        return unreadable ? rrfp_error_set(error, RRFP_ERR_IO, "%s", json_error.text)
                          : rrfp_error_set(error, RRFP_ERR_FORMAT, "'%s': line %d: %s", path,
                                           json_error.line, json_error.text);
    }
    const json_t *other = json_object_get(root, "otherData");
    rrfp_status status = read_shape(&from, other);
    if (status == RRFP_OK) {
        status = read_events(&from, root);
    }
    if (status == RRFP_OK) {
        read_label(other, "order", labels->order, sizeof labels->order);
        read_label(other, "hint", labels->hint, sizeof labels->hint);
        read_label(other, "title", labels->title, sizeof labels->title);
        *out = from.trace;
    } else {
        rrfp_trace_destroy(from.trace);
    }
    json_decref(root);
    return status;
}
