//! Tells when SQL has lost claims that it once had, as after a failover to a copy that lagged behind.
//!
//! Each time SQL has come back, every campaign's rows are summed up once and compared with what Redis has counted: each
//! event raises one claim's revision by one, so the sums tell exactly how much is missing. Nothing is repaired here: rows
//! may be missing because somebody has deleted them.

use std::sync::Arc;

use tokio::sync::watch;

use crate::app::App;
use crate::archive::ArchiveError;
use crate::campaigns::Known;
use crate::ledger::LedgerError;
use crate::metrics;

/// Why a campaign could not be compared.
#[derive(Debug, thiserror::Error)]
enum CompareError {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Archive(#[from] ArchiveError),
}

/// Compares all campaigns whenever `returns` changes.
pub(super) async fn look_for(app: &App, mut returns: watch::Receiver<u64>) {
    while returns.changed().await.is_ok() {
        for known in app.campaigns.all() {
            if let Err(error) = compare(app, &known).await {
                // When it is back, all are compared again.
                tracing::warn!(%error, "not looked for rows that SQL may have lost");
                break;
            }
        }
    }
}

async fn compare(app: &App, known: &Arc<Known>) -> Result<(), CompareError> {
    let id = known.campaign().id.clone();
    let survey = app.ledger.survey(std::slice::from_ref(known)).await?;
    let Some(look) = survey.looks.first().filter(|look| look.ready) else { return Ok(()) };
    // Asked after Redis, SQL can only have come further.
    let totals = app.archive.totals(&id).await?;
    let lost = look.revisions.saturating_sub(look.backlog + totals.revisions);
    if lost > 0 {
        metrics::lost_events(lost);
        tracing::error!(campaign = %id, lost, "SQL has lost claims that Redis holds: run `claimgate reconcile {id} --repair`");
    }
    Ok(())
}
