/*
 * fuzz_toml.c - any bytes as a configuration: accepted or refused with one line, and what is
 * accepted prints as TOML that reads back equal.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/options.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition, const char *what, const char *text)
{
    if (!condition) {
        fprintf(stderr, "%s: %s\n", what, text);
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static rrfp_options options, again;
    rrfp_error error = {RRFP_OK, ""};
    rrfp_status status;
    char *text = NULL;
    size_t text_bytes = 0;
    FILE *out;

    rrfp_options_defaults(&options);
    status = rrfp_options_parse_toml(&options, RRFP_COMMAND_TRAIN, "fuzz.toml", (const char *)data,
                                     size, &error);
    if (status != RRFP_OK) {
        rrfp_options_defaults(&again);
        require(memcmp(&options, &again, sizeof options) == 0, "changed on error", error.text);
        require(error.text[0] != '\0' && error.status == status, "no error line", error.text);
        return 0;
    }
    (void)rrfp_options_check(&options, RRFP_COMMAND_TRAIN, &error);
    options.print_config = false; /* not printed, by design */
    for (uint32_t i = options.data_path_count; i < RRFP_OPTIONS_MAX_PATHS; i++) {
        memset(options.data_path[i], 0, sizeof options.data_path[i]);
    }
    out = open_memstream(&text, &text_bytes);
    require(out != NULL, "no memory", "");
    /* Every command's rows together are the whole table. */
    rrfp_options_print_toml(&options, RRFP_COMMAND_TRAIN | RRFP_COMMAND_GENERATE, out);
    fclose(out);
    rrfp_options_defaults(&again);
    status = rrfp_options_parse_toml(&again, RRFP_COMMAND_TRAIN, "again", text, text_bytes, &error);
    require(status == RRFP_OK, error.text, text);
    for (uint32_t i = 0; i < options.data_path_count; i++) {
        require(strcmp(options.data_path[i], again.data_path[i]) == 0, "path changed", text);
    }
    require(options.data_path_count == again.data_path_count && options.lr == again.lr &&
                options.seed == again.seed && strcmp(options.hint, again.hint) == 0 &&
                strcmp(options.max_inflight, again.max_inflight) == 0 &&
                strcmp(options.prompt, again.prompt) == 0,
            "does not read back equal", text);
    free(text);
    return 0;
}
