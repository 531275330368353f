//! `report.html`: the figures as bar charts, in one self-contained file.

use std::fmt::Write as _;

use serde_json::Value;

use crate::figures::{Figure, Target, Unit};
use crate::report;
use crate::session::Session;

const STYLE: &str = include_str!("page.css");

/// Width of a chart, in SVG units; the next sizes are those of its parts.
const WIDTH: f64 = 860.0;
const NAMES: f64 = 300.0;
const BARS: f64 = 400.0;
const ROW: f64 = 26.0;
const BAR: f64 = 14.0;

/// Charts of figures without a target: title and unit.
const CHARTS: &[(&str, Unit)] = &[
    ("Per second", Unit::PerSecond),
    ("CPU time", Unit::CpuMicroseconds),
    ("Latency", Unit::Microseconds),
    ("Time until the outbox is empty after a load", Unit::Seconds),
    ("Largest outbox", Unit::Events),
    ("Claims per batch", Unit::Claims),
    ("Bytes of Redis per claim", Unit::Bytes),
    ("Core's resident memory", Unit::Mebibytes),
    ("The Worker, gzipped", Unit::Kilobytes),
];

pub fn page(session: &Session, machine: &Value) -> String {
    let all = session.figures.in_order();
    let (judged, info): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|figure| figure.definition.target.is_some());
    let mut body = warnings(session);
    if !judged.is_empty() {
        body += "<h2>Compared with targets</h2><p>Each bar is the median divided by its target, the dashed line; \
                 the thin line spans the lowest to the highest round. For targets with ≤, a short bar is good.</p>";
        body += &chart(&judged, |figure| figure.definition.target.map_or(1.0, Target::number));
    }
    for (title, unit) in CHARTS {
        let of_unit: Vec<_> = info.iter().copied().filter(|figure| figure.definition.unit == *unit).collect();
        if !of_unit.is_empty() {
            let _ = write!(body, "<h2>{title}</h2>{}", chart(&of_unit, |_| 1.0));
        }
    }
    body += &list("The machine was noisy", &report::noise(&session.figures));
    body += &list("Not measured", &report::missing(&session.figures));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>claimgate bench</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head>\
         <body><h1>claimgate bench</h1>{body}<h2>The machine</h2><pre>{}</pre></body></html>\n",
        escaped(&format!("{machine:#}"))
    )
}

/// Lists reasons why the figures prove less than those of a complete run.
fn warnings(session: &Session) -> String {
    let paragraph = |title, text: &str| format!("<h2>{title}</h2><p>{}", escaped(text));
    let void = session.void.as_deref().map(|why| paragraph("This run is invalid", why));
    let ended_early = session.ended_early.as_deref();
    let incomplete = ended_early
        .map(|why| paragraph("This run is incomplete", &report::incomplete(&session.figures, why)));
    let unproven = report::unproven(&session.figures).map(|text| paragraph("Not proven", &text));
    let failed = (!session.failed.is_empty()).then(|| paragraph("Failed", &session.failed.join("; ")));
    [void, failed, incomplete, unproven].into_iter().flatten().collect()
}

/// Formats a titled list; empty without items.
fn list(title: &str, items: &[impl AsRef<str>]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let items = items.iter().map(|item| escaped(item.as_ref())).collect::<Vec<_>>().join("<li>");
    format!("<h2>{title}</h2><ul><li>{items}</ul>")
}

/// Draws horizontal bars, one per figure: its value divided by its `scale`, all to the same scale.
fn chart(figures: &[&Figure], scale: impl Fn(&Figure) -> f64) -> String {
    let top = figures.iter().map(|figure| figure.range().1 / scale(figure)).fold(0.0, f64::max);
    let has_targets = figures.iter().any(|figure| figure.definition.target.is_some());
    let top = if has_targets { f64::max(top, 1.0) } else { top };
    let x = |value: f64| NAMES + if top > 0.0 { value / top * BARS } else { 0.0 };
    let height = figures.len() as f64 * ROW;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">");
    for (index, figure) in figures.iter().enumerate() {
        let middle = (index as f64 + 0.5) * ROW;
        let (low, high) = figure.range();
        let scaled = |value: f64| x(value / scale(figure));
        bar(&mut svg, figure, middle, [scaled(figure.value()), scaled(low), scaled(high)]);
    }
    if has_targets {
        let _ = write!(
            svg,
            "<line class=\"target\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"0\" y2=\"{height}\"/>",
            x(1.0)
        );
    }
    svg + "</svg>"
}

/// Draws one row: the figure's name, a bar to `value`, a line from `low` to `high`, and the value as text.
fn bar(svg: &mut String, figure: &Figure, middle: f64, [value, low, high]: [f64; 3]) {
    let class = match figure.reached() {
        None => "info",
        Some(_) if figure.is_undecided() => "open",
        Some(true) => "reached",
        Some(false) => "missed",
    };
    let (text, name) = (escaped(&words(figure)), escaped(figure.definition.name));
    let (y, line, width) = (middle - BAR / 2.0, middle + 4.0, value - NAMES);
    let _ = write!(
        svg,
        "<text x=\"{name_x}\" y=\"{line}\" class=\"name\">{name}</text>\
         <rect class=\"{class}\" x=\"{NAMES}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR}\"/>\
         <line class=\"rounds\" x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{middle}\" y2=\"{middle}\"/>\
         <text x=\"{text_x:.1}\" y=\"{line}\">{text}</text>",
        name_x = NAMES - 8.0,
        text_x = high.max(value) + 8.0,
    );
}

fn words(figure: &Figure) -> String {
    let unit = figure.definition.unit;
    let verdict = figure
        .definition
        .target
        .map_or_else(String::new, |target| format!(" ({}: {})", target.text(unit), report::verdict(figure)));
    let short = if figure.lacks_rounds() {
        format!(", {} of {} rounds", figure.rounds.len(), figure.rounds_wanted)
    } else {
        String::new()
    };
    format!("{}{verdict}{short}", unit.text(figure.value()))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
