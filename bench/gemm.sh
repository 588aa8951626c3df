#!/bin/sh
# Builds bench_gemm with each GEMM library and runs them in turn, so that drifts of
# the machine meet all of them: bench/gemm.sh [rounds] [timings per round]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
rounds=${1:-5}
timings=${2:-5}
# A pinned kernel of OpenBLAS would measure the pin.
unset OPENBLAS_CORETYPE
for library in onednn openblas blis; do
    build=$root/build-gemm-$library
    cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DRRFP_GEMM=$library \
        -DRRFP_TESTS=OFF >"$build.log"
    cmake --build "$build" --target bench_gemm >>"$build.log"
    rm -f "$build.log"
done
round=1
while [ "$round" -le "$rounds" ]; do
    for library in onednn openblas blis; do
        "$root/build-gemm-$library/bench/bench_gemm" "$timings"
        echo
    done
    round=$((round + 1))
done
