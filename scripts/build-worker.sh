#!/usr/bin/env bash
# Builds a Worker (of edge, or of the crate directory given as argument) into the crate's build/, with the brand of the
# claim page, and prints the upload size. wrangler also runs this script as its build command.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

crate=${1:-edge}
out=$crate/build
stamp=$out/.built
size_kb_max=280

# cargo skips unchanged crates, but wasm-bindgen, wasm-opt and esbuild would run every time.
is_fresh() {
    [ -f "$stamp" ] && [ -f "$out/index.js" ] && [ -f "$out/index_bg.wasm" ] &&
        [ -z "$(find Cargo.toml Cargo.lock package-lock.json scripts/build-worker.sh scripts/tools.sh \
            "$crate/Cargo.toml" "$crate/src" shared/Cargo.toml shared/src -newer "$stamp" -print -quit)" ]
}

# Without std for wasm32: Debian's cargo builds std along with the Worker, and rustup's linker links it.
use_debian_rust() {
    local shims=$PWD/target/debian-rust rustup_sysroot host
    rustup_sysroot=$(rustc --print sysroot)
    host=$(rustc -vV | sed -n 's/^host: //p')
    mkdir -p "$shims"
    # worker-build only checks that the target's directory exists, although std is built later. Any existing directory
    # satisfies it.
    cat >"$shims/rustc" <<'SH'
#!/bin/sh
case "$*" in *target-libdir*) exec /usr/bin/rustc --print sysroot ;; esac
exec /usr/bin/rustc "$@"
SH
    chmod +x "$shims/rustc"
    ln -sf /usr/bin/cargo "$shims/cargo"
    export PATH="$shims:$PATH" RUSTC=/usr/bin/rustc CARGO=/usr/bin/cargo
    export RUSTC_BOOTSTRAP=1 CARGO_UNSTABLE_BUILD_STD=std,panic_abort
    export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER="$rustup_sysroot/lib/rustlib/$host/bin/rust-lld"
}

build() {
    if ! has_wasm_target; then
        has_debian_rust || { echo "no Rust for wasm32: run scripts/setup.sh" >&2; exit 1; }
        use_debian_rust
    fi
    mkdir -p "$out"
    local started=$out/.started # edits during the build must count as newer
    touch "$started"
    (cd "$crate" &&
        WASM_BINDGEN_BIN=$(wasm_bindgen) WASM_OPT_BIN=wasm-opt ESBUILD_BIN=esbuild \
            "$(worker_build)" --profile edge)
    # worker-build keeps function names, a seventh of the upload. A panic reports its line even without them.
    wasm-opt --strip-debug "$out/index_bg.wasm" -o "$out/index_bg.wasm"
    mv "$started" "$stamp"
}

is_fresh || build
if [ "$crate" = edge ]; then node scripts/build-brand.mjs; fi

size_kb=$((($(gzip -9c "$out/index_bg.wasm" | wc -c) + $(gzip -9c "$out/index.js" | wc -c) + 999) / 1000))
echo "$crate: $size_kb KB gzipped (limit $size_kb_max)"
if [ $size_kb -ge $size_kb_max ]; then
    echo "$crate: too large; check the dependencies in $crate/Cargo.toml" >&2
    exit 1
fi
