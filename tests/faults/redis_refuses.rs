//! Redis that answers but cannot work: out of memory, without its required replicas, demoted to a replica, or
//! unable to write its file. Core notices within 5 s, reports it, and continues once the fault ends.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use support::process::{Signal, signal_pid};
use support::sql::Sql;
use support::topology::OWN;
use support::wait::{holds, until_status};
use support::{Core, CoreOptions, RedisServer, RedisView, SOON, eventually, only_on, promised};

use crate::tally::Row;

/// Time limit for core to report that Redis cannot work, and later that Redis works again.
const REPORT_MAX: Duration = Duration::from_secs(5);

/// Waits until readiness and metrics report that Redis is down with this reason, or that Redis works.
async fn until_reported(core: &Core, reason: Option<&str>) {
    eventually(promised(REPORT_MAX), || async {
        let ready = core
            .client()
            .once()
            .try_get(&core.url("/readyz"), "")
            .await
            .map_err(|error| error.to_string())?;
        match reason {
            Some(reason) => holds(ready.status == 503 && ready.text().contains(reason), || ready.text())?,
            None => holds(ready.status == 200 && ready.json()["redis"] == "up", || ready.text())?,
        }
        let up: Option<u8> = core.metric("claimgate_up{part=\"redis\"}").await;
        holds(up == Some(u8::from(reason.is_none())), || format!("claimgate_up is {up:?}"))
    })
    .await;
}

/// Checks that core notices a Redis that cannot work without any claim; `begin` starts the fault, `end` ends
/// it.
async fn is_reported(
    what: &str,
    reason: &str,
    begin: impl AsyncFn(&RedisView),
    end: impl AsyncFn(&RedisView),
) {
    only_on!(OWN, "it starts its own server");
    let row = Row::begin(format!("Redis answers but cannot work: {what}"));
    let server = RedisServer::start_with(&[("maxmemory", "64mb")], &[]).await;
    let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", server.url()).start().await;
    core.create("demo", json!({"total": 10})).await;
    core.claim("demo", "before", "k").await.expect(201);
    until_reported(&core, None).await;
    let redis = server.view().await;
    row.fault();
    begin(&redis).await;
    until_reported(&core, Some(reason)).await;
    let refused = core.once().claim("demo", "meanwhile", "k").await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    end(&redis).await;
    until_reported(&core, None).await;
    until_status(SOON, &[200, 201], async || core.claim("demo", "after", "k").await).await;
    row.passed(3, "noticed in time");
}

async fn set(redis: &RedisView, name: &str, value: &str) {
    redis.query::<String>(&["CONFIG", "SET", name, value]).await;
}

/// Checks that core reports a fault caused by a setting: `fault` is its value during the fault, `end` the
/// value that ends it.
async fn setting_is_reported(what: &str, reason: &str, name: &str, [fault, end]: [&str; 2]) {
    let change = |value| async move |redis: &RedisView| set(redis, name, value).await;
    is_reported(what, reason, change(fault), change(end)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_reports_redis_out_of_memory() {
    setting_is_reported("out of memory", "no_space", "maxmemory", ["1mb", "64mb"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_reports_redis_without_its_required_replicas() {
    let name = "min-replicas-to-write";
    setting_is_reported(name, "no_replicas", name, ["1", "0"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_reports_redis_demoted_to_a_replica() {
    let begin = async |redis: &RedisView| {
        redis.query::<String>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    };
    let end = async |redis: &RedisView| {
        redis.query::<String>(&["REPLICAOF", "NO", "ONE"]).await;
    };
    is_reported("demoted to a replica", "read_only", begin, end).await;
}

/// Causes `stop-writes-on-bgsave-error` with a directory at the snapshot's path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_reports_redis_unable_to_write_snapshots() {
    let begin = async |redis: &RedisView| {
        let [_, directory]: [String; 2] = redis.query(&["CONFIG", "GET", "dir"]).await;
        std::fs::create_dir(format!("{directory}/dump.rdb")).unwrap();
        set(redis, "save", "3600 1").await;
        redis.query::<String>(&["BGSAVE"]).await;
    };
    let end = async |redis: &RedisView| set(redis, "save", "").await;
    is_reported("cannot write its snapshot", "refused", begin, end).await;
}

/// Closes core's connections to a Redis that then accepts `free` of them, and one of the test.
async fn limit_connections(redis: &RedisView, free: usize) {
    set(redis, "maxclients", &(free + 1).to_string()).await;
    redis.query::<u64>(&["CLIENT", "KILL", "TYPE", "normal"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_reports_redis_without_a_free_connection() {
    let begin = async |redis: &RedisView| limit_connections(redis, 0).await;
    let end = async |redis: &RedisView| set(redis, "maxclients", "100").await;
    is_reported("no connection left (maxclients)", "Redis is unavailable", begin, end).await;
}

/// Waits until this many clients are connected to Redis: core's connections and the test's.
async fn until_clients_are(redis: &RedisView, count: usize) {
    eventually(SOON, || async {
        let clients: String = redis.query(&["CLIENT", "LIST"]).await;
        holds(clients.lines().count() == count, || clients)
    })
    .await;
}

/// All threads of core share the only connection that Redis accepts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_on_the_last_connection_of_redis() {
    only_on!(OWN, "it starts its own server");
    let row = Row::begin("Redis accepts one connection");
    let server = RedisServer::start_with(&[], &[]).await;
    let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", server.url()).start().await;
    core.create("demo", json!({})).await;
    core.claim("demo", "before", "k").await.expect(201);
    let redis = server.view().await;
    row.fault();
    limit_connections(&redis, 1).await;
    until_status(SOON, &[200, 201], async || core.claim("demo", "first", "k").await).await;
    let mut repeats = Vec::new();
    for round in 0..5 {
        // Enough concurrent connections that each thread has some.
        let users = (0..16).map(|user| format!("u{round}-{user}")).collect::<Vec<_>>();
        let replies = join_all(users.iter().map(|user| core.claim("demo", user, "k"))).await;
        repeats.push(replies.into_iter().map(|reply| reply.expect(201).repeats).sum::<u32>());
    }
    // A stalled Redis answers late in some of the rounds.
    assert!(repeats.contains(&0), "claims got 503 in each round: {repeats:?}");
    until_clients_are(&redis, 2).await;
    until_reported(&core, None).await;
    Sql::in_directory(&core.data_dir()).until("demo", 82).await;
    row.passed(82, "claims continued");
}

/// Core's old connection, which it no longer uses, must not take the only place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_continue_after_redis_with_one_connection_was_stopped() {
    only_on!(OWN, "it starts its own server");
    let row = Row::begin("Redis accepts one connection, and stops for a while");
    let server = RedisServer::start_with(&[], &[]).await;
    let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", server.url()).start().await;
    core.create("demo", json!({})).await;
    let redis = server.view().await;
    limit_connections(&redis, 1).await;
    until_status(SOON, &[200, 201], async || core.claim("demo", "first", "k").await).await;
    row.fault();
    signal_pid(server.pid(), Signal::STOP);
    // Core ends the connection's generation once a claim has waited for a second.
    let stopped = core.once().claim("demo", "second", "k").await;
    signal_pid(server.pid(), Signal::CONT);
    assert_eq!(stopped.status, 503, "{}", stopped.text());
    until_status(SOON, &[200, 201], async || core.claim("demo", "second", "k").await).await;
    until_clients_are(&redis, 2).await;
    until_reported(&core, None).await;
    Sql::in_directory(&core.data_dir()).until("demo", 2).await;
    row.passed(2, "core connected again");
}

/// With a user that may not run or load scripts, or a command in them, Redis answers everything but claims. Core
/// checks this once a claim has been refused, and reports it until Redis runs the scripts again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn core_reports_redis_that_does_not_run_scripts() {
    only_on!(OWN, "it starts its own server");
    let row = Row::begin("Redis answers but cannot work: no right to run scripts");
    let server = RedisServer::start_with(&[], &[]).await;
    let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", server.url()).start().await;
    core.create("demo", json!({"total": 10})).await;
    core.claim("demo", "before", "k").await.expect(201);
    let redis = server.view().await;
    let rights = async |right: &str| redis.query::<String>(&["ACL", "SETUSER", "default", right]).await;
    for (command, key) in [("fcall", "k1"), ("function|load", "k2"), ("xadd", "k3")] {
        row.fault();
        rights(&format!("-{command}")).await;
        // A function that is loaded needs no right to load it.
        redis.query::<String>(&["FUNCTION", "FLUSH"]).await;
        let refused = core.once().claim("demo", "meanwhile", key).await;
        assert_eq!(refused.status, 503, "{command}: {}", refused.text());
        until_reported(&core, Some("refused")).await;
        rights(&format!("+{command}")).await;
        until_reported(&core, None).await;
        until_status(SOON, &[200, 201], async || core.claim("demo", "meanwhile", key).await).await;
    }
    row.passed(7, "noticed in time");
}
