//! What is wrong or risky with a set-up: each finding one line, with what to do. `claimgate doctor` prints them, `serve` logs them.
//!
//! It only looks: nothing is written, to no file, no Redis and no database.

mod belonging;
mod clocks;
mod database;
mod redis;
mod report;
mod setup;
mod system;

pub use self::report::{Finding, Report, Severity};
pub use self::setup::Setup;

/// Looks at everything; takes a few milliseconds, and 10 s when neither Redis nor the database answers.
pub async fn examine(setup: &Setup) -> Report {
    let mut report = Report::default();
    system::examine(setup, &mut report);
    redis::examine(&setup.redis, &mut report).await;
    database::examine(&setup.database, &mut report).await;
    report.findings.extend(belonging::examine(setup).await);
    report.findings.sort_by_key(|finding| finding.severity);
    report
}
