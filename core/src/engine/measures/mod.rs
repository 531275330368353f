//! Metrics of campaigns and of Redis' primaries. They are computed at each scrape, because campaigns and
//! primaries appear and disappear.

mod busiest;

use std::sync::Arc;

use parking_lot::Mutex;

use self::busiest::BusiestCampaigns;
use super::campaign::registry::CampaignRegistry;
use super::demand::Refusals;
use super::health::Health;
use crate::metrics;
use crate::store::redis::nodes::NodeState;

/// Computes the metrics of campaigns and primaries.
#[derive(Debug)]
pub struct Measures {
    pub(super) registry: Arc<CampaignRegistry>,
    pub(super) health: Arc<Health>,
    pub(super) refusals: Refusals,
    /// Selects the campaigns that metrics name.
    pub(super) busiest: Mutex<BusiestCampaigns>,
}

impl Measures {
    /// Returns the metrics of campaigns and Redis' primaries in Prometheus' text format.
    pub fn text(&self) -> String {
        let campaigns = self.registry.all();
        let refused = self.refusals.recent_by_campaign();
        let lines = self.busiest.lock().sample(&campaigns, &refused);
        let is_named = |campaign: &str| lines.iter().any(|line| line.name == campaign);
        let refusals = self.refusals.by_campaign(is_named);
        metrics::now(|| {
            for line in &lines {
                metrics::campaign(&line.name, line.answered, line.backlog);
            }
            for refused in refusals {
                metrics::edge_refusals(refused.campaign, refused.reason, refused.count);
            }
            metrics::outbox_lag(self.registry.notices().oldest_entry.age());
            for node in self.health.redis_nodes() {
                record_node(&node);
            }
        })
    }
}

/// Records the metrics of one of Redis' primaries.
fn record_node(node: &NodeState) {
    metrics::node_up(&node.address, node.is_up());
    let Some(health) = node.health else { return };
    metrics::node_times(&node.address, health.ping, health.barrier_age);
    if let Some(failed) = health.rewrite_failed {
        metrics::node_rewrite_failed(&node.address, failed);
    }
    if let Some(memory) = health.memory {
        metrics::node_memory(&node.address, memory.used, memory.max);
    }
}
