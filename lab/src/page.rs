//! `report.html`: charts in one self-contained file. Bars are SVG and labels are HTML text, so that labels
//! keep their size on phones.

use std::fmt::Write as _;

use serde_json::Value;

use crate::crash::{AfterCrash, WAIT_MAX};
use crate::judge;
use crate::manager::Expectation;
use crate::measure::{Cell, Row};
use crate::report::{self, short, thousands};

const STYLE: &str = include_str!("page.css");

/// Width of a small curve, in SVG units; its height follows.
const CURVE_WIDTH: f64 = 120.0;
const CURVE_HEIGHT: f64 = 60.0;

/// Builds the page.
pub fn page(rows: &[Row], machine: &Value) -> String {
    let body = [
        INTRODUCTION.to_owned(),
        oversold(rows),
        throughput(rows),
        curves(rows),
        waits(rows),
        crashes(rows),
        table(rows),
        findings(rows),
    ];
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>claimgate lab</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head>\
         <body>{}<h2>The machine</h2><pre>{}</pre></body></html>\n",
        body.concat(),
        escaped(&format!("{machine:#}"))
    )
}

const INTRODUCTION: &str = "<h1>claimgate lab</h1><p>All known methods against overselling, on one Redis and one PostgreSQL.</p>\
    <p class=\"key\"><i class=\"exact\"></i>exact<i class=\"never\"></i>never over, may deny units that are left\
    <i class=\"bad\"></i>oversells, or releases others' locks</p>";

/// A logarithmic scale in powers of ten.
#[derive(Debug, Clone, Copy)]
struct Scale {
    low: i32,
    high: i32,
}

impl Scale {
    /// Returns the scale that contains all positive `values`.
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let logs: Vec<f64> =
            values.filter(|value| value.is_finite() && *value > 0.0).map(f64::log10).collect();
        let low = logs.iter().copied().fold(f64::INFINITY, f64::min).floor();
        let high = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max).ceil();
        #[allow(clippy::cast_possible_truncation)] // a power of ten
        if low.is_finite() {
            Self { low: low as i32, high: (high as i32).max(low as i32 + 1) }
        } else {
            Self { low: 0, high: 1 }
        }
    }

    /// Returns the position of a value, from 0 to 1.
    fn at(self, value: f64) -> f64 {
        let span = f64::from(self.high - self.low);
        if value > 0.0 { ((value.log10() - f64::from(self.low)) / span).clamp(0.0, 1.0) } else { 0.0 }
    }

    fn powers(self) -> impl Iterator<Item = f64> {
        (self.low..=self.high).map(|power| 10_f64.powi(power))
    }

    fn grid(self) -> String {
        let line = |power| {
            format!(
                "<line class=\"grid\" x1=\"{0:.2}\" x2=\"{0:.2}\" y1=\"0\" y2=\"10\"/>",
                self.at(power) * 100.0
            )
        };
        self.powers().map(line).collect()
    }

    /// Draws the labels of the powers above the rows.
    fn axis(self) -> String {
        let label = |power: f64| {
            let text = match power {
                power if power >= 1e6 => format!("{} M", power / 1e6),
                power if power >= 1e3 => format!("{} k", power / 1e3),
                power => format!("{power}"),
            };
            format!("<b style=\"left:{:.2}%\">{text}</b>", self.at(power) * 100.0)
        };
        let labels: String = self.powers().map(label).collect();
        format!("<div class=\"row axis\"><span class=\"name\"></span><div>{labels}</div><span></span></div>")
    }
}

/// Builds one row of a chart: the name, a drawing of 100 by 10 units, and the value as text.
fn line(row: &Row, drawing: &str, value: &str) -> String {
    toned_line(row, tone(row), drawing, value)
}

fn toned_line(row: &Row, tone: &str, drawing: &str, value: &str) -> String {
    format!(
        "<div class=\"row {tone}\"><span class=\"name\">{} {}</span>\
         <svg viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">{drawing}</svg>\
         <span class=\"value\">{}</span></div>",
        row.strategy.row,
        escaped(row.strategy.title),
        escaped(value)
    )
}

fn bar(to: f64) -> String {
    format!("<rect class=\"bar\" x=\"0\" y=\"2\" width=\"{:.2}\" height=\"6\"/>", to * 100.0)
}

fn tick(at: f64) -> String {
    format!("<line class=\"tick\" x1=\"{0:.2}\" x2=\"{0:.2}\" y1=\"0.5\" y2=\"9.5\"/>", at * 100.0)
}

fn tone(row: &Row) -> &'static str {
    match row.strategy.expectation {
        Expectation::Exact => "exact",
        Expectation::NeverOver => "never",
        _ => "bad",
    }
}

fn oversold(rows: &[Row]) -> String {
    let most = rows.iter().map(Row::oversold).max().unwrap_or(0).max(1) as f64;
    let mut html =
        "<h2>Oversold</h2><p>Units granted beyond the stock, in the worst round of all contests.</p>"
            .to_owned();
    for row in rows {
        let over = row.oversold();
        let value = if over == 0 { "0".to_owned() } else { format!("{} units", thousands(over as f64)) };
        html += &line(row, &bar(over as f64 / most), &value);
    }
    html
}

fn throughput(rows: &[Row]) -> String {
    let scale = Scale::of(rows.iter().flat_map(Row::curve).map(|(_, rate)| rate));
    let mut html = "<h2>Granted per second</h2><p>One hot stock that does not run out; logarithmic scale. The bar is for 64 tasks, \
                    the mark for the most tasks. Fast and wrong is still wrong: check the colour.</p>"
        .to_owned();
    html += &scale.axis();
    for row in rows {
        let rate = row.hot().map_or(0.0, Cell::granted_per_s);
        let most = row.curve().last().map_or(0.0, |(_, rate)| *rate);
        let drawing = scale.grid() + &bar(scale.at(rate)) + &tick(scale.at(most));
        html += &line(row, &drawing, &format!("{} · {}", thousands(rate), thousands(most)));
    }
    html
}

fn curves(rows: &[Row]) -> String {
    let scale = Scale::of(rows.iter().flat_map(Row::curve).map(|(_, rate)| rate));
    let range = |power: Option<f64>| thousands(power.unwrap_or(1.0));
    let mut html = format!(
        "<h2>Grants by number of tasks</h2><p>Granted per second, from {} at the bottom to {} at the top, lines at powers \
         of ten, by number of tasks. Rising: more callers, more grants. Flat: callers queue. Falling: callers obstruct \
         each other.</p><div class=\"curves\">",
        range(scale.powers().next()),
        range(scale.powers().last())
    );
    for row in rows {
        html += &curve(row, scale);
    }
    html + "</div>"
}

fn curve(row: &Row, scale: Scale) -> String {
    let points = row.curve();
    let step = (CURVE_WIDTH - 16.0) / (points.len().max(2) - 1) as f64;
    let y = |rate: f64| CURVE_HEIGHT - 4.0 - scale.at(rate) * (CURVE_HEIGHT - 8.0);
    let at: Vec<(f64, f64)> =
        points.iter().enumerate().map(|(index, (_, rate))| (8.0 + index as f64 * step, y(*rate))).collect();
    let mut drawing = String::new();
    for power in scale.powers() {
        let _ = write!(
            drawing,
            "<line class=\"grid\" x1=\"0\" x2=\"{CURVE_WIDTH}\" y1=\"{0:.1}\" y2=\"{0:.1}\"/>",
            y(power)
        );
    }
    let path: Vec<String> = at.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = write!(drawing, "<polyline class=\"line\" points=\"{}\"/>", path.join(" "));
    for (x, y) in at {
        let _ = write!(drawing, "<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>");
    }
    let words: Vec<String> =
        points.iter().map(|(tasks, rate)| format!("{tasks}: {}", thousands(*rate))).collect();
    format!(
        "<div class=\"curve {}\">{} {}<svg viewBox=\"0 0 {CURVE_WIDTH} {CURVE_HEIGHT}\" aria-hidden=\"true\">{drawing}</svg><span>{}</span></div>",
        tone(row),
        row.strategy.row,
        escaped(row.strategy.title),
        words.join(" · ")
    )
}

fn waits(rows: &[Row]) -> String {
    const SHARES: [f64; 3] = [0.5, 0.99, 1.0];
    let of = |row: &Row| {
        SHARES.map(|share| row.rush().map_or(f64::NAN, |cell| cell.median(|round| round.wait_ms(share))))
    };
    let scale = Scale::of(rows.iter().flat_map(of));
    let mut html = "<h2>Wait</h2><p>Milliseconds until the response, in the largest contest for one unit each; \
                    logarithmic scale. The band spans the median (p50) to the longest wait, the mark is p99. Contests end after 2 s.</p>"
        .to_owned();
    html += &scale.axis();
    for row in rows {
        let [middle, late, longest] = of(row);
        let [from, mark, to] = [middle, late, longest].map(|ms| scale.at(ms));
        let band = format!(
            "<line class=\"span\" x1=\"{:.2}\" x2=\"{:.2}\" y1=\"5\" y2=\"5\"/>",
            from * 100.0,
            to * 100.0
        );
        let value = format!("{} – {} ms", short(middle), short(longest));
        html += &line(row, &(scale.grid() + &band + &tick(mark)), &value);
    }
    html
}

fn crashes(rows: &[Row]) -> String {
    let most = WAIT_MAX.as_secs_f64() * 1000.0;
    let mut html = "<h2>After a holder's crash</h2><p>A process that holds the lock or transaction is killed: time until the \
                    next caller continues.</p>"
        .to_owned();
    for row in rows {
        let share = match row.after_crash {
            AfterCrash::Ms(ms) => ms / most,
            AfterCrash::Never => 1.0,
        };
        let value = match row.after_crash {
            AfterCrash::Never => "never".to_owned(),
            after @ AfterCrash::Ms(_) => report::after_crash(after),
        };
        let tone = if row.after_crash == AfterCrash::Never { "bad" } else { tone(row) };
        html += &toned_line(row, tone, &bar(share.min(1.0)), &value);
    }
    html
}

fn table(rows: &[Row]) -> String {
    let head = tagged("<th>", report::COLUMNS);
    let mut html =
        format!("<h2>All columns</h2><p>{}</p><div class=\"wide\"><table><tr>{head}", report::LEGEND);
    for row in rows {
        let cells = tagged("<td>", report::columns(row));
        let _ = write!(html, "<tr>{cells}");
    }
    html + "</table></div>"
}

fn findings(rows: &[Row]) -> String {
    let mut html = format!("<h2>Also shown</h2><ul>{}</ul>", tagged("<li>", report::findings(rows)));
    let wrong: Vec<String> = rows
        .iter()
        .flat_map(|row| {
            judge::deviations(row).into_iter().map(|why| format!("{}: {why}", row.strategy.title))
        })
        .collect();
    if !wrong.is_empty() {
        let _ = write!(html, "<h2>Not as expected</h2><ul>{}</ul>", tagged("<li>", wrong));
    }
    html
}

/// Prefixes each of `texts` with `tag`, whose end tag is optional in HTML.
fn tagged(tag: &str, texts: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let each = |text: &_| tag.to_owned() + &escaped(AsRef::<str>::as_ref(text));
    texts.into_iter().map(|text| each(&text)).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
