# shellcheck shell=bash
# Processes of a script that sources this. Each leads a group of its own, so that whatever it starts can be ended with it.

declare -A names=() logs=() # of what was started, by process id

die() { echo "$*" >&2; exit 1; }

# Starts a program in the background under the name $1, with $2 for its log. pdeathsig: not even `kill -9` of the script
# leaves it running.
start() {
    local name=$1 log=$2
    shift 2
    (umask 077 && : >>"$log")
    setsid setpriv --pdeathsig TERM "$@" </dev/null >>"$log" 2>&1 &
    names[$!]=$name logs[$!]=$log
}

gone_within() { # $1 tenths of a second, $2 a process, or a group as a negative number
    local i
    for ((i = 0; i < $1; i++)); do
        kill -0 -- "$2" 2>/dev/null || return 0
        sleep 0.1
    done
    return 1
}

# Ends those whose name matches the pattern $1, all at once.
stop() {
    local process processes=()
    for process in "${!names[@]}"; do
        # shellcheck disable=SC2053 # a pattern
        if [[ ${names[$process]} == $1 ]]; then processes+=("$process"); fi
    done
    # Only the leader is signalled: core has to relay its outboxes before its Redis goes.
    for process in "${processes[@]}"; do kill -TERM "$process" 2>/dev/null || true; done
    for process in "${processes[@]}"; do
        gone_within 150 "$process" || true
        # Whatever the leader left behind; also waits until it is reaped.
        kill -KILL -- "-$process" 2>/dev/null || true
        gone_within 20 "-$process" || true
        unset "names[$process]"
    done
}

# Waits until process $1 has made the rest, a command, succeed; fails with the end of its log.
wait_until() {
    local process=$1 i
    shift
    for ((i = 0; i < 600; i++)); do
        "$@" >/dev/null 2>&1 && return
        kill -0 "$process" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 30 "${logs[$process]}" >&2
    die "${names[$process]} is not ready; the whole log is ${logs[$process]}."
}

answers_http() { curl -fso /dev/null --max-time 2 "$1"; }

is_taken() { # $1 host:port
    local host=${1%:*} port=${1##*:}
    host=${host#[} host=${host%]}
    (: <"/dev/tcp/$host/$port") 2>/dev/null
}

require_free() {
    if is_taken "$2"; then die "$2 is taken. Stop what listens there, or choose another address with $1."; fi
}

next_port=$((10000 + RANDOM % 9000)) # below those that the kernel gives to outgoing connections

# Sets $port to a free one; that 10,000 above, by which nodes of a cluster reach each other, is free too.
free_port() {
    while
        port=$next_port
        next_port=$((next_port + 1))
        is_taken "127.0.0.1:$port" || is_taken "127.0.0.1:$((port + 10000))"
    do :; done
}
