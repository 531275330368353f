//! The Worker's clock, read here and nowhere else: every rule takes the time as an argument.

use claimgate_shared::{Code, Problem, Timestamp};

/// Now, by the runtime's clock. It stands still between two waits for I/O, so it is read anew after each.
pub fn now() -> Result<Timestamp, Problem> {
    i64::try_from(worker::Date::now().as_millis())
        .ok()
        .and_then(|ms| Timestamp::from_ms(ms).ok())
        .ok_or_else(|| Problem::new(Code::Unavailable, "no clock"))
}
