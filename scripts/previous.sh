#!/usr/bin/env bash
# Builds a part of the previous version, and prints its path. Each part of each version is built once, under
# target/previous.
#
#   scripts/previous.sh core    core's program
#   scripts/previous.sh edge    a directory with edge/workerd.capnp and the files that it embeds
#
# The previous version is the last tag before HEAD or, before the first tag, the commit in tests/previous-version.txt.
# PREVIOUS=… sets another version.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/target/previous
tree=$out/tree
version=${PREVIOUS:-$(git describe --tags --abbrev=0 HEAD^ 2>/dev/null || cat tests/previous-version.txt)}
commit=$(git rev-parse --verify --quiet "$version^{commit}") ||
    { echo "no commit $version: fetch the whole history" >&2; exit 1; }

# Runs a command in a checkout of the previous version; its output goes to standard error.
build() {
    git worktree prune
    remove_tree
    git worktree add --quiet --detach "$tree" "$commit"
    # The tools have the same versions.
    ln -s "$PWD/node_modules" "$tree/node_modules"
    (cd "$tree" && CARGO_TARGET_DIR=$out/build "$@") >&2
}

remove_tree() {
    if [ -d "$tree" ]; then git worktree remove --force "$tree"; fi
}

core() {
    local program=$out/claimgate-$commit
    if [ ! -x "$program" ]; then
        build cargo build --bin claimgate
        cp "$out/build/debug/claimgate" "$program"
        remove_tree
    fi
    echo "$program"
}

edge() {
    local directory=$out/edge-$commit
    if [ ! -d "$directory" ]; then
        build scripts/build-worker.sh
        rm -rf "$directory.new"
        mkdir "$directory.new"
        # Links may lead out of the directory.
        cp -RL "$tree/edge" "$directory.new/edge"
        mv "$directory.new" "$directory"
        remove_tree
    fi
    # This version's benchmark runs it.
    mkdir -p "$directory/bench"
    cp bench/workers.capnp "$directory/bench/workers.capnp"
    ln -sfn "$PWD/bench/bare-edge" "$directory/bench/bare-edge"
    echo "$directory"
}

echo "previous version: $version ($commit)" >&2
case ${1-} in
core) core ;;
edge) edge ;;
*) sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2 ;;
esac
