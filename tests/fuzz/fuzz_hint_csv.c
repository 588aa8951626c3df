/* Schedules from CSV: any bytes are read or refused with a text; what is read can be written. */
#include <stdio.h>
#include <stdlib.h>

#include "rrfp/hint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rrfp_hint *hint = NULL;
    rrfp_error error = {0};
    rrfp_status status =
        rrfp_hint_parse_csv("fuzz.csv", (const char *)data, size, 0, 0, 0, &hint, &error);
    if (status != RRFP_OK) {
        if (hint != NULL || error.status != status || error.text[0] == '\0') {
            abort();
        }
        return 0;
    }
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    rrfp_hint *back = NULL;
    if (out == NULL) {
        abort();
    }
    if (rrfp_hint_write_csv(hint, true, out, &error) != RRFP_OK) {
        abort();
    }
    fclose(out);
    if (rrfp_hint_parse_csv("back.csv", text, bytes, hint->shape.stages, hint->shape.chunks,
                            hint->shape.microbatches, &back, &error) != RRFP_OK) {
        abort();
    }
    rrfp_hint_destroy(back);
    rrfp_hint_destroy(hint);
    free(text);
    return 0;
}
