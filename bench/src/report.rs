//! What a run came to: as a table for people, as JSON for programs.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width};
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
    for column in [1, 2, 3] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    if let Some(name) = table.column_mut(0) {
        name.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(38)));
    }
    table.trim_fmt()
}

fn row(figure: &Figure) -> [String; 5] {
    let unit = figure.definition.unit;
    let (low, high) = figure.range();
    let rounds = if figure.rounds.len() == 1 {
        String::new()
    } else {
        format!("{} – {}", unit.text(low), unit.text(high))
    };
    let target = match figure.definition.target {
        None => String::new(),
        Some(Target::AtLeast(least)) => format!("≥ {}", unit.text(least)),
        Some(Target::AtMost(most)) => format!("≤ {}", unit.text(most)),
    };
    [figure.definition.name.to_owned(), unit.text(figure.value()), rounds, target, verdict(figure)]
}

/// Whether the target is reached, and whether noise lets one tell.
pub fn verdict(figure: &Figure) -> String {
    match (figure.reached(), figure.noise()) {
        (None, None) => String::new(),
        (None, Some(_)) => "noisy".to_owned(),
        (Some(_), Some(_)) if figure.is_open() => "too noisy to tell".to_owned(),
        (Some(reached), noise) => {
            format!("{}{}", if reached { "yes" } else { "NO" }, if noise.is_some() { ", noisy" } else { "" })
        }
    }
}

/// Why figures are noisy, a line each.
pub fn noise(figures: &Figures) -> Vec<String> {
    let noisy = figures.in_order().into_iter().filter(|figure| figure.definition.target.is_some());
    noisy.filter_map(|figure| Some(format!("{}: {}", figure.definition.name, figure.noise()?))).collect()
}

/// `report.json`.
pub fn json(session: &Session, machine: &Value) -> Value {
    let figures: Vec<_> = session.figures.in_order().into_iter().map(figure_json).collect();
    json!({ "figures": figures, "machine": machine })
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
