//! Selects the campaigns that metrics name: only the busiest, so that the number of series stays small.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use claimgate_shared::CampaignId;

use crate::engine::campaign::handle::CampaignHandle;
use crate::metrics::OTHERS;

/// Maximum number of campaigns that metrics name.
pub const NAMED_MAX: usize = 100;

/// The activity of each campaign, from one scrape to the next.
#[derive(Debug, Default)]
pub struct BusiestCampaigns {
    known: HashMap<CampaignId, Activity>,
    /// Claims of unnamed campaigns.
    others: u64,
}

#[derive(Debug, Default)]
struct Activity {
    /// The handle's number of claims at the last scrape.
    answered: u64,
    /// Number of recent claims, with decay: each scrape halves the previous number.
    lately: u64,
    /// The claims counted under the campaign's name, while it is named.
    named: Option<u64>,
}

/// The metrics of one campaign, or of all other campaigns together.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// The campaign, or [`OTHERS`].
    pub name: String,
    /// Number of claims that Redis has answered; for a campaign with its own series, since the series began.
    pub answered: u64,
    /// Events not yet in SQL.
    pub backlog: u64,
}

impl BusiestCampaigns {
    /// Returns a line for each of the busiest campaigns, at most [`NAMED_MAX`], and a line for all other
    /// campaigns. Busy campaigns have many recent claims, including those that edges `refused` since the last
    /// scrape, or a large backlog. If two campaigns are equally busy, the campaign that is already named keeps
    /// its name.
    pub fn sample(
        &mut self,
        campaigns: &[Arc<CampaignHandle>],
        refused: &BTreeMap<String, u64>,
    ) -> Vec<Line> {
        let ids: HashSet<_> = campaigns.iter().map(|handle| handle.campaign().id.clone()).collect();
        self.known.retain(|id, _| ids.contains(id));
        let mut ranks: Vec<_> = campaigns
            .iter()
            .map(|handle| {
                let id = handle.campaign().id.clone();
                let refused = refused.get(id.as_str()).copied().unwrap_or(0);
                let (is_named, lately, new) = self.count(&id, handle.answered(), refused);
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

    /// Counts a campaign's claims since the last scrape. Returns whether the campaign is named, its recent
    /// claims, and its new claims.
    fn count(&mut self, id: &CampaignId, answered: u64, refused: u64) -> (bool, u64, u64) {
        let activity = self.known.entry(id.clone()).or_default();
        // The count of a recreated handle starts at zero.
        let new = answered.checked_sub(activity.answered).unwrap_or(answered);
        activity.answered = answered;
        activity.lately = activity.lately / 2 + new + refused;
        (activity.named.is_some(), activity.lately, new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::campaign_change::NewCampaign;
    use crate::engine::campaign::registry::CampaignRegistry;

    fn campaigns(registry: &CampaignRegistry, count: usize) -> Vec<Arc<CampaignHandle>> {
        let campaign = |at| {
            let body = format!(r#"{{"id":"c{at:03}","name":"x","starts_at":"2026-01-01T00:00:00Z"}}"#);
            let new = NewCampaign::parse(body.as_bytes()).unwrap();
            registry.update(new.created_at(crate::clock::now()).unwrap())
        };
        (0..count).map(campaign).collect()
    }

    fn line<'a>(lines: &'a [Line], name: &str) -> Option<&'a Line> {
        lines.iter().find(|line| line.name == name)
    }

    #[test]
    fn the_busiest_are_named_and_the_others_aggregated() {
        let registry = CampaignRegistry::default();
        let all = campaigns(&registry, NAMED_MAX + 20);
        let mut busiest = BusiestCampaigns::default();
        let lines = busiest.sample(&all, &BTreeMap::new());
        assert_eq!(lines.len(), NAMED_MAX + 1, "all names, and the others");
        assert!(line(&lines, "c119").is_none(), "equally busy: the first by id");
        all[119].record_answered(5);
        all[118].record_backlog(3);
        all[117].record_answered(1);
        let lines = busiest.sample(&all, &BTreeMap::new());
        assert_eq!(lines.len(), NAMED_MAX + 1);
        assert_eq!(line(&lines, "c119").unwrap().answered, 5);
        assert_eq!(line(&lines, "c118").unwrap().backlog, 3);
        assert_eq!(line(&lines, OTHERS).unwrap(), &Line { name: OTHERS.to_owned(), answered: 0, backlog: 0 });
        // A named campaign keeps its name when it is idle like others: a series that appears and disappears
        // is useless.
        for _ in 0..10 {
            assert_eq!(line(&busiest.sample(&all, &BTreeMap::new()), "c117").unwrap().answered, 1);
        }
    }

    #[test]
    fn only_losing_its_name_resets_a_campaigns_count() {
        let registry = CampaignRegistry::default();
        let all = campaigns(&registry, NAMED_MAX + 1);
        let mut busiest = BusiestCampaigns::default();
        for handle in &all[..NAMED_MAX] {
            handle.record_answered(10);
        }
        all[NAMED_MAX].record_answered(2);
        assert_eq!(line(&busiest.sample(&all, &BTreeMap::new()), OTHERS).unwrap().answered, 2);
        all[NAMED_MAX].record_answered(50);
        let lines = busiest.sample(&all, &BTreeMap::new());
        assert_eq!(line(&lines, "c100").unwrap().answered, 50, "counted since it was named");
        assert_eq!(line(&lines, OTHERS).unwrap().answered, 2, "claims counted there stay there");
        let lost = (0..NAMED_MAX).find(|at| line(&lines, &format!("c{at:03}")).is_none()).unwrap();
        all[lost].record_answered(1);
        assert!(line(&busiest.sample(&all, &BTreeMap::new()), OTHERS).unwrap().answered >= 2);
        // The campaign was evicted and its handle removed.
        let lines = busiest.sample(&all[..NAMED_MAX], &BTreeMap::new());
        assert!(line(&lines, "c100").is_none());
        assert_eq!(busiest.known.len(), NAMED_MAX);
    }
}
