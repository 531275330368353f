//! Baseline (c) and claimgate itself (d): `claimgate serve` as shipped, its batches of one or as it likes.

use std::fmt;
use std::net::SocketAddr;

use anyhow::Context as _;
use claimgate_core::config::sqlite_url;
use support::sql::Sql;
use support::wait::holds;
use support::{Core, CoreOptions, RedisServer, RedisView, SOON, eventually};

use crate::campaigns::Campaigns;
use crate::checks;
use crate::client::{self, Load, Pace, Tally};
use crate::engine::generous;
use crate::lag::{Lag, Watcher};
use crate::metrics::{Batches, batches};
use crate::processor::Spent;
use crate::redis::{self, Fsync};
use crate::session::Session;

/// How many claims one call to Redis may decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batching {
    /// One, always: baseline (c).
    One,
    /// As core does by itself: (d).
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

/// A running core.
#[derive(Debug)]
pub struct Server {
    /// In lines of progress.
    pub name: String,
    /// The process.
    pub core: Core,
    view: RedisView,
    sql: Sql,
    /// None where core runs its own.
    _redis: Vec<RedisServer>,
    campaigns: u32,
}

/// What a load of claims came to, all of them granted and found in Redis and SQL.
#[derive(Debug)]
pub struct Claims {
    /// The load's own count.
    pub tally: Tally,
    /// How far SQL was behind.
    pub lag: Lag,
    /// Claims a batch.
    pub batch: f64,
    /// Microseconds of processor time a claim, until the outbox is empty.
    pub cpu_us: Spent,
}

impl Server {
    /// Starts one: with its own Redis, which syncs each write, or before one that syncs once a second.
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
        Ok(Self::before(redis, options, format!("{batching}, {fsync}")).await)
    }

    /// Starts claimgate before a Redis with a replica, `replicas` of which (0 or 1) must have a claim before it is
    /// acknowledged.
    pub async fn start_replicated(replicas: u32, fsync: Fsync) -> anyhow::Result<Self> {
        let (redis, url) = redis::start_with_replica(fsync).await;
        let mut options = CoreOptions::default().with("CLAIMGATE_REDIS_URL", url);
        if replicas > 0 {
            options = options.with("CLAIMGATE_REDIS_REPLICAS", replicas.to_string());
        }
        let name = format!("{}, {fsync}, {replicas} of 1 replica waited for", Batching::Shipped);
        let server = Self::before(redis.into(), options, name).await;
        if replicas > 0 {
            server.waits_for_its_replica().await;
        }
        Ok(server)
    }

    /// Starts a core before the first of these servers, or before its own.
    async fn before(redis: Vec<RedisServer>, options: CoreOptions, name: String) -> Self {
        let core = options.start().await;
        let view = match redis.first() {
            Some(redis) => redis.view().await,
            None => core.redis().await,
        };
        let sql = Sql::open(&sqlite_url(&core.data_dir().join("claimgate.sqlite")));
        Self { name, core, view, sql, _redis: redis, campaigns: 0 }
    }

    async fn waits_for_its_replica(&self) {
        eventually(SOON, || async {
            let told = self.core.admin_get("/admin/v1/replication").await.json();
            let members = told["primaries"][0]["set"]["members"].as_array().map_or(0, Vec::len);
            holds(members == 1, || told.to_string())
        })
        .await;
    }

    /// Where claims are taken.
    pub fn address(&self) -> SocketAddr {
        self.core.listen()
    }

    /// Makes a campaign of which this server has not heard, and names it.
    pub async fn campaign(&mut self, limits: serde_json::Value) -> String {
        self.campaigns += 1;
        let id = format!("bench-{}", self.campaigns);
        self.core.create(&id, limits).await;
        id
    }

    /// Makes one that opens at `starts_at` only.
    pub async fn campaign_opening(&mut self, starts_at: String) -> String {
        self.campaigns += 1;
        let id = format!("bench-{}", self.campaigns);
        let mut campaign = support::core_client::campaign(&id, serde_json::json!({}));
        campaign["starts_at"] = starts_at.into();
        self.core.create_with(campaign).await;
        id
    }

    /// Makes 1,000 campaigns of which this server has not heard.
    pub async fn thousand(&mut self) -> Campaigns {
        self.campaigns += 1;
        let campaigns = Campaigns::thousand(&format!("bench-{}", self.campaigns));
        for (id, _) in campaigns.granted() {
            self.core.create(id, generous()).await;
        }
        campaigns
    }

    /// Measures claims by users who have none yet, from a fresh campaign that never ends, and checks them.
    pub async fn claims(
        &mut self,
        session: &mut Session,
        connections: usize,
        pace: Pace,
    ) -> anyhow::Result<Claims> {
        let mut campaigns = Campaigns::one(self.campaign(generous()).await);
        self.claims_of(session, &mut campaigns, connections, pace).await
    }

    /// The same from `campaigns`; lag and processor time are told of the first of them alone.
    pub async fn claims_of(
        &self,
        session: &mut Session,
        campaigns: &mut Campaigns,
        connections: usize,
        pace: Pace,
    ) -> anyhow::Result<Claims> {
        let load = Load {
            address: self.address(),
            connections,
            request: campaigns.request.clone(),
            seed: session.seed(),
            pace,
        };
        let batches_before = self.batches().await?;
        let spent_before = self.spent().await?;
        let watcher = Watcher::start(&self.view, campaigns.first());
        let tally = session.measure(client::run(load)).await.with_context(|| self.name.clone())?;
        let batch = self.batches().await?.mean_since(batches_before);
        let lag = watcher.finish().await?;
        let spent = self.spent().await? - spent_before;
        if tally.again > 0 {
            session.say(format_args!("{}: {} answers were 503; asked again", self.name, tally.again));
        }
        let granted = tally.granted().with_context(|| self.name.clone())?;
        campaigns.add(granted);
        for (id, granted) in campaigns.granted() {
            self.check(id, granted).await?;
        }
        Ok(Claims { tally, lag, batch, cpu_us: spent.us_a_claim(granted) })
    }

    /// Whether what was granted is what Redis and SQL have; waits until SQL has all it will get.
    pub async fn check(&self, campaign: &str, granted: u64) -> anyhow::Result<()> {
        Watcher::start(&self.view, campaign).finish().await?;
        checks::exact(campaign, granted, &self.view, &self.sql).await.with_context(|| self.name.clone())
    }

    /// The processor time that it and its Redis have used so far.
    pub async fn spent(&self) -> anyhow::Result<Spent> {
        Spent::by(self.core.pid(), &self.view).await
    }

    async fn batches(&self) -> anyhow::Result<Batches> {
        let reply = self.core.client().try_get(&self.core.admin_url("/metrics"), "").await?;
        Ok(batches(&reply.text()))
    }

    /// Resident memory, in MiB.
    pub fn resident_mib(&self) -> f64 {
        self.core.resident_kib() as f64 / 1024.0
    }
}
