//! Claims in SQL: written by the drain, read by look-ups and exports.

use claimgate_shared::{CampaignId, Claim, ClaimId, ClaimStatus, Quantity, Timestamp};
use sqlx::any::AnyRow;
use sqlx::{Any, QueryBuilder, Row as _};

use super::campaigns::{big, unreadable, unsigned};
use super::{Archive, ArchiveError};
use crate::ledger::events::{Entry, Event};

/// Rows written by one statement: 14 parameters each, and SQLite takes 32,766.
const ROWS_MAX: usize = 2000;

/// Why entries were not written.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// The register knows no such campaign.
    #[error("the register has no such campaign")]
    NoCampaign,
    /// A constraint of the register's own refuses them: a second claim in one place, or one past its limit.
    #[error("the register's own constraint refuses these claims: {0}")]
    Constraint(#[source] sqlx::Error),
    /// SQL did not answer; nothing was written.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
}

impl From<sqlx::Error> for DrainError {
    fn from(error: sqlx::Error) -> Self {
        let constraint = error.as_database_error().is_some_and(|error| {
            error.is_check_violation() || error.is_unique_violation() || error.is_foreign_key_violation()
        });
        if constraint {
            Self::Constraint(error)
        } else {
            Self::Archive(error.into())
        }
    }
}

/// A claim as SQL has it.
#[derive(Debug)]
pub struct ClaimRow {
    /// The claim.
    pub claim: Claim,
    /// Its epoch and revision: which of two states is the newer.
    pub age: (u64, u64),
    /// The day it counts on, in days since 1970.
    pub day: i64,
    /// When it came to stand so.
    pub updated_at: Timestamp,
}

/// A page of claims in the order of their sequence.
#[derive(Debug)]
pub struct ClaimPage {
    /// The claims.
    pub rows: Vec<ClaimRow>,
    /// Where the next page begins; `None` on the last.
    pub next: Option<u64>,
}

impl Archive {
    /// Writes a campaign's entries, in one transaction that holds the campaign's row. What an older epoch wrote
    /// is stored as revoked: its Redis was lost, and its units may have been given anew.
    pub async fn drain(&self, campaign: &CampaignId, entries: &[Entry]) -> Result<(), DrainError> {
        let mut transaction = self.pool.begin().await?;
        let row = sqlx::query("UPDATE campaigns SET epoch = epoch WHERE id = $1 RETURNING epoch")
            .bind(campaign.as_str())
            .fetch_optional(&mut *transaction)
            .await?;
        let epoch = unsigned(row.ok_or(DrainError::NoCampaign)?.try_get(0)?)?;
        let rows = newest(entries);
        for chunk in rows.chunks(ROWS_MAX) {
            insert(campaign, epoch, chunk)
                .build()
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// The claim `id` as SQL has it.
    pub async fn claim(&self, id: &ClaimId) -> Result<Option<ClaimRow>, ArchiveError> {
        let row = sqlx::query("SELECT * FROM claims WHERE id = $1")
            .bind(id.to_string())
            .fetch_optional(&self.pool)
            .await?;
        row.as_ref().map(read).transpose()
    }

    /// Up to `limit` claims of a campaign whose sequence is above `after`.
    pub async fn claims(
        &self,
        campaign: &CampaignId,
        after: u64,
        limit: u32,
    ) -> Result<ClaimPage, ArchiveError> {
        let found = sqlx::query(
            "SELECT * FROM claims WHERE campaign_id = $1 AND sequence > $2 ORDER BY sequence LIMIT $3",
        )
        .bind(campaign.as_str())
        .bind(big(after))
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await?;
        let rows = found.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let full = rows.len() == usize::try_from(limit).unwrap_or(usize::MAX);
        let next = rows.last().filter(|_| full).map(|row| row.claim.sequence);
        Ok(ClaimPage { rows, next })
    }
}

/// The last state of each claim: one statement may not touch a row twice.
fn newest(entries: &[Entry]) -> Vec<(u64, &Event)> {
    let mut place = std::collections::HashMap::new();
    let mut rows: Vec<(u64, &Event)> = Vec::new();
    for (epoch, event) in entries
        .iter()
        .flat_map(|entry| entry.events.iter().map(|event| (entry.epoch, event)))
    {
        match place.entry((event.user.as_str(), event.claim.digest)) {
            std::collections::hash_map::Entry::Vacant(slot) => {
                slot.insert(rows.len());
                rows.push((epoch, event));
            }
            std::collections::hash_map::Entry::Occupied(slot) => {
                let row = &mut rows[*slot.get()];
                if (epoch, event.claim.revision) > (row.0, row.1.claim.revision) {
                    *row = (epoch, event);
                }
            }
        }
    }
    rows
}

fn insert(campaign: &CampaignId, epoch_now: u64, rows: &[(u64, &Event)]) -> QueryBuilder<Any> {
    let mut query = QueryBuilder::new(
        "INSERT INTO claims (id, campaign_id, user_id, quantity, status, epoch, revision, sequence, day, \
         claimed_at, expires_at, updated_at, total_then, taken_after) ",
    );
    query.push_values(rows, |mut row, (epoch, event)| {
        let claim = &event.claim;
        let status = if *epoch < epoch_now {
            ClaimStatus::Revoked
        } else {
            claim.status
        };
        row.push_bind(event.claim_id(campaign).to_string())
            .push_bind(campaign.to_string())
            .push_bind(event.user.to_string())
            .push_bind(i64::from(claim.quantity))
            .push_bind(status.as_str())
            .push_bind(big(*epoch))
            .push_bind(i64::from(claim.revision))
            .push_bind(big(claim.sequence))
            .push_bind(i64::from(claim.day))
            .push_bind(claim.claimed_at.as_ms())
            .push_bind(claim.expires_at.map(Timestamp::as_ms))
            .push_bind(event.updated_at.as_ms())
            .push_bind(event.total_then.map(big))
            .push_bind(event.taken_after.map(big));
    });
    // The guard's two columns belong to the decision: a later state of the same claim brings none of its own.
    query.push(
        " ON CONFLICT (id) DO UPDATE SET status = excluded.status, epoch = excluded.epoch, \
         revision = excluded.revision, sequence = excluded.sequence, day = excluded.day, \
         claimed_at = excluded.claimed_at, expires_at = excluded.expires_at, updated_at = excluded.updated_at, \
         total_then = COALESCE(excluded.total_then, claims.total_then), \
         taken_after = COALESCE(excluded.taken_after, claims.taken_after) \
         WHERE excluded.epoch > claims.epoch \
         OR (excluded.epoch = claims.epoch AND excluded.revision > claims.revision)",
    );
    query
}

fn read(row: &AnyRow) -> Result<ClaimRow, ArchiveError> {
    let time = |ms: i64| Timestamp::from_ms(ms).map_err(unreadable);
    let id: ClaimId = row.try_get::<String, _>("id")?.parse().map_err(unreadable)?;
    let quantity = u32::try_from(row.try_get::<i64, _>("quantity")?).map_err(unreadable)?;
    let expires_at: Option<i64> = row.try_get("expires_at")?;
    let claim = Claim {
        campaign_id: id.campaign.clone(),
        user_id: id.user.clone(),
        id,
        quantity: Quantity::try_from(quantity).map_err(unreadable)?,
        status: status(&row.try_get::<String, _>("status")?)?,
        sequence: unsigned(row.try_get("sequence")?)?,
        claimed_at: time(row.try_get("claimed_at")?)?,
        expires_at: expires_at.map(time).transpose()?,
        persisted: None,
    };
    let age = (
        unsigned(row.try_get("epoch")?)?,
        unsigned(row.try_get("revision")?)?,
    );
    Ok(ClaimRow {
        claim,
        age,
        day: row.try_get("day")?,
        updated_at: time(row.try_get("updated_at")?)?,
    })
}

fn status(text: &str) -> Result<ClaimStatus, ArchiveError> {
    [
        ClaimStatus::Granted,
        ClaimStatus::Held,
        ClaimStatus::Returned,
        ClaimStatus::Expired,
        ClaimStatus::Revoked,
    ]
    .into_iter()
    .find(|status| status.as_str() == text)
    .ok_or_else(|| unreadable(text))
}
