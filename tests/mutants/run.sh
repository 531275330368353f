#!/usr/bin/env bash
# Mutation tests, for `make soak`: a copy of the tree gets one defect at a time, and the model or the test named with
# the defect must fail. Before, each of these tests must pass in the copy without a defect: a test that fails there
# proves nothing. For the same reason, a defect whose text is not found ends the run, and one that does not build is an
# error.
#
#   tests/mutants/run.sh [NAME …]     runs all of defects.sh, or the named defects
#   tests/mutants/run.sh --check      only checks that every defect's text is still found
#
# SEED and OPERATIONS work as in tests/model/main.rs. MUTANTS_TARGET is the build directory (target/mutants/build).
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
tree=$root/target/mutants/tree
export CARGO_TARGET_DIR=${MUTANTS_TARGET:-$root/target/mutants/build}
unset CLAIMGATE_BIN # tests the copy's program
export SEED=${SEED:-1} OPERATIONS=${OPERATIONS:-40000} RUST_BACKTRACE=0
log=$root/target/mutants/logs
phase=
if [ "${1-}" = --check ]; then phase=check && shift; fi
wanted=("$@")
caught=() missed=() broken=()
declare -A passed

# Writes only changed files, so that only these are rebuilt.
copy_tree() {
    # heavy() locks a file in the copy's own target directory.
    mkdir -p "$tree/target" "$log"
    git ls-files --cached --others --exclude-standard -z |
        while IFS= read -r -d '' file; do
            if [ ! -f "$file" ] || cmp -s "$file" "$tree/$file"; then continue; fi
            mkdir -p "$tree/$(dirname "$file")"
            cp --preserve=mode "$file" "$tree/$file"
        done
}

# $1 is the test binary, or `units-CRATE` for a crate's unit tests; the rest are its arguments.
run_test() {
    local binary=(--test "$1") # claimgate-tests selects the same features
    if [[ $1 = units-* ]]; then binary=(-p "claimgate-${1#units-}" --lib); fi
    (cd "$tree" && cargo test --quiet -p claimgate-tests "${binary[@]}" "${@:2}")
}

# The tests in e2e/ and faults/ run the program itself.
build() { # $1 is the test binary
    run_test "$1" --no-run || return
    case $1 in e2e | faults) (cd "$tree" && cargo build --quiet --profile test --bin claimgate) ;; esac
}

# Runs a test once without a defect.
without_defect() { # TEST FILTER
    local key="${CLAIMGATE_TEST_SERVER:-redis} $1 $2" started=$SECONDS
    if [ -n "${passed[$key]-}" ]; then return; fi
    if ! { build "$1" && run_test "$1" "$2" -- --nocapture; } >"$log/without" 2>&1; then
        tail -n 40 "$log/without" >&2
        echo "without a defect, '$1 $2' fails; the complete output is in $log/without" >&2
        exit 2
    fi
    passed[$key]=yes
    echo "passes  $key ($((SECONDS - started)) s) $(grep -m 1 SEED "$log/without" || true)"
}

is_wanted() {
    [ ${#wanted[@]} -eq 0 ] && return
    local name
    for name in "${wanted[@]}"; do [ "$name" = "$1" ] && return; done
    return 1
}

# defect NAME FILE OLD NEW [TEST FILTER]: replaces OLD, which must occur in FILE exactly once, by NEW. The tests must
# fail.
defect() {
    local name=$1 file=$2 old=$3 new=$4 test=${5:-model} filter=${6:-the_system} text rest started
    is_wanted "$name" || return 0
    text=$(cat "$root/$file" && echo .)
    rest=${text/"$old"/}
    if [ "$rest" = "$text" ] || [ "${rest/"$old"/}" != "$rest" ]; then
        echo "$name: this text must occur exactly once in $file: $old" >&2
        exit 2
    fi
    case $phase in
    check) return 0 ;;
    without) without_defect "$test" "$filter"; return 0 ;;
    esac
    text=${text/"$old"/"$new"}
    printf '%s' "${text%.}" >"$tree/$file"
    started=$SECONDS
    if ! build "$test" >"$log/$name" 2>&1; then
        broken+=("$name")
        echo "BROKEN  $name ($((SECONDS - started)) s): $(grep -m 1 '^error' "$log/$name" || true)"
    elif run_test "$test" "$filter" -- --nocapture >"$log/$name" 2>&1; then
        missed+=("$name")
        echo "MISSED  $name ($((SECONDS - started)) s)"
    else
        caught+=("$name")
        echo "caught  $name ($((SECONDS - started)) s): $(grep -m 1 -E 'fails at operation|panicked at' "$log/$name" || true)"
    fi
    cat "$root/$file" >"$tree/$file"
}

# shellcheck source=tests/mutants/defects.sh
defects() { . "$root/tests/mutants/defects.sh"; }

if [ "$phase" = check ]; then
    defects
    exit 0
fi
copy_tree
echo "without a defect:"
phase=without
defects
echo "with one defect each:"
phase=mutants
defects
echo "${#caught[@]} mutants caught, ${#missed[@]} missed: ${missed[*]-}; ${#broken[@]} do not build: ${broken[*]-}"
[ ${#broken[@]} -eq 0 ] || exit 2
[ ${#missed[@]} -eq 0 ]
