//! The Worker's clock, read here and nowhere else: every rule takes the time as an argument.

use claimgate_shared::{Code, Problem, Timestamp};
use worker::js_sys::Date;

/// Now, by the runtime's clock. It stands still between two waits for I/O, so it is read anew after each.
pub fn now() -> Result<Timestamp, Problem> {
    #[allow(clippy::cast_possible_truncation)] // whole milliseconds, and few enough
    let now_ms = Date::now() as i64;
    Timestamp::from_ms(now_ms).map_err(|_| Problem::new(Code::Unavailable, "no clock"))
}

/// Milliseconds from `then` to `now`. A clock that was set back makes nothing young again: then it is very long ago.
pub fn age_ms(then: Timestamp, now: Timestamp) -> i64 {
    match now.as_ms() - then.as_ms() {
        age_ms if age_ms < 0 => i64::MAX,
        age_ms => age_ms,
    }
}
