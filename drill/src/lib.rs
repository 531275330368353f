//! `claimgate drill`: a storm on a scratch campaign of a running installation, then a check of every result.
//!
//! The drill observes the installation from outside: claims go through the edge or core like any caller's
//! claims, and the rows in SQL are read through the admin API.

pub mod charts;
mod checks;
mod console;
mod error;
mod latency;
mod page;
mod plan;
mod proof;
mod report;
mod scratch;
mod storm;
mod tally;
mod target;
mod text;
mod user;
mod user_ids;

pub use console::Console;
pub use error::DrillError;
pub use page::page;
pub use plan::Plan;
pub use report::Report;
pub use scratch::is_scratch;
pub use target::{Installation, Target};
pub use text::text;
pub use user_ids::UserIds;

use claimgate_shared::Timestamp;

use crate::proof::Evidence;
use crate::scratch::Scratch;
use crate::storm::Storm;

/// Runs the drill that `plan` describes: creates the scratch campaign, runs the storm and checks the result.
/// Then ends the campaign unless `plan` keeps it, even if the drill fails or `stop` completes first.
///
/// # Errors
/// Fails if there is no report: the installation cannot be reached, denies access, or decides nothing for too
/// long. Failed checks are part of the report, not an error.
pub async fn run(
    installation: &Installation,
    plan: &Plan,
    now: Timestamp,
    console: Console<'_>,
    stop: impl Future<Output = ()>,
) -> Result<Report, DrillError> {
    // `stop` does not interrupt this: a creation in flight could take effect after the campaign's end was requested.
    let scratch = Scratch::create(installation, plan, now).await?;
    let done = tokio::select! {
        done = drill(installation, plan, &scratch, console) => done,
        () = stop => Err(DrillError::Interrupted),
    };
    (console.progress)("");
    if plan.keep {
        (console.say)(&format!("the campaign {} is kept, and stays open for a day", scratch.id));
    } else if let Err(error) = scratch.end(installation).await {
        (console.say)(&format!("the campaign {} could not be ended: {error}", scratch.id));
    }
    done
}

async fn drill(
    installation: &Installation,
    plan: &Plan,
    scratch: &Scratch,
    console: Console<'_>,
) -> Result<Report, DrillError> {
    scratch.wait_until_open(installation, console).await?;
    scratch.check_tokens(installation).await?;
    let storm = Storm::new(installation, plan, scratch, console);
    let outcomes = storm.run().await?;
    installation.check_user_ids().await?;
    let evidence = Evidence::gather(&storm, &outcomes).await?;
    let checks = checks::all(plan, &outcomes, &evidence);
    Ok(Report::new(installation, plan, scratch, checks, storm.into_tally()))
}
