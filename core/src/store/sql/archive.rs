//! Archived campaigns, which lists leave out.

use claimgate_shared::CampaignId;
use serde_json::json;

use super::audit::issue_audit_number;
use super::campaigns::{self, Change, Changed, number_change};
use super::pool::Transaction;
use super::statements::campaign_columns;
use super::{SqlError, SqlStore};
use crate::domain::campaign::Campaign;

impl SqlStore {
    /// Archives the campaign `id` if it has ended, or lists it again. Its rules and version stay unchanged. Returns
    /// `None` if there is no such campaign, and [`Changed::Unchanged`] if nothing changes.
    pub async fn set_archived(
        &self,
        id: &CampaignId,
        archived: bool,
        change: Change<'_>,
    ) -> Result<Option<Changed>, SqlError> {
        let mut transaction = self.pool.begin_at("sql:set_archived").await?;
        let Some(before) = campaigns::lock(&mut transaction, id).await? else {
            return Ok(None);
        };
        if archived && before.ended_at(change.at).is_none() {
            return Ok(Some(Changed::NotEnded));
        }
        if before.archived == archived {
            return Ok(Some(Changed::Unchanged(before)));
        }
        let row = sqlx::query(concat!(
            "UPDATE campaigns SET archived_at = $1 WHERE id = $2 RETURNING ",
            campaign_columns!()
        ))
        .bind(archived.then_some(change.at.as_ms()))
        .bind(id.as_str())
        .fetch_one(&mut transaction.lease)
        .await?;
        let after = campaigns::read(&row)?;
        audit(&mut transaction, &after, change).await?;
        number_change(&mut transaction, id).await?;
        transaction.commit().await?;
        Ok(Some(Changed::Done(after)))
    }
}

/// Writes the audit entry of a change of `archived`.
async fn audit(transaction: &mut Transaction, after: &Campaign, change: Change<'_>) -> Result<(), SqlError> {
    let number = issue_audit_number(transaction).await?;
    sqlx::query(
        "INSERT INTO archive_audit (campaign_id, at, who, what, before, after, number) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(after.id.as_str())
    .bind(change.at.as_ms())
    .bind(change.who)
    .bind(change.what)
    .bind(json!({ "archived": !after.archived }).to_string())
    .bind(json!({ "archived": after.archived }).to_string())
    .bind(number)
    .execute(&mut transaction.lease)
    .await?;
    Ok(())
}
