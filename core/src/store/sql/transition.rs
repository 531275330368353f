//! Claim transitions on an evicted campaign: only SQL has its claims, so they are confirmed and returned here, under the
//! lock of the campaign's row, by the rules of `lua/transition.lua`.

use claimgate_shared::ids::digest_text;
use claimgate_shared::{Claim, ClaimId, ClaimStatus, Timestamp};
use sqlx::Row as _;

use super::audit::ClaimChange;
use super::campaigns::{self, number_change};
use super::claims::{self, ClaimRow, bind_id};
use super::feed_writer::feed_rows;
use super::numbers::{big, unsigned};
use super::statements::campaign_columns;
use super::{SqlError, SqlStore, statements};
use crate::domain::campaign::Campaign;
use crate::domain::claim_transition::ClaimTransition;
use crate::step;

/// The result of a claim transition.
#[derive(Debug)]
pub enum Transitioned {
    /// The claim as it stands now, whether by this call or before.
    Stands(Claim),
    /// As [`Self::Stands`], and the campaign, whose units or events have changed.
    Changed(Claim, Box<Campaign>),
    /// There is no such claim.
    Unknown,
    /// The campaign is in Redis, which decides; or there is none.
    NotEvicted,
}

impl SqlStore {
    /// Confirms or returns the claim `id` at `now` for the caller of the name `by`; idempotent, also under concurrent calls. A
    /// hold that is due expires instead. Changes nothing unless the campaign is evicted at that moment: a core that loads it
    /// into Redis waits for this transaction, or this transaction finds it loaded.
    ///
    /// # Errors
    /// When SQL does not answer within 1.5 s; the transition may have been committed.
    pub async fn transition(
        &self,
        id: &ClaimId,
        transition: ClaimTransition,
        by: &str,
        now: Timestamp,
    ) -> Result<Transitioned, SqlError> {
        step::before("sql:transition").await;
        let mut transaction = self.pool.begin().await?;
        // Begins with a write that changes nothing, to hold the row: see the module's head.
        let held =
            sqlx::query("UPDATE campaigns SET version = version WHERE id = $1 AND evicted_at IS NOT NULL")
                .bind(id.campaign.as_str())
                .execute(&mut *transaction)
                .await?;
        if held.rows_affected() == 0 {
            return Ok(Transitioned::NotEvicted);
        }
        let found = bind_id(sqlx::query(statements::ONE), id).fetch_optional(&mut *transaction).await?;
        let Some(ClaimRow { claim, .. }) = found.map(|row| claims::read(&id.campaign, &row)).transpose()?
        else {
            return Ok(Transitioned::Unknown);
        };
        let Some(status) = next_status(&claim, transition, now) else {
            return Ok(Transitioned::Stands(claim));
        };
        let changed = bind_id(sqlx::query(statements::TRANSITION), id)
            .bind(status.as_str())
            .bind(now.as_ms())
            .fetch_one(&mut *transaction)
            .await?;
        let given_back = if status == ClaimStatus::Granted { 0 } else { u64::from(claim.quantity.get()) };
        // Each revision of a claim is an event of its campaign, here as in Redis.
        let campaign = sqlx::query(concat!(
            "UPDATE campaigns SET events = events + 1, \
             evicted_taken = CASE WHEN evicted_taken > $1 THEN evicted_taken - $1 ELSE 0 END \
             WHERE id = $2 RETURNING ",
            campaign_columns!()
        ))
        .bind(big(given_back))
        .bind(id.campaign.as_str())
        .fetch_one(&mut *transaction)
        .await?;
        let campaign = campaigns::read(&campaign)?;
        // An expiry is no caller's.
        if status != ClaimStatus::Expired {
            let change = ClaimChange {
                campaign: &id.campaign,
                user: id.user.as_str(),
                digest: digest_text(&id.digest),
                epoch: unsigned(changed.try_get("epoch")?)?,
                revision: unsigned(changed.try_get("revision")?)?,
                at: now,
                who: by,
                before: claim.status,
                after: status,
            };
            self.audit_claims(&mut transaction, &[change]).await?;
        }
        if given_back > 0 {
            number_change(&mut transaction, &campaign.id).await?;
        }
        let (user, digest) = (id.user.as_str(), digest_text(&id.digest));
        let told = feed_rows(&[(id.campaign.as_str(), user, &digest)]);
        self.commit_told(transaction, &told).await?;
        let expires_at = claim.expires_at.filter(|_| status != ClaimStatus::Granted);
        Ok(Transitioned::Changed(Claim { status, expires_at, ..claim }, Box::new(campaign)))
    }
}

/// The claim's new status; `None` when it stays as it is.
fn next_status(claim: &Claim, transition: ClaimTransition, now: Timestamp) -> Option<ClaimStatus> {
    match (claim.status, transition) {
        (ClaimStatus::Held, _) if claim.expires_at.is_some_and(|due| now >= due) => {
            Some(ClaimStatus::Expired)
        }
        (ClaimStatus::Held, ClaimTransition::Confirm) => Some(ClaimStatus::Granted),
        (ClaimStatus::Held | ClaimStatus::Granted, ClaimTransition::Return) => Some(ClaimStatus::Returned),
        _ => None,
    }
}
