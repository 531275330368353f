//! The snapshot of core and its campaigns that the dashboard shows, and the last hour with which its charts begin.

use std::collections::BTreeMap;

use serde::Serialize;

use super::replication::ReplicationView;
use crate::{CampaignId, CampaignView, Timestamp};

/// Core and its campaigns at one point in time.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LiveSnapshot {
    /// When the snapshot was taken, by this core's clock.
    pub at: Timestamp,
    /// The state of the campaigns.
    pub campaigns: LiveCampaigns,
    /// Denied and rejected claims, by reason.
    pub refusals: LiveRefusals,
    /// Events not yet written to SQL; `null` while no Redis is available.
    pub outbox: Option<LiveOutbox>,
    /// The state of Redis.
    pub redis: LiveRedis,
    /// The state of SQL.
    pub sql: LiveSql,
    /// The cores in service; only this one while SQL is unavailable.
    pub cores: Vec<LiveCore>,
    /// The most recent changes, newest first; `null` while SQL is unavailable.
    pub audit: Option<Vec<LiveChange>>,
}

/// The campaigns that are neither evicted nor archived.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LiveCampaigns {
    /// Number of campaigns.
    pub total: usize,
    /// Number of open campaigns. A campaign not checked recently counts as open while its window is open.
    pub open: usize,
    /// Claims granted or held per second on all campaigns, by all cores; `null` until known.
    pub claims_per_s: Option<f64>,
    /// The busiest campaigns, at most 50.
    pub listed: Vec<LiveCampaign>,
}

/// Denied and rejected claims.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LiveRefusals {
    /// Number of cores whose counts are included: the cores in `cores`.
    pub cores: usize,
    /// Counts by reason.
    pub by_reason: Vec<LiveRefusal>,
}

/// Events not yet written to SQL.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LiveOutbox {
    /// Events in all outboxes, each as of its last read.
    pub events: u64,
    /// The age of the oldest entry, in milliseconds; 0 if the outboxes are empty.
    pub oldest_age_ms: u64,
}

/// The state of Redis.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LiveRedis {
    /// `up` while any primary is available, otherwise `down`.
    pub state: &'static str,
    /// Each primary.
    pub nodes: Vec<LiveNode>,
    /// The replication requirement and the replicas' state; `null` while no primary is available.
    pub replication: Option<ReplicationView>,
}

/// A Redis primary.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LiveNode {
    /// The primary's host and port, or its socket's path.
    pub address: String,
    /// `up` or `down`.
    pub state: &'static str,
}

/// The state of SQL.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LiveSql {
    /// `SQLite` or `PostgreSQL`.
    pub kind: &'static str,
    /// `up` or `down`.
    pub state: &'static str,
}

/// A change to a campaign, a claim or a webhook.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LiveChange {
    /// The change's sequence number in the audit of all campaigns.
    pub number: u64,
    /// When the change was made.
    pub at: Timestamp,
    /// The name of the token that made the change.
    pub who: String,
    /// The action as in the audit: `pause`, `add` and so on.
    pub what: String,
    /// The campaign; `null` for a webhook of all campaigns.
    pub campaign_id: Option<String>,
    /// The claim; `null` if the change does not concern a claim.
    pub claim_id: Option<String>,
    /// The webhook; `null` if the change does not concern a webhook.
    pub webhook_id: Option<String>,
    /// Why the caller returned the claim; `null` without a reason, and for other actions.
    pub reason: Option<String>,
    /// Units that `add` added to the total, negative if it removed them; `null` for other actions.
    pub units: Option<i64>,
}

/// The current state of a campaign.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LiveCampaign {
    /// The view that all callers get; here `remaining` is also `null` while it is not known.
    #[serde(flatten)]
    pub campaign: CampaignView,
    /// Whether claims can be decided; if false, the counters are `null`.
    pub ready: bool,
    /// Whether an import of past claims is unfinished; until it completes, no claim is decided.
    pub import_unfinished: bool,
    /// Units taken.
    pub taken: Option<u64>,
    /// Claims granted or held per second, by all cores; `null` until known.
    pub claims_per_s: Option<f64>,
    /// Events not yet written to SQL.
    pub backlog: Option<u64>,
    /// Number of granted claims without codes; `null` if the campaign has no codes, and while SQL is
    /// unavailable.
    pub claims_without_codes: Option<u64>,
}

/// A running core.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LiveCore {
    /// The core's host name, and the address of its internal API.
    pub name: String,
    /// The core's version.
    pub version: String,
    /// When the core started, by its own clock.
    pub started_at: Timestamp,
    /// Whether this core took the snapshot.
    pub is_this: bool,
    /// `up`, or `silent` if the core has not written to SQL for 5 s.
    pub state: &'static str,
    /// Claims decided or rejected per second; `null` until known.
    pub decisions_per_s: Option<f64>,
}

/// Claims denied or rejected for one reason.
#[derive(Debug, Clone, Default, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LiveRefusal {
    /// The problem code.
    pub code: String,
    /// Number of claims since each core started, including those that edges refused without core.
    pub count: u64,
    /// Number of those claims that edges refused without core.
    pub at_edges: u64,
    /// Number of claims per second; `null` until known.
    pub per_s: Option<f64>,
}

/// The last hour in one core's memory.
#[derive(Debug, Serialize)]
pub struct LiveTrends {
    /// Samples, oldest first: one every 5 s, fewer than an hour's after a start of core.
    pub samples: Vec<TrendSample>,
    /// Claims granted or held per second on the busiest campaigns, at most 100. The values belong to the newest
    /// samples.
    pub campaigns: BTreeMap<CampaignId, Vec<f32>>,
}

/// The averages of the seconds before a point in time.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct TrendSample {
    /// When the sample was taken, by this core's clock.
    pub at: Timestamp,
    /// Claims granted or held per second on all campaigns; `null` while no Redis is available.
    pub claims_per_s: Option<f32>,
    /// Claims refused per second by this core, and by edges that reported them to this core.
    pub refusals_per_s: f32,
    /// Events not yet written to SQL; `null` while no Redis is available.
    pub outbox_events: Option<u64>,
}
