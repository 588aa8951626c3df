#!/usr/bin/env python3
"""200 steps of training against a plain PyTorch loop.

Same initial weights (saved by a run with learning rate 0), same samples (dump_samples), same AdamW,
clipping, warm-up and cosine; the loss of every step within 1e-3 relative.  The pipeline side runs
two stages, split backward, ready order.  Exits 77 (skipped) without torch.

usage: loss_curve_test.py RRFP SOURCE_DIR TOOLS_DIR
"""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.nn.functional as F
except ImportError as problem:
    print(f"skipped: PyTorch cannot be imported ({problem})")
    sys.exit(77)

from model_torch_test import gpt2_logits, llama_logits

TOLERANCE = 1e-3  # seen: 1e-6; a rate at which training itself is unstable amplifies rounding
STEPS, T, MICRO, GLOBAL = 200, 64, 2, 8
LR, MIN_LR, WARMUP, CLIP, DECAY = 1e-3, 1e-4, 20, 1.0, 0.1


def read_safetensors(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            raw = torch.frombuffer(data[begin:end], dtype=torch.float32).clone()
            tensors[name] = raw.reshape(entry["shape"])
    return tensors


def learning_rate(step):
    if step <= WARMUP:
        return LR * step / WARMUP
    done = (step - WARMUP) / (STEPS - WARMUP)
    return MIN_LR + 0.5 * (1 + math.cos(math.pi * done)) * (LR - MIN_LR)


def torch_curve(params, logits_of, flags, samples):
    for p in params.values():
        p.requires_grad_()
    groups = [
        {"params": [p for p in params.values() if p.dim() > 1], "weight_decay": DECAY},
        {"params": [p for p in params.values() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        batch = samples[(step - 1) * GLOBAL : step * GLOBAL].long()
        total = 0.0
        for m in range(0, GLOBAL, MICRO):
            rows = batch[m : m + MICRO]
            logits = logits_of(params, rows[:, :-1], flags)
            loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
            (loss * MICRO / GLOBAL).backward()
            total += loss.item() * MICRO / GLOBAL
        torch.nn.utils.clip_grad_norm_(params.values(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def check(rrfp, tools, folder, arch):
    text = os.path.join(folder, "text")
    words = ("time day earth water light was and the of in to that people king came said before "
             "house great went up out son land").split()
    state = 12345
    with open(text, "w", encoding="ascii") as file:
        for _ in range(40000):
            state = (state * 1103515245 + 12345) % 2**31
            file.write(words[(state >> 16) % len(words)] + " ")
    flags = {"layers": 2, "heads": 4, "kv_heads": 2 if arch == "llama" else 4, "tied": 1}
    common = [
        rrfp, "train", "--data-path", text, "--model", arch, "--num-layers", "2", "--hidden-size",
        "64", "--num-attention-heads", "4", "--seq-length", str(T), "--micro-batch-size",
        str(MICRO), "--global-batch-size", str(GLOBAL), "--seed", "5", "--adam-beta2", "0.95",
        "--lr-warmup-iters", str(WARMUP), "--clip-grad", str(CLIP), "--log-interval", "1000",
    ]  # fmt: skip
    if arch == "llama":
        common += ["--num-query-groups", "2", "--norm-epsilon", "1e-5"]
    start = os.path.join(folder, "start-" + arch)
    summary = os.path.join(folder, arch + ".json")
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    subprocess.run(common + ["--train-iters", "1", "--lr-warmup-iters", "0", "--lr", "0",
                             "--min-lr", "0", "--weight-decay", "0", "--save", start], **quiet)
    subprocess.run(common + ["--train-iters", str(STEPS), "--lr", str(LR), "--min-lr", str(MIN_LR),
                             "--weight-decay", str(DECAY), "--pipeline-model-parallel-size", "2",
                             "--hint", "bfw", "--summary", summary], **quiet)
    raw = subprocess.run([os.path.join(tools, "dump_samples"), text, str(T), str(STEPS * GLOBAL),
                          "5", "0.05"], check=True, stdout=subprocess.PIPE).stdout
    samples = torch.frombuffer(bytearray(raw), dtype=torch.int32).reshape(-1, T + 1)
    params = read_safetensors(os.path.join(start, "iter_0000001", "model.safetensors"))
    theirs = torch_curve(params, gpt2_logits if arch == "gpt2" else llama_logits, flags, samples)
    with open(summary, encoding="utf-8") as file:
        ours = [step["loss"] for step in json.load(file)["steps"]]
    worst = max(abs(a - b) / b for a, b in zip(ours, theirs))
    print(f"{arch}: {len(ours)} steps, loss {ours[0]:.4f} to {ours[-1]:.4f}, PyTorch "
          f"{theirs[0]:.4f} to {theirs[-1]:.4f}, largest relative difference {worst:.2e}")
    assert len(ours) == STEPS and ours[-1] < 0.7 * ours[0]
    return worst <= TOLERANCE


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        results = [check(sys.argv[1], sys.argv[3], folder, arch) for arch in ("gpt2", "llama")]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
