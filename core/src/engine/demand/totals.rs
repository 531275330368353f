//! The refusals of edges that this core has recorded since its start, for metrics and the dashboard.

use std::collections::BTreeMap;

use claimgate_shared::refusals::UNKNOWN_CAMPAIGN;

use crate::domain::refusals::Refusal;
use crate::metrics::OTHERS;

/// The label of ids that name no campaign. It is not a valid id, so no campaign has this name.
const UNKNOWN: &str = "(unknown)";
/// Maximum number of campaigns whose new refusals are kept apart until the next scrape.
const CAMPAIGNS_MAX: usize = 1_000;

type ByReason = BTreeMap<&'static str, u64>;

/// A counter of refusals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeRefusals {
    /// The campaign, [`OTHERS`], or `(unknown)`.
    pub campaign: String,
    /// The problem's code, or `other`.
    pub reason: &'static str,
    /// Number of claims; for a named campaign, since it was named.
    pub count: u64,
}

/// The sums.
#[derive(Debug, Default)]
pub(super) struct EdgeTotals {
    all: ByReason,
    /// Refusals since the last scrape.
    new: BTreeMap<String, ByReason>,
    /// Refusals since the last ranking of campaigns.
    recent: BTreeMap<String, u64>,
    /// The counters of named campaigns.
    named: BTreeMap<String, ByReason>,
    others: ByReason,
    unknown: ByReason,
}

fn add(to: &mut ByReason, reason: &'static str, count: u64) {
    *to.entry(reason).or_default() += count;
}

impl EdgeTotals {
    /// Adds refusals that SQL has.
    pub fn add(&mut self, refusals: Vec<Refusal>) {
        for Refusal { campaign, reason, count, .. } in refusals {
            add(&mut self.all, reason, count);
            if campaign == UNKNOWN_CAMPAIGN {
                add(&mut self.unknown, reason, count);
            } else if self.new.len() < CAMPAIGNS_MAX || self.new.contains_key(&campaign) {
                *self.recent.entry(campaign.clone()).or_default() += count;
                add(self.new.entry(campaign).or_default(), reason, count);
            } else {
                add(&mut self.others, reason, count);
            }
        }
    }

    /// Returns the sums by reason.
    pub fn by_reason(&self) -> BTreeMap<String, u64> {
        self.all.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect()
    }

    /// Returns the refusals by campaign since the last call.
    pub fn take_recent(&mut self) -> BTreeMap<String, u64> {
        std::mem::take(&mut self.recent)
    }

    /// Returns the counters of the campaigns that `is_named` selects, of all others together, and of unknown ids.
    pub fn by_campaign(&mut self, is_named: impl Fn(&str) -> bool) -> Vec<EdgeRefusals> {
        self.named.retain(|campaign, _| is_named(campaign));
        for (campaign, reasons) in std::mem::take(&mut self.new) {
            let sums =
                if is_named(&campaign) { self.named.entry(campaign).or_default() } else { &mut self.others };
            for (reason, count) in reasons {
                add(sums, reason, count);
            }
        }
        let lines = |(campaign, reasons): (&str, &ByReason)| {
            let line = |(reason, count): (&&'static str, &u64)| EdgeRefusals {
                campaign: campaign.to_owned(),
                reason,
                count: *count,
            };
            reasons.iter().map(line).collect::<Vec<_>>()
        };
        let named = self.named.iter().map(|(campaign, reasons)| (campaign.as_str(), reasons));
        named.chain([(OTHERS, &self.others), (UNKNOWN, &self.unknown)]).flat_map(lines).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(campaign: &str, count: u64) -> Refusal {
        Refusal { campaign: campaign.to_owned(), at_s: 7, reason: "sold_out", count }
    }

    fn lines(totals: &mut EdgeTotals, named: &[&str]) -> Vec<(String, u64)> {
        let lines = totals.by_campaign(|campaign| named.contains(&campaign));
        lines.into_iter().map(|line| (line.campaign, line.count)).collect()
    }

    fn pairs(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
        expected.iter().map(|(campaign, count)| ((*campaign).to_owned(), *count)).collect()
    }

    #[test]
    fn no_counter_falls_while_its_campaign_has_its_own_series() {
        let mut totals = EdgeTotals::default();
        totals.add(vec![refusal("a", 1), refusal("b", 2), refusal("", 4)]);
        assert_eq!(lines(&mut totals, &["a"]), pairs(&[("a", 1), (OTHERS, 2), (UNKNOWN, 4)]));
        totals.add(vec![refusal("b", 8)]);
        assert_eq!(lines(&mut totals, &["a", "b"]), pairs(&[("a", 1), ("b", 8), (OTHERS, 2), (UNKNOWN, 4)]));
        totals.add(vec![refusal("a", 16)]);
        assert_eq!(lines(&mut totals, &["b"]), pairs(&[("b", 8), (OTHERS, 18), (UNKNOWN, 4)]));
        assert_eq!(totals.by_reason(), BTreeMap::from([("sold_out".to_owned(), 31)]));
    }

    #[test]
    fn the_number_of_campaigns_in_memory_is_bounded() {
        let mut totals = EdgeTotals::default();
        for n in 0..2 * CAMPAIGNS_MAX {
            totals.add(vec![refusal(&format!("c{n}"), 1)]);
        }
        assert_eq!(totals.new.len(), CAMPAIGNS_MAX);
        assert_eq!(lines(&mut totals, &[]), pairs(&[(OTHERS, 2 * CAMPAIGNS_MAX as u64)]));
    }
}
