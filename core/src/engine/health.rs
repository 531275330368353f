//! Health of both stores: whether they answer and accept writes.

use parking_lot::RwLock;

use crate::domain::store_fault::StoreFault;
use crate::metrics;
use crate::store::redis::nodes::{NodeState, ProbeResult};

/// The health of Redis and SQL at the last probe. Both stores count as down before the first probe.
#[derive(Debug, Default)]
pub struct Health {
    /// Redis' health: up while any primary is up.
    pub redis: StoreHealth,
    /// SQL's health.
    pub sql: StoreHealth,
    redis_nodes: RwLock<Vec<NodeState>>,
}

impl Health {
    /// Returns the state of Redis' primaries at the last probe.
    pub fn redis_nodes(&self) -> Vec<NodeState> {
        self.redis_nodes.read().clone()
    }

    /// Records the result of a probe of Redis, or that Redis did not answer in time. Changes are logged.
    pub fn record_redis(&self, probed: Result<ProbeResult, StoreFault>) {
        let (nodes, works) = match probed {
            Ok(ProbeResult { nodes, outcome }) => (nodes, outcome.map_err(|error| error.fault())),
            Err(silent) => (Vec::new(), Err(silent)),
        };
        let mut known = self.redis_nodes.write();
        match &works {
            Ok(()) => log_changes(&known, &nodes),
            // If no server can be reached, the known primaries are listed as down.
            Err(fault) if nodes.is_empty() => {
                for node in known.iter_mut() {
                    (node.health, node.fault) = (None, Some(fault.clone()));
                }
            }
            Err(_) => {}
        }
        if !nodes.is_empty() {
            *known = nodes;
        }
        drop(known);
        self.redis.record("redis", works);
    }
}

fn log_changes(before: &[NodeState], now: &[NodeState]) {
    for node in now {
        let was_up = before.iter().find(|other| other.address == node.address).map(NodeState::is_up);
        match (was_up, &node.fault) {
            (None | Some(true), Some(fault)) => {
                let reason = fault.kind.as_str();
                tracing::error!(node = node.address, reason, error = %fault, "a node does not work");
            }
            (Some(false), None) => tracing::info!(node = node.address, "the node works again"),
            _ => {}
        }
    }
}

/// Whether one store worked at the last probe.
#[derive(Debug, Default)]
pub struct StoreHealth(RwLock<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Unknown,
    Up,
    Down(StoreFault),
}

impl StoreHealth {
    /// Returns whether the store worked at the last probe.
    pub fn is_up(&self) -> bool {
        matches!(*self.0.read(), State::Up)
    }

    /// Returns the fault that the last probe found; `None` before the first probe.
    pub fn fault(&self) -> Option<StoreFault> {
        match &*self.0.read() {
            State::Down(fault) => Some(fault.clone()),
            State::Up | State::Unknown => None,
        }
    }

    /// Records the `answer` of the store that metrics and logs call `part`. Changes are logged, including
    /// changes of the reason only.
    pub fn record(&self, part: &'static str, answer: Result<(), StoreFault>) {
        metrics::up(part, answer.is_ok());
        let mut state = self.0.write();
        match (&*state, &answer) {
            (State::Down(last), Err(fault)) if last.kind == fault.kind => {}
            (_, Err(fault)) => {
                tracing::error!(part, reason = fault.kind.as_str(), error = %fault, "does not work");
            }
            (State::Up, Ok(())) => {}
            (State::Unknown | State::Down(_), Ok(())) => tracing::info!(part, "works"),
        }
        *state = answer.map_or_else(State::Down, |()| State::Up);
    }
}
