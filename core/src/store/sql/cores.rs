//! The list of serving cores, with one row for each core, written by [`super::heartbeat`]. The list is for
//! display only.

use std::collections::BTreeMap;
use std::time::Duration;

use claimgate_shared::Timestamp;
use sqlx::Row as _;

use super::numbers::unreadable;
use super::{SqlError, SqlStore};

/// Retention of a core's row after its last heartbeat.
const LISTED: Duration = Duration::from_hours(1);

/// A core, as described by its own heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreRow {
    /// The id of the run: the core's id, which is stored in its data directory, a dot, and a number.
    pub id: String,
    /// The host, and the address of the internal API.
    pub name: String,
    /// The version of claimgate.
    pub version: String,
    /// The start time by the core's clock.
    pub started_at: Timestamp,
    /// The number of claims since the start, by result.
    pub results: BTreeMap<String, u64>,
    /// The number of claims that edges refused and the core recorded since the start, by reason.
    pub edge_refusals: BTreeMap<String, u64>,
}

impl SqlStore {
    /// Removes the rows of all runs of the core `core`, except that of the run `kept`, and of cores without a
    /// heartbeat for an hour. Rows of earlier versions have no number after the core's id.
    pub(crate) async fn forget_runs(&self, core: &str, kept: Option<&str>) -> Result<(), SqlError> {
        let statement = self.with_database_clock(
            "DELETE FROM cores WHERE id <> $2 \
             AND (id = $1 OR SUBSTR(id, 1, LENGTH($1) + 1) = $1 || '.' OR seen_at < {now} - $3)",
        );
        // No run has the id "". Nothing differs from NULL in SQL.
        let query = sqlx::query(statement).bind(core).bind(kept.unwrap_or_default()).bind(listed_ms());
        query.execute(&mut self.pool.lease().await?).await?;
        Ok(())
    }

    /// Returns the cores with a heartbeat within the last hour, by name, and the time since that heartbeat.
    pub(crate) async fn cores(&self) -> Result<Vec<(CoreRow, Duration)>, SqlError> {
        let statement = self.with_database_clock(
            "SELECT id, name, version, started_at, results, seen_at, {now}, edge_refusals FROM cores \
             WHERE seen_at >= {now} - $1 ORDER BY name, id LIMIT 100",
        );
        let rows = sqlx::query(statement).bind(listed_ms()).fetch_all(&mut self.pool.lease().await?).await?;
        let read = |row: &sqlx::any::AnyRow| {
            let (results, edge_refusals): (String, String) = (row.try_get(4)?, row.try_get(7)?);
            let (seen_ms, now_ms): (i64, i64) = (row.try_get(5)?, row.try_get(6)?);
            let core = CoreRow {
                id: row.try_get(0)?,
                name: row.try_get(1)?,
                version: row.try_get(2)?,
                started_at: Timestamp::from_ms(row.try_get(3)?).map_err(unreadable)?,
                results: serde_json::from_str(&results).map_err(unreadable)?,
                edge_refusals: serde_json::from_str(&edge_refusals).map_err(unreadable)?,
            };
            let silent_for = Duration::from_millis(u64::try_from(now_ms - seen_ms).unwrap_or(0));
            Ok::<_, SqlError>((core, silent_for))
        };
        rows.iter().map(read).collect()
    }
}

fn listed_ms() -> i64 {
    i64::try_from(LISTED.as_millis()).unwrap_or(i64::MAX)
}
