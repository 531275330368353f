//! Core's own clock. It judges no window and no day (Redis' clock does); it dates signatures and lays out calendars.

use std::time::{SystemTime, UNIX_EPOCH};

use claimgate_shared::Timestamp;

/// The wall clock, held within what a [`Timestamp`] can be.
pub fn now() -> Timestamp {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ms = i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX);
    Timestamp::default().saturating_add_ms(ms)
}
