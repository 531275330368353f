//! Background jobs: relaying outboxes to SQL, maintaining campaigns, and following the database.
//!
//! Each campaign that is not ready is worked on by itself, with a back-off of its own; campaigns at rest cost a periodic
//! look. Every wait for Redis and SQL has a limit.

mod due_holds;
mod group_commit;
pub mod live;
mod lost_rows;
pub mod maintenance;
pub mod outbox_relay;
pub mod refresher;
mod replicas;
pub mod webhooks;

use std::time::Duration;

/// How long to wait before a failed action is tried again: longer each time it fails in a row.
#[derive(Debug, Clone, Copy)]
struct Backoff {
    min: Duration,
    max: Duration,
    /// The last wait; zero when the last try succeeded.
    last: Duration,
}

impl Backoff {
    fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, last: Duration::ZERO }
    }

    /// Records a failure; returns how long to wait now.
    fn failed(&mut self) -> Duration {
        self.last = (self.last * 2).clamp(self.min, self.max);
        self.last
    }

    /// Whether the last try succeeded.
    fn is_fresh(&self) -> bool {
        self.last.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_in_a_row_is_waited_for_longer_up_to_the_most() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(500));
        assert!(backoff.is_fresh());
        let waits: Vec<_> = (0..5).map(|_| backoff.failed().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 500, 500]);
        assert!(!backoff.is_fresh());
    }
}
