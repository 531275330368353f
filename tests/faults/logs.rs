//! Core's log: one line for each change of a campaign, and no secrets.

use std::io::{PipeReader, PipeWriter, Read as _, pipe};
use std::time::Instant;

use reqwest::Method;
use rustix::io::ioctl_fionbio;
use serde_json::{Value, json};
use support::client::client;
use support::core_client::API_TOKEN;
use support::edge::token;
use support::inspect::key;
use support::only_on;
use support::postgres::Postgres;
use support::process::{Signal, free_address, signal_pid};
use support::topology::OWN;
use support::wait::{holds, refused_in_time, until_status};
use support::{Core, CoreOptions, RedisServer, SOON, claim_body, eventually};

use crate::fixture::Fixture;
use crate::tally::Row;

/// Returns the lines of a JSON log.
fn lines(core: &Core) -> Vec<Value> {
    core.log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Returns the messages logged for a campaign above debug level, with `what` if they have it.
fn logged(core: &Core, campaign: &str) -> Vec<String> {
    let of_it = |line: &Value| line["fields"]["campaign"] == campaign && line["level"] != "DEBUG";
    let message = |line: Value| {
        let fields = &line["fields"];
        let what = fields["what"].as_str().map(|what| format!(": {what}")).unwrap_or_default();
        format!("{}{what}", fields["message"].as_str().unwrap())
    };
    lines(core).into_iter().filter(of_it).map(message).collect()
}

/// Damages a campaign; returns once claims are being decided again.
async fn damaged_and_loaded(core: &Core, user: &str) {
    core.redis().await.query::<u64>(&["DEL", &key("demo", "users")]).await;
    eventually(SOON, || async {
        let reply = core.claim("demo", user, "k").await;
        holds(reply.status != 503, || reply.text())
    })
    .await;
}

/// Lines about stores that did not answer. The contract permits them at any time: a Redis that is slow for a moment is
/// enough.
const STORES: [&str; 6] = [
    "loaded from SQL",
    "not relayed to SQL; retrying",
    "not ready",
    "ready again",
    "suspended until it is loaded or evicted",
    "cannot be made ready yet; retrying",
];
const DEMO: [&str; 6] = [
    "campaign changed: create",
    "campaign changed: pause",
    "campaign changed: resume",
    "sold out",
    "campaign changed: add",
    "available again after it was sold out",
];
const OVER: [&str; 3] =
    ["campaign changed: create", "campaign changed: end", "evicted: answered from SQL from now on"];

/// Checks that `logged` has a line for each of `changes`, in order, and no other but those about stores.
fn check_changes(logged: &[String], changes: &[&str]) {
    let is_of_stores = |line: &&String| STORES.contains(&line.as_str());
    let logged_changes: Vec<_> = logged.iter().filter(|line| !is_of_stores(line)).collect();
    assert_eq!(logged_changes, changes, "{logged:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_campaign_change_is_logged_once() {
    only_on!(OWN, "the log does not depend on the servers");
    let row = Row::begin("logs: each campaign change");
    let began = Instant::now();
    let options = CoreOptions::default().with("CLAIMGATE_LOG_JSON", "true");
    let core = options.with("CLAIMGATE_ARCHIVE_AFTER_S", "1").start().await;
    core.create("demo", json!({"total": 2})).await;
    for verb in ["pause", "pause", "resume", "resume"] {
        core.set_admin_state("demo", verb).await.expect(200);
    }
    for user in ["a", "b"] {
        core.claim("demo", user, "k").await.expect(201);
    }
    for user in ["c", "d", "e"] {
        core.claim("demo", user, "k").await.refused(409, "sold_out");
    }
    let add = json!({"units": 7, "idempotency_key": "add"});
    for status in [200, 200] {
        core.admin(Method::POST, "/admin/v1/campaigns/demo/add", &add).await.expect(status);
    }
    core.claim("demo", "f", "k").await.expect(201);
    // The campaign is damaged repeatedly: every load is logged, but "not ready" only once a minute.
    for user in ["g", "h", "i"] {
        row.fault();
        damaged_and_loaded(&core, user).await;
    }
    core.create("over", json!({})).await;
    core.set_admin_state("over", "end").await.expect(200);
    eventually(SOON, || async {
        let logged = logged(&core, "over");
        holds(logged.iter().any(|line| line == OVER[2]), || format!("{logged:#?}"))
    })
    .await;
    let (demo, over) = (logged(&core, "demo"), logged(&core, "over"));
    check_changes(&demo, &DEMO);
    check_changes(&over, &OVER);
    let count = |message: &str| demo.iter().filter(|line| *line == message).count();
    assert!(count("loaded from SQL") > 3, "it is loaded when it is created and after each damage: {demo:#?}");
    let minutes = usize::try_from(began.elapsed().as_secs() / 60).unwrap();
    assert!((1..=minutes + 1).contains(&count("not ready")), "logged once per minute: {demo:#?}");
    let all = lines(&core);
    let line = |message: &str| all.iter().find(|line| line["fields"]["message"] == message).unwrap();
    let changed = &line("campaign changed")["fields"];
    assert_eq!((&changed["who"], &changed["version"]), (&json!("admin"), &json!("1")), "{changed}");
    assert_eq!(line("not ready")["level"], "WARN");
    assert!(
        line("not ready")["fields"]["reason"].as_str().is_some_and(|why| !why.is_empty()),
        "the line must give a reason"
    );
    row.passed(DEMO.len() + OVER.len(), "each logged once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_failure_is_logged_once() {
    only_on!(OWN, "the log does not depend on the servers");
    let row = Row::begin("logs: a campaign that cannot be loaded");
    let options = CoreOptions::default().with("CLAIMGATE_LOG_JSON", "true");
    let fixture = Fixture::managed_with(options.with("RUST_LOG", "info,claimgate_core=debug")).await;
    let core = &fixture.core;
    core.create("demo", json!({"total": 2})).await;
    let held = fixture.sql.hold().await;
    row.fault();
    core.redis().await.query::<u64>(&["DEL", &key("demo", "users")]).await;
    let claim = async || core.once().claim("demo", "a", "k").await;
    refused_in_time(503, "campaign_not_ready", claim).await;
    let count =
        |message: &str| lines(core).iter().filter(|line| line["fields"]["message"] == message).count();
    eventually(4 * SOON, || async {
        let tries = count("still not ready");
        holds(tries >= 2, || format!("{tries} further tries\n{}", core.log()))
    })
    .await;
    // The reason may change while SQL hangs; each is logged when it differs from the previous one.
    let all = lines(core);
    let fields = all.iter().map(|line| &line["fields"]);
    let failures = fields.filter(|fields| fields["message"] == "cannot be made ready yet; retrying");
    let reasons: Vec<_> = failures.map(|fields| &fields["why"]).collect();
    assert!(!reasons.is_empty() && reasons.windows(2).all(|pair| pair[0] != pair[1]), "{reasons:?}");
    assert_eq!(count("not ready"), 1);
    held.release().await;
    until_status(SOON, &[200, 201], async || core.claim("demo", "a", "k").await).await;
    row.passed(1, "each reason logged once");
}

/// No secret appears in the log at the most verbose level, while secrets are used and faults happen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_logged() {
    only_on!(OWN, "it starts its own servers");
    let row = Row::begin("logs: secrets");
    let Some(postgres) = row.needs(Postgres::start().await) else { return };
    let redis = RedisServer::start().await;
    let password = format!(">{REDIS_PASSWORD}");
    let user = ["ACL", "SETUSER", "core", "on", &password, "~*", "&*", "+@all"];
    redis.view().await.query::<String>(&user).await;
    let redis_url = redis.url() + "?user=core&pass=" + REDIS_PASSWORD;
    let database = postgres.database("claimgate").await;
    let database =
        database.replace("postgres://claimgate@", &format!("postgres://claimgate:{SQL_PASSWORD}@"));
    let nowhere = format!("http://{}", free_address());
    let options = CoreOptions::default()
        .with("CLAIMGATE_DATABASE_URL", database)
        .with("CLAIMGATE_REDIS_URL", redis_url)
        .with("CLAIMGATE_WEBHOOK_HOSTS", &nowhere)
        .with("RUST_LOG", "trace");
    let core = options.start().await;
    core.create("demo", json!({"total": 5})).await;
    let webhook = json!({"url": format!("{nowhere}/")});
    let webhook = core.admin(Method::POST, "/admin/v1/webhooks", &webhook).await.expect(201).json();
    core.claim("demo", "alice", "k").await.expect(201);
    // Unauthorized callers send credentials that are invalid here.
    let of_alice = token(&core.data_file("user-jwt.key"), "alice");
    for wrong in [WRONG_TOKEN, &of_alice, &core.data_file("edge.key")] {
        let url = core.url("/internal/v1/claims");
        client().call(Method::POST, &url, wrong, &claim_body("demo", "bob", "k", 1)).await.expect(401);
    }
    core.admin_get("/admin/v1/campaigns").await.expect(200);
    row.fault();
    signal_pid(redis.pid(), Signal::STOP);
    core.once().claim("demo", "carol", "k").await.expect(503);
    signal_pid(redis.pid(), Signal::CONT);
    row.fault();
    postgres.freeze();
    core.until_logged(SOON, &["does not answer"]).await;
    core.until_logged(SOON, &["part=\"sql\""]).await;
    postgres.thaw();
    core.until_logged(SOON, &["an event was not accepted"]).await;
    let log = core.log();
    assert!(log.contains("DEBUG sqlx") && log.len() > 10_000, "the log must be verbose");
    let secret = |name: &str, value: &str| {
        assert!(value.len() >= 16, "{name} is too short to be found by its text: {value}");
        let line = log.lines().find(|line| line.contains(value));
        assert!(line.is_none(), "{name} is in the log: {}", line.unwrap());
    };
    secret("the admin's token", &core.admin_token());
    secret("the back end's token", API_TOKEN);
    secret("a wrong token", WRONG_TOKEN);
    secret("a user's token", &of_alice);
    secret("the key of users' tokens", &core.data_file("user-jwt.key"));
    secret("the edge's key", core.data_file("edge.key").split(':').next_back().unwrap());
    secret("the webhook's secret", webhook["secret"].as_str().unwrap());
    secret("Redis' password", REDIS_PASSWORD);
    secret("the database's password", SQL_PASSWORD);
    row.passed(5, &format!("{} KB of log", log.len() / 1000));
}

const REDIS_PASSWORD: &str = "the-password-of-a-redis";
const SQL_PASSWORD: &str = "the-password-of-a-database";
const WRONG_TOKEN: &str = "a-token-that-is-not-valid-here-or-there";

/// Returns a pipe that is as full as it gets. Some parents set the pipes of their children to non-blocking.
pub fn full_pipe(is_blocking: bool) -> (PipeReader, PipeWriter) {
    let (reader, writer) = pipe().expect("a pipe");
    ioctl_fionbio(&writer, true).expect("a pipe");
    for bytes in [&[b'\n'; 4096][..], b"\n"] {
        while rustix::io::write(&writer, bytes).is_ok() {}
    }
    ioctl_fionbio(&writer, !is_blocking).expect("a pipe");
    (reader, writer)
}

/// Waits until core has lost lines of its log.
pub async fn until_lines_are_lost(core: &Core) {
    eventually(SOON, || async {
        let lost: Option<u64> = core.metric("claimgate_log_lines_lost_total").await;
        holds(lost.is_some_and(|lost| lost > 0), || format!("lost: {lost:?}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_lines_are_reported_when_the_log_is_read_again() {
    only_on!(OWN, "the log does not depend on the servers");
    let row = Row::begin("logs: the reader returns");
    let (mut reader, writer) = full_pipe(false);
    let core = CoreOptions::default().log_to(writer).with("RUST_LOG", "trace").start().await;
    row.fault();
    core.create("demo", json!({})).await;
    for user in 0..200 {
        core.claim("demo", &format!("u{user}"), "k").await.expect(201);
    }
    until_lines_are_lost(&core).await;
    let reported = tokio::task::spawn_blocking(move || {
        let (mut log, mut bytes) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = reader.read(&mut bytes) {
            log.extend_from_slice(&bytes[..count]);
            if String::from_utf8_lossy(&log).contains("lines of the log were lost") {
                return true;
            }
        }
        false
    });
    assert!(tokio::time::timeout(SOON, reported).await.expect("a report").unwrap());
    row.passed(201, "the loss was reported");
}
