//! Instants as the API writes and reads them.

use jiff::{SignedDuration, Timestamp};

/// Now, moved by `seconds`, as RFC 3339.
pub fn from_now(seconds: i64) -> String {
    (Timestamp::now() + SignedDuration::from_secs(seconds)).to_string()
}

/// Milliseconds since 1970 of an RFC 3339 text.
pub fn ms(text: &str) -> i64 {
    text.parse::<Timestamp>()
        .unwrap_or_else(|error| panic!("no RFC 3339 time {text:?}: {error}"))
        .as_millisecond()
}

/// Milliseconds since 1970, now.
pub fn now_ms() -> i64 {
    Timestamp::now().as_millisecond()
}
