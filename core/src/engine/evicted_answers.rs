//! Answers for campaigns that were evicted (`eviction`): from SQL alone. Nothing can be granted there any more, but a
//! winner's retry still finds its claim.

use claimgate_shared::campaign::AdminState;
use claimgate_shared::{ClaimRequest, ClaimStatus, Denial, Outcome};

use super::batcher::Decision;
use super::sync::SyncError;
use crate::clock;
use crate::domain::campaign::{Campaign, Evicted};
use crate::domain::not_ready::NotReadyReason;
use crate::store::redis::replies::Counters;
use crate::store::sql::{SqlError, SqlStore};

/// The final counters of a campaign if it is evicted; `None` while Redis has it.
///
/// # Errors
/// [`NotReadyReason::Importing`] while not all of its claims are there.
pub fn evicted(campaign: &Campaign) -> Result<Option<Evicted>, SyncError> {
    match campaign.unfinished_import {
        Some(_) => Err(SyncError::not_ready(NotReadyReason::Importing)),
        None => Ok(campaign.evicted),
    }
}

/// Decides a claim on an evicted campaign: a replay, or the denial that it is over.
pub async fn decide(
    sql: &SqlStore,
    campaign: &Campaign,
    evicted: Evicted,
    request: &ClaimRequest,
) -> Result<Decision, SqlError> {
    let row = sql.claim(&request.claim_id()).await?;
    let outcome = match row.map(|row| row.claim).filter(|claim| claim.status != ClaimStatus::Revoked) {
        Some(claim) if claim.quantity == request.quantity => Outcome::Replayed(claim),
        Some(_) => Outcome::Denied(Denial::IdempotencyKeyReused),
        None => Outcome::Denied(over(campaign)),
    };
    Ok(Decision { outcome, remaining: campaign.remaining(evicted.taken), version: campaign.version })
}

/// The first rule that refuses, in the order of `claim.lua`: the admin's state comes before the window.
fn over(campaign: &Campaign) -> Denial {
    match campaign.admin_state {
        AdminState::Paused => Denial::Paused,
        AdminState::Ended => Denial::Ended { ends_at: None },
        AdminState::On => Denial::Ended { ends_at: campaign.window.ends_at() },
    }
}

/// The campaign's final counters, as Redis would give them.
pub fn counters(campaign: &Campaign, evicted: Evicted) -> Counters {
    Counters {
        now: clock::now(),
        version: campaign.version,
        taken: evicted.taken,
        sequence: evicted.sequence,
        backlog: 0,
        events: 0,
    }
}
