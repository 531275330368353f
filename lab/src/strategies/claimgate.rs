//! claimgate: the product's own engine and relay, in this process, as `claimgate serve` runs them.
//!
//! Exact. One script decides like the others here, but up to 256 claims per call. It records each grant: the
//! same key returns the same claim, and the outbox delivers it to SQL. Cost: one round trip per batch.
//! Compared with a plain script, the additional features (replay, window, days, epoch, outbox) cost Redis
//! time, which batching saves again. Each instance has a core with its own outbox relay into PostgreSQL,
//! which works mostly after the measured time. docs/guarantees.md lists the guarantees of each set-up.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use claimgate_core::clock;
use claimgate_core::domain::campaign_change::NewCampaign;
use claimgate_core::domain::claim_transition::ClaimTransition;
use claimgate_core::engine::campaign::handle::CampaignHandle;
use claimgate_core::store::sql::Change;
use claimgate_shared::{CampaignId, ClaimRequest, Denial, Outcome, Quantity};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::app::App;
use crate::error::{Result, StockError};
use crate::manager::{Attempt, Expectation, PerUser, ReduceResult, StockManager, Strategy};
use crate::product::Product;
use crate::stock_row::default_deadline;
use crate::store::Store;

pub const STRATEGY: Strategy = Strategy::of::<Claimgate>(
    29,
    "claimgate",
    Expectation::Exact,
    "the product's own batcher: batches, window, replay, outbox",
)
.per_user(PerUser::Once);

/// Timeout until SQL has all claims.
const RELAY_TIMEOUT: Duration = Duration::from_secs(30);
/// Poll interval of the outbox.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum units per user, which is also the largest quantity of an attempt.
const USER_MAX: u32 = 3;

pub struct Claimgate {
    app: Arc<App>,
    id: CampaignId,
    handle: Mutex<Option<Arc<CampaignHandle>>>,
}

impl Claimgate {
    async fn product(&self) -> Result<&Product> {
        self.app.product.get_or_try_init(|| Product::start(&self.app.addresses, self.app.number)).await
    }

    /// Returns the campaign, read from SQL if this instance has not read it yet.
    async fn handle(&self) -> Result<Arc<CampaignHandle>> {
        if let Some(handle) = &*self.handle.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(Arc::clone(handle));
        }
        let product = self.product().await?;
        let campaign = product.engine.stores.sql.campaign(&self.id).await.map_err(StockError::set_up)?;
        let handle = product.engine.registry.update(campaign.ok_or(StockError::Missing)?);
        // Another instance has loaded the campaign; this instance's relay should read its outbox too.
        handle.mark_ready();
        *self.handle.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&handle));
        Ok(handle)
    }

    async fn counters(&self) -> Result<(Option<u32>, u64, u64)> {
        let handle = self.handle().await?;
        let (counters, _) = self.product().await?.engine.stores.read(&handle, None).await?;
        Ok((handle.campaign().remaining(counters.taken), counters.taken, counters.backlog))
    }

    fn request(&self, attempt: &Attempt) -> Result<ClaimRequest> {
        Ok(ClaimRequest {
            campaign_id: self.id.clone(),
            user_id: attempt.user.parse().map_err(StockError::set_up)?,
            quantity: Quantity::try_from(attempt.quantity).map_err(StockError::set_up)?,
            // A user's second try is the same claim, because the key is the same.
            idempotency_key: format!("lab-{}", attempt.user).parse().map_err(StockError::set_up)?,
        })
    }
}

impl Store for Claimgate {
    fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        let id = key.parse().map_err(StockError::set_up)?;
        Ok(Self { app: Arc::clone(app), id, handle: Mutex::default() })
    }

    async fn set(&self, units: i64) -> Result<()> {
        let product = self.product().await?;
        let limits = json!({"total": units, "per_user": USER_MAX, "per_user_per_day": USER_MAX});
        let starts_at = clock::now().saturating_add_ms(-60_000);
        let body = json!({"id": self.id, "name": "lab", "starts_at": starts_at, "limits": limits});
        let campaign =
            NewCampaign::parse(body.to_string().as_bytes()).and_then(|new| new.created_at(clock::now()));
        let campaign = campaign.map_err(StockError::set_up)?;
        let change = Change { who: "lab", what: "create", at: clock::now() };
        product.engine.stores.sql.create(&campaign, change).await.map_err(StockError::set_up)?;
        let handle = product.engine.registry.update(campaign);
        product.engine.recovery.ensure_ready(&handle).await.map_err(StockError::set_up)?;
        Ok(())
    }

    async fn get(&self) -> Result<i64> {
        let (remaining, _, _) = self.counters().await?;
        remaining.map(i64::from).ok_or(StockError::Missing)
    }

    async fn return_units(&self, attempt: &Attempt) -> Result<()> {
        let (product, handle) = (self.product().await?, self.handle().await?);
        // The same user and key give the same claim id.
        let claim = self.request(attempt)?.claim_id();
        product.engine.stores.transition(&handle, &claim, ClaimTransition::Return, "lab".into()).await?;
        product.engine.claims.batcher.invalidate(&self.id);
        Ok(())
    }
}

impl StockManager for Claimgate {
    type Store = Self;

    async fn reduce(stock: &Self, attempt: &Attempt) -> Result<ReduceResult> {
        let handle = stock.handle().await?;
        // The lab does not mark first tries: some users try twice, on different instances.
        let (request, product) = (stock.request(attempt)?, stock.product().await?);
        let batcher = &product.engine.claims.batcher;
        let decision = batcher.claim(&handle, &request, claimgate_shared::Attempt::Unknown, None).await?;
        Ok(match decision.outcome {
            Outcome::Granted(_) | Outcome::Held(_) => ReduceResult::Taken,
            Outcome::Replayed(_) => ReduceResult::AlreadyTaken,
            Outcome::Denied(Denial::SoldOut { .. }) => ReduceResult::SoldOut,
            Outcome::Denied(_) => ReduceResult::Limited("user"),
        })
    }

    async fn finish(stock: &Self) -> Result<Option<i64>> {
        let deadline = Instant::now() + RELAY_TIMEOUT;
        loop {
            let (_, _, backlog) = stock.counters().await?;
            if backlog == 0 {
                break;
            }
            if Instant::now() > deadline {
                return Err(StockError::Inconsistent(format!("{backlog} events did not reach SQL")));
            }
            sleep(POLL_INTERVAL).await;
        }
        let text = "SELECT COALESCE(SUM(quantity), 0)::BIGINT FROM claims WHERE campaign_id = $1 AND status = 'granted'";
        let row = stock.app.sql.row(default_deadline(), text, &[stock.id.as_str().into()]).await?;
        Ok(row.map(|row| row[0]))
    }
}
