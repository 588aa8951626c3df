#!/usr/bin/env bash
# cli_train.sh RRFP SOURCE: training through the command line. An interrupted run continues to the
# bits of an uninterrupted one, at another pipeline size; SIGTERM saves; damage is refused;
# evaluation and generation read the checkpoint.
set -euo pipefail
rrfp=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat "$source"/docs/*.md "$source"/README.md "$source"/src/*/*.h >text.txt

common=(--data-path text.txt --num-layers 3 --hidden-size 32 --num-attention-heads 2 --seq-length 32
    --micro-batch-size 2 --global-batch-size 8 --lr-warmup-iters 2 --lr-decay-iters 6 --dropout 0.1 --log-interval 1)

bits() { # SUMMARY FIRST LAST: the bits of the steps and of the weights
    python3 - "$@" <<'PY'
import json, sys
d = json.load(open(sys.argv[1]))
for s in d["steps"]:
    if int(sys.argv[2]) <= s["iteration"] <= int(sys.argv[3]):
        print(s["iteration"], s["loss_bits"], s["grad_norm_bits"])
print(d["weights_sha256"])
PY
}

fails_with() { # EXIT-CODE TEXT COMMAND...
    local code=$1 text=$2 got=0
    shift 2
    "$@" >out.txt 2>err.txt || got=$?
    if [ "$got" != "$code" ] || ! grep -qF "$text" err.txt || [ "$(wc -l <err.txt)" != 1 ]; then
        echo "expected exit $code and one line with '$text', got $got:"
        cat err.txt
        exit 1
    fi
}

echo "== straight"
"$rrfp" train "${common[@]}" --train-iters 6 --save straight --summary made/here/straight.json \
    --trace trace.json --trace-svg step.svg --eval-interval 3 --eval-iters 1 >straight.log
grep -q 'iteration        6/       6 | consumed samples:           48 |' straight.log
grep -q 'validation loss at iteration 3' straight.log
test -s step.svg && python3 -c 'import json; json.load(open("trace.json"))'

echo "== three, then three on another pipeline"
"$rrfp" train "${common[@]}" --train-iters 3 --pipeline-model-parallel-size 2 --hint zb-h1 \
    --save parts >/dev/null
"$rrfp" train "${common[@]}" --train-iters 6 --pipeline-model-parallel-size 3 --hint f-prio \
    --jitter lognormal:1 --load parts --save parts --summary parts.json >/dev/null
diff <(bits made/here/straight.json 4 6) <(bits parts.json 4 6)

echo "== the same files"
cmp straight/iter_0000006/model.safetensors parts/iter_0000006/model.safetensors
cmp straight/iter_0000006/optimizer.safetensors parts/iter_0000006/optimizer.safetensors

echo "== finetuning takes the weights and counts from 1"
"$rrfp" train "${common[@]}" --train-iters 6 --load straight --finetune --lr 0 --min-lr 0 \
    --weight-decay 0 --summary same.json >/dev/null
test "$(bits same.json 1 6 | wc -l)" = 7 # six steps and the weights, which stay as they were
diff <(bits same.json 7 7) <(bits made/here/straight.json 7 7)

echo "== SIGTERM ends after a step, saves and exits 0"
"$rrfp" train "${common[@]}" --train-iters 1000000 --lr-decay-iters 0 --save stopped >stop.log &
pid=$!
for _ in $(seq 100); do
    grep -q 'iteration        2/' stop.log && break
    sleep 0.1
done
kill -TERM $pid
wait $pid
test -s stopped/latest_checkpointed_iteration.txt

echo "== evaluation and generation"
"$rrfp" eval "${common[@]:0:2}" --load straight --seq-length 32 --micro-batch-size 2 \
    --global-batch-size 8 --eval-iters 2 | grep -q 'lm loss value'
"$rrfp" generate --load straight --prompt "The" --max-new-tokens 20 --temperature 0 >one.txt
"$rrfp" generate --load straight --prompt "The" --max-new-tokens 20 --temperature 0 >two.txt
cmp one.txt two.txt
grep -q '^The' one.txt

echo "== refusals"
fails_with 2 'num-layers' "$rrfp" train "${common[@]:0:2}" --num-layers 7 --load straight
cp -r straight broken
python3 - broken/iter_0000006/model.safetensors <<'PY'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
data[-5] ^= 1
open(sys.argv[1], "wb").write(data)
PY
fails_with 1 'broken/iter_0000006/model.safetensors: its data does not match its SHA-256' \
    "$rrfp" train "${common[@]}" --train-iters 7 --load broken
fails_with 1 'no checkpoint' "$rrfp" train "${common[@]}" --load /nonexistent
fails_with 2 'max_inflight_bytes 10 is less than one microbatch takes; it must be at least' \
    "$rrfp" train "${common[@]}" --train-iters 1 --lr-decay-iters 0 --max-inflight-bytes 10
fails_with 1 'cannot make directory /proc/none' \
    "$rrfp" train "${common[@]}" --train-iters 100000000 --lr-decay-iters 0 \
    --summary /proc/none/s.json # before the first step, not after the last
fails_with 1 'cannot make directory /proc/none' \
    "$rrfp" train "${common[@]}" --train-iters 100000000 --lr-decay-iters 0 --save /proc/none
echo "all as expected"
