//! Instants: RFC 3339 with offset on the way in, UTC with milliseconds on the way out.

use std::fmt;
use std::str::FromStr;

use jiff::fmt::temporal::DateTimePrinter;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The last instant that RFC 3339 can write: 9999-12-31T23:59:59.999Z.
const LAST_MS: i64 = 253_402_300_799_999;

/// Milliseconds since 1970-01-01T00:00:00Z (the default), up to the end of the year 9999.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime, example = "2026-11-21T08:00:00.000Z"))]
pub struct Timestamp(i64);

/// Why a text or a number is not a [`Timestamp`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be an RFC 3339 time with offset, such as 2026-11-21T08:00:00Z, from 1970 to 9999")]
pub struct TimestampError;

impl Timestamp {
    /// The instant `ms` milliseconds after 1970-01-01T00:00:00Z; refused before that and after the year 9999.
    pub fn from_ms(ms: i64) -> Result<Self, TimestampError> {
        if (0..=LAST_MS).contains(&ms) { Ok(Self(ms)) } else { Err(TimestampError) }
    }

    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub fn as_ms(self) -> i64 {
        self.0
    }

    /// This instant moved by `ms`, held within what a timestamp can be.
    #[must_use]
    pub fn saturating_add_ms(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms).clamp(0, LAST_MS))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(3));
        let instant = jiff::Timestamp::from_millisecond(self.0).map_err(|_| fmt::Error)?;
        PRINTER.print_timestamp(&instant, jiff::fmt::StdFmtWrite(f)).map_err(|_| fmt::Error)
    }
}

impl FromStr for Timestamp {
    type Err = TimestampError;
    fn from_str(text: &str) -> Result<Self, TimestampError> {
        // jiff reads all of Temporal's grammar; RFC 3339 is the part with a 'T', and no `[zone]` behind it.
        let rfc3339 =
            text.as_bytes().get(10).is_some_and(|t| *t == b'T' || *t == b't') && !text.contains('[');
        let instant = rfc3339.then(|| text.parse::<jiff::Timestamp>()).ok_or(TimestampError)?;
        Self::from_ms(instant.map_err(|_| TimestampError)?.as_millisecond())
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn offsets_are_read_and_utc_is_written() {
        let instant: Timestamp = "2026-11-21T16:00:00.5+08:00".parse().unwrap();
        assert_eq!(instant.to_string(), "2026-11-21T08:00:00.500Z");
    }

    #[test]
    fn what_is_not_rfc_3339_is_refused() {
        for text in [
            "",
            "2026-11-21",
            "2026-11-21T08:00:00",
            "2026-11-21 08:00:00Z",
            "1763712000",
            "1969-12-31T23:59:59Z",
            "2026-13-01T00:00:00Z",
            "2026-11-21T08:00:00Z[UTC]",
        ] {
            assert_eq!(text.parse::<Timestamp>(), Err(TimestampError), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_instant_reads_back(ms in 0..=LAST_MS) {
            let instant = Timestamp::from_ms(ms).unwrap();
            prop_assert_eq!(instant.to_string().parse::<Timestamp>().unwrap(), instant);
        }
    }
}
