#!/usr/bin/env bash
# `make up`, `make up-workerd` and `make up-cluster`: runs core and edge with a demo campaign until Ctrl-C, and leaves
# no process behind.
#
#   scripts/dev.sh wrangler|workerd              the program that runs the edge
#   scripts/dev.sh wrangler|workerd cluster      with two cores, PostgreSQL and a cluster of SERVER=redis|valkey
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

work='' # a directory that is removed at the end
stop_all() {
    trap '' INT TERM HUP # a second Ctrl-C must not interrupt the cleanup
    stop edge
    stop 'core*'
    stop '*'
    rm -f "$data/edge.vars"
    if [ -n "$work" ]; then rm -rf "$work"; fi
}
trap stop_all EXIT
trap 'echo; echo "Stopping …"; exit 0' INT TERM HUP

[ -x "$claimgate" ] || die "$claimgate is missing: run make up."
# wrangler does not end after a failed build.
node scripts/build-brand.mjs || die 'Correct the brand files (docs/own-page.md#your-brand).'
require_free CLAIMGATE_LISTEN "$core"
require_free CLAIMGATE_ADMIN_LISTEN "$admin"
require_free CLAIMGATE_EDGE_LISTEN "$edge"

# --- core -----------------------------------------------------------------------------------------------

# Starts a core: name, address, admin address, data directory
start_core() {
    start "$1" "$4/core.log" env CLAIMGATE_LISTEN="$2" CLAIMGATE_ADMIN_LISTEN="$3" CLAIMGATE_DATA_DIR="$4" \
        "$claimgate" serve
    wait_until $! answers_http "http://$2/readyz"
}

# Only the owner may read the logs. Core makes an existing directory private or rejects it.
(umask 077 && mkdir -p "$data" && : >"$data/core.log" && : >"$data/edge.log")
export CLAIMGATE_LISTEN=$core CLAIMGATE_ADMIN_LISTEN=$admin CLAIMGATE_DATA_DIR=$data
export CLAIMGATE_PAGE_URL=${CLAIMGATE_PAGE_URL:-http://$edge}

if [ "$topology" = cluster ]; then
    . scripts/cluster.sh
    start_servers
fi
edge_cores=("$core") # the cores that the edge calls
start_core core "$core" "$admin" "$data"
if [ "$topology" = cluster ]; then
    start_second_core
    edge_cores+=("$second_core")
fi

scripts/demo-campaign.sh "$claimgate"

# --- edge -----------------------------------------------------------------------------------------------

# Prints a secret of core: from the variable $1, the file named by $1_FILE, or the generated file $2.
secret() {
    local value=$1 file=$1_FILE
    if [ -n "${!value:-}" ]; then echo "${!value}"; else cat "${!file:-$data/$2}"; fi
}

edge_keys=$(secret CLAIMGATE_EDGE_KEYS edge.key)
user_jwt_key=$(secret CLAIMGATE_USER_JWT_KEY user-jwt.key)

# Prints core's settings that the edge shares. `ps` shows arguments, so these are passed in a file or the environment.
settings() {
    cat <<VARS
EDGE_KEY=${edge_keys%%,*}
USER_JWT_KEY=$user_jwt_key
USER_JWT_ISS=${CLAIMGATE_USER_JWT_ISS:-claimgate}
USER_JWT_AUD=${CLAIMGATE_USER_JWT_AUD:-claimgate}
VARS
}

start_wrangler() {
    # This file overrides wrangler.toml and is removed at the end.
    (
        umask 077
        urls=${edge_cores[*]/#/http://}
        { echo "CORE_URL=${urls// /,}"; settings; } >"$data/edge.vars"
    )
    # No metrics, error reports or lookups: the local edge works without a network.
    export WRANGLER_SEND_METRICS=false WRANGLER_SEND_ERROR_REPORTS=false WRANGLER_HIDE_BANNER=true
    export CLOUDFLARE_CF_FETCH_ENABLED=false
    start edge "$data/edge.log" wrangler dev --env local --env-file "$data/edge.vars" \
        --ip "${edge%:*}" --port "${edge##*:}" --inspector-port 0 --show-interactive-dev-session=false
}

start_workerd() {
    local setting i addresses=("core=${edge_cores[0]}")
    for ((i = 1; i < ${#edge_cores[@]}; i++)); do addresses+=("core-$((i + 1))=${edge_cores[i]}"); done
    # As in wrangler.toml's local environment: any client may mint a token for any user.
    export DEMO=1 DEFAULT_CAMPAIGN=demo CORES=${#edge_cores[@]}
    while read -r setting; do export "${setting?}"; done < <(settings)
    start edge "$data/edge.log" workerd serve edge/workerd.capnp --socket-addr "http=$edge" \
        "${addresses[@]/#/--external-addr=}"
}

"start_$runtime"
wait_until $! answers_http "http://$edge/readyz"

cat <<READY

  The claim page:  http://$edge/    ($runtime)
  The dashboard:   http://$admin/    (token: $data/admin.token)
  core             http://$core
  admin, metrics   http://$admin
  logs             $data/core.log $data/edge.log
READY
if [ "$topology" = cluster ]; then show_cluster; fi
cat <<READY

  Ctrl-C stops everything.

READY

# --- wait for Ctrl-C, or for the exit of a process that is not restarted ---------------------------------

while :; do
    status=0
    wait -n -p gone "${!names[@]}" 2>/dev/null || status=$? # bash would report how they were killed
    name=${names[$gone]} log=${logs[$gone]}
    unset "names[$gone]"
    kill -KILL -- "-$gone" 2>/dev/null || true # its remaining processes
    if [ "$topology" != cluster ] || ! continues_without "$name"; then break; fi
done
tail -n 10 "$log" >&2
die "$name ended unexpectedly (status $status); stopping the rest."
