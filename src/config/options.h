/*
 * options.h - every tunable is a row of one table.
 *
 * A row has a name (Megatron's where the meaning is Megatron's), type, default,
 * bounds or choices, help and the place in rrfp_options.  Flags (--name value
 * or --name=value), TOML keys (name with '-' or '_'; top level or any table),
 * --help, the man page and docs/flags.md are all made from it.
 *
 * Later sources win: defaults, then the TOML file, then flags.
 */
#ifndef RRFP_OPTIONS_H
#define RRFP_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "rrfp/status.h"

enum { RRFP_OPTIONS_MAX_PATHS = 64, RRFP_OPTIONS_MAX_STAGES = 1024 };

typedef struct rrfp_options {
    /* pipeline */
    uint32_t pipeline_model_parallel_size; /* 1 */
    uint32_t virtual_stages;               /* 1; chunks per stage */
    char order[8];                         /* "ready" or "fixed" */
    char hint[1024];                       /* "bf" or a .csv path; default bf */
    uint32_t hint_distance;                /* RRFP_DISTANCE_UNBOUNDED unless given */
    char max_inflight[4096];   /* "auto", N, "1f1b" (P-s), or one number per stage "4,3,2,1" */
    uint64_t max_inflight_bytes;           /* 0 = unlimited; suffixes KiB MiB GiB accepted */
    uint32_t max_pending_w;                /* 0 = unlimited */
    char accumulate[8];                    /* "ordered" or "arrival" */
    char jitter[64];                       /* "none" */
    uint64_t jitter_seed;                  /* 1 */
    char message_dtype[8];                 /* "fp32" or "bf16" */
    uint32_t threads_per_stage;            /* 1 */
    char layers_per_chunk[4096];           /* "" = balanced; "3,3,2,2": one count per global chunk */
    /* model */
    char model[8];                         /* "gpt2" or "llama" */
    uint32_t num_layers, hidden_size, num_attention_heads, num_query_groups, ffn_hidden_size;
    uint32_t seq_length, max_position_embeddings;
    uint32_t vocab_size;                   /* 0 = the tokenizer's, or the token file's need */
    bool untie_embeddings_and_output_weights;
    double dropout, norm_epsilon, rotary_base;
    bool recompute_activations;
    /* training */
    uint32_t micro_batch_size, global_batch_size, train_iters, eval_interval, eval_iters, log_interval;
    uint32_t save_interval;                /* 0 = at the end only */
    double lr, min_lr, weight_decay, adam_beta1, adam_beta2, adam_eps, clip_grad;
    uint32_t lr_warmup_iters, lr_decay_iters; /* decay 0 = train_iters */
    char lr_decay_style[12];               /* "cosine", "linear" or "constant" */
    uint64_t seed;
    char on_nonfinite[8];                  /* "skip" or "stop" */
    double exit_duration_in_mins;          /* 0 = no limit; saves and exits 0 */
    /* data */
    char data_path[RRFP_OPTIONS_MAX_PATHS][1024]; /* repeatable, or a TOML array */
    uint32_t data_path_count;
    char tokenizer_type[16];               /* "byte" or "gpt2-bpe" */
    char vocab_file[1024], merge_file[1024];
    double valid_fraction;
    /* files */
    char save[1024], load[1024], trace[1024], summary[1024], trace_svg[1024];
    bool finetune;                         /* only the weights of `load`, from iteration 0 */
    /* processes */
    uint32_t nproc;        /* 1 = this process alone, unless a launcher started it as one of several */
    uint32_t restarts;
    char cpu_bind[8];      /* "none" or "share" */
    double peer_timeout;   /* seconds */
    /* generation */
    char prompt[4096];
    uint32_t max_new_tokens;
    double temperature;                    /* 0 = greedy */
    uint32_t top_k;                        /* 0 = all */
    bool print_config;
} rrfp_options;

typedef enum rrfp_command { RRFP_COMMAND_TRAIN = 1, RRFP_COMMAND_EVAL = 2,
                            RRFP_COMMAND_GENERATE = 4, RRFP_COMMAND_HINT = 8,
                            RRFP_COMMAND_DOCTOR = 16 } rrfp_command;

void rrfp_options_defaults(rrfp_options *options);
/*
 * argv[0..argc) after the subcommand: at most one positional TOML file, then
 * flags.  Unknown names (with the nearest known one), values that do not parse or
 * are out of bounds, and impossible combinations give one clear line.
 * *help is set when --help was asked for; nothing else is read then.
 */
rrfp_status rrfp_options_parse(rrfp_options *options, rrfp_command command, int argc,
                               char *const *argv, bool *help, rrfp_error *error);
/* TOML text in memory; `name` is for messages.  Fuzz target. */
rrfp_status rrfp_options_parse_toml(rrfp_options *options, rrfp_command command,
                                    const char *name, const char *text, size_t text_bytes,
                                    rrfp_error *error);
/* Combinations: batch divisibility, heads and hidden, V and hint, ... */
rrfp_status rrfp_options_check(const rrfp_options *options, rrfp_command command,
                               rrfp_error *error);
/* Per-stage in-flight budgets from options->max_inflight; 0 = automatic. */
rrfp_status rrfp_options_inflight(const rrfp_options *options, uint32_t *per_stage,
                                  rrfp_error *error);

void rrfp_options_print_help(rrfp_command command, FILE *out);
void rrfp_options_print_man(FILE *out);      /* roff, all commands */
void rrfp_options_print_markdown(FILE *out); /* docs/flags.md */
void rrfp_options_print_toml(const rrfp_options *options, rrfp_command command, FILE *out);

#endif /* RRFP_OPTIONS_H */
