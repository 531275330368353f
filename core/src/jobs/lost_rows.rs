//! Detects that SQL has lost claims that it once had, as after a failover to a copy that lagged behind.
//!
//! Each time SQL has come back, every campaign's rows are summed up once and compared with what Redis has counted: each
//! event raises one claim's revision by one, so the sums tell how much is missing. Where that could be hidden by events on
//! their way to SQL, the campaign is compared again when none is. So are those of a campaign that goes on as it was on a
//! promoted server. An older copy of the database is repaired by the maintenance; rows that are missing beside that an operator
//! may have deleted: these are only reported.

use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::CampaignId;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::domain::campaign::Campaign;
use crate::engine::Engine;
use crate::engine::handle::CampaignHandle;
use crate::metrics;
use crate::store::redis::survey::Look;
use crate::store::sql::SqlError;

/// After how long the campaigns are compared that could not be.
const RETRY: Duration = Duration::from_secs(10);
/// Campaigns that Redis is asked for at once.
const AT_ONCE: usize = 50;

/// A campaign to be compared.
struct Due {
    handle: Arc<CampaignHandle>,
    /// Whether events on their way to SQL may have hidden a loss: it is compared again once none is.
    was_busy: bool,
}

impl From<Arc<CampaignHandle>> for Due {
    fn from(handle: Arc<CampaignHandle>) -> Self {
        Self { handle, was_busy: false }
    }
}

/// Compares all campaigns whenever `returns` changes, and each that was adopted.
pub(super) async fn look_for(engine: &Engine, mut returns: watch::Receiver<u64>) {
    let adopted = &engine.registry.notices().adopted;
    let mut left = Vec::new();
    loop {
        tokio::select! {
            returned = returns.changed() => match returned {
                Ok(()) => left = engine.registry.all().into_iter().map(Due::from).collect(),
                Err(_) => return,
            },
            () = adopted.arrived() => {
                left.extend(adopted.take().iter().filter_map(|id| engine.registry.get(id)).map(Due::from));
            }
            () = sleep(RETRY), if !left.is_empty() => {}
        }
        left = compare_all(engine, left).await;
    }
}

/// Compares `campaigns`; returns those that are to be compared again.
async fn compare_all(engine: &Engine, mut campaigns: Vec<Due>) -> Vec<Due> {
    let mut left = Vec::new();
    while !campaigns.is_empty() {
        let some = campaigns.drain(..AT_ONCE.min(campaigns.len())).collect();
        if let Err(error) = compare(engine, some, &mut left).await {
            tracing::warn!(%error, "cannot look for rows that SQL may have lost yet");
            left.append(&mut campaigns);
        }
    }
    left
}

/// Compares campaigns; adds those to `left` that are to be compared again.
async fn compare(engine: &Engine, campaigns: Vec<Due>, left: &mut Vec<Due>) -> Result<(), SqlError> {
    let rules: Vec<_> = campaigns.iter().map(|due| due.handle.campaign()).collect();
    let targets: Vec<_> =
        campaigns.iter().zip(&rules).map(|(due, campaign)| due.handle.target(campaign)).collect();
    let looks = match engine.sync.redis.survey(&targets).await {
        Ok(looks) => looks,
        Err(error) => {
            tracing::debug!(%error, "campaigns are not compared with SQL yet");
            left.extend(campaigns);
            return Ok(());
        }
    };
    let mut pairs = campaigns.into_iter().zip(looks);
    while let Some((mut due, look)) = pairs.next() {
        match compare_one(engine, &mut due, look).await {
            Ok(again) => left.extend(again.then_some(due)),
            Err(error) => {
                left.push(due);
                left.extend(pairs.map(|(due, _)| due));
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Compares one campaign by what Redis says of it; returns whether it is to be compared again.
async fn compare_one(engine: &Engine, due: &mut Due, look: Option<Look>) -> Result<bool, SqlError> {
    let Some(look) = look else { return Ok(true) };
    if !look.ready {
        return Ok(false);
    }
    if due.was_busy && look.backlog > 0 {
        return Ok(true);
    }
    if is_older_copy(engine, &due.handle, &look).await? {
        // The maintenance writes again what it lacks.
        due.handle.suspect_sql();
        return Ok(false);
    }
    let lost = report_lost(engine, &due.handle.campaign().id, &look).await?;
    due.was_busy = lost == 0 && look.backlog > 0;
    Ok(due.was_busy)
}

/// Whether the database is an older copy, by the campaign's row: it lacks a version of the rules, or events that it once had.
/// Rows that were deleted by hand do not show there.
async fn is_older_copy(engine: &Engine, handle: &CampaignHandle, look: &Look) -> Result<bool, SqlError> {
    // Asked after Redis, SQL can only have come further.
    let row = engine.sync.sql.campaign(&handle.campaign().id).await?;
    let relayed = look.events.saturating_sub(look.backlog);
    let lacks = |row: &Campaign| row.version < look.version || row.high_water_mark.events < relayed;
    Ok(handle.is_ahead_of(row.as_ref()) || row.as_ref().is_some_and(lacks))
}

/// Reports how many events of a campaign SQL has lost at least, and returns that: of those that wait for it some may be there
/// already.
async fn report_lost(engine: &Engine, id: &CampaignId, look: &Look) -> Result<u64, SqlError> {
    // Asked after Redis, SQL can only have come further.
    let totals = engine.sync.sql.totals(id).await?;
    let lost = look.revisions.saturating_sub(look.backlog + totals.revisions);
    if lost > 0 {
        metrics::lost_events(lost);
        tracing::error!(campaign = %id, lost, "SQL has lost claims that Redis holds: run `claimgate reconcile {id} --repair`");
    }
    Ok(lost)
}
