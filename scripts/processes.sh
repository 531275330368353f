# shellcheck shell=bash
# Manages the processes of a script that sources this. Each process leads its own group, so that its children end with
# it.

declare -A names=() logs=() # by process id

die() { echo "$*" >&2; exit 1; }

# Starts a program in the background under the name $1 with the log $2. pdeathsig stops the program even after `kill -9`
# of the script.
start() {
    local name=$1 log=$2
    shift 2
    (umask 077 && : >>"$log")
    setsid setpriv --pdeathsig TERM "$@" </dev/null >>"$log" 2>&1 &
    names[$!]=$name logs[$!]=$log
}

gone_within() { # TENTHS PROCESS (a negative number for a group)
    local i
    for ((i = 0; i < $1; i++)); do
        kill -0 -- "$2" 2>/dev/null || return 0
        sleep 0.1
    done
    return 1
}

# Stops all processes whose name matches the pattern $1, concurrently.
stop() {
    local process processes=()
    for process in "${!names[@]}"; do
        # shellcheck disable=SC2053 # a pattern
        if [[ ${names[$process]} == $1 ]]; then processes+=("$process"); fi
    done
    # Signals only the leader: core must relay its outboxes before its Redis stops.
    for process in "${processes[@]}"; do kill -TERM "$process" 2>/dev/null || true; done
    for process in "${processes[@]}"; do
        gone_within 150 "$process" || true
        # Kills the leader's remaining processes and waits until they are reaped.
        kill -KILL -- "-$process" 2>/dev/null || true
        gone_within 20 "-$process" || true
        unset "names[$process]"
    done
}

# Waits until a command ($2 and following) succeeds, while process $1 runs; on failure prints the end of its log.
wait_until() {
    local process=$1 i
    shift
    for ((i = 0; i < 600; i++)); do
        "$@" >/dev/null 2>&1 && return
        kill -0 "$process" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 30 "${logs[$process]}" >&2
    die "${names[$process]} did not become ready; see its log ${logs[$process]}."
}

answers_http() { curl -fso /dev/null --max-time 2 "$1"; }

is_taken() { # HOST:PORT
    local host=${1%:*} port=${1##*:}
    host=${host#[} host=${host%]}
    (: <"/dev/tcp/$host/$port") 2>/dev/null
}

require_free() {
    if is_taken "$2"; then die "$2 is already in use. Stop the process that listens there, or set another address with $1."; fi
}

next_port=$((10000 + RANDOM % 9000)) # below the kernel's range for outgoing connections

# Sets $port to a free port. Port + 10000, where cluster nodes connect to each other, is free too.
free_port() {
    while
        port=$next_port
        next_port=$((next_port + 1))
        is_taken "127.0.0.1:$port" || is_taken "127.0.0.1:$((port + 10000))"
    do :; done
}
