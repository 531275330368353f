//! `claimgate drill`: a storm on a scratch campaign of a running installation, then the proof that nothing went wrong.
//!
//! Everything is seen from outside: claims go through the edge or core as any caller's do, and what SQL holds is read by
//! the admin API.

mod checks;
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
mod visit;
mod voice;

pub use error::DrillError;
pub use page::page;
pub use plan::Plan;
pub use report::Report;
pub use target::{Installation, Target};
pub use text::text;
pub use voice::Voice;

use claimgate_shared::Timestamp;

use crate::proof::Evidence;
use crate::scratch::Scratch;
use crate::storm::Storm;

/// Runs the drill that `plan` describes: creates the scratch campaign, storms it, proves what came of it, and ends the
/// campaign unless it is to be kept, also when the drill breaks off or `stop` is ready first.
///
/// # Errors
/// Why there is no report: the installation cannot be reached, does not let us, or decides nothing for too long. A storm that
/// went wrong is a report.
pub async fn run(
    installation: &Installation,
    plan: &Plan,
    now: Timestamp,
    voice: Voice<'_>,
    stop: impl Future<Output = ()>,
) -> Result<Report, DrillError> {
    // Not broken off: what was sent may be carried out after its end was asked for.
    let scratch = Scratch::create(installation, plan, now).await?;
    let done = tokio::select! {
        done = drill(installation, plan, &scratch, voice) => done,
        () = stop => Err(DrillError::Interrupted),
    };
    (voice.progress)("");
    if plan.keep {
        (voice.say)(&format!("the campaign {} is kept, and open for a day", scratch.id));
    } else if let Err(error) = scratch.end(installation).await {
        (voice.say)(&format!("the campaign {} could not be ended: {error}", scratch.id));
    }
    done
}

async fn drill(
    installation: &Installation,
    plan: &Plan,
    scratch: &Scratch,
    voice: Voice<'_>,
) -> Result<Report, DrillError> {
    scratch.until_open(installation, voice).await?;
    scratch.until_admitted(installation).await?;
    let storm = Storm::new(installation, plan, scratch, voice);
    let outcomes = storm.run().await?;
    let evidence = Evidence::gather(&storm, &outcomes).await?;
    let checks = checks::all(plan, &outcomes, &evidence);
    Ok(Report::new(installation, plan, scratch, checks, storm.into_tally()))
}
