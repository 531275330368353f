//! Claims of many units in a campaign with codes: each transaction, each call of Redis and each part of an export has a
//! bounded number of codes.

use std::time::Instant;

use reqwest::Method;
use serde_json::json;
use support::core_client::{campaign, claim_body};
use support::heavy;
use support::{Core, SOON};

use crate::codes::{agrees, counts};
use crate::fixture::Fixture;
use crate::tally::{Row, say};

/// Number of claims while SQL is blocked.
const CLAIMS: u32 = 3_000;
/// Units of a claim.
const UNITS: u32 = 1_000;
/// Claims in one request.
const BATCH: u32 = 250;

/// Returns all claims with their codes, as CSV.
async fn exported(core: &Core) -> String {
    let url = core.admin_url("/admin/v1/campaigns/demo/claims?codes=true");
    let request = core.client().request(Method::GET, &url).header("Accept", "text/csv");
    let reply = core.client().send(request.bearer_auth(core.admin_token())).await.expect("an answer");
    reply.expect(200).text()
}

/// SQL is blocked during a sale of claims of 1,000 units. The relay writes them in transactions that end in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_of_many_codes_is_committed() {
    let row = Row::begin("codes: SQL is blocked while claims of 1,000 units are decided");
    let _turn = heavy().await;
    for fixture in Fixture::on_both_databases().await {
        let core = &fixture.core;
        let mut body = campaign("demo", json!({"total": 0}));
        body["codes"] = json!(true);
        core.create_with(body).await;
        let units = CLAIMS * UNITS;
        let numbers =
            format!("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {units})");
        fixture.sql.run(format!("{numbers} INSERT INTO codes SELECT 'demo', i, 'SAVE-' || i FROM n")).await;
        fixture.sql.run(format!("UPDATE campaigns SET codes_added = {units}")).await;
        core.patch("demo", json!({"limits": {"total": units}})).await.expect(200);
        row.fault();
        let blocked = fixture.sql.hold().await;
        for first in (0..CLAIMS).step_by(BATCH as usize) {
            let users = first..CLAIMS.min(first + BATCH);
            let batch: Vec<_> =
                users.map(|user| claim_body("demo", &format!("u{user}"), "k", UNITS)).collect();
            core.claim_batch(&batch).await.expect(200);
        }
        let slow = || core.log().matches("SQL did not commit within").count();
        let slow_while_blocked = slow();
        blocked.release().await;
        let released = Instant::now();
        fixture.redis().await.relayed("demo", SOON).await;
        let relayed_s = released.elapsed().as_secs_f64();
        assert_eq!(counts(core).await, json!({"added": units, "assigned": units, "claims_pending": 0}));
        let before = core.resident_kib();
        let exported = exported(core).await;
        let export_kib = core.peak_kib().saturating_sub(before);
        assert_eq!(exported.matches("SAVE-").count(), units as usize);
        // The time of the transaction that was blocked last may be up, too.
        assert!(slow() <= slow_while_blocked + 1, "a transaction was too long");
        agrees(&fixture).await;
        say(&format!(
            "  {units} codes relayed in {relayed_s:.1} s; the export took {export_kib} KiB at most"
        ));
    }
    row.passed(CLAIMS as usize, "each claim got its codes");
}
