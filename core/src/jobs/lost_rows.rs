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

/// After how long the campaigns are compared that could not be, since Redis did not answer.
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

/// Compares `campaigns`; returns those that Redis did not answer for.
async fn compare_all(engine: &Engine, campaigns: Vec<Arc<CampaignHandle>>) -> Vec<Arc<CampaignHandle>> {
    let mut left = Vec::new();
    for some in campaigns.chunks(AT_ONCE) {
        match compare(engine, some).await {
            Ok(unanswered) => left.extend(unanswered),
            Err(error) => {
                // When it is back, all are compared again.
                tracing::warn!(%error, "could not look for rows that SQL may have lost");
                return Vec::new();
            }
        }
    }
    left
}

/// Compares campaigns; returns those that Redis did not answer for.
async fn compare(
    engine: &Engine,
    campaigns: &[Arc<CampaignHandle>],
) -> Result<Vec<Arc<CampaignHandle>>, SqlError> {
    let rules: Vec<_> = campaigns.iter().map(|handle| handle.campaign()).collect();
    let targets: Vec<_> =
        campaigns.iter().zip(&rules).map(|(handle, campaign)| handle.target(campaign)).collect();
    let looks = match engine.sync.redis.survey(&targets).await {
        Ok(looks) => looks,
        Err(error) => {
            tracing::debug!(%error, "campaigns are not compared with SQL yet");
            return Ok(campaigns.to_vec());
        }
    };
    let mut left = Vec::new();
    for (handle, look) in campaigns.iter().zip(looks) {
        match look {
            Some(look) if look.ready => compare_one(engine, &handle.campaign().id, &look).await?,
            Some(_) => {}
            None => left.push(Arc::clone(handle)),
        }
    }
    Ok(left)
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
