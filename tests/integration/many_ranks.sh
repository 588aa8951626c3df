#!/usr/bin/env bash
# many_ranks.sh RRFP SOURCE: 64 ranks on however few cores train 50 steps to the bits of one process;
# ranks that starve use next to no processor time.
set -euo pipefail
rrfp=$1 source=$2
"$rrfp" doctor | grep -q 'UCX no' && { echo "skipped: built without UCX"; exit 77; }
"$rrfp" doctor | grep -q 'sanitizers on' && { echo "skipped: 64 processes with sanitizers"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat "$source"/docs/*.md "$source"/README.md >text.txt
export UCX_LOG_LEVEL=fatal
common=(--data-path text.txt --num-layers 64 --hidden-size 16 --num-attention-heads 2 --seq-length 16
    --micro-batch-size 1 --global-batch-size 8 --log-interval 1000)
sha() { python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["weights_sha256"])' "$1"; }

echo "== 64 ranks, 50 steps"
"$rrfp" train "${common[@]}" --train-iters 50 --summary one.json >/dev/null
timeout 300 "$rrfp" train "${common[@]}" --train-iters 50 --nproc 64 --pipeline-model-parallel-size 64 \
    --summary many.json >/dev/null
diff <(sha one.json) <(sha many.json)

echo "== starving ranks sleep"
timeout 120 "$rrfp" train "${common[@]:0:2}" --num-layers 4 --hidden-size 32 --num-attention-heads 2 \
    --seq-length 32 --micro-batch-size 2 --global-batch-size 4 --train-iters 1000000 --nproc 4 \
    --peer-timeout 60 --pipeline-model-parallel-size 4 >/dev/null 2>&1 &
run=$!
sleep 2
launcher=$(pgrep -P $run -f train | head -n 1)
mapfile -t ranks < <(pgrep -P "$launcher" | sort -n)
kill -STOP "${ranks[0]}" # the others now wait for it, and do not know yet
sleep 0.5
ticks() { awk '{print $14 + $15}' "/proc/$1/stat"; }
before=0 after=0
for pid in "${ranks[@]:1}"; do before=$((before + $(ticks "$pid"))); done
sleep 5
for pid in "${ranks[@]:1}"; do after=$((after + $(ticks "$pid"))); done
kill -KILL "${ranks[0]}"
wait $run || true
used=$((after - before)) # hundredths of a second, of three ranks in five seconds
echo "three starving ranks used $used of 1500 ticks"
if ((used > 15)); then
    echo "FAILED: that is over 1 % of a core each"
    exit 1
fi
echo "all as expected"
