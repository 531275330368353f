#!/usr/bin/env bash
# What `make package` has made, tried: a part of `make soak`. Needs root and a Debian; a part that cannot be tried is named SKIPPED.
#
#   tests/packages.sh             all parts
#   tests/packages.sh bytes       the same commit in another directory gives the same Worker and the same packages
#   tests/packages.sh debs        the Debian packages in a bare Debian that systemd has booted, with a network of its own: installed,
#                                 started, claims made, upgraded over an older version, removed, purged
#   tests/packages.sh images      the images run by buildah, without an engine: claims made, stopped, started again on the same volume
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh
. scripts/debian.sh
. scripts/processes.sh

packages=target/package
# Debian's packages of another version: as by a later release, or an earlier one.
older_version=0.0.1
# Of 10: what an attacker could still do from within the service, as systemd judges it.
exposure_max=2.0

say() { printf '%4d s  %s\n' $SECONDS "$*"; }
skipped() { skipped+=("$*"); echo "SKIPPED $*"; }

# expect WHAT COMMAND...
expect() {
    local what=$1
    shift
    if ! "$@"; then
        show_logs
        die "not so: $what"
    fi
    say "$what"
}

# What is known of a failure.
show_logs() {
    local log
    if [ "$machine" ]; then in_machine journalctl --no-pager --lines 40 --unit 'claimgate*' >&2 || true; fi
    for log in "$work"/*.log; do
        if [ -s "$log" ]; then printf '== %s\n' "$log" && tail -n 10 "$log"; fi
    done >&2
}

within() { # SECONDS COMMAND...
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.2
    done
}

contains() { [[ $1 == *"$2"* ]]; }
one_deb() { echo "$1/claimgate${2:-}"_*.deb; }

# --- bytes ----------------------------------------------------------------------------------------------

has_step_points() { grep -q 'claimgate was built with: steps=on' "$1"; }

try_bytes() {
    local elsewhere=$work/elsewhere file version=0.0.2
    expect "the binary has no step points" eval '! has_step_points target/release/claimgate'
    OUT=$work/here VERSION=$version scripts/package.sh debs >/dev/null
    git worktree add --quiet --detach "$elsewhere" HEAD
    # What is not committed, too.
    git ls-files --cached --others --exclude-standard -z | tar --null --ignore-failed-read -cT - 2>/dev/null | tar -C "$elsewhere" -x
    ln -s "$PWD/node_modules" "$elsewhere/node_modules"
    (cd "$elsewhere" && scripts/build-worker.sh >"$work/worker.log" 2>&1) || { tail "$work/worker.log" >&2; die "the Worker was not built"; }
    for file in index.js index_bg.wasm; do
        expect "$file of the Worker is the same, built in another directory" cmp "edge/build/$file" "$elsewhere/edge/build/$file"
    done
    (cd "$elsewhere" && CLAIMGATE_BIN=$repository/target/release/claimgate OUT=$work/there VERSION=$version scripts/package.sh debs >/dev/null)
    for file in "$work"/here/*.deb "$work"/here/*.json; do
        expect "${file##*/} is the same" cmp "$file" "$work/there/${file##*/}"
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
journal_says() { contains "$(in_machine journalctl --no-pager --output cat --unit "$1")" "$2"; }
state_is() { [ "$(property "$1" ActiveState)" = "$2" ]; }
owner_is() { [ "$(in_machine stat -c '%a %U:%G' "$1")" = "$2" ]; }
install_in_machine() { in_machine apt-get install -y "$@" </dev/null >>"$work/apt.log" 2>&1; }

make_machine() {
    local older=$work/older
    OUT=$older VERSION=$older_version scripts/package.sh debs >/dev/null
    # Its package manager brings what the packages depend on and recommend; from the boot on there is no network.
    # shellcheck disable=SC2016 # for mmdebstrap's shell to expand
    make_debian_root "$root" --variant=minbase --include=systemd,systemd-sysv,dbus,ca-certificates,curl,procps \
        --customize-hook="copy-in $(one_deb "$older") $(one_deb "$older" -edge) /srv" \
        --customize-hook='chroot "$1" sh -c "apt-get install -y --install-recommends /srv/*.deb && rm /srv/*.deb" >&2' \
        >"$work/root.log" 2>&1 || { tail -n 20 "$work/root.log" >&2; die "no Debian with the packages"; }
    cp "$(one_deb $packages)" "$root/srv/core.deb"
    cp "$(one_deb $packages -edge)" "$root/srv/edge.deb"
    say "a Debian with claimgate $older_version"
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
    kill -TERM "$machine" 2>/dev/null || true # powers it off
    gone_within 200 "$machine" || kill -KILL "$machine" 2>/dev/null || true
    machine=''
}

try_unit() { # UNIT
    local exposure said
    said=$(in_machine systemd-analyze verify "$1" 2>&1 || true)
    expect "systemd has nothing against $1: ${said:-none}" [ -z "$said" ]
    exposure=$(in_machine systemd-analyze security --no-pager "$1" | sed -n 's/.*exposure level for .*: \([0-9.]*\) .*/\1/p')
    expect "the exposure of $1 is $exposure, at most $exposure_max" awk "BEGIN { exit !($exposure <= $exposure_max) }"
}

was_restarted() { [ "$(property claimgate NRestarts)" = 1 ] && is_ready; }
has_same_claim() { contains "$(as_core claim demo --user alice --key first)" 'asked before: the same claim'; }

try_core() {
    local process
    expect "core was started at the boot" within 30 is_ready
    process=$(property claimgate MainPID)
    expect "as user claimgate" [ "$(in_machine ps -o user= -p "$process")" = claimgate ]
    expect "with system calls filtered" in_machine grep -q '^Seccomp:.2' "/proc/$process/status"
    expect "its data is its own" owner_is /var/lib/claimgate '700 claimgate:claimgate'
    expect "its settings are for root to change" owner_is /etc/claimgate/claimgate.env '640 root:claimgate'
    as_core campaign create demo --time-zone Asia/Shanghai --total 100 --per-user 3 >/dev/null
    expect "a claim is granted" contains "$(as_core claim demo --user alice --key first)" granted
    in_machine sed -i 's/^#CLAIMGATE_LOG_JSON=.*/CLAIMGATE_LOG_JSON=true/' /etc/claimgate/claimgate.env
    in_machine systemctl reload claimgate
    expect "a reload reads the secrets again" within 10 journal_says claimgate 'credentials were read again'
    in_machine systemctl kill --signal KILL --kill-who main claimgate
    expect "killed, core is started again" within 30 was_restarted
    expect "and has its claim" has_same_claim
    expect "settings are those of the file" within 10 journal_says claimgate '"message":"claimgate is up"'
    in_machine sed -i 's/^#CLAIMGATE_DRAIN_S=.*/CLAIMGATE_DRAIN_S=x/' /etc/claimgate/claimgate.env
    in_machine systemctl restart claimgate
    expect "with a wrong setting it stays down" within 10 state_is claimgate failed
    expect "and names it" journal_says claimgate 'CLAIMGATE_DRAIN_S: must be 0 to 300'
    in_machine sed -i 's/^CLAIMGATE_DRAIN_S=.*/CLAIMGATE_DRAIN_S=1/' /etc/claimgate/claimgate.env
    in_machine systemctl restart claimgate
    expect "with the right one it is back" within 30 is_ready
}

claim_through_edge() { # USER KEY
    in_machine curl -s --max-time 5 -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $(as_core token --user "$1")" \
        -H "Idempotency-Key: $2" --json '{}' http://127.0.0.1:8787/v1/campaigns/demo/claims
}
claims_through_edge() { [ "$(claim_through_edge "$1" "$2")" = "$3" ]; }

try_edge() {
    local process
    expect "the edge waits for its administrator" state_is claimgate-edge inactive
    expect "its settings are root's" owner_is /etc/claimgate/edge.env '600 root:root'
    in_machine systemctl start claimgate-edge || true
    expect "without its secrets it does not start" within 10 state_is claimgate-edge failed
    expect "and names the one it lacks" journal_says claimgate-edge 'EDGE_KEY: is not set'
    # shellcheck disable=SC2016 # for the machine's shell to expand
    in_machine sh -c 'cd /var/lib/claimgate && sed -i "s/^#EDGE_KEY=.*/EDGE_KEY=$(cat edge.key)/; s/^#USER_JWT_KEY=.*/USER_JWT_KEY=$(cat user-jwt.key)/" /etc/claimgate/edge.env'
    in_machine systemctl enable --quiet --now claimgate-edge
    expect "with them a claim is granted through it" within 20 claims_through_edge carol first 201
    process=$(property claimgate-edge MainPID)
    expect "as a user of its own, made for it" [ "$(in_machine ps -o uid= -p "$process")" -ge 61184 ]
    in_machine systemctl stop claimgate-edge
    expect "connections wait for a stopped edge" claims_through_edge carol first 200
}

try_upgrade() {
    local core edge
    core=$(property claimgate MainPID) edge=$(property claimgate-edge MainPID)
    expect "upgraded" install_in_machine /srv/core.deb /srv/edge.deb
    expect "core was restarted" [ "$(property claimgate MainPID)" != "$core" ]
    expect "and so was the edge" [ "$(property claimgate-edge MainPID)" != "$edge" ]
    expect "core is ready" within 30 is_ready
    expect "the administrator's settings are kept" in_machine grep -qx CLAIMGATE_LOG_JSON=true /etc/claimgate/claimgate.env
    expect "for root to change" owner_is /etc/claimgate/claimgate.env '640 root:claimgate'
    expect "claims are kept" has_same_claim
    expect "through the edge too" within 20 claims_through_edge carol first 200
}

try_removal() {
    local said
    in_machine apt-get remove -y claimgate claimgate-edge </dev/null >>"$work/apt.log" 2>&1
    expect "removed: no process of it is left" [ -z "$(in_machine pgrep -f 'claimgate|redis-server unix' || true)" ]
    expect "the data stays" in_machine test -s /var/lib/claimgate/claimgate.sqlite
    expect "the settings stay" in_machine grep -qx CLAIMGATE_LOG_JSON=true /etc/claimgate/claimgate.env
    expect "installed again" install_in_machine /srv/core.deb
    expect "it starts by itself" within 30 is_ready
    expect "with its claims" has_same_claim
    said=$(in_machine apt-get purge -y claimgate claimgate-edge </dev/null 2>&1)
    expect "purged: it says that claims go" contains "$said" 'removing /var/lib/claimgate'
    expect "data and settings are gone" in_machine sh -c '! test -e /var/lib/claimgate && ! test -e /etc/claimgate'
}

try_debs() {
    local program
    for program in mmdebstrap systemd-nspawn; do
        has $program || { skipped "debs: $program is missing"; return; }
    done
    root=$work/root
    make_machine
    boot_machine || { tail -n 5 "$work/console.log" >&2; skipped "debs: systemd cannot be booted here"; return; }
    try_unit claimgate.service
    try_unit claimgate-edge.service
    try_core
    try_edge
    try_upgrade
    try_removal
    stop_machine
}

# --- images ---------------------------------------------------------------------------------------------

in_buildah() { buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run" "$@"; }
setting() { in_buildah inspect --type image --format "{{.Docker.Config.$2}}" "$1"; }

# A container of the image in the file $1.
container_of() { in_buildah from --quiet "docker-archive:$1"; }
run_in() { # CONTAINER COMMAND...
    local container=$1
    shift
    in_buildah run --isolation chroot --volume "$work/volume:/var/lib/claimgate" "${variables[@]}" "$container" -- "$@"
}

is_unhealthy() { ! run_in "$1" health 8080 /livez 2>/dev/null; }

stop_core() {
    local process
    process=$(pgrep -x claimgate)
    kill -TERM "$process"
    expect "it stops by SIGTERM" gone_within 150 "$process"
    expect "with its Redis" [ -z "$(pgrep redis-server)" ]
}
granted_through_edge() {
    [ "$(curl -s --max-time 5 -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $token" -H 'Idempotency-Key: first' \
        --json '{}' http://127.0.0.1:8787/v1/campaigns/demo/claims)" = "$1" ]
}

try_images_inside() {
    local core edge image program token variables=()
    ip link set lo up
    image=$(in_buildah pull --quiet "docker-archive:$(echo $packages/claimgate_*.image.tar)")
    expect "the image's user is not root" [ "$(setting "$image" User)" = 10001:10001 ]
    expect "it has a health check" contains "$(setting "$image" Healthcheck.Test)" 'health 8080 /livez'
    expect "and labels" contains "$(setting "$image" Labels)" "org.opencontainers.image.revision:$(git rev-parse HEAD)"
    core=$(container_of "$(echo $packages/claimgate_*.image.tar)") edge=$(container_of "$(echo $packages/claimgate-edge_*.image.tar)")
    for program in cc make apt-get cargo curl python3; do
        if run_in "$core" sh -c "command -v $program" >/dev/null 2>&1; then die "$program is in the image"; fi
    done
    install -d -m 700 -o 10001 -g 10001 "$work/volume"

    start core "$work/core.log" buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run" run --isolation chroot \
        --volume "$work/volume:/var/lib/claimgate" "$core" -- /usr/bin/claimgate serve
    expect "core is ready, as its health check sees" within 60 run_in "$core" health 8080 /readyz
    expect "as user 10001" [ "$(ps -o uid= -p "$(pgrep -x claimgate)" | tr -d ' ')" = 10001 ]
    run_in "$core" claimgate campaign create demo --time-zone Asia/Shanghai --total 100 --per-user 3 >/dev/null
    expect "a claim is granted" contains "$(run_in "$core" claimgate claim demo --user alice --key first)" granted

    token=$(run_in "$core" claimgate token --user carol)
    variables=(--env EDGE_KEY_FILE=/var/lib/claimgate/edge.key --env USER_JWT_KEY_FILE=/var/lib/claimgate/user-jwt.key)
    start edge "$work/edge.log" buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run" run --isolation chroot \
        --volume "$work/volume:/var/lib/claimgate" "${variables[@]}" "$edge" -- /usr/bin/claimgate-edge
    variables=()
    expect "the edge is healthy" within 30 run_in "$edge" health 8787 /livez
    expect "a claim is granted through it" granted_through_edge 201
    stop_core
    expect "a core that is down is unhealthy" is_unhealthy "$core"

    try_read_only
    expect "the edge has found it" within 20 granted_through_edge 200
    stop_core
    stop '*'
}

# As Kubernetes and compose.yaml run it: the image's files cannot be written, the volume's directory can.
try_read_only() {
    local files claimgate
    files=$(in_buildah mount "$core")
    mount --bind "$files" "$files"
    mount --bind "$work/volume" "$files/var/lib/claimgate"
    mount -t proc proc "$files/proc"
    mount -t tmpfs dev "$files/dev"
    mknod -m 666 "$files/dev/null" c 1 3 && mknod -m 666 "$files/dev/urandom" c 1 9
    mount -o remount,bind,ro "$files"
    claimgate=(chroot --userspec=10001:10001 "$files" /usr/bin/env -i PATH=/usr/bin:/bin CLAIMGATE_DATA_DIR=/var/lib/claimgate
        CLAIMGATE_LISTEN=0.0.0.0:8080 CLAIMGATE_ADMIN_LISTEN=0.0.0.0:8081 claimgate)
    start read-only "$work/read-only.log" "${claimgate[@]}" serve
    expect "core starts on the same volume with nothing else to write to" within 30 answers_http http://127.0.0.1:8080/readyz
    expect "and has its claim" contains "$("${claimgate[@]}" claim demo --user alice --key first)" 'asked before: the same claim'
}

try_images() {
    if ! has buildah; then skipped "images: buildah is missing"; return; fi
    if ! unshare --net --mount --pid --fork true 2>/dev/null; then skipped "images: namespaces are not allowed here"; return; fi
    unshare --net --mount --pid --mount-proc --fork --kill-child tests/packages.sh --inside "$work"
}

# --- the run --------------------------------------------------------------------------------------------

repository=$PWD machine='' skipped=()
# The first process of namespaces of its own: what it leaves behind ends with it.
if [ "${1:-}" = --inside ]; then
    work=$2
    try_images_inside
    exit
fi
parts=("${@:-all}")
if [ "${parts[*]}" = all ]; then parts=(bytes debs images); fi
[ "$(id -u)" = 0 ] || { echo "SKIPPED all: it needs root"; exit; }
debian_codename >/dev/null || { echo "SKIPPED all: this is no Debian"; exit; }
[ -f "$(one_deb $packages)" ] || die "no packages: run make package."
work=$(mktemp -d "$PWD/target/packages.XXXXXX")
clean_up() {
    stop_machine
    git worktree remove --force "$work/elsewhere" 2>/dev/null || true
    if has buildah; then in_buildah rm --all >/dev/null 2>&1 || true; fi
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

for part in "${parts[@]}"; do "try_$part"; done
if [ ${#skipped[@]} -gt 0 ]; then printf 'SKIPPED %s\n' "${skipped[@]}"; fi
echo "tests/packages.sh: passed"
