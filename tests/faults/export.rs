//! Export of a large campaign's claims as CSV: the time it takes, and its effect on a different campaign's
//! export.

use std::time::{Duration, Instant};

use serde_json::json;
use support::sql::Claims;
use support::{binary, heavy};

use crate::fixture::Fixture;
use crate::tally::Row;

/// Number of claims unless `CLAIMS` is set; a debug build of core uses a tenth.
const MANY: u64 = 1_000_000;
const FEW: u64 = 20_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_campaign_is_exported_from_sqlite() {
    let _turn = heavy().await;
    export(Row::begin("a large campaign exported as CSV: SQLite"), Fixture::managed().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_campaign_is_exported_from_postgres() {
    let row = Row::begin("a large campaign exported as CSV: PostgreSQL");
    let _turn = heavy().await;
    let Some(fixture) = row.needs(Fixture::on_postgres(true).await) else { return };
    export(row, fixture).await;
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
            "{many} claims in {large:.1?}; {FEW} of another campaign in {alone:.2?} before they existed, {beside:.2?} afterwards"
        ),
    );
}

/// Exports `count` claims and checks that they are in the order of their sequence numbers.
async fn csv(fixture: &Fixture, campaign: &str, count: u64) -> Duration {
    let url = fixture.core.admin_url(&format!("/admin/v1/campaigns/{campaign}/claims"));
    let request = fixture.core.client().request(reqwest::Method::GET, &url);
    let request = request.bearer_auth(fixture.core.admin_token()).header("Accept", "text/csv");
    let started = Instant::now();
    // A million claims take longer in a debug build than the client's default timeout.
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
