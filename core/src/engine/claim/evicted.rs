//! Decides claims on evicted campaigns (see `eviction`), using only SQL. No claim can be granted, but a
//! winner's retry still finds the existing claim.

use claimgate_shared::campaign::AdminState;
use claimgate_shared::{ClaimRequest, ClaimStatus, Denial, Outcome};

use super::batcher::Decision;
use crate::domain::campaign::{Campaign, Evicted};
use crate::store::sql::{SqlError, SqlStore};

/// Decides a claim on an evicted campaign: a replay if the claim exists, otherwise a denial because the
/// campaign has ended.
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

/// Returns the first denial in the order of `claim.lua`, which checks the admin state before the window.
fn over(campaign: &Campaign) -> Denial {
    match campaign.admin_state {
        AdminState::Paused => Denial::Paused,
        AdminState::Ended => Denial::Ended { ends_at: None },
        AdminState::On => Denial::Ended { ends_at: campaign.window.ends_at() },
    }
}
