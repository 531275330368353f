//! Logs a state that may change back and forth: one line for each change, but at most one per minute.

use std::time::{Duration, Instant};

/// Minimum time between two logged changes.
const LOG_INTERVAL_MIN: Duration = Duration::from_secs(60);

/// Decides which changes of one state are logged.
#[derive(Debug, Default)]
pub(super) struct ChangeLog {
    /// When a change was last logged.
    last: Option<Instant>,
    /// Whether the change back has yet to be logged.
    is_open: bool,
    /// Number of changes since the last logged change.
    left_out: u64,
}

impl ChangeLog {
    /// Records that the state changed at `now`. If the change is to be logged, returns the number of earlier
    /// changes that were not logged.
    pub fn changed(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < LOG_INTERVAL_MIN) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        self.is_open = true;
        Some(std::mem::take(&mut self.left_out))
    }

    /// Records that the state changed back. Returns whether to log it: only if the change itself was logged.
    pub fn changed_back(&mut self) -> bool {
        std::mem::take(&mut self.is_open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_logged_at_most_once_a_minute() {
        let (mut log, began) = (ChangeLog::default(), Instant::now());
        assert!(!log.changed_back(), "no change was logged");
        assert_eq!(log.changed(began), Some(0));
        assert!(log.changed_back());
        for second in 1..60 {
            assert_eq!(log.changed(began + Duration::from_secs(second)), None);
            assert!(!log.changed_back(), "this change was not logged");
        }
        assert_eq!(log.changed(began + LOG_INTERVAL_MIN), Some(59));
        assert!(log.changed_back());
    }
}
