# shellcheck shell=bash
# Paths of the build tools; the other scripts source this from the root of the checkout.

# A registry that does not answer is asked again, as by pip and npm.
export CARGO_NET_RETRY=${CARGO_NET_RETRY:-5}

# The checkout's Node 22, wrangler, esbuild and wasm-opt take precedence over the machine's.
export PATH="$PWD/node_modules/.bin:$PATH"

# A service or CI job may lack HOME; take it from the account.
export HOME=${HOME:-~}

# Cargo tools take minutes to build, so they are stored per user and shared by all clones.
tools_dir=${CLAIMGATE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/claimgate}

# worker-build and wasm-bindgen reject other versions of their crates, so their versions follow Cargo.toml's pins.
pinned() { sed -n "s/^$1 = .*\"=\([0-9.]*\)\".*/\1/p" Cargo.toml; }
worker_build_version=$(pinned worker)
wasm_bindgen_version=$(pinned wasm-bindgen)
cargo_deny_version=0.20.2
# The version of Rust, 1.N, whose lints are errors.
clippy_minor=95
cargo_cyclonedx_version=0.5.9
mdbook_version=0.5.4
kubernetes_validate_version=1.37.0

# Valkey, for tests that run on Redis and Valkey; test-support/src/redis_server.rs expects it here.
valkey_dir=$tools_dir/valkey

has() { command -v "$1" >/dev/null; }

# Python tools, pinned in scripts/openapi-*.txt. test-support/src/schemathesis.rs expects openapi_tools_dir at this
# path.
openapi_tools_dir=$tools_dir/openapi
openapi_generator_dir=$tools_dir/openapi-generator
openapi_spec_validator() { PYTHONPATH=$openapi_tools_dir python3 "$openapi_tools_dir/bin/openapi-spec-validator" "$@"; }

# Prints the path of program $1 (crate $2, version $3): in PATH if that has this version, otherwise the tools directory.
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
# A function named mdbook would call itself in `tool`.
mdbook_program() { tool mdbook mdbook "$mdbook_version"; }

# Kubernetes' schemas, to validate the manifests.
kubernetes_validate_dir=$tools_dir/kubernetes-validate-$kubernetes_validate_version
kubernetes_validate() { PYTHONPATH=$kubernetes_validate_dir python3 "$kubernetes_validate_dir/bin/kubernetes-validate" "$@"; }

has_wasm_target() { # checks for std itself: rustup may leave an empty directory
    compgen -G "$(rustc --print target-libdir --target wasm32-unknown-unknown 2>/dev/null)/libstd-*.rlib" >/dev/null
}

# Debian's Rust includes the source of std, from which cargo can build it for wasm32.
has_debian_rust() { [ -x /usr/bin/rustc ] && [ -x /usr/bin/cargo ] && [ -d /usr/lib/rustlib/src/rust ]; }
