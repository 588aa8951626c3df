#!/usr/bin/env bash
# soak.sh RRFP SOURCE: 8 ranks with jitter on tasks and messages, RRFP_SOAK_STEPS steps (100): the
# memory of every rank stays flat. That every message, buffer and credit is home at the end of
# every step is checked by the program itself, which fails otherwise.
set -euo pipefail
rrfp=$1 source=$2
steps=${RRFP_SOAK_STEPS:-100}
"$rrfp" doctor | grep -q 'UCX no' && { echo "skipped: built without UCX"; exit 77; }
"$rrfp" doctor | grep -q 'sanitizers on' && { echo "skipped: a sanitizer keeps freed memory"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat "$source"/docs/*.md "$source"/README.md >text.txt
export UCX_LOG_LEVEL=fatal
"$rrfp" train --data-path text.txt --num-layers 8 --hidden-size 32 --num-attention-heads 2 --seq-length 32 \
    --micro-batch-size 1 --global-batch-size 16 --train-iters "$steps" --log-interval 1 --jitter J2,scale:0.05 \
    --nproc 8 --pipeline-model-parallel-size 8 --summary done.json >log.txt 2>err.txt &
run=$!

# KiB of private memory of each rank, whenever another tenth of the steps is done.
tenth=1
while kill -0 $run 2>/dev/null && ((tenth < 10)); do
    done_steps=$(grep -c 'iteration' log.txt || true)
    if ((done_steps >= tenth * steps / 10)); then
        for pid in $(pgrep -P $run | sort -n); do
            awk -v pid="$pid" -v t="$tenth" '$1 == "RssAnon:" {print t, pid, $2}' "/proc/$pid/status"
        done >>memory.txt
        tenth=$((tenth + 1))
    fi
    sleep 0.05
done
wait $run || { cat err.txt; echo "FAILED: the run ended with an error"; exit 1; }
python3 - "$steps" <<'PY'
import json, sys
steps = int(sys.argv[1])
rows = [tuple(map(int, line.split())) for line in open("memory.txt")]
pids = sorted({pid for _, pid, _ in rows})
assert len(pids) == 8, f"{len(pids)} ranks were seen, expected 8"
assert json.load(open("done.json"))["iteration"] == steps
for rank, pid in enumerate(pids):
    sizes = [kib for _, p, kib in rows if p == pid]
    assert len(sizes) >= 5, f"rank {rank} was looked at {len(sizes)} times"
    early, late = max(sizes[: len(sizes) // 3]), max(sizes[len(sizes) // 3 :])
    print(f"rank {rank}: {early} KiB in the first third, {late} KiB later")
    assert late <= early + 256, f"rank {rank} grew by {late - early} KiB"
PY
echo "all as expected"
