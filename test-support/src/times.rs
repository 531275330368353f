//! Timestamps in the API's format.

use jiff::{SignedDuration, Timestamp};

/// Returns the current time plus `seconds`, as RFC 3339.
pub fn from_now(seconds: i64) -> String {
    (Timestamp::now() + SignedDuration::from_secs(seconds)).to_string()
}

/// Returns the milliseconds since 1970 of an RFC 3339 text.
pub fn ms(text: &str) -> i64 {
    text.parse::<Timestamp>()
        .unwrap_or_else(|error| panic!("no RFC 3339 time {text:?}: {error}"))
        .as_millisecond()
}

/// Returns the current time in milliseconds since 1970.
pub fn now_ms() -> i64 {
    Timestamp::now().as_millisecond()
}
