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

/// Returns a time zone in which it is between 6:00 and 18:00, so that no day ends while a test runs.
pub fn zone_far_from_midnight() -> &'static str {
    let hour_utc = now_ms() / 3_600_000 % 24;
    // Etc/GMT-12 is 12 hours ahead of UTC: the signs of these names are inverted.
    if (6..18).contains(&hour_utc) { "UTC" } else { "Etc/GMT-12" }
}
