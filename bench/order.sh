#!/usr/bin/env bash
# What order is worth under injected delays: the same model, seed, delays and in-flight cap,
# fixed and ready, in turns.
#
#   bench/order.sh BUILD_DIR TEXT_FILE [REPEATS]
#
# The delays are sleeps (the paper's J3 injection), so the stages' work hardly competes for the
# two cores; the weights of all runs must be equal to the bit.
set -euo pipefail
build=${1:?build directory} text=${2:?text file} repeats=${3:-5}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cases=("fixed 1f1b" "fixed eager-1f1b" "fixed zb-h1" "ready 1f1b" "ready bf" "ready bfw")
for ((i = 0; i < repeats; i++)); do
    for c in "${cases[@]}"; do
        read -r order hint <<<"$c"
        "$build/rrfp" train --data-path "$text" --num-layers 4 --hidden-size 128 \
            --num-attention-heads 4 --seq-length 64 --micro-batch-size 2 --global-batch-size 24 \
            --pipeline-model-parallel-size 4 --train-iters 6 --log-interval 1000 --max-inflight 6 \
            --jitter J3 --jitter-seed $((i + 1)) --order "$order" --hint "$hint" \
            --summary "$work/$order-$hint-$i.json" >/dev/null
    done
done
echo "machine: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | sed 's/^ *//'), $(nproc) cores"
echo "4 stages, 12 microbatches, at most 6 in flight, J3; ms a step, and against fixed 1f1b"
python3 - "$work" "$repeats" "${cases[@]}" <<'PY'
import json, statistics, sys
work, repeats, cases = sys.argv[1], int(sys.argv[2]), [c.split() for c in sys.argv[3:]]
runs = {}
for order, hint in cases:
    runs[order, hint] = [json.load(open(f"{work}/{order}-{hint}-{i}.json")) for i in range(repeats)]
ms = lambda run: 1e3 * statistics.mean(s["wall_s"] for s in run["steps"][1:])
base = [ms(r) for r in runs["fixed", "1f1b"]]
for order, hint in cases:
    mine = [ms(r) for r in runs[order, hint]]
    speed = [b / m for b, m in zip(base, mine)]
    peak = [s["peak_inflight"] for s in runs[order, hint][0]["stages"]]
    print(f"{order:6s}{hint:11s} {min(mine):7.1f} {statistics.median(mine):7.1f} {max(mine):7.1f}"
          f"   speed-up {min(speed):5.2f} {statistics.median(speed):5.2f} {max(speed):5.2f}"
          f"   in flight {peak}")
hashes = {r["weights_sha256"] for rs in runs.values() for r in rs}
print("weights: all equal" if len(hashes) == 1 else f"weights DIFFER: {hashes}")
sys.exit(len(hashes) != 1)
PY
