/* options_value.c - text to value and back, with the bounds of a row. */
#include "config/options_table.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/suggest.h"
#include "rrfp/stage.h"

static void *field_of(const rrfp_option *option, rrfp_options *options)
{
    return (char *)options + option->offset;
}

static const void *field_in(const rrfp_option *option, const rrfp_options *options)
{
    return (const char *)options + option->offset;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits at *text; false when there are none or they overflow. Moves *text behind them. */
static bool read_digits(const char **text, uint64_t *value)
{
    const char *p = *text;
    uint64_t sum = 0;

    if (!is_digit(*p)) {
        return false;
    }
    for (; is_digit(*p); p++) {
        uint64_t digit = (uint64_t)(*p - '0');

        if (sum > (UINT64_MAX - digit) / 10) {
            return false;
        }
        sum = sum * 10 + digit;
    }
    *text = p;
    *value = sum;
    return true;
}

static bool read_unit(const char *text, unsigned *shift)
{
    static const struct {
        const char *name;
        unsigned shift;
    } units[] = {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};

    if (*text == ' ') {
        text++;
    }
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(text, units[i].name) == 0) {
            *shift = units[i].shift;
            return true;
        }
    }
    return false;
}

static rrfp_status wrong(const rrfp_option *option, const char *place, const char *text,
                         const char *what, rrfp_error *error)
{
    char allowed[160];

    rrfp_option_describe(option, allowed, sizeof allowed);
    return rrfp_error_set(error, RRFP_ERR_INVALID, "%.160s: '%.80s' %s; it takes %.150s", place,
                          text, what, allowed);
}

static rrfp_status set_integer(const rrfp_option *option, rrfp_options *options,
                               const char *place, const char *text, rrfp_error *error)
{
    const char *rest = text;
    unsigned shift = 0;
    uint64_t value = 0;
    void *field = field_of(option, options);

    if (option->type == RRFP_OPTION_DISTANCE && strcmp(text, "unbounded") == 0) {
        *(uint32_t *)field = RRFP_DISTANCE_UNBOUNDED;
        return RRFP_OK;
    }
    if (!read_digits(&rest, &value)) {
        bool number = is_digit(text[0]) || (text[0] == '-' && is_digit(text[1]));

        return wrong(option, place, text, number ? "is out of bounds" : "is not a whole number",
                     error);
    }
    if (option->type == RRFP_OPTION_BYTES ? !read_unit(rest, &shift) : *rest != '\0') {
        return wrong(option, place, text,
                     option->type == RRFP_OPTION_BYTES ? "has an unknown unit"
                                                       : "is not a whole number",
                     error);
    }
    if (value > UINT64_MAX >> shift || value << shift < option->min ||
        value << shift > option->max) {
        return wrong(option, place, text, "is out of bounds", error);
    }
    value <<= shift;
    if (option->bytes == sizeof(uint32_t)) {
        *(uint32_t *)field = (uint32_t)value;
    } else {
        *(uint64_t *)field = value;
    }
    return RRFP_OK;
}

static rrfp_status set_real(const rrfp_option *option, rrfp_options *options, const char *place,
                            const char *text, rrfp_error *error)
{
    char *end = NULL;
    double value;

    /* strtod alone would also take blanks, hexadecimal, "inf" and "nan". */
    if (text[0] == '\0' || text[strspn(text, "0123456789+-.eE")] != '\0') {
        return wrong(option, place, text, "is not a number", error);
    }
    value = strtod(text, &end);
    if (end == text || *end != '\0') {
        return wrong(option, place, text, "is not a number", error);
    }
    if (!isfinite(value) || value < option->real_min || value > option->real_max) {
        return wrong(option, place, text, "is out of bounds", error);
    }
    *(double *)field_of(option, options) = value;
    return RRFP_OK;
}

/* The word of "a|b|c" at *choices; moves *choices to the next, NULL after the last. */
static size_t next_choice(const char **choices, const char **word)
{
    size_t bytes = strcspn(*choices, "|");

    *word = *choices;
    *choices = (*choices)[bytes] == '|' ? *choices + bytes + 1 : NULL;
    return bytes;
}

static rrfp_status set_text(const rrfp_option *option, rrfp_options *options, const char *place,
                            const char *text, rrfp_error *error)
{
    size_t bytes = strlen(text);
    bool known = option->type != RRFP_OPTION_CHOICE;

    for (const char *next = option->choices; !known && next != NULL;) {
        const char *word;
        size_t word_bytes = next_choice(&next, &word);

        known = word_bytes == bytes && memcmp(word, text, bytes) == 0;
    }
    if (!known) {
        return wrong(option, place, text, "is unknown", error);
    }
    if (bytes >= option->bytes) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "%.160s: the text has %zu bytes; at most %zu fit", place, bytes,
                              option->bytes - 1);
    }
    memcpy(field_of(option, options), text, bytes + 1);
    return RRFP_OK;
}

static rrfp_status add_path(rrfp_options *options, const char *place, const char *text,
                            rrfp_error *error)
{
    size_t bytes = strlen(text);

    if (bytes == 0) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "%.160s: the path is empty", place);
    }
    if (bytes >= sizeof options->data_path[0]) {
        return rrfp_error_set(error, RRFP_ERR_INVALID,
                              "%.160s: the path has %zu bytes; at most %zu fit", place, bytes,
                              sizeof options->data_path[0] - 1);
    }
    if (options->data_path_count >= RRFP_OPTIONS_MAX_PATHS) {
        return rrfp_error_set(error, RRFP_ERR_INVALID, "%.160s: more than %d paths; join files",
                              place, RRFP_OPTIONS_MAX_PATHS);
    }
    memcpy(options->data_path[options->data_path_count++], text, bytes + 1);
    return RRFP_OK;
}

rrfp_status rrfp_option_set(const rrfp_option *option, rrfp_options *options, const char *place,
                            const char *text, rrfp_error *error)
{
    switch (option->type) {
    case RRFP_OPTION_UINT32:
    case RRFP_OPTION_UINT64:
    case RRFP_OPTION_BYTES:
    case RRFP_OPTION_DISTANCE:
        return set_integer(option, options, place, text, error);
    case RRFP_OPTION_REAL:
        return set_real(option, options, place, text, error);
    case RRFP_OPTION_BOOLEAN:
        if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0) {
            return wrong(option, place, text, "is not a truth value", error);
        }
        *(bool *)field_of(option, options) = text[0] == 't';
        return RRFP_OK;
    case RRFP_OPTION_CHOICE:
    case RRFP_OPTION_TEXT:
    case RRFP_OPTION_LIST:
        return set_text(option, options, place, text, error);
    case RRFP_OPTION_PATHS:
        return add_path(options, place, text, error);
    }
    return rrfp_error_set(error, RRFP_ERR_INTERNAL, "%.160s: the option has no type", place);
}

/* The shortest decimal that reads back equal. */
static void format_real(double value, char *out, size_t out_bytes)
{
    char text[32]; /* 17 digits, sign, point and exponent take 24 */

    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    snprintf(out, out_bytes, "%s", text);
}

void rrfp_option_format(const rrfp_option *option, const rrfp_options *options, char *out,
                        size_t out_bytes)
{
    const void *field = field_in(option, options);

    switch (option->type) {
    case RRFP_OPTION_DISTANCE:
        if (*(const uint32_t *)field == RRFP_DISTANCE_UNBOUNDED) {
            snprintf(out, out_bytes, "unbounded");
            return;
        }
        snprintf(out, out_bytes, "%" PRIu32, *(const uint32_t *)field);
        return;
    case RRFP_OPTION_UINT32:
        snprintf(out, out_bytes, "%" PRIu32, *(const uint32_t *)field);
        return;
    case RRFP_OPTION_UINT64:
    case RRFP_OPTION_BYTES:
        snprintf(out, out_bytes, "%" PRIu64, *(const uint64_t *)field);
        return;
    case RRFP_OPTION_REAL:
        format_real(*(const double *)field, out, out_bytes);
        return;
    case RRFP_OPTION_BOOLEAN:
        snprintf(out, out_bytes, "%s", *(const bool *)field ? "true" : "false");
        return;
    case RRFP_OPTION_CHOICE:
    case RRFP_OPTION_TEXT:
    case RRFP_OPTION_LIST:
        snprintf(out, out_bytes, "%s", (const char *)field);
        return;
    case RRFP_OPTION_PATHS:
        break;
    }
    out[0] = '\0';
}

void rrfp_option_describe(const rrfp_option *option, char *out, size_t out_bytes)
{
    char low[32], high[32];
    size_t used = 0;

    switch (option->type) {
    case RRFP_OPTION_UINT32:
    case RRFP_OPTION_UINT64:
        snprintf(out, out_bytes, "%" PRIu64 " to %" PRIu64, option->min, option->max);
        return;
    case RRFP_OPTION_BYTES:
        snprintf(out, out_bytes, "%" PRIu64 " to %" PRIu64 ", with KiB, MiB or GiB if wanted",
                 option->min, option->max);
        return;
    case RRFP_OPTION_DISTANCE:
        snprintf(out, out_bytes, "%" PRIu64 " to %" PRIu64 " or unbounded", option->min,
                 option->max);
        return;
    case RRFP_OPTION_REAL:
        format_real(option->real_min, low, sizeof low);
        format_real(option->real_max, high, sizeof high);
        snprintf(out, out_bytes, "%s to %s", low, high);
        return;
    case RRFP_OPTION_BOOLEAN:
        snprintf(out, out_bytes, "true or false");
        return;
    case RRFP_OPTION_CHOICE:
        out[0] = '\0';
        for (const char *next = option->choices; next != NULL;) {
            const char *word, *joint;
            int bytes = (int)next_choice(&next, &word);

            joint = used == 0 ? "" : next == NULL ? " or " : ", ";
            used += (size_t)snprintf(out + used, out_bytes - used, "%s%.*s", joint, bytes, word);
            assert(used < out_bytes);
        }
        return;
    case RRFP_OPTION_TEXT:
    case RRFP_OPTION_LIST:
    case RRFP_OPTION_PATHS:
        break;
    }
    out[0] = '\0';
}

void rrfp_options_defaults(rrfp_options *options)
{
    memset(options, 0, sizeof *options);
    for (size_t i = 0; i < rrfp_option_count(); i++) {
        const rrfp_option *option = rrfp_option_at(i);
        rrfp_error error;
        rrfp_status status = RRFP_OK;

        if (option->type != RRFP_OPTION_PATHS) {
            status = rrfp_option_set(option, options, option->name, option->default_text, &error);
        }
        assert(status == RRFP_OK);
        (void)status;
    }
}

const char *rrfp_option_nearest(const char *name, unsigned commands)
{
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;

    for (size_t i = 0; i < rrfp_option_count(); i++) {
        const rrfp_option *option = rrfp_option_at(i);
        const char *names[2] = {option->name, option->alias};

        for (size_t k = 0; k < 2 && (option->commands & commands) != 0; k++) {
            size_t distance = names[k] == NULL ? SIZE_MAX : rrfp_edit_distance(name, names[k]);

            if (distance < best_distance) {
                best_distance = distance;
                best = names[k];
            }
        }
    }
    return best != NULL && rrfp_edit_is_near(name, best_distance) ? best : NULL;
}
