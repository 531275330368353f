//! Imports past claims in many transactions. From the first transaction to the last, the campaign is evicted,
//! and its row contains the file's digest. Each transaction locks the row and compares the epoch. Each new
//! import raises the epoch, so only the newer of two concurrent imports can write.

use claimgate_shared::Version;
use claimgate_shared::user_id::Scheme;

use super::campaigns::{audit, number_change, read};
use super::numbers::to_i64;
use super::statements::campaign_columns;
use super::{BULK_MAX, Change, OutboxWriteError, SqlError, SqlStore};
use crate::domain::campaign::{Campaign, Evicted};
use crate::domain::counters::Epoch;
use crate::domain::event::OutboxEntry;

impl SqlStore {
    /// Begins or resumes the import of the file `digest` into `found`. Evicts the campaign with the counters
    /// `evicted`, and raises its epoch to `to`. The campaign must not be in Redis, or must be suspended there
    /// under the token of `found` and relayed. Changes nothing and returns `None` if the campaign or its
    /// claims have changed since `found` was read, or if the pinned scheme of user ids is not `user_ids`, for
    /// which the file was checked.
    pub(crate) async fn begin_import(
        &self,
        found: &Campaign,
        to: Epoch,
        evicted: Evicted,
        digest: &str,
        user_ids: Option<Scheme>,
        change: Change<'_>,
    ) -> Result<Option<Campaign>, SqlError> {
        let is_resumed = found.unfinished_import.is_some();
        let version: Version = if is_resumed { found.version } else { found.version.next() };
        let mut transaction = self.pool.begin_at("sql:begin_import").await?;
        let row = sqlx::query(concat!(
            "UPDATE campaigns SET epoch = $1, version = $2, evicted_at = COALESCE(evicted_at, $3), evicted_taken = $4, \
             evicted_sequence = $5, keys_dropped = 0, import_digest = $6 \
             WHERE id = $7 AND token = $8 AND version = $9 AND epoch = $10 AND events = $11 \
             AND COALESCE((SELECT scheme FROM user_ids WHERE one = 1), '') = $12 RETURNING ",
            campaign_columns!()
        ))
        .bind(to_i64(to))
        .bind(to_i64(version))
        .bind(change.at.as_ms())
        .bind(to_i64(evicted.taken))
        .bind(to_i64(evicted.sequence))
        .bind(digest)
        .bind(found.id.as_str())
        .bind(to_i64(found.token))
        .bind(to_i64(found.version))
        .bind(to_i64(found.epoch))
        .bind(to_i64(found.high_water_mark.events))
        .bind(user_ids.map_or_else(String::new, |scheme| scheme.to_string()))
        .fetch_optional(&mut transaction.lease)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let begun = read(&row)?;
        if !is_resumed {
            audit(&mut transaction, Some(found), &begun, change).await?;
        }
        number_change(&mut transaction, &begun.id).await?;
        transaction.commit().await?;
        Ok(Some(begun))
    }

    /// Writes the claims of `entry` to `begun`. The last claim has the sequence number `sequence`, and all
    /// claims together take `units`. Writes nothing and returns `false` if another import has begun, or the
    /// campaign has been ended.
    pub(crate) async fn import_claims(
        &self,
        begun: &Campaign,
        entry: &OutboxEntry,
        sequence: u64,
        units: u64,
    ) -> Result<bool, OutboxWriteError> {
        let mut transaction = self.pool.within(BULK_MAX).begin_at("sql:import_claims").await?;
        let held = sqlx::query(
            "UPDATE campaigns SET sequence = $1, events = events + $2, evicted_sequence = $1, \
             evicted_taken = evicted_taken + $3 WHERE id = $4 AND epoch = $5 AND import_digest IS NOT NULL",
        )
        .bind(to_i64(sequence))
        .bind(to_i64(entry.events.len() as u64))
        .bind(to_i64(units))
        .bind(begun.id.as_str())
        .bind(to_i64(begun.epoch))
        .execute(&mut transaction.lease)
        .await?;
        if held.rows_affected() == 0 {
            return Ok(false);
        }
        self.write_entry_and_commit(transaction, &begun.id, entry).await?;
        Ok(true)
    }

    /// Completes the import `begun`, so that the campaign can be loaded into Redis. Returns `None` if another
    /// import has begun, or the campaign has been ended.
    pub(crate) async fn end_import(&self, begun: &Campaign) -> Result<Option<Campaign>, SqlError> {
        let end = sqlx::query(concat!(
            "UPDATE campaigns SET import_digest = NULL, evicted_at = NULL, epoch = $1 \
             WHERE id = $2 AND epoch = $3 AND import_digest IS NOT NULL RETURNING ",
            campaign_columns!()
        ))
        .bind(to_i64(begun.epoch.next()))
        .bind(begun.id.as_str())
        .bind(to_i64(begun.epoch));
        self.commit_numbered("sql:end_import", end).await
    }
}
