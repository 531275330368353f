//! claimgate's engine in this process, without HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use claimgate_core::clock;
use claimgate_core::domain::campaign_change::{CampaignPatch, NewCampaign};
use claimgate_core::domain::codes::CodesFile;
use claimgate_core::engine::campaign::handle::CampaignHandle;
use claimgate_core::engine::claim::batcher::ClaimBatcher;
use claimgate_core::jobs::outbox_relay::OutboxRelay;
use claimgate_core::store::sql::{Change, SqlStore};
use claimgate_shared::{Attempt, ClaimRequest, Outcome, Problem};
use serde_json::{Value, json};
use support::sql::Sql;
use support::times::from_now;
use support::{RedisServer, RedisView};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::checks;
use crate::codes_file::codes_file;
use crate::redis::{self, Fsync};

/// Number of claims in flight.
const TASKS: usize = 1024;
/// Limit of the outbox, above what any measurement produces, so that no claim gets 503 for a full outbox.
const OUTBOX_MAX: u64 = 10_000_000;

/// Maximum number of tries of a claim.
const TRIES: u32 = 5;

/// Limits of every campaign of the benchmark: all three are checked, none is reached.
pub fn generous() -> Value {
    json!({"total": 1_000_000_000, "per_user": 5, "per_user_per_day": 5})
}

/// An engine with its own Redis and a database.
#[derive(Debug)]
pub struct Engine {
    /// A connection to its Redis that bypasses the engine.
    pub view: RedisView,
    /// A connection to its database that bypasses the engine.
    pub sql: Sql,
    core: Arc<claimgate_core::engine::Engine>,
    relay: Option<(watch::Sender<bool>, std::thread::JoinHandle<()>)>,
    _redis: RedisServer,
}

/// The result of a load.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub granted: u64,
    /// Duration in seconds.
    pub seconds: f64,
}

impl Load {
    pub fn per_second(&self) -> f64 {
        self.granted as f64 / self.seconds
    }
}

impl Engine {
    /// Starts a Redis server and opens the database at `database_url`, without the relay.
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

    /// Creates an open campaign and loads it into Redis.
    pub async fn campaign(&self, id: &str, limits: Value) -> anyhow::Result<Arc<CampaignHandle>> {
        let body = json!({"id": id, "name": id, "starts_at": from_now(-60), "limits": limits});
        let campaign = NewCampaign::parse(body.to_string().as_bytes())
            .and_then(|new| new.created_at(clock::now()))
            .map_err(invalid)?;
        let change = Change { who: "bench", what: "create", at: clock::now() };
        self.core.stores.sql.create(&campaign, change).await?;
        let handle = self.core.registry.update(campaign);
        self.core.recovery.ensure_ready(&handle).await?;
        Ok(handle)
    }

    /// Creates an open campaign with `codes` codes and as many units.
    pub async fn campaign_with_codes(&self, id: &str, codes: u32) -> anyhow::Result<Arc<CampaignHandle>> {
        let (changes, now) = (&self.core.changes, clock::now());
        let limits = json!({"total": 0, "per_user": 5, "per_user_per_day": 5});
        let body = json!({"id": id, "name": id, "starts_at": from_now(-60), "codes": true, "limits": limits});
        let new = NewCampaign::parse(body.to_string().as_bytes()).map_err(invalid)?;
        changes.create(new, "bench", now).await?;
        let campaign = id.parse()?;
        let file = CodesFile::parse(codes_file(codes).into()).map_err(invalid)?;
        changes.add_codes(&campaign, &file, Change { who: "bench", what: "codes", at: now }).await?;
        let patch = json!({"version": 2, "limits": {"total": codes}});
        let patch = CampaignPatch::parse(patch.to_string().as_bytes()).map_err(invalid)?;
        changes.update(&campaign, patch, "bench", now).await?;
        self.core.registry.get(&campaign).context("the campaign")
    }

    pub fn start_relay(&mut self) -> anyhow::Result<()> {
        let (stop, stopped) = watch::channel(false);
        let relay = OutboxRelay::new(&self.core, "bench".to_owned());
        self.relay = Some((stop, relay.spawn(stopped)?));
        Ok(())
    }

    /// Decides all `requests`, [`TASKS`] of them concurrently; each must be granted.
    pub async fn claim(
        &self,
        handle: &Arc<CampaignHandle>,
        requests: Vec<ClaimRequest>,
    ) -> anyhow::Result<Load> {
        self.claim_with(TASKS, handle, requests).await
    }

    /// Decides all `requests` one after another.
    pub async fn claim_one_by_one(
        &self,
        handle: &Arc<CampaignHandle>,
        requests: Vec<ClaimRequest>,
    ) -> anyhow::Result<Load> {
        self.claim_with(1, handle, requests).await
    }

    async fn claim_with(
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
            running.spawn(async move { claim_some(&core.claims.batcher, &handle, &requests, &next).await });
        }
        let mut granted = 0;
        while let Some(task) = running.join_next().await {
            granted += task??;
        }
        let seconds = started.elapsed().as_secs_f64();
        let total = requests.len() as u64;
        ensure!(granted == total, "in process {granted} of {total} claims were granted");
        Ok(Load { granted, seconds })
    }

    /// Checks that Redis and SQL have exactly the granted claims; the outbox must be empty.
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
        self.core.stores.sql.close().await;
        Ok(())
    }
}

#[allow(clippy::needless_pass_by_value)] // as map_err calls it
fn invalid(problem: Problem) -> anyhow::Error {
    anyhow::anyhow!("{problem:?}")
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

/// Returns whether a claim was granted. If its outcome is unknown, retries it as every caller should: the
/// claim is then granted, or replayed if it was already granted.
async fn claim_one(
    batcher: &ClaimBatcher,
    handle: &Arc<CampaignHandle>,
    request: &ClaimRequest,
) -> anyhow::Result<bool> {
    let mut tries = TRIES;
    loop {
        let attempt = if tries == TRIES { Attempt::First } else { Attempt::Unknown };
        tries -= 1;
        match batcher.claim(handle, request, attempt, None).await {
            Ok(decision) => {
                let replayed = tries + 1 < TRIES && matches!(decision.outcome, Outcome::Replayed(_));
                return Ok(replayed || matches!(decision.outcome, Outcome::Granted(_)));
            }
            Err(error) if tries == 0 => return Err(error).context("a claim in process"),
            Err(_) => {}
        }
    }
}
