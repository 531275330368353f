//! The claims that one thread of this core has refused since its last report.

use std::collections::HashMap;

use claimgate_shared::refusals::{Refused, UNKNOWN_CAMPAIGN};
use claimgate_shared::{CampaignId, Code, Timestamp};

/// Maximum number of entries for campaigns: enough for an hour in which SQL is unavailable, with four reasons
/// each second.
const ENTRIES_MAX: usize = 16_384;

/// Counts by campaign, reason and second. Unlike [`claimgate_shared::refusals::RefusalCounts`], whose entries
/// are few, a count does not take longer with many campaigns.
#[derive(Debug, Default)]
pub(super) struct Counts {
    campaigns: HashMap<CampaignId, Vec<Entry>>,
    /// Counts for unknown ids, and for campaigns that do not fit: at most one entry per reason.
    unknown: Vec<Entry>,
    entries: usize,
}

#[derive(Debug)]
struct Entry {
    code: Code,
    at_s: i64,
    count: u32,
}

impl Counts {
    /// Counts a claim on `campaign` that was refused with `code` at `now`. Without room for a new entry, the
    /// claim is added to another second of the same campaign and reason, or else to the unknown campaign.
    pub fn count(&mut self, campaign: &CampaignId, code: Code, now: Timestamp) {
        let at_s = now.as_ms().div_euclid(1_000);
        let has_room = self.entries < ENTRIES_MAX;
        // Signed-in users can make up ids.
        if code == Code::CampaignNotFound {
            return add_to_any(&mut self.unknown, code, at_s);
        }
        let Some(entries) = self.campaigns.get_mut(campaign) else {
            if !has_room {
                return add_to_any(&mut self.unknown, code, at_s);
            }
            self.entries += 1;
            self.campaigns.insert(campaign.clone(), vec![Entry { code, at_s, count: 1 }]);
            return;
        };
        match entries.iter().rposition(|entry| entry.code == code && entry.at_s == at_s) {
            Some(index) => entries[index].count = entries[index].count.saturating_add(1),
            None if has_room => {
                self.entries += 1;
                entries.push(Entry { code, at_s, count: 1 });
            }
            None if entries.iter().any(|entry| entry.code == code) => add_to_any(entries, code, at_s),
            None => add_to_any(&mut self.unknown, code, at_s),
        }
    }

    /// Removes and returns all counts.
    pub fn take(&mut self) -> Vec<Refused> {
        let Self { campaigns, unknown, .. } = std::mem::take(self);
        let refused = |campaign: &str, Entry { code, at_s, count }| Refused {
            campaign: campaign.to_owned(),
            code,
            at_s,
            count,
        };
        let known = campaigns.into_iter().flat_map(|(campaign, entries)| {
            entries.into_iter().map(|entry| refused(campaign.as_str(), entry)).collect::<Vec<_>>()
        });
        let unknown = unknown.into_iter().map(|entry| refused(UNKNOWN_CAMPAIGN, entry));
        known.chain(unknown).collect()
    }
}

/// Adds a claim to the last entry with `code`, or to a new one in the second `at_s`.
fn add_to_any(entries: &mut Vec<Entry>, code: Code, at_s: i64) {
    match entries.iter_mut().rev().find(|entry| entry.code == code) {
        Some(entry) => entry.count = entry.count.saturating_add(1),
        None => entries.push(Entry { code, at_s, count: 1 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_ms(1_700_000_000_000 + second * 1_000).unwrap()
    }

    fn sum(refused: &[Refused]) -> u64 {
        refused.iter().map(|refused| u64::from(refused.count)).sum()
    }

    #[test]
    fn claims_are_counted_by_campaign_reason_and_second() {
        let mut counts = Counts::default();
        let demo: CampaignId = "demo".parse().unwrap();
        for (code, second) in [(Code::SoldOut, 0), (Code::SoldOut, 0), (Code::Paused, 0), (Code::SoldOut, 1)]
        {
            counts.count(&demo, code, at(second));
        }
        counts.count(&"made-up".parse().unwrap(), Code::CampaignNotFound, at(1));
        let mut refused = counts.take();
        refused.sort_by_key(|refused| (refused.campaign.clone(), refused.at_s, refused.code));
        let counted: Vec<_> =
            refused.iter().map(|refused| (refused.campaign.as_str(), refused.code, refused.count)).collect();
        let expected = [
            (UNKNOWN_CAMPAIGN, Code::CampaignNotFound, 1),
            ("demo", Code::Paused, 1),
            ("demo", Code::SoldOut, 2),
            ("demo", Code::SoldOut, 1),
        ];
        assert_eq!(counted, expected);
        assert!(counts.take().is_empty());
    }

    #[test]
    fn entries_are_bounded_and_no_claim_is_lost() {
        let mut counts = Counts::default();
        let claims = 3 * ENTRIES_MAX as u64;
        for n in 0..claims {
            let campaign = format!("c{}", n % 20_000).parse().unwrap();
            counts.count(&campaign, Code::SoldOut, at(i64::try_from(n / 20_000).unwrap()));
        }
        let refused = counts.take();
        assert_eq!(sum(&refused), claims);
        assert_eq!(refused.len(), ENTRIES_MAX + 1);
    }
}
