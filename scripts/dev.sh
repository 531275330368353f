#!/usr/bin/env bash
# `make up` and `make up-workerd`: core and the edge with a campaign to try, until Ctrl-C; leaves no process behind.
#
#   scripts/dev.sh wrangler|workerd    what runs the edge
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

core=${CLAIMGATE_LISTEN:-127.0.0.1:8080}
admin=${CLAIMGATE_ADMIN_LISTEN:-127.0.0.1:8081}
edge=${CLAIMGATE_EDGE_LISTEN:-127.0.0.1:8787}
data=${CLAIMGATE_DATA_DIR:-./data}
claimgate=target/release/claimgate
runtime=${1:-wrangler}

die() { echo "$*" >&2; exit 1; }
[[ $runtime =~ ^(wrangler|workerd)$ ]] || die "usage: $0 [wrangler|workerd]"

# --- processes: each leads a group of its own, so that whatever it starts can be ended with it ----------

core_pid='' edge_pid=''

# pdeathsig: not even `kill -9` of this script leaves them running.
start() { setsid setpriv --pdeathsig TERM "$@" </dev/null & }

gone_within() { # $1 tenths of a second, $2 a process, or a group as a negative number
    local i
    for ((i = 0; i < $1; i++)); do
        kill -0 -- "$2" 2>/dev/null || return 0
        sleep 0.1
    done
    return 1
}

stop() {
    [ -n "$1" ] || return 0
    # Only the leader is signalled: core has to relay its outboxes before its Redis goes.
    kill -TERM "$1" 2>/dev/null || true
    gone_within 150 "$1" || true
    # Whatever the leader left behind; also waits until it is reaped.
    kill -KILL -- "-$1" 2>/dev/null || true
    gone_within 20 "-$1" || true
}

stop_all() {
    trap '' INT TERM HUP # a second Ctrl-C must not interrupt the cleaning
    stop "$edge_pid"
    stop "$core_pid"
    rm -f "$data/edge.vars"
}
trap stop_all EXIT
trap 'echo; echo "Stopping …"; exit 0' INT TERM HUP

# $1 answers 2xx, and until then its process $2 is alive; else the end of its log $3.
wait_for() {
    local i
    for ((i = 0; i < 600; i++)); do
        curl -fso /dev/null --max-time 2 "$1" && return
        kill -0 "$2" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 30 "$3" >&2
    die "$1 does not answer; the whole log is $3."
}

require_free() {
    local host=${2%:*} port=${2##*:}
    host=${host#[} host=${host%]}
    if (: <"/dev/tcp/$host/$port") 2>/dev/null; then
        die "$2 is taken. Stop what listens there, or choose another address with $1."
    fi
}

# --- core -----------------------------------------------------------------------------------------------

[ -x $claimgate ] || die "$claimgate is missing: run make up."
require_free CLAIMGATE_LISTEN "$core"
require_free CLAIMGATE_ADMIN_LISTEN "$admin"
require_free CLAIMGATE_EDGE_LISTEN "$edge"

# The logs, too, are for their owner alone. A directory that is there core makes private, or refuses.
(umask 077 && mkdir -p "$data" && : >"$data/core.log" && : >"$data/edge.log")
export CLAIMGATE_LISTEN=$core CLAIMGATE_ADMIN_LISTEN=$admin CLAIMGATE_DATA_DIR=$data

start $claimgate serve >"$data/core.log" 2>&1
core_pid=$!
wait_for "http://$core/readyz" $core_pid "$data/core.log"

# Asked first: another day's "now" would make it another campaign.
$claimgate campaign show demo >/dev/null 2>&1 ||
    $claimgate campaign create demo --name Demo --time-zone Asia/Shanghai \
        --ends-at "$(date -u -d '+30 days' +%FT%TZ)" \
        --total 100 --per-user 3 --per-user-per-day 1 --per-claim 1 >/dev/null

# --- edge -----------------------------------------------------------------------------------------------

# A secret as core has it: from the variable, the file it names, or what core generated.
secret() {
    local value=$1 file=$1_FILE
    if [ -n "${!value:-}" ]; then echo "${!value}"; else cat "${!file:-$data/$2}"; fi
}

edge_keys=$(secret CLAIMGATE_EDGE_KEYS edge.key)
user_jwt_key=$(secret CLAIMGATE_USER_JWT_KEY user-jwt.key)

# The edge's settings as core has them. Arguments show in `ps`, so they go by file or by environment.
settings() {
    cat <<VARS
EDGE_KEY=${edge_keys%%,*}
USER_JWT_KEY=$user_jwt_key
USER_JWT_ISS=${CLAIMGATE_USER_JWT_ISS:-claimgate}
USER_JWT_AUD=${CLAIMGATE_USER_JWT_AUD:-claimgate}
VARS
}

start_wrangler() {
    # The file outranks wrangler.toml and goes when we go.
    (
        umask 077
        { echo "CORE_URL=http://$core"; settings; } >"$data/edge.vars"
    )
    # No metrics, no reports, no look-ups: the local edge works without a network.
    export WRANGLER_SEND_METRICS=false WRANGLER_SEND_ERROR_REPORTS=false WRANGLER_HIDE_BANNER=true
    export CLOUDFLARE_CF_FETCH_ENABLED=false
    start wrangler dev --env local --env-file "$data/edge.vars" --ip "${edge%:*}" --port "${edge##*:}" \
        --inspector-port 0 --show-interactive-dev-session=false >"$data/edge.log" 2>&1
}

start_workerd() {
    local setting
    # As in the local environment of wrangler.toml: any client may mint a token for any user.
    export DEMO=1
    while read -r setting; do export "${setting?}"; done < <(settings)
    start workerd serve edge/workerd.capnp --socket-addr "http=$edge" --external-addr "core=$core" \
        >"$data/edge.log" 2>&1
}

"start_$runtime"
edge_pid=$!
wait_for "http://$edge/livez" $edge_pid "$data/edge.log"

cat <<READY

  The claim page:  http://$edge/    ($runtime)
  core             http://$core
  admin, metrics   http://$admin
  logs             $data/core.log $data/edge.log

  Ctrl-C stops it all.

READY

status=0
wait -n $core_pid $edge_pid || status=$?
if kill -0 $core_pid 2>/dev/null; then gone=edge; else gone=core; fi
tail -n 10 "$data/$gone.log" >&2
die "$gone ended by itself (status $status); stopping the rest."
