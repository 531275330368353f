#!/usr/bin/env bash
# `make soak`: the long tests, one part after the other. Each part ends with one line: passed, failed or SKIPPED, its
# seed and minutes.
#
#   scripts/soak.sh              all parts (hours)
#   scripts/soak.sh PART…        some parts
#   scripts/soak.sh --list       the parts, and the files to which each belongs
#   scripts/soak.sh --for BASE   the parts that belong to what has changed since the commit BASE
#   scripts/soak.sh --age        when each part last passed
#
# SEED repeats a run; ROUNDS, OPERATIONS and others (listed in tests/README.md) change a part's length. A part that
# passed is recorded in tests/soak-record.txt, unless its length was changed; the record is committed next.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

logs=target/soak-logs
record=tests/soak-record.txt

# The parts, the longest last: a name, and a pattern of the paths that belong to it.
parts() {
    sed 's/^ *//' <<'TABLE'
    left-out        ^(core/src/|edge/src/|lua/|tests/(soak.txt|faults|e2e))
    book            ^(docs/|scripts/(docs.sh|book.mjs)|.*[.]md$)
    document        ^(openapi.json|core/src/http/|edge/src/|shared/src/|tests/schemathesis)
    clients         ^(openapi.json|tests/clients.sh)
    conformance     ^(client/|rust-client/|examples/|shared/src/)
    refusals        ^(core/src/engine/demand/|core/src/jobs/refusals|edge/src/refusals)
    promises        ^(core/src/|edge/src/|lua/|tests/(faults|e2e))
    delayed         ^(core/src/jobs/|core/src/store/redis/|lua/)
    storm           ^(core/src/engine/|core/src/jobs/|core/src/store/|lua/)
    slots           ^(core/src/store/redis/|lua/)
    previous        ^(core/(migrations|src/(store|http))/|lua/|shared/src/|scripts/previous.sh|tests/previous)
    packages        ^(packaging/|scripts/(package|debian).sh)
    images          ^(Dockerfile|\.dockerignore|compose.yaml|packaging/(claimgate-edge|image/)|scripts/(build-worker|debian|demo-campaign|setup|tools).sh|tests/images.sh|package-lock.json)
    gate            ^(scripts/(test|within|dependencies|check-soak|tools).sh|tests/(gate.sh|soak.txt|model/main.rs|mutants/defects.sh))
    failovers       ^(core/src/store/redis/|core/src/engine/lifecycle/|lua/)
    promotion       ^(core/src/engine/lifecycle/|core/src/store/|lua/)
    at-rest         ^(core/src/jobs/|core/src/engine/campaign/|core/src/store/redis/survey)
    model           ^(core/src/engine/|core/src/domain/|core/src/store/|lua/)
    interleavings   ^(core/src/engine/|core/src/jobs/|core/src/store/|lua/)
    topologies      ^(core/src/store/redis/|test-support/)
    mutants         ^(tests/mutants/|core/src/engine/|core/src/store/|lua/|edge/src/)
TABLE
}

names() { parts | awk '{ print $1 }'; }

# tests BINARY FILTER…: with the features of the whole workspace, or all would be compiled again.
tests() {
    local binary=$1
    shift
    cargo test --workspace --test "$binary" -- --nocapture "$@"
}

# The modules of BINARY with tests of promised times.
promising() { grep -rl 'promised(' "tests/$1" --include=*.rs | sed "s|tests/$1/||; s|\.rs$||; s|/|::|g; s|$|::|"; }

promises() {
    local binary failed=0
    export PROMISES=1 RUST_TEST_THREADS=1
    for binary in faults e2e; do
        # shellcheck disable=SC2046 # a list of words
        tests $binary $(promising $binary) || failed=1
    done
    return $failed
}

on_both_servers() {
    local server failed=0
    for server in redis valkey; do CLAIMGATE_TEST_SERVER=$server "$@" || failed=1; done
    return $failed
}

run() {
    case $1 in
    left-out) PROMISES=1 scripts/test.sh soak ;;
    book) make docs ;;
    document) EXAMPLES=${EXAMPLES:-100} tests e2e conforms_to_the_document ;;
    clients) tests/clients.sh ;;
    conformance) node client/conformance/run.js ;;
    refusals) PROMISES=1 REFUSALS=${REFUSALS:-100000} tests e2e storm_of_refusals ;;
    promises) (promises) ;;
    delayed) CAMPAIGNS=${CAMPAIGNS:-500} tests faults delayed ;;
    storm) ROUNDS=${ROUNDS:-20} CODES=${CODES:-1000000} CALLS=${CALLS:-20000} tests faults storm ;;
    slots) MOVES=${MOVES:-40} on_both_servers tests faults when_a_slot_moves ;;
    previous) tests/previous.sh ;;
    packages) make package && tests/packages.sh ;;
    images) tests/images.sh ;;
    gate) tests/gate.sh ;;
    failovers) ROUNDS=${ROUNDS:-50} on_both_servers tests faults failovers ;;
    promotion) CLAIMS=${CLAIMS:-1000000} CAMPAIGNS=${CAMPAIGNS:-10000} on_both_servers tests faults promotion ;;
    at-rest) PROMISES=1 LIVE=${LIVE:-10000} ENDED=${ENDED:-1000000} REST_S=${REST_S:-60} tests faults idle:: ;;
    model) OPERATIONS=${OPERATIONS:-1000000} tests model ;;
    interleavings) INTERLEAVINGS_ALL=1 tests interleavings ;;
    topologies) scripts/topologies.sh all ;;
    mutants) tests/mutants/run.sh ;;
    *) return 2 ;;
    esac
}

# The date and commit of a part's last passed run, or nothing.
last_passed() { awk -v part="$1" '$1 == part { print $2, $3 }' $record; }

age() {
    local name date commit
    for name in $(names); do
        read -r date commit <<<"$(last_passed "$name")" || true
        if [ -n "$date" ]; then
            printf 'soak %-14s passed %3d days ago, at %s\n' "$name" $((($(date +%s) - $(date -d "$date" +%s)) / 86400)) "$commit"
        else
            printf 'soak %-14s not recorded\n' "$name"
        fi
    done
}

for_base() {
    local name pattern changed
    changed=$(git diff --no-renames --name-only --merge-base "$1" -- && git ls-files --others --exclude-standard) || exit 2
    while read -r name pattern; do
        if grep -qE "$pattern" <<<"$changed"; then echo "$name"; fi
    done < <(parts)
}

# The commit that a part tests, or nothing if its length, its selection of tests or a file was changed.
tested_commit() {
    local length
    for length in EXAMPLES REFUSALS CAMPAIGNS ROUNDS CODES CALLS MOVES PREVIOUS CLAIMS LIVE ENDED REST_S OPERATIONS \
        OPERATIONS_EACH CASE TOPOLOGIES SERVERS BINARIES INTERLEAVINGS_SHARE PAIRS WITH DATABASE STATE; do
        if [ -n "${!length:-}" ]; then return; fi
    done
    if git diff --quiet HEAD -- . ":!$record"; then git rev-parse --short=12 HEAD; fi
}

write_record() {
    if [ -z "$2" ]; then return; fi
    { awk -v part="$1" '/^#/ || $1 != part' $record; echo "$1 $(date -u +%F) $2"; } >$record.new
    mv $record.new $record
}

case ${1:-} in
--list) parts && exit ;;
--age) age && exit ;;
--for) for_base "${2:?--for BASE}" && exit ;;
esac

mapfile -t chosen < <(if [ $# -gt 0 ]; then printf '%s\n' "$@"; else names; fi)
for name in "${chosen[@]}"; do
    names | grep -xF -- "$name" >/dev/null || { sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2; }
done
export CLAIMGATE_BIN=$PWD/target/release/claimgate
cargo build --release --bin claimgate
export SEED=${SEED:-$(date +%s)}
mkdir -p $logs
: >$logs/results
failed=0
for name in "${chosen[@]}"; do
    started=$SECONDS verdict=passed status=0 commit=$(tested_commit)
    run "$name" > >(tee "$logs/$name.log") 2>&1 </dev/null || status=$?
    case $status in
    0) ;;
    77) verdict=SKIPPED ;; # as in Automake: nothing was tested
    *) verdict=failed failed=1 ;;
    esac
    printf 'soak %-14s %s, SEED=%s, %d min\n' "$name" $verdict "$SEED" $(((SECONDS - started + 59) / 60)) | tee -a $logs/results
    # Nothing is recorded if the commit was replaced meanwhile.
    if [ $verdict = passed ] && [ "$commit" = "$(tested_commit)" ]; then write_record "$name" "$commit"; fi
done
printf '\n'
cat $logs/results
exit $failed
