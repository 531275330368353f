//! Events that the scripts write to the outbox: one entry per call, with one event per changed claim.

use claimgate_shared::{CampaignId, ClaimId, Timestamp, UserId};

use super::claim_record::ClaimRecord;
use super::counters::Epoch;

/// A claim's state after a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimEvent {
    /// The user who claimed.
    pub user: UserId,
    /// The claim.
    pub claim: ClaimRecord,
    /// When the claim entered this state.
    pub updated_at: Timestamp,
    /// `total` at the decision; `None` if it was unlimited, or if the event is not a grant.
    pub limit_at_decision: Option<u64>,
    /// Units taken after the decision; `None` if the event is not a grant.
    pub cumulative_taken: Option<u64>,
}

impl ClaimEvent {
    /// Returns the claim's id in `campaign`.
    pub fn claim_id(&self, campaign: &CampaignId) -> ClaimId {
        ClaimId { campaign: campaign.clone(), user: self.user.clone(), digest: self.claim.digest }
    }
}

/// The events of one script call.
#[derive(Debug)]
pub struct OutboxEntry {
    /// The entry's id in the stream.
    pub id: String,
    /// The campaign's epoch when the entry was written.
    pub epoch: Epoch,
    /// The campaign's event count after this entry.
    pub count: u64,
    /// The events, in the order of their decisions.
    pub events: Vec<ClaimEvent>,
    /// The name of the caller who confirmed, returned or extended the claim; `None` for every other call.
    pub by: Option<String>,
    /// If the caller extended the claim's hold: when the hold expired before.
    pub extended_from: Option<Timestamp>,
    /// The `traceparent` of the call that wrote the entry; `None` if the call was not traced.
    pub trace: Option<String>,
}

impl OutboxEntry {
    /// Creates an entry that names no caller.
    pub fn new(id: String, epoch: Epoch, count: u64, events: Vec<ClaimEvent>) -> Self {
        Self { id, epoch, count, events, by: None, extended_from: None, trace: None }
    }

    /// Returns the campaign's event count before this entry.
    pub fn count_before(&self) -> u64 {
        self.count.saturating_sub(self.events.len() as u64)
    }

    /// Returns whether no event is missing between `earlier` and this entry. Counts of different epochs are not
    /// comparable.
    pub fn follows(&self, earlier: &Self) -> bool {
        self.epoch != earlier.epoch || self.count_before() <= earlier.count
    }
}
