//! The report on a campaign's demand, at most 80 columns wide.

use claimgate_shared::Timestamp;
use claimgate_shared::admin::report::{DemandReport, DemandSlice, DemandTimeline, Peak};

use super::{grid, pairs};
use crate::cli::times::shown;
use crate::domain::days::TimeZone;
use crate::report_page::{duration, sale};

/// Maximum number of lines of the course of a sale.
const LINES_MAX: usize = 20;
/// The longest bar, in characters.
const BAR_MAX: u64 = 24;

/// Formats the report, with times in `zone`.
pub fn report(report: &DemandReport, zone: &TimeZone) -> String {
    let mut parts = vec![figures(report, zone)];
    if !report.refusals.by_reason.is_empty() {
        parts.push(reasons(report));
    }
    // For a long sale, the minutes around the peak are more informative than the whole.
    let timeline = report.busiest.as_ref().unwrap_or(&report.timeline);
    if !timeline.slices.is_empty() {
        parts.push(course(timeline, zone));
    }
    parts.push(format!(" {}", sale(report)));
    parts.join("\n\n")
}

fn figures(report: &DemandReport, zone: &TimeZone) -> String {
    let (claims, refusals) = (&report.claims, &report.refusals);
    let at = |at: Timestamp| shown(at, zone);
    let peak = |peak: Option<Peak>| {
        peak.map_or_else(|| "none".to_owned(), |peak| format!("{}, {}", peak.per_s, at(peak.at)))
    };
    pairs(&[
        ("campaign", report.campaign_id.to_string()),
        ("opened", at(report.opened_at)),
        ("sold out", report.sold_out_at.map_or_else(|| "never".to_owned(), at)),
        ("claims", claims.made.to_string()),
        ("users", claims.users.to_string()),
        ("units", format!("{}, {} of them taken", claims.units, claims.taken)),
        ("most claims a second", peak(claims.peak)),
        ("refusals", refusals.total.to_string()),
        ("most refusals a second", peak(refusals.peak)),
    ])
}

fn reasons(report: &DemandReport) -> String {
    let row = |reason: &str, at_edges: u64, at_core: u64| {
        vec![reason.to_owned(), at_edges.to_string(), at_core.to_string()]
    };
    let reasons = &report.refusals.by_reason;
    let mut rows: Vec<_> =
        reasons.iter().map(|count| row(&count.reason, count.at_edges, count.at_core)).collect();
    rows.push(row("all", report.refusals.at_edges, report.refusals.at_core));
    grid(&["refused for", "at the edge", "by core"], &rows).trim_fmt()
}

fn course(timeline: &DemandTimeline, zone: &TimeZone) -> String {
    let together = timeline.slices.len().div_ceil(LINES_MAX).max(1);
    let sum = |slices: &[DemandSlice]| {
        slices.iter().fold((0, 0), |(claims, refused), slice| {
            (claims + slice.claims, refused + slice.refused_at_edges + slice.refused_at_core)
        })
    };
    let sums: Vec<(u64, u64)> = timeline.slices.chunks(together).map(sum).collect();
    let most = sums.iter().map(|(claims, refused)| claims + refused).max().unwrap_or(0).max(1);
    let length_s = u64::from(timeline.slice_s) * together as u64;
    let mut at = timeline.begins_at;
    let mut rows = Vec::with_capacity(sums.len());
    for (claims, refused) in sums {
        let bar = (claims + refused).saturating_mul(BAR_MAX).div_ceil(most);
        let bar = "█".repeat(usize::try_from(bar).unwrap_or_default());
        rows.push(vec![shown(at, zone), claims.to_string(), refused.to_string(), bar]);
        at = at.saturating_add_ms(i64::try_from(length_s * 1_000).unwrap_or(i64::MAX));
    }
    #[allow(clippy::cast_precision_loss)] // far below 2^53
    let title = format!("each {}", duration(length_s as f64));
    grid(&[&title, "claims", "refused", ""], &rows).trim_fmt()
}
