//! Detects that SQL has lost claims that it once had, as after a failover to a copy that lagged behind.
//!
//! Each time SQL has come back, every campaign's rows are summed up once and compared with what Redis has counted: each
//! event raises one claim's revision by one, so the sums tell exactly how much is missing. So are those of a campaign that goes
//! on as it was on a promoted server. Nothing is repaired here: rows may be missing because an operator has deleted them.

use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::CampaignId;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::engine::Engine;
use crate::engine::handle::CampaignHandle;
use crate::metrics;
use crate::store::redis::survey::Look;
use crate::store::sql::SqlError;

/// After how long the campaigns are compared that could not be.
const RETRY: Duration = Duration::from_secs(10);
/// Campaigns that Redis is asked for at once.
const AT_ONCE: usize = 50;

/// Compares all campaigns whenever `returns` changes, and each that was adopted.
pub(super) async fn look_for(engine: &Engine, mut returns: watch::Receiver<u64>) {
    let adopted = &engine.registry.notices().adopted;
    let mut left = Vec::new();
    loop {
        tokio::select! {
            returned = returns.changed() => match returned {
                Ok(()) => left = engine.registry.all(),
                Err(_) => return,
            },
            () = adopted.arrived() => {
                left.extend(adopted.take().iter().filter_map(|id| engine.registry.get(id)));
            }
            () = sleep(RETRY), if !left.is_empty() => {}
        }
        left = compare_all(engine, left).await;
    }
}

/// Compares `campaigns`; returns those that could not be compared, since Redis or SQL did not answer.
async fn compare_all(engine: &Engine, mut campaigns: Vec<Arc<CampaignHandle>>) -> Vec<Arc<CampaignHandle>> {
    let mut left = Vec::new();
    while !campaigns.is_empty() {
        let some = campaigns.drain(..AT_ONCE.min(campaigns.len())).collect();
        let uncompared = compare(engine, some).await;
        left.extend(uncompared.left);
        if let Some(error) = uncompared.error {
            tracing::warn!(%error, "cannot look for rows that SQL may have lost yet");
            left.append(&mut campaigns);
        }
    }
    left
}

/// What is left of campaigns that were to be compared.
struct Uncompared {
    left: Vec<Arc<CampaignHandle>>,
    /// Why SQL was asked for no more of them.
    error: Option<SqlError>,
}

async fn compare(engine: &Engine, mut campaigns: Vec<Arc<CampaignHandle>>) -> Uncompared {
    let rules: Vec<_> = campaigns.iter().map(|handle| handle.campaign()).collect();
    let targets: Vec<_> =
        campaigns.iter().zip(&rules).map(|(handle, campaign)| handle.target(campaign)).collect();
    let looks = match engine.sync.redis.survey(&targets).await {
        Ok(looks) => looks,
        Err(error) => {
            tracing::debug!(%error, "campaigns are not compared with SQL yet");
            return Uncompared { left: campaigns, error: None };
        }
    };
    let mut left = Vec::new();
    for (at, look) in looks.into_iter().enumerate() {
        match look {
            Some(look) if look.ready => {
                if let Err(error) = compare_one(engine, &campaigns[at].campaign().id, &look).await {
                    left.extend(campaigns.drain(at..));
                    return Uncompared { left, error: Some(error) };
                }
            }
            Some(_) => {}
            None => left.push(Arc::clone(&campaigns[at])),
        }
    }
    Uncompared { left, error: None }
}

async fn compare_one(engine: &Engine, id: &CampaignId, look: &Look) -> Result<(), SqlError> {
    // Asked after Redis, SQL can only have come further.
    let totals = engine.sync.sql.totals(id).await?;
    let lost = look.revisions.saturating_sub(look.backlog + totals.revisions);
    if lost > 0 {
        metrics::lost_events(lost);
        tracing::error!(campaign = %id, lost, "SQL has lost claims that Redis holds: run `claimgate reconcile {id} --repair`");
    }
    Ok(())
}
