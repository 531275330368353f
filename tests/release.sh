#!/usr/bin/env bash
# Tests scripts/release.sh in a copy of the files that name the version, with stubs in place of cargo, docker, gh and npm:
# a wrong release is rejected, every step that .github/workflows/release.yml calls runs, and its calls are the expected
# ones. A part of `make check`; takes seconds and needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."
# A hook of git sets these variables; git would then change this repository instead of the copy.
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_COMMON_DIR

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
case $(uname -m) in x86_64) processor=amd64 ;; *) processor=arm64 ;; esac
versioned=(Cargo.toml Cargo.lock client/package.json packaging/kubernetes/core.yaml packaging/kubernetes/edge.yaml)

fail() { echo "tests/release.sh: $*" >&2; exit 1; }

# Runs a step in the copy; its output is in $output.
release() { output=$(cd "$work/copy" && PATH=$work/bin:$PATH CALLS=$work/calls scripts/release.sh "$@" 2>&1); }
rejects() { # WORDS STEP VERSION
    local words=$1
    shift
    if release "$@"; then fail "release.sh $* succeeded, and should report: $words"; fi
    [[ $output == *"$words"* ]] || fail "release.sh $* does not report '$words': $output"
}
passes() { release "$@" || fail "release.sh $* failed: $output"; }

commit() { git -C "$work/copy" add --all && git -C "$work/copy" -c user.name=test -c user.email=test@localhost -c commit.gpgsign=false \
    -c core.hooksPath=/dev/null commit --quiet --message "$1"; }

stub() { # PROGRAM: writes its call into a file, then runs standard input as its script
    { printf '#!/usr/bin/env bash\necho "%s $*" >>"$CALLS"\n' "$1"; cat; } >"$2"
    chmod +x "$2"
}

make_copy() {
    local file
    for file in "${versioned[@]}" CHANGELOG.md LICENSE-APACHE LICENSE-MIT scripts/release.sh scripts/release-notes.sh; do
        install -D "$file" "$work/copy/$file"
    done
    sed -i "s/^## Unreleased$/## $version - 2026-12-01/" "$work/copy/CHANGELOG.md"
    echo /target/ >"$work/copy/.gitignore"
    mkdir -p "$work/bin"
    # A program that left its input unread would sometimes end its writer with SIGPIPE.
    stub docker "$work/bin/docker" <<<'if [ "$1" = login ]; then [ "$(cat)" = secret ]; fi'
    stub gh "$work/bin/gh" </dev/null
    stub strip "$work/bin/strip" <<<'cp "$3" "$2"'
    stub npm "$work/bin/npm" <<<"if [ \$1 = pack ]; then touch target/release-files/claimgate-client-$version.tgz; fi"
    stub cargo "$work/bin/cargo" <<STUB
mkdir -p target/release target/package
if [ \$1 = build ]; then printf '#!/bin/sh\necho claimgate $version\n' >target/release/claimgate && chmod +x target/release/claimgate; fi
if [ \$1 = package ]; then touch target/package/claimgate-{shared,client}-$version.crate; fi
STUB
    stub build-worker "$work/copy/scripts/build-worker.sh" </dev/null
    stub package "$work/copy/scripts/package.sh" <<STUB
mkdir -p target/package
touch target/package/claimgate{,-edge}_\${VERSION}_$processor.deb target/package/claimgate{,-edge}.cdx.json
STUB
    git -C "$work/copy" init --quiet
    commit "A release"
}

try_check() {
    local file
    passes check "$version"
    passes check "v$version"
    for file in '' 1.0 "$version-rc.1" "$version.0" '1.0.0; true'; do
        rejects "is not a version" check "$file"
    done
    rejects "scripts/release.sh STEP VERSION" publish "$version"
    rejects "Cargo.toml names version '$version', not 9.8.7" check 9.8.7
    sed -i 's/^\(claimgate-shared = .*"=\)[^"]*/\19.8.7/' "$work/copy/Cargo.toml"
    commit "Change the version of claimgate-shared"
    rejects "Cargo.toml (claimgate-shared) names version '9.8.7', not $version" check "$version"
    git -C "$work/copy" reset --quiet --hard HEAD^
    for file in "${versioned[@]}"; do
        sed -i "s/\b${version//./\\.}\b/9.8.7/" "$work/copy/$file"
        rejects "not committed" check "$version"
        commit "Change the version in $file"
        rejects "$file names version '9.8.7', not $version" check "$version"
        git -C "$work/copy" reset --quiet --hard HEAD^
    done
    sed -i "s/^## $version .*/## Unreleased/" "$work/copy/CHANGELOG.md"
    commit "Remove the section of the changelog"
    rejects "CHANGELOG.md has no section for version $version" check "$version"
    git -C "$work/copy" reset --quiet --hard HEAD^
}

# Runs the steps in the order of the workflow, except `check`.
try_steps() {
    local archive=target/release-files/claimgate-$version-linux-$processor.tar.gz registry=registry.example/shop
    passes program "$version"
    [ "$(tar -C "$work" -xzf "$work/copy/$archive" && "$work/claimgate-$version-linux-$processor/claimgate")" = "claimgate $version" ] ||
        fail "$archive has no program"
    passes debian "$version"
    passes clients "$version"
    passes images "$version"
    IMAGE_REGISTRY=$registry GITHUB_TOKEN=secret GITHUB_ACTOR=me passes images "v$version"
    passes notes "$version"
    (cd "$work/copy/target/release-files" && sha256sum --quiet --check SHA256SUMS)
    cmp "$work/copy/target/release-notes.md" <("$work/copy/scripts/release-notes.sh" "$version")
    IMAGE_REGISTRY=$registry GITHUB_TOKEN=secret GITHUB_ACTOR=me passes push-images "$version"
    passes push-release "$version"
    passes push-npm "$version"
    passes push-crates "$version"
}

try_dry_run() {
    : >"$work/calls"
    IMAGE_REGISTRY=registry.example/shop passes --dry-run "v$version"
    [[ $output == *"Not published."* ]] || fail "the dry run does not end: $output"
    grep -q '^npm publish --dry-run ' "$work/calls" || fail "the dry run does not try to publish"
    if grep -E '^gh |login|imagetools|type=registry|publish' "$work/calls" | grep -v -- --dry-run; then
        fail "the dry run publishes"
    fi
}

expected_files() {
    cat <<FILES
SHA256SUMS
claimgate-$version-linux-$processor.tar.gz
claimgate-client-$version.crate
claimgate-client-$version.tgz
claimgate-edge_${version}_$processor.cdx.json
claimgate-edge_${version}_$processor.deb
claimgate-shared-$version.crate
claimgate_${version}_$processor.cdx.json
claimgate_${version}_$processor.deb
FILES
}

# Calls that publish. Building the images is called once without a registry and once with it.
expected_calls() {
    local name image files revision
    revision=$(git -C "$work/copy" rev-parse HEAD)
    for name in claimgate:core claimgate-edge:edge claimgate-demo:demo; do
        image=${name%:*}
        echo "docker buildx build --builder claimgate-release --target ${name#*:} --sbom=true --provenance=mode=max --build-arg REVISION=$revision --tag localhost/$image:$version-$processor --output type=oci,dest=target/release-images/${image}_${version}_$processor.tar ."
    done
    echo "docker login registry.example --username me --password-stdin"
    for name in claimgate:core claimgate-edge:edge claimgate-demo:demo; do
        image=registry.example/shop/${name%:*}:$version
        echo "docker buildx build --builder claimgate-release --target ${name#*:} --sbom=true --provenance=mode=max --build-arg REVISION=$revision --tag $image-$processor --output type=registry ."
    done
    echo "docker login registry.example --username me --password-stdin"
    for name in claimgate claimgate-edge claimgate-demo; do
        image=registry.example/shop/$name:$version
        echo "docker buildx imagetools create --tag $image $image-amd64 $image-arm64"
    done
    files=$(expected_files | sed 's|^|target/release-files/|' | tr '\n' ' ')
    echo "gh release create v$version --verify-tag --title claimgate $version --notes-file target/release-notes.md ${files% }"
    echo "npm publish ./target/release-files/claimgate-client-$version.tgz"
    echo "cargo publish --locked --no-verify -p claimgate-shared -p claimgate-client"
}

# Every step in the workflow is known, and the tests above run it.
try_workflow() {
    local step called
    mapfile -t called < <(grep -o 'release\.sh [a-z-]*' .github/workflows/release.yml | cut -d' ' -f2 | sort -u)
    [ ${#called[@]} -ge 10 ] || fail "release.yml calls only ${called[*]}"
    for step in "${called[@]}"; do
        grep -qE "passes $step \"" tests/release.sh || fail "no test runs the step $step of release.yml"
    done
}

export LC_ALL=C
make_copy
try_check
: >"$work/calls"
try_steps
diff <(expected_files) <(ls "$work/copy/target/release-files") || fail "the files of the release differ"
diff <(expected_calls) <(grep -E '^(gh|npm publish|cargo publish|docker (login|buildx (build|imagetools)))' "$work/calls") ||
    fail "the calls that publish differ"
try_dry_run
try_workflow
echo "tests/release.sh: passed"
