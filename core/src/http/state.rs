//! What every handler works with.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use metrics_exporter_prometheus::PrometheusHandle;

use super::auth::Authenticator;
use crate::credentials::Caller;
use crate::engine::Engine;
use crate::engine::health::Health;

/// Shared by all handlers; cheap to clone.
#[derive(Debug, Clone)]
pub struct AppState(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    engine: Arc<Engine>,
    authenticator: Authenticator,
    metrics: PrometheusHandle,
    concurrency_max: usize,
    serving: AtomicBool,
}

impl AppState {
    /// For callers that `authenticator` lets in, `concurrency_max` requests at once per listener; `metrics` renders
    /// `/metrics`.
    pub fn new(
        engine: Arc<Engine>,
        authenticator: Authenticator,
        metrics: PrometheusHandle,
        concurrency_max: usize,
    ) -> Self {
        let serving = AtomicBool::new(false);
        Self(Arc::new(Parts { engine, authenticator, metrics, concurrency_max, serving }))
    }

    /// The engine, for an authenticated caller: without one, no handler reaches it.
    pub(super) fn engine(&self, _caller: &Caller) -> &Arc<Engine> {
        &self.0.engine
    }

    pub(super) fn health(&self) -> &Health {
        &self.0.engine.health
    }

    pub(super) fn authenticator(&self) -> &Authenticator {
        &self.0.authenticator
    }

    pub(super) fn metrics(&self) -> &PrometheusHandle {
        &self.0.metrics
    }

    pub(super) fn concurrency_max(&self) -> usize {
        self.0.concurrency_max
    }

    /// Lets requests in, or no more of them: only a core that may serve its database with its Redis takes any.
    pub fn set_serving(&self, serving: bool) {
        self.0.serving.store(serving, Ordering::Release);
    }

    /// Whether requests are let in.
    pub fn is_serving(&self) -> bool {
        self.0.serving.load(Ordering::Acquire)
    }
}
