//! The time in which a campaign may be claimed from.

use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// From `starts_at` on, until just before `ends_at` (never, when that is `None`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WindowFields")]
pub struct Window {
    starts_at: Timestamp,
    ends_at: Option<Timestamp>,
}

/// The end does not come after the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("ends_at must come after starts_at")]
pub struct InvalidWindow;

/// Where an instant lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// Before the start.
    Before,
    /// In the window.
    Inside,
    /// At the end or after it.
    After,
}

impl Window {
    /// A window that is open for at least a millisecond.
    ///
    /// # Errors
    /// [`InvalidWindow`] when it ends before it opens or as it opens.
    pub fn new(starts_at: Timestamp, ends_at: Option<Timestamp>) -> Result<Self, InvalidWindow> {
        if ends_at.is_some_and(|end| end <= starts_at) {
            Err(InvalidWindow)
        } else {
            Ok(Self { starts_at, ends_at })
        }
    }

    /// The first instant inside.
    pub fn starts_at(self) -> Timestamp {
        self.starts_at
    }

    /// The first instant after the window; `None` when it stays open.
    pub fn ends_at(self) -> Option<Timestamp> {
        self.ends_at
    }

    /// Where `now` lies: half-open, so that two windows end to end never overlap.
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
    fn the_start_is_inside_and_the_end_is_not() {
        let window = Window::new(at(10), Some(at(20))).unwrap();
        assert_eq!(
            [9, 10, 19, 20].map(|ms| window.position(at(ms))),
            [Position::Before, Position::Inside, Position::Inside, Position::After]
        );
    }

    proptest! {
        #[test]
        fn a_window_runs_forwards(start in 0_i64..1000, end in 0_i64..1000) {
            prop_assert_eq!(Window::new(at(start), Some(at(end))).is_ok(), start < end);
        }

        #[test]
        fn time_only_moves_on(start in 0_i64..1000, length in 1_i64..1000, a in 0_i64..3000, b in 0_i64..3000) {
            let window = Window::new(at(start), Some(at(start + length))).unwrap();
            let order = |ms| match window.position(at(ms)) { Position::Before => 0, Position::Inside => 1, Position::After => 2 };
            prop_assert!(order(a.min(b)) <= order(a.max(b)));
        }

        #[test]
        fn without_an_end_it_stays_open(start in 0_i64..1000, later in 0_i64..1_000_000) {
            let window = Window::new(at(start), None).unwrap();
            prop_assert_eq!(window.position(at(start + later)), Position::Inside);
        }
    }
}
