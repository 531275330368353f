//! A Redis and a database that do not belong together, or no longer: two installations on one of them, a database that has
//! lost rows, a database or a Redis that was replaced.

use std::collections::BTreeSet;
use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};
use support::checker::{Checker, Expect, Limits};
use support::core_client::API_TOKEN;
use support::follower::Follower;
use support::inspect::key;
use support::only_on;
use support::postgres::Postgres;
use support::process::command;
use support::signing::claim_id;
use support::sql::Sql;
use support::storm::Seen;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, CoreOptions, RedisServer, SOON, binary, eventually};

use crate::fixture::Fixture;
use crate::tally::Row;

const LIMITS: Limits = Limits { total: Some(100), per_user: Some(1), per_user_per_day: None };

/// How many of the users `from..upto` win; every other one is told that all is gone.
async fn winners(checker: &Checker, core: &Core, users: std::ops::Range<usize>) -> usize {
    let mut won = 0;
    for user in users {
        let seen = eventually(SOON, || async {
            match checker.claim(core, &format!("u{user}"), "k").await {
                Seen::Unknown => Err(format!("no decision for u{user}")),
                seen => Ok(seen),
            }
        })
        .await;
        won += usize::from(matches!(seen, Seen::Claimed { .. }));
    }
    won
}

async fn repair(core: &Core) -> Value {
    let path = "/admin/v1/campaigns/demo/reconciliation";
    core.admin(Method::POST, path, &json!({})).await.expect(200).json()
}

/// 80 of 100 are granted and in SQL, 12 more to one user; then SQL loses the rows of `where_lost`.
async fn with_rows_lost(row: &Row, fixture: &Fixture, where_lost: &str) -> Checker {
    let limits = Limits { per_user: Some(12), ..LIMITS };
    let checker = Checker::create(&fixture.core, "demo", limits).await;
    checker.win(&fixture.core, 0..68).await;
    for at in 0..12 {
        let seen = checker.claim(&fixture.core, "often", &format!("k{at}")).await;
        assert!(matches!(seen, Seen::Claimed { .. }), "{seen:?}");
    }
    fixture.relayed("demo").await;
    row.fault();
    let lost =
        fixture.sql.run(format!("DELETE FROM claims WHERE campaign_id = 'demo' AND {where_lost}")).await;
    assert!(lost >= 10, "{lost} rows");
    checker
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_sql_has_lost_are_not_given_again_by_a_repair() {
    for fixture in Fixture::on_both_databases().await {
        let row = Row::begin("SQL has lost rows: repair");
        let checker = with_rows_lost(&row, &fixture, "sequence > 60 AND sequence <= 78").await;
        let mut follower = Follower::default();
        follower.to_the_end(&fixture.core, 100).await;
        assert_eq!(fixture.reconciliation("demo").await["agrees"], false);
        let repaired = repair(&fixture.core).await;
        assert_eq!(repaired["agrees"], true, "{repaired}");
        assert_eq!(repaired["sql"]["taken"], 80, "{repaired}");
        let again = follower.to_the_end(&fixture.core, 100).await;
        // At least once: others may be among them.
        let told: BTreeSet<_> = again.iter().filter_map(|item| item["claim"]["sequence"].as_u64()).collect();
        assert!(
            (61..=78).all(|lost| told.contains(&lost)),
            "the feed tells of those that SQL got back: {told:?}"
        );
        assert_eq!(winners(&checker, &fixture.core, 100..140).await, 20, "exactly the rest is granted");
        fixture.judge(row, &checker, Expect::default()).await;
    }
}

/// What was given back and granted again comes to SQL in that order, whatever the order in which Redis has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_that_were_given_back_and_granted_again_are_rescued_without_revoking_any() {
    for fixture in Fixture::on_both_databases().await {
        let row = Row::begin("the outbox is lost, units had changed hands");
        let limits = Limits { total: Some(42), per_user: Some(2), per_user_per_day: None };
        let checker = Checker::create(&fixture.core, "demo", limits).await;
        checker.win(&fixture.core, 0..40).await;
        // A record that is too long for it makes Redis keep the users in no order.
        for key in ["k1", "k2"] {
            checker.claim(&fixture.core, "often", key).await;
        }
        fixture.relayed("demo").await;
        let held = fixture.sql.hold().await;
        for user in 0..20 {
            let id = claim_id("demo", &format!("u{user}"), "k");
            let url = fixture.core.url(&format!("/internal/v1/claims/{id}/return"));
            fixture.core.client().call(Method::POST, &url, API_TOKEN, &Value::Null).await.expect(200);
            checker.ended(&id);
        }
        checker.win(&fixture.core, 40..60).await;
        row.fault();
        fixture.redis().await.query::<()>(&["DEL", &key("demo", "outbox")]).await;
        held.release().await;
        assert_eq!(winners(&checker, &fixture.core, 60..70).await, 0, "all is taken");
        fixture.judge(row, &checker, Expect::default()).await;
    }
}

/// Lowering a limit revokes nothing, also where SQL has lost what was granted before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_sql_has_lost_come_back_though_a_limit_was_lowered_since() {
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

/// A failover of PostgreSQL to a standby that lags: rows are gone, and with them that the epoch was raised.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_and_an_epoch_that_sql_has_lost_are_not_given_again_by_a_recovery() {
    for mut fixture in Fixture::on_both_databases().await {
        let row = Row::begin("SQL has lost rows and the raise of an epoch: recovery");
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
        assert_eq!(winners(&checker, &fixture.core, 100..140).await, 20, "exactly the rest is granted");
        fixture.judge(row, &checker, Expect::default()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_sql_has_lost_outlive_an_eviction() {
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
    let standing = fixture.sql.claims("demo").await.iter().filter(|claim| claim.stands()).count();
    assert_eq!(standing, 80, "what only Redis had went to SQL first");
    for id in checker.acknowledged() {
        fixture.core.look_up(&id).await.expect(200);
    }
    row.passed(checker.asked(), "80 claims of 80 after the eviction");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_registers_campaign_of_the_same_name_is_left_alone() {
    let row = Row::begin("another database under the same Redis");
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
    assert!(waiting > 1, "something waits in the outbox");
    let url = fixture.server().url();
    {
        let stranger = CoreOptions::default().with("CLAIMGATE_REDIS_URL", url).start().await;
        let body = support::core_client::campaign("demo", json!({"total": 5}));
        let refused = stranger.admin(Method::POST, "/admin/v1/campaigns", &body).await;
        let refused = refused.refused(409, "campaign_exists");
        assert!(
            refused.json()["detail"].as_str().unwrap().contains("another register"),
            "{}",
            refused.text()
        );
        stranger.admin_get("/admin/v1/campaigns/demo").await.refused(404, "campaign_not_found");
        stranger.create("other", json!({"total": 5})).await;
        stranger.claim("other", "alice", "k").await.expect(201);
        // Written past the API, as by a core of before: refused by every script all the same.
        Sql::in_directory(&stranger.data_dir())
            .run(
                "INSERT INTO campaigns (id, name, starts_at, time_zone, admin_state, version, epoch, created_at, changed_at, \
                 sequence, events, register_id) VALUES ('demo', 'Demo', 0, 'UTC', 'on', 1, 1, 0, 0, 0, 0, 'theirs')"
                    .to_owned(),
            )
            .await;
        stranger.once().claim("demo", "mallory", "k").await.refused(503, "campaign_not_ready");
        stranger
            .once()
            .admin_post("/admin/v1/campaigns/demo/warm-up")
            .await
            .refused(503, "campaign_not_ready");
        assert_eq!(redis.outbox_entries("demo").await, waiting, "the outbox is as it was");
    }
    fixture.core = fixture.core.restart().await;
    fixture.judge(row, &checker, Expect::default()).await;
}

/// `claimgate drop-foreign`, as the operator of the data directory `data` would call it: its status, and what it said.
pub async fn drop_foreign(id: &str, data: &Path, redis_url: &str, file: &Path) -> (Option<i32>, String) {
    let mut command = command(&binary::claimgate());
    command.args(["drop-foreign", id, "--export"]).arg(file);
    command.env("CLAIMGATE_DATA_DIR", data).env("CLAIMGATE_REDIS_URL", redis_url);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    (output.status.code(), said)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_registers_campaign_is_removed_once_it_is_written_down_and_no_core_serves_it() {
    let row = Row::begin("another database under the same Redis: drop-foreign");
    let mut fixture = Fixture::external().await;
    let checker = Checker::create(&fixture.core, "demo", Limits { per_user: Some(12), ..LIMITS }).await;
    checker.win(&fixture.core, 0..30).await;
    for at in 0..12 {
        checker.claim(&fixture.core, "often", &format!("k{at}")).await;
    }
    let url = fixture.server().url();
    let stranger = CoreOptions::default().with("CLAIMGATE_REDIS_URL", url.clone()).start().await;
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let (status, said) = drop_foreign("demo", &fixture.core.data_dir(), &url, &file("ours")).await;
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("this database's own") && !file("ours").exists(), "{said}");

    // Its core brings it back meanwhile: nothing is lost by the attempt.
    let (status, said) = drop_foreign("demo", &stranger.data_dir(), &url, &file("served")).await;
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("a core serves"), "{said}");
    eventually(SOON, || async {
        let seen = checker.claim(&fixture.core, "back", "k").await;
        holds(matches!(seen, Seen::Claimed { .. }), || format!("its core is loading it: {seen:?}"))
    })
    .await;
    checker.win(&fixture.core, 30..40).await;
    fixture.relayed("demo").await;
    let redis = fixture.redis().await;
    let verdict = checker.judge(&[&fixture.core], &fixture.sql, &redis, Expect::default()).await;

    // What SQL has not heard of is written down, too.
    let held = fixture.sql.hold().await;
    checker.win(&fixture.core, 40..50).await;
    row.kill();
    fixture.core.kill();
    held.release().await;
    let (status, said) = drop_foreign("demo", &stranger.data_dir(), &url, &file("served")).await;
    assert_eq!(status, Some(2), "a file is not overwritten: {said}");
    let (status, said) = drop_foreign("demo", &stranger.data_dir(), &url, &file("claims.csv")).await;
    assert_eq!(status, Some(0), "{said}");
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
    row.survived(checker.asked(), verdict);
}

/// What core counts under this name; 0 while there was none.
pub async fn counter(core: &Core, name: &str) -> u64 {
    let text = core.client().try_get(&core.admin_url("/metrics"), "").await.unwrap().text();
    let count = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

async fn lost_events(core: &Core) -> u64 {
    counter(core, "claimgate_lost_events_total").await
}

/// PostgreSQL comes back without what it had committed last, as a copy does that lagged behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_sql_has_lost_are_told_of_once_it_is_back() {
    let row = Row::begin("SQL has lost rows: told of");
    let mut fixture = match Fixture::on_postgres(true).await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&fixture.core, "demo", LIMITS).await;
    fixture.core.create("whole", json!({})).await;
    fixture.core.claim("whole", "alice", "k").await.expect(201);
    checker.win(&fixture.core, 0..80).await;
    fixture.relayed("demo").await;
    assert_eq!(lost_events(&fixture.core).await, 0);
    fixture.sql.run("DELETE FROM claims WHERE campaign_id = 'demo' AND sequence > 70".to_owned()).await;
    row.fault();
    fixture.postgres().stop_immediately().await;
    fixture.postgres().start_again().await;
    // Claims that are relayed meanwhile hide nothing.
    assert_eq!(winners(&checker, &fixture.core, 80..90).await, 10);
    eventually(SOON, || async {
        let (found, log) = (lost_events(&fixture.core).await, fixture.core.log());
        let told =
            log.lines().filter(|line| line.contains("ERROR") && line.contains("reconcile demo --repair"));
        holds(found == 10 && told.count() == 1 && !log.contains("reconcile whole"), || log.clone())
    })
    .await;
    // While claims wait for SQL, a repair compares no totals.
    fixture.relayed("demo").await;
    assert_eq!(repair(&fixture.core).await["agrees"], true);
    fixture.judge(row, &checker, Expect::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_sql_has_lost_are_told_of_though_the_first_look_failed() {
    let row = Row::begin("SQL has lost rows: told of after a failure");
    let mut fixture = match Fixture::on_postgres(true).await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&fixture.core, "demo", LIMITS).await;
    checker.win(&fixture.core, 0..80).await;
    fixture.relayed("demo").await;
    fixture.sql.run("DELETE FROM claims WHERE campaign_id = 'demo' AND sequence > 70".to_owned()).await;
    row.fault();
    // SQL answers again, but not to this.
    fixture.sql.run("ALTER TABLE claims RENAME TO claims_away".to_owned()).await;
    fixture.postgres().stop_immediately().await;
    fixture.postgres().start_again().await;
    eventually(SOON, || async {
        let log = fixture.core.log();
        holds(log.contains("look for rows that SQL may have lost"), || log.clone())
    })
    .await;
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

/// What SQL has of the outbox already counts twice in the first look, and hides what is lost; not in the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_sql_has_lost_are_told_of_though_others_are_relayed_in_the_first_look() {
    only_on!(OWN, "it brings its own server");
    let row = Row::begin("SQL has lost rows: told of after the outbox is empty");
    let mut postgres = match Postgres::start().await {
        Ok(postgres) => postgres,
        Err(why) => return row.skip(&why),
    };
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
    eventually(SOON, || async {
        let entries = redis.outbox_entries("demo").await;
        holds(entries == 1, || format!("{entries} entries with the sentinel"))
    })
    .await;
    let sql = postgres.pool("claimgate");
    let lost = sqlx::query("DELETE FROM claims WHERE sequence = 5").execute(&sql).await.unwrap();
    assert_eq!(lost.rows_affected(), 1);
    row.fault();
    // What is relayed now stays in the outbox.
    redis.query::<String>(&["ACL", "SETUSER", "core", "-xdel"]).await;
    claimed(5..6).await;
    eventually(SOON, || async {
        let rows: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM claims").fetch_one(&sql).await.unwrap();
        holds(rows == 5, || format!("{rows} rows"))
    })
    .await;
    let looks = || core.log().matches("THEN revision ELSE").count();
    let before = looks();
    row.fault();
    postgres.stop_immediately().await;
    postgres.start_again().await;
    eventually(SOON, || async { holds(looks() > before, || "no look yet".to_owned()) }).await;
    assert_eq!(lost_events(&core).await, 0, "hidden");
    redis.query::<String>(&["ACL", "SETUSER", "core", "+xdel"]).await;
    eventually(2 * SOON, || async {
        let found = lost_events(&core).await;
        holds(found == 1, || format!("{found} events\n{}", core.log()))
    })
    .await;
    row.passed(6, "it is told of");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_core_with_a_redis_of_its_own_is_refused() {
    only_on!(OWN, "each core has a Redis of its own");
    let row = Row::begin("two cores with a Redis of their own on one database");
    let fixture = match Fixture::on_postgres(true).await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    let checker = Checker::create(&fixture.core, "demo", LIMITS).await;
    checker.win(&fixture.core, 0..60).await;
    row.fault();
    let url = fixture.postgres.as_ref().unwrap().url("claimgate");
    let mut second = Core::launch(CoreOptions::default().with("CLAIMGATE_DATABASE_URL", url)).await;
    let (list, token) = (second.admin_url("/admin/v1/campaigns"), fixture.core.admin_token());
    if let Ok(reply) = second.client().try_get(&list, &token).await {
        assert!(reply.status >= 400, "it takes no calls yet: {}", reply.text());
    }
    let status = second.process().wait(SOON).await;
    assert_eq!(status.code(), Some(2), "a wrong configuration");
    let log = second.log();
    assert!(log.lines().last().unwrap().contains("CLAIMGATE_REDIS_URL"), "{log}");
    assert_eq!(winners(&checker, &fixture.core, 60..140).await, 40);
    fixture.judge(row, &checker, Expect::default()).await;
}

/// A restore, or a replaced host: no action is needed, or `--take-over` says so at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_was_replaced_serves_once_no_core_serves_with_the_old_one() {
    only_on!(OWN, "each core has a Redis of its own");
    let row = Row::begin("a replaced Redis on the same PostgreSQL");
    let mut fixture = match Fixture::on_postgres(true).await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
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
    // 30 s, by itself.
    eventually(2 * SOON, || async {
        let reply = fixture.core.client().try_get(&fixture.core.admin_url("/readyz"), "").await;
        holds(reply.is_ok_and(|reply| reply.status == 200), || fixture.core.log())
    })
    .await;
    assert_eq!(winners(&checker, &fixture.core, 60..140).await, 40);
    fixture.judge(row, &checker, Expect::default()).await;
}
