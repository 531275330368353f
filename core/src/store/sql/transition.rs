//! Claim transitions of evicted campaigns. Only SQL has their claims, so they are confirmed, returned and
//! extended here, under the lock of the campaign's row and by the rules of `lua/transition.lua`.

use std::num::NonZeroU32;

use claimgate_shared::ids::digest_text;
use claimgate_shared::{Claim, ClaimId, ClaimStatus, Timestamp};
use sqlx::Row as _;

use super::audit::ClaimChange;
use super::campaigns::{self, number_change};
use super::claims::{self, ClaimRow, bind_id};
use super::codes::Numbered;
use super::feed_writer::feed_rows;
use super::numbers::{to_i64, unsigned};
use super::pool::Transaction;
use super::statements::campaign_columns;
use super::{SqlError, SqlStore, statements};
use crate::domain::campaign::Campaign;
use crate::domain::claim_transition::{ClaimTransition, Extension, Requester};

/// The result of a claim transition.
#[derive(Debug)]
pub enum Transitioned {
    /// The claim was not changed by this call. Contains the claim's current state.
    Stands(Claim),
    /// The claim was changed. Contains the claim's new state, and the campaign with new counters.
    Changed(Claim, Box<Campaign>),
    /// The claim was not changed, because its hold was extended too often. Contains the claim's current state.
    ExtendedTooOften(Claim),
    /// There is no such claim.
    Unknown,
    /// The campaign does not exist, or is in Redis, which must decide the transition.
    NotEvicted,
}

/// Locks the row of an evicted campaign with a write that changes nothing. Must be a transaction's first statement;
/// see the documentation of `sql`.
const LOCK_EVICTED: &str = concat!(
    "UPDATE campaigns SET version = version WHERE id = $1 AND evicted_at IS NOT NULL RETURNING ",
    campaign_columns!()
);

impl SqlStore {
    /// Confirms, returns or extends the claim `id` at `now` for the caller `by`. The call is idempotent,
    /// even if concurrent. A hold that is due expires instead. Changes nothing unless the campaign is evicted. A
    /// core that loads the campaign waits for this transaction; if the load came first, this transaction
    /// changes nothing.
    pub async fn transition(
        &self,
        id: &ClaimId,
        transition: ClaimTransition,
        by: Requester<'_>,
        now: Timestamp,
    ) -> Result<Transitioned, SqlError> {
        let mut transaction = self.pool.begin_at("sql:transition").await?;
        let locked = sqlx::query(LOCK_EVICTED).bind(id.campaign.as_str());
        let locked = locked.fetch_optional(&mut transaction.lease).await?;
        let Some(campaign) = locked.as_ref().map(campaigns::read).transpose()? else {
            return Ok(Transitioned::NotEvicted);
        };
        let found = bind_id(sqlx::query(statements::ONE), id).fetch_optional(&mut transaction.lease).await?;
        let Some(row) = found.map(|row| claims::read(&id.campaign, &row)).transpose()? else {
            return Ok(Transitioned::Unknown);
        };
        match next_state(&row, transition, campaign.hold_seconds, now) {
            Next::Stands => Ok(Transitioned::Stands(row.claim)),
            Next::ExtendedTooOften => Ok(Transitioned::ExtendedTooOften(row.claim)),
            Next::Changed(status, expires_at) => {
                let after = Claim { status, expires_at, ..row.claim.clone() };
                self.replace(transaction, &row.claim, after, by, now).await
            }
        }
    }

    /// Replaces the claim `before`, whose campaign's row is locked, by `after`, and commits `transaction`.
    async fn replace(
        &self,
        mut transaction: Transaction,
        before: &Claim,
        after: Claim,
        by: Requester<'_>,
        now: Timestamp,
    ) -> Result<Transitioned, SqlError> {
        let id = &before.id;
        let changed = bind_id(sqlx::query(statements::TRANSITION), id)
            .bind(after.status.as_str())
            .bind(now.as_ms())
            .bind(after.expires_at.map(Timestamp::as_ms))
            .fetch_one(&mut transaction.lease)
            .await?;
        if after.status == ClaimStatus::Granted {
            self.give_numbers(&mut transaction, id, after.quantity.get()).await?;
        }
        let stands = matches!(after.status, ClaimStatus::Granted | ClaimStatus::Held);
        let returned_units = if stands { 0 } else { u64::from(after.quantity.get()) };
        // As in Redis, each revision of a claim is an event of its campaign.
        let campaign = sqlx::query(concat!(
            "UPDATE campaigns SET events = events + 1, \
             evicted_taken = CASE WHEN evicted_taken > $1 THEN evicted_taken - $1 ELSE 0 END \
             WHERE id = $2 RETURNING ",
            campaign_columns!()
        ))
        .bind(to_i64(returned_units))
        .bind(id.campaign.as_str())
        .fetch_one(&mut transaction.lease)
        .await?;
        let campaign = campaigns::read(&campaign)?;
        let (user, digest) = (id.user.as_str(), digest_text(&id.digest));
        // An expiry is not an action of the caller.
        if after.status != ClaimStatus::Expired {
            let expiries = before.expires_at.zip(after.expires_at).map(|(from, to)| [from, to]);
            let change = ClaimChange {
                campaign: &id.campaign,
                user,
                digest: digest.clone(),
                epoch: unsigned(changed.try_get("epoch")?)?,
                revision: unsigned(changed.try_get("revision")?)?,
                at: now,
                who: by.name,
                reason: by.reason,
                before: before.status,
                after: after.status,
                extension: expiries.filter(|_| after.status == ClaimStatus::Held),
            };
            self.audit_claims(&mut transaction, &[change]).await?;
        }
        if returned_units > 0 {
            number_change(&mut transaction, &campaign.id).await?;
        }
        let feed = feed_rows(&[(id.campaign.as_str(), user, &digest)]);
        self.commit_with_feed(transaction, &feed).await?;
        Ok(Transitioned::Changed(after, Box::new(campaign)))
    }
}

impl SqlStore {
    /// Assigns code numbers to a granted claim of `quantity` units, if its campaign has codes. The campaign's row must
    /// be locked.
    async fn give_numbers(
        &self,
        transaction: &mut Transaction,
        id: &ClaimId,
        quantity: u32,
    ) -> Result<(), SqlError> {
        let found = campaigns::select(transaction, &id.campaign).await?;
        let Some(mut stock) = found.and_then(|campaign| campaign.codes) else { return Ok(()) };
        let first = stock.assign(quantity);
        let numbered = bind_id(sqlx::query(statements::GIVE_NUMBERS), id)
            .bind(to_i64(first))
            .execute(&mut transaction.lease)
            .await?;
        if numbered.rows_affected() == 1 {
            let claim = Numbered { user: id.user.clone(), digest: id.digest, first, quantity, is_new: true };
            self.keep_numbers(transaction, &id.campaign, stock, &[claim]).await?;
        }
        Ok(())
    }
}

/// The effect of a transition on a claim.
enum Next {
    /// The claim stays as it is.
    Stands,
    /// The claim stays as it is, because the hold was extended too often.
    ExtendedTooOften,
    /// The claim gets this status and expiry.
    Changed(ClaimStatus, Option<Timestamp>),
}

/// Returns the effect of `transition` on the claim of `row`. The campaign holds new claims for `hold_seconds`.
fn next_state(
    row: &ClaimRow,
    transition: ClaimTransition,
    hold_seconds: Option<NonZeroU32>,
    now: Timestamp,
) -> Next {
    let claim = &row.claim;
    let expires_at = claim.expires_at;
    match (claim.status, transition) {
        (ClaimStatus::Held, _) if expires_at.is_some_and(|due| now >= due) => {
            Next::Changed(ClaimStatus::Expired, expires_at)
        }
        (ClaimStatus::Held, ClaimTransition::Confirm) => Next::Changed(ClaimStatus::Granted, None),
        (ClaimStatus::Held | ClaimStatus::Granted, ClaimTransition::Return) => {
            Next::Changed(ClaimStatus::Returned, expires_at)
        }
        (ClaimStatus::Held, ClaimTransition::Extend { max }) => {
            match Extension::of(claim, row.revision, hold_seconds, max, now) {
                Extension::Until(until) => Next::Changed(ClaimStatus::Held, Some(until)),
                Extension::Unchanged => Next::Stands,
                Extension::TooOften => Next::ExtendedTooOften,
            }
        }
        _ => Next::Stands,
    }
}
