#!/usr/bin/env bash
# The tests on the other topologies and servers, and the edge's in wrangler's runtime (a row of its own, with core's own
# Redis), for `make test` and `make soak`, with a table of what ran at the end.
#
#   scripts/topologies.sh tenth     what tests/tenth.txt names
#   scripts/topologies.sh all       everything on everything; TOPOLOGIES="sentinel cluster" SERVERS="valkey" BINARIES="e2e" for less
#
# OPERATIONS_EACH is how long each model plays. Logs are in target/topologies.
set -euo pipefail
cd "$(dirname "$0")/.."
logs=target/topologies
mkdir -p "$logs"
table=() failed=()

# The binaries as `cargo test --workspace` builds them: with the same features, so that nothing is built twice.
declare -A programs
while read -r binary program; do programs[$binary]=$PWD/$program; done < <(
    cargo test --workspace --no-run 2>&1 | tee >(cat >&2) |
        sed -n 's/^ *Executable \([a-z0-9]*\)\/main\.rs (\(.*\))$/\1 \2/p'
)

# count FIELD LOG: a number of libtest's last line; none when the binary did not come to it.
count() { sed -n "s/^test result: .* \([0-9]*\) $1.*/\1/p" "$2" | tail -1; }

run() { # TOPOLOGY SERVER BINARY [TEST ...]
    local topology=$1 server=$2 binary=$3 log=$logs/$1-$2-$3.log passed away red started=$SECONDS
    shift 3
    (
        cd tests
        if [ "$topology" = wrangler ]; then export CLAIMGATE_TEST_EDGE=wrangler topology=own; fi
        export CLAIMGATE_TEST_TOPOLOGY=$topology CLAIMGATE_TEST_SERVER=$server OPERATIONS=${OPERATIONS_EACH:-20000}
        "${programs[$binary]}" --quiet ${1:+--exact} "$@"
    ) >"$log" 2>&1 || true
    passed=$(count passed "$log") red=$(count failed "$log")
    away=$(grep -c '^not on this topology: ' "$log" || true)
    table+=("$(printf '%-9s %-7s %-7s %5s %8s %12s %6ss' "$topology" "$server" "$binary" \
        "$((${passed:-0} + ${red:-0} - away))" "$((${passed:-0} - away))" "$away" "$((SECONDS - started))")")
    grep '^not on this topology: ' "$log" | sort || true
    if [ "${red:-1}" != 0 ]; then
        failed+=("$log")
    elif [ $# -gt 0 ] && [ "$passed" != $# ]; then
        failed+=("$log: $passed of the $# tests that are named were found")
    fi
}

tenth() {
    local topology server binary
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-4} OPERATIONS_EACH=${OPERATIONS_EACH:-1000}
    while read -r topology server binary; do
        mapfile -t tests < <(awk -v which="$topology $server $binary" '$1 " " $2 " " $3 == which { print $4 }' tests/tenth.txt)
        run "$topology" "$server" "$binary" "${tests[@]}"
    done < <(sed '/^#/d; /^$/d' tests/tenth.txt | awk '{ print $1, $2, $3 }' | sort -u)
}

everything() {
    local topology server binary
    run wrangler redis e2e
    for topology in ${TOPOLOGIES:-own primary sentinel cluster}; do
        for server in ${SERVERS:-redis valkey}; do
            for binary in ${BINARIES:-e2e faults model}; do run "$topology" "$server" "$binary"; done
        done
    done
}

case ${1-} in
tenth) tenth ;;
all) everything ;;
*) sed -n '2,/^set/{/^#/p}' "$0" >&2 && exit 2 ;;
esac
printf '%-9s %-7s %-7s %5s %8s %12s %7s\n' topology server binary run passed 'not on this' took
printf '%s\n' "${table[@]}"
# Which test, and what it said, at the very end: often the end of the output is all that is kept of it.
for log in "${failed[@]}"; do
    printf 'failed: %s\n' "$log"
    if [ -f "$log" ]; then grep -A 3 "^thread '.*panicked at" "$log" || tail -20 "$log"; fi
done >&2
[ ${#failed[@]} -eq 0 ]
