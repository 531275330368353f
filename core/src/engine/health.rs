//! Whether both stores answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::metrics;
use crate::store::redis::nodes::NodeState;

/// Whether Redis and SQL answered when last asked; both are down until they have been.
#[derive(Debug, Default)]
pub struct Health {
    /// Redis' health: up while any of its primaries is.
    pub redis: StoreHealth,
    /// SQL's health.
    pub sql: StoreHealth,
    redis_nodes: RwLock<Vec<NodeState>>,
}

impl Health {
    /// Redis' primaries as they were when one last answered.
    pub fn redis_nodes(&self) -> Vec<NodeState> {
        self.redis_nodes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records which primaries of Redis answered, or why none did; a change is logged.
    pub fn record_redis(&self, answer: Result<Vec<NodeState>, String>) {
        self.redis.record("redis", answer.as_ref().map(drop).map_err(Clone::clone));
        let Ok(nodes) = answer else { return };
        let mut known = self.redis_nodes.write().unwrap_or_else(PoisonError::into_inner);
        for node in &nodes {
            let was_up = known.iter().find(|other| other.address == node.address).map(NodeState::is_up);
            match (was_up, node.is_up()) {
                (None | Some(true), false) => tracing::error!(node = node.address, "a node does not answer"),
                (Some(false), true) => tracing::info!(node = node.address, "the node answers again"),
                _ => {}
            }
        }
        *known = nodes;
    }
}

/// Whether one store answered when last asked.
#[derive(Debug, Default)]
pub struct StoreHealth(AtomicBool);

impl StoreHealth {
    /// Whether the store answered when last asked.
    pub fn is_up(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Records the `answer` of the store that metrics and logs call `part`; a change is logged.
    pub fn record(&self, part: &'static str, answer: Result<(), String>) {
        let was_up = self.0.swap(answer.is_ok(), Ordering::Relaxed);
        metrics::up(part, answer.is_ok());
        match answer {
            Err(error) if was_up => tracing::error!(part, error, "does not answer"),
            Ok(()) if !was_up => tracing::info!(part, "answers"),
            _ => {}
        }
    }
}
