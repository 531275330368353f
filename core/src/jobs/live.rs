//! Makes snapshots for those who watch, one a second at most, and none while there is no watcher.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::engine::Engine;
use crate::engine::cores::ThisCore;
use crate::engine::live_snapshot::Observer;

/// How long core may take to record that it stops.
const FORGET_MAX: Duration = Duration::from_secs(1);
/// How often a snapshot is made.
const PERIOD: Duration = Duration::from_secs(1);

/// Tells those who watch `engine`, as the core `this`, until `stop` turns true; then records that it stops.
pub async fn tell(engine: Arc<Engine>, this: ThisCore, mut stop: watch::Receiver<bool>) {
    let all = async {
        let mut observer = Observer::new(Arc::clone(&engine), this.clone());
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            engine.live.is_watched().await;
            ticks.tick().await;
            match serde_json::to_string(&observer.snapshot().await) {
                Ok(snapshot) => engine.live.tell(snapshot),
                Err(error) => tracing::error!(%error, "cannot write a snapshot"),
            }
        }
    };
    tokio::select! {
        () = all => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
    // Otherwise it is listed as silent for an hour.
    let _ = timeout(FORGET_MAX, engine.forget_core(&this)).await;
}
