//! The Worker's clock, read only here. All rules take the time as an argument.

use claimgate_shared::{Code, Problem, Timestamp};
use worker::js_sys::Date;

/// Returns the current time. The runtime's clock advances only on I/O, so read it after each I/O.
///
/// # Errors
/// `unavailable` if the runtime's clock is outside the range of a [`Timestamp`].
pub fn now() -> Result<Timestamp, Problem> {
    #[allow(clippy::cast_possible_truncation)] // whole milliseconds, far below 2^53
    let now_ms = Date::now() as i64;
    Timestamp::from_ms(now_ms)
        .map_err(|_| Problem::new(Code::Unavailable, "the edge's clock is out of range"))
}

/// Returns the milliseconds from `then` to `now`. If `now` is before `then`, the clock was set back: returns
/// `i64::MAX`, so that everything counts as stale.
pub fn age_ms(then: Timestamp, now: Timestamp) -> i64 {
    match now.as_ms() - then.as_ms() {
        age_ms if age_ms < 0 => i64::MAX,
        age_ms => age_ms,
    }
}
