#!/usr/bin/env bash
# Mutation tests, for `make soak`: a copy of the tree gets one defect at a time, and the model has to go red on it.
# A defect whose text is no longer found, or that does not build, is an error: it would prove nothing.
#
#   tests/mutants/run.sh [NAME …]     all of defects.sh, or those named
#
# SEED and OPERATIONS as in tests/model.rs. MUTANTS_TARGET is where the copy is built (target/mutants/build).
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
tree=$root/target/mutants/tree
export CARGO_TARGET_DIR=${MUTANTS_TARGET:-$root/target/mutants/build}
export SEED=${SEED:-1} OPERATIONS=${OPERATIONS:-40000} RUST_BACKTRACE=0
log=$root/target/mutants/logs
wanted=("$@")
caught=() missed=()

# Only what is different is written, so that only what is different is built again.
copy_tree() {
    mkdir -p "$tree" "$log"
    git ls-files --cached --others --exclude-standard -z -- Cargo.toml Cargo.lock bench core edge lab lua shared tests |
        while IFS= read -r -d '' file; do
            if [ ! -f "$file" ] || cmp -s "$file" "$tree/$file"; then continue; fi
            mkdir -p "$tree/$(dirname "$file")"
            cat "$file" >"$tree/$file"
        done
}

model() { (cd "$tree" && cargo test --quiet -p claimgate-tests --test model "$@"); }

is_wanted() {
    [ ${#wanted[@]} -eq 0 ] && return
    local name
    for name in "${wanted[@]}"; do [ "$name" = "$1" ] && return; done
    return 1
}

# defect NAME FILE OLD NEW: OLD stands in FILE exactly once, and becomes NEW.
defect() {
    local name=$1 file=$2 old=$3 new=$4 text rest started
    is_wanted "$name" || return 0
    text=$(cat "$root/$file" && echo .)
    rest=${text/"$old"/}
    if [ "$rest" = "$text" ] || [ "${rest/"$old"/}" != "$rest" ]; then
        echo "$name: this stands not exactly once in $file: $old" >&2
        exit 2
    fi
    text=${text/"$old"/"$new"}
    printf '%s' "${text%.}" >"$tree/$file"
    started=$SECONDS
    if ! model --no-run >"$log/$name" 2>&1; then
        tail -n 20 "$log/$name" >&2
        echo "$name: does not build" >&2
        exit 2
    fi
    if model the_system -- --nocapture >"$log/$name" 2>&1; then
        missed+=("$name")
        echo "MISSED  $name ($((SECONDS - started)) s)"
    else
        caught+=("$name")
        echo "caught  $name ($((SECONDS - started)) s): $(grep -m 1 -E 'fails at operation' "$log/$name" || true)"
    fi
    cat "$root/$file" >"$tree/$file"
}

copy_tree
echo "without a defect:"
model the_system -- --nocapture | grep -E 'SEED|campaigns'
# shellcheck source=tests/mutants/defects.sh
. "$root/tests/mutants/defects.sh"
echo "${#caught[@]} mutants caught, ${#missed[@]} missed: ${missed[*]-}"
[ ${#missed[@]} -eq 0 ]
