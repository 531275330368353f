#!/usr/bin/env bash
# Builds the images of Dockerfile as compose.yaml does, and runs them, in a separate Docker daemon. A part of `make soak`.
# Needs root and Debian's docker.io and docker-compose; without them, or in a restricted container, it is SKIPPED, with
# status 77.
#
#   tests/images.sh               all parts
#   tests/images.sh compose       compose.yaml, up to a first claim, down and up again
#   tests/images.sh restricted    core and the edge with read-only files and without capabilities, as in an installation
#   tests/images.sh demo          the demo image: a first claim within 10 s of its start
#
# RUST_IMAGE, NODE_IMAGE and DEBIAN_IMAGE name base images. Without them, the script makes its own from this machine's Debian
# packages, Rust and Node: no hub is needed. KEEP=DIRECTORY keeps images and caches there for the next run.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh
. scripts/debian.sh
. scripts/processes.sh
. scripts/expect.sh

edge=http://127.0.0.1:8787 dashboard=http://127.0.0.1:8081
# The demo image must grant a claim this long after its start.
first_claim_s_max=10
# Variables that this machine needs to reach a registry or a proxy, without secrets: an image keeps them.
forwarded_variables='^(https?_proxy|no_proxy|all_proxy|HTTPS?_PROXY|NO_PROXY|ALL_PROXY|SSL_CERT_FILE|NODE_EXTRA_CA_CERTS|CURL_CA_BUNDLE|CARGO_(HTTP|NET|SOURCE|REGISTR(Y|IES))_.*|NPM_CONFIG_.*)$'

skip() { echo "SKIPPED tests/images.sh: $*"; exit 77; }
show_logs() {
    local container
    tail -n 5 "$work"/*.log >&2 || true
    for container in $(in_docker ps --all --quiet 2>/dev/null); do in_docker logs --tail 10 "$container" >&2 || true; done
}

# --- the daemon -----------------------------------------------------------------------------------------

# Debian's programs: another installation may lack parts.
in_docker() { PATH=/usr/bin:$PATH DOCKER_HOST=unix://$work/docker.sock DOCKER_BUILDKIT=1 docker "$@"; }
in_compose() {
    PATH=/usr/bin:$PATH DOCKER_HOST=unix://$work/docker.sock DOCKER_BUILDKIT=1 COMPOSE_DOCKER_CLI_BUILD=1 BUILDKIT_PROGRESS=plain \
        docker-compose --project-name claimgate --file compose.yaml --file "$work/network.yaml" "$@"
}

# The daemon changes no rule of the firewall and no setting of the network; containers reach the network only in a build. Its
# mounts are private, or those of a killed daemon would remain.
start_daemon() {
    start daemon "$work/daemon.log" unshare --mount /usr/sbin/dockerd --data-root "$store/data" --exec-root "$work/exec" \
        --pidfile "$work/daemon.pid" --host "unix://$work/docker.sock" --bridge none --iptables=false --ip-masq=false --ip-forward=false
    within 30 in_docker version || { tail -n 3 "$work/daemon.log" >&2; return 1; }
}

# Removes what a run with KEEP left after a failure.
remove_left() {
    local left
    mapfile -t left < <(in_docker ps --all --quiet)
    if [ ${#left[@]} -gt 0 ]; then in_docker rm --force "${left[@]}"; fi
    in_docker volume prune --force
    in_docker network prune --force
} >/dev/null

# --- base images ----------------------------------------------------------------------------------------

exists() { in_docker image inspect "$1" >/dev/null 2>&1; }

# Imports the directory $store/root as the image $1, with the variables that follow.
import_root() {
    local name=$1 setting changes=()
    shift
    for setting in "$@"; do changes+=(--change "ENV $setting"); done
    while read -r setting; do changes+=(--change "ENV $setting=\"${!setting}\""); done < <(compgen -e | grep -E "$forwarded_variables" |
        grep -viE 'token|auth|password')
    tar -C "$store/root" --numeric-owner -c . | in_docker import "${changes[@]}" - "$name" >/dev/null
    rm -rf --one-file-system "$store/root"
    say "made the base image $name"
}

# A minimal Debian with apt, in which installed services do not start.
make_debian() { # PACKAGE...
    local packages=$*
    # shellcheck disable=SC2016 # for mmdebstrap's shell to expand
    make_debian_root "$store/root" --variant=minbase "--include=ca-certificates $packages" \
        --customize-hook='printf "#!/bin/sh\nexit 101\n" >"$1/usr/sbin/policy-rc.d" && chmod 755 "$1/usr/sbin/policy-rc.d"'
    copy_network_settings "$store/root"
}

make_base_images() {
    debian=${DEBIAN_IMAGE:-localhost/debian} node=${NODE_IMAGE:-localhost/node} rust=${RUST_IMAGE:-localhost/rust}
    if [ "$debian" = localhost/debian ] && ! exists "$debian"; then
        make_debian
        import_root "$debian"
    fi
    if [ "$node" = localhost/node ] && ! exists "$node"; then
        copy_node "$store/root"
        import_root "$node"
    fi
    if [ "$rust" = localhost/rust ] && ! exists "$rust"; then
        make_debian gcc libc6-dev pkg-config libssl-dev curl make openssl
        copy_rust "$store/root" /usr/local/cargo /usr/local/rustup
        import_root "$rust" CARGO_HOME=/usr/local/cargo RUSTUP_HOME=/usr/local/rustup \
            PATH=/usr/local/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    fi
}

# --- the build ------------------------------------------------------------------------------------------

logged() { "$@" >>"$work/build.log" 2>&1; }

build() {
    local arguments=(--build-arg "RUST_IMAGE=$rust" --build-arg "NODE_IMAGE=$node" --build-arg "DEBIAN_IMAGE=$debian")
    say "building core and the edge; the log is $work/build.log"
    expect "compose builds core and the edge" logged in_compose build "${arguments[@]}"
    # With compose.yaml's argument, core is not compiled again.
    expect "the demo image is built" logged in_docker build --progress plain --network host "${arguments[@]}" \
        --build-arg CARGO_PROFILE_RELEASE_LTO=thin --target demo --tag claimgate-demo .
    in_docker images --format '{{.Repository}}:{{.Tag}} {{.Size}}' | grep -v '^<none>'
}

# --- the parts ------------------------------------------------------------------------------------------

token_of() { curl -fs --max-time 5 --json "{\"user_id\":\"$1\"}" $edge/demo/token | sed 's/.*"token":"\([^"]*\)".*/\1/'; }
claims() { # USER KEY STATUS
    [ "$(curl -s --max-time 5 -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $(token_of "$1")" -H "Idempotency-Key: $2" \
        --json '{}' $edge/v1/campaigns/demo/claims)" = "$3" ]
}
# The first try may be granted although its response is lost.
has_claimed() { claims "$1" "$2" 201 || claims "$1" "$2" 200; }
demo_is_open() { contains "$(curl -fs --max-time 5 $edge/v1/campaigns/demo)" '"state":"open"'; }
page_is_shown() { contains "$(curl -fsL --max-time 5 $edge/)" '<title>claimgate'; }
lists_demo() { contains "$(curl -fs --max-time 5 -H "Authorization: Bearer $1" $dashboard/admin/v1/campaigns)" '"demo"'; }
is_healthy() { [ "$(in_docker inspect --format '{{.State.Health.Status}}' "$1")" = healthy ]; }
status_is() { [ "$(in_docker inspect --format '{{.State.Status}} {{.State.ExitCode}}' "$1")" = "$2" ]; }

try_compose() {
    local service token
    in_compose up --detach >"$work/up.log" 2>&1 || { show_logs; die "failed: docker-compose up"; }
    expect "compose starts core, creates the demo campaign and starts the edge" within 30 demo_is_open
    expect "its log names the page" contains "$(in_compose logs campaign 2>/dev/null)" "$edge/"
    expect "the page is shown" page_is_shown
    expect "a first claim is granted" claims alice first 201
    token=$(in_compose exec -T core cat /var/lib/claimgate/admin.token)
    expect "the dashboard answers" curl -fso /dev/null $dashboard/
    expect "its token lists the campaign" lists_demo "$token"
    for service in core edge; do
        expect "$service is healthy" within 30 is_healthy "$(in_compose ps --quiet $service)"
        expect "$service does not run as root" [ "$(in_compose exec -T $service id -u)" = 10001 ]
    done
    in_compose down >/dev/null 2>&1
    in_compose up --detach >>"$work/up.log" 2>&1
    expect "after down and up, the claim is still there" within 30 claims alice first 200
    in_compose down --volumes >/dev/null 2>&1
}

# Runs core and the edge with the restrictions of packaging/compose/compose.yaml, in the daemon's network.
run_restricted() { # NAME IMAGE OPTION...
    local name=$1 image=$2
    shift 2
    in_docker run --detach --name "$name" --network host --read-only --cap-drop ALL --security-opt no-new-privileges \
        --volume restricted:/var/lib/claimgate "$@" "$image" >/dev/null
}
command_line() { in_docker exec core claimgate "$@"; }
edge_claims() { # STATUS
    [ "$(curl -s --max-time 5 -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $(command_line token --user carol)" \
        -H 'Idempotency-Key: first' --json '{}' $edge/v1/campaigns/demo/claims)" = "$1" ]
}

try_restricted() {
    local program
    expect "core's image has a shell" in_docker run --rm --network none --entrypoint sh claimgate:demo -c true
    for program in cc make cargo node npm python3 curl; do
        expect "$program is not in core's image" eval "! in_docker run --rm --network none --entrypoint sh claimgate:demo -c 'command -v $program' >/dev/null"
    done
    expect "without a server, the health check fails" eval '! in_docker run --rm --network none --entrypoint health claimgate:demo 8080 /livez 2>/dev/null'
    run_restricted core claimgate:demo
    expect "core is ready with read-only files" within 30 answers_http http://127.0.0.1:8080/readyz
    command_line campaign create demo --time-zone Asia/Shanghai --total 100 --per-user 3 >/dev/null
    expect "a claim is granted" contains "$(command_line claim demo --user alice --key first)" granted
    run_restricted edge claimgate-edge:demo --env EDGE_KEY_FILE=/var/lib/claimgate/edge.key --env USER_JWT_KEY_FILE=/var/lib/claimgate/user-jwt.key
    expect "the edge is ready with read-only files" within 30 answers_http $edge/readyz
    expect "a claim is granted through the edge" edge_claims 201
    expect "without DEMO, the edge gives no token" eval '! token_of alice | grep -q .'
    in_docker stop --time 20 core >/dev/null
    expect "core stops in order on SIGTERM" status_is core 'exited 0'
    in_docker start core >/dev/null
    expect "the restarted core has the claim" within 30 edge_claims 200
    in_docker rm --force core edge >/dev/null
}

run_demo() {
    in_docker run --detach --name demo --publish 127.0.0.1:8787:8787 --publish 127.0.0.1:8081:8081 --network demo claimgate-demo >/dev/null 2>>"$work/run.log"
}

try_demo() {
    local started took
    in_docker network create demo >/dev/null
    started=$(date +%s%N)
    run_demo
    expect "the demo image grants a claim" within 60 has_claimed alice first
    took=$((($(date +%s%N) - started) / 1000000))
    expect "$took ms after its start, of at most $first_claim_s_max s" [ $took -le ${first_claim_s_max}000 ]
    expect "its log says that it is only for a first look" contains "$(in_docker logs demo 2>/dev/null)" 'ONLY FOR A FIRST LOOK'
    expect "its log names the page" contains "$(in_docker logs demo 2>/dev/null)" "$edge/"
    expect "its token lists the campaign" lists_demo "$(in_docker exec demo cat /var/lib/claimgate/admin.token)"
    expect "it is healthy" within 30 is_healthy demo
    expect "it does not run as root" [ "$(in_docker exec demo id -u)" = 10001 ]
    in_docker stop --time 20 demo >/dev/null
    expect "it stops in order on SIGTERM" status_is demo 'exited 0'
    in_docker start demo >/dev/null
    expect "started again, it has the claim" within 30 claims alice first 200
    in_docker exec demo bash -c 'kill -KILL "$(grep -lz ^/usr/lib/claimgate/edge /proc/[0-9]*/cmdline | cut -d/ -f3)"'
    expect "it ends if the edge ends" within 30 status_is demo 'exited 1'
    in_docker rm --volumes demo >/dev/null
}

# --- the run --------------------------------------------------------------------------------------------

# `--inside`: the first process of private namespaces, whose ports are free and whose end ends all containers.
if [ "${1:-}" = --inside ]; then
    work=$2 store=$3
    shift 3
    ip link set lo up
    start_daemon || die "Docker's daemon does not start in a namespace."
    remove_left
    for part in "$@"; do "try_$part"; done
    stop daemon
    exit
fi

parts=("${@:-all}")
if [ "${parts[*]}" = all ]; then parts=(compose restricted demo); fi
for part in "${parts[@]}"; do
    [[ $part =~ ^(compose|restricted|demo)$ ]] || { sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2; }
done
[ "$(id -u)" = 0 ] || skip "root is required."
debian_codename >/dev/null || skip "not a Debian system."
for program in /usr/sbin/dockerd /usr/bin/docker docker-compose mmdebstrap rustup; do
    has $program || skip "$program is missing."
done
unshare --net --mount --pid --fork true 2>/dev/null || skip "namespaces are not permitted."

mkdir -p target
work=$(mktemp -d) # not in the checkout, because a socket's path must be short
store=${KEEP:-$(mktemp -d "$PWD/target/images.XXXXXX")}
inside_pid=
clean_up() {
    if [ -n "$inside_pid" ]; then kill $inside_pid && wait $inside_pid || true; fi
    stop '*'
    rm -rf --one-file-system "$work"
    if [ -z "${KEEP:-}" ]; then rm -rf --one-file-system "$store"; fi
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP
# A daemon without a bridge builds in the machine's network.
printf 'services:\n  core: &host {build: {network: host}}\n  campaign: *host\n  edge: *host\n' >"$work/network.yaml"

start_daemon || die "Docker's daemon does not start."
make_base_images
build
stop daemon
# In the background, because bash handles a signal only after the foreground process.
unshare --net --mount --pid --mount-proc --fork --kill-child tests/images.sh --inside "$work" "$store" "${parts[@]}" &
inside_pid=$!
wait $inside_pid
inside_pid=
echo "tests/images.sh: passed"
