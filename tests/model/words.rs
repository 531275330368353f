//! Translates core's types to the model's.

use claimgate_core::domain::claim_record::ClaimRecord;
use claimgate_core::engine::claim::batcher::Decision;
use claimgate_core::store::redis::scripts::replies::{RejectedExtension, TransitionReply};
use claimgate_shared::{Claim as CoreClaim, ClaimStatus, Denial, Outcome, Timestamp};

use super::reference::{Answer, Claim, Left, Status, Transitioned, View};

/// Returns a decision as the model would return it.
pub fn answer(decision: &Decision) -> Answer {
    let left = Left { remaining: decision.remaining, version: decision.version.get() };
    match &decision.outcome {
        Outcome::Granted(claim) | Outcome::Held(claim) => Answer::Taken(view(claim), left),
        Outcome::Replayed(claim) => Answer::Replayed(view(claim), left),
        Outcome::Denied(denial) => refused(*denial, decision.version.get()),
    }
}

fn refused(denial: Denial, version: u64) -> Answer {
    let (remaining, at) = match denial {
        Denial::UserDailyLimitReached { remaining, resets_at } => (Some(remaining), Some(resets_at)),
        Denial::UserLimitReached { remaining } | Denial::SoldOut { remaining } => (Some(remaining), None),
        Denial::Ended { ends_at } => (None, ends_at),
        Denial::NotStarted { starts_at } => (None, Some(starts_at)),
        Denial::PassRequired { until } => (None, until),
        _ => (None, None),
    };
    Answer::Refused { code: denial.code().as_str(), remaining, at: at.map(Timestamp::as_ms), version }
}

fn view(claim: &CoreClaim) -> View {
    View {
        quantity: claim.quantity.get(),
        status: status(claim.status),
        sequence: claim.sequence,
        claimed_at: claim.claimed_at.as_ms(),
        expires_at: claim.expires_at.map(Timestamp::as_ms),
    }
}

/// Returns a claim's status. No claim is revoked here, since nothing is ever granted twice.
pub fn status(status: ClaimStatus) -> Status {
    match status {
        ClaimStatus::Granted => Status::Granted,
        ClaimStatus::Held => Status::Held,
        ClaimStatus::Returned => Status::Returned,
        ClaimStatus::Expired => Status::Expired,
        ClaimStatus::Revoked => panic!("a claim was revoked"),
    }
}

/// Returns the reply to a transition as the model would answer.
pub fn transitioned(reply: &TransitionReply) -> Transitioned {
    let extended_too_often = match reply.rejected {
        None => false,
        Some(RejectedExtension::TooOften) => true,
        Some(RejectedExtension::OutboxFull) => panic!("the outbox is never full"),
    };
    Transitioned { view: record_view(&reply.record), extended_too_often }
}

/// Returns a claim's record as callers see it.
pub fn record_view(record: &ClaimRecord) -> View {
    View {
        quantity: record.quantity,
        status: status(record.status),
        sequence: record.sequence,
        claimed_at: record.claimed_at.as_ms(),
        expires_at: record.expires_at.map(Timestamp::as_ms),
    }
}

/// Compares a record with the model's claim; a record lacks the time of the last change.
pub fn is_same(record: &ClaimRecord, claim: &Claim) -> bool {
    (record_view(record), i64::from(record.day), record.revision) == (claim.view, claim.day, claim.revision)
}
