//! What one user has of a campaign, while Redis and SQL know different parts of it: every claim that was acknowledged is in the
//! list, once, as it stands.

use reqwest::Method;
use serde_json::{Value, json};
use support::core_client::API_TOKEN;
use support::core_client::CoreClient;
use support::core_client::campaign;
use support::inspect::key;
use support::only_on;
use support::postgres::Postgres;
use support::process::{Signal, signal_pid};
use support::promotion::has_members;
use support::redis_server::Kind;
use support::sentinel::SentinelSet;
use support::signing::claim_id;
use support::sql::Sql;
use support::times::from_now;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, Servers, eventually, heavy};

use crate::fixture::Fixture;
use crate::replicas::waiting_for_one;
use crate::tally::Row;

/// More outbox entries than one look takes, and more claims than a record holds.
const CLAIMS: usize = 130;

async fn look(core: &CoreClient, query: &str) -> Reply {
    core.get(&format!("/internal/v1/campaigns/demo/users/alice?{query}")).await
}

/// Alice's claims by sequence and status, newest first, in pages of `limit`.
async fn listed(core: &Core, limit: usize) -> Vec<(u64, String)> {
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = look(core, &format!("limit={limit}{cursor}")).await.expect(200).json();
        for item in page["items"].as_array().expect("items") {
            let status = item["status"].as_str().expect("a status").to_owned();
            seen.push((item["sequence"].as_u64().expect("a sequence"), status));
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return seen,
        }
    }
}

/// The claims of the sequences 1 to `count`, newest first, granted but for those `returned`.
fn granted_but(count: usize, returned: &[u64]) -> Vec<(u64, String)> {
    let status = |sequence| if returned.contains(&sequence) { "returned" } else { "granted" };
    (1..=count as u64).rev().map(|sequence| (sequence, status(sequence).to_owned())).collect()
}

/// Has alice claim by the keys `k1` to `k{count}`.
async fn claimed(core: &Core, keys: std::ops::RangeInclusive<usize>) {
    for at in keys {
        core.claim("demo", "alice", &format!("k{at}")).await.expect(201);
    }
}

async fn give_back(core: &Core, at: u64) {
    let id = claim_id("demo", "alice", &format!("k{at}"));
    let url = core.url(&format!("/internal/v1/claims/{id}/return"));
    core.client().call(Method::POST, &url, API_TOKEN, &Value::Null).await.expect(200);
}

/// Nothing, some and all of what has moved out of the record is in SQL.
async fn while_the_relay_is_behind(row: Row, mut fixture: Fixture) {
    fixture.core.create("demo", json!({"total": 1000, "per_user": 500})).await;
    claimed(&fixture.core, 1..=20).await;
    fixture.relayed("demo").await;
    let held = fixture.sql.hold().await;
    row.fault();
    claimed(&fixture.core, 21..=CLAIMS).await;
    give_back(&fixture.core, 3).await;
    give_back(&fixture.core, 40).await;
    assert!(fixture.sql.claims("demo").await.len() <= 20, "SQL was to be held up");
    let expected = granted_but(CLAIMS, &[3, 40]);
    for limit in [7, 100, 1000] {
        assert_eq!(listed(&fixture.core, limit).await, expected, "pages of {limit}");
    }
    let left = look(&fixture.core, "limit=1").await.json()["allowance"].clone();
    assert_eq!((&left["per_user"], &left["total"]), (&json!(500 - 128), &json!(1000 - 128)));
    // Killed in the middle of it: the next one tells the same.
    row.kill();
    fixture.core.kill();
    held.release().await;
    fixture.core = fixture.core.restart().await;
    assert_eq!(listed(&fixture.core, 100).await, expected);
    fixture.relayed("demo").await;
    assert_eq!(listed(&fixture.core, 9).await, expected, "from SQL");
    // Loaded again, from SQL alone.
    fixture.redis().await.query::<()>(&["DEL", &key("demo", "users")]).await;
    let again = eventually(SOON, || async {
        let reply = look(&fixture.core, "").await;
        holds(reply.status == 200, || reply.text()).map(|()| reply)
    })
    .await;
    assert_eq!(again.json()["allowance"], left);
    assert_eq!(listed(&fixture.core, 11).await, expected, "after a load");
    row.passed(CLAIMS, "claims listed once each, whatever SQL had of them");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_sql_does_not_have_yet_is_listed_sqlite() {
    let row = Row::begin("a user's claims while the relay is behind: SQLite");
    while_the_relay_is_behind(row, Fixture::managed().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_sql_does_not_have_yet_is_listed_postgres() {
    let row = Row::begin("a user's claims while the relay is behind: PostgreSQL");
    match Fixture::on_postgres(true).await {
        Ok(fixture) => while_the_relay_is_behind(row, fixture).await,
        Err(why) => row.skip(&why),
    }
}

/// A core whose SQL is far behind does not look through all that waits, for one user of many claims.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_through_too_much_is_refused_until_sql_has_it() {
    let row = Row::begin("a user's claims while very much waits for SQL");
    let fixture = Fixture::managed().await;
    fixture.core.create("demo", json!({})).await;
    claimed(&fixture.core, 1..=8).await;
    let held = fixture.sql.hold().await;
    claimed(&fixture.core, 9..=9).await;
    row.fault();
    // The same entry again and again: each tells SQL what it knows.
    let often = "local entry = redis.call('XRANGE', KEYS[1], '1', '+')[1] \
                 for _ = 1, 5000 do redis.call('XADD', KEYS[1], '*', unpack(entry[2])) end return 1";
    fixture.redis().await.query::<u64>(&["EVAL", often, "1", &key("demo", "outbox")]).await;
    fixture.redis().await.set_counter("demo", "backlog", 5_001).await;
    let refused = look(&fixture.core.once(), "").await.refused(503, "overloaded");
    assert!(!refused.header("retry-after").is_empty());
    held.release().await;
    eventually(2 * SOON, || async {
        let reply = look(&fixture.core, "").await;
        holds(reply.status == 200, || reply.text())
    })
    .await;
    assert_eq!(listed(&fixture.core, 100).await, granted_but(9, &[]));
    row.passed(9, "told once SQL has them");
}

/// A user whose record has all claims is told of them without SQL; one of more claims hears that the outcome is unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_sql_what_redis_has_is_told_and_nothing_is_guessed() {
    let row = Row::begin("a user's claims while SQL is away");
    let mut fixture = match Fixture::on_postgres(true).await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    fixture.core.create("demo", json!({})).await;
    claimed(&fixture.core, 1..=8).await;
    row.fault();
    fixture.postgres().freeze();
    assert_eq!(listed(&fixture.core, 100).await, granted_but(8, &[]));
    claimed(&fixture.core, 9..=9).await;
    look(&fixture.core.once(), "").await.refused(503, "unavailable");
    fixture.postgres().thaw();
    eventually(2 * SOON, || async {
        let reply = look(&fixture.core, "").await;
        holds(reply.status == 200, || reply.text())
    })
    .await;
    assert_eq!(listed(&fixture.core, 100).await, granted_but(9, &[]));
    row.passed(9, "told by the store that has them");
}

/// Two cores on one PostgreSQL and one Redis, where campaigns that are over are soon evicted.
async fn evicting() -> Result<Fixture, String> {
    let postgres = Postgres::start().await?;
    let url = postgres.database("claimgate").await;
    let server = Servers::start().await;
    let start = || {
        let options = CoreOptions::default().with("CLAIMGATE_ARCHIVE_AFTER_S", "1");
        let options = options.with("CLAIMGATE_DATABASE_URL", &url);
        options.with("CLAIMGATE_REDIS_URL", server.url()).start()
    };
    let (core, others) = (start().await, vec![start().await]);
    let sql = Sql::open(&url);
    Ok(Fixture { core, others, proxy: None, server: Some(server), postgres: Some(postgres), sql })
}

/// Evicted, changed in SQL, and loaded again by another core, which this one need not have heard of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evicted_campaign_is_answered_from_sql_and_a_reopened_one_at_once_from_redis() {
    let row = Row::begin("a user's claims after the campaign has left Redis, and came back on another core");
    let fixture = match evicting().await {
        Ok(fixture) => fixture,
        Err(why) => return row.skip(&why),
    };
    let mut body = campaign("demo", json!({"total": 100, "per_user": 50, "per_user_per_day": 20}));
    body["ends_at"] = json!(from_now(4));
    fixture.core.create_with(body).await;
    claimed(&fixture.core, 1..=12).await;
    row.fault();
    for core in [&fixture.core, fixture.other()] {
        eventually(SOON, || async {
            let gone: u64 = fixture.redis().await.query(&["EXISTS", &key("demo", "campaign")]).await;
            let view = core.admin_get("/admin/v1/campaigns/demo").await.expect(200).json();
            holds(gone == 0 && view["epoch"].as_u64() > Some(1), || view.to_string())
        })
        .await;
    }
    give_back(&fixture.core, 2).await;
    let revoke = "UPDATE claims SET status = 'revoked' WHERE sequence = 5".to_owned();
    assert_eq!(fixture.sql.run(revoke).await, 1);
    let mut expected = granted_but(12, &[2]);
    expected[12 - 5].1 = "revoked".to_owned();
    for core in [&fixture.core, fixture.other()] {
        assert_eq!(listed(core, 5).await, expected);
        let left = look(core, "").await.json()["allowance"].clone();
        assert_eq!((&left["per_user"], &left["per_user_per_day"]), (&json!(40), &json!(10)));
    }
    eventually(SOON, || async {
        let reply = fixture.core.patch("demo", json!({"ends_at": from_now(3600)})).await;
        holds(reply.status == 200, || reply.text())
    })
    .await;
    for at in 13..=15 {
        let granted = eventually(SOON, || async {
            let reply = fixture.core.claim("demo", "alice", &format!("k{at}")).await;
            holds([200, 201].contains(&reply.status), || reply.text()).map(|()| reply.json())
        })
        .await;
        let newest = (granted["claim"]["sequence"].as_u64().unwrap(), "granted".to_owned());
        expected.insert(0, newest);
        for core in [fixture.other(), &fixture.core] {
            assert_eq!(listed(core, 6).await, expected);
        }
    }
    row.passed(expected.len(), "claims listed by both cores, the revoked one too");
}

/// What the primary alone knows is not told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_told_before_a_replica_has_it() {
    only_on!(OWN, "it brings its own servers");
    let kind = Kind::asked();
    let row = Row::begin_on(kind, "a user's claims while no replica has them");
    let _turn = heavy().await;
    let set = SentinelSet::start(kind).await;
    let core = waiting_for_one(set.url()).start().await;
    has_members(&core, 2).await;
    core.create("demo", json!({})).await;
    claimed(&core, 1..=3).await;
    let pids = [set.view(1).await.pid().await, set.view(2).await.pid().await];
    row.fault();
    for pid in pids {
        signal_pid(pid, Signal::STOP);
    }
    assert_eq!(core.once().claim("demo", "alice", "k4").await.status, 503);
    look(&core.once(), "").await.refused(503, "unavailable");
    for pid in pids {
        signal_pid(pid, Signal::CONT);
    }
    eventually(2 * SOON, || async {
        let reply = look(&core, "").await;
        holds(reply.status == 200, || reply.text())
    })
    .await;
    assert_eq!(listed(&core, 100).await, granted_but(4, &[]));
    row.passed(4, "claims told once a replica had them");
}
