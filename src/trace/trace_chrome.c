/*
 * trace_chrome.c - a trace as Chrome trace events.
 *
 *   pid 0   tid 2r      rank r: tasks, optimizer; ends of the message arrows
 *           tid 2r+1    rank r: idle gaps, named by their reason
 *           counters    activations in flight per rank
 *
 * Times are microseconds since the earliest record, with three decimals, so
 * that nothing of the nanoseconds is lost.  trace_read_chrome.c reads it back.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/atomic_file.h"
#include "trace/trace_text.h"
#include "trace/trace_internal.h"

typedef struct task_key { /* what a message is about: its maker or its consumer */
    uint64_t step;
    uint64_t what; /* global chunk, backward or forward, microbatch */
    uint32_t lane; /* tensor and data rank */
    const rrfp_trace_task *task;
} task_key;

typedef struct writer {
    const rrfp_trace *trace;
    FILE *out;
    uint64_t base_ns;
    task_key *keys; /* sorted */
    size_t key_count;
} writer;

static void keep_earliest(uint64_t *earliest, uint64_t time_ns)
{
    if (time_ns < *earliest) {
        *earliest = time_ns;
    }
}

static uint64_t earliest_time(const rrfp_trace *trace)
{
    uint64_t earliest = UINT64_MAX;
    for (uint32_t r = 0; r < trace->ranks; r++) {
        const rrfp_trace_log *log = &trace->logs[r];
        for (size_t i = 0; i < log->tasks.count; i++) {
            keep_earliest(&earliest, rrfp_trace_tasks(log)[i].ready_ns);
            keep_earliest(&earliest, rrfp_trace_tasks(log)[i].start_ns);
        }
        for (size_t i = 0; i < log->messages.count; i++) {
            keep_earliest(&earliest, rrfp_trace_messages(log)[i].sent_ns);
        }
        for (size_t i = 0; i < log->gaps.count; i++) {
            keep_earliest(&earliest, rrfp_trace_gaps(log)[i].start_ns);
        }
        for (size_t i = 0; i < log->spans.count; i++) {
            keep_earliest(&earliest, rrfp_trace_spans(log)[i].start_ns);
        }
    }
    return earliest == UINT64_MAX ? 0 : earliest;
}

static uint64_t what_of(uint32_t global_chunk, bool backward, uint32_t microbatch)
{
    return (uint64_t)global_chunk << 33 | (uint64_t)backward << 32 | microbatch;
}

static int compare_keys(const void *a, const void *b)
{
    const task_key *x = a, *y = b;
    if (x->step != y->step) {
        return x->step < y->step ? -1 : 1;
    }
    if (x->what != y->what) {
        return x->what < y->what ? -1 : 1;
    }
    return x->lane != y->lane ? (x->lane < y->lane ? -1 : 1) : 0;
}

static uint32_t lane_of(const rrfp_trace *trace, uint32_t rank)
{
    return rank % (trace->ranks / trace->shape.stages);
}

static rrfp_status index_tasks(writer *to, rrfp_error *error)
{
    const rrfp_trace *trace = to->trace;
    size_t count = 0;
    for (uint32_t r = 0; r < trace->ranks; r++) {
        count += trace->logs[r].tasks.count;
    }
    to->keys = calloc(count > 0 ? count : 1, sizeof *to->keys);
    if (to->keys == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "out of memory to write a trace of %zu tasks",
                              count);
    }
    for (uint32_t r = 0; r < trace->ranks; r++) {
        const rrfp_trace_log *log = &trace->logs[r];
        for (size_t i = 0; i < log->tasks.count; i++) {
            const rrfp_trace_task *task = &rrfp_trace_tasks(log)[i];
            if (task->task.kind != RRFP_W) {
                to->keys[to->key_count++] = (task_key){
                    task->step,
                    what_of(task->global_chunk, task->task.kind != RRFP_F, task->task.microbatch),
                    lane_of(trace, r), task};
            }
        }
    }
    qsort(to->keys, to->key_count, sizeof *to->keys, compare_keys);
    return RRFP_OK;
}

static const rrfp_trace_task *find_task(const writer *to, const rrfp_trace_message *message,
                                        uint32_t global_chunk, uint32_t lane)
{
    task_key wanted = {message->step,
                       what_of(global_chunk, message->kind != RRFP_F, message->microbatch), lane,
                       NULL};
    const task_key *found =
        bsearch(&wanted, to->keys, to->key_count, sizeof *to->keys, compare_keys);
    return found != NULL ? found->task : NULL;
}

/* `"name": time` with the time in microseconds. */
static void write_time(const writer *to, const char *name, uint64_t time_ns)
{
    uint64_t since = time_ns - to->base_ns;
    fprintf(to->out, ",\"%s\":%" PRIu64 ".%03" PRIu64, name, since / 1000, since % 1000);
}

static void write_duration(const writer *to, const char *name, uint64_t start_ns, uint64_t end_ns)
{
    uint64_t length = end_ns > start_ns ? end_ns - start_ns : 0;
    fprintf(to->out, ",\"%s\":%" PRIu64 ".%03" PRIu64, name, length / 1000, length % 1000);
}

static void write_header(const writer *to, const rrfp_trace_labels *labels)
{
    const rrfp_shape *shape = &to->trace->shape;
    FILE *out = to->out;
    fputs("{\"displayTimeUnit\":\"ms\",\n\"otherData\":{\"order\":", out);
    rrfp_trace_write_json_string(out, labels->order != NULL ? labels->order : "");
    fputs(",\"hint\":", out);
    rrfp_trace_write_json_string(out, labels->hint != NULL ? labels->hint : "");
    fputs(",\"title\":", out);
    rrfp_trace_write_json_string(out, labels->title != NULL ? labels->title : "");
    fprintf(out,
            ",\"stages\":%" PRIu32 ",\"chunks\":%" PRIu32 ",\"microbatches\":%" PRIu32
            ",\"tensor\":%" PRIu32 ",\"data\":%" PRIu32
            ",\"placement\":\"%s\",\"base_ns\":%" PRIu64 "},\n\"traceEvents\":[\n",
            shape->stages, shape->chunks, shape->microbatches, to->trace->layout.tensor,
            to->trace->layout.data, shape->placement == RRFP_PLACEMENT_V ? "v" : "looped",
            to->base_ns);
    fputs("{\"ph\":\"M\",\"pid\":0,\"name\":\"process_name\",\"args\":{\"name\":", out);
    rrfp_trace_write_json_string(out, labels->title != NULL ? labels->title : "rrfp");
    fputs("}}", out);
    for (uint32_t track = 0; track < 2 * to->trace->ranks; track++) {
        char name[RRFP_TRACE_NAME_BYTES];
        rrfp_trace_rank_name(to->trace, track / 2, name);
        fprintf(out,
                ",\n{\"ph\":\"M\",\"pid\":0,\"tid\":%" PRIu32
                ",\"name\":\"thread_name\",\"args\":{\"name\":\"%s%s\"}}",
                track, name, track % 2 != 0 ? " idle" : "");
        fprintf(out,
                ",\n{\"ph\":\"M\",\"pid\":0,\"tid\":%" PRIu32
                ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%" PRIu32 "}}",
                track, track);
    }
}

static void write_task(const writer *to, uint32_t rank, const rrfp_trace_task *task)
{
    const char *kind = rrfp_kind_name((rrfp_kind)task->task.kind);
    fprintf(to->out,
            ",\n{\"ph\":\"X\",\"pid\":0,\"tid\":%" PRIu32 ",\"name\":\"%s %" PRIu32
            "\",\"cat\":\"task\"",
            2 * rank, kind, task->task.microbatch);
    write_time(to, "ts", task->start_ns);
    write_duration(to, "dur", task->start_ns, task->end_ns);
    fprintf(to->out,
            ",\"args\":{\"kind\":\"%s\",\"chunk\":%u,\"global_chunk\":%" PRIu32
            ",\"microbatch\":%" PRIu32 ",\"step\":%" PRIu64 ",\"out_of_hint\":%s",
            kind, task->task.chunk, task->global_chunk, task->task.microbatch, task->step,
            task->out_of_hint ? "true" : "false");
    write_time(to, "ready_us", task->ready_ns);
    write_duration(to, "wait_us", task->ready_ns, task->start_ns);
    fputs("}}", to->out);
}

static void write_count(const writer *to, uint32_t rank, uint64_t time_ns, uint64_t count)
{
    char name[RRFP_TRACE_NAME_BYTES];
    rrfp_trace_rank_name(to->trace, rank, name);
    fprintf(to->out,
            ",\n{\"ph\":\"C\",\"pid\":0,\"name\":\"in flight, %s"
            "\",\"args\":{\"activations\":%" PRIu64 "}",
            name, count);
    write_time(to, "ts", time_ns);
    fputs("}", to->out);
}

/* An activation is in flight from the start of its F to the end of its B. */
static void write_in_flight(const writer *to, uint32_t rank)
{
    const rrfp_trace_log *log = &to->trace->logs[rank];
    uint64_t count = 0;
    for (size_t i = 0; i < log->tasks.count; i++) {
        const rrfp_trace_task *task = &rrfp_trace_tasks(log)[i];
        if (task->task.kind == RRFP_F) {
            write_count(to, rank, task->start_ns, ++count);
        } else if (task->task.kind != RRFP_W && count > 0) {
            write_count(to, rank, task->end_ns, --count);
        }
    }
}

static void write_rest(const writer *to, uint32_t rank)
{
    const rrfp_trace_log *log = &to->trace->logs[rank];
    for (size_t i = 0; i < log->spans.count; i++) {
        const rrfp_trace_span *span = &rrfp_trace_spans(log)[i];
        fprintf(to->out,
                ",\n{\"ph\":\"X\",\"pid\":0,\"tid\":%" PRIu32
                ",\"name\":\"optimizer\",\"cat\":\"optimizer\"",
                2 * rank);
        write_time(to, "ts", span->start_ns);
        write_duration(to, "dur", span->start_ns, span->end_ns);
        fprintf(to->out, ",\"args\":{\"step\":%" PRIu64 "}}", span->step);
    }
    for (size_t i = 0; i < log->gaps.count; i++) {
        const rrfp_trace_gap *gap = &rrfp_trace_gaps(log)[i];
        fprintf(to->out,
                ",\n{\"ph\":\"X\",\"pid\":0,\"tid\":%" PRIu32 ",\"name\":\"%s\",\"cat\":\"idle\"",
                2 * rank + 1, rrfp_trace_idle_name(gap->reason));
        write_time(to, "ts", gap->start_ns);
        write_duration(to, "dur", gap->start_ns, gap->end_ns);
        fprintf(to->out, ",\"args\":{\"step\":%" PRIu64 "}}", gap->step);
    }
}

static void write_flow_end(const writer *to, char phase, uint32_t rank, uint64_t id,
                           const rrfp_trace_message *message, uint64_t time_ns)
{
    fprintf(to->out,
            ",\n{\"ph\":\"%c\",\"pid\":0,\"tid\":%" PRIu32 ",\"id\":%" PRIu64
            ",\"name\":\"%s\",\"cat\":\"message\"%s",
            phase, 2 * rank, id, message->kind == RRFP_F ? "activation" : "gradient",
            phase == 'f' ? ",\"bp\":\"e\"" : "");
    write_time(to, "ts", time_ns);
    if (phase == 's') {
        fprintf(to->out,
                ",\"args\":{\"step\":%" PRIu64 ",\"microbatch\":%" PRIu32
                ",\"source_global_chunk\":%" PRIu32 ",\"destination_global_chunk\":%" PRIu32
                ",\"bytes\":%" PRIu32,
                message->step, message->microbatch, message->source_global_chunk,
                message->destination_global_chunk, message->bytes);
        write_time(to, "sent_us", message->sent_ns);
        write_time(to, "arrived_us", message->arrived_ns);
        fputs("}", to->out);
    }
    fputs("}", to->out);
}

/*
 * An arrow binds to the slices around its ends.  A message leaves when its task
 * is over and arrives before the next one starts, so the ends are drawn at the
 * last nanosecond of the maker and at the start of the consumer; the true times
 * are in the arguments.  A message without both tasks in the trace gets no arrow.
 */
static void write_flows(const writer *to)
{
    const rrfp_trace *trace = to->trace;
    uint64_t id = 1;
    for (uint32_t r = 0; r < trace->ranks; r++) {
        const rrfp_trace_log *log = &trace->logs[r];
        for (size_t i = 0; i < log->messages.count; i++) {
            const rrfp_trace_message *message = &rrfp_trace_messages(log)[i];
            uint32_t lane = lane_of(trace, r), per_stage = trace->ranks / trace->shape.stages;
            const rrfp_trace_task *maker =
                find_task(to, message, message->source_global_chunk, lane);
            const rrfp_trace_task *consumer =
                find_task(to, message, message->destination_global_chunk, lane);
            if (maker == NULL || consumer == NULL) {
                continue;
            }
            uint64_t leaves =
                maker->end_ns > maker->start_ns ? maker->end_ns - 1 : maker->start_ns;
            write_flow_end(to, 's', message->source_stage * per_stage + lane, id, message, leaves);
            write_flow_end(to, 'f', r, id, message, consumer->start_ns);
            id++;
        }
    }
}

rrfp_status rrfp_trace_write_chrome(const rrfp_trace *trace, const rrfp_trace_labels *labels,
                                    const char *path, rrfp_error *error)
{
    rrfp_atomic_file file;
    writer to = {.trace = trace, .base_ns = earliest_time(trace)};
    rrfp_status status = index_tasks(&to, error);
    if (status == RRFP_OK) {
        status = rrfp_atomic_file_open(path, &file, error);
    }
    if (status == RRFP_OK) {
        to.out = file.stream;
        write_header(&to, labels);
        for (uint32_t r = 0; r < trace->ranks; r++) {
            const rrfp_trace_log *log = &trace->logs[r];
            for (size_t i = 0; i < log->tasks.count; i++) {
                write_task(&to, r, &rrfp_trace_tasks(log)[i]);
            }
            write_rest(&to, r);
            write_in_flight(&to, r);
        }
        write_flows(&to);
        fputs("\n]}\n", file.stream);
        status = rrfp_atomic_file_commit(&file, error);
    }
    free(to.keys);
    return status;
}
