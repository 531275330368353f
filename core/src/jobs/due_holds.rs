//! A queue of campaigns with holds, ordered by the due time of the next hold.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use claimgate_shared::CampaignId;
use tokio::time::Instant;

/// The minimum time between two sweeps of one campaign.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

/// The due time of each campaign's next hold.
#[derive(Debug, Default)]
pub(super) struct DueHolds {
    due: BTreeSet<(Instant, CampaignId)>,
    /// The due time under which each campaign is in `due`.
    due_at: HashMap<CampaignId, Instant>,
    /// Campaigns that were just swept, with the earliest time of their next sweep.
    paused_until: HashMap<CampaignId, Instant>,
}

impl DueHolds {
    /// Records that a hold of `id` falls due at `at`. Only the earliest due time of a campaign is kept.
    pub(super) fn expect(&mut self, id: CampaignId, at: Instant) {
        let at = self.paused_until.get(&id).map_or(at, |until| at.max(*until));
        if let Some(earlier) = self.due_at.get(&id) {
            if *earlier <= at {
                return;
            }
            self.due.remove(&(*earlier, id.clone()));
        }
        self.due_at.insert(id.clone(), at);
        self.due.insert((at, id));
    }

    /// Returns the earliest due time of all campaigns.
    pub(super) fn first(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Removes and returns a campaign with a hold due at `now`. It is not due again within [`SWEEP_PAUSE`].
    pub(super) fn take_due(&mut self, now: Instant) -> Option<CampaignId> {
        if self.first()? > now {
            return None;
        }
        let (_, id) = self.due.pop_first()?;
        self.due_at.remove(&id);
        self.paused_until.retain(|_, until| *until > now);
        self.paused_until.insert(id.clone(), now + SWEEP_PAUSE);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> CampaignId {
        text.parse().unwrap()
    }

    #[test]
    fn a_campaign_falls_due_with_its_earliest_hold() {
        let mut holds = DueHolds::default();
        let now = Instant::now();
        holds.expect(id("a"), now + Duration::from_millis(300));
        holds.expect(id("a"), now + Duration::from_millis(100));
        holds.expect(id("a"), now + Duration::from_millis(200));
        assert_eq!(holds.first(), Some(now + Duration::from_millis(100)));
        assert_eq!(holds.take_due(now), None);
        let due = now + Duration::from_millis(100);
        assert_eq!(holds.take_due(due), Some(id("a")));
        assert_eq!(holds.first(), None, "each campaign is queued once");
        holds.expect(id("a"), due);
        assert_eq!(holds.first(), Some(due + SWEEP_PAUSE));
        holds.expect(id("b"), due);
        assert_eq!(holds.take_due(due), Some(id("b")), "the pause of one campaign does not delay another");
    }
}
