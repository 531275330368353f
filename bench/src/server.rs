//! `claimgate serve` with batches of one (baseline (c) in bench/README.md) and with default batching (d).

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use claimgate_core::config::sqlite_url;
use support::sql::Sql;
use support::wait::holds;
use support::{Core, CoreOptions, RedisServer, RedisView, SOON, eventually};

use crate::campaigns::Campaigns;
use crate::checks;
use crate::client::{self, Pace, Tally};
use crate::codes_file::codes_file;
use crate::engine::generous;
use crate::lag::{Lag, Watcher};
use crate::metrics::{BatchTotals, batches};
use crate::processor::CpuTime;
use crate::redis::{self, Fsync};
use crate::session::Session;

/// Timeout of the call that adds codes.
const ADD_CODES_MAX: Duration = Duration::from_mins(2);

/// Maximum number of claims per call to Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batching {
    /// Always one: baseline (c).
    One,
    /// Core's default: (d).
    Shipped,
}

impl fmt::Display for Batching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::One => "(c) batches of one",
            Self::Shipped => "(d) claimgate",
        })
    }
}

#[derive(Debug)]
pub struct Server {
    /// Name shown in progress lines.
    pub name: String,
    pub core: Core,
    view: RedisView,
    sql: Sql,
    /// Empty if core runs its own Redis.
    _redis: Vec<RedisServer>,
    campaigns: u32,
}

/// The result of a load of claims, which were all granted and verified in Redis and SQL.
#[derive(Debug)]
pub struct Claims {
    /// The load's own count.
    pub tally: Tally,
    /// SQL's lag behind Redis.
    pub lag: Lag,
    /// Claims per batch.
    pub batch: f64,
    /// Microseconds of CPU time per claim, until the outbox is empty.
    pub cpu_us: CpuTime,
}

impl Server {
    /// Starts core with its own Redis, which syncs each write, or with a given one that syncs once a second.
    pub async fn start(batching: Batching, fsync: Fsync) -> anyhow::Result<Self> {
        let mut options = CoreOptions::default();
        if batching == Batching::One {
            options = options.with("CLAIMGATE_BATCH_MAX", "1");
        }
        let redis = match fsync {
            Fsync::Always => vec![],
            Fsync::EverySecond => vec![redis::start(fsync).await],
        };
        if let [redis] = &redis[..] {
            options = options.with("CLAIMGATE_REDIS_URL", redis.url());
        }
        Ok(Self::start_with(redis, options, format!("{batching}, {fsync}")).await)
    }

    /// Starts core with a Redis server that has a replica. `replicas` (0 or 1) is the number of replicas that
    /// must have a claim before core acknowledges it.
    pub async fn start_replicated(replicas: u32, fsync: Fsync) -> anyhow::Result<Self> {
        let (redis, url) = redis::start_with_replica(fsync).await;
        let mut options = CoreOptions::default().with("CLAIMGATE_REDIS_URL", url);
        if replicas > 0 {
            options = options.with("CLAIMGATE_REDIS_REPLICAS", replicas.to_string());
        }
        let name = format!("{}, {fsync}, waiting for {replicas} of 1 replica", Batching::Shipped);
        let server = Self::start_with(redis.into(), options, name).await;
        if replicas > 0 {
            server.wait_for_replica().await;
        }
        Ok(server)
    }

    /// Starts core with these options and a Redis server that syncs once a second.
    pub async fn start_with_options(options: CoreOptions, name: &str) -> Self {
        let redis = redis::start(Fsync::EverySecond).await;
        let options = options.with("CLAIMGATE_REDIS_URL", redis.url());
        let name = format!("{}, {}, {name}", Batching::Shipped, Fsync::EverySecond);
        Self::start_with(vec![redis], options, name).await
    }

    /// Starts core with the first of these servers, or with its own Redis if there is none.
    async fn start_with(redis: Vec<RedisServer>, options: CoreOptions, name: String) -> Self {
        let core = options.start().await;
        let view = match redis.first() {
            Some(redis) => redis.view().await,
            None => core.redis().await,
        };
        let sql = Sql::open(&sqlite_url(&core.data_dir().join("claimgate.sqlite")));
        Self { name, core, view, sql, _redis: redis, campaigns: 0 }
    }

    async fn wait_for_replica(&self) {
        eventually(SOON, || async {
            let status = self.core.admin_get("/admin/v1/replication").await.json();
            let members = status["primaries"][0]["set"]["members"].as_array().map_or(0, Vec::len);
            holds(members == 1, || status.to_string())
        })
        .await;
    }

    pub fn address(&self) -> SocketAddr {
        self.core.listen()
    }

    /// Creates a campaign that is new to this server, and returns its id.
    pub async fn campaign(&mut self, limits: serde_json::Value) -> String {
        self.campaigns += 1;
        let id = format!("bench-{}", self.campaigns);
        self.core.create(&id, limits).await;
        id
    }

    /// Creates a campaign with `codes` codes and as many units. Returns its id, and the seconds that adding
    /// the codes took.
    pub async fn campaign_with_codes(&mut self, codes: u32) -> anyhow::Result<(String, f64)> {
        self.campaigns += 1;
        let id = format!("bench-{}", self.campaigns);
        let mut campaign = support::core_client::campaign(&id, serde_json::json!({"total": 0}));
        campaign["codes"] = true.into();
        self.core.create_with(campaign).await;
        let url = self.core.admin_url(&format!("/admin/v1/campaigns/{id}/codes"));
        let request = self.core.client().request(reqwest::Method::POST, &url).timeout(ADD_CODES_MAX);
        let request = request.bearer_auth(self.core.admin_token()).header("content-type", "text/csv");
        let request = request.body(codes_file(codes));
        let started = Instant::now();
        self.core.client().send(request).await?.expect(200);
        let seconds = started.elapsed().as_secs_f64();
        self.core.patch(&id, serde_json::json!({"limits": {"total": codes}})).await.expect(200);
        Ok((id, seconds))
    }

    /// Creates a campaign that opens at `starts_at`.
    pub async fn campaign_opening(&mut self, starts_at: String) -> String {
        self.campaigns += 1;
        let id = format!("bench-{}", self.campaigns);
        let mut campaign = support::core_client::campaign(&id, serde_json::json!({}));
        campaign["starts_at"] = starts_at.into();
        self.core.create_with(campaign).await;
        id
    }

    /// Creates a campaign that always requires a pass.
    pub async fn campaign_with_passes(&mut self) -> String {
        self.campaigns += 1;
        let id = format!("bench-{}", self.campaigns);
        let mut campaign = support::core_client::campaign(&id, serde_json::json!({"total": 1_000_000_000}));
        campaign["pass"] = serde_json::json!({"required": "always"});
        self.core.create_with(campaign).await;
        id
    }

    /// Creates 1,000 campaigns that are new to this server.
    pub async fn thousand_campaigns(&mut self) -> Campaigns {
        self.campaigns += 1;
        let campaigns = Campaigns::thousand_campaigns(&format!("bench-{}", self.campaigns));
        for (id, _) in campaigns.granted() {
            self.core.create(id, generous()).await;
        }
        campaigns
    }

    /// Measures claims of a new campaign by new users, and checks them.
    pub async fn claims(
        &mut self,
        session: &mut Session,
        connections: usize,
        pace: Pace,
    ) -> anyhow::Result<Claims> {
        let mut campaigns = Campaigns::one(self.campaign(generous()).await);
        self.claims_of(session, &mut campaigns, connections, pace).await
    }

    /// Measures claims of `campaigns` by new users, and checks them. Lag and CPU time cover only the first
    /// campaign's outbox.
    pub async fn claims_of(
        &self,
        session: &mut Session,
        campaigns: &mut Campaigns,
        connections: usize,
        pace: Pace,
    ) -> anyhow::Result<Claims> {
        let load = session.load(self.address(), connections, campaigns.request.clone(), pace);
        let batches_before = self.batches().await?;
        let cpu_time_before = self.cpu_time().await?;
        let watcher = Watcher::start(&self.view, campaigns.first());
        let tally = session.measure(client::run(load)).await.with_context(|| self.name.clone())?;
        let batch = self.batches().await?.mean_since(batches_before);
        let lag = watcher.finish().await?;
        let cpu_time = self.cpu_time().await? - cpu_time_before;
        if tally.retries > 0 {
            session.say(format_args!("{}: {} responses were 503 and were retried", self.name, tally.retries));
        }
        let granted = tally.granted().with_context(|| self.name.clone())?;
        campaigns.add(granted);
        for (id, granted) in campaigns.granted() {
            self.check(id, granted).await?;
        }
        Ok(Claims { tally, lag, batch, cpu_us: cpu_time.us_per_claim(granted) })
    }

    /// Waits until the outbox is empty, then checks that Redis and SQL have exactly the granted claims.
    pub async fn check(&self, campaign: &str, granted: u64) -> anyhow::Result<()> {
        Watcher::start(&self.view, campaign).finish().await?;
        checks::exact(campaign, granted, &self.view, &self.sql).await.with_context(|| self.name.clone())
    }

    /// Returns the CPU time of core and its Redis so far.
    pub async fn cpu_time(&self) -> anyhow::Result<CpuTime> {
        CpuTime::of(self.core.pid(), &self.view).await
    }

    async fn batches(&self) -> anyhow::Result<BatchTotals> {
        let reply = self.core.client().try_get(&self.core.admin_url("/metrics"), "").await?;
        Ok(batches(&reply.text()))
    }

    pub fn resident_mib(&self) -> f64 {
        self.core.resident_kib() as f64 / 1024.0
    }
}
