//! Writes campaigns again as Redis or a core knows them, where the database has lost its last transactions.

use claimgate_shared::{CampaignId, Timestamp};

use super::campaigns::{Change, lock, number_change, read, write_rules};
use super::numbers::big;
use super::statements::campaign_columns;
use super::{SqlError, SqlStore};
use crate::domain::addition::AppliedAddition;
use crate::domain::campaign::Campaign;
use crate::domain::counters::FencingToken;
use crate::step;

impl SqlStore {
    /// Raises the campaign's fencing token above `redis`, the one that Redis has; `None` when SQL has drawn further ones:
    /// then it has lost none.
    ///
    /// # Errors
    /// As [`SqlStore::draw_token`].
    pub async fn raise_token(
        &self,
        id: &CampaignId,
        redis: FencingToken,
    ) -> Result<Option<Campaign>, SqlError> {
        step::before("sql:raise_token").await;
        let row = sqlx::query(concat!(
            "UPDATE campaigns SET token = $2 + 1 WHERE id = $1 AND token < $2 AND evicted_at IS NULL RETURNING ",
            campaign_columns!()
        ))
        .bind(id.as_str())
        .bind(big(redis))
        .fetch_optional(&self.pool)
        .await;
        step::after(row)?.as_ref().map(read).transpose()
    }

    /// Writes rules that Redis or a core still knows in place of older ones of `drawn`, whose token was drawn: the database
    /// has lost them. With `additions`, those that it has lost, too. `None` when another token has been drawn since, or the rules were changed.
    ///
    /// # Errors
    /// As [`SqlStore::draw_token`].
    pub(crate) async fn restore(
        &self,
        drawn: &Campaign,
        after: &Campaign,
        additions: &[AppliedAddition],
        at: Timestamp,
    ) -> Result<Option<Campaign>, SqlError> {
        step::before("sql:restore").await;
        let mut transaction = self.pool.begin().await?;
        let before = lock(&mut transaction, &drawn.id).await?;
        // A change that an admin has made since is not to be overwritten.
        let is_as_drawn = |before: &Campaign| (before.token, before.version) == (drawn.token, drawn.version);
        let Some(before) = before.filter(is_as_drawn) else { return Ok(None) };
        let after = write_rules(&mut transaction, &before, after, restored(at)).await?;
        for AppliedAddition { idempotency_key, units, version } in additions {
            let written = sqlx::query(
                "INSERT INTO additions (campaign_id, idempotency_key, units, version) VALUES ($1, $2, $3, $4) \
                 ON CONFLICT DO NOTHING",
            );
            let written =
                written.bind(after.id.as_str()).bind(idempotency_key).bind(units).bind(big(*version));
            written.execute(&mut *transaction).await?;
        }
        number_change(&mut transaction, &after.id).await?;
        step::after(transaction.commit().await)?;
        Ok(Some(after))
    }

    /// Writes the row of `campaign` again, which the database has lost; as it is, if it is there by now.
    ///
    /// # Errors
    /// As [`SqlStore::create`].
    pub(crate) async fn restore_row(&self, campaign: &Campaign, at: Timestamp) -> Result<(), SqlError> {
        self.create(campaign, restored(at)).await.map(drop)
    }
}

/// What the audit says where claimgate writes again what the database has lost.
fn restored(at: Timestamp) -> Change<'static> {
    Change { who: "claimgate", what: "restore", at }
}
