#!/usr/bin/env bash
# Builds the previous version and runs it together with this one (tests/faults/rolling.rs), for `make soak`.
#
# The previous version is the last tag before HEAD or, before the first tag, the commit in tests/previous-version.txt.
# PREVIOUS=… sets another version. Each version is built once, under target/previous.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=target/previous/tree
version=${PREVIOUS:-$(git describe --tags --abbrev=0 HEAD^ 2>/dev/null || cat tests/previous-version.txt)}
commit=$(git rev-parse --verify --quiet "$version^{commit}") ||
    { echo "no commit $version: fetch the whole history" >&2; exit 1; }
binary=$PWD/target/previous/claimgate-$commit

if [ ! -x "$binary" ]; then
    git worktree prune
    [ ! -d $tree ] || git worktree remove --force $tree
    git worktree add --quiet --detach $tree "$commit"
    (cd $tree && CARGO_TARGET_DIR=$PWD/../build cargo build --bin claimgate)
    cp target/previous/build/debug/claimgate "$binary"
    git worktree remove --force $tree
fi

echo "previous version: $version ($commit)"
CLAIMGATE_PREVIOUS_BIN=$binary cargo test -p claimgate-tests --test faults rolling_upgrade -- --nocapture
