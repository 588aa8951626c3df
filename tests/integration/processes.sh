#!/usr/bin/env bash
# processes.sh RRFP SOURCE: one process per stage. The same bits as one process for every hint, over
# TCP and shared memory, with jitter; a killed or stopped rank is named by all others, and the run
# continues to the bits of an uninterrupted one; SIGTERM saves; strangers and mistakes are refused.
set -euo pipefail
rrfp=$1 source=$2
if "$rrfp" doctor | grep -q 'UCX no'; then
    echo "skipped: built without UCX"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat "$source"/docs/*.md "$source"/README.md "$source"/src/*/*.h >text.txt
export UCX_LOG_LEVEL=fatal UCX_WARN_UNUSED_ENV_VARS=n
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT RRFP_SECRET UCX_TLS

common=(--data-path text.txt --num-layers 4 --hidden-size 32 --num-attention-heads 2 --seq-length 32
    --micro-batch-size 2 --global-batch-size 12 --lr-warmup-iters 2 --lr-decay-iters 8 --dropout 0.1
    --log-interval 1000)

bits() { # SUMMARY [FIRST]: the bits of the steps from FIRST on and of the weights
    python3 - "$@" <<'PY'
import json, sys
d = json.load(open(sys.argv[1]))
first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
for s in d["steps"]:
    if s["iteration"] >= first:
        print(s["iteration"], s["loss_bits"], s["grad_norm_bits"])
print(d["weights_sha256"], d["eval_loss"])
PY
}
equals_one() { # ARGUMENT...: a run of several processes
    timeout 120 "$rrfp" train "${common[@]}" --train-iters 4 --summary run.json "$@" >/dev/null
    diff <(bits one.json) <(bits run.json) || { echo "FAILED: $*"; exit 1; }
}

"$rrfp" train "${common[@]}" --train-iters 4 --eval-interval 2 --eval-iters 2 --summary one.json >/dev/null

echo "== every hint, by shared memory or what UCX takes"
for hint in gpipe 1f1b eager-1f1b zb-h1 zb-h2 bf bfw fb b-prio f-prio; do
    equals_one --pipeline-model-parallel-size 3 --nproc 3 --hint $hint --eval-interval 2 --eval-iters 2
done
for hint in interleaved zb-v bfw; do
    equals_one --pipeline-model-parallel-size 2 --virtual-stages 2 --nproc 2 --hint $hint \
        --eval-interval 2 --eval-iters 2
done
echo "== TCP, with jitter, fixed order, budget 1"
export UCX_TLS=tcp,self
equals_one --pipeline-model-parallel-size 4 --nproc 4 --hint bfw --jitter lognormal:1 --eval-interval 2 --eval-iters 2
equals_one --pipeline-model-parallel-size 4 --nproc 4 --hint 1f1b --order fixed --eval-interval 2 --eval-iters 2
equals_one --pipeline-model-parallel-size 4 --nproc 4 --hint bf --max-inflight 1 --max-pending-w 1 \
    --eval-interval 2 --eval-iters 2
unset UCX_TLS

echo "== started by hand, as torchrun does"
port=$((20000 + $$ % 20000))
by_hand() { # ARGUMENT-OF-THE-OTHERS... -- ARGUMENT-OF-RANK-0...
    local others=() pids=() rank code=0
    while [[ $1 != -- ]]; do others+=("$1"); shift; done
    shift
    for rank in 0 1 2; do
        ((rank > 0)) || others_of_rank=("$@")
        ((rank == 0)) || others_of_rank=("${others[@]}")
        RANK=$rank WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout 60 "$rrfp" train "${common[@]}" \
            --train-iters 4 --pipeline-model-parallel-size 3 "${others_of_rank[@]}" >"said$rank" 2>"hand$rank.err" & pids+=($!)
    done
    for rank in 0 1 2; do
        wait "${pids[rank]}" || code=$?
    done
    return $code
}
evaluating=(--eval-interval 2 --eval-iters 2 --summary hand.json --trace hand-trace.json)
if by_hand --lr 1e-3 -- "${evaluating[@]}"; then
    echo "FAILED: ranks with different options run"
    exit 1
fi
cat hand1.err hand2.err | grep -q 'rank [12] was started with .*rank 0 with .*: give all the same'
by_hand "${evaluating[@]}" -- "${evaluating[@]}"
test -s said0 && test ! -s said1 && test ! -s said2 # rank 0 speaks for all
diff <(bits one.json) <(bits hand.json)
"$rrfp" trace hand-trace.json | grep -c '^ *[012] ' | grep -qx 3 # all stages are in its trace

echo "== killed, stopped, and continued"
"$rrfp" train "${common[@]}" --train-iters 8 --summary eight.json >/dev/null
for signal in KILL STOP; do
    for victim in 0 1 2; do
        rm -rf lost
        timeout 120 "$rrfp" train "${common[@]}" --train-iters 1000000 --lr-decay-iters 8 --nproc 3 \
            --pipeline-model-parallel-size 3 --peer-timeout 2 --save lost --save-interval 2 \
            >lost.log 2>lost.err &
        run=$!
        for _ in $(seq 200); do
            [[ -s lost/latest_checkpointed_iteration.txt ]] && break
            sleep 0.05
        done
        launcher=$(pgrep -P $run -f 'train' | head -n 1)
        pid=$(pgrep -P "$launcher" | sort -n | sed -n "$((victim + 1))p")
        kill -$signal "$pid"
        code=0
        wait $run || code=$?
        if [[ $code != 3 ]]; then
            echo "FAILED: rank $victim, SIG$signal: exit code $code"
            cat lost.err
            exit 1
        fi
        for other in 0 1 2; do
            [[ $other == "$victim" ]] && continue
            grep -q "^rrfp train: rank $other: .*rank $victim " lost.err || {
                echo "FAILED: rank $other does not name rank $victim after SIG$signal"
                cat lost.err
                exit 1
            }
        done
    done
done
rm -rf part
"$rrfp" train "${common[@]}" --train-iters 5 --nproc 3 --pipeline-model-parallel-size 3 --save part >/dev/null
"$rrfp" train "${common[@]}" --train-iters 8 --nproc 2 --pipeline-model-parallel-size 2 --load part \
    --summary rest.json >/dev/null
diff <(bits eight.json 6) <(bits rest.json 6)

echo "== restarts"
rm -rf again
timeout 120 "$rrfp" train "${common[@]}" --train-iters 400 --lr-decay-iters 8 --nproc 2 --restarts 1 \
    --pipeline-model-parallel-size 2 --peer-timeout 2 --save again --save-interval 20 \
    --summary again.json >again.log 2>again.err &
run=$!
for _ in $(seq 400); do
    [[ -s again/latest_checkpointed_iteration.txt ]] && break
    sleep 0.05
done
launcher=$(pgrep -P $run -f 'train' | head -n 1)
kill -KILL "$(pgrep -P "$launcher" | sort -n | sed -n 2p)"
wait $run
grep -q 'starting again from again' again.err
"$rrfp" train "${common[@]}" --train-iters 400 --lr-decay-iters 8 --summary whole.json >/dev/null
diff <(bits again.json 399) <(bits whole.json 399)

echo "== SIGTERM ends all after a step, saves and exits 0"
rm -rf stopped
"$rrfp" train "${common[@]}" --train-iters 1000000 --nproc 3 --pipeline-model-parallel-size 3 \
    --save stopped --log-interval 1 >stop.log &
run=$!
for _ in $(seq 200); do
    grep -q 'iteration        2/' stop.log && break
    sleep 0.05
done
kill -TERM $run
wait $run
grep -q 'asked to stop: ending after iteration' stop.log
test -s stopped/latest_checkpointed_iteration.txt

echo "== refusals"
fails_with() { # EXIT-CODE TEXT COMMAND...
    local code=$1 text=$2 got=0
    shift 2
    timeout 60 "$@" >out.txt 2>err.txt || got=$?
    if [[ $got != "$code" ]] || ! grep -qF -- "$text" err.txt; then
        echo "FAILED: expected exit $code and '$text', got $got:"
        cat err.txt
        exit 1
    fi
}
fails_with 2 '--nproc 3 for 2 pipeline stages' "$rrfp" train "${common[@]}" --nproc 3 \
    --pipeline-model-parallel-size 2
fails_with 2 'RANK=9' env RANK=9 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
    "$rrfp" train "${common[@]}"
fails_with 3 'waited 1 s for rank 1' env RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
    RRFP_JOIN_TIMEOUT=1 "$rrfp" train "${common[@]}" --pipeline-model-parallel-size 2
fails_with 2 'RRFP_SECRET is not set' env RANK=1 WORLD_SIZE=2 MASTER_ADDR=192.0.2.1 MASTER_PORT=$port \
    "$rrfp" train "${common[@]}"
echo "all as expected"
