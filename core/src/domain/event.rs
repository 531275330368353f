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
    /// Why the caller returned the claim, if the caller gave a reason.
    pub reason: Option<String>,
    /// If the caller extended the claim's hold: when the hold expired before.
    pub extended_from: Option<Timestamp>,
    /// The `traceparent` of the call that wrote the entry; `None` if the call was not traced.
    pub trace: Option<String>,
}

impl OutboxEntry {
    /// Creates an entry that names no caller.
    pub fn new(id: String, epoch: Epoch, count: u64, events: Vec<ClaimEvent>) -> Self {
        Self { id, epoch, count, events, by: None, reason: None, extended_from: None, trace: None }
    }

    /// Returns the campaign's event count before this entry.
    pub fn count_before(&self) -> u64 {
        self.count.saturating_sub(self.events.len() as u64)
    }

    /// Returns the units of its claims.
    pub fn units(&self) -> u64 {
        self.events.iter().map(|event| u64::from(event.claim.quantity)).sum()
    }

    /// Returns whether no event is missing between `earlier` and this entry. Counts of different epochs are not
    /// comparable.
    pub fn follows(&self, earlier: &Self) -> bool {
        self.epoch != earlier.epoch || self.count_before() <= earlier.count
    }
}

/// Splits entries at each gap: usually another core has read the entries in between. A run can be committed as soon as
/// the events before its first entry are. If entries with a gap were committed together, two cores could wait for
/// each other. A run has at most `units_max` units, or one entry.
pub fn runs(entries: Vec<OutboxEntry>, units_max: u64) -> Vec<Vec<OutboxEntry>> {
    let (mut runs, mut units) = (Vec::<Vec<_>>::new(), 0);
    for entry in entries {
        units += entry.units();
        let run = runs.last_mut().filter(|_| units <= units_max);
        if let Some(run) = run.filter(|run| run.last().is_some_and(|last| entry.follows(last))) {
            run.push(entry);
        } else {
            units = entry.units();
            runs.push(vec![entry]);
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use claimgate_shared::ClaimStatus;

    use super::*;

    /// Returns the number of events of each entry's campaign after it, for entries of two events and four units.
    fn counts(units_max: u64) -> Vec<Vec<u64>> {
        let at = Timestamp::from_ms(1_700_000_000_000).unwrap();
        let claim = ClaimRecord {
            digest: [7; 16],
            status: ClaimStatus::Granted,
            revision: 1,
            quantity: 2,
            sequence: 17,
            claimed_at: at,
            expires_at: None,
            day: 20_000,
        };
        let event = ClaimEvent {
            user: "alice".parse().unwrap(),
            claim,
            updated_at: at,
            limit_at_decision: None,
            cumulative_taken: None,
        };
        let entry = |(epoch, count): (u64, u64)| {
            OutboxEntry::new(format!("{epoch}-{count}"), Epoch::new(epoch), count, vec![event.clone(); 2])
        };
        let entries = [(1, 2), (1, 4), (1, 8), (1, 10), (2, 12), (2, 20)].map(entry);
        let runs = runs(Vec::from(entries), units_max);
        runs.iter().map(|run| run.iter().map(|entry| entry.count).collect()).collect()
    }

    #[test]
    fn entries_are_split_where_events_are_missing() {
        assert_eq!(counts(u64::MAX), [vec![2, 4], vec![8, 10, 12], vec![20]]);
    }

    #[test]
    fn a_run_has_a_bounded_number_of_units() {
        assert_eq!(counts(8), [vec![2, 4], vec![8, 10], vec![12], vec![20]]);
        assert_eq!(counts(7), [2, 4, 8, 10, 12, 20].map(|count| vec![count]));
        assert_eq!(counts(1), counts(7), "an entry is never split");
    }
}
