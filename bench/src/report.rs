//! The results of a run, as a table for people and as JSON for programs.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde_json::{Value, json};

use crate::budget::{Overrides, Plan};
use crate::figures::{Figure, Figures, Target};
use crate::machine::{CALIBRATION_SPREAD_MAX, OTHERS_SHARE_MAX};
use crate::session::Session;

/// Maximum width of a table, in characters.
const COLUMNS: u16 = 80;

/// Describes the plan of the run and its reason.
pub fn plan(plan: Plan, overrides: Overrides, slowness: f64) -> String {
    let Plan { rounds, seconds } = plan;
    let plural = if rounds == 1 { "" } else { "s" };
    let more = if rounds < overrides.rounds_wanted() { ", more if time is left" } else { "" };
    format!(
        "this machine takes {slowness:.1} times as long as the reference machine: {rounds} round{plural} of {seconds} s{more}"
    )
}

/// Formats the result for people. A warning about missing figures is both above and below the table.
pub fn text(figures: &Figures, ended_early: Option<&str>, failed: &[String]) -> String {
    let mut paragraphs = Vec::new();
    let incomplete = ended_early.map(|why| format!("INCOMPLETE: {}", incomplete(figures, why)));
    let warning: Vec<_> =
        incomplete.into_iter().chain(failed.iter().map(|why| format!("FAILED: {why}"))).collect();
    paragraphs.extend(warning.clone());
    paragraphs.push(table(figures));
    let short = figures.count(Figure::lacks_rounds);
    if short > 0 {
        let wanted = figures.rounds_wanted;
        paragraphs.push(format!(
            "(n) Only n of {wanted} rounds, for lack of time. Number of such figures: {short}."
        ));
    }
    let noise = noise(figures);
    if !noise.is_empty() {
        paragraphs.push(format!("~ The machine was noisy:\n  {}", noise.join("\n  ")));
    }
    paragraphs.extend(unproven(figures).map(|text| format!("~ {text}")));
    let missing = missing(figures);
    if !missing.is_empty() {
        paragraphs.push(format!("Not measured:\n  {}", missing.join("\n  ")));
    }
    paragraphs.extend(warning);
    paragraphs.join("\n\n")
}

/// Describes what is missing in a run that ended early, for the reason `why`.
pub fn incomplete(figures: &Figures, why: &str) -> String {
    let (missing, short) = (figures.missing().len(), figures.count(Figure::lacks_rounds));
    format!(
        "this run ended early because {why}. Figures without a round: {missing}, with fewer rounds than planned: {short}."
    )
}

/// Describes the weakness of figures with one round; `None` without such figures.
pub fn unproven(figures: &Figures) -> Option<String> {
    let count = figures.count(Figure::is_unproven);
    (count > 0).then(|| {
        format!(
            "Figures of one round: {count}. One round has no spread, so these figures are not proven quiet."
        )
    })
}

/// Returns the names of the figures without a round.
pub fn missing(figures: &Figures) -> Vec<&'static str> {
    figures.missing().into_iter().map(|definition| definition.name).collect()
}

/// Formats the figures as a table of 80 columns.
fn table(figures: &Figures) -> String {
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
    [figure.definition.name.to_owned(), unit.text(figure.value()), rounds(figure), target, verdict(figure)]
}

/// Formats the lowest and highest round, and in brackets the number of rounds if it is too low.
fn rounds(figure: &Figure) -> String {
    let count = figure.rounds.len();
    let range = (count > 1).then(|| range(figure));
    let short = figure.lacks_rounds().then(|| format!("({count})"));
    [range, short].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Formats the lowest and highest round, with a common unit only once.
fn range(figure: &Figure) -> String {
    let (low, high) = figure.range();
    let (low, high) = (figure.definition.unit.text(low), figure.definition.unit.text(high));
    match (low.split_once(' '), high.split_once(' ')) {
        (Some((low, unit)), Some((high, same))) if unit == same => format!("{low}–{high}"),
        _ => format!("{low}–{high}"),
    }
}

/// Returns whether the target is reached. `~` marks a noisy or single-round figure whose rounds agree on the
/// answer.
pub fn verdict(figure: &Figure) -> String {
    let Some(reached) = figure.reached() else { return String::new() };
    if figure.is_undecided() {
        return "too noisy".to_owned();
    }
    let mark = if figure.noise().is_some() || figure.is_unproven() { " ~" } else { "" };
    format!("{}{mark}", if reached { "yes" } else { "NO" })
}

/// Lists why figures are noisy, one line each.
pub fn noise(figures: &Figures) -> Vec<String> {
    let noisy = figures.in_order().into_iter().filter(|figure| figure.definition.target.is_some());
    noisy.filter_map(|figure| Some(format!("{}: {}", figure.definition.name, figure.noise()?))).collect()
}

/// Builds `report.json`.
pub fn json(session: &Session, machine: &Value) -> Value {
    let figures: Vec<_> = session.figures.in_order().into_iter().map(figure_json).collect();
    json!({
        "figures": figures,
        "ended_early": session.ended_early,
        "failed": session.failed,
        "missing": missing(&session.figures),
        "void": session.void,
        "machine": machine,
    })
}

fn figure_json(figure: &Figure) -> Value {
    json!({
        "name": figure.definition.name,
        "value": figure.value(),
        "target": figure.definition.target.map(Target::number),
        "reached": figure.reached(),
        "rounds": figure.rounds,
        "rounds_wanted": figure.rounds_wanted,
    })
}

/// Returns the machine's properties and noise, for the report.
pub fn machine(mut facts: Value, session: &Session, load_before: &str, load_after: &str) -> Value {
    let total = session.disturbance;
    facts["measurement_s"] = session.options.seconds.into();
    facts["load_average"] = json!({ "before": load_before, "after": load_after });
    facts["noise"] = json!({
        "calibration_ms": { "quickest": total.calibration_min_ms, "slowest": total.calibration_max_ms },
        "calibration_spread_max": CALIBRATION_SPREAD_MAX,
        "others_share": total.others,
        "stolen_share": total.stolen,
        "others_share_max": OTHERS_SHARE_MAX,
        "rounds_spread_max": crate::figures::ROUNDS_SPREAD_MAX,
        "noisy": noise(&session.figures),
        "too_noisy_to_tell": session.figures.in_order().into_iter()
            .filter(|figure| figure.is_undecided())
            .map(|figure| figure.definition.name)
            .collect::<Vec<_>>(),
    });
    facts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Definition, Unit};
    use crate::machine::Disturbance;

    const RATIO: &Definition = &Definition::at_least("claims ÷ (e)", Unit::Ratio, 1.0);
    const RATE: &Definition = &Definition::info("claims", Unit::PerSecond);
    const BYTES: &Definition = &Definition::at_most("bytes per claim", Unit::Bytes, 150.0).once();

    const QUIET: Disturbance =
        Disturbance { calibration_min_ms: 10.0, calibration_max_ms: 10.0, others: 0.0, stolen: 0.0 };

    fn figures(rounds: &[(&'static Definition, &[f64])]) -> Figures {
        let mut figures = Figures::new(vec![RATIO, RATE, BYTES], 3);
        for (definition, values) in rounds {
            for value in *values {
                figures.add(definition, *value, QUIET);
            }
        }
        figures
    }

    /// Returns a figure's row, with single spaces between words.
    fn row_of(text: &str, definition: &Definition) -> String {
        let row = text.lines().find(|line| line.starts_with(definition.name)).unwrap();
        row.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn an_incomplete_run_lists_measured_and_missing_figures() {
        let figures = figures(&[(RATIO, &[1.1, 1.2])]);
        let text = text(&figures, Some("its time limit of 705 s was reached"), &[]);
        let warning = "INCOMPLETE: this run ended early because its time limit of 705 s was reached. \
                       Figures without a round: 2, with fewer rounds than planned: 1.";
        assert!(text.starts_with(warning) && text.ends_with(warning), "{text}");
        assert_eq!(row_of(&text, RATIO), "claims ÷ (e) 1.15 1.10–1.20 (2) ≥ 1.00 yes");
        assert!(text.contains("Not measured:\n  claims\n  bytes per claim\n"), "{text}");
    }

    #[test]
    fn a_group_that_failed_does_not_cost_the_others_their_figures() {
        let mut figures = figures(&[(RATIO, &[1.1, 1.1, 1.1]), (RATE, &[9.0])]);
        figures.remove(&[RATE]);
        let text = text(&figures, None, &["group http: more than 10000 responses were 503".to_owned()]);
        assert!(text.starts_with("FAILED: group http: more than 10000 responses were 503\n"), "{text}");
        assert_eq!(row_of(&text, RATIO), "claims ÷ (e) 1.10 1.10–1.10 ≥ 1.00 yes");
        assert!(text.contains("Not measured:\n  claims\n  bytes per claim\n"), "{text}");
    }

    #[test]
    fn a_run_that_measured_nothing_names_every_figure() {
        let text = text(&figures(&[]), Some("it was interrupted"), &[]);
        assert!(text.contains("Not measured:\n  claims ÷ (e)\n  claims\n  bytes per claim\n"), "{text}");
    }

    #[test]
    fn a_complete_run_has_no_warning() {
        let text = text(&figures(&[(RATIO, &[1.1; 3]), (RATE, &[9.0; 3]), (BYTES, &[136.0])]), None, &[]);
        assert_eq!(row_of(&text, RATIO), "claims ÷ (e) 1.10 1.10–1.10 ≥ 1.00 yes");
        assert_eq!(row_of(&text, BYTES), "bytes per claim 136.0 B ≤ 150 B yes", "it is measured only once");
        assert!(!["INCOMPLETE", "Not measured", "(n)", "~"].iter().any(|mark| text.contains(mark)), "{text}");
    }

    #[test]
    fn a_single_round_cannot_prove_low_noise() {
        let text = text(&figures(&[(RATIO, &[1.1]), (RATE, &[9.0]), (BYTES, &[136.0])]), None, &[]);
        assert_eq!(row_of(&text, RATIO), "claims ÷ (e) 1.10 (1) ≥ 1.00 yes ~");
        assert!(
            text.contains("\n\n(n) Only n of 3 rounds, for lack of time. Number of such figures: 2.\n\n"),
            "{text}"
        );
        assert!(text.contains("\n\n~ Figures of one round: 2. One round has no spread"), "{text}");
    }

    #[test]
    fn the_plan_shows_the_machines_slowness_and_the_rounds() {
        let overrides = Overrides::default();
        let text = |rounds, seconds, slowness| plan(Plan { rounds, seconds }, overrides, slowness);
        assert_eq!(
            text(2, 2.0, 2.08),
            "this machine takes 2.1 times as long as the reference machine: 2 rounds of 2 s, more if time is left"
        );
        assert!(text(3, 3.0, 1.0).ends_with("1.0 times as long as the reference machine: 3 rounds of 3 s"));
        assert!(text(1, 1.0, 4.0).contains(": 1 round of 1 s, more"));
    }
}
