#!/usr/bin/env bash
# Runs tests on the other topologies and servers, and the edge's tests in wrangler (a separate row, with core's own
# Redis), for `make test` and `make soak`. Ends with a table of the results.
#
#   scripts/topologies.sh listed    the tests listed in tests/other-topologies.txt
#   scripts/topologies.sh all       all tests on all topologies; TOPOLOGIES="sentinel cluster" SERVERS="valkey" BINARIES="e2e" for fewer
#   scripts/topologies.sh with TOPOLOGY SERVER COMMAND…   runs one command
#
# OPERATIONS_EACH is the number of operations of each model run. Logs are in target/topologies.
set -euo pipefail
cd "$(dirname "$0")/.."

# with TOPOLOGY SERVER COMMAND…: runs a command on a topology and server.
with() {
    local topology=$1
    if [ "$topology" = wrangler ]; then export CLAIMGATE_TEST_EDGE=wrangler topology=own; fi
    export CLAIMGATE_TEST_TOPOLOGY=$topology CLAIMGATE_TEST_SERVER=$2 OPERATIONS=${OPERATIONS_EACH:-1000}
    shift 2
    "$@"
}
if [ "${1-}" = with ]; then
    shift
    with "$@"
    exit
fi

logs=target/topologies
mkdir -p "$logs"
: >"$logs/table"
: >"$logs/failed"

# Finds the binaries of `cargo test --workspace`: with the same features, so that nothing is built twice.
declare -A programs
while read -r binary program; do programs[$binary]=$PWD/$program; done < <(
    cargo test --workspace --no-run 2>&1 | tee >(cat >&2) |
        sed -n 's/^ *Executable \([a-z0-9]*\)\/main\.rs (\(.*\))$/\1 \2/p'
)

# Prints a number from libtest's last line, or nothing if the binary ended without that line: count FIELD LOG
count() { sed -n "s/^test result: .* \([0-9]*\) $1.*/\1/p" "$2" | tail -1; }

run() { # TOPOLOGY SERVER BINARY [TEST ...]
    local topology=$1 server=$2 binary=$3 log=$logs/$1-$2-$3.log passed unsupported failed started=$SECONDS
    shift 3
    (
        cd tests
        # The same tests may run on a different topology at the same time.
        export CLAIMGATE_TEST_LOGS=${log%.log}
        with "$topology" "$server" ../scripts/within.sh "${programs[$binary]}" --format=pretty ${1:+--exact} "$@"
    ) >"$log" 2>&1 || true
    passed=$(count passed "$log") failed=$(count failed "$log")
    unsupported=$(grep -c '^not on this topology: ' "$log" || true)
    printf '%-9s %-7s %-7s %5s %8s %12s %6ss\n' "$topology" "$server" "$binary" \
        "$((${passed:-0} + ${failed:-0} - unsupported))" "$((${passed:-0} - unsupported))" "$unsupported" "$((SECONDS - started))" >>"$logs/table"
    grep '^not on this topology: ' "$log" | sort || true
    if [ "${failed:-1}" != 0 ]; then
        echo "$log" >>"$logs/failed"
    elif [ $# -gt 0 ] && [ "$passed" != $# ]; then
        echo "$log: $passed of the $# named tests ran" >>"$logs/failed"
    fi
}

# Runs two rows concurrently, because most tests wait for I/O. The row of wrangler is long and comes first: if it began
# last, it would run alone for most of its time.
listed() {
    local topology server binary
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-4}
    while read -r topology server binary; do
        mapfile -t tests < <(awk -v which="$topology $server $binary" '$1 " " $2 " " $3 == which { print $4 }' tests/other-topologies.txt)
        while [ "$(jobs -pr | wc -l)" -ge 2 ]; do wait -n || true; done
        run "$topology" "$server" "$binary" "${tests[@]}" &
    done < <(sed '/^#/d; /^$/d' tests/other-topologies.txt | awk '{ print $1, $2, $3 }' | sort -ru)
    wait
}

everything() {
    local topology server binary
    export OPERATIONS_EACH=${OPERATIONS_EACH:-20000} TOTAL_S=7200
    run wrangler redis e2e
    for topology in ${TOPOLOGIES:-own primary sentinel cluster}; do
        for server in ${SERVERS:-redis valkey}; do
            for binary in ${BINARIES:-e2e faults model}; do run "$topology" "$server" "$binary"; done
        done
    done
}

case ${1-} in
listed) listed ;;
all) everything ;;
*) sed -n '2,/^set/{/^#/p}' "$0" >&2 && exit 2 ;;
esac
printf '%-9s %-7s %-7s %5s %8s %12s %7s\n' topology server binary run passed unsupported took
sort "$logs/table"
# Prints failed tests and their messages last: often only the end of the output is kept.
while read -r log; do
    printf 'failed: %s\n' "$log"
    if [ -f "$log" ]; then grep -A 3 "^thread '.*panicked at" "$log" || tail -20 "$log"; fi
done <"$logs/failed" >&2
[ ! -s "$logs/failed" ]
