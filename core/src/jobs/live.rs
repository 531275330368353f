//! Publishes live snapshots to watchers: at most one per second, and none while there is no watcher. Samples core's
//! counters for the charts, even without watchers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::ticks_every;
use crate::engine::Engine;
use crate::engine::live::cores::ThisCore;
use crate::engine::live::snapshot::Observer;
use crate::engine::live::trends::{SAMPLE_PERIOD, Sampler};

/// Interval between two snapshots.
const PERIOD: Duration = Duration::from_secs(1);

/// Publishes snapshots of `engine` as the core `this`, and samples its counters, until `stop` turns true.
pub async fn publish(engine: Arc<Engine>, this: ThisCore, mut stop: watch::Receiver<bool>) {
    tokio::select! {
        () = publish_snapshots(&engine, this.clone()) => {}
        () = sample_trends(&engine, this) => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

async fn publish_snapshots(engine: &Engine, this: ThisCore) {
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
}

async fn sample_trends(engine: &Engine, this: ThisCore) {
    let mut sampler = Sampler::new(&engine.registry, &engine.health, this);
    let mut ticks = ticks_every(SAMPLE_PERIOD);
    ticks.tick().await; // the first tick is immediate
    loop {
        ticks.tick().await;
        sampler.sample(&engine.live.trends);
    }
}
