//! Removal of old rows on refused claims: the numbers of reports after an hour, the refusals after 90 days.

use serde_json::json;
use support::times::now_ms;
use support::wait::holds;
use support::{SOON, Sql, eventually};

use crate::fixture::Fixture;

const MINUTE_MS: i64 = 60_000;
const DAY_S: i64 = 86_400;

/// Returns the numbers in `query`'s row.
async fn row(sql: &Sql, query: &'static str) -> Vec<i64> {
    let numbers = sql.numbers(query, "demo").await.expect("a row");
    numbers.into_iter().map(|number| number.expect("a number")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_old_reports_and_refusals_are_removed() {
    for mut fixture in Fixture::on_both_databases().await {
        fixture.core.create("demo", json!({"total": 1})).await;
        let now = now_ms();
        for age_min in [0, 55, 65, 600] {
            let at = now - age_min * MINUTE_MS;
            let values = format!("('isolate', {age_min}, {at})");
            let report = "INSERT INTO refusal_reports (reporter, number, received_at) VALUES ";
            assert_eq!(fixture.sql.run([report, &values].concat()).await, 1);
        }
        for age_days in [0, 89, 91, 400] {
            let at_s = now / 1_000 - age_days * DAY_S;
            let values = format!("('demo', {at_s}, 'sold_out', 'edge', {})", age_days + 1);
            let refusals = "INSERT INTO refusals (campaign_id, at_s, reason, refused_by, refused) VALUES ";
            assert_eq!(fixture.sql.run([refusals, &values].concat()).await, 1);
        }
        // Core removes old rows when it starts, and then every 10 minutes.
        fixture.replace_core().await;
        // The sum identifies the refusals that are left.
        let left = "SELECT CAST(COUNT(*) AS BIGINT), CAST(SUM(refused) AS BIGINT) FROM refusals WHERE campaign_id = $1";
        eventually(SOON, || async {
            let left = row(&fixture.sql, left).await;
            holds(left[0] <= 2, || format!("{left:?}"))
        })
        .await;
        assert_eq!(row(&fixture.sql, left).await, [2, 1 + 90], "of 0 and 89 days");
        // Reports are removed before refusals.
        let left = "SELECT CAST(COUNT(*) AS BIGINT), CAST(SUM(number) AS BIGINT) FROM refusal_reports WHERE reporter = 'isolate' AND $1 = 'demo'";
        assert_eq!(row(&fixture.sql, left).await, [2, 55], "of 0 and 55 minutes");
    }
}
