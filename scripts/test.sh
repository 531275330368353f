#!/usr/bin/env bash
# `make test`, once the machine is set up: builds, then runs every test, three binaries side by side, since most tests wait
# more than they work. Prints what each part took, and the calls that were repeated because docs/api.md permits their 503.
#
#   scripts/test.sh          SLOW=1: the tests as on a slow machine (scripts/slow.sh)
#
# A part's output stands in target/test-logs until the next run, and is printed when the part ends.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

logs=target/test-logs
repeated=target/repeated-calls.log
run=()
if [ "${SLOW:-}" = 1 ]; then run=(scripts/slow.sh); fi

# The limits of CI on two processors, in seconds; what does not fit goes to `make soak`.
test_s_max=1500

rm -rf $logs
mkdir -p $logs
: >$repeated

# part NAME COMMAND…: its output goes to a log, which is printed as one when the part is over.
part() {
    local name=$1 log=$logs/$1.log started=$SECONDS status=0
    shift
    echo "== $name: started"
    "$@" >"$log" 2>&1 </dev/null || status=$?
    printf '%-14s %5d s  %s\n' "$name" $((SECONDS - started)) "$([ $status = 0 ] && echo green || echo RED)" >>$logs/parts
    { printf '\n== %s\n' "$name" && cat "$log"; }
    return $status
}

# Cargo runs a test binary in its package's directory.
binary() { "${run[@]}" cargo test --quiet -p claimgate-tests --test "$@"; }
build() { part "$@" || { cat $logs/parts; exit 1; }; }

build build-worker scripts/build-worker.sh &
worker=$!
build build-tests cargo test --workspace --no-run
wait $worker

e2e_and_topologies() {
    local red=0
    part e2e binary e2e || red=1
    # After e2e: both start edges, whose directories have fixed names.
    part topologies "${run[@]}" scripts/topologies.sh tenth || red=1
    return $red
}
units_model_and_interleavings() {
    local red=0
    part units "${run[@]}" cargo test --quiet --workspace --exclude claimgate-tests --no-fail-fast || red=1
    part model binary model || red=1
    part interleavings binary interleavings || red=1
    return $red
}

# Side by side, but on a slow machine one after the other: there one has all of it.
red=0 running=()
start() {
    if [ "${SLOW:-}" = 1 ]; then
        "$@" || red=1
    else
        "$@" &
        running+=($!)
    fi
}
start e2e_and_topologies
start part faults binary faults
start units_model_and_interleavings
for process in "${running[@]}"; do wait "$process" || red=1; done

printf '\n'
cat $logs/parts
printf '%-14s %5d s of at most %d\n' "make test" $SECONDS $test_s_max
repeats=$(wc -l <$repeated)
echo "$repeats calls repeated after an answer that permits it$([ "$repeats" = 0 ] || echo ":")"
sort $repeated | uniq -c | sort -rn | head -20
grep -h '^test result:' $logs/*.log | awk '{ passed += $4; failed += $6; skipped += $8 }
    END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }'
# Which test, and its message, at the very end: often the end of the output is all that is kept.
if [ $red = 1 ]; then grep -hE -A 3 "^thread '.*panicked at" $logs/*.log | head -200 >&2 || true; fi
exit $red
