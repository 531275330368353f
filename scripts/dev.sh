#!/usr/bin/env bash
# `make up`, `make up-workerd` and `make up-cluster`: core and the edge with a campaign to try, until Ctrl-C; leaves no
# process behind.
#
#   scripts/dev.sh wrangler|workerd              what runs the edge
#   scripts/dev.sh wrangler|workerd cluster      two cores on a cluster of SERVER=redis|valkey and a PostgreSQL
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh
. scripts/processes.sh

core=${CLAIMGATE_LISTEN:-127.0.0.1:8080}
admin=${CLAIMGATE_ADMIN_LISTEN:-127.0.0.1:8081}
edge=${CLAIMGATE_EDGE_LISTEN:-127.0.0.1:8787}
data=${CLAIMGATE_DATA_DIR:-./data}
claimgate=${CLAIMGATE_BIN:-target/debug/claimgate}
runtime=${1:-wrangler}
topology=${2:-}
[[ $runtime =~ ^(wrangler|workerd)$ && $topology =~ ^(cluster)?$ ]] ||
    die "usage: $0 [wrangler|workerd] [cluster]"

work='' # a directory that goes when this ends
stop_all() {
    trap '' INT TERM HUP # a second Ctrl-C must not interrupt the cleaning
    stop edge
    stop 'core*'
    stop '*'
    rm -f "$data/edge.vars"
    if [ -n "$work" ]; then rm -rf "$work"; fi
}
trap stop_all EXIT
trap 'echo; echo "Stopping …"; exit 0' INT TERM HUP

[ -x "$claimgate" ] || die "$claimgate is missing: run make up."
require_free CLAIMGATE_LISTEN "$core"
require_free CLAIMGATE_ADMIN_LISTEN "$admin"
require_free CLAIMGATE_EDGE_LISTEN "$edge"

# --- core -----------------------------------------------------------------------------------------------

# $1 its name, $2 and $3 its addresses, $4 its data directory
start_core() {
    start "$1" "$4/core.log" env CLAIMGATE_LISTEN="$2" CLAIMGATE_ADMIN_LISTEN="$3" CLAIMGATE_DATA_DIR="$4" \
        "$claimgate" serve
    wait_until $! answers_http "http://$2/readyz"
}

# The logs, too, are for their owner alone. A directory that is there core makes private, or refuses.
(umask 077 && mkdir -p "$data" && : >"$data/core.log" && : >"$data/edge.log")
export CLAIMGATE_LISTEN=$core CLAIMGATE_ADMIN_LISTEN=$admin CLAIMGATE_DATA_DIR=$data

if [ "$topology" = cluster ]; then
    . scripts/cluster.sh
    start_servers
fi
behind_edge=("$core") # the cores that the edge asks
start_core core "$core" "$admin" "$data"
if [ "$topology" = cluster ]; then
    start_second_core
    behind_edge+=("$second_core")
fi

# Asked first: another day's "now" would make it another campaign.
"$claimgate" campaign show demo >/dev/null 2>&1 ||
    "$claimgate" campaign create demo --name Demo --time-zone Asia/Shanghai \
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
        urls=${behind_edge[*]/#/http://}
        { echo "CORE_URL=${urls// /,}"; settings; } >"$data/edge.vars"
    )
    # No metrics, no reports, no look-ups: the local edge works without a network.
    export WRANGLER_SEND_METRICS=false WRANGLER_SEND_ERROR_REPORTS=false WRANGLER_HIDE_BANNER=true
    export CLOUDFLARE_CF_FETCH_ENABLED=false
    start edge "$data/edge.log" wrangler dev --env local --env-file "$data/edge.vars" \
        --ip "${edge%:*}" --port "${edge##*:}" --inspector-port 0 --show-interactive-dev-session=false
}

start_workerd() {
    local setting i addresses=("core=${behind_edge[0]}")
    for ((i = 1; i < ${#behind_edge[@]}; i++)); do addresses+=("core-$((i + 1))=${behind_edge[i]}"); done
    # As in the local environment of wrangler.toml: any client may mint a token for any user.
    export DEMO=1 CORES=${#behind_edge[@]}
    while read -r setting; do export "${setting?}"; done < <(settings)
    start edge "$data/edge.log" workerd serve edge/workerd.capnp --socket-addr "http=$edge" \
        "${addresses[@]/#/--external-addr=}"
}

"start_$runtime"
wait_until $! answers_http "http://$edge/livez"

cat <<READY

  The claim page:  http://$edge/    ($runtime)
  The dashboard:   http://$admin/    (its token: $data/admin.token)
  core             http://$core
  admin, metrics   http://$admin
  logs             $data/core.log $data/edge.log
READY
if [ "$topology" = cluster ]; then show_cluster; fi
cat <<READY

  Ctrl-C stops it all.

READY

# --- until Ctrl-C, or until one ends that does not come back --------------------------------------------

while :; do
    status=0
    wait -n -p gone "${!names[@]}" 2>/dev/null || status=$? # it would say how they were killed
    name=${names[$gone]} log=${logs[$gone]}
    unset "names[$gone]"
    kill -KILL -- "-$gone" 2>/dev/null || true # whatever it left behind
    if [ "$topology" != cluster ] || ! goes_on_without "$name"; then break; fi
done
tail -n 10 "$log" >&2
die "$name ended by itself (status $status); stopping the rest."
