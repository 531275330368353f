# shellcheck shell=bash
# What `make up-cluster` runs its cores on: a PostgreSQL, and a cluster of Redis or Valkey of three primaries with a replica
# each. dev.sh sources this. All files are in $work, which goes with them.

work=$(mktemp -d "${TMPDIR:-/tmp}/claimgate.XXXXXX")
node_ports=()
# Long enough for a replica to be promoted instead.
node_back_after_s=8

case ${SERVER:-} in
    '') if has redis-server; then server=redis; else server=valkey; fi ;;
    redis) server=redis ;;
    valkey) server=$valkey_dir/bin/valkey ;;
    *) die "SERVER is redis or valkey." ;;
esac
if has redis-cli; then redis_cli=redis-cli; else redis_cli=valkey-cli; fi
ask_node() { $redis_cli -p "$@"; }

start_postgres() {
    local initdb programs directory=$work/postgres as_owner=()
    initdb=$(compgen -G '/usr/lib/postgresql/*/bin/initdb' | sort -V | tail -n 1) || initdb=$(command -v initdb)
    programs=${initdb%/*}
    mkdir "$directory"
    if [ "$(id -u)" = 0 ]; then # which PostgreSQL refuses to be
        chmod 711 "$work"
        chown postgres: "$directory"
        # A change of the user takes the order to die with the script away, so it is given again.
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

# Starts the node at port $1, after $2 seconds. A file that was cut off in the middle of a write is mended as an operator would.
start_node() {
    local directory=$work/node-$1
    mkdir -p "$directory"
    # shellcheck disable=SC2016 # for the inner shell
    start "node-$1" "$work/node-$1.log" env -C "$directory" sh -c '
        sleep "$1"
        # By the manifest, the check of Valkey 9.1 would take its base file for a broken one.
        last=$(ls -v appendonlydir/*.incr.aof 2>/dev/null | tail -n 1)
        if [ -n "$last" ]; then echo y | "$2" --fix "$last"; fi
        shift 2
        exec "$@"' node "$2" "$server-check-aof" \
        "$server-server" --port "$1" --bind 127.0.0.1 --cluster-enabled yes --cluster-node-timeout 2000 \
        --cluster-require-full-coverage no --cluster-allow-replica-migration no \
        --appendonly yes --appendfsync always --aof-load-truncated no --save '' \
        --maxmemory 256mb --maxmemory-policy noeviction --repl-diskless-sync-delay 0
}

is_settled() { # the node at port $1
    [[ $(ask_node "$1" CLUSTER INFO) == *cluster_state:ok* ]] &&
        [[ $(ask_node "$1" INFO replication) =~ role:master|master_link_status:up ]]
}

start_cluster() {
    local i port processes=()
    for ((i = 0; i < 6; i++)); do
        free_port
        node_ports+=("$port")
        start_node "$port" 0
        processes+=($!)
    done
    for ((i = 0; i < 6; i++)); do wait_until "${processes[i]}" ask_node "${node_ports[i]}" PING; done
    $redis_cli --cluster create "${node_ports[@]/#/127.0.0.1:}" --cluster-replicas 1 --cluster-yes \
        >"$work/cluster.log" 2>&1 || die "the cluster was not made: $(tail -n 30 "$work/cluster.log")"
    for ((i = 0; i < 6; i++)); do wait_until "${processes[i]}" is_settled "${node_ports[i]}"; done
    local all="${node_ports[*]/#/127.0.0.1:}"
    export CLAIMGATE_REDIS_URL="redis+cluster://${all// /,}"
}

start_servers() {
    echo "PostgreSQL: making a database of its own …"
    start_postgres
    echo "${server##*/}: making a cluster of six nodes …"
    start_cluster
    # Of the replicas of a primary, how many have to have a claim before it is acknowledged.
    export CLAIMGATE_REDIS_REPLICAS=1
    echo "Core and edge: starting …"
}

# With the first one's secrets, which that one may have made.
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

# Sets $node to the process of that which decides the demo campaign.
find_demo_primary() {
    for node in "${!names[@]}"; do
        [[ ${names[$node]} == node-* ]] || continue
        if [ "$(ask_node "${names[$node]#node-}" EXISTS 'cg:{demo}:campaign' 2>&1)" = 1 ]; then return; fi
    done
    die "no node has the demo campaign."
}

show_cluster() {
    local process
    cat <<SHOW
  second core      http://$second_core
  its admin        http://$second_admin
  PostgreSQL       psql -h $work/postgres -U claimgate postgres
  logs of these    $work
SHOW
    for process in "${!names[@]}"; do
        [[ ${names[$process]} != node-* ]] || echo "  ${names[$process]/-/ at port }, process $process"
    done | sort
    find_demo_primary
    cat <<SHOW

  A failover:      kill -9 $node    (the primary of the demo campaign)
                   Until its replica is promoted claims get 503, which the page meets by asking again.
                   After $node_back_after_s s the node is started again, as a replica.
SHOW
}

# Whether the rest goes on now that $1 has ended.
goes_on_without() {
    case $1 in
        node-*)
            start_node "${1#node-}" "$node_back_after_s"
            echo "${1/-/ at port } ended; in $node_back_after_s s it is started again, as process $!."
            ;;
        core*)
            [[ ${names[*]} == *core* ]] && echo "$1 ended; the other one goes on."
            ;;
        *) false ;;
    esac
}
