#!/usr/bin/env bash
# Installs to a fresh prefix, then builds and runs a small program against it: with pkg-config
# (static and, if built so, shared) and with find_package.
set -euo pipefail

build=$(dirname "$1")
version=$(sed -n 's/^project(rrfp VERSION \([0-9.]*\).*/\1/p' "$2/CMakeLists.txt")
cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
if [[ -n $(cached RRFP_SANITIZE) ]]; then
    echo "skipped: a library with sanitizers is not for installing"
    exit 77
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" > "$work/install.log"

cat > "$work/consumer.c" <<'C'
#include <stdio.h>
#include <string.h>

#include "rrfp/hint.h"

int main(void)
{
    rrfp_hint_request request = {.struct_size = sizeof request, .hint = "1f1b", .stages = 2,
                                 .chunks = 1, .microbatches = 2};
    rrfp_budget budgets[2] = {{0}, {0}};
    rrfp_hint *hint = NULL;
    rrfp_error error = {RRFP_OK, ""};

    request.budgets = budgets;
    request.hint_distance = RRFP_DISTANCE_UNBOUNDED;
    if (rrfp_hint_build(&request, &hint, &error) != RRFP_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    if (rrfp_hint_write_csv(hint, false, stdout, &error) != RRFP_OK) {
        return 1;
    }
    rrfp_hint_destroy(hint);
    return strcmp(rrfp_strerror(RRFP_OK), "ok") != 0;
}
C
# 1F1B by hand: the last stage alternates, the first runs one forward ahead.
printf '0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n' > "$work/expected"

fail() {
    echo "FAILED: $*" >&2
    exit 1
}
run_consumer() {
    LD_LIBRARY_PATH="$libdir" "$1" > "$work/out" || fail "$2 does not run"
    diff <(tr -d ' \r' < "$work/out") "$work/expected" || fail "$2 prints another schedule"
}

pc=$(find "$work/prefix" -name rrfp.pc)
libdir=$(dirname "$(dirname "$pc")")
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
compiler=$(cached CMAKE_C_COMPILER)
static=--static
[[ -e $libdir/librrfp.a ]] || static=
[[ $(pkg-config --modversion rrfp) == "$version" ]] || fail "rrfp.pc has another version"
# shellcheck disable=SC2046,SC2086 # pkg-config prints several words
"$compiler" -std=c11 "$work/consumer.c" -o "$work/consumer_pc" \
    $(pkg-config --cflags --libs $static rrfp) || fail "the pkg-config consumer does not link"
run_consumer "$work/consumer_pc" "the pkg-config consumer"

cat > "$work/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.18)
project(consumer C)
set(CMAKE_C_STANDARD 11)
find_package(rrfp 0.1 REQUIRED)
add_executable(consumer consumer.c)
target_link_libraries(consumer PRIVATE rrfp::rrfp)
CMAKE
cmake -S "$work" -B "$work/build" -DCMAKE_C_COMPILER="$compiler" \
    -DCMAKE_PREFIX_PATH="$work/prefix" > "$work/cmake.log" || fail "find_package(rrfp) fails"
cmake --build "$work/build" > "$work/cmake.log" || fail "the find_package consumer does not link"
run_consumer "$work/build/consumer" "the find_package consumer"

[[ $("$work/prefix/bin/rrfp" --version) == "rrfp $version" ]] || fail "the installed rrfp does not run"
grep -q '^\.TH RRFP 1' "$work/prefix/share/man/man1/rrfp.1" || fail "no manual page"
echo "install: pkg-config and find_package consumers run"
