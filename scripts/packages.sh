# packages.sh - the Debian packages RRFP needs, and their installation. Sourced by ./quickstart
# and ./check.
#
# An entry is PACKAGE or PACKAGE:COMMAND; a working COMMAND from elsewhere (a newer cmake, say)
# spares the package.
# shellcheck shell=bash
# shellcheck disable=SC2034 # the lists are used by the scripts that source this one

build_packages=(
    build-essential:g++
    cmake:cmake
    ninja-build:ninja
    pkg-config:pkg-config
    libdnnl-dev
    ocl-icd-opencl-dev # oneDNN's CMake package asks for OpenCL
    libjansson-dev
    libpcre2-dev
    nettle-dev
    libucx-dev # stages in several processes
    libhwloc-dev # binding them to processors
    libtomlplusplus-dev
    libcmocka-dev
    bible-kjv:bible # text of the example and of tests
)
check_packages=(
    clang:clang
    libomp-dev # OpenMP for clang
    clang-tidy:clang-tidy
    cppcheck:cppcheck
    python3:python3
    util-linux:setarch
    procps:pgrep  # tests of processes
    iproute2      # hosts made of network namespaces
    nftables:nft  # lost packets
)

# A command counts when it starts: a version manager's shim may be there and lead nowhere.
command_works() {
    case $1 in
    bible) command -v bible > /dev/null ;;
    *) "$1" --version > /dev/null 2>&1 ;;
    esac
}

package_installed() {
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2> /dev/null) == installed ]]
}

# require_packages ENTRY...: installs what is missing, or says how to and ends with 1.
require_packages() {
    local entry package missing=()
    for entry in "$@"; do
        package=${entry%%:*}
        if [[ $entry == *:* ]] && command_works "${entry#*:}"; then
            continue
        fi
        package_installed "$package" || missing+=("$package")
    done
    if ((${#missing[@]} == 0)); then
        return
    fi

    local root=()
    if [[ $(id -u) != 0 ]]; then
        if ! command -v sudo > /dev/null || ! sudo -n true 2> /dev/null; then
            echo "Missing Debian packages; please run:" >&2
            echo "  sudo apt-get install --no-install-recommends ${missing[*]}" >&2
            exit 1
        fi
        root=(sudo -n)
    fi
    echo "Installing ${missing[*]}"
    apt_install() {
        "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q \
            --no-install-recommends "${missing[@]}"
    }
    # The package lists may be missing or old; they are fetched only when needed.
    if ! apt_install > /dev/null 2>&1; then
        "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q
        apt_install
    fi
}

# Runs a cmake that works: the one in PATH, else the distribution's.
run_cmake() {
    if command_works cmake; then
        cmake "$@"
    else
        /usr/bin/cmake "$@"
    fi
}

# ctest beside that cmake.
run_ctest() {
    if ctest --version > /dev/null 2>&1; then
        ctest "$@"
    else
        /usr/bin/ctest "$@"
    fi
}

# example_text FILE: the King James Bible as plain text, one verse a line.
example_text() {
    local file=$1
    if [[ -s $file ]]; then
        return
    fi
    mkdir -p "$(dirname "$file")"
    bible -f gen1:1-rev22:21 < /dev/null 2> /dev/null \
        | sed -n 's/^[1-3]\{0,1\}[A-Za-z]*[0-9]*:[0-9]* //p' > "$file.tmp"
    if (($(wc -l < "$file.tmp") < 31000)); then
        echo "the program 'bible' did not print the whole text; is bible-kjv-text installed?" >&2
        exit 1
    fi
    mv "$file.tmp" "$file"
}
