#!/usr/bin/env bash
# Mutation tests, for `make soak`: a copy of the tree gets one defect at a time, and the model or the test named with the
# defect must fail. A defect whose text is not found ends the run; one that does not build is listed at the end. Both are
# errors, because they prove nothing.
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
export SEED=${SEED:-1} OPERATIONS=${OPERATIONS:-40000} PROMISES=1 RUST_BACKTRACE=0
log=$root/target/mutants/logs
check_only=
if [ "${1-}" = --check ]; then check_only=yes && shift; fi
wanted=("$@")
caught=() missed=() broken=()

# Writes only changed files, so that only these are rebuilt.
copy_tree() {
    mkdir -p "$tree" "$log"
    git ls-files --cached --others --exclude-standard -z |
        while IFS= read -r -d '' file; do
            if [ ! -f "$file" ] || cmp -s "$file" "$tree/$file"; then continue; fi
            mkdir -p "$tree/$(dirname "$file")"
            cat "$file" >"$tree/$file"
        done
}

# $1 is the test binary; the rest are its arguments.
run_test() { (cd "$tree" && cargo test --quiet -p claimgate-tests --test "$@"); }

# The tests in e2e/ and faults/ run the program itself.
build() { # $1 is the test binary
    run_test "$1" --no-run || return
    case $1 in e2e | faults) (cd "$tree" && cargo build --quiet --profile test --bin claimgate) ;; esac
}

is_wanted() {
    [ ${#wanted[@]} -eq 0 ] && return
    local name
    for name in "${wanted[@]}"; do [ "$name" = "$1" ] && return; done
    return 1
}

# defect NAME FILE OLD NEW [TEST FILTER]: replaces OLD, which must occur in FILE exactly once, by NEW. The tests must fail.
defect() {
    local name=$1 file=$2 old=$3 new=$4 test=${5:-model} filter=${6:-the_system} text rest started
    is_wanted "$name" || return 0
    text=$(cat "$root/$file" && echo .)
    rest=${text/"$old"/}
    if [ "$rest" = "$text" ] || [ "${rest/"$old"/}" != "$rest" ]; then
        echo "$name: this text must occur exactly once in $file: $old" >&2
        exit 2
    fi
    if [ -n "$check_only" ]; then return 0; fi
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

if [ -n "$check_only" ]; then
    # shellcheck source=tests/mutants/defects.sh
    . "$root/tests/mutants/defects.sh"
    exit 0
fi
copy_tree
echo "without a defect:"
if ! run_test model the_system -- --nocapture >"$log/without" 2>&1; then
    tail -n 40 "$log/without" >&2
    echo "without a defect: the model fails; the complete output is in $log/without" >&2
    exit 2
fi
grep -E 'SEED|campaigns' "$log/without"
# shellcheck source=tests/mutants/defects.sh
. "$root/tests/mutants/defects.sh"
echo "${#caught[@]} mutants caught, ${#missed[@]} missed: ${missed[*]-}; ${#broken[@]} do not build: ${broken[*]-}"
[ ${#broken[@]} -eq 0 ] || exit 2
[ ${#missed[@]} -eq 0 ]
