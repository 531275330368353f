//! A large campaign's claims as CSV: how long it takes, and that a second campaign does not feel the first.

use std::time::{Duration, Instant};

use serde_json::json;
use support::sql::Claims;
use support::{binary, heavy};

use crate::fixture::Fixture;
use crate::tally::Row;

/// Claims without `CLAIMS`; a core built for debugging gets a tenth.
const MANY: u64 = 1_000_000;
const FEW: u64 = 20_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_sqlite() {
    let _turn = heavy().await;
    export(Row::begin("a large campaign exported as CSV: SQLite"), Fixture::managed().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_postgres() {
    let row = Row::begin("a large campaign exported as CSV: PostgreSQL");
    let _turn = heavy().await;
    match Fixture::on_postgres(true).await {
        Ok(fixture) => export(row, fixture).await,
        Err(why) => row.skip(&why),
    }
}

async fn export(row: Row, fixture: Fixture) {
    let given = std::env::var("CLAIMS").ok().and_then(|count| count.parse().ok());
    let debug = binary::claimgate().components().any(|part| part.as_os_str() == "debug");
    let many = given.unwrap_or(if debug { MANY / 10 } else { MANY });
    fixture.core.create("small", json!({})).await;
    fixture.core.create("large", json!({})).await;
    fixture.sql.run(Claims { campaign: "small", count: FEW }.insert()).await;
    let alone = csv(&fixture, "small", FEW).await;
    fixture.sql.run(Claims { campaign: "large", count: many }.insert()).await;
    let large = csv(&fixture, "large", many).await;
    let beside = csv(&fixture, "small", FEW).await;
    row.passed(
        3,
        &format!(
            "{many} claims in {large:.1?}; {FEW} of another campaign in {alone:.2?}, beside them in {beside:.2?}"
        ),
    );
}

/// Exports `count` claims, each one line, in the order of their sequence.
async fn csv(fixture: &Fixture, campaign: &str, count: u64) -> Duration {
    let url = fixture.core.admin_url(&format!("/admin/v1/campaigns/{campaign}/claims"));
    let request = fixture.core.client().request(reqwest::Method::GET, &url);
    let request = request.bearer_auth(fixture.core.admin_token()).header("Accept", "text/csv");
    let started = Instant::now();
    // A million claims take longer in a debug build than the client waits by default.
    let reply =
        fixture.core.client().send(request.timeout(Duration::from_secs(300))).await.expect("an export");
    let took = started.elapsed();
    let text = reply.expect(200).text();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("id,user_id,quantity,status,sequence,day,claimed_at,updated_at"));
    let mut expected = 1..=count;
    for line in lines {
        let sequence = line.split(',').nth(4).and_then(|sequence| sequence.parse::<u64>().ok());
        assert_eq!(sequence, expected.next(), "{line}");
    }
    assert_eq!(expected.next(), None, "lines are missing");
    took
}
