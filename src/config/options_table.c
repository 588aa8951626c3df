/* options_table.c - the rows: every tunable of every subcommand. */
#include "config/options_table.h"


#include "rrfp/stage.h"

#define T RRFP_COMMAND_TRAIN
#define E RRFP_COMMAND_EVAL
#define G RRFP_COMMAND_GENERATE
#define H RRFP_COMMAND_HINT

#define FIELD(member) offsetof(rrfp_options, member), sizeof(((rrfp_options *)0)->member)
#define UINT32_ROW(name, member, value, low, high, help, commands)                                 \
    {                                                                                              \
        name, NULL, GROUP, RRFP_OPTION_UINT32, FIELD(member), value, low, high, 0, 0, NULL, "N",   \
            help, commands, "0.1"                                                                  \
    }
#define REAL_ROW(name, member, value, low, high, help, commands)                                   \
    {                                                                                              \
        name, NULL, GROUP, RRFP_OPTION_REAL, FIELD(member), value, 0, 0, low, high, NULL, "X",     \
            help, commands, "0.1"                                                                  \
    }
#define CHOICE_ROW(name, member, value, choices, help, commands)                                   \
    {                                                                                              \
        name, NULL, GROUP, RRFP_OPTION_CHOICE, FIELD(member), value, 0, 0, 0, 0, choices, "WORD",  \
            help, commands, "0.1"                                                                  \
    }
#define BOOLEAN_ROW(name, member, help, commands)                                                  \
    {                                                                                              \
        name, NULL, GROUP, RRFP_OPTION_BOOLEAN, FIELD(member), "false", 0, 0, 0, 0, NULL, NULL,    \
            help, commands, "0.1"                                                                  \
    }
#define TEXT_ROW(name, type, member, value, placeholder, help, commands)                           \
    {                                                                                              \
        name, NULL, GROUP, type, FIELD(member), value, 0, 0, 0, 0, NULL, placeholder, help,        \
            commands, "0.1"                                                                        \
    }

/* Signed 64-bit is what a TOML integer holds, so that every value can stand in a file. */
#define MOST_TOML ((uint64_t)INT64_MAX)

static const rrfp_option rows[] = {
#define GROUP "Pipeline"
    UINT32_ROW("pipeline-model-parallel-size", pipeline_model_parallel_size, "1", 1,
               RRFP_OPTIONS_MAX_STAGES, "stages of the pipeline", T | E | G | H),
    {"virtual-stages", "num-virtual-stages-per-pipeline-rank", GROUP, RRFP_OPTION_UINT32,
     FIELD(virtual_stages), "1", 1, RRFP_MAX_CHUNKS, 0, 0, NULL, "N",
     "model chunks on each stage", T | E | G | H, "0.1"},
    CHOICE_ROW("order", order, "ready", "ready|fixed",
               "ready: a free stage runs the best-ranked task whose inputs are there; fixed: it "
               "waits for the next task of the hint's order",
               T | E | G | H),
    TEXT_ROW("hint", RRFP_OPTION_TEXT, hint, "bf", "NAME|FILE.csv",
             "schedule that ranks the ready tasks: gpipe, 1f1b, eager-1f1b, interleaved, zb-h1, "
             "zb-h2, zb-v, bf, bfw, fb, b-prio, f-prio, or a PyTorch schedule CSV",
             T | E | G | H),
    {"hint-distance", NULL, GROUP, RRFP_OPTION_DISTANCE, FIELD(hint_distance), "unbounded", 0,
     UINT32_MAX - 1, 0, 0, NULL, "N|unbounded",
     "how many entries of the hint's order a stage may overtake; 0 is the fixed order",
     T | E | H, "0.1"},
    TEXT_ROW("max-inflight", RRFP_OPTION_LIST, max_inflight, "auto", "N|LIST|auto|1f1b",
             "most microbatches whose activations a stage holds: one number, one per stage "
             "(4,3,2,1), 1f1b (what 1F1B needs: P-s) or auto",
             T | H),
    {"max-inflight-bytes", NULL, GROUP, RRFP_OPTION_BYTES, FIELD(max_inflight_bytes), "0", 0,
     MOST_TOML, 0, 0, NULL, "BYTES", "most activation bytes a stage holds; 0 is no limit", T,
     "0.1"},
    UINT32_ROW("max-pending-w", max_pending_w, "0", 0, RRFP_MAX_MICROBATCHES,
               "most weight-gradient tasks put off on a stage; 0 is no limit", T | H),
    CHOICE_ROW("accumulate", accumulate, "ordered", "ordered|arrival",
               "ordered: gradients are summed in microbatch order, results are bit-equal; "
               "arrival: as tasks come",
               T),
    TEXT_ROW("jitter", RRFP_OPTION_TEXT, jitter, "none", "SPEC",
             "random delays to try schedules under: none, lognormal:CV, J0 to J3, optionally "
             "followed by ,scale:FACTOR",
             T),
    {"jitter-seed", NULL, GROUP, RRFP_OPTION_UINT64, FIELD(jitter_seed), "1", 0, MOST_TOML, 0, 0,
     NULL, "N", "seed of the delays", T, "0.1"},
    CHOICE_ROW("message-dtype", message_dtype, "fp32", "fp32|bf16",
               "number format of activations and gradients between stages", T | E),
    UINT32_ROW("threads-per-stage", threads_per_stage, "1", 1, 1024,
               "threads that compute one stage's task", T | E | G),
    TEXT_ROW("layers-per-chunk", RRFP_OPTION_LIST, layers_per_chunk, "", "LIST",
             "layers of each model chunk from first to last (3,3,2,2); empty is balanced",
             T | E | G),
#undef GROUP
#define GROUP "Model"
    CHOICE_ROW("model", model, "gpt2", "gpt2|llama", "architecture", T),
    UINT32_ROW("num-layers", num_layers, "4", 1, 4096, "transformer layers", T),
    UINT32_ROW("hidden-size", hidden_size, "256", 1, 65536, "width of the model", T),
    UINT32_ROW("num-attention-heads", num_attention_heads, "4", 1, 4096, "attention heads", T),
    UINT32_ROW("num-query-groups", num_query_groups, "0", 0, 4096,
               "key/value heads (llama); 0 is as many as attention heads", T),
    UINT32_ROW("ffn-hidden-size", ffn_hidden_size, "0", 0, 1048576,
               "width inside the MLP; 0 is 4 x hidden (gpt2) or 8/3 x hidden rounded to 32 (llama)",
               T),
    UINT32_ROW("seq-length", seq_length, "256", 1, 1048576, "tokens of a sample", T | E),
    UINT32_ROW("max-position-embeddings", max_position_embeddings, "0", 0, 1048576,
               "positions the model can hold; 0 is the sequence length", T),
    UINT32_ROW("vocab-size", vocab_size, "0", 0, 4194304,
               "token ids the model knows; 0 is what tokenizer or token files need", T),
    BOOLEAN_ROW("untie-embeddings-and-output-weights", untie_embeddings_and_output_weights,
                "give the output layer a matrix of its own", T),
    REAL_ROW("dropout", dropout, "0", 0, 0.9,
             "probability for embeddings, attention and residuals alike", T),
    REAL_ROW("norm-epsilon", norm_epsilon, "1e-5", 1e-12, 0.1, "epsilon of the norms", T),
    REAL_ROW("rotary-base", rotary_base, "10000", 1, 1e9,
             "base of the rotary position embedding (llama)", T),
    BOOLEAN_ROW("recompute-activations", recompute_activations,
                "keep a layer's input only and compute its forward again in the backward", T),
#undef GROUP
#define GROUP "Training"
    UINT32_ROW("micro-batch-size", micro_batch_size, "4", 1, 65536, "samples of a microbatch",
               T | E),
    UINT32_ROW("global-batch-size", global_batch_size, "32", 1, 4194304,
               "samples of an optimizer step; a multiple of the micro batch size", T | E),
    UINT32_ROW("train-iters", train_iters, "100", 1, 2000000000, "optimizer steps", T),
    UINT32_ROW("eval-interval", eval_interval, "0", 0, 2000000000,
               "steps between evaluations; 0 is never", T),
    UINT32_ROW("eval-iters", eval_iters, "10", 1, 2000000000,
               "global batches of one evaluation", T | E),
    UINT32_ROW("log-interval", log_interval, "10", 1, 2000000000, "steps between log lines", T),
    UINT32_ROW("save-interval", save_interval, "0", 0, 2000000000,
               "steps between checkpoints; 0 is at the end only", T),
    REAL_ROW("lr", lr, "1e-3", 0, 1000, "highest learning rate", T),
    REAL_ROW("min-lr", min_lr, "1e-4", 0, 1000, "learning rate at the end of the decay", T),
    UINT32_ROW("lr-warmup-iters", lr_warmup_iters, "20", 0, 2000000000,
               "steps over which the learning rate rises", T),
    UINT32_ROW("lr-decay-iters", lr_decay_iters, "0", 0, 2000000000,
               "step at which the decay ends; 0 is train-iters", T),
    CHOICE_ROW("lr-decay-style", lr_decay_style, "cosine", "cosine|linear|constant",
               "course of the learning rate after the warm-up", T),
    REAL_ROW("weight-decay", weight_decay, "0.1", 0, 1000, "decoupled weight decay of AdamW", T),
    REAL_ROW("adam-beta1", adam_beta1, "0.9", 0, 0.999999, "decay of the first moment", T),
    REAL_ROW("adam-beta2", adam_beta2, "0.95", 0, 0.999999, "decay of the second moment", T),
    REAL_ROW("adam-eps", adam_eps, "1e-8", 1e-16, 1, "epsilon of AdamW", T),
    REAL_ROW("clip-grad", clip_grad, "1.0", 0, 1e9,
             "gradients are scaled down to this norm; 0 is no clipping", T),
    {"seed", NULL, GROUP, RRFP_OPTION_UINT64, FIELD(seed), "1234", 0, MOST_TOML, 0, 0, NULL, "N",
     "seed of weights, sample order, dropout and sampling", T | E | G, "0.1"},
    CHOICE_ROW("on-nonfinite", on_nonfinite, "skip", "skip|stop",
               "what to do with a step whose loss or gradient is NaN or infinite", T),
    REAL_ROW("exit-duration-in-mins", exit_duration_in_mins, "0", 0, 1e7,
             "save and end after so many minutes; 0 is no limit", T),
#undef GROUP
#define GROUP "Data"
    TEXT_ROW("data-path", RRFP_OPTION_PATHS, data_path, "", "FILE",
             "text, Megatron .bin/.idx or llm.c shard; may be given several times", T | E),
    CHOICE_ROW("tokenizer-type", tokenizer_type, "byte", "byte|gpt2-bpe",
               "how text becomes tokens", T | E | G),
    TEXT_ROW("vocab-file", RRFP_OPTION_TEXT, vocab_file, "", "FILE", "vocab.json of gpt2-bpe",
             T | E | G),
    TEXT_ROW("merge-file", RRFP_OPTION_TEXT, merge_file, "", "FILE", "merges.txt of gpt2-bpe",
             T | E | G),
    REAL_ROW("valid-fraction", valid_fraction, "0.05", 0, 0.9,
             "share of the samples, from the end, kept for evaluation", T | E),
#undef GROUP
#define GROUP "Files"
    TEXT_ROW("save", RRFP_OPTION_TEXT, save, "", "DIR", "where checkpoints go", T),
    TEXT_ROW("load", RRFP_OPTION_TEXT, load, "", "DIR",
             "checkpoint to start from: one of ours, or a Hugging Face GPT-2 or Llama directory",
             T | E | G),
    BOOLEAN_ROW("finetune", finetune,
                "take only the weights of --load and start at iteration 0, without its optimizer",
                T),
    TEXT_ROW("trace", RRFP_OPTION_TEXT, trace, "", "FILE.json",
             "Chrome trace of every task, for Perfetto", T | E),
    TEXT_ROW("trace-svg", RRFP_OPTION_TEXT, trace_svg, "", "FILE.svg",
             "picture of the last step, one row per stage", T | E),
    TEXT_ROW("summary", RRFP_OPTION_TEXT, summary, "", "FILE.json", "summary of the run", T | E),
#undef GROUP
#define GROUP "Processes"
    UINT32_ROW("nproc", nproc, "1", 1, 1024,
               "start one process per stage on this host; 1 leaves that to mpirun, srun or the "
               "environment (docs/running.md)",
               T),
    UINT32_ROW("restarts", restarts, "0", 0, 1000000,
               "with --nproc: how often to start again, from --save, when a process was lost", T),
    CHOICE_ROW("cpu-bind", cpu_bind, "none", "none|share",
               "share: each stage's threads keep to an equal part of this host's processors of "
               "their own; none: they go where the system puts them",
               T),
    REAL_ROW("peer-timeout", peer_timeout, "30", 0.1, 86400,
             "seconds of silence after which another process counts as lost", T),
#undef GROUP
#define GROUP "Generation"
    TEXT_ROW("prompt", RRFP_OPTION_TEXT, prompt, "", "TEXT", "text to continue", G),
    UINT32_ROW("max-new-tokens", max_new_tokens, "100", 1, 1048576, "tokens to write", G),
    REAL_ROW("temperature", temperature, "0.8", 0, 100, "of the sampling; 0 is greedy", G),
    UINT32_ROW("top-k", top_k, "0", 0, 4194304, "sample among the k likeliest; 0 is all", G),
#undef GROUP
#define GROUP "General"
    BOOLEAN_ROW("print-config", print_config, "print the configuration as TOML and end",
                T | E | G),
#undef GROUP
};

static const rrfp_option_fixed fixed_rows[] = {
    {"tensor-model-parallel-size", "1", "tensor parallelism is not in this build"},
    {"context-parallel-size", "1", "context parallelism is not in this build"},
    {"expert-model-parallel-size", "1", "expert parallelism is not in this build"},
};

static const rrfp_command_info commands[] = {
    {RRFP_COMMAND_TRAIN, "train", "[FILE.toml] [OPTIONS]", "train a model", NULL},
    {RRFP_COMMAND_EVAL, "eval", "[FILE.toml] [OPTIONS]", "loss of a checkpoint on data", NULL},
    {RRFP_COMMAND_GENERATE, "generate", "[FILE.toml] [OPTIONS]",
     "continue a prompt with a checkpoint", NULL},
    {RRFP_COMMAND_HINT, "hint", "NAME|FILE.csv [OPTIONS]",
     "show or check a schedule, in and out of PyTorch's CSV form",
     "-p P\tstages, as --pipeline-model-parallel-size\n"
     "-v V\tmodel chunks on each stage, as --virtual-stages\n"
     "-m M\tmicrobatches of a step (default 2 P; of a FILE.csv: what it holds)\n"
     "--table\tprint a table, one line per stage (the default)\n"
     "--csv\tprint PyTorch's compute-only CSV\n"
     "--bubbles\tleave an empty CSV cell where a stage waits, with unit task times\n"
     "--check\tprint one line that says whether it is a schedule every stage can run\n"},
    {RRFP_COMMAND_DOCTOR, "doctor", "[--layout [OPTIONS]]",
     "describe machine and build, and what to remedy; or which rank is what",
     "--layout\tprint a line per rank instead: its tensor-parallel rank, data-parallel rank, stage\n"
     "--world-size N\tranks (default: WORLD_SIZE, else the two sizes' product)\n"
     "--tensor-model-parallel-size T\tranks of a tensor-parallel group (default 1)\n"
     "--pipeline-model-parallel-size P\tstages (default 1)\n"},
};

size_t rrfp_option_count(void)
{
    return sizeof rows / sizeof rows[0];
}

const rrfp_option *rrfp_option_at(size_t index)
{
    return index < rrfp_option_count() ? &rows[index] : NULL;
}

static bool same_name(const char *a, const char *b)
{
    for (;; a++, b++) {
        char x = *a == '_' ? '-' : *a, y = *b == '_' ? '-' : *b;

        if (x != y) {
            return false;
        }
        if (x == '\0') {
            return true;
        }
    }
}

const rrfp_option *rrfp_option_find(const char *name)
{
    for (size_t i = 0; i < rrfp_option_count(); i++) {
        if (same_name(rows[i].name, name) ||
            (rows[i].alias != NULL && same_name(rows[i].alias, name))) {
            return &rows[i];
        }
    }
    return NULL;
}

const rrfp_option_fixed *rrfp_option_fixed_at(size_t index)
{
    return index < sizeof fixed_rows / sizeof fixed_rows[0] ? &fixed_rows[index] : NULL;
}

const rrfp_option_fixed *rrfp_option_fixed_find(const char *name)
{
    for (size_t i = 0; rrfp_option_fixed_at(i) != NULL; i++) {
        if (same_name(fixed_rows[i].name, name)) {
            return &fixed_rows[i];
        }
    }
    return NULL;
}

size_t rrfp_command_count(void)
{
    return sizeof commands / sizeof commands[0];
}

const rrfp_command_info *rrfp_command_at(size_t index)
{
    return index < rrfp_command_count() ? &commands[index] : NULL;
}

const rrfp_command_info *rrfp_command_find(rrfp_command command)
{
    for (size_t i = 0; i < rrfp_command_count(); i++) {
        if (commands[i].command == command) {
            return &commands[i];
        }
    }
    return NULL;
}
