//! Measures how long it takes to load a large campaign from SQL.

use std::time::{Duration, Instant};

use serde_json::json;
use support::inspect::key;
use support::sql::Claims;
use support::{SOON, binary, eventually, heavy, promised, wait::holds};

use crate::fixture::Fixture;
use crate::tally::Row;

/// Number of claims unless `CLAIMS` is set; a debug build of core uses a tenth.
const CLAIMS: u64 = 1_000_000;
/// Time limit of the load.
const WAIT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_campaign_is_rebuilt_from_sqlite() {
    let _turn = heavy().await;
    rebuild(Row::begin("a large campaign rebuilt: SQLite, managed Redis"), Fixture::managed().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_campaign_is_rebuilt_from_postgres() {
    let row = Row::begin("a large campaign rebuilt: PostgreSQL, managed Redis");
    let _turn = heavy().await;
    let Some(fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
    rebuild(row, fixture).await;
}

async fn rebuild(row: Row, fixture: Fixture) {
    let given = std::env::var("CLAIMS").ok().and_then(|count| count.parse().ok());
    let debug = binary::claimgate().components().any(|part| part.as_os_str() == "debug");
    let count = given.unwrap_or(if debug { CLAIMS / 10 } else { CLAIMS });
    fixture.core.create("demo", json!({"total": 2_000_000, "per_user": 4})).await;
    let started = Instant::now();
    assert_eq!(fixture.sql.run(Claims { campaign: "demo", count }.insert()).await, count);
    let filled = started.elapsed();
    row.fault();
    let started = Instant::now();
    let keys = ["campaign", "users", "claims", "holds", "outbox"].map(|what| key("demo", what));
    let command: Vec<&str> = std::iter::once("UNLINK").chain(keys.iter().map(String::as_str)).collect();
    fixture.redis().await.query::<u64>(&command).await;
    let view = eventually(promised(WAIT), || async {
        let view = fixture.core.admin_get("/admin/v1/campaigns/demo").await.json();
        holds(view["ready"] == true && view["taken"] == count, || view.to_string()).map(|()| view)
    })
    .await;
    let took = started.elapsed();
    assert_eq!(view["sequence"], count);
    // The user had two claims, and two more are allowed.
    for (key, status) in [("k1", 201), ("k2", 201), ("k3", 409)] {
        eventually(SOON, || async {
            let reply = fixture.core.claim("demo", "u1", key).await;
            holds([200, status].contains(&reply.status), || reply.text())
        })
        .await;
    }
    fixture.relayed("demo").await;
    let report = fixture.reconciliation("demo").await;
    assert_eq!(
        (&report["agrees"], &report["redis"]["taken_by_users"]),
        (&json!(true), &json!(count + 2)),
        "{report}"
    );
    row.passed(
        3,
        &format!(
            "{count} claims loaded after {took:.1?}, including the deletion (filling SQL took {filled:.1?})"
        ),
    );
}
