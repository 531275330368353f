//! Campaigns that have left Redis: over, drained, and answered for by SQL alone. Nothing can be granted there any more,
//! but a winner's retry still meets its claim.

use claimgate_shared::campaign::Switch;
use claimgate_shared::{ClaimRequest, ClaimStatus, Denial, Outcome};

use crate::archive::{Archive, ArchiveError};
use crate::campaign::{Archived, Campaign};
use crate::clock;
use crate::gate::Decision;
use crate::ledger::scripts::Counters;

/// Decides a claim on an archived campaign: a replay, or the denial that it is over.
pub async fn decide(
    archive: &Archive,
    campaign: &Campaign,
    archived: Archived,
    request: &ClaimRequest,
) -> Result<Decision, ArchiveError> {
    let row = archive.claim(&request.claim_id()).await?;
    let outcome = match row.map(|row| row.claim).filter(|claim| claim.status != ClaimStatus::Revoked) {
        Some(claim) if claim.quantity == request.quantity => Outcome::Replayed(claim),
        Some(_) => Outcome::Denied(Denial::IdempotencyKeyReused),
        None => Outcome::Denied(over(campaign)),
    };
    Ok(Decision { outcome, remaining: campaign.remaining(archived.taken), version: campaign.version })
}

/// The first rule that refuses, as `claim.lua` has it: what an admin has set comes before the window.
fn over(campaign: &Campaign) -> Denial {
    match campaign.switch {
        Switch::Paused => Denial::Paused,
        Switch::Ended => Denial::Ended { ends_at: None },
        Switch::On => Denial::Ended { ends_at: campaign.window.ends_at() },
    }
}

/// What the campaign came to, as Redis would have said.
pub fn counters(campaign: &Campaign, archived: Archived) -> Counters {
    Counters {
        now: clock::now(),
        version: campaign.version,
        taken: archived.taken,
        sequence: archived.sequence,
        backlog: 0,
        events: 0,
    }
}
