//! Publishes live snapshots to watchers: at most one per second, and none while there is no watcher.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::ticks_every;
use crate::engine::Engine;
use crate::engine::live::cores::ThisCore;
use crate::engine::live::snapshot::Observer;

/// Interval between two snapshots.
const PERIOD: Duration = Duration::from_secs(1);

/// Publishes snapshots of `engine` as the core `this` until `stop` turns true.
pub async fn publish(engine: Arc<Engine>, this: ThisCore, mut stop: watch::Receiver<bool>) {
    let all = async {
        let mut observer =
            Observer::new(&engine.stores, &engine.registry, &engine.health, &engine.replicas, this);
        let mut ticks = ticks_every(PERIOD);
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
}
