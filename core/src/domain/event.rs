//! What the scripts write for SQL: one outbox entry per call, with one event per claim that it changed.

use claimgate_shared::{CampaignId, ClaimId, Timestamp, UserId};

use super::claim_record::ClaimRecord;
use super::counters::Epoch;

/// A claim as it stood after a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimEvent {
    /// The user who claimed.
    pub user: UserId,
    /// The claim.
    pub claim: ClaimRecord,
    /// When the claim got this state.
    pub updated_at: Timestamp,
    /// `total` at the decision; `None` when unlimited, or when this is no grant.
    pub limit_at_decision: Option<u64>,
    /// Units taken after the decision; `None` when this is no grant.
    pub cumulative_taken: Option<u64>,
}

impl ClaimEvent {
    /// The claim's id in `campaign`.
    pub fn claim_id(&self, campaign: &CampaignId) -> ClaimId {
        ClaimId { campaign: campaign.clone(), user: self.user.clone(), digest: self.claim.digest }
    }
}

/// One script call's worth of events.
#[derive(Debug)]
pub struct OutboxEntry {
    /// Its id in the stream.
    pub id: String,
    /// The campaign's epoch when it was written.
    pub epoch: Epoch,
    /// The campaign's event count after it.
    pub count: u64,
    /// In the order of their decisions.
    pub events: Vec<ClaimEvent>,
    /// The name of the caller who confirmed or returned the claim; `None` for every other call.
    pub by: Option<String>,
    /// The context of the call that wrote it, as a `traceparent`; `None` when that was not traced.
    pub trace: Option<String>,
}
