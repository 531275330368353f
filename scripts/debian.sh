# shellcheck shell=bash
# Creates a minimal Debian root file system from this machine's package sources. bare.sh, tests/packages.sh and
# tests/images.sh source this.

# Prints the codename of this machine's Debian release; fails on other systems.
debian_codename() {
    # shellcheck disable=SC1091
    (. /etc/os-release && [ "${ID:-}" = debian ] && echo "$VERSION_CODENAME")
}

# Creates the root $1, a directory or a tar file, with this machine's sources, proxies and keys. Other arguments go to
# mmdebstrap.
make_debian_root() {
    local target=$1 sources=() file settings status=0
    shift
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
        if [ -f "$file" ]; then sources+=("$file"); fi
    done
    settings=$(mktemp)
    apt-config dump | grep '^Acquire::' | grep -v '^Acquire::.*Dir' >"$settings" || true
    # Copies the keys before the packages are installed, because the sources may refer to these keys.
    # shellcheck disable=SC2016 # for mmdebstrap's shell to expand
    mmdebstrap --quiet --aptopt="$settings" \
        --setup-hook='for keys in etc/apt/trusted.gpg.d etc/apt/keyrings usr/share/keyrings; do
            if [ -d /$keys ]; then mkdir -p "$1/$keys" && cp -a /$keys/. "$1/$keys/"; fi
        done' \
        "$@" "$(debian_codename)" "$target" "${sources[@]}" || status=$?
    rm "$settings"
    return $status
}

# Copies this machine's certificates and name resolution into the root $1, a directory.
copy_network_settings() {
    local root=$1 directory=usr/local/share/ca-certificates
    if [ -d /$directory ]; then cp -a /$directory/. "$root/$directory/"; fi
    chroot "$root" update-ca-certificates >/dev/null 2>&1
    cp -L /etc/resolv.conf "$root/etc/resolv.conf"
    { cat /etc/hosts; echo "127.0.1.1 $(cat "$root/etc/hostname")"; } >"$root/etc/hosts"
}

# Copies this machine's Rust into the root $1, as rustup installs it: programs in $2, one toolchain in $3.
copy_rust() {
    local cargo_home=$1$2 rustup_home=$1$3 toolchain installed=${CARGO_HOME:-$HOME/.cargo}
    toolchain=$(rustup show active-toolchain | cut -d' ' -f1)
    mkdir -p "$cargo_home" "$rustup_home/toolchains/$toolchain"
    cp -a "$installed/bin" "$installed/env" "$cargo_home/"
    tar -C "$(rustc --print sysroot)" --exclude=./share/doc -c . | tar -C "$rustup_home/toolchains/$toolchain" -x
    printf 'version = "12"\ndefault_toolchain = "%s"\n' "$toolchain" >"$rustup_home/settings.toml"
}

# Copies this machine's Node and npm and its settings into /usr/local of the root $1. The checkout's own Node, which
# is first in the PATH of scripts/tools.sh, has no npm.
copy_node() {
    local prefix=$1/usr/local config PATH=${PATH//"$PWD/node_modules/.bin:"/}
    install -D "$(node -p process.execPath)" "$prefix/bin/node"
    mkdir -p "$prefix/lib/node_modules" "$prefix/etc"
    cp -aL "$(npm root --global 2>/dev/null)/npm" "$prefix/lib/node_modules/"
    ln -s ../lib/node_modules/npm/bin/npm-cli.js "$prefix/bin/npm"
    ln -s ../lib/node_modules/npm/bin/npx-cli.js "$prefix/bin/npx"
    config=$(npm config get globalconfig 2>/dev/null)
    if [ -f "$config" ]; then cp "$config" "$prefix/etc/npmrc"; fi
}
