//! Claims confirmed and returned after their campaign was evicted from Redis: each transition is made in SQL, once, and the
//! campaign stays evicted.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use support::core_client::API_TOKEN;
use support::core_client::campaign;
use support::follower::Follower;
use support::inspect::key;
use support::postgres::Postgres;
use support::signing::claim_id;
use support::sql::{Sql, SqlClaim};
use support::times::from_now;
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, Servers, eventually};

use crate::fixture::Fixture;
use crate::tally::Row;

const USERS: [&str; 6] = ["alice", "bob", "carol", "dora", "eve", "frank"];

fn options() -> CoreOptions {
    CoreOptions::default().with("CLAIMGATE_ARCHIVE_AFTER_S", "1")
}

/// Two cores on one PostgreSQL and one Redis; `Err` where there is none.
async fn two_cores() -> Result<Fixture, String> {
    let postgres = Postgres::start().await?;
    let url = postgres.database("claimgate").await;
    let server = Servers::start().await;
    let start = || {
        let options = options().with("CLAIMGATE_DATABASE_URL", &url);
        options.with("CLAIMGATE_REDIS_URL", server.url()).start()
    };
    let (core, others) = (start().await, vec![start().await]);
    let sql = Sql::open(&url);
    Ok(Fixture { core, others, proxy: None, server: Some(server), postgres: Some(postgres), sql })
}

/// Asks until there is an answer, as a caller of whom the outcome is unknown does.
async fn transition(core: &Core, user: &str, verb: &str) -> Reply {
    let url = core.url(&format!("/internal/v1/claims/{}/{verb}", claim_id("demo", user, "k")));
    eventually(SOON, || async {
        let reply = core.client().call(Method::POST, &url, API_TOKEN, &Value::Null).await;
        if reply.code() == "unavailable" { Err(reply.text()) } else { Ok(reply) }
    })
    .await
}

async fn in_redis(fixture: &Fixture) -> u64 {
    fixture.redis().await.query(&["EXISTS", &key("demo", "campaign")]).await
}

async fn row_of(fixture: &Fixture, user: &str) -> SqlClaim {
    let rows = fixture.sql.claims("demo").await;
    rows.into_iter().find(|row| row.user_id == user).expect("a claim")
}

/// Makes a claim held until `seconds` from now, a state in which no campaign is evicted.
async fn held(fixture: &Fixture, user: &str, seconds: i64) {
    let statement = format!(
        "UPDATE claims SET status = 'held', expires_at = {} WHERE user_id = '{user}'",
        support::times::now_ms() + seconds * 1000
    );
    assert_eq!(fixture.sql.run(statement).await, 1);
}

/// A campaign with a claim of two units of each user, over and gone from Redis; its epoch.
async fn evicted(fixture: &Fixture) -> Value {
    let mut body = campaign("demo", json!({"total": 20, "per_user": 4}));
    body["ends_at"] = json!(from_now(4));
    fixture.core.create_with(body).await;
    for user in USERS {
        fixture.core.claim_units("demo", user, "k", 2).await.expect(201);
    }
    for core in std::iter::once(&fixture.core).chain(&fixture.others) {
        eventually(SOON, || async {
            let view = core.admin_get("/admin/v1/campaigns/demo").await.expect(200).json();
            let gone = in_redis(fixture).await == 0 && view["epoch"].as_u64() > Some(1);
            holds(gone && view["taken"] == 12, || view.to_string())
        })
        .await;
    }
    fixture.core.admin_get("/admin/v1/campaigns/demo").await.json()["epoch"].clone()
}

async fn transitions_in_sql(row: Row, fixture: Fixture) {
    let epoch = evicted(&fixture).await;
    let cores: Vec<&Core> = std::iter::once(&fixture.core).chain(&fixture.others).collect();
    let one = cores[0];
    let mut follower = Follower::default();
    follower.to_the_end(one, 100).await;

    // Returned by many at once, and again: once.
    row.fault();
    let at_once = join_all((0..16).map(|at| transition(cores[at % cores.len()], "alice", "return"))).await;
    for reply in at_once {
        assert_eq!(reply.expect(200).json()["claim"]["status"], "returned");
    }
    assert_eq!(in_redis(&fixture).await, 0, "the campaign has come back to Redis for it");
    let again = transition(one, "alice", "return").await.expect(200).json();
    assert_eq!((&again["claim"]["status"], &again["claim"]["quantity"]), (&json!("returned"), &json!(2)));
    assert_eq!(row_of(&fixture, "alice").await.revision, 2);
    transition(one, "alice", "confirm").await.refused(409, "claim_returned");

    // A grant stays one, by however many confirmations.
    let granted = transition(one, "bob", "confirm").await.expect(200).json();
    assert_eq!(granted["claim"]["status"], "granted");
    assert_eq!(row_of(&fixture, "bob").await.revision, 1);

    // Held: confirmed in time, or too late.
    held(&fixture, "carol", 3600).await;
    let confirmed = transition(one, "carol", "confirm").await.expect(200).json();
    assert_eq!(confirmed["claim"]["status"], "granted");
    assert_eq!(confirmed["claim"]["expires_at"], Value::Null);
    assert_eq!(row_of(&fixture, "carol").await.revision, 2);
    held(&fixture, "dora", -1).await;
    let late = transition(one, "dora", "confirm").await.refused(409, "claim_expired").json();
    assert_eq!(late["claim"]["status"], "expired");
    held(&fixture, "eve", -1).await;
    for _ in 0..2 {
        let expired = transition(one, "eve", "return").await.expect(200).json();
        assert_eq!(expired["claim"]["status"], "expired", "an expired claim stays as it is");
    }
    assert_eq!(row_of(&fixture, "eve").await.revision, 2);

    let before = follower.items;
    follower.to_the_end(one, 100).await;
    follower.knows(&fixture.sql.claims("demo").await);
    assert_eq!(follower.items - before, 4, "each of the four that were changed, once");

    // Revoked, and never there.
    fixture.sql.run("UPDATE claims SET status = 'revoked' WHERE user_id = 'frank'".to_owned()).await;
    for verb in ["confirm", "return"] {
        transition(one, "frank", verb).await.refused(409, "claim_revoked");
        transition(one, "stranger", verb).await.refused(404, "claim_not_found");
    }

    // Three claims of two units are back; every core tells so, and none has called the campaign back.
    for core in &cores {
        eventually(SOON, || async {
            let view = core.admin_get("/admin/v1/campaigns/demo").await.expect(200).json();
            holds((&view["taken"], &view["remaining"]) == (&json!(6), &json!(14)), || view.to_string())
        })
        .await;
        let view = core.admin_get("/admin/v1/campaigns/demo").await.json();
        assert_eq!(view["epoch"], epoch, "it was loaded and has left again");
        assert_eq!(
            core.claim_units("demo", "alice", "k", 2).await.expect(200).json()["claim"]["status"],
            "returned"
        );
    }
    assert_eq!(in_redis(&fixture).await, 0);
    comes_back(&fixture).await;
    row.passed(40, "transitions made in SQL, once each");
}

/// Given a future again, the campaign counts the transitions made meanwhile.
async fn comes_back(fixture: &Fixture) {
    eventually(SOON, || async {
        let reply = fixture.core.patch("demo", json!({"ends_at": from_now(3600)})).await;
        holds(reply.status == 200, || reply.text())
    })
    .await;
    let stands = eventually(SOON, || async {
        let reply = fixture.core.claim_units("demo", "alice", "k2", 4).await;
        holds(reply.status < 300, || reply.text()).map(|()| reply.json())
    })
    .await;
    // Bob's and carol's stand; frank's was revoked by hand.
    assert_eq!(stands["remaining"], 20 - 4 - 4, "{stands}");
    transition(&fixture.core, "bob", "return").await.expect(200);
    fixture.relayed("demo").await;
    let told = fixture.reconciliation("demo").await;
    assert_eq!((&told["agrees"], &told["redis"]["taken"]), (&json!(true), &json!(6)), "{told}");
    // Each change by a caller once, made in SQL or in Redis; an expiry is no caller's.
    let audit = fixture.sql.claim_audit("demo").await;
    let audit: Vec<_> =
        audit.iter().map(|(user, who, what, before, after)| [user, who, what, before, after]).collect();
    assert_eq!(
        audit,
        [
            ["alice", "shop", "return", "granted", "returned"],
            ["carol", "shop", "confirm", "held", "granted"],
            ["bob", "shop", "return", "granted", "returned"],
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_changes_without_calling_its_campaign_back_sqlite() {
    let row = Row::begin("confirmed and returned after the campaign has left Redis: SQLite");
    transitions_in_sql(row, Fixture::managed_with(options()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_changes_without_calling_its_campaign_back_postgres() {
    let row = Row::begin("confirmed and returned after the campaign has left Redis: PostgreSQL, two cores");
    match two_cores().await {
        Ok(fixture) => transitions_in_sql(row, fixture).await,
        Err(why) => row.skip(&why),
    }
}
