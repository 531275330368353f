//! Keeps the sets of replicas in step with what the primaries say, and says when one may not be believed.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::domain::replica_set::NotInSet;
use crate::engine::Engine;
use crate::metrics;

/// How often every primary is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How soon after one look the next one may follow that a server has given cause for.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest that one look may take.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// Looks at every primary, for ever.
pub(super) async fn keep(engine: &Engine) -> Infallible {
    let mut refused = Vec::new();
    loop {
        match timeout(LOOK_MAX, engine.keep_replicas()).await {
            Ok(Ok(now)) => {
                report(&refused, &now);
                refused = now;
            }
            Ok(Err(error)) => tracing::debug!(%error, "the replicas were not looked at"),
            Err(_) => tracing::debug!("the replicas were not looked at in time"),
        }
        sleep(PAUSE).await;
        let _ = timeout(LOOK, engine.sync.redis.required().outdated()).await;
    }
}

/// Says which primaries are refused that were not before.
fn report(before: &[(String, NotInSet)], now: &[(String, NotInSet)]) {
    for (primary, why) in now.iter().filter(|refused| !before.contains(refused)) {
        tracing::error!(primary, %why, "nothing that this server says is acknowledged");
    }
    metrics::primaries_refused(now.len());
}
