//! The results of a run, as tables for people and as JSON for programs.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde_json::{Value, json};

use crate::crash::{AfterCrash, WAIT_MAX};
use crate::judge;
use crate::measure::{Cell, Row};
use crate::workload::{Kind, Round};

/// Width of a table without a terminal, and the maximum, in characters.
const WIDTH: u16 = 80;
const WIDTH_MAX: u16 = 120;

/// Explanation of the tables' columns.
pub const LEGEND: &str = "over, under: units, in the worst round of all contests. /s at: granted per second by this number \
     of tasks on the hot stock. crash: time until the next caller continues after a holder's crash. It \
     is the rest of the lease: 0.1 s in 16 and 17, 1 s in 9 and 18 to 21. Waits and retries: the \
     largest contest for one unit each; callers without a response at its end have waited until then. \
     trips (round trips), Redis µs (CPU time): per claim, on the hot stock at 64 tasks. connections: \
     Redis + SQL. Figures are medians of the rounds.";

/// All columns, in the order of [`columns`].
pub const COLUMNS: [&str; 17] = [
    "#",
    "strategy",
    "expected",
    "over",
    "under",
    "granted/s at 64 tasks",
    "granted/s at most tasks",
    "p50 ms",
    "p99 ms",
    "longest ms",
    "trips",
    "connections Redis + SQL",
    "Redis µs",
    "retries",
    "after a crash",
    "wrong releases",
    "as expected",
];

/// Formats all columns of a row.
pub fn columns(row: &Row) -> Vec<String> {
    let [number, title, expected, over, under, rate, most, after, verdict] = verdict(row);
    let [_, _, p50, p99, longest, trips, connections, cpu, retries] = cost(row);
    let wrong = row.wrong_releases().to_string();
    let left = [number, title, expected, over, under, rate, most, p50, p99, longest];
    left.into_iter().chain([trips, connections, cpu, retries, after, wrong, verdict]).collect()
}

/// Formats the table of overselling, throughput and crashes.
pub fn verdicts(rows: &[Row]) -> String {
    let tasks = |cell: Option<usize>| cell.map_or_else(String::new, |tasks| format!("/s at {tasks}"));
    let first = rows.first();
    let rate = tasks(first.and_then(Row::hot).and_then(Cell::tasks));
    let most = tasks(first.and_then(|row| row.curve().last().map(|(tasks, _)| *tasks)));
    let header = ["#", "strategy", "expected", "over", "under", &rate, &most, "crash", "ok?"];
    table(&header, &[0, 3, 4, 5, 6, 7], rows.iter().map(verdict))
}

/// Formats the table of costs.
pub fn costs(rows: &[Row]) -> String {
    let header =
        ["#", "strategy", "p50 ms", "p99 ms", "longest", "trips", "connections", "Redis µs", "retries"];
    table(&header, &[0, 2, 3, 4, 5, 6, 7, 8], rows.iter().map(cost))
}

/// Lists the additional findings, one line each.
pub fn findings(rows: &[Row]) -> Vec<String> {
    let of_row = |row: &Row| {
        let one_instance = one_instance(row);
        let found = row.findings.as_ref().map(Vec::as_slice).unwrap_or_default();
        let all = found.iter().cloned().chain(one_instance).chain(wrong(row));
        all.map(|line| format!("{} {}: {line}", row.strategy.row, row.strategy.title)).collect::<Vec<_>>()
    };
    rows.iter().flat_map(of_row).collect()
}

fn one_instance(row: &Row) -> Option<String> {
    let is_single_instance = |cell: &Cell| matches!(cell.kind, Kind::Contest { one_instance: true, .. });
    row.cells.iter().any(is_single_instance).then(|| {
        let (over, under) =
            (row.most(is_single_instance, Round::oversold), row.most(is_single_instance, Round::undersold));
        format!("with one instance oversold by {over}, undersold by {under}")
    })
}

fn wrong(row: &Row) -> Option<String> {
    let wrong = row.wrong_releases();
    (wrong > 0).then(|| format!("released another caller's lock {wrong} times"))
}

fn table<const N: usize>(
    header: &[&str; N],
    right: &[usize],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    let width = table.width().unwrap_or(WIDTH);
    table.set_width(width.min(WIDTH_MAX));
    table.set_header(*header);
    for row in rows {
        table.add_row(row);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if right.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

fn verdict(row: &Row) -> [String; 9] {
    let strategy = row.strategy;
    [
        strategy.row.to_string(),
        strategy.title.to_owned(),
        strategy.expected(),
        row.oversold().to_string(),
        row.undersold().to_string(),
        row.hot().map_or_else(String::new, |cell| thousands(cell.granted_per_s())),
        row.curve().last().map_or_else(String::new, |(_, rate)| thousands(*rate)),
        after_crash(row.after_crash),
        if judge::deviations(row).is_empty() { "yes" } else { "NO" }.to_owned(),
    ]
}

fn cost(row: &Row) -> [String; 9] {
    let wait =
        |share| row.rush().map_or_else(String::new, |cell| short(cell.median(|round| round.wait_ms(share))));
    let (redis, sql) = row.connections;
    let hot =
        |figure: fn(&Round) -> f64| row.hot().map_or_else(String::new, |cell| short(cell.per_answer(figure)));
    [
        row.strategy.row.to_string(),
        row.strategy.title.to_owned(),
        wait(0.5),
        wait(0.99),
        wait(1.0),
        hot(|round| round.trips as f64),
        format!("{redis} + {sql}"),
        hot(|round| round.redis_cpu_us),
        row.rush().map_or_else(String::new, |cell| short(cell.per_answer(|round| round.retries as f64))),
    ]
}

/// Formats the time for people.
pub fn after_crash(after: AfterCrash) -> String {
    match after {
        AfterCrash::Ms(ms) if ms < 1.0 => "< 1 ms".to_owned(),
        AfterCrash::Ms(ms) => format!("{ms:.0} ms"),
        AfterCrash::Never => format!("never ({} s)", WAIT_MAX.as_secs()),
    }
}

/// Formats a whole number with thousands separators.
pub fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a figure with about three digits.
pub fn short(value: f64) -> String {
    match value {
        value if !value.is_finite() => "–".to_owned(),
        0.0 => "0".to_owned(),
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// Builds `report.json`.
pub fn json(rows: &[Row], machine: &Value) -> Value {
    json!({ "rows": rows.iter().map(row_json).collect::<Vec<_>>(), "machine": machine })
}

fn row_json(row: &Row) -> Value {
    let deviations = judge::deviations(row);
    let hot = |figure: fn(&Round) -> f64| row.hot().map(|cell| cell.per_answer(figure));
    let wait = |share| row.rush().map(|cell| cell.median(|round| round.wait_ms(share)));
    let (redis, sql) = row.connections;
    json!({
        "row": row.strategy.row,
        "name": row.strategy.name,
        "title": row.strategy.title,
        "how": row.strategy.how,
        "instances": row.strategy.instances,
        "expected": row.strategy.expected(),
        "as_expected": deviations.is_empty(),
        "why_not": deviations,
        "oversold_by": row.oversold(),
        "undersold_by": row.undersold(),
        "granted_per_s": row.hot().map(Cell::granted_per_s),
        "granted_per_s_by_tasks": row.curve(),
        "p50_ms": wait(0.5),
        "p99_ms": wait(0.99),
        "longest_ms": wait(1.0),
        "trips_per_claim": hot(|round| round.trips as f64),
        "connections_held": redis + sql,
        "connections_held_redis": redis,
        "connections_held_postgres": sql,
        "redis_cpu_us_per_claim": hot(|round| round.redis_cpu_us),
        "retries_per_claim": row.rush().map(|cell| cell.per_answer(|round| round.retries as f64)),
        "after_crash_ms": match row.after_crash { AfterCrash::Ms(ms) => Some(ms), AfterCrash::Never => None },
        "after_crash": after_crash(row.after_crash),
        "wrong_releases": row.wrong_releases(),
        "findings": row.findings.as_ref().unwrap_or(&Vec::new()),
        "cells": row.cells.iter().map(cell_json).collect::<Vec<_>>(),
    })
}

fn cell_json(cell: &Cell) -> Value {
    let kind = match cell.kind {
        Kind::Contest { stock, contenders, quantities, one_instance } => json!({
            "workload": "contest", "stock": stock, "contenders": contenders,
            "quantities": format!("{quantities:?}"), "one_instance": one_instance,
        }),
        Kind::Hot { tasks } => json!({ "workload": "hot", "tasks": tasks }),
    };
    json!({
        "what": kind,
        "granted_per_s": cell.granted_per_s(),
        "rounds": cell.rounds.iter().map(round_json).collect::<Vec<_>>(),
    })
}

fn round_json(round: &Round) -> Value {
    json!({
        "granted_units": round.granted_units,
        "granted": round.granted,
        "refused": round.denied,
        "gave_up": round.gave_up,
        "refused_for_the_user": round.limited,
        "undecided_when_cut": round.undecided,
        "oversold_by": round.oversold(),
        "undersold_by": round.undersold(),
        "left_in_store": round.left,
        "units_in_sql": round.in_sql,
        "seconds": round.seconds,
        "p50_ms": round.wait_ms(0.5),
        "p99_ms": round.wait_ms(0.99),
        "longest_ms": round.wait_ms(1.0),
        "trips": round.trips,
        "retries": round.retries,
        "wrong_releases": round.wrong_releases,
        "redis_cpu_us": round.redis_cpu_us,
    })
}
