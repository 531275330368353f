//! Makes snapshots for those who watch, one a second at most, and none while there is no watcher.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::engine::Engine;
use crate::engine::cores::ThisCore;
use crate::engine::live_snapshot::Observer;

/// How often a snapshot is made.
const PERIOD: Duration = Duration::from_secs(1);

/// Tells those who watch `engine`, as the core `this`, until `stop` turns true.
pub async fn tell(engine: Arc<Engine>, this: ThisCore, mut stop: watch::Receiver<bool>) {
    let all = async {
        let mut observer = Observer::new(Arc::clone(&engine), this);
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
}
