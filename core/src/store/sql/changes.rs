//! What has changed in the database. Every core asks each second, so the first query returns only a few sums.

use claimgate_shared::CampaignId;
use sqlx::Row as _;

use super::campaigns::{unreadable, unsigned};
use super::{SqlError, SqlStore};
use crate::step;

/// A campaign's version, epoch and, if it is evicted, units taken.
pub type State = (u64, u64, Option<u64>);

/// Concurrent commits for a database with more than one writer.
const WRITERS_MAX: usize = 4;

/// A fingerprint of the database's state, independent of any clock: versions and epochs only rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The number of campaigns, and of evicted ones.
    pub campaigns: (u64, u64),
    /// Units taken of evicted campaigns: a return changes it, and nothing else.
    pub evicted_taken: u64,
    /// The sum of their versions.
    pub versions: u64,
    /// The sum of their epochs.
    pub epochs: u64,
}

impl SqlStore {
    /// How many transactions may write at once without blocking each other: SQLite has one writer.
    pub fn writers_max(&self) -> usize {
        if self.is_sqlite() { 1 } else { WRITERS_MAX }
    }

    /// The state of the database.
    pub(crate) async fn stamp(&self) -> Result<Stamp, SqlError> {
        step::before("sql:stamp").await;
        let row = sqlx::query(
            "SELECT COUNT(*), COUNT(evicted_at), CAST(COALESCE(SUM(version), 0) AS BIGINT), \
             CAST(COALESCE(SUM(epoch), 0) AS BIGINT), \
             CAST(COALESCE(SUM(CASE WHEN evicted_at IS NULL THEN 0 ELSE evicted_taken END), 0) AS BIGINT) FROM campaigns",
        )
        .fetch_one(&self.pool)
        .await;
        let row = step::after(row)?;
        let number = |column: usize| unsigned(row.try_get(column)?);
        Ok(Stamp {
            campaigns: (number(0)?, number(1)?),
            versions: number(2)?,
            epochs: number(3)?,
            evicted_taken: number(4)?,
        })
    }

    /// Every campaign's version, epoch and, if it is evicted, units taken, to tell which have changed. Rows whose id is
    /// malformed are left out.
    pub(crate) async fn states(&self) -> Result<Vec<(CampaignId, State)>, SqlError> {
        step::before("sql:states").await;
        let rows = sqlx::query(
            "SELECT id, version, epoch, CASE WHEN evicted_at IS NOT NULL THEN evicted_taken END FROM campaigns ORDER BY id",
        )
        .fetch_all(&self.pool)
        .await;
        let rows = step::after(rows)?;
        let mut states = Vec::with_capacity(rows.len());
        for row in &rows {
            match row.try_get::<&str, _>(0)?.parse().map_err(unreadable) {
                Ok(id) => {
                    let evicted = row.try_get::<Option<i64>, _>(3)?.map(unsigned).transpose()?;
                    states.push((id, (unsigned(row.try_get(1)?)?, unsigned(row.try_get(2)?)?, evicted)));
                }
                Err(error) => tracing::error!(%error, "a campaign's row is left out"),
            }
        }
        Ok(states)
    }
}
