//! Whether both stores answer.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::metrics;

/// Whether Redis and SQL answered when last asked; both are down until they have been.
#[derive(Debug, Default)]
pub struct Health {
    /// Redis' health.
    pub redis: StoreHealth,
    /// SQL's health.
    pub sql: StoreHealth,
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
