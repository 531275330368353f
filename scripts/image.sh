#!/usr/bin/env bash
# Builds an image of each Debian package from scripts/package.sh, as a file for `docker load` and `podman load`: a
# minimal Debian with the package and its dependencies. Needs root.
#
#   scripts/image.sh DIRECTORY VERSION
#
# Uses Docker's format, which every engine and registry supports: OCI's has no health check.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/debian.sh

out=$1 version=$2
tag=${version//\~/-} # tags must not contain ~
work=$(mktemp -d "$out/image.XXXXXX")
# The same user in every image, so that it owns a volume's files after an upgrade. The number lets Kubernetes verify
# that it is not root.
user_id=10001

# Keeps separate storage: this machine's images are neither read nor changed.
in_buildah() { BUILDAH_FORMAT=docker buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run" "$@"; }

clean_up() {
    in_buildah rm --all >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap clean_up EXIT

# Writes a root with the essential and listed packages. It omits apt, its sources, documents except licences, and
# mmdebstrap's leftovers.
make_root() { # TAR DEB PACKAGE...
    local tar=$1 deb=$2 root=${1%.tar} packages
    shift 2
    packages=$(IFS=,; echo "$*")
    # shellcheck disable=SC2016 # for mmdebstrap's shell to expand
    make_debian_root "$root" --variant=essential ${packages:+"--include=$packages"} \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --dpkgopt='path-include=/usr/share/doc/claimgate*/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --customize-hook="chroot \"\$1\" useradd --uid $user_id --user-group --no-create-home --home-dir /var/lib/claimgate --shell /usr/sbin/nologin claimgate" \
        --customize-hook="upload '$deb' /package.deb" \
        --customize-hook='chroot "$1" dpkg --install /package.deb >/dev/null && rm "$1/package.deb"' \
        --customize-hook="copy-in packaging/image/health /usr/local/bin" \
        --customize-hook='rm -rf "$1/var/log"/* "$1/var/cache"/*'
    # Removes this machine's package sources; mmdebstrap needs them until it ends.
    rm -rf "$root/etc/apt"
    tar --create --file "$tar" --directory "$root" --numeric-owner --sort=name .
    rm -rf --one-file-system "$root"
}

build_image() { # NAME ROOT SETTING...
    local name=$1 root=$2 container
    shift 2
    container=$(in_buildah from scratch)
    in_buildah add --quiet "$container" "$root" / >/dev/null
    in_buildah config --user "$user_id:$user_id" --workingdir / --cmd '' --env PATH=/usr/local/bin:/usr/bin:/bin \
        --healthcheck-interval 10s --healthcheck-timeout 3s --healthcheck-start-period 30s --healthcheck-retries 3 \
        --label "org.opencontainers.image.title=$name" \
        --label "org.opencontainers.image.version=$version" \
        --label "org.opencontainers.image.revision=$(git rev-parse HEAD)" \
        --label "org.opencontainers.image.created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)" \
        --label "org.opencontainers.image.licenses=MIT OR Apache-2.0" \
        "$@" "$container"
    in_buildah commit --quiet --timestamp "$SOURCE_DATE_EPOCH" --rm "$container" "$name:$tag" >/dev/null
    rm -f "$out/$name"_*.image.tar
    in_buildah push --quiet "$name:$tag" "docker-archive:$out/${name}_$tag.image.tar:$name:$tag"
}

architecture=$(dpkg --print-architecture)
make_root "$work/core.tar" "$out/claimgate_${version}_$architecture.deb" adduser ca-certificates redis-server
build_image claimgate "$work/core.tar" \
    --label "org.opencontainers.image.description=claimgate's core: gives away a limited stock, exactly up to its limits" \
    --env CLAIMGATE_DATA_DIR=/var/lib/claimgate --env CLAIMGATE_LISTEN=0.0.0.0:8080 --env CLAIMGATE_ADMIN_LISTEN=0.0.0.0:8081 \
    --entrypoint '["/usr/bin/claimgate"]' --cmd serve --port 8080 --port 8081 --volume /var/lib/claimgate \
    --healthcheck 'CMD health 8080 /livez'

# workerd does not start without certificates, although the edge makes no TLS calls.
make_root "$work/edge.tar" "$out/claimgate-edge_${version}_$architecture.deb" passwd ca-certificates
build_image claimgate-edge "$work/edge.tar" \
    --label "org.opencontainers.image.description=claimgate's edge: rejects requests that cannot succeed and signs the rest for core" \
    --env CLAIMGATE_EDGE_LISTEN=0.0.0.0:8787 --entrypoint '["/usr/bin/claimgate-edge"]' --port 8787 \
    --healthcheck 'CMD health 8787 /readyz'
