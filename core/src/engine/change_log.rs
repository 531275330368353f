//! One line in the log for each change of a state that may change to and fro; of one that does so all the time, one a minute.

use std::time::{Duration, Instant};

/// After a line, changes are left out for this long.
const QUIET: Duration = Duration::from_secs(60);

/// What the log has said of one state.
#[derive(Debug, Default)]
pub(super) struct ChangeLog {
    /// When it last said that the state had changed.
    last: Option<Instant>,
    /// Whether it has yet to say that it has changed back.
    is_open: bool,
    /// Changes that were left out since.
    left_out: u64,
}

impl ChangeLog {
    /// The state has changed at `now`: with the number of changes that were left out before, if that is to be said.
    pub fn changed(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < QUIET) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        self.is_open = true;
        Some(std::mem::take(&mut self.left_out))
    }

    /// The state has changed back. Whether that is to be said: whatever was said to have changed is.
    pub fn changed_back(&mut self) -> bool {
        std::mem::take(&mut self.is_open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_said_and_of_many_one_a_minute() {
        let (mut log, began) = (ChangeLog::default(), Instant::now());
        assert!(!log.changed_back(), "nothing was said to have changed");
        assert_eq!(log.changed(began), Some(0));
        assert!(log.changed_back());
        for second in 1..60 {
            assert_eq!(log.changed(began + Duration::from_secs(second)), None);
            assert!(!log.changed_back(), "nor is what was left out");
        }
        assert_eq!(log.changed(began + QUIET), Some(59));
        assert!(log.changed_back());
    }
}
