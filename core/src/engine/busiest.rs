//! Which campaigns metrics name: the busiest, so that there are few series however many campaigns there are.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use claimgate_shared::CampaignId;

use super::handle::CampaignHandle;

/// Campaigns with a name of their own.
pub const NAMED_MAX: usize = 100;
/// The name of all others together. No campaign has it: it is no id.
pub const OTHERS: &str = "(others)";

/// Who was how busy, from one look to the next.
#[derive(Debug, Default)]
pub struct Busiest {
    known: HashMap<CampaignId, Activity>,
    /// Claims of campaigns without a name.
    others: u64,
}

/// What one campaign has done.
#[derive(Debug, Default)]
struct Activity {
    /// The claims of its handle at the last look.
    answered: u64,
    /// Its claims lately: those of each look count half as much in the next.
    lately: u64,
    /// The claims under its name, as long as it has one.
    named: Option<u64>,
}

/// A line of metrics.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// The campaign, or [`OTHERS`].
    pub name: String,
    /// Claims that Redis has answered; of a campaign, since it was named.
    pub answered: u64,
    /// Events that wait for SQL.
    pub backlog: u64,
}

impl Busiest {
    /// Looks at all campaigns: a line for each of the busiest, [`NAMED_MAX`] at most, and one for the others. Busy is who has
    /// many claims lately, or many events that wait; of two alike, who has a name keeps it.
    pub fn look(&mut self, campaigns: &[Arc<CampaignHandle>]) -> Vec<Line> {
        let ids: HashSet<_> = campaigns.iter().map(|handle| handle.campaign().id.clone()).collect();
        self.known.retain(|id, _| ids.contains(id));
        let mut ranks: Vec<_> = campaigns
            .iter()
            .map(|handle| {
                let id = handle.campaign().id.clone();
                let (is_named, lately, new) = self.count(&id, handle.answered());
                let rank = (lately.saturating_add(handle.backlog()), is_named);
                (std::cmp::Reverse(rank), id, handle.backlog(), new)
            })
            .collect();
        ranks.sort_unstable();
        let mut lines = Vec::new();
        let mut others = Line { name: OTHERS.to_owned(), answered: 0, backlog: 0 };
        for (at, (_, id, backlog, new)) in ranks.into_iter().enumerate() {
            let activity = self.known.entry(id.clone()).or_default();
            if at < NAMED_MAX {
                let answered = activity.named.get_or_insert(0);
                *answered += new;
                lines.push(Line { name: id.to_string(), answered: *answered, backlog });
            } else {
                activity.named = None;
                self.others += new;
                others.backlog += backlog;
            }
        }
        others.answered = self.others;
        lines.push(others);
        lines
    }

    /// Counts the claims of a campaign since the last look. Returns whether it has a name, its claims lately, and the new ones.
    fn count(&mut self, id: &CampaignId, answered: u64) -> (bool, u64, u64) {
        let activity = self.known.entry(id.clone()).or_default();
        // A handle that was forgotten and made again has begun at zero.
        let new = answered.checked_sub(activity.answered).unwrap_or(answered);
        activity.answered = answered;
        activity.lately = activity.lately / 2 + new;
        (activity.named.is_some(), activity.lately, new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::campaign_change::NewCampaign;
    use crate::engine::registry::CampaignRegistry;

    fn campaigns(registry: &CampaignRegistry, count: usize) -> Vec<Arc<CampaignHandle>> {
        let campaign = |at| {
            let body = format!(r#"{{"id":"c{at:03}","name":"x","starts_at":"2026-01-01T00:00:00Z"}}"#);
            registry.update(NewCampaign::parse(body.as_bytes(), crate::clock::now()).unwrap())
        };
        (0..count).map(campaign).collect()
    }

    fn line<'a>(lines: &'a [Line], name: &str) -> Option<&'a Line> {
        lines.iter().find(|line| line.name == name)
    }

    #[test]
    fn the_busiest_have_names_and_the_others_are_together() {
        let registry = CampaignRegistry::default();
        let all = campaigns(&registry, NAMED_MAX + 20);
        let mut busiest = Busiest::default();
        let lines = busiest.look(&all);
        assert_eq!(lines.len(), NAMED_MAX + 1, "as many as there are names, and the others");
        assert!(line(&lines, "c119").is_none(), "all are alike: the first by their ids");
        all[119].record_answered(5);
        all[118].record_backlog(3);
        all[117].record_answered(1);
        let lines = busiest.look(&all);
        assert_eq!(lines.len(), NAMED_MAX + 1);
        assert_eq!(line(&lines, "c119").unwrap().answered, 5);
        assert_eq!(line(&lines, "c118").unwrap().backlog, 3);
        assert_eq!(line(&lines, OTHERS).unwrap(), &Line { name: OTHERS.to_owned(), answered: 0, backlog: 0 });
        // It is idle again, as others are, and keeps its name: a series that comes and goes tells nothing.
        for _ in 0..10 {
            assert_eq!(line(&busiest.look(&all), "c117").unwrap().answered, 1);
        }
    }

    #[test]
    fn no_count_goes_back_but_for_a_name_that_was_lost() {
        let registry = CampaignRegistry::default();
        let all = campaigns(&registry, NAMED_MAX + 1);
        let mut busiest = Busiest::default();
        for handle in &all[..NAMED_MAX] {
            handle.record_answered(10);
        }
        all[NAMED_MAX].record_answered(2);
        assert_eq!(line(&busiest.look(&all), OTHERS).unwrap().answered, 2);
        all[NAMED_MAX].record_answered(50);
        let lines = busiest.look(&all);
        assert_eq!(line(&lines, "c100").unwrap().answered, 50, "since it has its name");
        assert_eq!(line(&lines, OTHERS).unwrap().answered, 2, "what was counted there stays there");
        let lost = (0..NAMED_MAX).find(|at| line(&lines, &format!("c{at:03}")).is_none()).unwrap();
        all[lost].record_answered(1);
        assert!(line(&busiest.look(&all), OTHERS).unwrap().answered >= 2);
        // One that was evicted and forgotten.
        let lines = busiest.look(&all[..NAMED_MAX]);
        assert!(line(&lines, "c100").is_none());
        assert_eq!(busiest.known.len(), NAMED_MAX);
    }
}
