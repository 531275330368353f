//! What every handler works with.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use claimgate_shared::{Code, Problem};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::{Mutex, MutexGuard, OwnedSemaphorePermit, Semaphore};

use super::auth::Authenticator;
use super::deadlines::Deadlines;
use crate::credentials::Caller;
use crate::engine::Engine;
use crate::engine::health::Health;

/// The most who may watch what is going on at once: each has a connection that stays open.
const WATCHERS_MAX: usize = 32;

/// Shared by all handlers of a thread; cheap to clone.
#[derive(Debug, Clone)]
pub struct AppState(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    engine: Arc<Engine>,
    deadlines: Deadlines,
    shared: Arc<Shared>,
}

/// What all threads share.
#[derive(Debug)]
struct Shared {
    authenticator: Authenticator,
    metrics: PrometheusHandle,
    concurrency_max: usize,
    /// A permit for each request that the internal listener may have in progress.
    permits: Arc<Semaphore>,
    /// Whose turn it is to import.
    import: Mutex<()>,
    /// A permit for each who may watch what is going on.
    watchers: Arc<Semaphore>,
    serving: AtomicBool,
    /// Whether core was told to stop: it goes on for a while, so that its callers can turn to another one.
    leaving: AtomicBool,
}

impl AppState {
    /// For callers that `authenticator` lets in, `concurrency_max` requests at once per listener; `metrics` renders
    /// `/metrics`. While SQL is away, those who wait for it take up a quarter of the places, and leave the others to claims.
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
            import: Mutex::default(),
            watchers: Arc::new(Semaphore::new(WATCHERS_MAX)),
            serving: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
        });
        let engine = Arc::new(engine.for_callers(sql_callers_max(concurrency_max)));
        Self(Arc::new(Parts { engine, deadlines: Deadlines::default(), shared }))
    }

    /// The state of another thread: engine and deadlines for that thread, all else the same.
    #[must_use]
    pub fn for_thread(&self) -> Self {
        let engine = Arc::new(self.0.engine.for_thread());
        Self(Arc::new(Parts { engine, deadlines: Deadlines::default(), shared: Arc::clone(&self.0.shared) }))
    }

    /// The engine, for an authenticated caller: without one, no handler reaches it.
    pub(super) fn engine(&self, _caller: &Caller) -> &Arc<Engine> {
        &self.0.engine
    }

    /// The deadlines of those who wait on this thread.
    pub(super) fn deadlines(&self) -> &Deadlines {
        &self.0.deadlines
    }

    pub(super) fn health(&self) -> &Health {
        &self.0.engine.health
    }

    pub(super) fn authenticator(&self) -> &Authenticator {
        &self.0.shared.authenticator
    }

    /// Everything that core counts, and the state of campaigns and servers, as Prometheus' text.
    pub(super) fn metrics(&self) -> String {
        self.0.shared.metrics.render() + &self.0.engine.measures()
    }

    pub(super) fn concurrency_max(&self) -> usize {
        self.0.shared.concurrency_max
    }

    /// The most callers that may wait for SQL at once.
    pub(super) fn sql_callers_max(&self) -> usize {
        sql_callers_max(self.concurrency_max())
    }

    /// The permits for the internal listener's requests, on whichever thread.
    pub(super) fn permits(&self) -> &Arc<Semaphore> {
        &self.0.shared.permits
    }

    /// Waits for this core's one place for an import.
    pub(super) async fn import_turn(&self) -> MutexGuard<'_, ()> {
        self.0.shared.import.lock().await
    }

    /// A place to watch from, for as long as it is held.
    ///
    /// # Errors
    /// `overloaded` while as many watch as may.
    pub(super) fn watcher_place(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let places = Arc::clone(&self.0.shared.watchers);
        places.try_acquire_owned().map_err(|_| Problem::new(Code::Overloaded, "as many watch as may"))
    }

    /// Lets requests in, or no more of them: only a core that may serve its database with its Redis takes any.
    pub fn set_serving(&self, serving: bool) {
        self.0.shared.serving.store(serving, Ordering::Release);
    }

    /// Ends all waits for the feed and all watching, since core stops; whether requests are let in until then.
    pub fn stop(&self, serving: bool) {
        self.set_serving(serving);
        self.0.engine.feed_watch.end();
        self.0.engine.live.end();
    }

    /// Whether requests are let in.
    pub fn is_serving(&self) -> bool {
        self.0.shared.serving.load(Ordering::Acquire)
    }

    /// Takes core out of the balancers' and its clients' lists, while it still answers all that comes in.
    pub fn leave(&self) {
        self.0.shared.leaving.store(true, Ordering::Release);
    }

    /// Whether core is about to stop.
    pub fn is_leaving(&self) -> bool {
        self.0.shared.leaving.load(Ordering::Acquire)
    }
}

/// Of `concurrency_max` callers, those that may wait for SQL at once.
fn sql_callers_max(concurrency_max: usize) -> usize {
    (concurrency_max / 4).max(1)
}
