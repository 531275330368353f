#!/usr/bin/env bash
# `make test`, once the machine is set up: builds, then runs the tests of the gate, one part after the other, the
# longest first. In parallel, the parts wait for each other and for the disk: the run takes twice as long and sometimes
# fails.
#
#   scripts/test.sh            all parts
#   scripts/test.sh PART…      faults, e2e, interleavings, topologies, model or units, as the gate runs them
#   scripts/test.sh soak       the tests that the gate leaves out (tests/soak.txt)
#
# RUST_TEST_THREADS is how many tests run at a time. Without SLOW=1, half as many more tests of faults do. SEED is the
# same for the same commit, so that a commit has the same tests each time. SLOW=1 runs them as on a slow machine
# (scripts/slow.sh). A part's output is kept in target/test-logs.
#
# Each part, each test and each build has a deadline (scripts/within.sh). A failed test runs ten times by
# itself afterwards, for the record: the run still counts as failed.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

parts=(faults e2e interleavings topologies model units)
if [ $# -gt 0 ]; then parts=("$@"); fi
logs=target/test-logs
repeated=target/repeated-calls.log
# More calls that are retried after a 503, on a machine that is not slow: core answers 503 too often. Each stall of the
# machine permits some more, up to 50 stalls. Retries of a test that has caused a fault do not count. Another test counts with at most
# 10: on a busy machine, each call of a storm may be retried.
repeats_max=100 repeats_of_stall=20 stalls_max=50 repeats_of_test_max=10
slow=()
if [ "${SLOW:-}" = 1 ]; then slow=(scripts/slow.sh); fi

# Most tests wait for I/O: two for each processor. Many of faults also wait for a timeout, or for a test that needs the
# machine for itself: three, unless the servers of all tests share a slow disk.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
threads_of_faults=$RUST_TEST_THREADS
if [ "${SLOW:-}" != 1 ]; then threads_of_faults=$((RUST_TEST_THREADS * 3 / 2)); fi
tree=$(git rev-parse --verify --quiet 'HEAD^{tree}' || echo 1)
export SEED=${SEED:-$((16#${tree:0:8}))}
# The gate explores one in four pairs of protocols, drawn by SEED, and all in which SQL forgets; `make soak` explores
# all.
export INTERLEAVINGS_SHARE=${INTERLEAVINGS_SHARE:-4}

rm -rf $logs
mkdir -p $logs
: >$repeated

# Uses memory if there is enough: tests create and remove hundreds of databases and servers. A simulated slow machine
# uses the disk. The name is short because socket paths are limited to 107 bytes.
in_memory=/dev/shm
if [ "${SLOW:-}" != 1 ] && [ "$(df --output=avail $in_memory 2>/dev/null | tail -1)" -ge 4000000 ] 2>/dev/null; then
    TMPDIR=$(mktemp -d $in_memory/cgXXXX)
    export TMPDIR
    chmod 755 "$TMPDIR"
    trap 'rm -rf "$TMPDIR"' EXIT
fi

# part NAME COMMAND…: runs a part of the tests and keeps its output, time and result.
part() {
    local name=$1 started=$SECONDS status=0
    shift
    printf '\n== %s\n' "$name"
    # In a pipeline the part would last as long as whatever it leaves behind.
    "$@" > >(tee "$logs/$name.log") 2>&1 </dev/null || status=$?
    printf '%-14s %5d s  %s\n' "$name" $((SECONDS - started)) "$([ $status = 0 ] && echo passed || echo failed)" >>$logs/parts
    return $status
}

# cargo_test BINARY [OPTION…]: with the features of the whole workspace, or all would be compiled again.
cargo_test() {
    local binary=$1
    shift
    scripts/within.sh "${slow[@]}" cargo test --quiet --workspace --test "$binary" -- --format=pretty "$@"
}

# The binaries of the part `units`: those that build-tests compiles, without those of claimgate-tests. With
# `--exclude claimgate-tests`, some crates would have fewer features: they, core and all that depends on it would be
# compiled again. `--bins` would also compile tests of lab's program, which has none (`test = false`).
unit_binaries=(--lib --bin claimgate --bin bench --test strategies)
# Packages without examples (`doctest = false`, which `--doc` ignores). They add no features.
without_examples=(--exclude claimgate-test-support --exclude claimgate-lab)

# Prints the binaries of tests that build-tests has compiled for other packages and `unit_binaries` lacks.
forgotten_binaries() {
    sed -nE 's/^ *Executable (unittests src\/main|tests\/.*)\.rs \(.*\/(.*)-[0-9a-f]+\)$/\2/p' $logs/build-tests.log |
        grep -vxF "${unit_binaries[@]/#/-e}"
}

# The tests beside the code, and the examples in the documentation of the crates.
unit_tests() {
    local failed=0
    if forgotten_binaries; then
        echo "failed: add the binaries above to unit_binaries in scripts/test.sh"
        failed=1
    fi
    # shellcheck disable=SC2046 # a list of words
    scripts/within.sh "${slow[@]}" cargo test --quiet --workspace "${unit_binaries[@]}" --no-fail-fast -- \
        --format=pretty $(skips strategies) || failed=1
    scripts/within.sh "${slow[@]}" cargo test --quiet --workspace "${without_examples[@]}" --doc --no-fail-fast -- \
        --format=pretty || failed=1
    return $failed
}

# The tests of BINARY that the gate leaves out, one per line.
left_out() { awk -v binary="$1" '$1 == binary { print $2 }' tests/soak.txt; }

# The options for libtest that leave them out.
skips() { left_out "$1" | sed 's/^/--skip /'; }

run_part() {
    case $1 in
    faults)
        # shellcheck disable=SC2046 # a list of words
        RUST_TEST_THREADS=$threads_of_faults part faults cargo_test faults $(skips faults)
        ;;
    e2e)
        # shellcheck disable=SC2046 # a list of words
        part e2e cargo_test e2e $(skips e2e)
        ;;
    # With their output: which pairs were explored, which seeds.
    interleavings | model) part "$1" cargo_test "$1" --nocapture ;;
    # Runs two rows at a time.
    topologies) part topologies env RUST_TEST_THREADS="$(nproc)" "${slow[@]}" scripts/topologies.sh listed ;;
    units) part units unit_tests ;;
    soak) soak ;;
    *)
        sed -n '2,/^set/{/^#/p}' "$0" >&2
        exit 2
        ;;
    esac
}

soak() {
    local binary failed=0 tests
    for binary in faults e2e strategies; do
        mapfile -t tests < <(left_out $binary)
        part "soak-$binary" cargo_test "$binary" --exact "${tests[@]}" || failed=1
    done
    return $failed
}

# The failed tests of a log, and those that a deadline ended.
failed_tests() { awk '/^test [a-z0-9_:]+ .*(\.\.\. FAILED|has been running for [0-9]+ s)$/ { print $2 }' "$1"; }

# again LABEL COMMAND…: runs one test ten times, or fewer if the ten minutes for all failed tests have passed.
again() {
    local label=$1 times=0 failed=0
    shift
    while [ $times -lt 10 ] && [ $SECONDS -lt "$again_until" ]; do
        times=$((times + 1))
        TOTAL_S=180 scripts/within.sh "${slow[@]}" "$@" >>$logs/alone 2>&1 || failed=$((failed + 1))
    done
    printf '%s: failed in %d of %d runs by itself\n' "$label" $failed $times
}

# Runs each failed test by itself, with the same seed. If none of ten runs fails, load or a concurrent test caused the
# failure; if all ten fail, the change did.
run_again() {
    local again_until=$((SECONDS + 600)) log name test row
    printf '\n'
    for log in $logs/*.log; do
        name=$(basename "$log" .log)
        for test in $(failed_tests "$log"); do
            case $name in
            units) again "$name $test" cargo test --quiet --workspace "${unit_binaries[@]}" -- --exact "$test" ;;
            *) again "$name $test" cargo test --quiet --workspace --test "${name#soak-}" -- --exact "$test" ;;
            esac
        done
    done
    [ -f $logs/topologies.log ] || return 0
    for log in target/topologies/*.log; do
        name=$(basename "$log" .log)
        IFS=- read -ra row <<<"$name"
        for test in $(failed_tests "$log"); do
            again "$name $test" scripts/topologies.sh with "${row[@]:0:2}" \
                cargo test --quiet --workspace --test "${row[2]}" -- --exact "$test"
        done
    done
}

build() { part "$@" || { cat $logs/parts; exit 1; }; }
build build-worker scripts/within.sh scripts/build-worker.sh
build build-tests scripts/within.sh cargo test --workspace --no-run
build soak.txt scripts/check-soak.sh

echo "SEED=$SEED RUST_TEST_THREADS=$RUST_TEST_THREADS ($threads_of_faults in faults), servers' data in ${TMPDIR:-/tmp}"
failed=0
for name in "${parts[@]}"; do run_part "$name" || failed=1; done

printf '\n'
cat $logs/parts
printf '%-14s %5d s\n' "make test" $SECONDS
read -r expected other counted stalls < <(awk -v max=$repeats_of_test_max '
    $1 == "retry-after-fault" { expected++ }
    $1 == "retry" { other++; if (seen[$2]++ < max) counted++ }
    $1 == "stall" { stalls++ }
    END { print expected + 0, other + 0, counted + 0, stalls + 0 }' $repeated)
echo "$((expected + other)) calls retried after an answer that permits it, $expected of them after a fault of the test;" \
    "the machine stalled $stalls times"
# The last awk reads all: head would end sort by a signal.
awk '$1 ~ /^retry/' $repeated | sort | uniq -c | sort -rn | awk 'NR <= 20'
repeats_max=$((repeats_max + (stalls < stalls_max ? stalls : stalls_max) * repeats_of_stall))
if [ "$counted" -gt $repeats_max ] && [ "${SLOW:-}" != 1 ]; then
    echo "failed: core answered 503 too often: more than $repeats_max calls were retried without a fault, counting at" \
        "most $repeats_of_test_max of each test"
    failed=1
fi
cat $logs/*.log | awk '/^test result:/ { passed += $4; failed += $6; skipped += $8 }
    END { printf "%d passed, %d failed, %d skipped", passed, failed, skipped }'
echo "; $(grep -c '^[^#]' tests/soak.txt) more run only in make soak (tests/soak.txt)"
# Which test, and its message, at the very end: often the end of the output is all that is kept.
if [ $failed = 1 ]; then
    grep -hE -A 3 "^thread '.*panicked at" $logs/*.log | head -200 >&2 || true
    run_again
    awk '$1 == "full" { sub(/^full /, ""); print "failed tests may lack space: " $0 }' $repeated | sort -u >&2
fi
exit $failed
