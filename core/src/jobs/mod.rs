//! Background jobs: relaying outboxes to SQL, maintaining campaigns, polling the database, and sending
//! webhooks.
//!
//! Each campaign that is not ready is handled separately, with its own backoff. Idle campaigns are only
//! polled. Every call to Redis and SQL has a time limit.

mod due_holds;
mod group_commit;
mod heartbeats;
pub mod live;
pub mod maintenance;
pub mod outbox_relay;
pub mod refresher;
pub mod refusals;
mod replicas;
mod sql_loss;
pub mod webhooks;

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

/// Returns ticks that are `period` apart even after a late one. The first tick is immediate.
fn ticks_every(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Exponential backoff: each consecutive failure doubles the delay before the next try.
#[derive(Debug, Clone, Copy)]
struct Backoff {
    min: Duration,
    max: Duration,
    /// The last delay; zero before the first failure.
    last: Duration,
}

impl Backoff {
    fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, last: Duration::ZERO }
    }

    /// Records a failure and returns the delay before the next try.
    fn failed(&mut self) -> Duration {
        self.last = (self.last * 2).clamp(self.min, self.max);
        self.last
    }

    /// Returns true if there was no failure yet.
    fn is_fresh(&self) -> bool {
        self.last.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_consecutive_failure_doubles_the_delay_up_to_the_max() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(500));
        assert!(backoff.is_fresh());
        let waits: Vec<_> = (0..5).map(|_| backoff.failed().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 500, 500]);
        assert!(!backoff.is_fresh());
    }
}
