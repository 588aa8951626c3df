/*
 * trace_svg.c - pictures of pipelines: one or more steps above each other.
 *
 *   title, order, hint, length
 *   stage 0 ┃▓▓ 0 ▓▓┃▓▓ 1 ▓▓┃          ┃▒▒ 0 ▒▒┃ ...
 *   stage 1 ┃        ┃▓▓ 0 ▓▓┃▒▒ 0 ▒▒┃ ...
 *   (the next picture)
 *           0        10       20       30 ms
 *   legend
 */
#include <inttypes.h>
#include <math.h>

#include "base/atomic_file.h"
#include "trace/trace_text.h"
#include "trace/trace_internal.h"

enum {
    LEFT = 76,
    RIGHT = 24,
    PLOT_WIDTH = 1300,
    ROW_HEIGHT = 26,
    ROW_STEP = 30,
    HEAD_HEIGHT = 34,
    AXIS_HEIGHT = 30,
    LEGEND_HEIGHT = 30,
    DIGIT_WIDTH = 7
};

typedef struct color {
    uint8_t red, green, blue;
} color;

typedef struct kind_style {
    color fill;
    const char *meaning;
} kind_style;

static const kind_style styles[] = {
    [RRFP_F] = {{66, 133, 214}, "F forward"},
    [RRFP_B] = {{82, 176, 99}, "B input gradient"},
    [RRFP_W] = {{240, 146, 54}, "W weight gradient"},
    [RRFP_BW] = {{33, 125, 66}, "BW backward"},
};

typedef struct extent {
    uint64_t start_ns, end_ns;
} extent;

static void extend(extent *extent_, uint64_t start_ns, uint64_t end_ns)
{
    extent_->start_ns = start_ns < extent_->start_ns ? start_ns : extent_->start_ns;
    extent_->end_ns = end_ns > extent_->end_ns ? end_ns : extent_->end_ns;
}

/* From the first record of the step to its last one on any stage. */
static bool step_extent(const rrfp_trace *trace, uint64_t step, extent *all)
{
    bool found = false;
    *all = (extent){UINT64_MAX, 0};
    for (uint32_t s = 0; s < trace->ranks; s++) {
        const rrfp_trace_log *log = &trace->logs[s];
        for (size_t i = 0; i < log->tasks.count; i++) {
            const rrfp_trace_task *task = &rrfp_trace_tasks(log)[i];
            if (task->step == step) {
                found = true;
                extend(all, task->start_ns, task->end_ns);
            }
        }
        for (size_t i = 0; i < log->spans.count; i++) {
            const rrfp_trace_span *span = &rrfp_trace_spans(log)[i];
            if (span->step == step) {
                extend(all, span->start_ns, span->end_ns);
            }
        }
    }
    return found;
}

static double milliseconds(uint64_t from_ns, uint64_t to_ns)
{
    return ((double)to_ns - (double)from_ns) * 1e-6;
}

/* 1, 2 or 5 times a power of ten, at least a tenth of the range. */
static double tick_distance(double range_ms)
{
    double power = pow(10.0, floor(log10(range_ms / 10.0)));
    double least = range_ms / 10.0 / power;
    return power * (least <= 1.0 ? 1.0 : least <= 2.0 ? 2.0 : least <= 5.0 ? 5.0 : 10.0);
}

/* Later chunks are lighter: up to six tenths of the way to white. */
static color shade(color full, uint32_t chunk, uint32_t chunks)
{
    uint32_t most = chunks > 1 ? chunks - 1 : 1;
    uint32_t white = 60 * chunk / most;
    return (color){(uint8_t)((full.red * (100 - white) + 255 * white) / 100),
                   (uint8_t)((full.green * (100 - white) + 255 * white) / 100),
                   (uint8_t)((full.blue * (100 - white) + 255 * white) / 100)};
}

static bool is_dark(color fill)
{
    return 299u * fill.red + 587u * fill.green + 114u * fill.blue < 145000u;
}

static int digits_of(uint32_t number)
{
    int digits = 1;
    for (; number >= 10; number /= 10) {
        digits++;
    }
    return digits;
}

static void write_box(FILE *out, double x, double width, int y, color fill)
{
    fprintf(out,
            "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"#%02x%02x%02x\">", x, y,
            width, ROW_HEIGHT, fill.red, fill.green, fill.blue);
}

static void write_task(FILE *out, const rrfp_trace *trace, const rrfp_trace_task *task,
                       uint64_t begin_ns, double scale, int y)
{
    color fill = shade(styles[task->task.kind].fill, task->task.chunk, trace->shape.chunks);
    double start = milliseconds(begin_ns, task->start_ns);
    double end = milliseconds(begin_ns, task->end_ns);
    double x = LEFT + start * scale, width = (end - start) * scale;
    write_box(out, x, width > 0.3 ? width : 0.3, y, fill);
    fprintf(out,
            "<title>%s %" PRIu32 ", chunk %u (global %" PRIu32 "): %.3f to %.3f ms, %.3f ms long, "
            "ready %.3f ms before%s</title></rect>\n",
            rrfp_kind_name((rrfp_kind)task->task.kind), task->task.microbatch, task->task.chunk,
            task->global_chunk, start, end, end - start,
            task->start_ns > task->ready_ns ? milliseconds(task->ready_ns, task->start_ns) : 0.0,
            task->out_of_hint ? ", out of hint" : "");
    if (width >= DIGIT_WIDTH * digits_of(task->task.microbatch) + 2) {
        fprintf(out, "<text class=\"mb%s\" x=\"%.2f\" y=\"%d\">%" PRIu32 "</text>\n",
                is_dark(fill) ? " light" : "", x + width / 2, y + ROW_HEIGHT / 2 + 4,
                task->task.microbatch);
    }
}

static void write_row(FILE *out, const rrfp_trace_picture *picture, uint32_t rank,
                      const extent *all, double scale, int y)
{
    const rrfp_trace_log *log = &picture->trace->logs[rank];
    char name[RRFP_TRACE_NAME_BYTES];
    rrfp_trace_rank_name(picture->trace, rank, name);
    fprintf(out, "<text class=\"row\" x=\"%d\" y=\"%d\">%s</text>\n", LEFT - 8,
            y + ROW_HEIGHT / 2 + 4, name);
    fprintf(out, "<rect class=\"lane\" x=\"%d\" y=\"%d\" width=\"%.2f\" height=\"%d\"/>\n", LEFT, y,
            milliseconds(all->start_ns, all->end_ns) * scale, ROW_HEIGHT);
    for (size_t i = 0; i < log->gaps.count; i++) {
        const rrfp_trace_gap *gap = &rrfp_trace_gaps(log)[i];
        uint64_t from = gap->start_ns > all->start_ns ? gap->start_ns : all->start_ns;
        uint64_t to = gap->end_ns < all->end_ns ? gap->end_ns : all->end_ns;
        if (gap->step == picture->step && from < to) {
            write_box(out, LEFT + milliseconds(all->start_ns, from) * scale,
                      milliseconds(from, to) * scale, y, (color){255, 255, 255});
            fprintf(out, "<title>idle %.3f ms: %s</title></rect>\n",
                    milliseconds(gap->start_ns, gap->end_ns), rrfp_trace_idle_name(gap->reason));
        }
    }
    for (size_t i = 0; i < log->spans.count; i++) {
        const rrfp_trace_span *span = &rrfp_trace_spans(log)[i];
        if (span->step == picture->step) {
            write_box(out, LEFT + milliseconds(all->start_ns, span->start_ns) * scale,
                      milliseconds(span->start_ns, span->end_ns) * scale, y,
                      (color){190, 190, 190});
            fprintf(out, "<title>norm and update: %.3f ms</title></rect>\n",
                    milliseconds(span->start_ns, span->end_ns));
        }
    }
    fputs("<g class=\"tasks\">\n", out);
    for (size_t i = 0; i < log->tasks.count; i++) {
        const rrfp_trace_task *task = &rrfp_trace_tasks(log)[i];
        if (task->step == picture->step) {
            write_task(out, picture->trace, task, all->start_ns, scale, y);
        }
    }
    fputs("</g>\n", out);
}

static void write_picture(FILE *out, const rrfp_trace_picture *picture, const extent *all,
                          double scale, int y)
{
    const rrfp_trace_labels *labels = &picture->labels;
    uint32_t ranks = picture->trace->ranks;
    double length = milliseconds(all->start_ns, all->end_ns);
    fprintf(out, "<text class=\"head\" x=\"%d\" y=\"%d\">", LEFT, y + 22);
    rrfp_trace_write_xml_text(out, labels->title != NULL ? labels->title : "");
    fputs(" - order ", out);
    rrfp_trace_write_xml_text(out, labels->order != NULL ? labels->order : "");
    fputs(", hint ", out);
    rrfp_trace_write_xml_text(out, labels->hint != NULL ? labels->hint : "");
    fprintf(out, ", step %" PRIu64 ": %.2f ms</text>\n", picture->step, length);
    for (uint32_t r = 0; r < ranks; r++) {
        write_row(out, picture, r, all, scale, y + HEAD_HEIGHT + (int)r * ROW_STEP);
    }
    double end = LEFT + length * scale;
    fprintf(out, "<line class=\"end\" x1=\"%.2f\" y1=\"%d\" x2=\"%.2f\" y2=\"%d\"/>\n", end,
            y + HEAD_HEIGHT - 4, end, y + HEAD_HEIGHT + (int)ranks * ROW_STEP);
}

static void write_axis(FILE *out, double range_ms, double scale, int y)
{
    double distance = tick_distance(range_ms);
    fprintf(out, "<line class=\"axis\" x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\"/>\n", LEFT, y,
            LEFT + PLOT_WIDTH, y);
    for (int i = 0; i * distance <= range_ms * (1.0 + 1e-9); i++) {
        double x = LEFT + i * distance * scale;
        fprintf(out, "<line class=\"axis\" x1=\"%.2f\" y1=\"%d\" x2=\"%.2f\" y2=\"%d\"/>\n", x, y,
                x, y + 5);
        fprintf(out, "<text class=\"tick\" x=\"%.2f\" y=\"%d\">%g%s</text>\n", x, y + 18,
                i * distance, i == 0 ? " ms" : "");
    }
}

static void write_legend(FILE *out, const rrfp_trace_picture *pictures, size_t count, int y)
{
    bool used[sizeof styles / sizeof styles[0]] = {false};
    bool chunks = false;
    for (size_t p = 0; p < count; p++) {
        const rrfp_trace *trace = pictures[p].trace;
        chunks = chunks || trace->shape.chunks > 1;
        for (uint32_t s = 0; s < trace->ranks; s++) {
            for (size_t i = 0; i < trace->logs[s].tasks.count; i++) {
                const rrfp_trace_task *task = &rrfp_trace_tasks(&trace->logs[s])[i];
                used[task->task.kind] = used[task->task.kind] || task->step == pictures[p].step;
            }
        }
    }
    int x = LEFT;
    for (size_t kind = 0; kind < sizeof styles / sizeof styles[0]; kind++) {
        if (used[kind]) {
            color fill = styles[kind].fill;
            fprintf(out,
                    "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" fill=\"#%02x%02x%02x\"/>"
                    "<text class=\"key\" x=\"%d\" y=\"%d\">%s</text>\n",
                    x, y, fill.red, fill.green, fill.blue, x + 20, y + 11, styles[kind].meaning);
            x += 160;
        }
    }
    fprintf(out, "<text class=\"key\" x=\"%d\" y=\"%d\">grey: norm and update; white: idle; "
                 "number: microbatch%s</text>\n",
            x, y + 11, chunks ? "; lighter: later chunk" : "");
}

static const char style_sheet[] =
    "<style>text{font-family:sans-serif;font-size:12px;fill:#222}.head{font-size:14px;"
    "font-weight:bold}.row{text-anchor:end}.mb{text-anchor:middle;font-size:11px;"
    "pointer-events:none}.light{fill:#fff}.tick{text-anchor:middle}"
    ".tasks rect{stroke:#fff;stroke-width:0.6}.lane{fill:#fff;stroke:#ddd;"
    "stroke-width:1}.axis{stroke:#888}.end{stroke:#c00;stroke-dasharray:4 3}</style>\n";

static void write_document(FILE *out, const rrfp_trace_picture *pictures, size_t count)
{
    int width = LEFT + PLOT_WIDTH + RIGHT, height = AXIS_HEIGHT + LEGEND_HEIGHT;
    double range_ms = 0.0;
    extent all;
    for (size_t p = 0; p < count; p++) {
        step_extent(pictures[p].trace, pictures[p].step, &all);
        double length = milliseconds(all.start_ns, all.end_ns);
        range_ms = length > range_ms ? length : range_ms;
        height += HEAD_HEIGHT + (int)pictures[p].trace->ranks * ROW_STEP;
    }
    range_ms = range_ms > 0.0 ? range_ms : 1e-6;
    double scale = PLOT_WIDTH / range_ms;
    fprintf(out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
            "width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\">\n%s"
            "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
            width, height, width, height, style_sheet, width, height);
    int y = 0;
    for (size_t p = 0; p < count; p++) {
        step_extent(pictures[p].trace, pictures[p].step, &all);
        write_picture(out, &pictures[p], &all, scale, y);
        y += HEAD_HEIGHT + (int)pictures[p].trace->ranks * ROW_STEP;
    }
    write_axis(out, range_ms, scale, y);
    write_legend(out, pictures, count, y + AXIS_HEIGHT);
    fputs("</svg>\n", out);
}

rrfp_status rrfp_trace_write_svg_compare(const rrfp_trace_picture *pictures, size_t count,
                                         const char *path, rrfp_error *error)
{
    rrfp_atomic_file file;
    extent all;
    for (size_t p = 0; p < count; p++) {
        uint64_t first, last;
        if (step_extent(pictures[p].trace, pictures[p].step, &all)) {
            continue;
        }
        if (!rrfp_trace_steps(pictures[p].trace, &first, &last)) {
            return rrfp_error_set(error, RRFP_ERR_INVALID,
                                  "cannot draw step %" PRIu64 ": the trace has no tasks",
                                  pictures[p].step);
        }
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "cannot draw step %" PRIu64 ": the trace has steps %" PRIu64
                              " to %" PRIu64,
                              pictures[p].step, first, last);
    }
    rrfp_status status = rrfp_atomic_file_open(path, &file, error);
    if (status != RRFP_OK) {
        return status;
    }
    write_document(file.stream, pictures, count);
    return rrfp_atomic_file_commit(&file, error);
}

rrfp_status rrfp_trace_write_svg(const rrfp_trace *trace, const rrfp_trace_labels *labels,
                                 uint64_t step, const char *path, rrfp_error *error)
{
    rrfp_trace_picture picture = {trace, *labels, step};
    return rrfp_trace_write_svg_compare(&picture, 1, path, error);
}
