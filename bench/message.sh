#!/usr/bin/env bash
# Our message layer against raw UCX (ucx_perftest), Open MPI, and a thread per direction over MPI,
# in turns, between two processes of this host.
#
#   bench/message.sh BUILD_DIR [REPEATS] [UCX_TLS]
set -euo pipefail
build=${1:?build directory} repeats=${2:-5}
[[ -z ${3:-} ]] || export UCX_TLS=$3
export UCX_WARN_UNUSED_ENV_VARS=n
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sizes=(64 1024 8192 65536 1048576 4194304 67108864)

raw() { # prints SIZE LATENCY BANDWIDTH like the others
    local size n lat bw
    for size in "${sizes[@]}"; do
        n=$((size <= 8192 ? 20000 : size <= 65536 ? 4000 : size <= 4194304 ? 200 : 12))
        for test in ucp_am_lat ucp_am_bw; do
            timeout 20 ucx_perftest -p 13399 >/dev/null 2>&1 & local server=$!
            sleep 0.3
            timeout 20 ucx_perftest localhost -p 13399 -t $test -s "$size" -n $n -w $((n / 10)) -f 2>/dev/null >"$work/$test" || true
            wait $server 2>/dev/null || true
        done
        lat=$(awk '$1 ~ /^[0-9]+$/ {v = $4} END {print v}' "$work/ucp_am_lat")
        bw=$(awk '$1 ~ /^[0-9]+$/ {v = $6} END {print v}' "$work/ucp_am_bw")
        echo "$size $lat $bw"
    done
}
over_mpi() { timeout 60 mpirun --allow-run-as-root --oversubscribe -n 2 "$build/bench/bench_message" "$1" 2>/dev/null; }

for ((i = 0; i < repeats; i++)); do
    "$build/bench/bench_message" ours >"$work/ours.$i"
    raw >"$work/raw.$i"
    over_mpi mpi >"$work/mpi.$i" || true
    over_mpi threads >"$work/threads.$i" || true
done
echo "machine: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | sed 's/^ *//'), $(nproc) cores; UCX_TLS=${UCX_TLS:-default}"
python3 - "$work" "$repeats" <<'PY'
import statistics, sys
work, repeats = sys.argv[1], int(sys.argv[2])
def read(kind):
    rows = {}
    for i in range(repeats):
        for line in open(f"{work}/{kind}.{i}"):
            parts = line.split()
            if len(parts) == 3:
                rows.setdefault(int(parts[0]), []).append((float(parts[1]), float(parts[2])))
    return rows
data = {kind: read(kind) for kind in ("ours", "raw", "mpi", "threads")}
for column, what in ((0, "one-way latency, us"), (1, "bandwidth, MiB/s")):
    print(f"\n{what}: min / median / max")
    print(f"{'bytes':>10s} " + " ".join(f"{k:>30s}" for k in data) + "   ours/raw")
    for size in sorted(data["ours"]):
        cells, medians = [], {}
        for kind in data:
            v = [x[column] for x in data[kind].get(size, [])]
            digits = 2 if column == 0 else 0
            cells.append(f"{min(v):.{digits}f} / {statistics.median(v):.{digits}f} / {max(v):.{digits}f}" if v else "-")
            medians[kind] = statistics.median(v) if v else None
        ratio = medians["ours"] / medians["raw"] if medians["raw"] else float("nan")
        print(f"{size:10d} " + " ".join(f"{c:>30s}" for c in cells) + f"   {ratio:.2f}")
PY
