#!/usr/bin/env bash
# Tests the packages built by `make package`. A part of `make soak`. Needs root and Debian; parts that cannot run are
# SKIPPED.
#
#   tests/packages.sh             all parts
#   tests/packages.sh bytes       builds in another directory give the same Worker and packages, byte for byte
#   tests/packages.sh debs        installs, starts, uses, upgrades, removes and purges the Debian packages, in a minimal Debian booted
#                                 by systemd with a private network
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh
. scripts/debian.sh
. scripts/processes.sh
. scripts/expect.sh

packages=target/package
# Version of the older Debian packages, before the upgrade.
older_version=0.0.1
# Maximum exposure of a service as rated by systemd, of 10.
exposure_max=2.0

skipped() { skipped+=("$*"); echo "SKIPPED $*"; }

# Prints the logs after a failure.
show_logs() {
    local log
    if [ "$machine" ]; then in_machine journalctl --no-pager --lines 40 --unit 'claimgate*' >&2 || true; fi
    for log in "$work"/*.log; do
        if [ -s "$log" ]; then printf '== %s\n' "$log" && tail -n 10 "$log"; fi
    done >&2
}

one_deb() { echo "$1/claimgate${2:-}"_*.deb; }

# --- bytes ----------------------------------------------------------------------------------------------

has_step_points() { grep -q 'claimgate was built with: steps=on' "$1"; }

try_bytes() {
    local elsewhere=$work/elsewhere file version=0.0.2
    expect "the release binary has no step points" eval '! has_step_points target/release/claimgate'
    OUT=$work/here VERSION=$version scripts/package.sh >/dev/null
    git worktree add --quiet --detach "$elsewhere" HEAD
    # Include uncommitted changes.
    git ls-files --cached --others --exclude-standard -z | tar --null --ignore-failed-read -cT - 2>/dev/null | tar -C "$elsewhere" -x
    ln -s "$PWD/node_modules" "$elsewhere/node_modules"
    (cd "$elsewhere" && scripts/build-worker.sh >"$work/worker.log" 2>&1) || { tail "$work/worker.log" >&2; die "the Worker was not built"; }
    for file in index.js index_bg.wasm; do
        expect "the Worker's $file is the same when built in another directory" cmp "edge/build/$file" "$elsewhere/edge/build/$file"
    done
    (cd "$elsewhere" && CLAIMGATE_BIN=$repository/target/release/claimgate OUT=$work/there VERSION=$version scripts/package.sh >/dev/null)
    for file in "$work"/here/*.deb "$work"/here/*.json; do
        expect "${file##*/} is the same when built in another directory" cmp "$file" "$work/there/${file##*/}"
    done
    git worktree remove --force "$elsewhere"
}

# --- debs -----------------------------------------------------------------------------------------------

in_machine() {
    nsenter --target "$leader" --all -- /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
}
property() { in_machine systemctl show --property "$2" --value "$1"; }
as_core() { in_machine runuser -u claimgate -- env CLAIMGATE_DATA_DIR=/var/lib/claimgate claimgate "$@"; }
is_ready() { in_machine curl -fso /dev/null --max-time 2 http://127.0.0.1:8080/readyz; }
edge_is_ready() { in_machine curl -fso /dev/null --max-time 2 http://127.0.0.1:8787/readyz; }
journal_says() { contains "$(in_machine journalctl --no-pager --output cat --unit "$1")" "$2"; }
state_is() { [ "$(property "$1" ActiveState)" = "$2" ]; }
owner_is() { [ "$(in_machine stat -c '%a %U:%G' "$1")" = "$2" ]; }
install_in_machine() { in_machine apt-get install -y "$@" </dev/null >>"$work/apt.log" 2>&1; }

make_machine() {
    local older=$work/older
    OUT=$older VERSION=$older_version scripts/package.sh >/dev/null
    # The older packages are installed now with all dependencies, because there is no network after the boot.
    # shellcheck disable=SC2016 # for mmdebstrap's shell to expand
    make_debian_root "$root" --variant=minbase --include=systemd,systemd-sysv,dbus,ca-certificates,curl,procps \
        --customize-hook="copy-in $(one_deb "$older") $(one_deb "$older" -edge) /srv" \
        --customize-hook='chroot "$1" sh -c "apt-get install -y --install-recommends /srv/*.deb && rm /srv/*.deb" >&2' \
        >"$work/root.log" 2>&1 || { tail -n 20 "$work/root.log" >&2; die "cannot create a Debian with the packages"; }
    cp "$(one_deb $packages)" "$root/srv/core.deb"
    cp "$(one_deb $packages -edge)" "$root/srv/edge.deb"
    say "created a Debian with claimgate $older_version"
}

boot_machine() {
    systemd-nspawn --quiet --directory "$root" --machine "claimgate-$$" --boot --register=no --keep-unit --private-network \
        --console=pipe </dev/null >"$work/console.log" 2>&1 &
    machine=$!
    within 30 has_leader || return 1
    leader=$(pgrep --parent "$machine")
    within 60 in_machine systemctl is-active multi-user.target
}
has_leader() { [ "$(pgrep --parent "$machine" --count)" = 1 ]; }
stop_machine() {
    [ "$machine" ] || return 0
    kill -TERM "$machine" 2>/dev/null || true # shuts the machine down
    gone_within 200 "$machine" || kill -KILL "$machine" 2>/dev/null || true
    machine=''
}

try_unit() { # UNIT
    local exposure said
    said=$(in_machine systemd-analyze verify "$1" 2>&1 || true)
    expect "systemd-analyze has no complaints about $1: ${said:-none}" [ -z "$said" ]
    exposure=$(in_machine systemd-analyze security --no-pager "$1" | sed -n 's/.*exposure level for .*: \([0-9.]*\) .*/\1/p')
    expect "the exposure of $1 is $exposure, with a maximum of $exposure_max" awk "BEGIN { exit !($exposure <= $exposure_max) }"
}

was_restarted() { [ "$(property claimgate NRestarts)" = 1 ] && is_ready; }
has_same_claim() { contains "$(as_core claim demo --user alice --key first)" 'replay: the same claim as before'; }

try_core() {
    local process
    expect "core starts at boot" within 30 is_ready
    process=$(property claimgate MainPID)
    expect "core runs as user claimgate" [ "$(in_machine ps -o user= -p "$process")" = claimgate ]
    expect "the system calls of core are filtered" in_machine grep -q '^Seccomp:.2' "/proc/$process/status"
    expect "only core can access its data" owner_is /var/lib/claimgate '700 claimgate:claimgate'
    expect "only root can change the settings of core" owner_is /etc/claimgate/claimgate.env '640 root:claimgate'
    as_core campaign create demo --time-zone Asia/Shanghai --total 100 --per-user 3 >/dev/null
    expect "a claim is granted" contains "$(as_core claim demo --user alice --key first)" granted
    in_machine sed -i 's/^#CLAIMGATE_LOG_JSON=.*/CLAIMGATE_LOG_JSON=true/' /etc/claimgate/claimgate.env
    in_machine systemctl reload claimgate
    expect "a reload reloads the secrets" within 10 journal_says claimgate 'credentials were reloaded'
    in_machine systemctl kill --signal KILL --kill-who main claimgate
    expect "core is restarted after it was killed" within 30 was_restarted
    expect "the claim is kept" has_same_claim
    expect "core uses the settings in the file" within 10 journal_says claimgate '"message":"claimgate is up"'
    in_machine sed -i 's/^#CLAIMGATE_DRAIN_S=.*/CLAIMGATE_DRAIN_S=x/' /etc/claimgate/claimgate.env
    in_machine systemctl restart claimgate
    expect "core does not start with an invalid setting" within 10 state_is claimgate failed
    expect "the log names the invalid setting" journal_says claimgate 'CLAIMGATE_DRAIN_S: must be 0 to 300'
    in_machine sed -i 's/^CLAIMGATE_DRAIN_S=.*/CLAIMGATE_DRAIN_S=1/' /etc/claimgate/claimgate.env
    in_machine systemctl restart claimgate
    expect "core starts with a valid setting" within 30 is_ready
}

claim_through_edge() { # USER KEY
    in_machine curl -s --max-time 5 -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $(as_core token --user "$1")" \
        -H "Idempotency-Key: $2" --json '{}' http://127.0.0.1:8787/v1/campaigns/demo/claims
}
claims_through_edge() { [ "$(claim_through_edge "$1" "$2")" = "$3" ]; }

issues_challenge() { # USER
    contains "$(in_machine curl -s --max-time 5 -H "Authorization: Bearer $(as_core token --user "$1")" \
        http://127.0.0.1:8787/v1/campaigns/demo/challenge)" '"altcha"'
}

# Turns on challenges. The secret is in a file, as docs/packages.md describes.
use_credential() {
    local overrides=/etc/systemd/system/claimgate-edge.service.d
    # shellcheck disable=SC2016 # for the machine's shell to expand
    in_machine sh -c 'umask 077 && printf "edge:%s" "$(head -c 32 /dev/urandom | base64 | tr +/ -_ | tr -d =)" >/root/pass-signing-key'
    in_machine mkdir -p $overrides
    in_machine sh -c "printf '[Service]\nLoadCredential=pass-signing-key:/root/pass-signing-key\n' >$overrides/secrets.conf"
    in_machine sed -i 's/^#CHALLENGE=.*/CHALLENGE=altcha/; s/^#PASS_SIGNING_KEY_FILE=/PASS_SIGNING_KEY_FILE=/' /etc/claimgate/edge.env
    in_machine systemctl daemon-reload
    in_machine systemctl restart claimgate-edge
}

try_edge() {
    local process
    expect "the edge is not started by default" state_is claimgate-edge inactive
    expect "only root can access the settings of the edge" owner_is /etc/claimgate/edge.env '600 root:root'
    in_machine systemctl start claimgate-edge || true
    expect "the edge does not start without its secrets" within 10 state_is claimgate-edge failed
    expect "the log names the missing secret" journal_says claimgate-edge 'EDGE_KEY: is not set'
    # shellcheck disable=SC2016 # for the machine's shell to expand
    in_machine sh -c 'cd /var/lib/claimgate && sed -i "s/^#EDGE_KEY=.*/EDGE_KEY=$(cat edge.key)/; s/^#USER_JWT_KEY=.*/USER_JWT_KEY=$(cat user-jwt.key)/" /etc/claimgate/edge.env'
    in_machine systemctl enable --quiet --now claimgate-edge
    expect "with its secrets, the edge is ready" within 20 edge_is_ready
    expect "with its secrets, the edge grants a claim" within 20 claims_through_edge carol first 201
    process=$(property claimgate-edge MainPID)
    expect "the edge runs as a dynamic user" [ "$(in_machine ps -o uid= -p "$process")" -ge 61184 ]
    use_credential
    expect "with a secret that systemd passes as a file, the edge is ready" within 20 edge_is_ready
    expect "the edge issues challenges with it" within 20 issues_challenge carol
    in_machine systemctl stop claimgate-edge
    expect "a connection starts a stopped edge" claims_through_edge carol first 200
}

try_upgrade() {
    local core edge
    core=$(property claimgate MainPID) edge=$(property claimgate-edge MainPID)
    expect "the packages are upgraded" install_in_machine /srv/core.deb /srv/edge.deb
    expect "core is restarted by the upgrade" [ "$(property claimgate MainPID)" != "$core" ]
    expect "the edge is restarted by the upgrade" [ "$(property claimgate-edge MainPID)" != "$edge" ]
    expect "core is ready after the upgrade" within 30 is_ready
    expect "changed settings are kept" in_machine grep -qx CLAIMGATE_LOG_JSON=true /etc/claimgate/claimgate.env
    expect "the settings keep their mode" owner_is /etc/claimgate/claimgate.env '640 root:claimgate'
    expect "claims are kept by the upgrade" has_same_claim
    expect "the edge returns the same claim" within 20 claims_through_edge carol first 200
}

try_removal() {
    local said
    in_machine apt-get remove -y claimgate claimgate-edge </dev/null >>"$work/apt.log" 2>&1
    expect "no process is left after the removal" [ -z "$(in_machine pgrep -f 'claimgate|redis-server unix' || true)" ]
    expect "the data is kept" in_machine test -s /var/lib/claimgate/claimgate.sqlite
    expect "the settings are kept" in_machine grep -qx CLAIMGATE_LOG_JSON=true /etc/claimgate/claimgate.env
    expect "the package is installed again" install_in_machine /srv/core.deb
    expect "core starts after the installation" within 30 is_ready
    expect "core still has its claims" has_same_claim
    said=$(in_machine apt-get purge -y claimgate claimgate-edge </dev/null 2>&1)
    expect "the purge announces that claims are removed" contains "$said" 'removing /var/lib/claimgate'
    expect "data and settings are removed by the purge" in_machine sh -c '! test -e /var/lib/claimgate && ! test -e /etc/claimgate'
}

try_debs() {
    local program
    for program in mmdebstrap systemd-nspawn; do
        has $program || { skipped "debs: $program is missing"; return; }
    done
    root=$work/root
    make_machine
    boot_machine || { tail -n 5 "$work/console.log" >&2; skipped "debs: systemd cannot boot here"; return; }
    try_unit claimgate.service
    try_unit claimgate-edge.service
    try_core
    try_edge
    try_upgrade
    try_removal
    stop_machine
}

# --- the run --------------------------------------------------------------------------------------------

repository=$PWD machine='' skipped=()
parts=("${@:-all}")
if [ "${parts[*]}" = all ]; then parts=(bytes debs); fi
[ "$(id -u)" = 0 ] || { echo "SKIPPED all: root is required"; exit 77; }
debian_codename >/dev/null || { echo "SKIPPED all: not a Debian system"; exit 77; }
[ -f "$(one_deb $packages)" ] || die "no packages: run make package."
work=$(mktemp -d "$PWD/target/packages.XXXXXX")
clean_up() {
    stop_machine
    git worktree remove --force "$work/elsewhere" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

for part in "${parts[@]}"; do "try_$part"; done
if [ ${#skipped[@]} -gt 0 ]; then printf 'SKIPPED %s\n' "${skipped[@]}"; fi
echo "tests/packages.sh: passed"
