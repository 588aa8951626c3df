#!/usr/bin/env bash
# `rrfp hint`: schedules printed, written as CSV, read back and checked.
set -euo pipefail

rrfp=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
bad=0
fail() {
    echo "FAILED: $*"
    bad=1
}

# prints NAME ARGUMENT...: the output of `rrfp hint ARGUMENT...` is the file NAME.
prints() {
    local expected=$1
    shift
    "$rrfp" hint "$@" > out 2> err || fail "rrfp hint $*: $(cat err)"
    cmp out "$expected" || fail "rrfp hint $*: not what $expected holds"
}

# refuses PART ARGUMENT...: fails with one line on standard error that holds PART.
refuses() {
    local part=$1
    shift
    if "$rrfp" hint "$@" > out 2> err; then
        fail "rrfp hint $*: accepted"
    elif [[ -s out || $(wc -l < err) != 1 ]] || ! grep -qF -- "$part" err; then
        fail "rrfp hint $*: '$(cat err)' lacks '$part'"
    fi
}

# 1F1B, three stages, by hand; B is the whole backward.
cat > 1f1b.table <<'END'
stage 0   F0 F1 F2 B0 F3 B1 B2 B3
stage 1   F0 F1 B0 F2 B1 F3 B2 B3
stage 2   F0 B0 F1 B1 F2 B2 F3 B3
END
prints 1f1b.table 1f1b -p 3 -m 4
prints 1f1b.table 1f1b -p 3 -m 4 --table
cat > 1f1b.csv <<'END'
0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3
1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3
2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3
END
prints 1f1b.csv 1f1b -p 3 -m 4 --csv
prints 1f1b.csv 1f1b.csv --csv
prints 1f1b.table 1f1b.csv

# F one unit, B two: stage 1 starts at 1, stage 0 waits from 2 to 4 and from 6 to 7.
printf '0F0,0F1,,,0B0,,,0B1,\n,1F0,1B0,,1F1,1B1,\n' > bubbles.csv
prints bubbles.csv 1f1b -p 2 -m 2 --csv --bubbles
prints bubbles.csv bubbles.csv --csv --bubbles

# Megatron's interleaving, P=2 V=2 M=2: one group of two microbatches a chunk; global chunks.
printf '0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1\n' > chunks.csv
prints chunks.csv interleaved -p 2 -v 2 -m 2 --csv

# Every name, written and read back, chunks and ranks being what the file holds.
for name in gpipe 1f1b eager-1f1b interleaved zb-h1 zb-h2 zb-v bf bfw fb b-prio f-prio; do
    "$rrfp" hint "$name" -p 4 -m 6 --csv > "$name.out.csv" 2> note || fail "$name: $(cat note)"
    prints "$name.out.csv" "$name.out.csv" --csv
    "$rrfp" hint "$name" -p 4 -m 6 --csv --bubbles > gaps.csv 2> note || fail "$name: $(cat note)"
    prints "$name.out.csv" gaps.csv --csv
done
checks() {
    local line=$1
    shift
    "$rrfp" hint "$@" --check > out 2> err || fail "rrfp hint $* --check: $(cat err)"
    grep -qF -- "$line" out || fail "rrfp hint $* --check: '$(cat out)' lacks '$line'"
}
checks "ok: 4 stages x 2 chunks, 6 microbatches, split backward, V placement" zb-v.out.csv
checks "ok: 4 stages x 2 chunks, 6 microbatches, fused backward, looped placement" \
    interleaved.out.csv
checks "ok: 4 stages x 1 chunks" zb-h1.out.csv -p 4 -v 1 -m 6
checks "in flight at most 1 to 4" 1f1b.out.csv
checks "in flight at most 2, adapted to the budgets" gpipe -p 4 -m 6 --order fixed \
    --max-inflight 2

refuses "has 4 ranks, the run wants 3" zb-v.out.csv -p 3
refuses "has 2 stages a rank, the run wants 1" zb-v.out.csv -v 1
refuses "has 6 microbatches, the run wants 7" zb-v.out.csv -m 7
printf '0F0,0B0\n1F0,1REDUCE_GRAD\n' > kinds.csv
refuses 'kinds.csv: row 2, column 2, cell "1REDUCE_GRAD"' kinds.csv
printf '0F0,0F1,0B0,0B1\n1F0,1B1,1F1,1B0\n' > early.csv
refuses 'row 2, column 2, cell "1B1": a backward before the forward' early.csv --check
printf '0F0,0B0,0F1,0B1\n1F1,1F0,1B1,1B0\n' > stuck.csv
refuses 'row 1, column 2, cell "0B0": never becomes ready' stuck.csv --check
: > empty.csv
refuses "empty.csv: no task in it" empty.csv

((bad == 0)) && echo "rrfp hint: all as written by hand"
exit "$bad"
