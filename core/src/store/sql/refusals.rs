//! Refused claims by campaign, reason and second, and the reports that they come from.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use claimgate_shared::Timestamp;
use serde_json::json;
use sqlx::{AssertSqlSafe, Row as _};

use super::numbers::{to_i64, unsigned};
use super::{BULK_MAX, SqlError, SqlStore};
use crate::domain::refusals::{Refusal, Report};

/// Retention of a report's number. Core accepts only refusals that are younger, so a report that is sent again is
/// either recognized or too old.
const REPORTS_KEPT: Duration = Duration::from_hours(1);
/// Retention of refusals.
pub(crate) const REFUSALS_KEPT: Duration = Duration::from_hours(24 * 90);

/// The ids that name a campaign.
const KNOWN: &str = "SELECT id FROM campaigns WHERE id IN (SELECT value->>0 FROM {rows})";

const RECORD_REPORTS: &str = "INSERT INTO refusal_reports (reporter, number, received_at) \
    SELECT value->>0, CAST(value->>1 AS BIGINT), {now} FROM {rows} WHERE TRUE \
    ON CONFLICT (reporter, number) DO NOTHING RETURNING reporter, number";

const ADD_REFUSALS: &str = "INSERT INTO refusals (campaign_id, at_s, reason, refused_by, refused) \
    SELECT value->>0, CAST(value->>1 AS BIGINT), value->>2, value->>3, CAST(value->>4 AS BIGINT) FROM {rows} WHERE TRUE \
    ON CONFLICT (campaign_id, at_s, reason, refused_by) DO UPDATE SET refused = refusals.refused + excluded.refused";

impl SqlStore {
    /// Returns those of `ids` that name a campaign.
    pub(crate) async fn known_campaigns(&self, ids: &BTreeSet<&str>) -> Result<HashSet<String>, SqlError> {
        let ids = json!(ids.iter().map(|id| [id]).collect::<Vec<_>>()).to_string();
        let query = sqlx::query(AssertSqlSafe(self.dialect.render(KNOWN))).bind(ids);
        let rows = query.fetch_all(&mut self.pool.lease().await?).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// Adds the refusals of `reports`, except of reports that were added within the last hour, by any core.
    /// Returns for each report whether it was added.
    ///
    /// # Errors
    /// The reports may have been added. The call is safe to retry.
    pub(crate) async fn add_refusals(&self, reports: &[Report]) -> Result<Vec<bool>, SqlError> {
        // Sorted, so that two cores lock the rows in one order.
        let numbers: BTreeSet<_> =
            reports.iter().map(|report| (report.reporter.as_str(), report.number)).collect();
        let mut transaction = self.pool.within(BULK_MAX).begin().await?;
        let record = self.with_database_clock(&self.dialect.render(RECORD_REPORTS));
        let rows =
            sqlx::query(record).bind(json!(numbers).to_string()).fetch_all(&mut transaction.lease).await?;
        let mut recorded = HashSet::new();
        for row in &rows {
            recorded.insert((row.try_get::<String, _>(0)?, unsigned(row.try_get(1)?)?));
        }
        // Removing an entry counts a report that is listed twice only once.
        let mut take = |report: &Report| recorded.remove(&(report.reporter.clone(), report.number));
        let are_new: Vec<_> = reports.iter().map(&mut take).collect();
        let mut sums = BTreeMap::<_, u64>::new();
        for (report, _) in reports.iter().zip(&are_new).filter(|(_, is_new)| **is_new) {
            for Refusal { campaign, at_s, reason, count } in &report.refusals {
                *sums.entry((campaign.as_str(), *at_s, *reason, report.by.as_str())).or_default() += count;
            }
        }
        let sums: Vec<_> = sums
            .into_iter()
            .map(|((campaign, at_s, reason, by), count)| (campaign, at_s, reason, by, to_i64(count)))
            .collect();
        if !sums.is_empty() {
            let add = AssertSqlSafe(self.dialect.render(ADD_REFUSALS));
            sqlx::query(add).bind(json!(sums).to_string()).execute(&mut transaction.lease).await?;
        }
        transaction.commit().await?;
        Ok(are_new)
    }

    /// Removes the numbers of old reports, and refusals that are past their retention at `now`.
    pub(crate) async fn remove_old_refusals(&self, now: Timestamp) -> Result<(), SqlError> {
        let pool = self.pool.within(BULK_MAX);
        let reports_ms = i64::try_from(REPORTS_KEPT.as_millis()).unwrap_or(i64::MAX);
        let reports = self.with_database_clock("DELETE FROM refusal_reports WHERE received_at < {now} - $1");
        sqlx::query(reports).bind(reports_ms).execute(&mut pool.lease().await?).await?;
        let age_s = i64::try_from(REFUSALS_KEPT.as_secs()).unwrap_or(i64::MAX);
        let refusals = sqlx::query("DELETE FROM refusals WHERE at_s < $1");
        refusals.bind(now.as_ms() / 1_000 - age_s).execute(&mut pool.lease().await?).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures_util::future::join_all;
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    use super::*;
    use crate::config::sqlite_url;
    use crate::domain::refusals::RefusedBy;

    /// Returns the report `number` of an isolate, whose content depends on nothing else.
    fn report(case: u32, isolate: u64, number: u64) -> Report {
        let refusal = |at_s: u64, count: u64| Refusal {
            campaign: format!("case{case}"),
            at_s: i64::try_from(at_s).unwrap(),
            reason: "sold_out",
            count,
        };
        let refusals = vec![refusal(number, isolate + 1), refusal(number + 1, 100 * number)];
        Report { reporter: format!("{case}-{isolate}"), number, by: RefusedBy::Edge, refusals }
    }

    fn claims(reports: &[Report]) -> u64 {
        reports.iter().flat_map(|report| &report.refusals).map(|refusal| refusal.count).sum()
    }

    async fn sum(store: &SqlStore, case: u32) -> u64 {
        let query = "SELECT CAST(COALESCE(SUM(refused), 0) AS BIGINT) FROM refusals WHERE campaign_id = $1";
        let query = sqlx::query(query).bind(format!("case{case}"));
        let row = query.fetch_one(&mut store.pool.lease().await.unwrap()).await.unwrap();
        unsigned(row.try_get(0).unwrap()).unwrap()
    }

    /// Delivers each list in one transaction, all lists concurrently. A report may be in several lists, and several
    /// times in one.
    #[test]
    fn the_sum_is_exact_however_reports_are_delivered() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let url = sqlite_url(&directory.path().join("refusals.sqlite"));
        let store = runtime.block_on(SqlStore::open(&url)).unwrap();
        let cases = Cell::new(0);
        let deliveries = prop::collection::vec(prop::collection::vec((0..4_u64, 1..6_u64), 1..12), 1..6);
        TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() })
            .run(&deliveries, |lists| {
                let case = cases.get();
                cases.set(case + 1);
                let batches: Vec<Vec<_>> = lists
                    .iter()
                    .map(|list| {
                        list.iter().map(|(isolate, number)| report(case, *isolate, *number)).collect()
                    })
                    .collect();
                let added = runtime.block_on(join_all(batches.iter().map(|batch| store.add_refusals(batch))));
                let distinct: BTreeSet<_> = lists.iter().flatten().copied().collect();
                let once: Vec<_> =
                    distinct.into_iter().map(|(isolate, number)| report(case, isolate, number)).collect();
                prop_assert_eq!(runtime.block_on(sum(&store, case)), claims(&once));
                let added: usize =
                    added.into_iter().flat_map(Result::unwrap).filter(|is_new| *is_new).count();
                prop_assert_eq!(added, once.len(), "each is reported as added once");
                Ok(())
            })
            .unwrap();
        runtime.block_on(store.close());
    }
}
