#!/usr/bin/env bash
# What a user sees of the program itself: exit codes, one line per mistake, nothing on standard
# output then.
set -euo pipefail

rrfp=$1
version=$(sed -n 's/^project(rrfp VERSION \([0-9.]*\).*/\1/p' "$2/CMakeLists.txt")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
bad=0
"$rrfp" --version > out # nothing below makes sense when it does not start

# expect CODE PART ARGUMENT...: the exit code, and PART on standard error (CODE 0: on output).
expect() {
    local code=$1 part=$2 got=0 lines
    shift 2
    "$rrfp" "$@" > out 2> err || got=$?
    if [[ $got != "$code" ]]; then
        echo "FAILED: rrfp $*: exit code $got, not $code: $(head -n 3 err)"
        bad=1
    fi
    if ((code == 0)); then
        grep -qF -- "$part" out || { echo "FAILED: rrfp $*: no '$part' in the output"; bad=1; }
        return
    fi
    grep -qF -- "$part" err || { echo "FAILED: rrfp $*: '$(cat err)' lacks '$part'"; bad=1; }
    lines=$(wc -l < err)
    if [[ $lines != 1 || -s out ]] || ! grep -q '^rrfp\( [a-z]*\)\{0,1\}: ' err; then
        echo "FAILED: rrfp $*: wants one line 'rrfp ...: ...' on standard error alone"
        bad=1
    fi
}

expect 0 "rrfp $version" --version
expect 0 "Usage: rrfp COMMAND" --help
expect 0 ".TH RRFP 1" man
expect 0 "# Options" docs
for command in train eval generate hint doctor trace; do
    expect 0 "Usage: rrfp $command" "$command" --help
done
expect 0 "GFLOP/s" doctor

expect 2 "unknown command 'trian'; did you mean 'train'?" trian
expect 2 "unknown command 'frobnicate'; 'rrfp --help' lists them" frobnicate
expect 2 "'man' takes no argument, not 'x'" man x
expect 2 "'docs' takes no argument, not 'x'" docs x
expect 2 "'doctor' takes --layout or nothing, not '-v'" doctor -v
expect 0 "6    0    1      1" doctor --layout --world-size=8 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
expect 2 "7 ranks cannot be divided into pipelines of 4" doctor --layout --world-size 7 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
expect 2 "--world-size is '-1': give a whole number" doctor --layout --world-size -1
expect 2 "does not know '--frob=2'" doctor --layout --frob=2
expect 2 "--world-size needs a number" doctor --layout --world-size
if "$rrfp" > out 2> err || [[ $? != 2 ]] || ! grep -q '^Usage' err; then
    echo "FAILED: rrfp alone wants the usage on standard error and exit code 2"
    bad=1
fi

expect 2 "did you mean '--num-layers'?" train --num-layer 3
expect 2 "'rrfp train' needs data" train
expect 2 "--lr: '1x' is not a number" train --data-path f --lr 1x
expect 2 "cannot open configuration 'none.toml'" train none.toml
expect 2 "configuration" train "$work"
printf 'num_layers = 3\n[a]\nnum-layers = 4\n' > twice.toml
expect 2 "twice.toml:3: num-layers: given twice" train twice.toml
printf 'lr = [\n' > broken.toml
expect 2 "broken.toml:" train broken.toml
printf 'hint = "\\u001b[31mred"\n' > hostile.toml
expect 2 "--hint '?[31mred' is unknown" train hostile.toml
expect 2 "needs a checkpoint: --load" eval --data-path x
expect 2 "needs a text to continue" generate --load x

# The printed configuration is one that can be read back, and then prints the same.
"$rrfp" train --print-config --data-path x --num-layers 6 --hint bfw > first.toml
"$rrfp" train first.toml --print-config > second.toml
cmp first.toml second.toml || bad=1
grep -q '^num-layers = 6$' first.toml || { echo "FAILED: --print-config lost a flag"; bad=1; }

expect 2 "name a trace" trace
expect 2 "'c' is a third trace" trace a b c
expect 2 "'--svg' needs a value" trace a --svg
expect 2 "--step: '3x' is not a step number" trace a --step=3x
expect 2 "unknown option '--stp'" trace a --stp 3
expect 1 "none.json: No such file" trace none.json
echo '{}' > empty.json
expect 1 "only traces written by rrfp can be read" trace empty.json

expect 2 "a schedule comes first" hint
expect 2 "did you mean 'zb-v'?" hint zbv
expect 2 "-m: '0' is not a count" hint 1f1b -p 2 -m 0
expect 2 "'-p' needs a value" hint 1f1b -p
expect 2 "--csv and --table exclude each other" hint 1f1b --csv --table
expect 2 "add --csv" hint 1f1b --bubbles
expect 2 "--virtual-stages: '65' is out of bounds" hint bf -v 65
expect 1 "none.csv" hint none.csv

# 1F1B on two stages by hand: the last alternates, the first is one forward ahead.
printf '0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n' > expected.csv
"$rrfp" hint 1f1b -p 2 -m 2 --csv | tr -d ' \r' > got.csv
cmp got.csv expected.csv || bad=1
expect 0 "ok: 2 stages x 1 chunks, 2 microbatches" hint got.csv --check
expect 0 "4 stages x 2 chunks, 8 microbatches, split backward, V placement" hint zb-v -p 4 --check
expect 0 "execution with unit task" hint bf -p 3 -m 4
printf '0F0,0F1,0B0,0B1\n1F0,1B1,1F1,1B0\n' > deadlock.csv
if "$rrfp" hint deadlock.csv --check > out 2> err; then
    echo "FAILED: a schedule whose backward precedes its forward is accepted"
    bad=1
fi

if [[ -w /dev/full ]] && "$rrfp" docs > /dev/full 2> err; then
    echo "FAILED: a full disk goes unnoticed"
    bad=1
fi
((bad == 0)) && echo "command line: all as documented"
exit "$bad"
