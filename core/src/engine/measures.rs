//! What metrics tell of campaigns and of Redis' primaries: as they are when they are asked for, since both come and go.

use std::sync::PoisonError;

use super::Engine;
use crate::metrics;
use crate::store::redis::nodes::NodeState;

impl Engine {
    /// The state of campaigns and Redis' primaries, as Prometheus' text.
    pub fn measures(&self) -> String {
        let campaigns = self.registry.all();
        let lines = self.busiest.lock().unwrap_or_else(PoisonError::into_inner).look(&campaigns);
        metrics::now(|| {
            for line in &lines {
                metrics::campaign(&line.name, line.answered, line.backlog);
            }
            metrics::outbox_lag(self.registry.notices().oldest_entry.age());
            let is_up = self.health.redis.is_up();
            for node in self.health.redis_nodes() {
                tell_node(&node, is_up);
            }
        })
    }
}

/// What is told of one of Redis' primaries; `any_up` while one of them answers.
fn tell_node(node: &NodeState, any_up: bool) {
    metrics::node_up(&node.address, any_up && node.vitals.is_some());
    let Some(vitals) = node.vitals.filter(|_| any_up) else { return };
    metrics::node_times(&node.address, vitals.ping, vitals.barrier_age);
    if let Some(memory) = vitals.memory {
        metrics::node_memory(&node.address, memory.used, memory.max);
    }
}
