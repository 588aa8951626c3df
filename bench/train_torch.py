#!/usr/bin/env python3
"""The baseline of bench/train.sh: the same GPT-2 model in a plain PyTorch CPU loop.

Prints the time of each step in seconds, one a line.  Fused attention, tanh
GELU, AdamW (foreach), gradient accumulation over microbatches, as a PyTorch
user would write it.
"""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.fc_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln_1(x)).split(c, dim=2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.fc_proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(a.vocab, a.width), nn.Embedding(a.seq, a.width)
        self.blocks = nn.ModuleList(Block(a.width, a.heads) for _ in range(a.layers))
        self.ln_f = nn.LayerNorm(a.width)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.t()


def main():
    parser = argparse.ArgumentParser()
    for name, value in dict(layers=4, width=256, heads=4, seq=256, vocab=256, micro_batch=4,
                            microbatches=8, steps=5, threads=1).items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    parser.add_argument("--data", required=True)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    with open(a.data, "rb") as f:
        text = torch.frombuffer(bytearray(f.read()), dtype=torch.uint8).long()
    model = GPT(a)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95),
                                  weight_decay=0.1)
    for step in range(a.steps):
        begin = time.perf_counter()
        for m in range(a.microbatches):
            starts = [((step * a.microbatches + m) * a.micro_batch + i) * a.seq
                      for i in range(a.micro_batch)]
            rows = torch.stack([text[s % (len(text) - a.seq - 1):][: a.seq + 1] for s in starts])
            logits = model(rows[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, a.vocab), rows[:, 1:].reshape(-1))
            (loss / a.microbatches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"{time.perf_counter() - begin:.6f}", flush=True)


main()
