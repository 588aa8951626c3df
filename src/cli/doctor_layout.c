/* doctor_layout.c - `rrfp doctor --layout`: a line per rank of a run. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "launch/layout.h"

enum { MOST_RANKS = 1048576 };

/* A number from 1 to MOST_RANKS; 0 and a line when it is none. */
static uint32_t read_size(const char *name, const char *text)
{
    char *end = NULL;
    errno = 0;
    unsigned long value = text[0] >= '0' && text[0] <= '9' ? strtoul(text, &end, 10) : 0;
    if (errno != 0 || end == NULL || *end != '\0' || value < 1 || value > MOST_RANKS) {
        fprintf(stderr, "rrfp: %s is '%.80s': give a whole number from 1 to %d\n", name, text,
                MOST_RANKS);
        return 0;
    }
    return (uint32_t)value;
}

/* Where the value of a known flag goes, or NULL. */
static uint32_t *find(rrfp_layout *layout, uint32_t *world, const char *name, size_t length)
{
    const struct {
        const char *name;
        uint32_t *value;
    } flags[] = {{"--world-size", world},
                 {"--tensor-model-parallel-size", &layout->tensor},
                 {"--pipeline-model-parallel-size", &layout->pipeline}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (strlen(flags[i].name) == length && strncmp(flags[i].name, name, length) == 0) {
            return flags[i].value;
        }
    }
    return NULL;
}

/* "--name value" or "--name=value"; false after a line on standard error. */
static bool read_flags(int argc, char **argv, rrfp_layout *layout, uint32_t *world)
{
    for (int i = 0; i < argc; i++) {
        size_t length = strcspn(argv[i], "=");
        uint32_t *value = find(layout, world, argv[i], length);
        const char *text = argv[i][length] == '=' ? argv[i] + length + 1 : argv[i + 1];
        if (value == NULL) {
            fprintf(stderr,
                    "rrfp: 'doctor --layout' does not know '%.80s': it takes --world-size, "
                    "--tensor-model-parallel-size and --pipeline-model-parallel-size\n",
                    argv[i]);
            return false;
        }
        if (text == NULL) {
            fprintf(stderr, "rrfp: %s needs a number\n", argv[i]);
            return false;
        }
        *value = read_size(argv[i], text);
        if (*value == 0) {
            return false;
        }
        i += argv[i][length] != '=';
    }
    return true;
}

int rrfp_cli_doctor_layout(int argc, char **argv)
{
    rrfp_layout layout = {1, 1, 1};
    uint32_t world = 0;
    const char *variable = getenv("WORLD_SIZE");
    if (!read_flags(argc, argv, &layout, &world)) {
        return RRFP_EXIT_USAGE;
    }
    uint64_t group = (uint64_t)layout.tensor * layout.pipeline;
    if (world == 0 && variable != NULL) {
        world = read_size("WORLD_SIZE", variable);
        if (world == 0) {
            return RRFP_EXIT_USAGE;
        }
    }
    if (world == 0 && group <= MOST_RANKS) {
        world = (uint32_t)group;
    }
    if (world % group != 0 || world == 0) {
        fprintf(stderr,
                "rrfp: %u ranks cannot be divided into pipelines of %llu (%u tensor-parallel x %u "
                "stages): give a --world-size that is a multiple of it\n",
                world, (unsigned long long)group, layout.tensor, layout.pipeline);
        return RRFP_EXIT_USAGE;
    }
    layout.data = (uint32_t)(world / group);
    printf("%u ranks: %u tensor-parallel x %u data-parallel x %u stages, in this order (tp-dp-pp)\n"
           "%8s %4s %4s %6s\n",
           world, layout.tensor, layout.data, layout.pipeline, "rank", "tp", "dp", "stage");
    for (uint32_t rank = 0; rank < world; rank++) {
        rrfp_layout_place place = rrfp_layout_place_of(&layout, rank);
        printf("%8u %4u %4u %6u\n", rank, place.tensor_rank, place.data_rank, place.stage);
    }
    if (layout.tensor > 1 || layout.data > 1) {
        printf("This build trains with one tensor-parallel and one data-parallel rank.\n");
    }
    return RRFP_EXIT_OK;
}
