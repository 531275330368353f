# shellcheck shell=bash
# Where the build's tools are; the other scripts source this from the root of the checkout.

# Node 22, wrangler, esbuild and wasm-opt belong to the checkout and go before the machine's own.
export PATH="$PWD/node_modules/.bin:$PATH"

# A service or a job of CI may have none; the account has.
export HOME=${HOME:-~}

# Cargo's tools take minutes to build, so they are kept per user and a second clone finds them.
tools_dir=${CLAIMGATE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/claimgate}

# worker-build and wasm-bindgen refuse a crate of another version: Cargo.toml's pin is theirs too.
pinned() { sed -n "s/^$1 = .*\"=\([0-9.]*\)\".*/\1/p" Cargo.toml; }
worker_build_version=$(pinned worker)
wasm_bindgen_version=$(pinned wasm-bindgen)
cargo_deny_version=0.20.2
cargo_cyclonedx_version=0.5.9
kubernetes_validate_version=1.37.0

# A Valkey beside Debian's Redis, for the tests that run on both; test-support/src/redis_server.rs looks for it here.
valkey_dir=$tools_dir/valkey

has() { command -v "$1" >/dev/null; }

# The program $1 of crate $2 in version $3: from PATH when it is that one, else from the user's tools directory.
tool() {
    if has "$1" && [[ " $("$1" --version 2>/dev/null) " == *" $3 "* ]]; then
        command -v "$1"
    else
        echo "$tools_dir/$2-$3/bin/$1"
    fi
}
worker_build() { tool worker-build worker-build "$worker_build_version"; }
wasm_bindgen() { tool wasm-bindgen wasm-bindgen-cli "$wasm_bindgen_version"; }
cargo_deny() { tool cargo-deny cargo-deny "$cargo_deny_version"; }
cargo_cyclonedx() { tool cargo-cyclonedx cargo-cyclonedx "$cargo_cyclonedx_version"; }

# Kubernetes' schemas, for the manifests.
kubernetes_validate_dir=$tools_dir/kubernetes-validate-$kubernetes_validate_version
kubernetes_validate() { PYTHONPATH=$kubernetes_validate_dir python3 "$kubernetes_validate_dir/bin/kubernetes-validate" "$@"; }

has_wasm_target() { # looks for std itself: rustup may leave the directory behind
    compgen -G "$(rustc --print target-libdir --target wasm32-unknown-unknown 2>/dev/null)/libstd-*.rlib" >/dev/null
}

# Debian's Rust carries the source of std, from which cargo can build it for wasm32.
has_debian_rust() { [ -x /usr/bin/rustc ] && [ -x /usr/bin/cargo ] && [ -d /usr/lib/rustlib/src/rust ]; }
