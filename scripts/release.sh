#!/usr/bin/env bash
# Builds a release and publishes it. The jobs of .github/workflows/release.yml call one step each; docs/releasing.md
# describes a release.
#
#   scripts/release.sh --dry-run VERSION   `make release`: every step that this machine can run; publishes nothing
#   scripts/release.sh STEP VERSION        one step; VERSION may also be the tag, vVERSION
#
# Steps that write into target/release-files:
#   check          fails unless all changes are committed and all files name VERSION
#   program        an archive of the program for this machine, Linux or macOS
#   debian         the Debian packages with their bills of materials; needs scripts/setup.sh --release
#   clients        the npm package and the crates
#   images         the images for this machine's processor; writes into target/release-images, or pushes to IMAGE_REGISTRY
#   notes          SHA256SUMS, and target/release-notes.md
# Steps that publish:
#   push-images    publishes a multi-architecture manifest of both images under the tag VERSION of IMAGE_REGISTRY
#   push-release   a release on GitHub with all files, for the existing tag vVERSION
#   push-npm       the npm package
#   push-crates    both crates
#
# The step `program` also runs in bash 3.2, which macOS has.
set -euo pipefail
cd "$(dirname "$0")/.."

out=target/release-files
notes_file=target/release-notes.md
crates=(-p claimgate-shared -p claimgate-client)
image_names=(claimgate claimgate-edge claimgate-demo)
processors=(amd64 arm64)

die() { echo "release: $*" >&2; exit 1; }

system() {
    case $(uname -s) in
        Linux) echo linux ;;
        Darwin) echo macos ;;
        *) die "$(uname -s): only Linux and macOS are supported." ;;
    esac
}
processor() {
    case $(uname -m) in
        x86_64) echo amd64 ;;
        aarch64 | arm64) echo arm64 ;;
        *) die "$(uname -m): only x86-64 and arm64 are supported." ;;
    esac
}

# --- building -------------------------------------------------------------------------------------------

names() { # FILE VERSION
    [ "$2" = "$version" ] || die "$1 names version '$2', not $version. Change it and commit."
}

check() {
    local changes file
    changes=$(git status --porcelain)
    [ -z "$changes" ] || die "these changes are not committed: $changes"
    names Cargo.toml "$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)"
    names "Cargo.toml (claimgate-shared)" "$(sed -n 's/^claimgate-shared = .*version = "=\([^"]*\)".*/\1/p' Cargo.toml)"
    names Cargo.lock "$(sed -n '/^name = "claimgate-core"$/{n;s/^version = "\(.*\)"$/\1/p;}' Cargo.lock)"
    names client/package.json "$(sed -n 's/^  "version": "\(.*\)",$/\1/p' client/package.json)"
    for file in packaging/kubernetes/*.yaml; do
        names "$file" "$(sed -n 's/^ *image: claimgate[a-z-]*:\(.*\)$/\1/p' "$file")"
    done
    scripts/release-notes.sh "$version" >/dev/null
}

program() {
    local name system processor
    system=$(system) processor=$(processor)
    name=claimgate-$version-$system-$processor
    cargo build --locked --release --bin claimgate
    rm -rf "target/$name"
    mkdir -p "target/$name" "$out"
    strip -o "target/$name/claimgate" target/release/claimgate
    [ "$("target/$name/claimgate" --version)" = "claimgate $version" ] || die "the program does not print version $version."
    cp CHANGELOG.md LICENSE-APACHE LICENSE-MIT "target/$name/"
    tar -C target -czf "$out/$name.tar.gz" "$name"
    rm -rf "target/$name"
}

debian() {
    local package
    cargo build --locked --release --bin claimgate
    scripts/build-worker.sh
    VERSION=$version scripts/package.sh
    mkdir -p "$out"
    for package in claimgate claimgate-edge; do
        cp "target/package/${package}_${version}_$(processor).deb" "$out/"
        cp "target/package/$package.cdx.json" "$out/${package}_${version}_$(processor).cdx.json"
    done
}

clients() {
    mkdir -p "$out"
    npm pack --silent --pack-destination "$out" ./client
    cargo package --locked "${crates[@]}"
    cp target/package/claimgate-{shared,client}-"$version".crate "$out/"
}

images() {
    local name target output
    # Docker's default builder stores no attestations.
    docker buildx inspect claimgate-release >/dev/null 2>&1 ||
        docker buildx create --name claimgate-release --driver docker-container >/dev/null
    if [ -n "${IMAGE_REGISTRY:-}" ]; then log_in; else mkdir -p target/release-images; fi
    for name in "${image_names[@]}"; do
        target=${name#claimgate-}
        if [ "$name" = claimgate ]; then target=core; fi
        output=type=oci,dest=target/release-images/${name}_${version}_$(processor).tar
        if [ -n "${IMAGE_REGISTRY:-}" ]; then output=type=registry; fi
        docker buildx build --builder claimgate-release --target "$target" --sbom=true --provenance=mode=max \
            --build-arg "REVISION=$(git rev-parse HEAD)" --tag "${IMAGE_REGISTRY:-localhost}/$name:$version-$(processor)" --output "$output" .
    done
}

notes() {
    scripts/release-notes.sh "$version" >$notes_file
    rm -f $out/SHA256SUMS
    (cd $out && sha256sum -- * >SHA256SUMS)
}

# --- publishing -----------------------------------------------------------------------------------------

log_in() {
    printf '%s' "${GITHUB_TOKEN:?is not set}" |
        docker login "${IMAGE_REGISTRY%%/*}" --username "${GITHUB_ACTOR:?is not set}" --password-stdin
}

push-images() {
    local name
    log_in
    for name in "${image_names[@]}"; do
        name=${IMAGE_REGISTRY:?is not set}/$name:$version
        docker buildx imagetools create --tag "$name" "${processors[@]/#/$name-}"
    done
}

push-release() { gh release create "v$version" --verify-tag --title "claimgate $version" --notes-file $notes_file $out/*; }

# `./` distinguishes a file from the name of a repository.
push-npm() { npm publish "$@" "./$out/claimgate-client-$version.tgz"; }

# The step `clients` has already compiled the packed crates. No code of a dependency runs beside the registry's token.
push-crates() { cargo publish --locked --no-verify "$@" "${crates[@]}"; }

# --- the run --------------------------------------------------------------------------------------------

dry_run() {
    local skipped=("images, program and packages of other processors and systems")
    unset IMAGE_REGISTRY # which `images` pushes to
    rm -rf $out target/release-images
    check
    program
    if command -v dh >/dev/null; then debian; else skipped+=("Debian packages: debhelper is missing"); fi
    clients
    if docker buildx version >/dev/null 2>&1 && docker info >/dev/null 2>&1; then
        images
    else
        skipped+=("images: buildx is missing, or Docker's daemon does not run")
    fi
    notes
    push-npm --dry-run
    push-crates --dry-run
    printf '\nNot published. Files in %s, notes in %s:\n' $out $notes_file
    ls -sh $out
    printf 'SKIPPED %s\n' "${skipped[@]}"
}

steps='check|program|debian|clients|images|notes|push-images|push-release|push-npm|push-crates'
if [ $# != 2 ] || ! [[ $1 =~ ^(--dry-run|$steps)$ ]]; then
    sed -n '2,/^set/{/^#/p;}' "$0" >&2
    exit 2
fi
version=${2#v}
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || die "'$2' is not a version such as 0.1.0."
if [ "$1" = --dry-run ]; then dry_run; else "$1"; fi
