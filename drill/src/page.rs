//! The report as one page with charts: self-contained, nothing is fetched. Bars are drawn, words are text.
#![allow(clippy::cast_precision_loss)] // lengths of bars

use std::fmt::Write as _;

use crate::Report;
use crate::latency::LatencyFigures;
use crate::tally::{Slice, Timeline};
use crate::text::range;

const STYLE: &str = include_str!("page.css");
/// Sizes of the chart over time, in its own units.
const TIME_WIDTH: f64 = 600.0;
const TIME_HEIGHT: f64 = 100.0;

/// The report as a page.
pub fn page(report: &Report) -> String {
    let body = [head(report), checks(report), timeline(&report.timeline), answers(report)];
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>claimgate drill: {verdict}</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head>\n\
         <body>{}{}</body></html>\n",
        body.concat(),
        report.latency_ms.as_ref().map(latencies).unwrap_or_default(),
        verdict = escaped(&report.verdict()),
    )
}

fn head(report: &Report) -> String {
    let class = if report.passed { "good" } else { "bad" };
    format!(
        "<h1>claimgate drill</h1>\n<p class=\"verdict {class}\">{}</p>\n\
         <p>{} users for {} units through the {} at {}, {} at once, in {:.1} s; began at {}, campaign {}.</p>\n",
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
    let mut html = "<h2>What has to hold</h2>\n<table>".to_owned();
    for check in &report.checks {
        let (class, verdict) = if check.passed { ("good", "ok") } else { ("bad", "FAILED") };
        let (name, detail) = (escaped(check.name), escaped(&check.detail));
        let _ = writeln!(html, "<tr><td class=\"{class}\">{verdict}<td>{name}<td>{detail}");
    }
    html + "</table>\n"
}

fn timeline(timeline: &Timeline) -> String {
    let Timeline { slice_s, slices } = timeline;
    let answers = |slice: &Slice| slice.claimed + slice.denied + slice.undecided;
    let most = slices.iter().map(answers).max().unwrap_or(0).max(1) as f64;
    let step = TIME_WIDTH / slices.len().max(1) as f64;
    let mut drawn = String::new();
    for (index, slice) in slices.iter().enumerate() {
        let (x, mut y) = (index as f64 * step, TIME_HEIGHT);
        for (class, count) in
            [("claimed", slice.claimed), ("denied", slice.denied), ("undecided", slice.undecided)]
        {
            let height = count as f64 / most * TIME_HEIGHT;
            y -= height;
            if count > 0 {
                let width = step * 0.9;
                let _ = write!(
                    drawn,
                    "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\"/>"
                );
            }
        }
    }
    format!(
        "<h2>Over time</h2>\n<p>Tries answered in each {slice_s:.1} s, {most} at most. \
         <span class=\"key\"><i class=\"claimed\"></i>granted or met again<i class=\"denied\"></i>denied\
         <i class=\"undecided\"></i>not decided</span></p>\n\
         <svg class=\"time\" viewBox=\"0 0 {TIME_WIDTH} {TIME_HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"tries answered over time\">{drawn}</svg>\n\
         <div class=\"ends\"><span>0 s</span><span>{:.1} s</span></div>\n",
        slices.len() as f64 * slice_s
    )
}

fn answers(report: &Report) -> String {
    let rows = report.answers.iter().map(|(what, count)| (what.clone(), *count));
    format!("<h2>What came of each try</h2>\n{}", bars(rows))
}

fn latencies(latency: &LatencyFigures) -> String {
    let LatencyFigures { answers, p50, p90, p99, p99_9, max, bars: each } = latency;
    format!(
        "<h2>How long answers took</h2>\n<p>{answers} answers; half within {p50:.1} ms, p90 {p90:.1} ms, p99 {p99:.1} ms, \
         p99.9 {p99_9:.1} ms, the slowest {max:.1} ms.</p>\n{}",
        bars(each.iter().map(|bar| (range(bar), bar.answers as u64)))
    )
}

/// One bar a row, all to one scale.
fn bars(rows: impl Iterator<Item = (String, u64)> + Clone) -> String {
    let most = rows.clone().map(|(_, count)| count).max().unwrap_or(0).max(1) as f64;
    let mut html = String::new();
    for (name, count) in rows {
        let width = count as f64 / most * 100.0;
        let _ = writeln!(
            html,
            "<div class=\"row\"><span>{}</span><svg viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
             <rect class=\"plain\" width=\"{width:.2}\" height=\"10\"/></svg><span>{count}</span></div>",
            escaped(&name)
        );
    }
    html
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
