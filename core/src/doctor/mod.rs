//! Checks of a set-up: each finding is one line with a problem and its remedy. `claimgate doctor` prints the
//! findings, `serve` logs them.
//!
//! The checks change nothing in Redis, the database or core's files. One writes a temporary file, to measure the disk.

mod belonging;
mod clocks;
mod database;
mod disk;
mod redis;
mod report;
mod setup;
mod system;

pub use self::database::FEW_CONNECTIONS;
pub use self::report::{Finding, Report, Severity};
pub use self::setup::Setup;

/// Runs all checks. They take some milliseconds. A slow disk adds up to 5 s, and Redis or the database up to 10 s if it
/// does not answer.
pub async fn examine(setup: &Setup) -> Report {
    let mut report = Report::default();
    system::examine(setup, &mut report);
    disk::examine(setup, &mut report).await;
    redis::examine(&setup.redis, &mut report).await;
    database::examine(&setup.database, &mut report).await;
    belonging::examine(setup, &mut report).await;
    report
}
