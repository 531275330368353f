//! The report as text for a terminal, 80 columns wide.

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};

use crate::Report;
use crate::latency::{Bar, LatencyFigures};

/// The width of tables if there is no terminal.
const COLUMNS: u16 = 80;
/// The longest bar, in characters.
const BAR_MAX: usize = 40;

/// Formats the report as text.
pub fn text(report: &Report) -> String {
    let mut parts = vec![
        format!(
            "drill of {} ({})\ncampaign {}\n{} users, {} units, {} concurrent users: {:.1} s",
            report.url,
            report.through,
            report.campaign_id,
            report.users,
            report.units,
            report.connections,
            report.storm_s
        ),
        checks(report),
        answers(report),
    ];
    parts.extend(report.latency_ms.as_ref().map(latency));
    parts.push(report.verdict());
    parts.join("\n\n")
}

fn checks(report: &Report) -> String {
    let mut table = table();
    for check in &report.checks {
        let verdict = if check.passed { "ok" } else { "FAILED" };
        table.add_row([verdict, check.name, &check.detail]);
    }
    table.to_string()
}

fn answers(report: &Report) -> String {
    let mut table = table();
    table.set_header(["tries", "outcome"]);
    for (what, count) in &report.answers {
        table.add_row([count.to_string(), what.clone()]);
    }
    table.to_string()
}

fn latency(latency: &LatencyFigures) -> String {
    let LatencyFigures { p50, p90, p99, p99_9, max, .. } = latency;
    let head =
        format!(" latency in ms: p50 {p50:.1}, p90 {p90:.1}, p99 {p99:.1}, p99.9 {p99_9:.1}, max {max:.1}\n");
    let most = latency.bars.iter().map(|bar| bar.answers).max().unwrap_or(1).max(1);
    let mut table = table();
    for bar in &latency.bars {
        let drawn = "█".repeat((bar.answers * BAR_MAX).div_ceil(most));
        table.add_row([range(bar), bar.answers.to_string(), drawn]);
    }
    head + &table.to_string()
}

/// Describes the range of a bar.
pub(crate) fn range(bar: &Bar) -> String {
    match bar.up_to_ms {
        Some(up_to) => format!("up to {up_to} ms"),
        None => format!("over {} ms", bar.over_ms),
    }
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        table.set_width(COLUMNS);
    }
    table
}
