#!/usr/bin/env bash
# `make bare`: README's commands in a bare Debian root, as a newcomer with sudo types them: set-up, build, the page
# answered, Ctrl-C, and no process left. Each line of the output begins with the seconds since the root was there.
#
#   scripts/bare.sh                 all of it, nothing cached; takes a quarter of an hour
#   scripts/bare.sh --setup-only    the set-up alone, with this machine's Cargo tools where it has them
#
# In the root: systemd, installed and not running, as in most containers; sudo that asks no password; git, make and
# ca-certificates; Rust and Node as on this machine. Nothing of this machine is changed: the mounts are in a namespace of their
# own, and the root goes on any exit.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/debian.sh

user=newcomer
home=/home/$user
tools_inside=/opt/claimgate-tools
edge=127.0.0.1:8787
# No step may hold up CI for ever.
setup_s_max=1800 up_s_max=7200 stop_s_max=60

die() { echo "make bare: $*" >&2; exit 1; }

# Where the root cannot be made, CI goes on, and says so.
cannot() {
    [ "$mode" = whole ] && die "$*"
    echo "make bare: SKIPPED, its set-up part was not tested: $*"
    exit 0
}

# --- on the machine: make the root ----------------------------------------------------------------------

look_whether_it_can() {
    debian_codename >/dev/null || cannot "this machine is no Debian, so it has no sources for one."
    [ "$(id -u)" = 0 ] || cannot "it needs root, or a sudo that asks no password."
    unshare --mount --pid --fork true 2>/dev/null || cannot "namespaces are not allowed here (unshare fails)."
    if ! command -v mmdebstrap >/dev/null && [ "${SKIP_SETUP:-}" != 1 ]; then
        { apt-get update && apt-get install -y --no-install-recommends mmdebstrap; } >/dev/null 2>&1 || true
    fi
    local program
    for program in mmdebstrap git rustup cargo node npm; do
        command -v $program >/dev/null || cannot "$program is missing."
    done
    [ "$mode" = setup-only ] || ! (: <"/dev/tcp/${edge%:*}/${edge##*:}") 2>/dev/null ||
        die "$edge is taken: stop what listens there."
}

# Copies a file of this machine's user to the same place in the newcomer's home, if there is one.
take_over() {
    if [ -f "$HOME/$1" ]; then install -D -m 600 "$HOME/$1" "$root$home/$1"; fi
}

make_newcomer() {
    chroot "$root" useradd --create-home --shell /bin/bash $user
    echo "$user ALL=(ALL) NOPASSWD: ALL" >"$root/etc/sudoers.d/$user"
    echo ". \"\$HOME/.cargo/env\"" >>"$root$home/.profile"
    local file
    for file in .cargo/config.toml .cargo/config .npmrc .config/pip/pip.conf .pip/pip.conf; do take_over $file; done
}

# As `rustup` leaves it: its programs, one toolchain, no further target.
install_rust() {
    local toolchain sysroot cargo_home=${CARGO_HOME:-$HOME/.cargo}
    toolchain=$(rustup show active-toolchain | cut -d' ' -f1)
    sysroot=$(rustc --print sysroot)
    mkdir -p "$root$home/.cargo" "$root$home/.rustup/toolchains/$toolchain"
    cp -a "$cargo_home/bin" "$cargo_home/env" "$root$home/.cargo/"
    tar -C "$sysroot" --exclude=./share/doc -c . | tar -C "$root$home/.rustup/toolchains/$toolchain" -x
    printf 'version = "12"\ndefault_toolchain = "%s"\n' "$toolchain" >"$root$home/.rustup/settings.toml"
    chroot "$root" chown -R $user:$user $home
}

install_node() {
    local modules config
    modules=$(npm root --global 2>/dev/null)
    install -D "$(node -p process.execPath)" "$root/usr/local/bin/node"
    mkdir -p "$root/usr/local/lib/node_modules" "$root/usr/local/etc"
    cp -aL "$modules/npm" "$root/usr/local/lib/node_modules/"
    ln -s ../lib/node_modules/npm/bin/npm-cli.js "$root/usr/local/bin/npm"
    ln -s ../lib/node_modules/npm/bin/npx-cli.js "$root/usr/local/bin/npx"
    config=$(npm config get globalconfig 2>/dev/null)
    if [ -f "$config" ]; then cp "$config" "$root/usr/local/etc/npmrc"; fi
}

clone() {
    git clone --quiet --no-hardlinks . "$root$home/claimgate"
    git -C "$root$home/claimgate" log -1 --format='The checkout is %h, %s'
    git diff --quiet HEAD || echo "What is not committed is not in it."
    chroot "$root" chown -R $user:$user $home/claimgate
}

# Minutes of building, which --setup-only may spare itself: the whole run builds them.
offer_tools() {
    local here=${CLAIMGATE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/claimgate}
    tools=
    if [ "$mode" != setup-only ]; then return; fi
    if [ -d "$here" ]; then
        tools=$(realpath "$here")
        echo "worker-build, wasm-bindgen and Valkey are this machine's, read-only from $tools, where there."
    else
        echo "No Cargo tools in $here: they are built in the root."
    fi
}

# What a registry or a proxy of this machine needs to be reached.
carried='^(https?_proxy|no_proxy|all_proxy|HTTPS?_PROXY|NO_PROXY|ALL_PROXY|SSL_CERT_(FILE|DIR)|NODE_EXTRA_CA_CERTS|CURL_CA_BUNDLE|CARGO_(HTTP|NET|SOURCE|REGISTR(Y|IES))_.*|NPM_CONFIG_.*|PIP_.*|RUSTUP_(DIST_SERVER|UPDATE_ROOT|AUTO_INSTALL))$'

# --- in the root ----------------------------------------------------------------------------------------

# Runs a command line as the newcomer's login shell would, in the checkout once there is one.
as_newcomer() {
    local environment=(HOME=$home USER=$user LOGNAME=$user SHELL=/bin/bash TERM=dumb) name
    while read -r name; do environment+=("$name=${!name}"); done < <(compgen -e | grep -E "$carried")
    if [ -n "$tools" ]; then environment+=("CLAIMGATE_TOOLS=$tools_inside"); fi
    # What a script starts in the background ignores Ctrl-C, and so would all that it starts.
    chroot --userspec=$user:$user "$root" /usr/bin/env -i --default-signal=INT,QUIT "${environment[@]}" \
        /bin/bash -lc "cd $home/claimgate 2>/dev/null || cd; $1"
}

# What a container has: processes of its own, and no device but the harmless ones.
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

# Waits until $2 succeeds, $1 seconds at most; fails at once when process $3 is gone.
wait_until() {
    local end=$((SECONDS + $1))
    until $2; do
        [ $SECONDS -lt $end ] || return 1
        kill -0 "$3" 2>/dev/null || $2 || return 1
        sleep 0.5
    done
}

# Runs a newcomer's command line to its end, within $1 seconds.
run() {
    say "$2"
    as_newcomer "$2" </dev/null > >(stamp) 2>&1 &
    running=$!
    wait_until "$1" has_ended $running || die "'$2' has not ended within $1 s."
    wait $running || die "'$2' failed with status $?."
}
has_ended() { ! kill -0 $running 2>/dev/null; }

# The processes of this namespace, by command line, except for this script and its helpers.
others() {
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
none_is_there() { [ -z "$(others)" ]; }
none_is_left() {
    local left
    left=$(others)
    [ -z "$left" ] || die "processes are left $1:"$'\n'"$left"
    say "no process is left $1"
}

try_setup() {
    run $setup_s_max 'make setup'
    none_is_left "by the set-up"
    run 60 'make setup'
}

page_answers() {
    local page
    page=$(chroot "$root" /usr/bin/curl -fs --max-time 5 "http://$edge/" 2>/dev/null) &&
        [[ $page == *'<title>claimgate'* ]] &&
        page=$(chroot "$root" /usr/bin/curl -fs --max-time 5 "http://$edge/v1/campaigns/demo") &&
        [[ $page == *'"state":"open"'* ]]
}

# On a terminal, so that Ctrl-C is what it is for a person: a key, which the terminal turns into a signal to all of them.
try_up() {
    local began
    mkfifo "$work/keys"
    exec 3<>"$work/keys"
    say "make up"
    as_newcomer "exec script --quiet --return --command 'make up' /dev/null" <"$work/keys" > >(stamp) 2>&1 3>&- &
    running=$!
    wait_until $up_s_max page_answers $running || die "the page does not answer."
    say "the page answers at http://$edge/, the demo campaign is open; now Ctrl-C"
    began=$SECONDS
    printf '\003' >&3
    wait_until $stop_s_max none_is_there $running || die "still there $stop_s_max s after Ctrl-C:"$'\n'"$(others)"
    say "no process is left $((SECONDS - began)) s after Ctrl-C"
    # `script` does not always see by itself that its command has ended.
    close_terminal
    exec 3>&-
    wait $running || true
}

inside() {
    SECONDS=0
    mount_all
    [ -x "$root/usr/bin/systemctl" ] && [ ! -d "$root/run/systemd/system" ] || die "systemd is not as it should be."
    # It may have come along with the toolchain.
    as_newcomer 'rustup --quiet target remove wasm32-unknown-unknown' >/dev/null 2>&1 </dev/null || true
    if [ "$mode" = whole ]; then try_up; fi
    try_setup
}

# --- the run --------------------------------------------------------------------------------------------

# `--inside` is this script again, as the first process of a namespace: what it leaves behind ends with it.
if [ "${1:-}" = --inside ]; then
    mode=$2 work=$3 tools=$4 root=$3/root
    inside
    exit
fi

case "${1:-}" in
    '') mode=whole ;;
    --setup-only) mode=setup-only ;;
    *) die "usage: scripts/bare.sh [--setup-only]" ;;
esac
if [ "$(id -u)" != 0 ] && sudo -n true 2>/dev/null; then
    exec sudo -n -E env "PATH=$PATH" "HOME=$HOME" scripts/bare.sh "$@"
fi
look_whether_it_can

mkdir -p target
work=$(mktemp -d "$PWD/target/bare.XXXXXX")
root=$work/root inside_pid='' tools=''
clean_up() {
    trap '' INT TERM HUP
    # With its first process go all others of the namespace, and its mounts.
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
take_over_network "$root"
make_newcomer
install_rust
install_node
clone
echo "The root is there after $SECONDS s."
unshare --mount --pid --fork --kill-child scripts/bare.sh --inside $mode "$work" "$tools" &
inside_pid=$!
wait $inside_pid
inside_pid=''
echo "make bare: passed"
