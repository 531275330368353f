#!/usr/bin/env bash
# Tests the gate, for `make soak`: in a clone of the last commit, scripts/test.sh passes, fails with defects of
# tests/mutants/defects.sh that oversell, lose and double claims, and ends a test that hangs, with its name. Runs
# only the part `model`, which finds each of these defects.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
tree=$root/target/gate/tree logs=$root/target/gate/logs
failed=0

mkdir -p "$tree" "$logs"
git init --quiet "$tree"
git -C "$tree" fetch --quiet "$root" HEAD
git -C "$tree" checkout --quiet --force --detach FETCH_HEAD
ln -sfn "$root/node_modules" "$tree/node_modules"
(cd "$tree" && scripts/dependencies.sh take)

# defect NAME FILE OLD NEW: puts the defect that is wanted into the clone.
defect() {
    if [ "$1" != "$wanted" ]; then return; fi
    local text
    text=$(cat "$tree/$2" && echo .)
    text=${text/"$3"/"$4"}
    printf '%s' "${text%.}" >"$tree/$2"
}

put_in() {
    local wanted=$1
    # shellcheck source=tests/mutants/defects.sh
    . "$root/tests/mutants/defects.sh"
    if git -C "$tree" diff --quiet; then
        echo "gate: $1 is no defect of tests/mutants/defects.sh" >&2
        exit 2
    fi
}

# expect RESULT NAME PATTERN: runs the gate. Everything must be built, the tests' RESULT is passed or failed, and a line
# of the output matches PATTERN. Then removes the changes in the clone.
expect() {
    local result=$1 name=$2 pattern=$3 started=$SECONDS actual=passed
    local log=$logs/$name parts=$tree/target/test-logs/parts
    (cd "$tree" && env -u SEED -u OPERATIONS -u CLAIMGATE_BIN scripts/test.sh model) >"$log" 2>&1 </dev/null ||
        actual=failed
    if [ $actual = "$result" ] && grep -qE '^build-tests .* passed$' "$parts" &&
        grep -qE "^model .* $result$" "$parts" && grep -qE "$pattern" "$log"; then
        echo "gate: $name: $result, as expected ($((SECONDS - started)) s)"
    else
        failed=1
        tail -n 40 "$log"
        echo "gate: $name: expected $result and \"$pattern\" ($((SECONDS - started)) s); all output is in $log"
    fi
    git -C "$tree" checkout --quiet .
}

expect passed no-defect '^[0-9]+ passed, 0 failed'
for name in units_not_added ack_before_commit no_replay_check; do
    put_in "$name"
    expect failed "$name" 'SEED=[0-9]+ fails at operation'
done
cat >>"$tree/tests/model/main.rs" <<'RUST'

#[test]
fn a_hanging_test() {
    std::thread::sleep(std::time::Duration::MAX);
}
RUST
TEST_S=90 expect failed hanging-test '^test a_hanging_test has been running for [0-9]+ s$'
exit $failed
