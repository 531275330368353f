//! What a run came to: as a table for people, as JSON for programs.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde_json::{Value, json};

use crate::figures::{Figure, Figures, Target};
use crate::machine::{CALIBRATION_SPREAD_MAX, OTHERS_SHARE_MAX};
use crate::session::Session;

/// What a table is wide at most, in characters.
const COLUMNS: u16 = 80;

/// The figures as a table of 80 columns.
pub fn table(figures: &Figures) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(COLUMNS);
    table.set_header(["figure", "median", "rounds", "target", "reached"]);
    for figure in figures.in_order() {
        table.add_row(row(figure));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if (1..=3).contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

fn row(figure: &Figure) -> [String; 5] {
    let unit = figure.definition.unit;
    let target = figure.definition.target.map_or_else(String::new, |target| target.text(unit));
    [figure.definition.name.to_owned(), unit.text(figure.value()), range(figure), target, verdict(figure)]
}

/// From the lowest round to the highest, the unit said once.
pub fn range(figure: &Figure) -> String {
    if figure.rounds.len() == 1 {
        return String::new();
    }
    let (low, high) = figure.range();
    let (low, high) = (figure.definition.unit.text(low), figure.definition.unit.text(high));
    match (low.split_once(' '), high.split_once(' ')) {
        (Some((low, unit)), Some((high, same))) if unit == same => format!("{low}–{high}"),
        _ => format!("{low}–{high}"),
    }
}

/// Whether the target is reached, and whether noise lets one tell: `~` marks a noisy figure whose rounds all agree.
pub fn verdict(figure: &Figure) -> String {
    let Some(reached) = figure.reached() else { return String::new() };
    if figure.is_open() {
        return "too noisy".to_owned();
    }
    let mark = if figure.noise().is_some() { " ~" } else { "" };
    format!("{}{mark}", if reached { "yes" } else { "NO" })
}

/// Why figures are noisy, a line each.
pub fn noise(figures: &Figures) -> Vec<String> {
    let noisy = figures.in_order().into_iter().filter(|figure| figure.definition.target.is_some());
    noisy.filter_map(|figure| Some(format!("{}: {}", figure.definition.name, figure.noise()?))).collect()
}

/// `report.json`.
pub fn json(session: &Session, machine: &Value) -> Value {
    let figures: Vec<_> = session.figures.in_order().into_iter().map(figure_json).collect();
    json!({ "figures": figures, "void": session.void, "machine": machine })
}

fn figure_json(figure: &Figure) -> Value {
    json!({
        "name": figure.definition.name,
        "value": figure.value(),
        "target": figure.definition.target.map(Target::number),
        "reached": figure.reached(),
        "rounds": figure.rounds,
    })
}

/// What the machine is and how quiet it was, for the report.
pub fn machine(mut facts: Value, session: &Session, load_before: &str, load_after: &str) -> Value {
    let seen = session.disturbance;
    facts["load_average"] = json!({ "before": load_before, "after": load_after });
    facts["noise"] = json!({
        "calibration_ms": { "quickest": seen.calibration_min_ms, "slowest": seen.calibration_max_ms },
        "calibration_spread_max": CALIBRATION_SPREAD_MAX,
        "others_share": seen.others,
        "stolen_share": seen.stolen,
        "others_share_max": OTHERS_SHARE_MAX,
        "rounds_spread_max": crate::figures::ROUNDS_SPREAD_MAX,
        "noisy": noise(&session.figures),
        "too_noisy_to_tell": session.figures.in_order().into_iter()
            .filter(|figure| figure.is_open())
            .map(|figure| figure.definition.name)
            .collect::<Vec<_>>(),
    });
    facts
}
