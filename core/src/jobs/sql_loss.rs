//! Detects that SQL has lost claims, for example after a failover to a standby that lagged behind.
//!
//! Each time SQL becomes available again, the revisions in the rows of every campaign are added up and
//! compared with the sum in Redis. Each event raises the revision of one claim by one, so the difference is
//! the number of missing events. Events in flight to SQL can hide a loss; such a campaign is compared again
//! once no events are in flight. A campaign adopted from a promoted Redis server is compared as well. If the
//! database is an older copy, the maintenance job repairs it. Any other missing rows may have been deleted by
//! an operator, so they are only reported.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::domain::campaign::Campaign;
use crate::engine::Engine;
use crate::engine::campaign::handle::CampaignHandle;
use crate::metrics;
use crate::store::redis::survey::CampaignSnapshot;
use crate::store::sql::SqlError;

/// Retry delay for campaigns that could not be compared.
const RETRY: Duration = Duration::from_secs(10);
/// Number of campaigns in one survey of Redis.
const SURVEY_SIZE: usize = 50;

/// A campaign to be compared.
struct PendingComparison {
    handle: Arc<CampaignHandle>,
    /// Whether events in flight to SQL may have hidden a loss. The campaign is compared again once no events
    /// are in flight.
    was_busy: bool,
}

impl From<Arc<CampaignHandle>> for PendingComparison {
    fn from(handle: Arc<CampaignHandle>) -> Self {
        Self { handle, was_busy: false }
    }
}

/// Compares all campaigns whenever `returns` changes, and compares each campaign that is adopted from a
/// promoted server.
pub(super) async fn detect(engine: &Engine, mut returns: watch::Receiver<u64>) {
    let adopted = &engine.registry.notices().adopted;
    let mut remaining = Vec::new();
    loop {
        tokio::select! {
            returned = returns.changed() => match returned {
                Ok(()) => remaining = engine.registry.all().into_iter().map(PendingComparison::from).collect(),
                Err(_) => return,
            },
            () = adopted.arrived() => {
                remaining.extend(
                    adopted
                        .take()
                        .iter()
                        .filter_map(|id| engine.registry.get(id))
                        .map(PendingComparison::from),
                );
            }
            () = sleep(RETRY), if !remaining.is_empty() => {}
        }
        remaining = compare_all(engine, remaining).await;
    }
}

/// Compares `campaigns`. Returns those that must be compared again.
async fn compare_all(engine: &Engine, mut campaigns: Vec<PendingComparison>) -> Vec<PendingComparison> {
    let mut remaining = Vec::new();
    while !campaigns.is_empty() {
        let some = campaigns.drain(..SURVEY_SIZE.min(campaigns.len())).collect();
        if let Err(error) = compare(engine, some, &mut remaining).await {
            tracing::warn!(%error, "cannot check yet whether SQL has lost rows");
            remaining.append(&mut campaigns);
        }
    }
    remaining
}

/// Compares campaigns. Adds those that must be compared again to `remaining`.
async fn compare(
    engine: &Engine,
    campaigns: Vec<PendingComparison>,
    remaining: &mut Vec<PendingComparison>,
) -> Result<(), SqlError> {
    let rules: Vec<_> = campaigns.iter().map(|pending| pending.handle.campaign()).collect();
    let targets: Vec<_> =
        campaigns.iter().zip(&rules).map(|(pending, campaign)| pending.handle.target(campaign)).collect();
    let snapshots = match engine.stores.redis.survey(&targets).await {
        Ok(snapshots) => snapshots,
        Err(error) => {
            tracing::debug!(%error, "comparing campaigns with SQL failed; will retry");
            remaining.extend(campaigns);
            return Ok(());
        }
    };
    let mut pairs = campaigns.into_iter().zip(snapshots);
    while let Some((mut pending, snapshot)) = pairs.next() {
        match compare_one(engine, &mut pending, snapshot).await {
            Ok(compare_again) => remaining.extend(compare_again.then_some(pending)),
            Err(error) => {
                remaining.push(pending);
                remaining.extend(pairs.map(|(pending, _)| pending));
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Compares one campaign with its snapshot from Redis. Returns true if it must be compared again.
async fn compare_one(
    engine: &Engine,
    pending: &mut PendingComparison,
    snapshot: Option<CampaignSnapshot>,
) -> Result<bool, SqlError> {
    let Some(snapshot) = snapshot else { return Ok(true) };
    if !snapshot.ready {
        return Ok(false);
    }
    if pending.was_busy && snapshot.backlog > 0 {
        return Ok(true);
    }
    if is_older_copy(engine, &pending.handle, &snapshot).await? {
        // The maintenance job restores the missing rows.
        pending.handle.suspect_sql_loss();
        return Ok(false);
    }
    report_lost(engine, pending, &snapshot).await?;
    pending.was_busy = snapshot.backlog > 0;
    Ok(pending.was_busy)
}

/// Returns true if the campaign's row shows that the database is an older copy: the row lacks a version of
/// the rules, or events that were once relayed. Rows deleted by hand have no effect on this check.
async fn is_older_copy(
    engine: &Engine,
    handle: &CampaignHandle,
    snapshot: &CampaignSnapshot,
) -> Result<bool, SqlError> {
    // SQL is read after Redis, so an intact database has at least what the snapshot shows.
    let row = engine.stores.sql.campaign(&handle.campaign().id).await?;
    let relayed = snapshot.events.saturating_sub(snapshot.backlog);
    let lacks = |row: &Campaign| row.version < snapshot.version || row.high_water_mark.events < relayed;
    Ok(handle.is_ahead_of(row.as_ref()) || row.as_ref().is_some_and(lacks))
}

/// Reports the minimum number of events that SQL has lost. Some of the backlog may already be in SQL, so the loss may be
/// larger; a second comparison reports it if it is. A loss that is not repaired is logged each time SQL is back, and
/// counted once.
async fn report_lost(
    engine: &Engine,
    pending: &PendingComparison,
    snapshot: &CampaignSnapshot,
) -> Result<(), SqlError> {
    let campaign = pending.handle.campaign();
    let id = &campaign.id;
    // SQL is read after Redis, so an intact database has at least what the snapshot shows.
    let totals = engine.stores.sql.totals(id).await?;
    let lost = snapshot.revisions.saturating_sub(snapshot.backlog + totals.revisions);
    let new = pending.handle.counted_losses.add_lost(campaign.epoch, lost);
    metrics::LOST.add(new);
    if lost > 0 && (new > 0 || !pending.was_busy) {
        tracing::error!(campaign = %id, lost, "SQL has lost claims that Redis holds: run `claimgate reconcile {id} --repair`");
    }
    Ok(())
}
