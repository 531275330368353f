//! Extended holds keep their later expiry: after core or Redis was killed, and after the campaign was loaded from SQL,
//! whether SQL had the extension or only the outbox.

use serde_json::{Value, json};
use support::clock::Clock;
use support::core_client::{HOLD_S_PROLONGED, campaign};
use support::inspect::key;
use support::process::{Signal, signal_pid};
use support::signing::claim_id;
use support::times::ms;
use support::wait::{holds, until_status};
use support::{CoreOptions, SOON, Servers, eventually};

use crate::fixture::Fixture;
use crate::tally::Row;

const USERS: [&str; 4] = ["ann", "bob", "cy", "dan"];
const HOLD_S: i64 = 600;
const DAY_MS: i64 = 86_400_000;

/// Creates a campaign with a held claim for each user, relayed to SQL, and then prolongs the campaign's holds.
async fn hold_claims(fixture: &Fixture) {
    let mut body = campaign("demo", json!({"total": USERS.len()}));
    body["hold_seconds"] = json!(HOLD_S);
    fixture.core.create_with(body).await;
    for user in USERS {
        fixture.core.claim("demo", user, "k").await.expect(201);
    }
    fixture.relayed("demo").await;
    fixture.core.patch("demo", json!({"hold_seconds": HOLD_S_PROLONGED})).await.expect(200);
}

/// Returns the status of the claim and for how long it is held in total.
fn held_for(claim: &Value) -> (String, i64) {
    let at = |name: &str| claim[name].as_str().map_or(0, ms);
    (claim["status"].to_string(), at("expires_at") - at("claimed_at"))
}

fn for_a_day() -> (String, i64) {
    (json!("held").to_string(), DAY_MS)
}

/// Extends the user's hold to a day after the claim.
async fn extend(fixture: &Fixture, user: &str) {
    let id = claim_id("demo", user, "k");
    let reply = until_status(SOON, &[200], async || fixture.core.transition(&id, "extend").await).await;
    assert_eq!(held_for(&reply.json()["claim"]), for_a_day(), "{user}");
}

/// Waits until core answers, and checks the hold in Redis and in SQL.
async fn is_extended(fixture: &Fixture, user: &str) {
    let id = claim_id("demo", user, "k");
    let found = until_status(SOON, &[200], async || fixture.core.look_up(&id).await).await.json();
    assert_eq!(held_for(&found["claim"]), for_a_day(), "{user}");
    fixture.relayed("demo").await;
    let rows = fixture.sql.claims("demo").await;
    let row = rows.iter().find(|row| row.id == id).expect("the claim");
    assert_eq!((row.status.as_str(), row.revision), ("held", 2), "{user}");
    assert_eq!(row.expires_at, Some(row.claimed_at + DAY_MS), "{user}");
    let due = fixture.redis().await.due_holds("demo").await;
    let of_user = due.iter().find(|(member, _)| member.starts_with(format!("{user}.").as_bytes()));
    assert_eq!(of_user.map(|(_, expires_at)| *expires_at), row.expires_at, "{user}: {due:?}");
}

/// Removes these keys of the campaign from Redis, once it has loaded its data after a kill.
pub async fn unlink(fixture: &Fixture, keys: &[&str]) {
    let keys: Vec<_> = keys.iter().map(|what| key("demo", what)).collect();
    let words: Vec<_> = std::iter::once("UNLINK").chain(keys.iter().map(String::as_str)).collect();
    let redis = fixture.redis().await;
    eventually(SOON, || async { redis.try_query::<u64>(&words).await }).await;
}

async fn survives(row: Row, mut fixture: Fixture) {
    hold_claims(&fixture).await;

    // Core is killed before SQL has the extension.
    let sql = fixture.sql.hold().await;
    extend(&fixture, "ann").await;
    row.kill();
    fixture.core.kill();
    sql.release().await;
    fixture.core = fixture.core.restart().await;
    is_extended(&fixture, "ann").await;

    // Redis is killed after the response.
    extend(&fixture, "bob").await;
    row.kill();
    if let Some(server) = &mut fixture.server {
        server.kill_and_restart().await;
    } else {
        signal_pid(fixture.core.redis_pid().await, Signal::KILL);
    }
    is_extended(&fixture, "bob").await;

    // Redis loses the users while only the outbox has the extension: it is relayed before the load.
    let sql = fixture.sql.hold().await;
    extend(&fixture, "cy").await;
    row.fault();
    unlink(&fixture, &["users"]).await;
    sql.release().await;
    is_extended(&fixture, "cy").await;

    // Redis loses everything, and only SQL has the extension.
    extend(&fixture, "dan").await;
    fixture.relayed("demo").await;
    row.fault();
    unlink(&fixture, &["campaign", "users", "claims", "holds", "outbox"]).await;
    for user in USERS {
        is_extended(&fixture, user).await;
    }

    let report = fixture.reconciliation("demo").await;
    assert_eq!(report["agrees"], true, "{report}");
    let audit = fixture.sql.claim_audit("demo").await;
    let audit: Vec<_> = audit.iter().map(|(user, who, what, ..)| [user, who, what]).collect();
    assert_eq!(audit, USERS.map(|user| [user, "shop", "extend"]), "each extension once");
    row.passed(2 * USERS.len(), "each extension kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_extensions_survive_on_sqlite() {
    survives(Row::begin("extended holds: SQLite, managed Redis"), Fixture::managed().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_extensions_survive_on_postgres() {
    let row = Row::begin("extended holds: PostgreSQL, external Redis");
    let Some(fixture) = row.needs(Fixture::on_postgres(false).await) else { return };
    survives(row, fixture).await;
}

/// After a load, no hold expires at its former time, and each expires at its later one without further calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extended_hold_expires_at_its_later_time_after_a_load() {
    let row = Row::begin("extended holds expire after a load");
    let clock = Clock::new();
    let fixture = Fixture::on(Servers::start_on(&clock).await, CoreOptions::default()).await;
    hold_claims(&fixture).await;
    for user in USERS {
        extend(&fixture, user).await;
    }
    fixture.relayed("demo").await;
    row.fault();
    unlink(&fixture, &["campaign", "users", "claims", "holds", "outbox"]).await;
    for user in USERS {
        is_extended(&fixture, user).await;
    }
    fixture.move_clock(&clock, DAY_MS / 2).await;
    until_status(SOON, &[409], async || fixture.core.claim("demo", "eve", "k").await)
        .await
        .refused(409, "sold_out");
    is_extended(&fixture, "ann").await;
    fixture.move_clock(&clock, DAY_MS + 60_000).await;
    eventually(SOON, || async {
        let rows = fixture.sql.claims("demo").await;
        holds(rows.iter().all(|row| row.status == "expired"), || format!("{rows:?}"))
    })
    .await;
    row.passed(USERS.len(), "each expired at its later time");
}
