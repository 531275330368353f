//! Imports of past claims, in many transactions. From the first to the last the campaign is evicted and its row names the
//! file. Each transaction holds the row and compares the epoch, which every begin raises: of two imports at once, only the
//! one that began last writes anything.

use claimgate_shared::Version;

use super::campaigns::{audit, number_change, read};
use super::numbers::big;
use super::statements::campaign_columns;
use super::{BULK, Change, OutboxWriteError, SqlError, SqlStore};
use crate::domain::campaign::{Campaign, Evicted};
use crate::domain::counters::Epoch;
use crate::domain::event::OutboxEntry;
use crate::step;

impl SqlStore {
    /// Begins the import of the file `digest` into `found`, or goes on with it: evicts the campaign, with the counters
    /// `evicted`, and raises its epoch to `to`. Redis must not hold it, or hold it suspended and relayed under its token.
    /// `None` when the campaign, its claims included, has changed since `found` was read: nothing was changed then.
    ///
    /// # Errors
    /// [`SqlError::Unreadable`] for a row that this version cannot read, [`SqlError::Sql`] when the database does not
    /// answer. The import may have begun all the same.
    pub(crate) async fn begin_import(
        &self,
        found: &Campaign,
        to: Epoch,
        evicted: Evicted,
        digest: &str,
        change: Change<'_>,
    ) -> Result<Option<Campaign>, SqlError> {
        step::before("sql:begin_import").await;
        let goes_on = found.unfinished_import.is_some();
        let version: Version = if goes_on { found.version } else { found.version.next() };
        let mut transaction = self.pool.begin().await?;
        let row = sqlx::query(concat!(
            "UPDATE campaigns SET epoch = $1, version = $2, evicted_at = COALESCE(evicted_at, $3), evicted_taken = $4, \
             evicted_sequence = $5, keys_dropped = 0, import_digest = $6 \
             WHERE id = $7 AND token = $8 AND version = $9 AND epoch = $10 AND events = $11 RETURNING ",
            campaign_columns!()
        ))
        .bind(big(to))
        .bind(big(version))
        .bind(change.at.as_ms())
        .bind(big(evicted.taken))
        .bind(big(evicted.sequence))
        .bind(digest)
        .bind(found.id.as_str())
        .bind(big(found.token))
        .bind(big(found.version))
        .bind(big(found.epoch))
        .bind(big(found.high_water_mark.events))
        .fetch_optional(&mut *transaction)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let begun = read(&row)?;
        if !goes_on {
            audit(&mut transaction, Some(found), &begun, change).await?;
        }
        number_change(&mut transaction, &begun.id).await?;
        step::after(transaction.commit().await)?;
        Ok(Some(begun))
    }

    /// Writes the claims of `entry` into `begun`, of which the last has the sequence `sequence`, and which take `units`.
    /// `false` when that import is no more: another one has begun, or the campaign was ended. Nothing was written then.
    ///
    /// # Errors
    /// [`OutboxWriteError::Constraint`], or [`OutboxWriteError::Sql`] when the database does not answer: the claims may have
    /// been written all the same.
    pub(crate) async fn import_claims(
        &self,
        begun: &Campaign,
        entry: &OutboxEntry,
        sequence: u64,
        units: u64,
    ) -> Result<bool, OutboxWriteError> {
        step::before("sql:import_claims").await;
        let mut transaction = self.pool.within(BULK).begin().await?;
        let held = sqlx::query(
            "UPDATE campaigns SET sequence = $1, events = events + $2, evicted_sequence = $1, \
             evicted_taken = evicted_taken + $3 WHERE id = $4 AND epoch = $5 AND import_digest IS NOT NULL",
        )
        .bind(big(sequence))
        .bind(big(entry.events.len() as u64))
        .bind(big(units))
        .bind(begun.id.as_str())
        .bind(big(begun.epoch))
        .execute(&mut *transaction)
        .await?;
        if held.rows_affected() == 0 {
            return Ok(false);
        }
        self.write_entry_and_commit(transaction, &begun.id, entry).await?;
        Ok(true)
    }

    /// Completes the import `begun`: the campaign is loaded into Redis from now on. `None` when that import is no more, as
    /// in [`Self::import_claims`].
    ///
    /// # Errors
    /// As [`Self::begin_import`].
    pub(crate) async fn end_import(&self, begun: &Campaign) -> Result<Option<Campaign>, SqlError> {
        step::before("sql:end_import").await;
        let end = sqlx::query(concat!(
            "UPDATE campaigns SET import_digest = NULL, evicted_at = NULL, epoch = $1 \
             WHERE id = $2 AND epoch = $3 AND import_digest IS NOT NULL RETURNING ",
            campaign_columns!()
        ))
        .bind(big(begun.epoch.next()))
        .bind(begun.id.as_str())
        .bind(big(begun.epoch));
        self.numbered(end).await
    }
}
