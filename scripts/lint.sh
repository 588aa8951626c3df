#!/usr/bin/env bash
# Static analysis of our sources. Usage: scripts/lint.sh BUILD-FOLDER (with compile_commands.json)
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: scripts/lint.sh BUILD-FOLDER}

failed=0
mapfile -t sources < <(git ls-files --cached --others --exclude-standard 'src/*.c' 2> /dev/null \
    || find src -name '*.c')

echo "cppcheck, ${#sources[@]} files"
cppcheck --quiet --std=c11 --language=c --enable=warning,performance,portability \
    --error-exitcode=1 --inline-suppr --suppressions-list=scripts/cppcheck.supp -j2 \
    -D_GNU_SOURCE -D__x86_64__ -DRRFP_VERSION_STRING='"0"' -DRRFP_GEMM_ONEDNN=1 -Iinclude -Isrc \
    "${sources[@]}" || failed=1

echo "clang-tidy, ${#sources[@]} files"
# The compilation database is gcc's; clang does not know all of its flags. What clang-tidy says
# about warnings it did not show is left out.
tidy=(clang-tidy --quiet -p "$build" --extra-arg=-Wno-unknown-warning-option)
quiet() {
    grep -v 'warnings\? generated\|^Suppressed\|^Use -header' >&2 || true
}
# One file a run: clang-tidy 14 takes the second file's va_list for uninitialized.
printf '%s\0' "${sources[@]}" | grep -zv '^src/core/status.c$' \
    | xargs -0 -P2 -n1 "${tidy[@]}" --extra-arg=-include --extra-arg="$PWD/scripts/analyzer.h" \
        2> >(quiet) || failed=1
"${tidy[@]}" src/core/status.c 2> >(quiet) || failed=1

if command -v shellcheck > /dev/null; then
    echo "shellcheck"
    mapfile -t scripts < <(find . -name '*.sh' -not -path './build*')
    shellcheck -x quickstart check .ci/run "${scripts[@]}" || failed=1
fi
exit "$failed"
