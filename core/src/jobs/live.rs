//! Publishes live snapshots to watchers: at most one a second, and none while there is no watcher.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::engine::Engine;
use crate::engine::live::cores::ThisCore;
use crate::engine::live::snapshot::Observer;

/// The time limit for removing this core's row when it stops.
const FORGET_MAX: Duration = Duration::from_secs(1);
/// The time between two snapshots.
const PERIOD: Duration = Duration::from_secs(1);

/// Publishes snapshots of `engine` as the core `this` until `stop` turns true, then removes this core's row
/// from SQL.
pub async fn publish(engine: Arc<Engine>, this: ThisCore, mut stop: watch::Receiver<bool>) {
    let all = async {
        // Otherwise a previous run that was killed would be listed as silent for an hour.
        let _ = engine.stores.sql.forget_runs(this.run.core()).await;
        let mut observer =
            Observer::new(&engine.stores, &engine.registry, &engine.health, &engine.replicas, this.clone());
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            engine.live.wait_for_subscriber().await;
            ticks.tick().await;
            match serde_json::to_string(&observer.snapshot().await) {
                Ok(snapshot) => engine.live.publish(snapshot),
                Err(error) => tracing::error!(%error, "cannot write a snapshot"),
            }
        }
    };
    tokio::select! {
        () = all => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
    // Otherwise this run would be listed as silent for an hour.
    let _ = timeout(FORGET_MAX, engine.stores.sql.forget_core(this.run.id())).await;
}
