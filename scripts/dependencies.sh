#!/usr/bin/env bash
# Keeps compiled dependencies on this machine, so that a clean checkout compiles only claimgate's own crates.
#
#   scripts/dependencies.sh take    copies them into target, unless it has a build already
#   scripts/dependencies.sh keep    keeps those of target, in place of an older set
#
# A set belongs to one Cargo.lock, the profiles, one compiler, this script and the path of the crates' sources: with
# another path, Cargo compiles all of them again. Cargo still decides for each crate whether it is current.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

has rustc || { echo "dependencies: Rust is not installed yet"; exit 0; }
inputs=(Cargo.lock Cargo.toml rust-toolchain.toml scripts/dependencies.sh)
sources=${CARGO_HOME:-$HOME/.cargo}
set_name=dependencies-$({ cat "${inputs[@]}" && rustc -vV && echo "$sources"; } | sha256sum | cut -c1-16)
kept=$tools_dir/$set_name
# The builds of the tests and of clippy, also for wasm32, and of the Worker for its own machine and for wasm32.
builds=(debug wasm32-unknown-unknown/debug edge wasm32-unknown-unknown/edge)
free_kb_min=10000000

take() {
    if [ ! -d "$kept" ] || [ -d target/debug ]; then
        echo "dependencies: compiled here"
        return
    fi
    mkdir -p target
    cp -a --reflink=auto "$kept/." target/
    echo "dependencies: already compiled on this machine, copied from $kept"
}

keep() {
    local build new=$tools_dir/dependencies.$$
    if [ -d "$kept" ]; then return; fi
    mkdir -p "$tools_dir"
    if [ "$(df --output=avail "$tools_dir" | tail -1)" -lt $free_kb_min ]; then
        echo "dependencies: not kept, too little space in $tools_dir"
        return
    fi
    # shellcheck disable=SC2064 # expand now
    trap "rm -rf $new" EXIT
    for build in "${builds[@]}"; do
        [ -d "target/$build" ] || continue # Debian's Rust has no clippy for wasm32
        mkdir -p "$new/$build"
        # In deps, only programs have a name without a dot: the tests.
        (cd "target/$build" && find build .fingerprint -type f && find deps -type f -name '*.*') |
            tar -C "target/$build" --files-from=- -c | tar -C "$new/$build" -x
    done
    export CARGO_TARGET_DIR=$new
    cargo clean --quiet --offline --workspace
    cargo clean --quiet --offline --workspace --target wasm32-unknown-unknown
    cargo clean --quiet --offline --workspace --profile edge
    cargo clean --quiet --offline --workspace --profile edge --target wasm32-unknown-unknown
    rm -rf "$tools_dir"/dependencies-*
    mv "$new" "$kept"
    echo "dependencies: kept in $kept ($(du -sh "$kept" | cut -f1))"
}

case ${1:-} in
take | keep) "$1" ;;
*)
    sed -n '2,/^set/{/^#/p}' "$0" >&2
    exit 2
    ;;
esac
