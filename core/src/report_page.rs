//! The report on a campaign's demand as a self-contained HTML page, with the charts of the drill's page.

use std::fmt::Write as _;

use claimgate_drill::charts::{Series, Timeline, bars, document, escaped, over_time};
use claimgate_shared::Timestamp;
use claimgate_shared::admin::report::{DemandReport, DemandSlice, DemandTimeline, Peak, StatusCounts};

/// The kinds of claims, as [`DemandSlice`] counts them.
const KINDS: [Series; 3] = [
    Series { class: "claimed", name: "claimed" },
    Series { class: "denied", name: "refused at the edge" },
    Series { class: "undecided", name: "refused by core" },
];

/// Formats the report as an HTML page.
pub fn page(report: &DemandReport) -> String {
    let mut body = format!(
        "<h1>Demand for {}</h1>\n<p class=\"verdict\">{}</p>\n<p>{}</p>\n{}",
        escaped(&report.name),
        escaped(&sale(report)),
        escaped(&format!("Campaign {}, as of {} (UTC).", report.campaign_id, text(report.at))),
        figures(report)
    );
    if report.timeline.slices.is_empty() {
        body += "<p>No claim was made or refused.</p>\n";
    } else {
        body += &chart("Over time", &report.timeline);
        body +=
            &report.busiest.as_ref().map(|busiest| chart("The busiest minutes", busiest)).unwrap_or_default();
    }
    let reasons = report.refusals.by_reason.iter();
    let reasons = reasons.map(|count| (count.reason.clone(), count.at_edges + count.at_core));
    if !report.refusals.by_reason.is_empty() {
        let _ = write!(body, "<h2>Refusals by reason</h2>\n{}", bars(reasons));
    }
    if report.claims.made > 0 {
        let _ = write!(body, "<h2>Claims by status</h2>\n{}", bars(statuses(report.claims.by_status)));
    }
    document(&format!("Demand for {}", report.name), &body)
}

/// Returns how fast the campaign sold out, in one sentence.
pub fn sale(report: &DemandReport) -> String {
    match report.sold_out_after_s {
        Some(seconds) => format!("Sold out {} after it opened.", duration(seconds)),
        None => "Not sold out.".to_owned(),
    }
}

fn figures(report: &DemandReport) -> String {
    let (claims, refusals) = (&report.claims, &report.refusals);
    let peak = |peak: Option<Peak>| {
        peak.map_or_else(|| "none".to_owned(), |peak| format!("{} at {}", peak.per_s, text(peak.at)))
    };
    let sold_out_at = report.sold_out_at.map_or_else(|| "never".to_owned(), text);
    let rows = [
        ("Opened", text(report.opened_at)),
        ("Sold out", sold_out_at),
        ("Claims", claims.made.to_string()),
        ("Users", claims.users.to_string()),
        ("Units", format!("{}, of which {} are taken", claims.units, claims.taken)),
        ("Most claims a second", peak(claims.peak)),
        (
            "Refused",
            format!("{}: {} at the edge, {} by core", refusals.total, refusals.at_edges, refusals.at_core),
        ),
        ("Most refusals a second", peak(refusals.peak)),
    ];
    let mut html = "<table>".to_owned();
    for (name, value) in &rows {
        let _ = writeln!(html, "<tr><td>{name}<td>{}", escaped(value));
    }
    html + "</table>\n"
}

fn chart(title: &str, timeline: &DemandTimeline) -> String {
    let counts = |slice: &DemandSlice| [slice.claims, slice.refused_at_edges, slice.refused_at_core];
    let slices: Vec<_> = timeline.slices.iter().map(counts).collect();
    let length_ms = i64::from(timeline.slice_s) * 1_000 * i64::try_from(slices.len()).unwrap_or(0);
    let drawn = over_time(&Timeline {
        series: KINDS,
        slices: &slices,
        about: &format!("Claims per {}", duration(timeline.slice_s.into())),
        ends: [&text(timeline.begins_at), &text(timeline.begins_at.saturating_add_ms(length_ms))],
    });
    format!("<h2>{title}</h2>\n{drawn}")
}

fn statuses(counts: StatusCounts) -> impl Iterator<Item = (String, u64)> + Clone {
    let StatusCounts { granted, held, returned, expired, revoked } = counts;
    let named = [
        ("granted", granted),
        ("held", held),
        ("returned", returned),
        ("expired", expired),
        ("revoked", revoked),
    ];
    named.into_iter().map(|(status, count)| (status.to_owned(), count)).filter(|(_, count)| *count > 0)
}

/// Formats a time to the second, in UTC.
fn text(at: Timestamp) -> String {
    let text = at.to_string();
    text.get(..19).unwrap_or(&text).replace('T', " ")
}

/// Formats a length of time in its largest unit, with at most one decimal.
pub fn duration(seconds: f64) -> String {
    let (number, unit) = match seconds {
        ..120.0 => (seconds, "s"),
        ..7_200.0 => (seconds / 60.0, "min"),
        ..172_800.0 => (seconds / 3_600.0, "h"),
        _ => (seconds / 86_400.0, "days"),
    };
    let text = format!("{number:.1}");
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_formatted_briefly() {
        for (seconds, text) in [
            (0.04, "0 s"),
            (1.0, "1 s"),
            (12.34, "12.3 s"),
            (119.0, "119 s"),
            (600.0, "10 min"),
            (5_400.0, "90 min"),
            (21_600.0, "6 h"),
            (172_800.0, "2 days"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }
}
