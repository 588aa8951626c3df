#!/usr/bin/env bash
# `rrfp trace` reads what `rrfp train --trace` wrote: a table, a picture of one run or of two.
set -euo pipefail

rrfp=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

for ((i = 0; i < 400; i++)); do echo "line $i of a text to learn"; done > text.txt
for order in fixed ready; do
    "$rrfp" train --data-path text.txt --tokenizer-type byte --pipeline-model-parallel-size 2 \
        --num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 16 \
        --micro-batch-size 1 --global-batch-size 4 --train-iters 3 --hint 1f1b --order $order \
        --trace $order.json --trace-svg $order.svg > log
done

fail() { echo "FAILED: $*"; exit 1; }

# Two stages, four microbatches, F and BW: eight tasks a step on each.
"$rrfp" trace ready.json > all.txt
head -n 1 all.txt | grep -q 'order ready, hint 1f1b, steps 1 to 3' || fail "$(head -n 1 all.txt)"
[[ $(awk 'NR > 2 { print $1 ":" $2 }' all.txt | xargs) == "0:24 1:24" ]] || fail "$(cat all.txt)"
"$rrfp" trace ready.json --step 2 > one.txt
[[ $(awk 'NR > 2 { print $1 ":" $2 }' one.txt | xargs) == "0:8 1:8" ]] || fail "$(cat one.txt)"
[[ $("$rrfp" trace fixed.json ready.json | grep -c '\.json$') == 2 ]] || fail "two tables"

# The run's own picture is of its last step; drawn from the file it is the same but for the
# rounding of times, so the boxes are as many.
"$rrfp" trace fixed.json --svg again.svg
[[ $(grep -c '<title>F ' again.svg) == 8 && $(grep -c '<title>F ' fixed.svg) == 8 ]] || fail "boxes"
"$rrfp" trace fixed.json ready.json --step 2 --svg both.svg
[[ $(grep -c 'class="head"' both.svg) == 2 ]] || fail "two pictures"
"$rrfp" trace fixed.json --svg /dev/stdout | tail -n 1 | grep -qx '</svg>' || fail "/dev/stdout"
