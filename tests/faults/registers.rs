//! A Redis server and a database that do not belong together: two installations share a server or a database,
//! a database has lost rows, or one of the two was replaced.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use support::checker::{Checker, Expect, Limits};
use support::core_process::UNAVAILABLE;
use support::follower::Follower;
use support::inspect::key;
use support::only_on;
use support::postgres::Postgres;
use support::process::command;
use support::signing::claim_id;
use support::sql::Sql;
use support::storm::ClaimOutcome;
use support::topology::OWN;
use support::wait::{holds, refused_in_time};
use support::{Core, CoreOptions, RedisServer, SOON, binary, eventually, promised};

use crate::fixture::Fixture;
use crate::tally::Row;

const LIMITS: Limits = Limits { total: Some(100), per_user: Some(1), per_user_per_day: None };
/// Time limit until core serves with another Redis server: 30 s after a core last served with the previous one.
const TAKEN_OVER_MAX: Duration = Duration::from_secs(35);
/// The time for which `drop-foreign` waits for a core that serves the campaign.
const SERVED_WITHIN: Duration = Duration::from_secs(30);
/// Time limit of `drop-foreign` for a campaign that no core serves.
const DROPPED_MAX: Duration = Duration::from_secs(35);
/// Time limit of `drop-foreign` for a campaign that a core serves: the core restores the campaign in a second or two.
const RESTORED_MAX: Duration = Duration::from_secs(4);

/// Returns the number of the users `from..upto` whose claim is granted; all other claims must be denied.
async fn winners(checker: &Checker, core: &Core, users: std::ops::Range<usize>) -> usize {
    let mut won = 0;
    for user in users {
        let outcome = checker.decided(SOON, core, &format!("u{user}"), "k").await;
        won += usize::from(matches!(outcome, ClaimOutcome::Claimed { .. }));
    }
    won
}

async fn repair(core: &Core) -> Value {
    let path = "/admin/v1/campaigns/demo/reconciliation";
    core.admin(Method::POST, path, &json!({})).await.expect(200).json()
}

/// Grants 80 of 100 units, 12 of them to one user, and relays these claims. Then deletes the SQL rows
/// selected by `where_lost`.
async fn with_rows_lost(row: &Row, fixture: &Fixture, where_lost: &str) -> Checker {
    let limits = Limits { per_user: Some(12), ..LIMITS };
    let checker = Checker::create(&fixture.core, "demo", limits).await;
    checker.win(&fixture.core, 0..68).await;
    for at in 0..12 {
        let outcome = checker.decided(SOON, &fixture.core, "often", &format!("k{at}")).await;
        assert!(matches!(outcome, ClaimOutcome::Claimed { .. }), "{outcome:?}");
    }
    fixture.relayed("demo").await;
    row.fault();
    let lost =
        fixture.sql.run(format!("DELETE FROM claims WHERE campaign_id = 'demo' AND {where_lost}")).await;
    assert!(lost >= 10, "{lost} rows");
    checker
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_lost_by_sql_are_not_granted_again_by_a_repair() {
    for fixture in Fixture::on_both_databases().await {
        let row = Row::begin("SQL has lost rows: repair");
        let checker = with_rows_lost(&row, &fixture, "sequence > 60 AND sequence <= 78").await;
        let mut follower = Follower::default();
        follower.read_all(&fixture.core, 100).await;
        assert_eq!(fixture.reconciliation("demo").await["agrees"], false);
        let repaired = repair(&fixture.core).await;
        assert_eq!(repaired["agrees"], true, "{repaired}");
        assert_eq!(repaired["sql"]["taken"], 80, "{repaired}");
        let again = follower.read_all(&fixture.core, 100).await;
        // Each claim is reported at least once; the feed may repeat claims.
        let reported: BTreeSet<_> =
            again.iter().filter_map(|item| item["claim"]["sequence"].as_u64()).collect();
        assert!(
            (61..=78).all(|lost| reported.contains(&lost)),
            "the feed must report the restored claims: {reported:?}"
        );
        assert_eq!(winners(&checker, &fixture.core, 100..140).await, 20, "exactly the rest must be granted");
        fixture.judge(row, &checker, Expect::default()).await;
    }
}

/// Returns reach SQL before the grants that use the returned units, regardless of the order in Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_on_returned_units_survive_a_lost_outbox() {
    for fixture in Fixture::on_both_databases().await {
        let row = Row::begin("the outbox is lost after units were returned and granted again");
        let limits = Limits { total: Some(42), per_user: Some(2), per_user_per_day: None };
        let checker = Checker::create(&fixture.core, "demo", limits).await;
        checker.win(&fixture.core, 0..40).await;
        // A long user record makes Redis store the users unordered.
        for key in ["k1", "k2"] {
            checker.decided(SOON, &fixture.core, "often", key).await;
        }
        fixture.relayed("demo").await;
        let held = fixture.sql.hold().await;
        for user in 0..20 {
            let id = claim_id("demo", &format!("u{user}"), "k");
            fixture.core.transition(&id, "return").await.expect(200);
            checker.ended(&id);
        }
        checker.win(&fixture.core, 40..60).await;
        row.fault();
        fixture.redis().await.query::<()>(&["DEL", &key("demo", "outbox")]).await;
        held.release().await;
        assert_eq!(winners(&checker, &fixture.core, 60..70).await, 0, "everything is taken");
        fixture.judge(row, &checker, Expect::default()).await;
    }
}

/// Lowering a limit revokes nothing, even if SQL has lost earlier grants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_lost_by_sql_are_restored_despite_a_lowered_limit() {
    for fixture in Fixture::on_both_databases().await {
        let row = Row::begin("SQL has lost rows: a limit was lowered");
        let checker = with_rows_lost(&row, &fixture, "user_id = 'often' AND sequence > 70").await;
        fixture.core.patch("demo", json!({"limits": {"per_user": 2}})).await.expect(200);
        let repaired = repair(&fixture.core).await;
        assert_eq!(
            (&repaired["agrees"], &repaired["sql"]["revoked"]),
            (&json!(true), &json!(0)),
            "{repaired}"
        );
        fixture.judge(row, &checker, Expect::default()).await;
    }
}

/// PostgreSQL fails over to a standby that lags, which loses rows and the raised epoch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_lost_with_their_epoch_are_not_granted_again() {
    for mut fixture in Fixture::on_both_databases().await {
        let row = Row::begin("SQL has lost rows and a raised epoch: recovery");
        let checker = Checker::create(&fixture.core, "demo", LIMITS).await;
        checker.win(&fixture.core, 0..60).await;
        fixture.relayed("demo").await;
        let older = fixture.sql.number("SELECT epoch FROM campaigns WHERE id = $1", "demo").await;
        fixture.redis().await.query::<()>(&["DEL", &key("demo", "users")]).await;
        assert_eq!(winners(&checker, &fixture.core, 60..80).await, 20);
        fixture.relayed("demo").await;
        row.kill();
        fixture.core.stop().await;
        let lost = "DELETE FROM claims WHERE campaign_id = 'demo' AND sequence > 55";
        fixture.sql.run(lost.to_owned()).await;
        let back =
            format!("UPDATE campaigns SET epoch = {older}, events = 55, sequence = 55 WHERE id = 'demo'");
        fixture.sql.run(back).await;
        fixture.core = fixture.core.restart().await;
        assert_eq!(winners(&checker, &fixture.core, 100..140).await, 20, "exactly the rest must be granted");
        fixture.judge(row, &checker, Expect::default()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_lost_by_sql_are_rewritten_before_an_eviction() {
    let row = Row::begin("SQL has lost rows: eviction");
    let options = CoreOptions::default().with("CLAIMGATE_ARCHIVE_AFTER_S", "1");
    let fixture = Fixture::managed_with(options).await;
    let checker = with_rows_lost(&row, &fixture, "sequence > 60 AND sequence <= 78").await;
    fixture.core.set_admin_state("demo", "end").await.expect(200);
    let redis = fixture.redis().await;
    eventually(SOON, || async {
        let left: u64 = redis.query(&["EXISTS", &key("demo", "campaign"), &key("demo", "users")]).await;
        holds(left == 0, || format!("{left} keys are still there\n{}", fixture.core.log()))
    })
    .await;
    let active = fixture.sql.claims("demo").await.iter().filter(|claim| claim.is_active()).count();
    assert_eq!(active, 80, "claims that only Redis has must reach SQL first");
    for id in checker.acknowledged() {
        fixture.core.look_up(&id).await.expect(200);
    }
    row.passed(checker.call_count(), "80 claims of 80 after the eviction");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_campaign_of_the_same_id_is_untouched() {
    let row = Row::begin("a different database on the same Redis");
    let mut fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", LIMITS).await;
    let redis = fixture.redis().await;
    checker.win(&fixture.core, 0..10).await;
    fixture.relayed("demo").await;
    let held = fixture.sql.hold().await;
    checker.win(&fixture.core, 10..30).await;
    fixture.core.kill();
    held.release().await;
    row.kill();
    let waiting = redis.outbox_entries("demo").await;
    assert!(waiting > 1, "the outbox must have pending entries");
    let url = fixture.server().url();
    {
        let stranger = CoreOptions::default().with("CLAIMGATE_REDIS_URL", url).start().await;
        let body = support::core_client::campaign("demo", json!({"total": 5}));
        let refused = stranger.admin(Method::POST, "/admin/v1/campaigns", &body).await;
        let refused = refused.refused(409, "campaign_exists");
        assert!(
            refused.json()["detail"].as_str().unwrap().contains("another database"),
            "{}",
            refused.text()
        );
        stranger.admin_get("/admin/v1/campaigns/demo").await.refused(404, "campaign_not_found");
        stranger.create("other", json!({"total": 5})).await;
        stranger.claim("other", "alice", "k").await.expect(201);
        // A row written without the API, as by an older core: every script still rejects the campaign.
        Sql::in_directory(&stranger.data_dir())
            .run(
                "INSERT INTO campaigns (id, name, starts_at, time_zone, admin_state, version, epoch, created_at, changed_at, \
                 sequence, events, register_id) VALUES ('demo', 'Demo', 0, 'UTC', 'on', 1, 1, 0, 0, 0, 0, 'theirs')"
                    .to_owned(),
            )
            .await;
        let claim = async || stranger.once().claim("demo", "mallory", "k").await;
        refused_in_time(503, "campaign_not_ready", claim).await;
        let warm_up = async || stranger.once().admin_post("/admin/v1/campaigns/demo/warm-up").await;
        refused_in_time(503, "campaign_not_ready", warm_up).await;
        assert_eq!(redis.outbox_entries("demo").await, waiting, "the outbox must be unchanged");
    }
    fixture.core = fixture.core.restart().await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Runs `claimgate drop-foreign` as the operator of the data directory `data`, until the stores have answered; returns
/// its status and output.
pub async fn drop_foreign(id: &str, data: &Path, redis_url: &str, file: &Path) -> (Option<i32>, String) {
    eventually(SOON, || async {
        let mut command = command(&binary::claimgate());
        command.args(["drop-foreign", id, "--yes", "--export"]).arg(file);
        command.env("CLAIMGATE_DATA_DIR", data).env("CLAIMGATE_REDIS_URL", redis_url);
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        let status = output.status.code();
        holds(status != Some(UNAVAILABLE), || text.clone()).map(|()| (status, text))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drop_foreign_saves_then_removes_an_unserved_campaign() {
    let row = Row::begin("a different database on the same Redis: drop-foreign");
    let mut fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", Limits { per_user: Some(12), ..LIMITS }).await;
    checker.win(&fixture.core, 0..30).await;
    for at in 0..12 {
        checker.decided(SOON, &fixture.core, "often", &format!("k{at}")).await;
    }
    let url = fixture.server().url();
    let stranger = CoreOptions::default().with("CLAIMGATE_REDIS_URL", url.clone()).start().await;
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let (status, output) = drop_foreign("demo", &fixture.core.data_dir(), &url, &file("ours")).await;
    assert_eq!(status, Some(1), "{output}");
    assert!(output.contains("belongs to this database") && !file("ours").exists(), "{output}");

    // The campaign's own core restores the campaign in the meantime, so the attempt loses nothing.
    let began = Instant::now();
    let (status, output) = drop_foreign("demo", &stranger.data_dir(), &url, &file("served")).await;
    let took = began.elapsed();
    assert_eq!(status, Some(1), "{output}");
    assert!(output.contains("a core serves"), "{output}");
    assert!(took < promised(RESTORED_MAX), "restored only after {took:?}");
    checker.granted(&fixture.core, "back", "k").await;
    checker.win(&fixture.core, 30..40).await;
    fixture.relayed("demo").await;
    let redis = fixture.redis().await;
    let verdict = checker.judge(&[&fixture.core], &fixture.sql, &redis, Expect::default()).await;

    // Claims that SQL does not have yet are exported too.
    let held = fixture.sql.hold().await;
    checker.win(&fixture.core, 40..50).await;
    row.kill();
    fixture.core.kill();
    held.release().await;
    let (status, output) = drop_foreign("demo", &stranger.data_dir(), &url, &file("served")).await;
    assert_eq!(status, Some(2), "a file is not overwritten: {output}");
    let began = Instant::now();
    let (status, output) = drop_foreign("demo", &stranger.data_dir(), &url, &file("claims.csv")).await;
    let took = began.elapsed();
    assert_eq!(status, Some(0), "{output}");
    assert!(took >= SERVED_WITHIN && took < promised(DROPPED_MAX), "removed after {took:?}, not 30 s");
    let text = std::fs::read_to_string(file("claims.csv")).unwrap();
    let ids: BTreeSet<_> = text.lines().skip(1).map(|line| line.split(',').next().unwrap()).collect();
    let acknowledged = checker.acknowledged();
    assert_eq!((ids.len(), text.lines().count()), (acknowledged.len(), acknowledged.len() + 1), "{text}");
    assert!(acknowledged.iter().all(|id| ids.contains(id.as_str())), "{text}");
    let keys = ["campaign", "users", "claims", "holds", "outbox"].map(|what| key("demo", what));
    let left: u64 = redis.query(&[&["EXISTS"][..], &keys.each_ref().map(String::as_str)].concat()).await;
    assert_eq!(left, 0);
    stranger.create("demo", json!({"total": 5})).await;
    stranger.claim("demo", "alice", "k").await.expect(201);
    row.survived(checker.call_count(), verdict);
}

/// Returns the value of a counter of core; 0 if it does not exist yet.
pub async fn counter(core: &Core, name: &str) -> u64 {
    core.metric(name).await.unwrap_or(0)
}

async fn lost_events(core: &Core) -> u64 {
    counter(core, "claimgate_lost_events_total").await
}

/// PostgreSQL is replaced by a copy that lacks the last commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_lost_by_sql_are_reported_when_it_is_back() {
    let row = Row::begin("SQL has lost rows: reported");
    let Some(mut fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
    let checker = Checker::create(&fixture.core, "demo", LIMITS).await;
    fixture.core.create("whole", json!({})).await;
    fixture.core.claim("whole", "alice", "k").await.expect(201);
    checker.win(&fixture.core, 0..80).await;
    fixture.relayed("demo").await;
    assert_eq!(lost_events(&fixture.core).await, 0);
    fixture.sql.run("DELETE FROM claims WHERE campaign_id = 'demo' AND sequence > 70".to_owned()).await;
    row.fault();
    // The loss is reported each time SQL is back, and counted once.
    let reports = |log: &str| {
        let is_report = |line: &&str| line.contains("ERROR") && line.contains("reconcile demo --repair");
        log.lines().filter(is_report).count()
    };
    for users in [80..85, 85..90] {
        let reported = reports(&fixture.core.log());
        fixture.postgres().stop_immediately().await;
        fixture.postgres().start_again().await;
        // Claims relayed in the meantime must not hide the loss.
        assert_eq!(winners(&checker, &fixture.core, users).await, 5);
        eventually(SOON, || async {
            let log = fixture.core.log();
            // A core that stalls also checks after its silence.
            holds(reports(&log) > reported && !log.contains("reconcile whole"), || log.clone())
        })
        .await;
        // Events that are being relayed may hide a part of the loss for now.
        eventually(SOON, || async {
            let lost = lost_events(&fixture.core).await;
            assert!(lost <= 10, "{lost} counted of 10");
            holds(lost == 10, || format!("{lost} counted of 10"))
        })
        .await;
    }
    // A repair compares no totals while claims are pending for SQL.
    fixture.relayed("demo").await;
    assert_eq!(repair(&fixture.core).await["agrees"], true);
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_lost_by_sql_are_reported_after_a_failed_check() {
    let row = Row::begin("SQL has lost rows: reported after a failed check");
    let Some(mut fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
    let checker = Checker::create(&fixture.core, "demo", LIMITS).await;
    checker.win(&fixture.core, 0..80).await;
    fixture.relayed("demo").await;
    fixture.sql.run("DELETE FROM claims WHERE campaign_id = 'demo' AND sequence > 70".to_owned()).await;
    row.fault();
    // SQL answers again, but not this query.
    fixture.sql.run("ALTER TABLE claims RENAME TO claims_away".to_owned()).await;
    fixture.postgres().stop_immediately().await;
    fixture.postgres().start_again().await;
    fixture.core.until_logged(SOON, &["check yet whether SQL has lost rows"]).await;
    assert_eq!(lost_events(&fixture.core).await, 0);
    fixture.sql.run("ALTER TABLE claims_away RENAME TO claims".to_owned()).await;
    eventually(SOON, || async {
        let found = lost_events(&fixture.core).await;
        holds(found == 10, || format!("{found} events\n{}", fixture.core.log()))
    })
    .await;
    assert_eq!(repair(&fixture.core).await["agrees"], true);
    fixture.judge(row, &checker, Expect::default()).await;
}

/// Events that are both in SQL and in the outbox count twice in the first check and hide the loss; the next
/// check finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_lost_by_sql_are_reported_despite_concurrent_relays() {
    only_on!(OWN, "it starts its own server");
    let row = Row::begin("SQL has lost rows: reported once the outbox is empty");
    let Some(mut postgres) = row.needs(Postgres::start().await) else { return };
    let server = RedisServer::start().await;
    let redis = server.view().await;
    let user = ["ACL", "SETUSER", "core", "on", "nopass", "~*", "&*", "+@all"];
    redis.query::<String>(&user).await;
    let core = CoreOptions::default()
        .with("CLAIMGATE_DATABASE_URL", postgres.database("claimgate").await)
        .with("CLAIMGATE_REDIS_URL", server.url() + "?user=core&pass=any")
        .with("RUST_LOG", "info,sqlx::query=debug")
        .start()
        .await;
    core.create("demo", json!({"total": 100})).await;
    let claimed = async |users: std::ops::Range<u32>| {
        for user in users {
            core.claim("demo", &format!("u{user}"), "k").await.expect(201);
        }
    };
    claimed(0..5).await;
    redis.relayed("demo", SOON).await;
    let sql = postgres.pool("claimgate");
    let lost = sqlx::query("DELETE FROM claims WHERE sequence = 5").execute(&sql).await.unwrap();
    assert_eq!(lost.rows_affected(), 1);
    row.fault();
    // Entries relayed from now on stay in the outbox.
    redis.query::<String>(&["ACL", "SETUSER", "core", "-xdel"]).await;
    claimed(5..6).await;
    eventually(SOON, || async {
        let rows: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM claims").fetch_one(&sql).await.unwrap();
        holds(rows == 5, || format!("{rows} rows"))
    })
    .await;
    let checks = || core.log().matches("THEN revision ELSE").count();
    let before = checks();
    row.fault();
    postgres.stop_immediately().await;
    postgres.start_again().await;
    eventually(SOON, || async { holds(checks() > before, || "no check yet".to_owned()) }).await;
    assert_eq!(lost_events(&core).await, 0, "the loss must still be hidden");
    redis.query::<String>(&["ACL", "SETUSER", "core", "+xdel"]).await;
    eventually(SOON, || async {
        let found = lost_events(&core).await;
        holds(found == 1, || format!("{found} events\n{}", core.log()))
    })
    .await;
    row.passed(6, "the loss was reported");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_core_with_a_different_redis_server_is_rejected() {
    only_on!(OWN, "each core needs its own Redis");
    let row = Row::begin("two cores with separate Redis servers on one database");
    let Some(fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
    let checker = Checker::create(&fixture.core, "demo", LIMITS).await;
    checker.win(&fixture.core, 0..60).await;
    row.fault();
    let url = fixture.postgres.as_ref().unwrap().url("claimgate");
    let mut second = Core::launch(CoreOptions::default().with("CLAIMGATE_DATABASE_URL", url)).await;
    let (list, token) = (second.admin_url("/admin/v1/campaigns"), fixture.core.admin_token());
    if let Ok(reply) = second.client().try_get(&list, &token).await {
        assert!(reply.status >= 400, "it must not accept calls: {}", reply.text());
    }
    let status = second.process().wait(SOON).await;
    assert_eq!(status.code(), Some(2), "the status of a configuration error");
    let log = second.log();
    assert!(log.lines().last().unwrap().contains("CLAIMGATE_REDIS_URL"), "{log}");
    assert_eq!(winners(&checker, &fixture.core, 60..140).await, 40);
    fixture.judge(row, &checker, Expect::default()).await;
}

/// A restored or replaced Redis server takes over automatically; `--take-over` makes that immediate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_redis_server_serves_when_no_core_uses_the_old_one() {
    only_on!(OWN, "each core needs its own Redis");
    let row = Row::begin("a replaced Redis on the same PostgreSQL");
    let Some(mut fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
    let checker = Checker::create(&fixture.core, "demo", LIMITS).await;
    checker.win(&fixture.core, 0..30).await;
    fixture.relayed("demo").await;
    let options = CoreOptions::default()
        .with("CLAIMGATE_DATABASE_URL", fixture.postgres.as_ref().unwrap().url("claimgate"));
    row.kill();
    fixture.core.stop().await;
    fixture.core = options.clone().with_flag("--take-over").start().await;
    assert_eq!(winners(&checker, &fixture.core, 30..60).await, 30);
    fixture.relayed("demo").await;
    row.kill();
    fixture.core.stop().await;
    fixture.core = Core::launch(options).await;
    eventually(promised(TAKEN_OVER_MAX), || async {
        let reply = fixture.core.client().try_get(&fixture.core.admin_url("/readyz"), "").await;
        holds(reply.is_ok_and(|reply| reply.status == 200), || fixture.core.log())
    })
    .await;
    assert_eq!(winners(&checker, &fixture.core, 60..140).await, 40);
    fixture.judge(row, &checker, Expect::default()).await;
}
