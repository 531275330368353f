//! Which campaigns have holds to give back, and when.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use claimgate_shared::CampaignId;
use tokio::time::Instant;

/// The shortest time between two sweeps of one campaign.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

/// When each campaign's next hold falls due.
#[derive(Debug, Default)]
pub(super) struct DueHolds {
    due: BTreeSet<(Instant, CampaignId)>,
    /// Each campaign's place in `due`.
    at: HashMap<CampaignId, Instant>,
    /// The earliest time at which a campaign is swept again.
    pauses: HashMap<CampaignId, Instant>,
}

impl DueHolds {
    /// Records that a hold of `id` falls due at `at`; the earliest counts.
    pub(super) fn expect(&mut self, id: CampaignId, at: Instant) {
        let at = self.pauses.get(&id).map_or(at, |pause| at.max(*pause));
        if let Some(earlier) = self.at.get(&id) {
            if *earlier <= at {
                return;
            }
            self.due.remove(&(*earlier, id.clone()));
        }
        self.at.insert(id.clone(), at);
        self.due.insert((at, id));
    }

    /// When the first hold of all campaigns falls due.
    pub(super) fn first(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes a campaign whose holds are due at `now`; it is not taken again within [`SWEEP_PAUSE`].
    pub(super) fn take_due(&mut self, now: Instant) -> Option<CampaignId> {
        if self.first()? > now {
            return None;
        }
        let (_, id) = self.due.pop_first()?;
        self.at.remove(&id);
        self.pauses.retain(|_, until| *until > now);
        self.pauses.insert(id.clone(), now + SWEEP_PAUSE);
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
    fn a_campaign_is_swept_when_its_first_hold_falls_due_and_then_not_for_a_second() {
        let mut holds = DueHolds::default();
        let now = Instant::now();
        holds.expect(id("a"), now + Duration::from_millis(300));
        holds.expect(id("a"), now + Duration::from_millis(100));
        holds.expect(id("a"), now + Duration::from_millis(200));
        assert_eq!(holds.first(), Some(now + Duration::from_millis(100)));
        assert_eq!(holds.take_due(now), None);
        let due = now + Duration::from_millis(100);
        assert_eq!(holds.take_due(due), Some(id("a")));
        assert_eq!(holds.first(), None, "one place a campaign");
        holds.expect(id("a"), due);
        assert_eq!(holds.first(), Some(due + SWEEP_PAUSE));
        holds.expect(id("b"), due);
        assert_eq!(holds.take_due(due), Some(id("b")), "one campaign's pause does not hold up another's");
    }
}
