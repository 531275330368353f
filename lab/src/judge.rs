//! Compares a strategy's results with its known behaviour.

use crate::crash::AfterCrash;
use crate::manager::Expectation;
use crate::measure::{Cell, Row};
use crate::workload::{Kind, Round};

/// Returns the deviations from the expectation, one sentence each.
pub fn deviations(row: &Row) -> Vec<String> {
    let mut found = broken_promises(row);
    found.extend(mistakes_not_reproduced(row));
    found
}

/// Returns the strategy's promises that a round broke. A correct strategy breaks none in any run.
pub fn broken_promises(row: &Row) -> Vec<String> {
    let mut found = Vec::new();
    for cell in &row.cells {
        for round in &cell.rounds {
            found.extend(broken_promise(row, cell, round).map(|what| format!("{}: {what}", cell.kind)));
        }
    }
    if row.after_crash == AfterCrash::Never && !row.strategy.stuck_after_crash {
        found.push("was stuck after the crash".to_owned());
    }
    if let Err(why) = &row.findings {
        found.push(why.clone());
    }
    found.dedup();
    found
}

fn broken_promise(row: &Row, cell: &Cell, round: &Round) -> Option<String> {
    let expectation = row.strategy.expectation;
    let one_instance = matches!(cell.kind, Kind::Contest { one_instance: true, .. });
    let exact = expectation == Expectation::Exact
        || (expectation == Expectation::ExactWithOneInstance && one_instance);
    let agrees = exact || [Expectation::NeverOver, Expectation::ExceedsUserLimit].contains(&expectation);
    let never_over = agrees || expectation == Expectation::LosesUnits;
    if let (failed @ 1.., why) = &round.failed {
        return Some(format!("{failed} calls failed: {}", why.as_deref().unwrap_or("unknown")));
    }
    if round.users_over > 0 && expectation != Expectation::ExceedsUserLimit {
        return Some(format!("{} users got more than their limit", round.users_over));
    }
    if never_over && round.oversold() > 0 {
        return Some(format!("oversold by {}", round.oversold()));
    }
    if exact && round.undersold() > 0 {
        return Some(format!("undersold by {}", round.undersold()));
    }
    let is_contest = matches!(cell.kind, Kind::Contest { .. });
    if exact && is_contest && round.undecided > 0 && round.granted_units < round.stock {
        let (granted, undecided) = (round.granted_units, round.undecided);
        return Some(format!(
            "granted {granted} of {} in time, {undecided} callers still waiting",
            round.stock
        ));
    }
    if agrees && !round.store_agrees() {
        let (granted, left) = (round.granted_units, round.left);
        return Some(format!("callers were granted {granted} of {}, the store has {left} left", round.stock));
    }
    if round.in_sql.is_some_and(|units| u64::try_from(units).ok() != Some(round.granted_units)) {
        return Some(format!("callers were granted {}, SQL has {:?}", round.granted_units, round.in_sql));
    }
    None
}

/// Returns the strategy's known mistakes that no round reproduced. A race depends on scheduling: a small run
/// may miss it, and another may show it.
pub fn mistakes_not_reproduced(row: &Row) -> Vec<String> {
    let mut found = Vec::new();
    let expectation = row.strategy.expectation;
    let oversells = matches!(
        expectation,
        Expectation::Oversells | Expectation::ExactWithOneInstance | Expectation::WrongReleaseOversells
    );
    let shown = row.cells.iter().filter(|cell| cell.is_shared_contest());
    for cell in shown.filter(|_| oversells) {
        // A fault that appears only rarely would be a poor lesson: the median round must have it.
        if cell.median(|round| round.oversold() as f64) < 1.0 {
            found.push(format!("{}: did not oversell", cell.kind));
        }
    }
    if expectation == Expectation::ExceedsUserLimit
        && row.most(Cell::is_shared_contest, |round| round.users_over) == 0
    {
        found.push("no user got more than the limit".to_owned());
    }
    let lost = |round: &Round| u64::from(!round.store_agrees());
    if expectation == Expectation::LosesUnits && row.most(Cell::is_shared_contest, lost) == 0 {
        found.push("lost no units".to_owned());
    }
    let releases = [Expectation::WrongRelease, Expectation::WrongReleaseOversells].contains(&expectation);
    if releases && row.wrong_releases() == 0 {
        found.push("released no other caller's lock".to_owned());
    }
    if let (AfterCrash::Ms(after), true) = (row.after_crash, row.strategy.stuck_after_crash) {
        found.push(format!("continued {after:.0} ms after the crash"));
    }
    found
}
