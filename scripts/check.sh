#!/usr/bin/env bash
# `make check`: all that can be said about the tree without running it.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

say() { printf '\n== %s\n' "$*"; }

say format
cargo fmt --all --check
# Modules that a macro declares are out of its sight.
rustfmt --check --edition 2024 lab/src/strategies/*.rs

say shell, JavaScript and Lua
shell=(scripts/*.sh tests/*.sh .ci/run packaging/claimgate-edge packaging/compose/*.sh packaging/debian/*.{prerm,postinst,postrm} packaging/image/*)
for script in "${shell[@]}"; do bash -n "$script"; done
if has shellcheck; then shellcheck -x "${shell[@]}"; fi
# As modules whatever they are loaded as: by name alone node would not look inside a module.
for script in client/*.js client/test/*.js core/dashboard/*.js edge/assets/*.js edge/workerd/*.js scripts/*.mjs; do node --input-type=module --check <"$script"; done
biome lint --error-on-warnings
luacheck --quiet lua lab/src/strategies bench/src
tests/mutants/run.sh --check

say alarms
if has promtool; then
    promtool check rules ops/prometheus/claimgate.rules.yml
    promtool test rules ops/prometheus/claimgate.test.yml
else
    echo "promtool is not installed: the alarms' rules were NOT checked."
fi

say packages
if has docker-compose; then
    CLAIMGATE_TAG=0 docker-compose --file packaging/compose/compose.yaml config --quiet
else
    echo "docker-compose is not installed: compose.yaml was NOT checked."
fi
if [ -d "$kubernetes_validate_dir" ]; then
    kubernetes_validate --strict packaging/kubernetes/*.yaml
else
    echo "kubernetes-validate is not installed: the manifests were NOT checked."
fi

say documents
scripts/check-docs.mjs
scripts/check-words.sh

say features
scripts/check-features.sh

say clippy
cargo clippy --workspace --all-targets -- -D warnings
# Debian's Rust, the other way to build the Worker, brings no clippy for rustup's.
if has_wasm_target; then cargo clippy -p claimgate-edge --target wasm32-unknown-unknown -- -D warnings; fi

say licences, bans, sources
deny=$(cargo_deny)
"$deny" check licenses bans sources

say advisories
# Fetched apart, so that an unreachable database is told from a vulnerable crate.
if timeout 60 "$deny" fetch db >/dev/null 2>&1; then
    "$deny" check --disable-fetch advisories
else
    echo "The advisory database cannot be reached: skipped."
fi
