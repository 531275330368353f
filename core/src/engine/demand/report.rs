//! The report on a campaign's demand, from what SQL has.

use claimgate_shared::admin::report::{
    DemandReport, DemandSlice, DemandTimeline, Peak, ReportedClaims, ReportedRefusals,
};
use claimgate_shared::{CampaignId, Timestamp};

use crate::clock;
use crate::domain::campaign::Campaign;
use crate::engine::error::EngineError;
use crate::store::sql::{ClaimTotals, RefusalTotals, SqlStore, Step};

/// Maximum number of slices of a timeline.
const SLICES_MAX: i64 = 240;
/// Maximum number of steps in a list of all steps.
const STEPS_MAX: i64 = 200_000;
/// Number of seconds before the busiest second in its own timeline; the rest of that timeline is after it.
const BEFORE_PEAK_S: i64 = 60;
/// Lengths of slices and steps, in seconds. A day is the longest, so that they begin at midnight UTC.
const LENGTHS_S: [i64; 14] = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1_800, 3_600, 21_600, 86_400];

/// Reports on campaigns' demand, from what SQL has.
#[derive(Debug, Clone)]
pub struct Reports {
    pub(in crate::engine) sql: SqlStore,
}

impl Reports {
    /// Returns the report on the demand of the campaign `id`. It covers what SQL has.
    pub async fn report(&self, id: &CampaignId) -> Result<DemandReport, EngineError> {
        let campaign = self.stored(id).await?;
        let (claims, refusals) = (self.sql.claim_totals(id).await?, self.sql.refusal_totals(id).await?);
        let starts_at = campaign.window.starts_at();
        let first = claims.first_and_last.map(|(first, _)| first);
        let opened_at = first.map_or(starts_at, |first| first.min(starts_at));
        let (timeline, busiest) = match span(&claims, &refusals) {
            None => (DemandTimeline { begins_at: opened_at, slice_s: 1, slices: Vec::new() }, None),
            Some(span) => {
                let timeline = self.timeline(id, length_s(span, SLICES_MAX), span).await?;
                let is_whole = timeline.slice_s == 1;
                let window = busiest_second(&claims, &refusals).filter(|_| !is_whole);
                let busiest = match window.map(|at_s| around(at_s, span)) {
                    Some(window) => Some(self.timeline(id, 1, window).await?),
                    None => None,
                };
                (timeline, busiest)
            }
        };
        Ok(DemandReport {
            campaign_id: id.clone(),
            name: campaign.name.to_string(),
            at: clock::now(),
            opened_at,
            sold_out_at: claims.sold_out_at,
            sold_out_after_s: claims.sold_out_at.map(|at| seconds_between(opened_at, at)),
            claims: reported_claims(&claims),
            refusals: reported_refusals(refusals),
            timeline,
            busiest,
        })
    }

    /// Returns claims and refusals of the campaign `id` in each second in which there were any, or in longer
    /// steps if there would be too many. Returns the length of a step in seconds, and the steps.
    pub async fn demand_steps(&self, id: &CampaignId) -> Result<(i64, Vec<Step>), EngineError> {
        let id = self.stored(id).await?.id;
        let Some(span) = span(&self.sql.claim_totals(&id).await?, &self.sql.refusal_totals(&id).await?)
        else {
            return Ok((1, Vec::new()));
        };
        let each_s = length_s(span, STEPS_MAX);
        Ok((each_s, self.sql.demand_steps(&id, each_s, span).await?))
    }

    async fn stored(&self, id: &CampaignId) -> Result<Campaign, EngineError> {
        self.sql.campaign(id).await?.ok_or(EngineError::CampaignNotFound)
    }

    async fn timeline(
        &self,
        id: &CampaignId,
        each_s: i64,
        (from_s, to_s): (i64, i64),
    ) -> Result<DemandTimeline, EngineError> {
        let begins_s = from_s.div_euclid(each_s) * each_s;
        let count = usize::try_from((to_s - 1 - begins_s) / each_s + 1).unwrap_or_default();
        let mut slices = vec![DemandSlice::default(); count];
        for step in self.sql.demand_steps(id, each_s, (from_s, to_s)).await? {
            let at = usize::try_from((step.at_s - begins_s) / each_s).unwrap_or(usize::MAX);
            if let Some(slice) = slices.get_mut(at) {
                *slice = DemandSlice {
                    claims: step.claims,
                    refused_at_edges: step.refused_at_edges,
                    refused_at_core: step.refused_at_core,
                };
            }
        }
        Ok(DemandTimeline {
            begins_at: timestamp(begins_s),
            slice_s: u32::try_from(each_s).unwrap_or(u32::MAX),
            slices,
        })
    }
}

/// Returns the first second with a claim or a refusal, and the one after the last.
fn span(claims: &ClaimTotals, refusals: &RefusalTotals) -> Option<(i64, i64)> {
    let claimed = claims.first_and_last.map(|(first, last)| (second(first), second(last)));
    let both = claimed.into_iter().chain(refusals.first_and_last_s);
    let (first, last) = both.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))?;
    Some((first, last + 1))
}

/// Returns the shortest length that divides `span` into at most `count_max` parts.
fn length_s((from_s, to_s): (i64, i64), count_max: i64) -> i64 {
    // The first part may begin before the span.
    let fits = |length: &i64| (to_s - from_s) / length + 2 <= count_max;
    let days = |length: i64| ((to_s - from_s) / (length * (count_max - 2)) + 1) * length;
    LENGTHS_S.into_iter().find(fits).unwrap_or_else(|| days(86_400))
}

/// Returns the second with the most claims, or with the most refusals if these are more.
fn busiest_second(claims: &ClaimTotals, refusals: &RefusalTotals) -> Option<i64> {
    let peaks = claims.peak.into_iter().chain(refusals.peak);
    peaks.max_by_key(|peak: &Peak| peak.per_s).map(|peak| second(peak.at))
}

/// Returns the part of `span` around the second `at_s`.
fn around(at_s: i64, span: (i64, i64)) -> (i64, i64) {
    let from_s = (at_s - BEFORE_PEAK_S).max(span.0);
    (from_s, (from_s + SLICES_MAX).min(span.1))
}

fn reported_claims(claims: &ClaimTotals) -> ReportedClaims {
    ReportedClaims {
        made: claims.made,
        users: claims.users,
        units: claims.units,
        taken: claims.taken,
        by_status: claims.statuses,
        peak: claims.peak,
    }
}

fn reported_refusals(refusals: RefusalTotals) -> ReportedRefusals {
    let at_edges = refusals.by_reason.iter().map(|count| count.at_edges).sum();
    let at_core = refusals.by_reason.iter().map(|count| count.at_core).sum();
    ReportedRefusals {
        total: at_edges + at_core,
        at_edges,
        at_core,
        by_reason: refusals.by_reason,
        peak: refusals.peak,
    }
}

fn second(at: Timestamp) -> i64 {
    at.as_ms().div_euclid(1_000)
}

fn timestamp(second: i64) -> Timestamp {
    // The second of a claim or a refusal, or slightly earlier.
    Timestamp::from_ms(second.saturating_mul(1_000)).unwrap_or_else(|_| clock::now())
}

#[allow(clippy::cast_precision_loss)] // far below 2^53
fn seconds_between(from: Timestamp, to: Timestamp) -> f64 {
    (to.as_ms() - from.as_ms()).max(0) as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_has_at_most_its_number_of_slices() {
        for (span_s, length) in [
            (1, 1),
            (238, 1),
            (239, 2),
            (240, 2),
            (3_600, 30),
            (86_400, 600),
            (30 * 86_400, 21_600),
            (365 * 86_400, 2 * 86_400),
        ] {
            let span = (1_700_000_003, 1_700_000_003 + span_s);
            let length_s = length_s(span, SLICES_MAX);
            assert_eq!(length_s, length, "{span_s}");
            let begins_s = span.0 / length_s * length_s;
            assert!((span.1 - 1 - begins_s) / length_s < SLICES_MAX, "{span_s}");
        }
    }

    #[test]
    fn the_busiest_part_stays_within_the_whole() {
        assert_eq!(around(100, (90, 1_000)), (90, 330));
        assert_eq!(around(500, (90, 1_000)), (440, 680));
        assert_eq!(around(990, (90, 1_000)), (930, 1_000));
    }
}
