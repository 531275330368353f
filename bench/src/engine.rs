//! claimgate's engine in this process, without HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use claimgate_core::clock;
use claimgate_core::domain::campaign_change::NewCampaign;
use claimgate_core::engine::batcher::ClaimBatcher;
use claimgate_core::engine::handle::CampaignHandle;
use claimgate_core::jobs::outbox_relay::OutboxRelay;
use claimgate_core::store::sql::{Change, SqlStore};
use claimgate_shared::{Attempt, ClaimRequest, Outcome};
use serde_json::{Value, json};
use support::sql::Sql;
use support::times::from_now;
use support::{RedisServer, RedisView};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::checks;
use crate::redis::{self, Fsync};

/// Claims waited for at once.
const TASKS: usize = 1024;
/// Events that may wait for SQL: more than any measurement makes, so that no claim is refused for a full outbox.
const OUTBOX_MAX: u64 = 10_000_000;

/// How often a claim is asked for before it is said to have no outcome.
const TRIES: u32 = 5;

/// What every campaign of the benchmark allows; all three limits are looked at, none is reached.
pub fn generous() -> Value {
    json!({"total": 1_000_000_000, "per_user": 5, "per_user_per_day": 5})
}

/// An engine with a Redis of its own, before a database.
#[derive(Debug)]
pub struct Engine {
    /// Its Redis, past the engine.
    pub view: RedisView,
    /// Its database, past the engine.
    pub sql: Sql,
    core: Arc<claimgate_core::engine::Engine>,
    relay: Option<(watch::Sender<bool>, std::thread::JoinHandle<()>)>,
    _redis: RedisServer,
}

/// What a load came to.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Claims granted.
    pub granted: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
}

impl Load {
    /// Claims granted per second.
    pub fn per_second(&self) -> f64 {
        self.granted as f64 / self.seconds
    }
}

impl Engine {
    /// Starts a Redis and opens the database at `database_url`; the relay is off.
    pub async fn start(fsync: Fsync, database_url: &str) -> anyhow::Result<Self> {
        let redis = redis::start(fsync).await;
        let sql = SqlStore::open(database_url).await?;
        let core = claimgate_core::engine::Engine::builder(sql).outbox_max(OUTBOX_MAX);
        let core = core.archive_after(Duration::MAX).build(&redis.url())?;
        Ok(Self {
            view: redis.view().await,
            sql: Sql::open(database_url),
            core: Arc::new(core),
            relay: None,
            _redis: redis,
        })
    }

    /// Makes a campaign that is open, and brings it into Redis.
    pub async fn campaign(&self, id: &str, limits: Value) -> anyhow::Result<Arc<CampaignHandle>> {
        let body = json!({"id": id, "name": id, "starts_at": from_now(-60), "limits": limits});
        let campaign = NewCampaign::parse(body.to_string().as_bytes(), clock::now())
            .map_err(|problem| anyhow::anyhow!("{problem:?}"))?;
        let change = Change { who: "bench", what: "create", at: clock::now() };
        self.core.sync.sql.create(&campaign, change).await?;
        let handle = self.core.registry.update(campaign);
        self.core.recovery.ensure_ready(&handle).await?;
        Ok(handle)
    }

    /// Starts the relay.
    pub fn start_relay(&mut self) -> anyhow::Result<()> {
        let (stop, stopped) = watch::channel(false);
        let relay = OutboxRelay::new(&self.core, "bench".to_owned());
        self.relay = Some((stop, relay.spawn(stopped)?));
        Ok(())
    }

    /// Has every one of `requests` decided, as many at once as there are tasks; each must be granted.
    pub async fn claim(
        &self,
        handle: &Arc<CampaignHandle>,
        requests: Vec<ClaimRequest>,
    ) -> anyhow::Result<Load> {
        self.claim_by(TASKS, handle, requests).await
    }

    /// The same one after another.
    pub async fn claim_in_turn(
        &self,
        handle: &Arc<CampaignHandle>,
        requests: Vec<ClaimRequest>,
    ) -> anyhow::Result<Load> {
        self.claim_by(1, handle, requests).await
    }

    async fn claim_by(
        &self,
        tasks: usize,
        handle: &Arc<CampaignHandle>,
        requests: Vec<ClaimRequest>,
    ) -> anyhow::Result<Load> {
        let requests: Arc<[ClaimRequest]> = requests.into();
        let next = Arc::new(AtomicUsize::new(0));
        let mut running = JoinSet::new();
        let started = Instant::now();
        for _ in 0..tasks {
            let (core, handle) = (Arc::clone(&self.core), Arc::clone(handle));
            let (requests, next) = (Arc::clone(&requests), Arc::clone(&next));
            running.spawn(async move { claim_some(&core.batcher, &handle, &requests, &next).await });
        }
        let mut granted = 0;
        while let Some(task) = running.join_next().await {
            granted += task??;
        }
        let seconds = started.elapsed().as_secs_f64();
        let asked = requests.len() as u64;
        ensure!(granted == asked, "in process {granted} of {asked} claims were granted, none refused");
        Ok(Load { granted, seconds })
    }

    /// Whether what was granted is what Redis and SQL have; the outbox must be empty.
    pub async fn check(&self, handle: &CampaignHandle, granted: u64) -> anyhow::Result<()> {
        let campaign = handle.campaign();
        checks::exact(campaign.id.as_str(), granted, &self.view, &self.sql).await
    }

    /// Stops the relay and closes the database.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        if let Some((stop, relay)) = self.relay.take() {
            stop.send_replace(true);
            tokio::task::spawn_blocking(|| relay.join())
                .await?
                .map_err(|_| anyhow::anyhow!("the relay panicked"))?;
        }
        self.core.sync.sql.close().await;
        Ok(())
    }
}

async fn claim_some(
    batcher: &ClaimBatcher,
    handle: &Arc<CampaignHandle>,
    requests: &[ClaimRequest],
    next: &AtomicUsize,
) -> anyhow::Result<u64> {
    let mut granted = 0;
    while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
        granted += u64::from(claim_one(batcher, handle, request).await?);
    }
    Ok(granted)
}

/// Whether a claim was granted. One whose outcome is unknown is asked for again, as every caller should: it then is
/// granted, or met again if it had been.
async fn claim_one(
    batcher: &ClaimBatcher,
    handle: &Arc<CampaignHandle>,
    request: &ClaimRequest,
) -> anyhow::Result<bool> {
    let mut tries = TRIES;
    loop {
        let attempt = if tries == TRIES { Attempt::First } else { Attempt::Unknown };
        tries -= 1;
        match batcher.claim(handle, request, attempt).await {
            Ok(decision) => {
                let met_again = tries + 1 < TRIES && matches!(decision.outcome, Outcome::Replayed(_));
                return Ok(met_again || matches!(decision.outcome, Outcome::Granted(_)));
            }
            Err(error) if tries == 0 => return Err(error).context("a claim in process"),
            Err(_) => {}
        }
    }
}
