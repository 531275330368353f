//! Checks of a set-up: each finding is one line with a problem and its remedy. `claimgate doctor` prints the
//! findings, `serve` logs them.
//!
//! The checks are read-only: they never write to a file, to Redis or to the database.

mod belonging;
mod clocks;
mod database;
mod redis;
mod report;
mod setup;
mod system;

pub use self::database::FEW_CONNECTIONS;
pub use self::report::{Finding, Report, Severity};
pub use self::setup::Setup;

/// Runs all checks. They take a few milliseconds, or 10 s if neither Redis nor the database answers.
pub async fn examine(setup: &Setup) -> Report {
    let mut report = Report::default();
    system::examine(setup, &mut report);
    redis::examine(&setup.redis, &mut report).await;
    database::examine(&setup.database, &mut report).await;
    belonging::examine(setup, &mut report).await;
    report
}
