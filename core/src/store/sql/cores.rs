//! Which cores serve: a row each, for people to see. It decides nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use claimgate_shared::Timestamp;
use sqlx::Row as _;

use super::numbers::unreadable;
use super::{SqlError, SqlStore};

/// How long a core that writes no more is listed.
const LISTED: Duration = Duration::from_hours(1);

/// A core, as it has described itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreRow {
    /// Its id, which its data directory keeps.
    pub id: String,
    /// Its host and the address of its internal API.
    pub name: String,
    /// Its version.
    pub version: String,
    /// When it was started, by its own clock.
    pub started_at: Timestamp,
    /// How many claims have had each result since.
    pub results: BTreeMap<String, u64>,
}

impl SqlStore {
    /// Records that `core` serves.
    pub(crate) async fn record_core(&self, core: &CoreRow) -> Result<(), SqlError> {
        let statement = self.with_now(
            "INSERT INTO cores (id, name, version, started_at, seen_at, results) VALUES ($1, $2, $3, $4, {now}, $5) \
             ON CONFLICT (id) DO UPDATE SET name = excluded.name, version = excluded.version, \
             started_at = excluded.started_at, seen_at = excluded.seen_at, results = excluded.results",
        );
        let results = serde_json::to_string(&core.results).map_err(unreadable)?;
        let query = sqlx::query(statement).bind(core.id.as_str()).bind(core.name.as_str());
        let query = query.bind(core.version.as_str()).bind(core.started_at.as_ms()).bind(results);
        query.execute(&self.pool).await?;
        Ok(())
    }

    /// Removes the row of the core `id`, and those of cores that have written none for an hour.
    pub(crate) async fn forget_core(&self, id: &str) -> Result<(), SqlError> {
        let statement = self.with_now("DELETE FROM cores WHERE id = $1 OR seen_at < {now} - $2");
        sqlx::query(statement).bind(id).bind(listed_ms()).execute(&self.pool).await?;
        Ok(())
    }

    /// The cores that have written their rows within the hour, by name, and how long ago that was.
    pub(crate) async fn cores(&self) -> Result<Vec<(CoreRow, Duration)>, SqlError> {
        let statement = self.with_now(
            "SELECT id, name, version, started_at, results, seen_at, {now} FROM cores \
             WHERE seen_at >= {now} - $1 ORDER BY name, id LIMIT 100",
        );
        let rows = sqlx::query(statement).bind(listed_ms()).fetch_all(&self.pool).await?;
        let read = |row: &sqlx::any::AnyRow| {
            let results: String = row.try_get(4)?;
            let (seen_ms, now_ms): (i64, i64) = (row.try_get(5)?, row.try_get(6)?);
            let core = CoreRow {
                id: row.try_get(0)?,
                name: row.try_get(1)?,
                version: row.try_get(2)?,
                started_at: Timestamp::from_ms(row.try_get(3)?).map_err(unreadable)?,
                results: serde_json::from_str(&results).map_err(unreadable)?,
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
