//! The Worker's clock. It is read here alone: every rule takes the time as an argument.

use claimgate_shared::{Code, Problem, Timestamp};
use worker::js_sys::Date;

/// The time by the runtime's clock. It stands still between two waits for I/O, so it is read again after each.
///
/// # Errors
/// `unavailable` when the runtime's clock is outside the range of a [`Timestamp`].
pub fn now() -> Result<Timestamp, Problem> {
    #[allow(clippy::cast_possible_truncation)] // whole milliseconds, far below 2^53
    let now_ms = Date::now() as i64;
    Timestamp::from_ms(now_ms).map_err(|_| Problem::new(Code::Unavailable, "the clock cannot be read"))
}

/// Milliseconds from `then` to `now`, at least 0. A `now` before `then` gives `i64::MAX`: a clock that was set back makes
/// everything stale, nothing fresh.
pub fn age_ms(then: Timestamp, now: Timestamp) -> i64 {
    match now.as_ms() - then.as_ms() {
        age_ms if age_ms < 0 => i64::MAX,
        age_ms => age_ms,
    }
}
