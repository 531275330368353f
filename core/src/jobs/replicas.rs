//! Keeps the replica sets in SQL up to date with the primaries, and logs when a primary's writes are not
//! acknowledged.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::domain::replica_set::NotInSet;
use crate::engine::Engine;
use crate::metrics;

/// Interval between two polls of every primary.
const POLL: Duration = Duration::from_millis(500);
/// The minimum time between two polls if a barrier has requested the next poll.
const PAUSE: Duration = Duration::from_millis(50);
/// The time limit of one poll.
const POLL_MAX: Duration = Duration::from_secs(5);

/// Polls every primary, forever.
pub(super) async fn poll(engine: &Engine) -> Infallible {
    let mut untrusted = Vec::new();
    loop {
        match timeout(POLL_MAX, engine.replicas.keep()).await {
            Ok(Ok(now)) => {
                report(&untrusted, &now);
                untrusted = now;
            }
            Ok(Err(error)) => tracing::debug!(%error, "cannot poll the replicas"),
            Err(_) => tracing::debug!("polling the replicas timed out"),
        }
        sleep(PAUSE).await;
        let _ = timeout(POLL, engine.stores.redis.required_replicas().refresh_requested()).await;
    }
}

/// Logs each primary whose writes are no longer acknowledged, once.
fn report(before: &[(String, NotInSet)], now: &[(String, NotInSet)]) {
    for (primary, why) in now.iter().filter(|untrusted| !before.contains(untrusted)) {
        tracing::error!(primary, %why, "writes to this primary are not acknowledged");
    }
    metrics::primaries_refused(now.len());
}
