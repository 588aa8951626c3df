/* trace_pack.c - the records of a rank as bytes: four counts, then tasks, messages, gaps, spans. */
#include <stdlib.h>
#include <string.h>

#include "trace/trace_internal.h"

enum { LISTS = 4 };

static const size_t item_bytes[LISTS] = {sizeof(rrfp_trace_task), sizeof(rrfp_trace_message),
                                         sizeof(rrfp_trace_gap), sizeof(rrfp_trace_span)};

static rrfp_trace_list *list_of(rrfp_trace_log *log, int i)
{
    rrfp_trace_list *lists[LISTS] = {&log->tasks, &log->messages, &log->gaps, &log->spans};
    return lists[i];
}

rrfp_status rrfp_trace_pack(const rrfp_trace *trace, uint32_t rank, void **data, size_t *bytes,
                            rrfp_error *error)
{
    rrfp_trace_log *log = &trace->logs[rank];
    uint64_t counts[LISTS];
    size_t total = sizeof counts;
    for (int i = 0; i < LISTS; i++) {
        counts[i] = list_of(log, i)->count;
        total += list_of(log, i)->count * item_bytes[i];
    }
    unsigned char *out = malloc(total);
    if (out == NULL) {
        return rrfp_error_set(error, RRFP_ERR_NOMEM, "rank %u: out of memory for its trace",
                              rank);
    }
    memcpy(out, counts, sizeof counts);
    size_t at = sizeof counts;
    for (int i = 0; i < LISTS; i++) {
        size_t size = list_of(log, i)->count * item_bytes[i];
        if (size > 0) {
            memcpy(out + at, list_of(log, i)->items, size);
        }
        at += size;
    }
    *data = out;
    *bytes = total;
    return RRFP_OK;
}

rrfp_status rrfp_trace_add_packed(rrfp_trace *trace, uint32_t rank, const void *data,
                                  size_t bytes, rrfp_error *error)
{
    const unsigned char *in = data;
    uint64_t counts[LISTS];
    bool whole = bytes >= sizeof counts;
    size_t left = whole ? bytes - sizeof counts : 0;
    memcpy(counts, whole ? in : (const unsigned char *)"", whole ? sizeof counts : 0);
    for (int i = 0; whole && i < LISTS; i++) {
        whole = counts[i] <= left / item_bytes[i];
        left -= whole ? (size_t)counts[i] * item_bytes[i] : 0;
    }
    if (!whole || left != 0) {
        return rrfp_error_set(error, RRFP_ERR_FORMAT, "rank %u: %zu bytes are not its trace",
                              rank, bytes);
    }
    rrfp_status status = rrfp_trace_make_room(trace, rank, (size_t)counts[0], (size_t)counts[1],
                                              (size_t)counts[2], (size_t)counts[3], error);
    in += sizeof counts;
    for (int i = 0; status == RRFP_OK && i < LISTS; i++) {
        rrfp_trace_list *list = list_of(&trace->logs[rank], i);
        size_t size = (size_t)counts[i] * item_bytes[i];
        if (size > 0) {
            memcpy((char *)list->items + list->count * item_bytes[i], in, size);
        }
        list->count += (size_t)counts[i];
        in += size;
    }
    return status;
}
