//! What an address of Redis leads to: one primary, or a server that core must not start with.

use std::path::Path;
use std::process::Stdio;

use support::certificates::Certificates;
use support::cluster::ClusterSet;
use support::only_on;
use support::process::{Signal, command, free_address};
use support::redis_server::Kind;
use support::sentinel::{Access, SERVICE, Sentinel, SentinelSet};
use support::topology::OWN;
use support::wait::holds;
use support::{Core, CoreOptions, RedisServer, SOON, binary, eventually};

/// Stands in addresses, and nowhere else.
const PASSWORD: &str = "the-password-in-the-address";

/// A server on a free address, whose user `core` has [`PASSWORD`].
async fn server(settings: &[(&str, &str)]) -> (RedisServer, String) {
    let address = free_address();
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let listens = [("bind", ip.as_str()), ("port", port.as_str()), ("protected-mode", "no")];
    let server = RedisServer::start_with(&[&listens, settings].concat(), &[]).await;
    let user = ["ACL", "SETUSER", "core", "on", &format!(">{PASSWORD}"), "~*", "&*", "+@all"];
    server.view().await.query::<()>(&user).await;
    (server, format!("redis://core:{PASSWORD}@{address}"))
}

/// `serve` ends with status 2 and a last line that names the variable and has `parts`; the doctor finds the same under the
/// name `check`.
async fn is_refused(url: &str, check: &str, parts: &[&str]) {
    let mut core = Core::launch(CoreOptions::default().with("CLAIMGATE_REDIS_URL", url)).await;
    let status = core.process().wait(SOON).await;
    let log = core.log();
    let last = log.lines().last().unwrap_or_default();
    assert_eq!(status.code(), Some(2), "{log}");
    assert!(last.contains("CLAIMGATE_REDIS_URL: ") && parts.iter().all(|part| last.contains(part)), "{log}");
    let found = doctor(url, &core.data_dir()).await;
    let line =
        found.lines().find(|line| line.contains(check)).unwrap_or_else(|| panic!("no {check}: {found}"));
    assert!(parts.iter().all(|part| line.contains(part)), "{found}");
    for text in [log, found] {
        assert!(!text.contains(PASSWORD), "the password is shown: {text}");
    }
}

/// All that the doctor says, a finding a line.
async fn doctor(url: &str, data: &Path) -> String {
    doctor_with(&[("CLAIMGATE_REDIS_URL", url)], data).await
}

async fn doctor_with(environment: &[(&str, &str)], data: &Path) -> String {
    let mut command = command(&binary::claimgate());
    command.args(["doctor", "--json"]).env("CLAIMGATE_DATA_DIR", data).envs(environment.iter().copied());
    command.stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = said["findings"].as_array().unwrap().iter().map(ToString::to_string);
    findings.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_replica_is_refused_at_the_start() {
    only_on!(OWN, "it brings its own servers");
    let (_primary, url) = server(&[]).await;
    let address = url.rsplit('@').next().unwrap().replace(':', " ");
    let (_replica, url) = server(&[("replicaof", &address)]).await;
    is_refused(&url, "redis.role", &["replica", "primary", "redis+sentinel://"]).await;
}

#[tokio::test]
async fn a_node_of_a_cluster_is_refused_at_the_start() {
    only_on!(OWN, "it brings its own servers");
    let bus = free_address().port().to_string();
    let (_node, url) = server(&[("cluster-enabled", "yes"), ("cluster-port", &bus)]).await;
    is_refused(&url, "redis.role", &["cluster", "redis+cluster://"]).await;
}

#[tokio::test]
async fn a_sentinel_is_refused_at_the_start() {
    only_on!(OWN, "it brings its own servers");
    let (_primary, url) = server(&[]).await;
    let sentinel = Sentinel::start(url.rsplit('@').next().unwrap().parse().unwrap(), Access::default()).await;
    let url = format!("redis://{}", sentinel.address());
    is_refused(&url, "redis.role", &["Sentinel", "redis+sentinel://"]).await;
}

/// Before a core serves, and while it does: claims there would all be refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_another_layout_are_refused() {
    let server = RedisServer::start().await;
    let options = CoreOptions::default().with("CLAIMGATE_REDIS_URL", server.url());
    let mut first = options.clone().start().await;
    let layout: String = server.view().await.query(&["GET", "cg:layout"]).await;
    first.stop().await;
    let first = first.restart().await;
    server.view().await.query::<()>(&["SET", "cg:layout", "5"]).await;
    let second = Core::launch(options).await;
    for mut core in [first, second] {
        let status = core.process().wait(SOON).await;
        let log = core.log();
        assert_eq!(status.code(), Some(2), "{log}");
        let said = ["CLAIMGATE_REDIS_URL: ", "layout 5", &format!("layout {layout}")];
        let last = log.lines().last().unwrap_or_default();
        assert!(said.iter().all(|part| last.contains(part)), "{log}");
    }
}

/// There may be a failover behind the address: core waits for the primary.
#[tokio::test]
async fn a_server_that_becomes_a_replica_later_is_waited_for() {
    only_on!(OWN, "it brings its own servers");
    let (server, url) = server(&[]).await;
    let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", url).start().await;
    core.create("demo", serde_json::json!({"total": 5})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    let view = server.view().await;
    view.query::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    core.once().claim("demo", "bob", "k").await.refused(503, "unavailable");
    eventually(SOON, || async {
        let reply = core.get("/readyz").await;
        holds(reply.status == 503, || reply.text())
    })
    .await;
    view.query::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    eventually(SOON, || async {
        let reply = core.claim("demo", "bob", "k").await;
        holds(reply.status < 300, || reply.text())
    })
    .await;
    core.claim("demo", "alice", "k").await.expect(200);
}

#[tokio::test]
async fn a_service_that_no_sentinel_watches_is_refused_at_the_start() {
    only_on!(OWN, "it brings its own servers");
    let set = SentinelSet::start(Kind::Redis).await;
    let user = format!("core:{PASSWORD}@");
    is_refused(&set.url_with(&user, "elsewhere"), "redis.role", &["'elsewhere'", "SENTINEL MASTERS"]).await;
    let servers = (0..3).map(|at| set.address(at).to_string()).collect::<Vec<_>>().join(",");
    let url = format!("redis+sentinel://{servers}/{SERVICE}");
    is_refused(&url, "redis.role", &["is a Sentinel", "26379"]).await;
}

/// What core's user may do on the servers: what it needs.
async fn with_user(set: &SentinelSet) -> String {
    for server in &set.servers {
        let may = ["~cg:*", "+@all", "-@dangerous", "-@admin", "+info", "+config|get"];
        let password = format!(">{PASSWORD}");
        let user = [&["ACL", "SETUSER", "core", "on", &password][..], &may].concat();
        server.view().await.query::<()>(&user).await;
    }
    set.url_with(&format!("core:{PASSWORD}@"), SERVICE)
}

/// A claim is decided before and after a failover, on the primary of each time.
async fn claims_through_a_failover(set: &SentinelSet, core: &Core) {
    core.create("demo", serde_json::json!({"total": 5})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    core.sql().until("demo", 1).await;
    let clients: String = set.view(0).await.query(&["CLIENT", "LIST"]).await;
    assert!(clients.contains("user=core"), "{clients}");
    let promoted = set.view(set.fail_over().await).await;
    // Before that, claims may still be decided where they were.
    eventually(SOON, || async {
        let state = promoted.state("demo").await.unwrap_or_default();
        holds(state.get("epoch") > Some(&1), || format!("not loaded on the new primary: {state:?}"))
    })
    .await;
    for (user, statuses) in [("bob", [200, 201]), ("alice", [200, 200])] {
        eventually(SOON, || async {
            let reply = core.claim("demo", user, "k").await;
            holds(statuses.contains(&reply.status), || reply.text())
        })
        .await;
    }
    assert_eq!(promoted.counter("demo", "taken").await, 2);
}

/// Even such a log keeps the passwords.
fn keeps(core: &Core, passwords: &[&str]) {
    for password in passwords {
        assert!(!core.log().contains(password), "the log has a password:\n{}", core.log());
    }
}

const SENTINEL_PASSWORD: &str = "the-sentinels-own-password";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_servers_have_passwords_of_their_own() {
    only_on!(OWN, "it brings its own servers");
    let access = Access { sentinel_password: Some(SENTINEL_PASSWORD), ..Access::default() };
    let set = SentinelSet::start_with(access).await;
    let url = with_user(&set).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, format!("{SENTINEL_PASSWORD}\n")).unwrap();
    let options = CoreOptions::default().with("RUST_LOG", "debug").with("CLAIMGATE_REDIS_URL", url.as_str());
    let by_file = options.clone().with("CLAIMGATE_REDIS_SENTINEL_PASSWORD_FILE", file.to_str().unwrap());
    let core = by_file.start().await;
    claims_through_a_failover(&set, &core).await;
    keeps(&core, &[PASSWORD, SENTINEL_PASSWORD]);
    let environment =
        [("CLAIMGATE_REDIS_URL", url.as_str()), ("CLAIMGATE_REDIS_SENTINEL_PASSWORD", SENTINEL_PASSWORD)];
    // Whose it is may have been lost with the old primary; core records that again within a second.
    eventually(SOON, || async {
        let found = doctor_with(&environment, &core.data_dir()).await;
        let all_is_well = ["redis.sentinel", "redis.role", "redis.reachable", "redis.info", "belonging"]
            .iter()
            .all(|check| !found.contains(check));
        holds(all_is_well, || found)
    })
    .await;

    // With another one core waits, and says for what.
    let wrong = options.with("CLAIMGATE_REDIS_SENTINEL_PASSWORD", "not-that-one");
    let core = Core::launch(wrong).await;
    eventually(SOON, || async {
        let log = core.log();
        let said =
            log.contains("still waiting") && log.contains("wants another CLAIMGATE_REDIS_SENTINEL_PASSWORD");
        holds(said, || log.clone())
    })
    .await;
    keeps(&core, &[PASSWORD, SENTINEL_PASSWORD, "not-that-one"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_servers_behind_tls() {
    only_on!(OWN, "it brings its own servers");
    let certificates = match Certificates::make() {
        Ok(certificates) => certificates,
        Err(why) => return println!("topologies: TLS SKIPPED: {why}"),
    };
    let set = SentinelSet::start_with(Access { tls: Some(&certificates), ..Access::default() }).await;
    let url = with_user(&set).await;
    let options = CoreOptions::default().with("CLAIMGATE_REDIS_URL", url);
    let core = options.with("SSL_CERT_FILE", certificates.file("trusted.pem")).start().await;
    claims_through_a_failover(&set, &core).await;
}

/// Of three sentinels one is dead and one stands still: core starts with the third, and the doctor names the two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sentinel_that_answers_is_enough_to_start() {
    only_on!(OWN, "it brings its own servers");
    let set = SentinelSet::start(Kind::Redis).await;
    let url = set.url();
    set.sentinels[0].signal(Signal::KILL);
    set.sentinels[1].signal(Signal::STOP);
    let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", url.as_str()).start().await;
    core.create("demo", serde_json::json!({"total": 5})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    let found = doctor(&url, &core.data_dir()).await;
    let named = found.lines().filter(|line| line.contains("redis.sentinel") && line.contains("warning"));
    assert_eq!(named.count(), 2, "{found}");
    assert!(!found.contains("redis.reachable") && !found.contains("redis.role"), "{found}");
    set.sentinels[1].signal(Signal::CONT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_known_from_any_of_its_nodes() {
    only_on!(OWN, "it brings its own servers");
    let set = ClusterSet::start(Kind::Redis).await;
    for node in &set.nodes {
        let password = format!(">{PASSWORD}");
        let user = ["ACL", "SETUSER", "core", "on", &password, "~cg:*", "+@all"];
        let may = [
            "-@dangerous",
            "-@admin",
            "+info",
            "+config|get",
            "+cluster|slots",
            "+cluster|info",
            "+cluster|myid",
        ];
        node.view().await.query::<()>(&[&user[..], &may].concat()).await;
    }
    // One address is dead, one that of a replica.
    let url = format!("redis+cluster://core:{PASSWORD}@{},{}", free_address(), set.address(4));
    let core = CoreOptions::default().with("RUST_LOG", "debug").with("CLAIMGATE_REDIS_URL", url.as_str());
    let core = core.start().await;
    for campaign in ["c0", "c1", "c2"] {
        core.create(campaign, serde_json::json!({"total": 1})).await;
        core.claim(campaign, "alice", "k").await.expect(201);
        core.claim(campaign, "alice", "k").await.expect(200);
        core.claim(campaign, "bob", "k").await.refused(409, "sold_out");
        core.sql().until(campaign, 1).await;
        let primary = set.view(set.primary_of(campaign, 0).await).await;
        assert_eq!(primary.counter(campaign, "taken").await, 1);
    }
    keeps(&core, &[PASSWORD]);
    let found = doctor(&url, &core.data_dir()).await;
    let of_nodes = found.lines().filter(|line| line.contains("redis.maxmemory\""));
    assert_eq!(of_nodes.count(), 3, "each primary has no bound on its memory: {found}");
    for check in ["redis.role", "redis.reachable", "redis.info", "redis.cluster", "belonging"] {
        assert!(!found.contains(check), "{found}");
    }
    set.view(1).await.query::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]).await;
    let found = doctor(&url, &core.data_dir()).await;
    let named =
        |line: &&str| line.contains("redis.cluster_coverage") && line.contains(&set.address(1).to_string());
    assert_eq!(found.lines().filter(named).count(), 1, "{found}");
    let (_alone, url) = server(&[]).await;
    is_refused(&url.replace("redis://", "redis+cluster://"), "redis.role", &["no node of a cluster"]).await;
}
