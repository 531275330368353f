//! The window of a campaign, in which it accepts claims.

use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// From `starts_at` until just before `ends_at`; `None` never ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WindowFields")]
pub struct Window {
    starts_at: Timestamp,
    ends_at: Option<Timestamp>,
}

/// The end is not after the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("ends_at must be after starts_at")]
pub struct InvalidWindow;

/// The position of an instant relative to a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// Before the start.
    Before,
    /// Inside the window.
    Inside,
    /// At the end or later.
    After,
}

impl Window {
    /// Creates a window of at least one millisecond.
    pub fn new(starts_at: Timestamp, ends_at: Option<Timestamp>) -> Result<Self, InvalidWindow> {
        if ends_at.is_some_and(|end| end <= starts_at) {
            Err(InvalidWindow)
        } else {
            Ok(Self { starts_at, ends_at })
        }
    }

    /// Returns the first instant of the window.
    pub fn starts_at(self) -> Timestamp {
        self.starts_at
    }

    /// Returns the first instant after the window; `None` if the window has no end.
    pub fn ends_at(self) -> Option<Timestamp> {
        self.ends_at
    }

    /// Returns the position of `now`. The window is half-open: adjacent windows do not overlap.
    pub fn position(self, now: Timestamp) -> Position {
        if now < self.starts_at {
            Position::Before
        } else if self.ends_at.is_some_and(|end| end <= now) {
            Position::After
        } else {
            Position::Inside
        }
    }
}

#[derive(Deserialize)]
struct WindowFields {
    starts_at: Timestamp,
    ends_at: Option<Timestamp>,
}

impl TryFrom<WindowFields> for Window {
    type Error = InvalidWindow;
    fn try_from(fields: WindowFields) -> Result<Self, InvalidWindow> {
        Self::new(fields.starts_at, fields.ends_at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(ms).unwrap()
    }

    #[test]
    fn the_window_includes_its_start_but_not_its_end() {
        let window = Window::new(at(10), Some(at(20))).unwrap();
        assert_eq!(
            [9, 10, 19, 20].map(|ms| window.position(at(ms))),
            [Position::Before, Position::Inside, Position::Inside, Position::After]
        );
    }

    proptest! {
        #[test]
        fn a_window_must_end_after_it_starts(start in 0_i64..1000, end in 0_i64..1000) {
            prop_assert_eq!(Window::new(at(start), Some(at(end))).is_ok(), start < end);
        }

        #[test]
        fn position_only_moves_forwards(start in 0_i64..1000, length in 1_i64..1000, a in 0_i64..3000, b in 0_i64..3000) {
            let window = Window::new(at(start), Some(at(start + length))).unwrap();
            let order = |ms| match window.position(at(ms)) { Position::Before => 0, Position::Inside => 1, Position::After => 2 };
            prop_assert!(order(a.min(b)) <= order(a.max(b)));
        }

        #[test]
        fn a_window_without_an_end_stays_open(start in 0_i64..1000, later in 0_i64..1_000_000) {
            let window = Window::new(at(start), None).unwrap();
            prop_assert_eq!(window.position(at(start + later)), Position::Inside);
        }
    }
}
