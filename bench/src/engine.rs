//! claimgate's parts in this process, without HTTP: gate, ledger, drain, register.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use claimgate_core::store::sql::SqlStore;
use claimgate_core::domain::campaign::NewCampaign;
use claimgate_core::engine::handle::CampaignHandle;
use claimgate_core::engine::batcher::{BATCH_MAX, Gate};
use claimgate_core::jobs::outbox_relay::OutboxRelay;
use claimgate_core::store::redis::RedisStore;
use claimgate_core::engine::recovery::Recovery;
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
/// Events that may wait for SQL: more than any measurement makes, so that none is put off.
const BACKLOG_MAX: u64 = 10_000_000;

/// How often a claim is asked for before it is said to have no outcome.
const TRIES: u32 = 5;

/// What every campaign of the benchmark allows; all three limits are looked at, none is reached.
pub fn generous() -> Value {
    json!({"total": 1_000_000_000, "per_user": 5, "per_user_per_day": 5})
}

/// A gate with a Redis of its own before a register.
#[derive(Debug)]
pub struct Engine {
    /// Its Redis, past the gate.
    pub view: RedisView,
    /// Its register, past core.
    pub sql: Sql,
    gate: Arc<Gate>,
    ledger: Arc<RedisStore>,
    archive: SqlStore,
    recovery: Arc<Recovery>,
    drain: Option<(watch::Sender<bool>, std::thread::JoinHandle<()>)>,
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
    /// Starts a Redis and opens the register at `database_url`; the drain is off.
    pub async fn start(fsync: Fsync, database_url: &str) -> anyhow::Result<Self> {
        let redis = redis::start(fsync).await;
        let archive = SqlStore::open(database_url).await?;
        let client = ::redis::Client::open(redis.url())?;
        let ledger = Arc::new(RedisStore::new(client, archive.clone(), BACKLOG_MAX));
        let recovery = Recovery::new(Arc::clone(&ledger), archive.clone(), Duration::MAX);
        Ok(Self {
            view: redis.view().await,
            sql: Sql::open(database_url),
            gate: Arc::new(Gate::new(Arc::clone(&ledger), BATCH_MAX)),
            ledger,
            archive,
            recovery: Arc::new(recovery),
            drain: None,
            _redis: redis,
        })
    }

    /// Makes a campaign that is open, and brings it into Redis.
    pub async fn campaign(&self, id: &str, limits: Value) -> anyhow::Result<Arc<CampaignHandle>> {
        let body = json!({"id": id, "name": id, "starts_at": from_now(-60), "limits": limits});
        let campaign = NewCampaign::parse(body.to_string().as_bytes())
            .map_err(|problem| anyhow::anyhow!("{problem:?}"))?;
        let change = claimgate_core::store::sql::Change {
            who: "bench",
            what: "create",
            at: claimgate_core::clock::now(),
        };
        self.archive.create(&campaign, change).await?;
        let known = self.recovery.campaigns.learn(campaign);
        self.recovery.ensure_ready(&known).await?;
        Ok(known)
    }

    /// Starts the drain.
    pub fn start_drain(&mut self) -> anyhow::Result<()> {
        let (stop, stopped) = watch::channel(false);
        let drain = OutboxRelay {
            ledger: Arc::clone(&self.ledger),
            archive: self.archive.clone(),
            campaigns: Arc::clone(&self.recovery.campaigns),
            recovery: Arc::clone(&self.recovery),
            consumer: "bench".to_owned(),
        };
        self.drain = Some((stop, drain.spawn(stopped)?));
        Ok(())
    }

    /// Has every one of `requests` decided, as many at once as there are tasks; each must be granted.
    pub async fn claim(&self, known: &Arc<CampaignHandle>, requests: Vec<ClaimRequest>) -> anyhow::Result<Load> {
        let requests: Arc<[ClaimRequest]> = requests.into();
        let next = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        let started = Instant::now();
        for _ in 0..TASKS {
            let (gate, known) = (Arc::clone(&self.gate), Arc::clone(known));
            let (requests, next) = (Arc::clone(&requests), Arc::clone(&next));
            tasks.spawn(async move { claim_some(&gate, &known, &requests, &next).await });
        }
        let mut granted = 0;
        while let Some(task) = tasks.join_next().await {
            granted += task??;
        }
        let seconds = started.elapsed().as_secs_f64();
        let asked = requests.len() as u64;
        ensure!(granted == asked, "in process {granted} of {asked} claims were granted, none refused");
        Ok(Load { granted, seconds })
    }

    /// Whether what was granted is what Redis and SQL have; the outbox must be empty.
    pub async fn check(&self, known: &CampaignHandle, granted: u64) -> anyhow::Result<()> {
        let campaign = known.campaign();
        checks::exact(campaign.id.as_str(), granted, &self.view, &self.sql).await
    }

    /// Stops the drain and closes the register.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        if let Some((stop, drain)) = self.drain.take() {
            stop.send_replace(true);
            tokio::task::spawn_blocking(|| drain.join())
                .await?
                .map_err(|_| anyhow::anyhow!("the drain panicked"))?;
        }
        self.archive.close().await;
        Ok(())
    }
}

async fn claim_some(
    gate: &Gate,
    known: &Arc<CampaignHandle>,
    requests: &[ClaimRequest],
    next: &AtomicUsize,
) -> anyhow::Result<u64> {
    let mut granted = 0;
    while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
        granted += u64::from(claim_one(gate, known, request).await?);
    }
    Ok(granted)
}

/// Whether a claim was granted. One whose outcome is unknown is asked for again, as every caller should: it then is
/// granted, or met again if it had been.
async fn claim_one(gate: &Gate, known: &Arc<CampaignHandle>, request: &ClaimRequest) -> anyhow::Result<bool> {
    let mut tries = TRIES;
    loop {
        let attempt = if tries == TRIES { Attempt::First } else { Attempt::Unknown };
        tries -= 1;
        match gate.claim(known, request, attempt).await {
            Ok(decision) => {
                let met_again = tries + 1 < TRIES && matches!(decision.outcome, Outcome::Replayed(_));
                return Ok(met_again || matches!(decision.outcome, Outcome::Granted(_)));
            }
            Err(error) if tries == 0 => return Err(error).context("a claim in process"),
            Err(_) => {}
        }
    }
}
