#!/usr/bin/env bash
# `make package`: builds two Debian packages, claimgate (core) and claimgate-edge, with a bill of materials (CycloneDX), into
# target/package. Build the binary and the Worker first.
#
# VERSION overrides the checkout's version, OUT the output directory. The same binary, Worker and commit give identical
# bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

claimgate=${CLAIMGATE_BIN:-target/release/claimgate}
out=$(realpath -m "${OUT:-target/package}")
work=$out/work
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

die() { echo "make package: $*" >&2; exit 1; }

# Prints Cargo.toml's version. Between releases it adds the commit's time and hash; `~` sorts it before the coming
# release.
version() {
    local release
    release=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
    if [ "$(git tag --points-at HEAD --list "v$release")" ]; then
        echo "$release"
    else
        echo "$release~$(TZ=UTC git log -1 --date=format-local:%Y%m%d%H%M%S --format=%cd.%h)"
    fi
}

# Writes the bill of materials of a crate, without build dependencies. cargo-cyclonedx writes a file beside every
# Cargo.toml.
write_bom() { # CRATE TARGET FILE
    local left
    "$(cargo_cyclonedx)" cyclonedx --quiet --format json --spec-version 1.5 --no-build-deps --target "$2" \
        --override-filename package-bom --manifest-path "$1/Cargo.toml"
    # Replaces the build directory: otherwise packages would differ between machines.
    sed "s|file://$PWD|file:///claimgate|g" "$1/package-bom.json" >"$3"
    mapfile -t left < <(git ls-files --others --exclude-standard -- '*package-bom.json')
    rm "${left[@]}"
}

gather() {
    local documents=(README.md CHANGELOG.md docs)
    [ -x "$claimgate" ] || die "$claimgate is missing: run cargo build --release --bin claimgate."
    [ -f edge/build/index_bg.wasm ] || die "the Worker is missing: run scripts/build-worker.sh."
    rm -rf "$work"
    mkdir -p "$work/source"
    cp -r packaging/debian "${documents[@]}" packaging/claimgate.env packaging/edge.env packaging/claimgate-edge "$work/source/"
    cp "$claimgate" "$work/source/claimgate"
    workerd compile edge/workerd.capnp >"$work/source/edge"
    chmod 755 "$work/source/edge"
    write_bom core "$(rustc -vV | sed -n 's/^host: //p')" "$work/source/claimgate.cdx.json"
    write_bom edge wasm32-unknown-unknown "$work/source/claimgate-edge.cdx.json"
    node scripts/add-workerd.mjs "$work/source/claimgate-edge.cdx.json"
}

build_debs() {
    cat >"$work/source/debian/changelog" <<CHANGELOG
claimgate ($version) unstable; urgency=medium

  * Commit $(git rev-parse HEAD). CHANGELOG.md lists the changes.

 -- $(sed -n 's/^Maintainer: //p' packaging/debian/control)  $(date -uR -d "@$SOURCE_DATE_EPOCH")
CHANGELOG
    (cd "$work/source" && debian/rules binary >"$work/debs.log" 2>&1) || { tail -n 30 "$work/debs.log" >&2; die "building the packages failed: see $work/debs.log"; }
    rm -f "$out"/claimgate*.deb "$out"/*.cdx.json
    mv "$work"/*.deb "$work/source"/*.cdx.json "$out/"
}

version=${VERSION:-$(version)}
gather
build_debs
rm -rf "$work"
ls -sh "$out"
