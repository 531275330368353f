//! The report as a self-contained HTML page with charts.

use std::fmt::Write as _;

use crate::Report;
use crate::charts::{self, Series, bars, document, escaped, over_time};
use crate::latency::LatencyFigures;
use crate::tally::{Slice, Timeline};
use crate::text::range;

/// The kinds of responses, as [`Slice`] counts them.
const ANSWERS: [Series; 3] = [
    Series { class: "claimed", name: "granted or replayed" },
    Series { class: "denied", name: "denied" },
    Series { class: "undecided", name: "undecided" },
];

/// Formats the report as an HTML page.
pub fn page(report: &Report) -> String {
    let latencies = report.latency_ms.as_ref().map(latencies).unwrap_or_default();
    let body = [head(report), checks(report), timeline(&report.timeline), answers(report), latencies];
    document(&format!("claimgate drill: {}", report.verdict()), &body.concat())
}

fn head(report: &Report) -> String {
    let class = if report.passed { "good" } else { "bad" };
    format!(
        "<h1>claimgate drill</h1>\n<p class=\"verdict {class}\">{}</p>\n\
         <p>{} users and {} units through the {} at {}, {} concurrent users, in {:.1} s; began at {}, campaign {}.</p>\n",
        escaped(&report.verdict()),
        report.users,
        report.units,
        report.through,
        escaped(&report.url),
        report.connections,
        report.storm_s,
        report.began_at,
        report.campaign_id
    )
}

fn checks(report: &Report) -> String {
    let mut html = "<h2>Checks</h2>\n<table>".to_owned();
    for check in &report.checks {
        let (class, verdict) = if check.passed { ("good", "ok") } else { ("bad", "FAILED") };
        let (name, detail) = (escaped(check.name), escaped(&check.detail));
        let _ = writeln!(html, "<tr><td class=\"{class}\">{verdict}<td>{name}<td>{detail}");
    }
    html + "</table>\n"
}

#[allow(clippy::cast_precision_loss)] // at most 60 slices
fn timeline(timeline: &Timeline) -> String {
    let Timeline { slice_s, slices } = timeline;
    let slices: Vec<_> =
        slices.iter().map(|Slice { claimed, denied, undecided }| [*claimed, *denied, *undecided]).collect();
    let drawn = over_time(&charts::Timeline {
        series: ANSWERS,
        slices: &slices,
        about: &format!("Tries answered per {slice_s:.1} s"),
        ends: ["0 s", &format!("{:.1} s", slices.len() as f64 * slice_s)],
    });
    format!("<h2>Over time</h2>\n{drawn}")
}

fn answers(report: &Report) -> String {
    let rows = report.answers.iter().map(|(what, count)| (what.clone(), *count));
    format!("<h2>Outcomes of the tries</h2>\n{}", bars(rows))
}

fn latencies(latency: &LatencyFigures) -> String {
    let LatencyFigures { answers, p50, p90, p99, p99_9, max, bars: each } = latency;
    format!(
        "<h2>Latency</h2>\n<p>{answers} answers: p50 {p50:.1} ms, p90 {p90:.1} ms, p99 {p99:.1} ms, \
         p99.9 {p99_9:.1} ms, slowest {max:.1} ms.</p>\n{}",
        bars(each.iter().map(|bar| (range(bar), bar.answers as u64)))
    )
}
