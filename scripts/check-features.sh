#!/usr/bin/env bash
# Checks that every command builds core and the tests with the same features. A crate with different features, and every
# crate that depends on it, would be recompiled. Prints the crates that differ.
set -euo pipefail
cd "$(dirname "$0")/.."

# Prints crates with their features, except the workspace's own: not every command builds every member.
features() {
    cargo tree --locked --target "$(rustc -vV | sed -n 's/^host: //p')" --prefix none --format '{p} [{f}]' "$@" |
        sed 's/ (\*)$//' | grep -v ' (/' | sort -u
}

all=$(mktemp)
trap 'rm -f "$all"' EXIT
features --workspace --edges normal,build,dev >"$all"
status=0
check() { # COMMAND OPTION... (of cargo tree)
    local command=$1 differ
    shift
    differ=$(features "$@" | comm -23 - "$all")
    [ -z "$differ" ] && return
    printf '%s builds with features that differ from those of cargo test --workspace, see Cargo.toml:\n%s\n' "$command" "$differ"
    status=1
}
check "cargo build --bin claimgate" --edges normal,build
check "cargo test -p claimgate-tests" -p claimgate-tests --edges normal,build,dev
exit $status
