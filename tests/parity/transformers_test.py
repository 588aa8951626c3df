#!/usr/bin/env python3
"""Checkpoints exchanged with Hugging Face transformers, both ways.

Ours -> transformers: what a two-stage run saved is loaded by from_pretrained with no key missing or
left over.  Transformers -> ours: what save_pretrained wrote (whole, in shards, in bfloat16) is loaded
by --load.  Each time the loss of the same samples agrees to 1e-5 relative.  Exits 77 (skipped)
without torch or transformers.

usage: transformers_test.py RRFP SOURCE_DIR TOOLS_DIR
"""
import json
import os
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
except ImportError as problem:
    print(f"skipped: {problem}")
    sys.exit(77)

TOLERANCE = 1e-5
T, BATCH, SEED = 48, 8, 9


def write_text(path):
    state = 4711
    with open(path, "wb") as file:
        for _ in range(20000):
            state = (state * 1103515245 + 12345) % 2**31
            file.write(bytes([97 + (state >> 16) % 26, 32 + (state >> 24) % 64]))


def config_of(arch, tied):
    common = {"vocab_size": 256, "tie_word_embeddings": tied, "bos_token_id": 0, "eos_token_id": 0,
              "pad_token_id": None}  # fmt: skip
    if arch == "gpt2":
        return transformers.GPT2Config(
            n_layer=3, n_head=4, n_embd=48, n_positions=64, n_inner=80, layer_norm_epsilon=2e-5,
            attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, initializer_range=0.2, **common
        )  # fmt: skip
    return transformers.LlamaConfig(
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, hidden_size=48,
        intermediate_size=80, max_position_embeddings=64, rms_norm_eps=3e-6, initializer_range=0.2,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0}, **common
    )  # fmt: skip


def our_loss(rrfp, text, load, folder):
    """Loss of the first samples of a run that starts from `load` and changes nothing."""
    summary = os.path.join(folder, "summary.json")
    done = subprocess.run(
        [rrfp, "train", "--data-path", text, "--load", load, "--finetune", "--seq-length", str(T),
         "--micro-batch-size", "4", "--global-batch-size", str(BATCH), "--seed", str(SEED),
         "--train-iters", "1", "--lr", "0", "--min-lr", "0", "--lr-warmup-iters", "0",
         "--pipeline-model-parallel-size", "3", "--summary", summary],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with open(summary, encoding="utf-8") as file:
        return json.load(file)["steps"][0]["loss"]


def their_loss(model, samples):
    model.eval()
    with torch.no_grad():
        logits = model(samples[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten()).item()


def compare(what, ours, theirs):
    difference = abs(ours - theirs) / theirs
    print(f"{what}: loss {ours:.6f}, transformers {theirs:.6f}, relative difference {difference:.1e}")
    return difference <= TOLERANCE


def check(rrfp, folder, text, samples, arch, tied):
    name = f"{arch} {'tied' if tied else 'untied'}"
    results = []
    saved = os.path.join(folder, f"ours-{arch}-{tied}")
    architecture = ["--model", arch, "--num-layers", "3", "--hidden-size", "48", "--num-attention-heads",
                    "4"] + (["--num-query-groups", "2"] if arch == "llama" else [])  # fmt: skip
    if not tied:
        architecture.append("--untie-embeddings-and-output-weights")
    subprocess.run(
        [rrfp, "train", "--data-path", text, "--seq-length", str(T), "--micro-batch-size", "2",
         "--global-batch-size", "8", "--train-iters", "5", "--lr", "1e-2", "--seed", "3",
         "--pipeline-model-parallel-size", "2", "--save", saved] + architecture,
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    saved = os.path.join(saved, "iter_0000005")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(saved, output_loading_info=True)
    left = {key: list(value) for key, value in info.items() if value}
    assert not left, f"{name}: {left}"
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
    results.append(compare(f"{name}, saved by us", our_loss(rrfp, text, saved, folder),
                           their_loss(model, samples)))  # fmt: skip

    torch.manual_seed(11)
    cls = transformers.GPT2LMHeadModel if arch == "gpt2" else transformers.LlamaForCausalLM
    model = cls(config_of(arch, tied))
    with torch.no_grad():
        for p in model.parameters():  # biases and norms away from 0 and 1
            p += 0.05 * torch.randn_like(p)
    for form in ("whole", "shards", "bfloat16"):
        directory = os.path.join(folder, f"theirs-{arch}-{tied}-{form}")
        if form == "bfloat16":
            model = model.to(torch.bfloat16)
        model.save_pretrained(directory, max_shard_size="60KB" if form == "shards" else "5GB")
        assert os.path.exists(os.path.join(directory, "model.safetensors")) == (form != "shards")
        # Read anew in float32: casting the model itself would round its rotary tables too.
        theirs = their_loss(cls.from_pretrained(directory, dtype=torch.float32), samples)
        results.append(compare(f"{name}, saved by transformers, {form}",
                               our_loss(rrfp, text, directory, folder), theirs))  # fmt: skip
    return all(results)


def check_refused(rrfp, folder, text):
    """Scaled rotary positions would train another model: refused by name."""
    config = config_of("llama", False)
    config.rope_parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
    directory = os.path.join(folder, "scaled")
    transformers.LlamaForCausalLM(config).save_pretrained(directory)
    done = subprocess.run(
        [rrfp, "train", "--data-path", text, "--load", directory, "--finetune", "--train-iters", "1"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
    )
    assert done.returncode != 0 and "rope_parameters" in done.stderr, done.stderr
    print(done.stderr.strip())


def main():
    torch.set_num_threads(1)
    rrfp, tools = sys.argv[1], sys.argv[3]
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text")
        write_text(text)
        raw = subprocess.run([os.path.join(tools, "dump_samples"), text, str(T), str(BATCH), str(SEED),
                              "0.05"], check=True, stdout=subprocess.PIPE).stdout  # fmt: skip
        samples = torch.frombuffer(bytearray(raw), dtype=torch.int32).reshape(-1, T + 1).long()
        results = [check(rrfp, folder, text, samples, arch, tied)
                   for arch in ("gpt2", "llama") for tied in (True, False)]  # fmt: skip
        check_refused(rrfp, folder, text)
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
