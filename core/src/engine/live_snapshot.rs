//! Makes snapshots of core and its campaigns for those who watch.

use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::Timestamp;
use serde::Serialize;
use tokio::time::timeout;

use super::Engine;
use super::campaign_looks::{CampaignLooks, LiveCampaign};
use super::cores::{CoreCounts, LiveCore, LiveRefusal, ThisCore};
use super::replication::ReplicationView;
use crate::clock;
use crate::store::redis::nodes::NodeState;
use crate::store::sql::{AuditEntry, CoreRow, SqlError};

/// The longest that a snapshot waits for Redis: longer than a server that is silent.
const REDIS_MAX: Duration = Duration::from_millis(2_500);
/// The longest that it waits for SQL.
const SQL_MAX: Duration = Duration::from_millis(1_000);
/// Changes that are told of.
const CHANGES: u32 = 8;

/// Core and its campaigns at one moment.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct LiveSnapshot {
    /// When it was made, by this core's clock.
    pub at: Timestamp,
    /// The campaigns.
    pub campaigns: LiveCampaigns,
    /// Claims that were refused, by reason.
    pub refusals: LiveRefusals,
    /// What is on its way to SQL; `null` while no Redis answers.
    pub outbox: Option<LiveOutbox>,
    /// Redis.
    pub redis: LiveRedis,
    /// SQL.
    pub sql: LiveSql,
    /// The cores that serve; while SQL does not answer, this one alone.
    pub cores: Vec<LiveCore>,
    /// The last changes, the latest first; `null` while SQL does not answer.
    pub audit: Option<Vec<LiveChange>>,
}

/// The campaigns that are not evicted.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct LiveCampaigns {
    /// How many there are.
    pub total: usize,
    /// Of these, how many are open; one that was not looked at lately by its window alone.
    pub open: usize,
    /// Claims granted or held each second on all of them, through all cores; `null` until that is known.
    pub claims_per_s: Option<f64>,
    /// The busiest, at most 50.
    pub listed: Vec<LiveCampaign>,
}

/// Claims that were refused.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct LiveRefusals {
    /// By how many cores they were counted: those in `cores`.
    pub cores: usize,
    /// By reason.
    pub by_reason: Vec<LiveRefusal>,
}

/// What is on its way to SQL.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct LiveOutbox {
    /// Events in all outboxes, each as it was seen last.
    pub events: u64,
    /// The age of the oldest entry, in milliseconds; 0 when there is none.
    pub oldest_age_ms: u64,
}

/// Redis.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct LiveRedis {
    /// `up` while any primary answers, or `down`.
    pub state: &'static str,
    /// Each primary.
    pub nodes: Vec<LiveNode>,
    /// What is asked of replicas, and how they are; `null` while no primary answers.
    pub replication: Option<ReplicationView>,
}

/// A primary of Redis.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct LiveNode {
    /// Its host and port, or the path of its socket.
    pub address: String,
    /// `up` or `down`.
    pub state: &'static str,
}

/// SQL.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct LiveSql {
    /// `SQLite` or `PostgreSQL`.
    pub kind: &'static str,
    /// `up` or `down`.
    pub state: &'static str,
}

/// A change of a campaign, of a claim or of a webhook.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct LiveChange {
    /// Its place in the audit of all campaigns.
    pub number: u64,
    /// When.
    pub at: Timestamp,
    /// The name of the caller's token.
    pub who: String,
    /// As in the audit: `pause`, `add` and so on.
    pub what: String,
    /// Of which campaign; `null` for a webhook of all.
    pub campaign_id: Option<String>,
    /// Of which claim; `null` when the campaign was changed.
    pub claim_id: Option<String>,
    /// Of which webhook; `null` for all else.
    pub webhook_id: Option<String>,
}

/// Makes snapshots, and remembers what rates are reckoned from.
#[derive(Debug)]
pub struct Observer {
    engine: Arc<Engine>,
    this: ThisCore,
    looks: CampaignLooks,
    counts: CoreCounts,
}

impl Observer {
    /// An observer of all that `engine` has, for the core `this`.
    pub fn new(engine: Arc<Engine>, this: ThisCore) -> Self {
        Self { engine, this, looks: CampaignLooks::default(), counts: CoreCounts::default() }
    }

    /// How all is now. What does not answer in time is told as not known.
    pub async fn snapshot(&mut self) -> LiveSnapshot {
        let engine = Arc::clone(&self.engine);
        let mut campaigns = engine.registry.all();
        campaigns.retain(|handle| handle.campaign().evicted.is_none());
        let looks = timeout(REDIS_MAX, self.looks.look(&engine.sync.redis, &campaigns));
        let replication = timeout(REDIS_MAX, engine.replication_as_read());
        let (_, replication, sql) = tokio::join!(looks, replication, read_sql(&engine));
        let (others, audit) = sql.unzip();
        let now = clock::now();
        let cores = self.this.with(others);
        let (cores, by_reason) = self.counts.take(&self.this, cores, now);
        let totals = self.looks.totals();
        LiveSnapshot {
            at: now,
            campaigns: LiveCampaigns {
                total: campaigns.len(),
                open: self.looks.open(&campaigns, now),
                claims_per_s: totals.claims_per_s,
                listed: self.looks.listed(&campaigns, now),
            },
            refusals: LiveRefusals { cores: cores.len(), by_reason },
            outbox: engine.health.redis.is_up().then(|| LiveOutbox {
                events: totals.outbox_events,
                oldest_age_ms: u64::try_from(totals.outbox_age.as_millis()).unwrap_or(u64::MAX),
            }),
            redis: redis(&engine, replication.ok().and_then(Result::ok)),
            sql: LiveSql {
                kind: if engine.sync.sql.is_sqlite() { "SQLite" } else { "PostgreSQL" },
                state: told(engine.health.sql.is_up()),
            },
            cores,
            audit,
        }
    }
}

impl Engine {
    /// Records in SQL that `core` serves, and what it has counted.
    ///
    /// # Errors
    /// When SQL does not answer.
    pub async fn record_core(&self, core: &ThisCore) -> Result<(), SqlError> {
        self.sync.sql.record_core(&core.row()).await
    }

    /// Records that `core` stops.
    ///
    /// # Errors
    /// When SQL does not answer: it is listed as silent for an hour.
    pub async fn forget_core(&self, core: &ThisCore) -> Result<(), SqlError> {
        self.sync.sql.forget_core(&core.id).await
    }
}

/// What SQL knows of cores and changes; `None` while it does not answer.
async fn read_sql(engine: &Engine) -> Option<(Vec<(CoreRow, Duration)>, Vec<LiveChange>)> {
    if !engine.health.sql.is_up() {
        return None;
    }
    let sql = &engine.sync.sql;
    let read = async {
        let (cores, changes) = tokio::try_join!(sql.cores(), sql.last_audit(CHANGES))?;
        Ok::<_, SqlError>((cores, changes.into_iter().map(LiveChange::from).collect()))
    };
    let read = timeout(SQL_MAX, read).await.ok()?;
    read.inspect_err(|error| tracing::debug!(%error, "SQL tells those who watch nothing")).ok()
}

fn redis(engine: &Engine, replication: Option<ReplicationView>) -> LiveRedis {
    let is_up = engine.health.redis.is_up();
    let node = |node: NodeState| LiveNode { state: told(node.is_up() && is_up), address: node.address };
    LiveRedis {
        state: told(is_up),
        nodes: engine.health.redis_nodes().into_iter().map(node).collect(),
        replication: replication.filter(|_| is_up),
    }
}

fn told(is_up: bool) -> &'static str {
    if is_up { "up" } else { "down" }
}

impl From<AuditEntry> for LiveChange {
    fn from(entry: AuditEntry) -> Self {
        Self {
            number: entry.number,
            at: entry.at,
            who: entry.who,
            what: entry.what,
            campaign_id: entry.campaign_id.map(|id| id.to_string()),
            claim_id: entry.claim_id.map(|id| id.to_string()),
            webhook_id: entry.webhook_id,
        }
    }
}
