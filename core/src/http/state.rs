//! The state that every handler shares.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use claimgate_shared::{Code, Problem};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::{Mutex, MutexGuard, OwnedSemaphorePermit, Semaphore};

use super::authentication::Authenticator;
use super::deadlines::Deadlines;
use crate::credentials::Caller;
use crate::engine::Engine;
use crate::engine::health::Health;

/// Maximum number of concurrent live streams; each keeps a connection open.
const WATCHERS_MAX: usize = 32;
/// Number of ordinary permits per permit for a request that is authenticated by its body.
const UNPROVEN_SHARE: usize = 16;

/// Shared by all handlers of a thread; cheap to clone.
#[derive(Debug, Clone)]
pub struct AppState(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    engine: Arc<Engine>,
    deadlines: Deadlines,
    shared: Arc<Shared>,
}

/// The part that all threads share.
#[derive(Debug)]
struct Shared {
    authenticator: Authenticator,
    metrics: PrometheusHandle,
    concurrency_max: usize,
    /// Permits of the internal listener's requests.
    permits: Arc<Semaphore>,
    /// Permits of the internal listener's requests that can only be authenticated with their body.
    unproven_permits: Semaphore,
    /// Serializes imports.
    import: Mutex<()>,
    /// Permits of live streams.
    watchers: Arc<Semaphore>,
    serving: AtomicBool,
    /// Whether core is about to stop. A draining core keeps serving for a while, so that callers can move to
    /// a different core.
    draining: AtomicBool,
}

impl AppState {
    /// Creates the state for callers that `authenticator` accepts, with `concurrency_max` concurrent requests
    /// per listener. `metrics` renders `/metrics`. At most a quarter of the callers may wait for SQL, so that
    /// claims continue while SQL is down.
    pub fn new(
        engine: &Engine,
        authenticator: Authenticator,
        metrics: PrometheusHandle,
        concurrency_max: usize,
    ) -> Self {
        let shared = Arc::new(Shared {
            authenticator,
            metrics,
            concurrency_max,
            permits: Arc::new(Semaphore::new(concurrency_max)),
            unproven_permits: Semaphore::new(concurrency_max.div_ceil(UNPROVEN_SHARE)),
            import: Mutex::default(),
            watchers: Arc::new(Semaphore::new(WATCHERS_MAX)),
            serving: AtomicBool::new(false),
            draining: AtomicBool::new(false),
        });
        let engine = Arc::new(engine.for_callers(sql_callers_max(concurrency_max)));
        Self(Arc::new(Parts { engine, deadlines: Deadlines::default(), shared }))
    }

    /// Returns the state for a further thread: engine and deadlines are its own, everything else is shared.
    #[must_use]
    pub fn for_thread(&self) -> Self {
        let engine = Arc::new(self.0.engine.for_thread());
        Self(Arc::new(Parts { engine, deadlines: Deadlines::default(), shared: Arc::clone(&self.0.shared) }))
    }

    /// Returns the engine. The parameter proves that the caller was authenticated.
    pub(super) fn engine(&self, _caller: &Caller) -> &Arc<Engine> {
        &self.0.engine
    }

    /// Returns this thread's deadlines.
    pub(super) fn deadlines(&self) -> &Deadlines {
        &self.0.deadlines
    }

    pub(super) fn health(&self) -> &Health {
        &self.0.engine.health
    }

    /// Returns why this core refused user ids within the last minute.
    pub(super) fn user_ids_refused(&self) -> Option<String> {
        self.0.engine.user_ids.last_rejection()
    }

    pub(super) fn authenticator(&self) -> &Authenticator {
        &self.0.shared.authenticator
    }

    /// Returns all metrics, with the state of campaigns and servers, in Prometheus' text format.
    pub(super) fn metrics(&self) -> String {
        self.0.shared.metrics.render() + &self.0.engine.measures.text()
    }

    pub(super) fn concurrency_max(&self) -> usize {
        self.0.shared.concurrency_max
    }

    /// Returns how many callers may wait for SQL at a time.
    pub(super) fn sql_callers_max(&self) -> usize {
        sql_callers_max(self.concurrency_max())
    }

    /// Returns the permits of the internal listener's requests, shared by all threads.
    pub(super) fn permits(&self) -> &Arc<Semaphore> {
        &self.0.shared.permits
    }

    /// Returns the permits of the internal listener's requests that can only be authenticated with their body.
    pub(super) fn unproven_permits(&self) -> &Semaphore {
        &self.0.shared.unproven_permits
    }

    /// Waits until no other import runs on this core, and blocks further imports until the guard is dropped.
    pub(super) async fn import_turn(&self) -> MutexGuard<'_, ()> {
        self.0.shared.import.lock().await
    }

    /// Takes a permit for a live stream.
    ///
    /// # Errors
    /// `overloaded` if all permits are taken.
    pub(super) fn watcher_permit(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let permits = Arc::clone(&self.0.shared.watchers);
        permits
            .try_acquire_owned()
            .map_err(|_| Problem::new(Code::Overloaded, "too many dashboards are open"))
    }

    /// Sets whether requests are admitted. Core admits them only while it may serve its database with its Redis.
    pub fn set_serving(&self, serving: bool) {
        self.0.shared.serving.store(serving, Ordering::Release);
    }

    /// Ends all waits for the feed and all live streams, because core stops; `serving` is whether it still
    /// admits requests.
    pub fn stop(&self, serving: bool) {
        self.set_serving(serving);
        self.0.engine.feed.watch.end();
        self.0.engine.live.end();
    }

    /// Returns whether requests are admitted.
    pub fn is_serving(&self) -> bool {
        self.0.shared.serving.load(Ordering::Acquire)
    }

    /// Makes load balancers and clients move away, while core still answers all requests.
    pub fn drain(&self) {
        self.0.shared.draining.store(true, Ordering::Release);
    }

    /// Returns whether core is about to stop.
    pub fn is_draining(&self) -> bool {
        self.0.shared.draining.load(Ordering::Acquire)
    }
}

/// Returns how many of `concurrency_max` callers may wait for SQL at a time.
fn sql_callers_max(concurrency_max: usize) -> usize {
    (concurrency_max / 4).max(1)
}
