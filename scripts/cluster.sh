# shellcheck shell=bash
# The servers of `make up-cluster`: PostgreSQL, and a Redis or Valkey cluster of three primaries with a replica each.
# dev.sh sources this. All files are in $work, which is removed at the end.

work=$(mktemp -d "${TMPDIR:-/tmp}/claimgate.XXXXXX")
node_ports=()
# Seconds until a killed node restarts; long enough that a replica is promoted first.
node_restart_after_s=8

case ${SERVER:-} in
    '') if has redis-server; then server=redis; else server=valkey; fi ;;
    redis) server=redis ;;
    valkey) server=$valkey_dir/bin/valkey ;;
    *) die "SERVER must be redis or valkey." ;;
esac
if has redis-cli; then redis_cli=redis-cli; else redis_cli=valkey-cli; fi
node_cli() { $redis_cli -p "$@"; }

start_postgres() {
    local initdb programs directory=$work/postgres as_owner=()
    initdb=$(compgen -G '/usr/lib/postgresql/*/bin/initdb' | sort -V | tail -n 1) || initdb=$(command -v initdb)
    programs=${initdb%/*}
    mkdir "$directory"
    if [ "$(id -u)" = 0 ]; then # PostgreSQL refuses to run as root
        chmod 711 "$work"
        chown postgres: "$directory"
        # Changing the user clears the parent-death signal, so it is set again.
        as_owner=(setpriv --reuid=postgres --regid=postgres --clear-groups --pdeathsig TERM)
    fi
    env -C "$directory" "${as_owner[@]}" "$initdb" --no-sync --auth trust --encoding UTF8 --locale C \
        --username claimgate --pgdata "$directory/data" >"$work/initdb.log" 2>&1 ||
        die "initdb failed: $(cat "$work/initdb.log")"
    start postgres "$work/postgres.log" env -C "$directory" "${as_owner[@]}" \
        "$programs/postgres" -D "$directory/data" -k "$directory" -h ''
    wait_until $! "$programs/pg_isready" --quiet --host "$directory"
    export CLAIMGATE_DATABASE_URL="postgres://claimgate@localhost/postgres?host=$directory"
}

# Starts the node at port $1 after $2 seconds. Repairs a file that was truncated in the middle of a
# write, as an operator would.
start_node() {
    local directory=$work/node-$1
    mkdir -p "$directory"
    # shellcheck disable=SC2016 # for the inner shell
    start "node-$1" "$work/node-$1.log" env -C "$directory" sh -c '
        sleep "$1"
        # Given the manifest, the check of Valkey 9.1 would report its base file as broken.
        last=$(ls -v appendonlydir/*.incr.aof 2>/dev/null | tail -n 1)
        if [ -n "$last" ]; then echo y | "$2" --fix "$last"; fi
        shift 2
        exec "$@"' node "$2" "$server-check-aof" \
        "$server-server" --port "$1" --bind 127.0.0.1 --cluster-enabled yes --cluster-node-timeout 2000 \
        --cluster-require-full-coverage no --cluster-allow-replica-migration no \
        --appendonly yes --appendfsync always --aof-load-truncated no --save '' \
        --maxmemory 256mb --maxmemory-policy noeviction --repl-diskless-sync-delay 0
}

node_is_ready() { # PORT
    [[ $(node_cli "$1" CLUSTER INFO) == *cluster_state:ok* ]] &&
        [[ $(node_cli "$1" INFO replication) =~ role:master|master_link_status:up ]]
}

start_cluster() {
    local i port processes=()
    for ((i = 0; i < 6; i++)); do
        free_port
        node_ports+=("$port")
        start_node "$port" 0
        processes+=($!)
    done
    for ((i = 0; i < 6; i++)); do wait_until "${processes[i]}" node_cli "${node_ports[i]}" PING; done
    $redis_cli --cluster create "${node_ports[@]/#/127.0.0.1:}" --cluster-replicas 1 --cluster-yes \
        >"$work/cluster.log" 2>&1 || die "creating the cluster failed: $(tail -n 30 "$work/cluster.log")"
    for ((i = 0; i < 6; i++)); do wait_until "${processes[i]}" node_is_ready "${node_ports[i]}"; done
    local all="${node_ports[*]/#/127.0.0.1:}"
    export CLAIMGATE_REDIS_URL="redis+cluster://${all// /,}"
}

start_servers() {
    echo "PostgreSQL: creating a database …"
    start_postgres
    echo "${server##*/}: creating a cluster of six nodes …"
    start_cluster
    # Number of a primary's replicas that must have a claim before core acknowledges it.
    export CLAIMGATE_REDIS_REPLICAS=1
    echo "Core and edge: starting …"
}

# Uses the first core's secrets, which that core may have generated.
start_second_core() {
    local secret
    free_port && second_core=127.0.0.1:$port
    free_port && second_admin=127.0.0.1:$port
    mkdir "$work/core-2"
    for secret in admin.token edge.key user-jwt.key; do
        if [ -e "$data/$secret" ]; then cp "$data/$secret" "$work/core-2/"; fi
    done
    start_core core-2 "$second_core" "$second_admin" "$work/core-2"
}

# Sets $node to the process of the primary that decides the demo campaign.
find_demo_primary() {
    for node in "${!names[@]}"; do
        [[ ${names[$node]} == node-* ]] || continue
        if [ "$(node_cli "${names[$node]#node-}" EXISTS 'cg:{demo}:campaign' 2>&1)" = 1 ]; then return; fi
    done
    die "no node has the demo campaign."
}

show_cluster() {
    local process
    cat <<SHOW
  second core      http://$second_core
  its admin        http://$second_admin
  PostgreSQL       psql -h $work/postgres -U claimgate postgres
  their logs       $work
SHOW
    for process in "${!names[@]}"; do
        [[ ${names[$process]} != node-* ]] || echo "  ${names[$process]/-/ at port }, process $process"
    done | sort
    find_demo_primary
    cat <<SHOW

  To fail over:    kill -9 $node    (the primary of the demo campaign)
                   Claims get 503 until its replica is promoted; the page retries them.
                   The node restarts as a replica after $node_restart_after_s s.
SHOW
}

# Returns whether the other processes continue without $1, which has ended. Restarts a node.
continues_without() {
    case $1 in
        node-*)
            start_node "${1#node-}" "$node_restart_after_s"
            echo "${1/-/ at port } ended; it restarts in $node_restart_after_s s as process $!."
            ;;
        core*)
            [[ ${names[*]} == *core* ]] && echo "$1 ended; the other core continues."
            ;;
        *) false ;;
    esac
}
