//! What an address of Redis leads to: one primary, or a server that core must not start with.

use std::path::Path;
use std::process::Stdio;

use support::process::{command, free_address};
use support::sentinel::Sentinel;
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
    let mut core = Core::launch(CoreOptions::default().with("CLAIMGATE_REDIS_URL", url));
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
    let mut command = command(&binary::claimgate());
    command.args(["doctor", "--json"]).env("CLAIMGATE_DATA_DIR", data).env("CLAIMGATE_REDIS_URL", url);
    command.stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = said["findings"].as_array().unwrap().iter().map(ToString::to_string);
    findings.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_replica_is_refused_at_the_start() {
    let (_primary, url) = server(&[]).await;
    let address = url.rsplit('@').next().unwrap().replace(':', " ");
    let (_replica, url) = server(&[("replicaof", &address)]).await;
    is_refused(&url, "redis.role", &["replica", "primary", "redis+sentinel://"]).await;
}

#[tokio::test]
async fn a_node_of_a_cluster_is_refused_at_the_start() {
    let bus = free_address().port().to_string();
    let (_node, url) = server(&[("cluster-enabled", "yes"), ("cluster-port", &bus)]).await;
    is_refused(&url, "redis.role", &["cluster", "redis+sentinel://"]).await;
}

#[tokio::test]
async fn a_sentinel_is_refused_at_the_start() {
    let (_primary, url) = server(&[]).await;
    let sentinel = Sentinel::start(url.rsplit('@').next().unwrap().parse().unwrap(), None).await;
    let url = format!("redis://{}", sentinel.address());
    is_refused(&url, "redis.role", &["Sentinel", "redis+sentinel://"]).await;
}

/// There may be a failover behind the address: core waits for the primary.
#[tokio::test]
async fn a_server_that_becomes_a_replica_later_is_waited_for() {
    let (server, url) = server(&[]).await;
    let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", url).start().await;
    core.create("demo", serde_json::json!({"total": 5})).await;
    core.claim("demo", "alice", "k").await.expect(201);
    let view = server.view().await;
    view.query::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    core.claim("demo", "bob", "k").await.refused(503, "unavailable");
    eventually(SOON, || async {
        let reply = core.get("/readyz").await;
        holds(reply.status == 503, || reply.text())
    })
    .await;
    view.query::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    eventually(SOON, || async {
        let reply = core.claim("demo", "bob", "k").await;
        holds(reply.status == 201, || reply.text())
    })
    .await;
    core.claim("demo", "alice", "k").await.expect(200);
}
