//! Refused claims, counted by campaign, reason and second, and the report in which an edge sends its counts to core.
//!
//! The number of entries is bounded: ids that anybody can make up must not fill memory, reports or tables. A claim for
//! which there is no room is counted less precisely, but never dropped.

use serde::{Deserialize, Serialize};

use crate::http::BODY_BYTES_MAX;
use crate::{CampaignId, Code, IdempotencyKey, Timestamp};

/// The campaign of claims on ids that name none.
pub const UNKNOWN_CAMPAIGN: &str = "";

/// Refused claims of one campaign, for one reason, in one second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The campaign's id, or [`UNKNOWN_CAMPAIGN`].
    pub campaign: String,
    /// The reason.
    pub code: Code,
    /// Seconds since 1970.
    pub at_s: i64,
    /// Number of claims, at least 1.
    pub count: u32,
}

/// Counts refused claims until they are reported.
#[derive(Debug)]
pub struct RefusalCounts {
    /// In the order of their first claim.
    entries: Vec<Refused>,
    entries_max: usize,
}

impl RefusalCounts {
    /// Creates counts of at most `entries_max` entries for campaigns, plus one for each reason.
    pub const fn new(entries_max: usize) -> Self {
        Self { entries: Vec::new(), entries_max }
    }

    /// Returns whether nothing is counted.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Counts a claim on `campaign` that was refused with `code` at `now`. Only a quarter of the entries is
    /// for ids that `is_known`, which is called only for a new entry, does not confirm.
    ///
    /// Without room for a new entry, the claim is added to another second of the same campaign and reason, or
    /// else to the unknown campaign.
    pub fn count(&mut self, campaign: &str, is_known: impl FnOnce() -> bool, code: Code, now: Timestamp) {
        let at_s = now.as_ms().div_euclid(1_000);
        if self.add_to(campaign, code, Some(at_s)) {
            return;
        }
        let room = if is_known() { self.entries_max } else { self.entries_max / 4 };
        let is_id = || campaign.parse::<CampaignId>().is_ok();
        if self.entries.len() < room && is_id() {
            self.insert(campaign, code, at_s);
        } else if !self.add_to(campaign, code, None) && !self.add_to(UNKNOWN_CAMPAIGN, code, None) {
            self.insert(UNKNOWN_CAMPAIGN, code, at_s);
        }
    }

    /// Adds a claim to the latest entry of `campaign` and `code`, in the second `at_s` or in any; returns
    /// whether there is one.
    #[inline(never)] // the Worker stays small
    fn add_to(&mut self, campaign: &str, code: Code, at_s: Option<i64>) -> bool {
        let is_wanted = |entry: &&mut Refused| {
            entry.code == code
                && at_s.is_none_or(|at_s| entry.at_s == at_s)
                && entry.campaign == campaign
                && entry.count < u32::MAX
        };
        let found = self.entries.iter_mut().rev().find(is_wanted);
        found.map(|entry| entry.count += 1).is_some()
    }

    #[inline(never)]
    fn insert(&mut self, campaign: &str, code: Code, at_s: i64) {
        self.entries.push(Refused { campaign: campaign.to_owned(), code, at_s, count: 1 });
    }

    /// Removes and returns all counts.
    pub fn take(&mut self) -> Vec<Refused> {
        std::mem::take(&mut self.entries)
    }

    /// Moves the oldest counts into a report as JSON, as many as fit into a request to core; `None` if
    /// nothing is counted. The JSON is formatted by hand: no value needs JSON escapes, and the Worker stays
    /// small.
    pub fn take_report(&mut self, reporter: &str, number: u64) -> Option<String> {
        const END: &str = "]}";
        let mut report = format!(r#"{{"reporter":"{reporter}","number":{number},"refusals":["#);
        let mut taken = 0;
        for Refused { campaign, code, at_s, count } in &self.entries {
            let comma = if taken == 0 { "" } else { "," };
            let code = code.as_str();
            let entry = format!(
                r#"{comma}{{"campaign_id":"{campaign}","reason":"{code}","at_s":{at_s},"count":{count}}}"#
            );
            if report.len() + entry.len() + END.len() > BODY_BYTES_MAX {
                break;
            }
            report.push_str(&entry);
            taken += 1;
        }
        self.entries.drain(..taken);
        (taken > 0).then(|| report + END)
    }
}

/// Refused claims that an edge reports to core.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RefusalReport {
    /// Names the isolate of the Worker that counted.
    pub reporter: IdempotencyKey,
    /// The report's number, which rises. A repeated number counts once, through any core.
    #[cfg_attr(feature = "openapi", schema(maximum = 9_007_199_254_740_991_u64))]
    pub number: u64,
    /// The refused claims.
    pub refusals: Vec<ReportedRefusal>,
}

/// Refused claims of one campaign, for one reason, in one second.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReportedRefusal {
    /// The campaign's id as the callers sent it; empty if that was not a valid id.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[A-Za-z0-9_-]{0,64}$"))]
    pub campaign_id: String,
    /// The problem's code. A code that core does not know counts as `other`.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[a-z_]{1,64}$"))]
    pub reason: String,
    /// The second in which the claims were refused, since 1970, by the edge's clock.
    #[cfg_attr(feature = "openapi", schema(maximum = 9_007_199_254_740_991_u64))]
    pub at_s: u64,
    /// Number of claims.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub count: u32,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::problem::parse_json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_ms(1_700_000_000_000 + second * 1_000 + 999).unwrap()
    }

    fn sum(entries: &[Refused]) -> u64 {
        entries.iter().map(|entry| u64::from(entry.count)).sum()
    }

    #[test]
    fn claims_are_counted_by_campaign_reason_and_second() {
        let mut counts = RefusalCounts::new(16);
        for (campaign, code, second) in [
            ("demo", Code::SoldOut, 0),
            ("demo", Code::SoldOut, 0),
            ("demo", Code::RateLimited, 0),
            ("demo", Code::SoldOut, 1),
            ("other", Code::SoldOut, 1),
            ("a%00b", Code::CampaignNotFound, 1),
        ] {
            counts.count(campaign, || true, code, at(second));
        }
        let entries = counts.take();
        let seen: Vec<_> = entries
            .iter()
            .map(|entry| (entry.campaign.as_str(), entry.code, entry.at_s - 1_700_000_000, entry.count))
            .collect();
        assert_eq!(
            seen,
            [
                ("demo", Code::SoldOut, 0, 2),
                ("demo", Code::RateLimited, 0, 1),
                ("demo", Code::SoldOut, 1, 1),
                ("other", Code::SoldOut, 1, 1),
                (UNKNOWN_CAMPAIGN, Code::CampaignNotFound, 1, 1),
            ]
        );
        assert!(counts.is_empty());
    }

    #[test]
    fn made_up_ids_leave_room_for_known_campaigns() {
        let mut counts = RefusalCounts::new(16);
        for n in 0..1_000 {
            counts.count(&format!("made-up-{n}"), || false, Code::Unauthenticated, at(n / 100));
        }
        counts.count("demo", || true, Code::SoldOut, at(9));
        let entries = counts.take();
        assert_eq!(entries.len(), 4 + 1 + 1, "a quarter, the unknown campaign, and demo: {entries:?}");
        assert_eq!(sum(&entries), 1_001);
        assert_eq!(entries.last().map(|entry| entry.campaign.as_str()), Some("demo"));
    }

    #[test]
    fn without_room_a_campaigns_seconds_are_merged() {
        let mut counts = RefusalCounts::new(2);
        for second in 0..9 {
            counts.count("demo", || true, Code::SoldOut, at(second));
        }
        let entries = counts.take();
        assert_eq!(entries.iter().map(|entry| entry.count).collect::<Vec<_>>(), [1, 8]);
    }

    #[test]
    fn a_report_takes_the_oldest_counts_that_fit() {
        let mut counts = RefusalCounts::new(256);
        assert_eq!(counts.take_report("r", 1), None);
        let id = |n: i64| format!("{n:0>64}");
        for n in 0..100 {
            counts.count(&id(n), || true, Code::UserDailyLimitReached, at(n));
        }
        let (mut next, mut number) = (0, 0);
        while let Some(report) = counts.take_report("AAAAAAAAAAAAAAAAAAAAAA", number) {
            assert!(report.len() <= BODY_BYTES_MAX, "{} bytes", report.len());
            let report: RefusalReport = parse_json(report.as_bytes()).unwrap();
            assert_eq!((report.reporter.as_str(), report.number), ("AAAAAAAAAAAAAAAAAAAAAA", number));
            assert!(report.refusals.len() > 20 || next > 60);
            for refused in report.refusals {
                assert_eq!((refused.campaign_id, refused.count), (id(next), 1));
                assert_eq!(refused.reason, "user_daily_limit_reached");
                next += 1;
            }
            number += 1;
        }
        assert_eq!(next, 100);
    }

    proptest! {
        #[test]
        fn no_claim_is_lost_or_counted_twice(
            claims in prop::collection::vec((0..30_u8, any::<bool>(), 0..4_usize, 0..20_i64, any::<bool>()), 0..400),
            entries_max in 0..40_usize,
        ) {
            let mut counts = RefusalCounts::new(entries_max);
            let mut reported: BTreeMap<Code, u64> = BTreeMap::new();
            let mut expected: BTreeMap<Code, u64> = BTreeMap::new();
            let mut drain = |counts: &mut RefusalCounts| {
                for entry in counts.take() {
                    *reported.entry(entry.code).or_default() += u64::from(entry.count);
                }
            };
            for (campaign, is_known, code, second, is_drained) in claims {
                let code = Code::ALL[code];
                counts.count(&format!("c{campaign}"), || is_known, code, at(second));
                *expected.entry(code).or_default() += 1;
                prop_assert!(counts.entries.len() <= entries_max + Code::ALL.len());
                if is_drained {
                    drain(&mut counts);
                }
            }
            drain(&mut counts);
            prop_assert_eq!(reported, expected);
        }
    }
}
