#!/usr/bin/env bash
# Whether core and the tests are built from the same features by each command that builds them: where one differs, everything
# above it is compiled again. Prints the crates that differ.
set -euo pipefail
cd "$(dirname "$0")/.."

# Crates with their features, those of this workspace apart: not every command builds every member.
features() {
    cargo tree --locked --target "$(rustc -vV | sed -n 's/^host: //p')" --prefix none --format '{p} [{f}]' "$@" |
        sed 's/ (\*)$//' | grep -v ' (/' | sort -u
}

all=$(mktemp)
trap 'rm -f "$all"' EXIT
features --workspace --edges normal,build,dev >"$all"
status=0
check() { # WHAT cargo tree's options
    local what=$1 differ
    shift
    differ=$(features "$@" | comm -23 - "$all")
    [ -z "$differ" ] && return
    printf '%s has other features than cargo test --workspace, see Cargo.toml:\n%s\n' "$what" "$differ"
    status=1
}
check "cargo build --bin claimgate" --edges normal,build
check "cargo test -p claimgate-tests" -p claimgate-tests --edges normal,build,dev
exit $status
