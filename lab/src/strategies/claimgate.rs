//! claimgate: the product's own engine and relay, in this process, as `claimgate serve` runs them.
//!
//! Exact. One script decides like the others here, for up to 256 claims a call, and remembers each grant: the same key
//! again is the same claim, and the outbox brings it to SQL. Costs one trip for as many as wait; what it does more than
//! a plain script (replay, window, days, epoch, outbox) costs Redis time, which the batches save again. Each instance
//! has a core, with an outbox relay of its own into PostgreSQL, most of whose work falls after the clock has stopped.
//! What breaks it is in docs/guarantees.md, by set-up.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use claimgate_core::clock;
use claimgate_core::domain::campaign_change::NewCampaign;
use claimgate_core::domain::claim_transition::ClaimTransition;
use claimgate_core::engine::Engine;
use claimgate_core::engine::handle::CampaignHandle;
use claimgate_core::jobs::outbox_relay::OutboxRelay;
use claimgate_core::store::sql::{Change, SqlStore};
use claimgate_shared::{CampaignId, ClaimRequest, Denial, Outcome, Quantity};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::app::{App, OUTBOX_MAX};
use crate::manager::{Attempt, Expectation, PerUser, Reduced, Result, StockError, StockManager, Strategy};
use crate::stock_row::some_time;

/// The row.
pub const STRATEGY: Strategy = Strategy::of::<Claimgate>(
    29,
    "claimgate",
    "claimgate",
    Expectation::Exact,
    "the product's own batcher: batches, window, replay, outbox",
)
.per_user(PerUser::Once);

/// The longest the outbox may take until SQL has all.
const RELAYED_WITHIN: Duration = Duration::from_secs(30);
/// How often to look whether it has.
const LOOK: Duration = Duration::from_millis(5);
/// The most units a user may have: the most that one attempt asks for.
const USER_MAX: u32 = 3;

/// What a core is made of, without HTTP.
#[derive(Debug)]
pub struct Product {
    engine: Engine,
    relay: Mutex<Option<(watch::Sender<bool>, JoinHandle<()>)>>,
}

impl Product {
    async fn start(app: &App) -> Result<Self> {
        let sql = SqlStore::open(&app.addresses.sql).await.map_err(StockError::set_up)?;
        let engine = Engine::builder(sql).outbox_max(OUTBOX_MAX).archive_after(Duration::MAX);
        let engine = engine.build(&app.addresses.redis)?;
        let (stop, stopped) = watch::channel(false);
        let relay = OutboxRelay::new(&engine, format!("lab-{}-{}", std::process::id(), app.number));
        let relay = relay.spawn(stopped).map_err(StockError::set_up)?;
        Ok(Self { engine, relay: Mutex::new(Some((stop, relay))) })
    }

    /// Stops the relay and closes the database.
    pub async fn stop(&self) {
        let relay = self.relay.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((stop, relay)) = relay {
            stop.send_replace(true);
            // A relay that panicked has said so.
            let _ = tokio::task::spawn_blocking(|| relay.join()).await;
        }
        self.engine.sync.sql.close().await;
    }
}

/// See the module.
#[derive(Debug)]
pub struct Claimgate {
    app: Arc<App>,
    id: CampaignId,
    handle: Mutex<Option<Arc<CampaignHandle>>>,
}

impl Claimgate {
    async fn product(&self) -> Result<&Product> {
        self.app.product.get_or_try_init(|| Product::start(&self.app)).await
    }

    /// The campaign, read from SQL if this instance has not heard of it.
    async fn handle(&self) -> Result<Arc<CampaignHandle>> {
        if let Some(handle) = &*self.handle.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(Arc::clone(handle));
        }
        let product = self.product().await?;
        let campaign = product.engine.sync.sql.campaign(&self.id).await.map_err(StockError::set_up)?;
        let handle = product.engine.registry.update(campaign.ok_or(StockError::Missing)?);
        // Another instance has loaded it: this one's relay is to read it, too.
        handle.mark_ready();
        *self.handle.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&handle));
        Ok(handle)
    }

    async fn counters(&self) -> Result<(Option<u32>, u64, u64)> {
        let handle = self.handle().await?;
        let (counters, _) = self.product().await?.engine.sync.read(&handle, None).await?;
        Ok((handle.campaign().remaining(counters.taken), counters.taken, counters.backlog))
    }

    fn request(&self, attempt: &Attempt) -> Result<ClaimRequest> {
        Ok(ClaimRequest {
            campaign_id: self.id.clone(),
            user_id: attempt.user.parse().map_err(StockError::set_up)?,
            quantity: Quantity::try_from(attempt.quantity).map_err(StockError::set_up)?,
            // A user's second try is the same claim: that is what the key is for.
            idempotency_key: format!("lab-{}", attempt.user).parse().map_err(StockError::set_up)?,
        })
    }
}

impl StockManager for Claimgate {
    async fn open(app: &Arc<App>, key: &str) -> Result<Self> {
        let id = key.parse().map_err(StockError::set_up)?;
        Ok(Self { app: Arc::clone(app), id, handle: Mutex::default() })
    }

    async fn init(&self, stock: u32) -> Result<()> {
        let product = self.product().await?;
        let limits = json!({"total": stock, "per_user": USER_MAX, "per_user_per_day": USER_MAX});
        let starts_at = clock::now().saturating_add_ms(-60_000);
        let body = json!({"id": self.id, "name": "lab", "starts_at": starts_at, "limits": limits});
        let campaign =
            NewCampaign::parse(body.to_string().as_bytes(), clock::now()).map_err(StockError::set_up)?;
        let change = Change { who: "lab", what: "create", at: clock::now() };
        product.engine.sync.sql.create(&campaign, change).await.map_err(StockError::set_up)?;
        let handle = product.engine.registry.update(campaign);
        product.engine.recovery.ensure_ready(&handle).await.map_err(StockError::set_up)?;
        Ok(())
    }

    async fn reduce(&self, attempt: &Attempt) -> Result<Reduced> {
        let handle = self.handle().await?;
        // The lab does not mark first tries: some users come twice, to different instances.
        let (request, product) = (self.request(attempt)?, self.product().await?);
        let decision =
            product.engine.batcher.claim(&handle, &request, claimgate_shared::Attempt::Unknown).await?;
        Ok(match decision.outcome {
            Outcome::Granted(_) | Outcome::Held(_) => Reduced::Taken,
            Outcome::Replayed(_) => Reduced::HadAlready,
            Outcome::Denied(Denial::SoldOut { .. }) => Reduced::SoldOut,
            Outcome::Denied(_) => Reduced::Limited("user"),
        })
    }

    async fn give_back(&self, attempt: &Attempt) -> Result<()> {
        let (product, handle) = (self.product().await?, self.handle().await?);
        // The same user and key lead to the same claim.
        let claim = self.request(attempt)?.claim_id();
        product.engine.sync.transition(&handle, &claim, ClaimTransition::Return, "lab").await?;
        product.engine.batcher.invalidate(&self.id);
        Ok(())
    }

    async fn get(&self) -> Result<i64> {
        let (remaining, _, _) = self.counters().await?;
        remaining.map(i64::from).ok_or(StockError::Missing)
    }

    async fn finish(&self) -> Result<Option<i64>> {
        let deadline = Instant::now() + RELAYED_WITHIN;
        loop {
            let (_, _, backlog) = self.counters().await?;
            if backlog == 0 {
                break;
            }
            if Instant::now() > deadline {
                return Err(StockError::Inconsistent(format!("{backlog} events never came to SQL")));
            }
            sleep(LOOK).await;
        }
        let text = "SELECT COALESCE(SUM(quantity), 0)::BIGINT FROM claims WHERE campaign_id = $1 AND status = 'granted'";
        let row = self.app.sql.row(some_time(), text, &[self.id.as_str().into()]).await?;
        Ok(row.map(|row| row[0]))
    }
}
