#!/usr/bin/env bash
# Tokens/s of training at pp=1 and pp=2 and of a plain PyTorch loop on the same model.
#
#   bench/train.sh BUILD_DIR TEXT_FILE [REPEATS]
#
# Runs take turns (ours pp=1, PyTorch 1 thread, ours pp=2, PyTorch 2 threads), so that a drift
# of the machine hits all alike; ratios are taken within a turn.  PYTHON names an interpreter
# with torch; without torch only our own rows are printed.  The first step of a run is dropped.
set -euo pipefail
build=${1:?build directory} text=${2:?text file} repeats=${3:-7}
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
steps=5
here=$(cd "$(dirname "$0")" && pwd)

ours() { # stages -> median seconds a step
    "$build/rrfp" train --data-path "$text" --pipeline-model-parallel-size "$1" --num-layers 4 \
        --hidden-size 256 --num-attention-heads 4 --seq-length 256 --micro-batch-size 4 \
        --global-batch-size 32 --train-iters $steps --log-interval 1000 --hint bfw --seed 1 \
        --summary "$work/summary.json" >/dev/null
    "$python" -c "
import json, statistics, sys
print(statistics.median([s['wall_s'] for s in json.load(open('$work/summary.json'))['steps']][1:]))"
}
torch() { # threads
    OMP_NUM_THREADS=$1 "$python" "$here/train_torch.py" --threads "$1" --steps $steps --data "$text" |
        "$python" -c "
import statistics, sys
print(statistics.median([float(x) for x in sys.stdin][1:]))"
}

have_torch=0
"$python" -c 'import torch' 2>/dev/null && have_torch=1
for ((i = 0; i < repeats; i++)); do
    ours 1 >>"$work/ours1"
    [ $have_torch = 1 ] && torch 1 >>"$work/torch1"
    ours 2 >>"$work/ours2"
    [ $have_torch = 1 ] && torch 2 >>"$work/torch2"
done
echo "machine: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | sed 's/^ *//'), $(nproc) cores"
[ $have_torch = 1 ] && echo "PyTorch $("$python" -c 'import torch; print(torch.__version__)')"
echo "GPT-2 shape: 4 layers, hidden 256, 4 heads, T 256, vocabulary 256, 8 microbatches of 4"
"$python" - "$work" "$have_torch" <<'PY'
import statistics, sys
work, have_torch = sys.argv[1], sys.argv[2] == "1"
read = lambda name: [float(x) for x in open(f"{work}/{name}")]
tokens = 32 * 256
def row(label, values, digits):
    print(f"{label:34s} min {min(values):10.{digits}f}  median {statistics.median(values):10.{digits}f}"
          f"  max {max(values):10.{digits}f}")
one, two = read("ours1"), read("ours2")
row("rrfp pp=1, one thread, tokens/s", [tokens / x for x in one], 0)
row("rrfp pp=2, two threads, tokens/s", [tokens / x for x in two], 0)
row("ratio pp=2 / pp=1", [a / b for a, b in zip(one, two)], 3)
if have_torch:
    t1, t2 = read("torch1"), read("torch2")
    row("PyTorch, one thread, tokens/s", [tokens / x for x in t1], 0)
    row("PyTorch, two threads, tokens/s", [tokens / x for x in t2], 0)
    row("ratio rrfp pp=1 / PyTorch 1 thread", [b / a for a, b in zip(one, t1)], 3)
    row("ratio rrfp pp=2 / PyTorch 2 threads", [b / a for a, b in zip(two, t2)], 3)
PY
