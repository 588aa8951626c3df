#!/usr/bin/env python3
"""Loss and every gradient of small GPT-2 and Llama models against PyTorch.

The models below are written here in plain torch; parameters come from
dump_model, which also says what the library made of them.  Exits 77 (skipped)
without torch.

usage: model_torch_test.py RRFP SOURCE_DIR TOOLS_DIR
"""
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

TOLERANCE = 1e-5  # of a tensor's norm; float32 rounding on both sides is about 1e-6
EPS = 1e-5
THETA = 10000.0


def read_dump(path):
    """Tensors by name."""
    with open(path, "rb") as file:
        data = file.read()
    assert data[:8] == b"RRFPDUMP"
    at = 12
    tensors = {}
    for _ in range(struct.unpack_from("<I", data, 8)[0]):
        (length,) = struct.unpack_from("<I", data, at)
        name = data[at + 4 : at + 4 + length].decode()
        at += 4 + length
        kind, ndim = struct.unpack_from("<II", data, at)
        dims = struct.unpack_from(f"<{ndim}Q", data, at + 8)
        at += 8 + 8 * ndim
        dtype = [torch.float32, torch.int32, torch.float64][kind]
        count = 1
        for dim in dims:
            count *= dim
        raw = torch.frombuffer(bytearray(data[at : at + count * dtype.itemsize]), dtype=dtype)
        tensors[name] = raw.reshape(dims)
        at += count * dtype.itemsize
    assert at == len(data), "bytes are left over"
    return tensors


def attend(q, k, v, heads, kv_heads):
    """Causal attention of (B,T,width) tensors."""
    batch, length, width = q.shape
    size = width // heads
    q = q.view(batch, length, heads, size).transpose(1, 2)
    k = k.view(batch, length, kv_heads, size).transpose(1, 2)
    v = v.view(batch, length, kv_heads, size).transpose(1, 2)
    k = k.repeat_interleave(heads // kv_heads, dim=1)
    v = v.repeat_interleave(heads // kv_heads, dim=1)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).reshape(batch, length, width)


def gpt2_logits(p, tokens, flags):
    width = p["wte.weight"].shape[1]
    x = p["wte.weight"][tokens] + p["wpe.weight"][: tokens.shape[1]]

    def norm(x, name):
        return F.layer_norm(x, (width,), p[name + ".weight"], p[name + ".bias"], EPS)

    def linear(x, name):
        return x @ p[name + ".weight"] + p[name + ".bias"]

    for i in range(flags["layers"]):
        layer = f"h.{i}."
        q, k, v = linear(norm(x, layer + "ln_1"), layer + "attn.c_attn").split(width, dim=2)
        heads = flags["heads"]
        x = x + linear(attend(q, k, v, heads, heads), layer + "attn.c_proj")
        hidden = F.gelu(linear(norm(x, layer + "ln_2"), layer + "mlp.c_fc"), approximate="tanh")
        x = x + linear(hidden, layer + "mlp.c_proj")
    head = p["wte.weight"] if flags["tied"] else p["lm_head.weight"]
    return norm(x, "ln_f") @ head.T


def rotate(x, heads):
    """Rotary positions of (B,T,heads*size): halves of a head are the two coordinates."""
    batch, length, width = x.shape
    size = width // heads
    steps = torch.arange(0, size, 2, dtype=torch.float64) / size
    angle = torch.outer(torch.arange(length, dtype=torch.float64), THETA**-steps)
    cos = torch.cat((angle, angle), dim=1).cos().to(x.dtype)[None, :, None, :]
    sin = torch.cat((angle, angle), dim=1).sin().to(x.dtype)[None, :, None, :]
    x = x.view(batch, length, heads, size)
    a, b = x.chunk(2, dim=3)
    return (x * cos + torch.cat((-b, a), dim=3) * sin).view(batch, length, width)


def llama_logits(p, tokens, flags):
    heads, kv_heads = flags["heads"], flags["kv_heads"]
    x = p["model.embed_tokens.weight"][tokens]

    def norm(x, name):
        return x * torch.rsqrt(x.pow(2).mean(dim=2, keepdim=True) + EPS) * p[name + ".weight"]

    def linear(x, name):
        return F.linear(x, p[name + ".weight"])

    for i in range(flags["layers"]):
        layer = f"model.layers.{i}."
        y = norm(x, layer + "input_layernorm")
        q = rotate(linear(y, layer + "self_attn.q_proj"), heads)
        k = rotate(linear(y, layer + "self_attn.k_proj"), kv_heads)
        v = linear(y, layer + "self_attn.v_proj")
        x = x + linear(attend(q, k, v, heads, kv_heads), layer + "self_attn.o_proj")
        y = norm(x, layer + "post_attention_layernorm")
        gate = F.silu(linear(y, layer + "mlp.gate_proj"))
        x = x + linear(gate * linear(y, layer + "mlp.up_proj"), layer + "mlp.down_proj")
    x = norm(x, "model.norm")
    head = p["model.embed_tokens.weight"] if flags["tied"] else p["lm_head.weight"]
    return F.linear(x, head)


def compare(tools, folder, flags, dtype):
    """The number of tensors that differ."""
    path = os.path.join(folder, "dump.bin")
    arguments = [f"{name}={value}" for name, value in flags.items()]
    subprocess.run([os.path.join(tools, "dump_model"), *arguments, f"out={path}"], check=True)
    dump = read_dump(path)
    names = [name[len("value ") :] for name in dump if name.startswith("value ")]
    params = {n: dump["value " + n].to(dtype).requires_grad_() for n in names}
    model = gpt2_logits if flags["arch"] == "gpt2" else llama_logits
    logits = model(params, dump["tokens"].long(), flags)
    loss = F.cross_entropy(logits.flatten(0, 1), dump["targets"].long().flatten())
    loss.backward()

    got = dump["loss"].item() / dump["targets"].numel()
    errors = {"loss": abs(got - loss.item()) / abs(loss.item())}
    for name in names:
        expected = params[name].grad.double()
        difference = (dump["grad " + name].double() - expected).norm()
        errors[name] = (difference / expected.norm()).item()
    worst = max(errors, key=errors.get)
    print(f"{flags} {dtype}: {len(errors)} compared, worst {worst} {errors[worst]:.2e}")
    bad = [name for name, error in errors.items() if not error <= TOLERANCE]
    for name in bad:
        print(f"  {name} is off by {errors[name]:.2e} of its norm")
    return len(bad)


def main():
    tools = sys.argv[3]
    torch.set_num_threads(1)
    gpt2 = dict(arch="gpt2", layers=3, hidden=64, heads=4, vocab=101, seq=48, batch=2)
    llama = dict(gpt2, arch="llama", kv_heads=2, ffn=96)
    cases = [
        dict(gpt2, tied=1, chunks=1),
        dict(gpt2, tied=0, chunks=2, seq=150),  # longer than a block of attention rows
        dict(gpt2, tied=1, chunks=3, recompute=1),
        dict(llama, tied=0, chunks=1),
        dict(llama, tied=1, chunks=2, seq=150),
        dict(llama, tied=0, chunks=5, recompute=1, kv_heads=4),
    ]
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for flags in cases:
            for dtype in (torch.float32, torch.float64):
                bad += compare(tools, folder, flags, dtype)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
