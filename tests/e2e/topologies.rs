//! Addresses of Redis that core can use, and servers on which core must not start.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use support::available::available;
use support::certificates::Certificates;
use support::cluster::ClusterSet;
use support::only_on;
use support::process::{Signal, command, free_address};
use support::redis_server::Kind;
use support::sentinel::{Access, SERVICE, Sentinel, SentinelSet};
use support::topology::OWN;
use support::wait::{holds, until_status};
use support::{Core, CoreOptions, RedisServer, SOON, binary, eventually, promised};

/// Appears only in addresses, so that leaks can be detected.
const PASSWORD: &str = "the-password-in-the-address";

/// Time limit until a running core exits because Redis has a different layout: core checks the layout once a
/// second.
const STOPPED_MAX: Duration = Duration::from_secs(3);

/// Starts a server whose user `core` has [`PASSWORD`], and returns its URL.
async fn server(settings: &[(&str, &str)]) -> (RedisServer, String) {
    let address = free_address();
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let listens = [("bind", ip.as_str()), ("port", port.as_str()), ("protected-mode", "no")];
    let server = RedisServer::start_with(&[&listens, settings].concat(), &[]).await;
    let user = ["ACL", "SETUSER", "core", "on", &format!(">{PASSWORD}"), "~*", "&*", "+@all"];
    server.view().await.query::<()>(&user).await;
    (server, format!("redis://core:{PASSWORD}@{address}"))
}

/// Checks that `serve` ends with status 2 and a last line that names the variable and contains `parts`. The
/// doctor must report the same under `check`.
async fn assert_refused(url: &str, check: &str, parts: &[&str]) {
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

/// Returns the doctor's findings, one per line.
async fn doctor(url: &str, data: &Path) -> String {
    doctor_with(&[("CLAIMGATE_REDIS_URL", url)], data).await
}

async fn doctor_with(environment: &[(&str, &str)], data: &Path) -> String {
    let mut command = command(&binary::claimgate());
    command.args(["doctor", "--json"]).env("CLAIMGATE_DATA_DIR", data).envs(environment.iter().copied());
    command.stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap().iter().map(ToString::to_string);
    findings.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn core_does_not_start_on_a_replica() {
    only_on!(OWN, "it starts its own servers");
    let (_primary, url) = server(&[]).await;
    let address = url.rsplit('@').next().unwrap().replace(':', " ");
    let (_replica, url) = server(&[("replicaof", &address)]).await;
    assert_refused(&url, "redis.role", &["replica", "primary", "redis+sentinel://"]).await;
}

#[tokio::test]
async fn core_does_not_start_on_a_single_cluster_node() {
    only_on!(OWN, "it starts its own servers");
    let bus = free_address().port().to_string();
    let (_node, url) = server(&[("cluster-enabled", "yes"), ("cluster-port", &bus)]).await;
    assert_refused(&url, "redis.role", &["cluster", "redis+cluster://"]).await;
}

#[tokio::test]
async fn core_does_not_start_on_a_sentinel() {
    only_on!(OWN, "it starts its own servers");
    let (_primary, url) = server(&[]).await;
    let sentinel = Sentinel::start(url.rsplit('@').next().unwrap().parse().unwrap(), Access::default()).await;
    let url = format!("redis://{}", sentinel.address());
    assert_refused(&url, "redis.role", &["Sentinel", "redis+sentinel://"]).await;
}

/// A core stops both at startup and while it serves, because it could not decide any claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_stops_on_keys_with_a_different_layout() {
    let server = RedisServer::start().await;
    let options = CoreOptions::default().with("CLAIMGATE_REDIS_URL", server.url());
    let mut first = options.clone().start().await;
    let layout: String = server.view().await.query(&["GET", "cg:layout"]).await;
    first.stop().await;
    let first = first.restart().await;
    server.view().await.query::<()>(&["SET", "cg:layout", "5"]).await;
    for (mut core, within) in [(first, promised(STOPPED_MAX)), (Core::launch(options).await, SOON)] {
        let status = core.process().wait(within).await;
        let log = core.log();
        assert_eq!(status.code(), Some(2), "{log}");
        let expected = ["CLAIMGATE_REDIS_URL: ", "layout 5", &format!("layout {layout}")];
        let last = log.lines().last().unwrap_or_default();
        assert!(expected.iter().all(|part| last.contains(part)), "{log}");
    }
}

/// A failover may be in progress behind the address, so core waits for the primary.
#[tokio::test]
async fn core_waits_for_a_server_demoted_to_a_replica() {
    only_on!(OWN, "it starts its own servers");
    let (server, url) = server(&[]).await;
    let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", url).start().await;
    core.create("demo", serde_json::json!({"total": 5})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    let view = server.view().await;
    view.query::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    core.once().claim("demo", "bob", "k").await.refused(503, "unavailable");
    until_status(SOON, &[503], async || core.get("/readyz").await).await;
    view.query::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    until_status(SOON, &[200, 201], async || core.claim("demo", "bob", "k").await).await;
    core.claim("demo", "alice", "k").await.expect(200);
}

#[tokio::test]
async fn core_does_not_start_on_a_service_unknown_to_sentinel() {
    only_on!(OWN, "it starts its own servers");
    let set = SentinelSet::start(Kind::Redis).await;
    let user = format!("core:{PASSWORD}@");
    assert_refused(&set.url_with(&user, "elsewhere"), "redis.role", &["'elsewhere'", "SENTINEL MASTERS"])
        .await;
    let servers = (0..3).map(|at| set.address(at).to_string()).collect::<Vec<_>>().join(",");
    let url = format!("redis+sentinel://{servers}/{SERVICE}");
    assert_refused(&url, "redis.role", &["is a Sentinel", "26379"]).await;
}

/// Creates core's user with minimal permissions on all servers, which only fail over on request, and returns the URL.
async fn url_with_core_user(set: &SentinelSet) -> String {
    set.never_fail_over().await;
    for server in &set.servers {
        let may = ["~cg:*", "+@all", "-@dangerous", "-@admin", "+info", "+config|get", "+client|pause"];
        let password = format!(">{PASSWORD}");
        let user = [&["ACL", "SETUSER", "core", "on", &password][..], &may].concat();
        server.view().await.query::<()>(&user).await;
    }
    set.url_with(&format!("core:{PASSWORD}@"), SERVICE)
}

/// Checks that claims are decided before and after a failover, each time on the current primary.
async fn claims_through_a_failover(set: &SentinelSet, core: &Core) {
    core.create("demo", serde_json::json!({"total": 5})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    core.sql().until("demo", 1).await;
    let clients: String = set.view(0).await.query(&["CLIENT", "LIST"]).await;
    assert!(clients.contains("user=core"), "{clients}");
    let promoted = set.view(set.fail_over().await).await;
    // Until the failover is complete, claims may still be decided on the old primary.
    eventually(SOON, || async {
        let state = promoted.state("demo").await.unwrap_or_default();
        holds(state.get("epoch") > Some(&1), || format!("not loaded on the new primary: {state:?}"))
    })
    .await;
    for (user, statuses) in [("bob", [200, 201]), ("alice", [200, 200])] {
        until_status(SOON, &statuses, async || core.claim("demo", user, "k").await).await;
    }
    assert_eq!(promoted.counter("demo", "taken").await, 2);
}

/// Checks that even a debug log contains no password.
fn assert_not_logged(core: &Core, passwords: &[&str]) {
    for password in passwords {
        assert!(!core.log().contains(password), "the log has a password:\n{}", core.log());
    }
}

const SENTINEL_PASSWORD: &str = "the-sentinels-own-password";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_servers_have_separate_passwords() {
    only_on!(OWN, "it starts its own servers");
    let access = Access { sentinel_password: Some(SENTINEL_PASSWORD), ..Access::default() };
    let set = SentinelSet::start_with(access).await;
    let url = url_with_core_user(&set).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, format!("{SENTINEL_PASSWORD}\n")).unwrap();
    let options = CoreOptions::default().with("RUST_LOG", "debug").with("CLAIMGATE_REDIS_URL", url.as_str());
    let by_file = options.clone().with("CLAIMGATE_REDIS_SENTINEL_PASSWORD_FILE", file.to_str().unwrap());
    let core = by_file.start().await;
    claims_through_a_failover(&set, &core).await;
    assert_not_logged(&core, &[PASSWORD, SENTINEL_PASSWORD]);
    let environment =
        [("CLAIMGATE_REDIS_URL", url.as_str()), ("CLAIMGATE_REDIS_SENTINEL_PASSWORD", SENTINEL_PASSWORD)];
    // The record of the owning database may be lost with the old primary; core rewrites the record within a
    // second.
    eventually(SOON, || async {
        let found = doctor_with(&environment, &core.data_dir()).await;
        let all_is_well = ["redis.sentinel", "redis.role", "redis.reachable", "redis.info", "belonging"]
            .iter()
            .all(|check| !found.contains(check));
        holds(all_is_well, || found)
    })
    .await;

    // With a wrong password, core waits and logs the reason.
    let wrong = options.with("CLAIMGATE_REDIS_SENTINEL_PASSWORD", "not-that-one");
    let core = Core::launch(wrong).await;
    core.until_logged(SOON, &["still waiting"]).await;
    core.until_logged(SOON, &["requires a different CLAIMGATE_REDIS_SENTINEL_PASSWORD"]).await;
    assert_not_logged(&core, &[PASSWORD, SENTINEL_PASSWORD, "not-that-one"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_servers_are_reached_over_tls() {
    only_on!(OWN, "it starts its own servers");
    let Some(certificates) = available("topologies: TLS", Certificates::make()) else { return };
    let set = SentinelSet::start_with(Access { tls: Some(&certificates), ..Access::default() }).await;
    let url = url_with_core_user(&set).await;
    let options = CoreOptions::default().with("CLAIMGATE_REDIS_URL", url);
    let core = options.with("SSL_CERT_FILE", certificates.file("trusted.pem")).start().await;
    claims_through_a_failover(&set, &core).await;
}

/// One of three sentinels is dead and one is stalled: core starts with the third, and the doctor reports both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_responsive_sentinel_is_enough_to_start() {
    only_on!(OWN, "it starts its own servers");
    let set = SentinelSet::start(Kind::Redis).await;
    set.never_fail_over().await;
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
async fn a_cluster_is_discovered_from_any_node() {
    only_on!(OWN, "it starts its own servers");
    let set = ClusterSet::start_without_failovers(Kind::Redis).await;
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
    // One address is dead, and one is that of a replica.
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
    assert_not_logged(&core, &[PASSWORD]);
    let found = doctor(&url, &core.data_dir()).await;
    let of_nodes = found.lines().filter(|line| line.contains("redis.maxmemory\""));
    assert_eq!(of_nodes.count(), 3, "no primary has a memory limit: {found}");
    for check in ["redis.role", "redis.reachable", "redis.info", "redis.cluster", "belonging"] {
        assert!(!found.contains(check), "{found}");
    }
    set.view(1).await.query::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]).await;
    let found = doctor(&url, &core.data_dir()).await;
    let named =
        |line: &&str| line.contains("redis.cluster_coverage") && line.contains(&set.address(1).to_string());
    assert_eq!(found.lines().filter(named).count(), 1, "{found}");
    let (_alone, url) = server(&[]).await;
    assert_refused(&url.replace("redis://", "redis+cluster://"), "redis.role", &["not a node of a cluster"])
        .await;
}
