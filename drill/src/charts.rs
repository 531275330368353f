//! Self-contained HTML pages with charts, which load nothing: for the drill's report and core's report on demand.
#![allow(clippy::cast_precision_loss)] // lengths of bars

use std::fmt::Write as _;

/// The style of every page, in its only `style` element.
pub const STYLE: &str = include_str!("page.css");

/// Size of the chart over time, in SVG units.
const TIME_WIDTH: f64 = 600.0;
const TIME_HEIGHT: f64 = 100.0;

/// Formats an HTML page with this title and body. The title is escaped here, the body by its parts.
pub fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{}</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head>\n\
         <body><main>{body}</main></body></html>\n",
        escaped(title)
    )
}

/// A kind of events in a [`Timeline`].
#[derive(Debug, Clone, Copy)]
pub struct Series {
    /// The class that sets its colour: `claimed`, `denied` or `undecided`.
    pub class: &'static str,
    /// Its name in the legend.
    pub name: &'static str,
}

/// Events over time, as stacked bars.
#[derive(Debug)]
pub struct Timeline<'a, const N: usize> {
    /// The kinds of events, from the bottom of each bar to its top.
    pub series: [Series; N],
    /// The number of events of each kind, in consecutive time slices of equal length.
    pub slices: &'a [[u64; N]],
    /// The caption: the meaning of the bars. Their highest number is added.
    pub about: &'a str,
    /// The labels of the beginning and the end.
    pub ends: [&'a str; 2],
}

/// Draws `timeline`, with a legend.
pub fn over_time<const N: usize>(timeline: &Timeline<'_, N>) -> String {
    let Timeline { series, slices, about, ends: [begin, end] } = timeline;
    let most = slices.iter().map(|slice| slice.iter().sum()).max().unwrap_or(0).max(1);
    let step = TIME_WIDTH / slices.len().max(1) as f64;
    let mut drawn = String::new();
    for (index, slice) in slices.iter().enumerate() {
        let (x, mut y) = (index as f64 * step, TIME_HEIGHT);
        for (Series { class, .. }, count) in series.iter().zip(slice).filter(|(_, count)| **count > 0) {
            let height = *count as f64 / most as f64 * TIME_HEIGHT;
            y -= height;
            let width = step * 0.9;
            let _ = write!(
                drawn,
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\"/>"
            );
        }
    }
    let mut keys = String::new();
    for Series { class, name } in series {
        let _ = write!(keys, "<i class=\"{class}\"></i>{name}");
    }
    let about = escaped(about);
    format!(
        "<p>{about}, at most {most}. <span class=\"key\">{keys}</span></p>\n\
         <svg class=\"time\" viewBox=\"0 0 {TIME_WIDTH} {TIME_HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{about}\">{drawn}</svg>\n\
         <div class=\"ends\"><span>{}</span><span>{}</span></div>\n",
        escaped(begin),
        escaped(end)
    )
}

/// Draws one bar per row, all to the same scale.
pub fn bars(rows: impl Iterator<Item = (String, u64)> + Clone) -> String {
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

/// Escapes `text` for HTML, including inside a quoted attribute.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
