#!/usr/bin/env bash
# `make bare`: runs README's commands in a minimal Debian root file system, like a newcomer with sudo: set-up, build,
# the page, Ctrl-C. Fails if a process is left over. Each line of output starts with the seconds since the file system
# was created.
#
#   scripts/bare.sh                 everything, nothing cached; takes 15 minutes
#   scripts/bare.sh --setup-only    only the set-up, with this machine's Cargo tools if it has them
#   scripts/bare.sh --setup-only --if-changed    skips the run if the same set-up passed on this machine in the last week
#
# The root has systemd, installed but not running, as in most containers; sudo without a password; git, make and
# ca-certificates; this machine's Rust and Node. This machine is not changed: mounts are in a separate namespace, and
# the root is removed on exit.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/debian.sh

user=newcomer
home=/home/$user
tools_inside=/opt/claimgate-tools
machine_tools=${CLAIMGATE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/claimgate}
# The set-up that passed last on this machine.
passed=$machine_tools/bare-setup-passed
edge=127.0.0.1:8787
# Limits so that no step blocks CI forever.
setup_s_max=1800 up_s_max=7200 stop_s_max=60

die() { echo "make bare: $*" >&2; exit 1; }

# If the root cannot be created, CI skips this test and reports that.
skip() {
    [ "$mode" = whole ] && die "$*"
    echo "make bare: SKIPPED, its set-up part was not tested: $*"
    exit 0
}

# The files that the set-up reads, as committed.
set_up() {
    git ls-tree -r HEAD Makefile Cargo.toml package.json package-lock.json rust-toolchain.toml \
        scripts/{bare,debian,setup,tools}.sh scripts/{valkey,openapi-tools,openapi-generator}.txt | sha256sum
}

# Returns whether the same set-up has passed here. Its downloads change: a week later it is tried again.
has_passed() { [ -n "$(find "$passed" -mtime -7 2>/dev/null)" ] && [ "$(set_up)" = "$(cat "$passed")" ]; }

# --- on the machine: make the root ----------------------------------------------------------------------

check_prerequisites() {
    debian_codename >/dev/null || skip "this machine does not run Debian."
    [ "$(id -u)" = 0 ] || skip "root, or sudo without a password, is required."
    unshare --mount --pid --fork true 2>/dev/null || skip "namespaces are not allowed here (unshare fails)."
    if ! command -v mmdebstrap >/dev/null && [ "${SKIP_SETUP:-}" != 1 ]; then
        { apt-get update && apt-get install -y --no-install-recommends mmdebstrap; } >/dev/null 2>&1 || true
    fi
    local program
    for program in mmdebstrap git rustup cargo node npm; do
        command -v $program >/dev/null || skip "$program is missing."
    done
    [ "$mode" = setup-only ] || ! (: <"/dev/tcp/${edge%:*}/${edge##*:}") 2>/dev/null ||
        die "$edge is already in use: stop the process that listens there."
}

# Copies a file in this user's home to the same path in the newcomer's home, if the file exists.
copy_from_home() {
    if [ -f "$HOME/$1" ]; then install -D -m 600 "$HOME/$1" "$root$home/$1"; fi
}

make_newcomer() {
    chroot "$root" useradd --create-home --shell /bin/bash $user
    echo "$user ALL=(ALL) NOPASSWD: ALL" >"$root/etc/sudoers.d/$user"
    echo ". \"\$HOME/.cargo/env\"" >>"$root$home/.profile"
    local file
    for file in .cargo/config.toml .cargo/config .npmrc .config/pip/pip.conf .pip/pip.conf; do copy_from_home $file; done
}

clone() {
    git clone --quiet --no-hardlinks . "$root$home/claimgate"
    git -C "$root$home/claimgate" log -1 --format='The checkout is %h, %s'
    git diff --quiet HEAD || echo "Uncommitted changes are not included."
    chroot "$root" chown -R $user:$user $home/claimgate
}

# These tools take minutes to build. Only --setup-only reuses this machine's tools; the whole run builds them.
offer_tools() {
    tools=
    if [ "$mode" != setup-only ]; then return; fi
    if [ -d "$machine_tools" ]; then
        tools=$(realpath "$machine_tools")
        echo "worker-build, wasm-bindgen, Valkey and schemathesis: using this machine's from $tools if present, read-only."
    else
        echo "No Cargo tools in $machine_tools: building them in the root."
    fi
}

# Variables that this machine needs to reach a registry or a proxy.
forwarded_variables='^(https?_proxy|no_proxy|all_proxy|HTTPS?_PROXY|NO_PROXY|ALL_PROXY|SSL_CERT_(FILE|DIR)|NODE_EXTRA_CA_CERTS|CURL_CA_BUNDLE|CARGO_(HTTP|NET|SOURCE|REGISTR(Y|IES))_.*|NPM_CONFIG_.*|PIP_.*|RUSTUP_(DIST_SERVER|UPDATE_ROOT|AUTO_INSTALL))$'

# --- in the root ----------------------------------------------------------------------------------------

# Runs a command line in the newcomer's login shell, in the checkout once it exists.
as_newcomer() {
    local environment=(HOME=$home USER=$user LOGNAME=$user SHELL=/bin/bash TERM=dumb) name
    while read -r name; do environment+=("$name=${!name}"); done < <(compgen -e | grep -E "$forwarded_variables")
    if [ -n "$tools" ]; then environment+=("CLAIMGATE_TOOLS=$tools_inside"); fi
    # A script's background processes ignore Ctrl-C, and so would their children; `env` resets that.
    chroot --userspec=$user:$user "$root" /usr/bin/env -i --default-signal=INT,QUIT "${environment[@]}" \
        /bin/bash -lc "cd $home/claimgate 2>/dev/null || cd; $1"
}

# Mounts the same file systems as a container: /proc of its own processes, and only harmless devices.
mount_all() {
    local node
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount -t tmpfs -o mode=755 dev "$root/dev"
    for node in null zero full random urandom tty; do
        touch "$root/dev/$node"
        mount --bind /dev/$node "$root/dev/$node"
    done
    mkdir "$root/dev/pts" "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
    mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    ln -s /proc/self/fd/0 "$root/dev/stdin"
    ln -s /proc/self/fd/1 "$root/dev/stdout"
    ln -s /proc/self/fd/2 "$root/dev/stderr"
    [ -n "$tools" ] || return 0
    mkdir -p "$root$tools_inside"
    mount --bind "$tools" "$root$tools_inside"
    mount -o remount,bind,ro "$root$tools_inside"
}

stamp() { while IFS= read -r line; do printf '%5d s  %s\n' $SECONDS "${line%$'\r'}"; done; }
say() { echo "== $*" | stamp; }

# Waits at most $1 seconds until command $2 succeeds; fails immediately if process $3 has ended.
wait_until() {
    local end=$((SECONDS + $1))
    until $2; do
        [ $SECONDS -lt $end ] || return 1
        kill -0 "$3" 2>/dev/null || $2 || return 1
        sleep 0.5
    done
}

# Runs a command line as the newcomer, for at most $1 seconds.
run() {
    say "$2"
    as_newcomer "$2" </dev/null > >(stamp) 2>&1 &
    running=$!
    wait_until "$1" has_ended $running || die "'$2' did not end within $1 s."
    wait $running || die "'$2' failed with status $?."
}
has_ended() { ! kill -0 $running 2>/dev/null; }

# Prints the namespace's processes except this script and its helpers.
remaining_processes() {
    local process command
    for process in "$root"/proc/[0-9]*; do
        command=$({ tr '\0' ' ' <"$process/cmdline"; } 2>/dev/null) || continue
        case "$command" in
            '' | *"bare.sh --inside"* | 'tr '* | 'sleep 0.5 ' | 'script --quiet '*) ;;
            *) echo "${process##*/} $command" ;;
        esac
    done
}
close_terminal() {
    local process command
    for process in "$root"/proc/[0-9]*; do
        command=$({ tr '\0' ' ' <"$process/cmdline"; } 2>/dev/null) || continue
        if [[ $command == 'script --quiet '* ]]; then kill -KILL "${process##*/}"; fi
    done
}
no_process_remains() { [ -z "$(remaining_processes)" ]; }
require_no_process() {
    local left
    left=$(remaining_processes)
    [ -z "$left" ] || die "processes remain $1:"$'\n'"$left"
    say "no process remains $1"
}

try_setup() {
    run $setup_s_max 'make setup'
    require_no_process "after the set-up"
    run 60 'make setup'
}

page_answers() {
    local page
    page=$(chroot "$root" /usr/bin/curl -fsL --max-time 5 "http://$edge/" 2>/dev/null) &&
        [[ $page == *'<title>claimgate'* ]] &&
        page=$(chroot "$root" /usr/bin/curl -fs --max-time 5 "http://$edge/v1/campaigns/demo") &&
        [[ $page == *'"state":"open"'* ]]
}

# Uses a terminal, so that Ctrl-C works as for a person: the terminal sends the signal to all processes.
try_up() {
    local began
    mkfifo "$work/keys"
    exec 3<>"$work/keys"
    say "make up"
    as_newcomer "exec script --quiet --return --command 'make up' /dev/null" <"$work/keys" > >(stamp) 2>&1 3>&- &
    running=$!
    wait_until $up_s_max page_answers $running || die "the page does not respond."
    say "the page responds at http://$edge/, the demo campaign is open; now Ctrl-C"
    began=$SECONDS
    printf '\003' >&3
    wait_until $stop_s_max no_process_remains $running || die "processes remain $stop_s_max s after Ctrl-C:"$'\n'"$(remaining_processes)"
    say "no process remains $((SECONDS - began)) s after Ctrl-C"
    # `script` sometimes fails to notice that its command has ended.
    close_terminal
    exec 3>&-
    wait $running || true
}

inside() {
    SECONDS=0
    mount_all
    [ -x "$root/usr/bin/systemctl" ] && [ ! -d "$root/run/systemd/system" ] || die "systemd must be installed but not running."
    # The copied toolchain may include this target.
    as_newcomer 'rustup --quiet target remove wasm32-unknown-unknown' >/dev/null 2>&1 </dev/null || true
    if [ "$mode" = whole ]; then try_up; fi
    try_setup
}

# --- the run --------------------------------------------------------------------------------------------

# `--inside`: this script as the first process of a namespace. When this process exits, the kernel kills all other
# processes of the namespace.
if [ "${1:-}" = --inside ]; then
    mode=$2 work=$3 tools=$4 root=$3/root
    inside
    exit
fi

case "$*" in
    '') mode=whole ;;
    --setup-only | '--setup-only --if-changed') mode=setup-only ;;
    *) die "usage: scripts/bare.sh [--setup-only [--if-changed]]" ;;
esac
if [ "${2:-}" = --if-changed ] && has_passed; then
    echo "make bare: NOT RUN, this set-up has passed on this machine: $(date -r "$passed" '+%F %T')."
    exit
fi
if [ "$(id -u)" != 0 ] && sudo -n true 2>/dev/null; then
    exec sudo -n -E env "PATH=$PATH" "HOME=$HOME" scripts/bare.sh "$@"
fi
check_prerequisites

mkdir -p target
work=$(mktemp -d "$PWD/target/bare.XXXXXX")
root=$work/root inside_pid='' tools=''
clean_up() {
    trap '' INT TERM HUP
    # Killing the namespace's first process kills its other processes and removes its mounts.
    if [ -n "$inside_pid" ]; then
        kill -KILL "$inside_pid" 2>/dev/null || true
        wait "$inside_pid" 2>/dev/null || true
    fi
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

offer_tools
SECONDS=0
make_debian_root "$root" --variant=minbase --include=systemd,sudo,git,make,ca-certificates
copy_network_settings "$root"
make_newcomer
copy_rust "$root" $home/.cargo $home/.rustup
chroot "$root" chown -R $user:$user $home
copy_node "$root"
clone
echo "The root was created in $SECONDS s."
unshare --mount --pid --fork --kill-child scripts/bare.sh --inside $mode "$work" "$tools" &
inside_pid=$!
wait $inside_pid
inside_pid=''
if [ $mode = setup-only ]; then mkdir -p "$machine_tools" && set_up >"$passed"; fi
echo "make bare: passed"
