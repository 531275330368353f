//! Builds live snapshots of core and its campaigns.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use claimgate_shared::CampaignId;
use claimgate_shared::admin::live::{
    LiveCampaigns, LiveChange, LiveNode, LiveOutbox, LiveRedis, LiveRefusals, LiveSnapshot, LiveSql,
};
use claimgate_shared::admin::replication::ReplicationView;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::campaigns::CampaignSamples;
use super::cores::{CoreCounts, ThisCore};
use crate::clock;
use crate::domain::audit::AuditItem;
use crate::engine::campaign::registry::CampaignRegistry;
use crate::engine::health::Health;
use crate::engine::replication::Replicas;
use crate::engine::stores::Stores;
use crate::store::redis::nodes::NodeState;
use crate::store::sql::{CoreRow, SqlStore};

/// Timeout of a snapshot's reads from Redis: longer than it takes to detect a silent server.
const REDIS_MAX: Duration = Duration::from_millis(2_500);
/// Timeout of a snapshot's reads from SQL.
const SQL_MAX: Duration = Duration::from_millis(1_000);
/// Number of recent changes in a snapshot.
const CHANGES: u32 = 8;

/// Builds snapshots, and keeps the counts from which rates are computed.
#[derive(Debug)]
pub struct Observer {
    stores: Arc<Stores>,
    registry: Arc<CampaignRegistry>,
    health: Arc<Health>,
    replicas: Replicas,
    this: ThisCore,
    samples: CampaignSamples,
    counts: CoreCounts,
    /// A read of SQL that has taken longer than one snapshot waits.
    reading: Option<JoinHandle<Option<FromSql>>>,
}

/// The part of a snapshot that is read from SQL.
#[derive(Debug)]
struct FromSql {
    /// The cores with the times since their heartbeats.
    cores: Vec<(CoreRow, Duration)>,
    /// The recent changes.
    audit: Vec<LiveChange>,
    claims_without_codes: HashMap<CampaignId, u64>,
}

impl Observer {
    /// Creates an observer of both stores and the campaigns of `registry`, for the core `this`.
    pub fn new(
        stores: &Arc<Stores>,
        registry: &Arc<CampaignRegistry>,
        health: &Arc<Health>,
        replicas: &Replicas,
        this: ThisCore,
    ) -> Self {
        Self {
            stores: Arc::clone(stores),
            registry: Arc::clone(registry),
            health: Arc::clone(health),
            replicas: replicas.clone(),
            this,
            samples: CampaignSamples::default(),
            counts: CoreCounts::default(),
            reading: None,
        }
    }

    /// Returns a snapshot of the current state. Components that do not answer in time are reported as
    /// unknown.
    pub async fn snapshot(&mut self) -> LiveSnapshot {
        let mut campaigns = self.registry.all();
        campaigns.retain(|handle| handle.campaign().evicted.is_none());
        let samples = timeout(REDIS_MAX, self.samples.take(&self.stores.redis, &campaigns));
        let replication = timeout(REDIS_MAX, self.replicas.view_as_read());
        let (_, replication, sql) =
            tokio::join!(samples, replication, read_sql(&mut self.reading, &self.stores.sql, &self.health));
        let now = clock::now();
        // Archived campaigns are sampled for their events, but not listed.
        campaigns.retain(|handle| !handle.campaign().is_archived(now));
        let mut listed = self.samples.listed(&campaigns, now);
        let (others, audit) = match sql {
            Some(sql) => {
                for campaign in listed.iter_mut().filter(|listed| listed.campaign.codes) {
                    let waiting = sql.claims_without_codes.get(&campaign.campaign.id);
                    campaign.claims_without_codes = Some(waiting.copied().unwrap_or(0));
                }
                (Some(sql.cores), Some(sql.audit))
            }
            None => (None, None),
        };
        let cores = self.this.with(others);
        let (cores, by_reason) = self.counts.record(&self.this, cores, now);
        let totals = self.samples.totals();
        LiveSnapshot {
            at: now,
            campaigns: LiveCampaigns {
                total: campaigns.len(),
                open: self.samples.open(&campaigns, now),
                claims_per_s: totals.claims_per_s,
                listed,
            },
            refusals: LiveRefusals { cores: cores.len(), by_reason },
            outbox: self.health.redis.is_up().then(|| LiveOutbox {
                events: totals.outbox_events,
                oldest_age_ms: u64::try_from(totals.outbox_age.as_millis()).unwrap_or(u64::MAX),
            }),
            redis: redis(&self.health, replication.ok().and_then(Result::ok)),
            sql: LiveSql {
                kind: if self.stores.sql.is_sqlite() { "SQLite" } else { "PostgreSQL" },
                state: up_or_down(self.health.sql.is_up()),
            },
            cores,
            audit,
        }
    }
}

/// Reads the cores and the recent changes from SQL; `None` while SQL is unavailable or slower than a snapshot
/// may wait. A slow read continues for the next snapshot: if each were cancelled, with its connection, none
/// would ever be complete.
async fn read_sql(
    reading: &mut Option<JoinHandle<Option<FromSql>>>,
    sql: &SqlStore,
    health: &Health,
) -> Option<FromSql> {
    if !health.sql.is_up() {
        *reading = None;
        return None;
    }
    let read = reading.get_or_insert_with(|| {
        let sql = sql.clone();
        tokio::spawn(async move {
            let read = async {
                tokio::try_join!(sql.cores(), sql.last_audit(CHANGES), sql.all_claims_without_codes())
            };
            let read = read
                .await
                .inspect_err(|error| tracing::debug!(%error, "the live snapshot has no data from SQL"));
            let (cores, changes, claims_without_codes) = read.ok()?;
            let audit = changes.into_iter().map(change_of).collect();
            Some(FromSql { cores, audit, claims_without_codes })
        })
    });
    let read = timeout(SQL_MAX, read).await.ok()?;
    *reading = None;
    read.ok().flatten()
}

fn redis(health: &Health, replication: Option<ReplicationView>) -> LiveRedis {
    let is_up = health.redis.is_up();
    let node = |node: NodeState| LiveNode { state: up_or_down(node.is_up() && is_up), address: node.address };
    LiveRedis {
        state: up_or_down(is_up),
        nodes: health.redis_nodes().into_iter().map(node).collect(),
        replication: replication.filter(|_| is_up),
    }
}

fn up_or_down(is_up: bool) -> &'static str {
    if is_up { "up" } else { "down" }
}

fn change_of(entry: AuditItem) -> LiveChange {
    let units = (entry.what == "add").then(|| Some(total(&entry.after)? - total(entry.before.as_ref()?)?));
    LiveChange {
        number: entry.number,
        at: entry.at,
        who: entry.who,
        what: entry.what,
        campaign_id: entry.campaign_id.map(|id| id.to_string()),
        claim_id: entry.claim_id.map(|id| id.to_string()),
        webhook_id: entry.webhook_id,
        reason: entry.reason,
        units: units.flatten(),
    }
}

fn total(rules: &Value) -> Option<i64> {
    rules["limits"]["total"].as_i64()
}
