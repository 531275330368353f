//! Days of a time zone: UTC offsets in the scripts' format, and the ends of days.
//!
//! No job resets a user's count of the day. `lua/claim.lua` starts the count at 0 for a user whose last day is
//! before today, and `day_at` in `lua/prelude.lua` returns today.

use std::str::FromStr;

use claimgate_shared::Timestamp;
use jiff::{SignedDuration, civil, tz};
use serde::{Deserialize, Deserializer};

use crate::nearest::{nearest, suggestion};

/// Number of days ahead that a campaign's UTC offsets in Redis cover. After that no claim is decided.
const OFFSETS_AHEAD_DAYS: i64 = 500;
/// Number of past days that the UTC offsets cover, so that a clock that was set back still finds its day.
const OFFSETS_BACK_DAYS: i64 = 400;
const DAY_S: i64 = 86_400;

/// An IANA time zone from the zone data built into core.
#[derive(Debug, Clone, PartialEq)]
pub struct TimeZone(tz::TimeZone);

/// The reason why a string is not a valid [`TimeZone`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be an IANA time zone{}", .near.as_deref().map_or_else(|| ", such as Asia/Shanghai".to_owned(), suggestion))]
pub struct TimeZoneError {
    /// The nearest valid name.
    near: Option<String>,
}

impl FromStr for TimeZone {
    type Err = TimeZoneError;
    fn from_str(name: &str) -> Result<Self, TimeZoneError> {
        // `get` ignores case; the database does not.
        match tz::TimeZone::get(name) {
            Ok(zone) if zone.iana_name() == Some(name) => Ok(Self(zone)),
            _ => Err(TimeZoneError { near: near(name) }),
        }
    }
}

/// Returns the zone whose name or city is nearest to `name`.
fn near(name: &str) -> Option<String> {
    let zones: Vec<_> = tz::db().available().map(|zone| zone.to_string()).collect();
    let names = || zones.iter().map(String::as_str);
    if let Some(found) = nearest(name, names()) {
        return Some(found.to_owned());
    }
    let city = |zone: &'_ str| zone.rsplit('/').next().unwrap_or_default().to_owned();
    let cities: Vec<_> = names().map(city).collect();
    let found = nearest(name, cities.iter().map(String::as_str))?;
    zones.iter().find(|zone| city(zone) == found).cloned()
}

impl TryFrom<String> for TimeZone {
    type Error = TimeZoneError;
    fn try_from(name: String) -> Result<Self, TimeZoneError> {
        name.parse()
    }
}

impl Default for TimeZone {
    fn default() -> Self {
        Self(tz::TimeZone::UTC)
    }
}

impl<'de> Deserialize<'de> for TimeZone {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.try_into().map_err(serde::de::Error::custom)
    }
}

/// A zone's UTC offsets in the scripts' format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UtcOffsets {
    /// Pairs of (first second since 1970: 5 bytes, seconds ahead of UTC: 4 bytes, signed), big endian.
    pub packed: Vec<u8>,
    /// The first instant after the offsets.
    pub until: Timestamp,
}

impl TimeZone {
    /// Returns the zone's IANA name.
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// Returns the time zone with all of its transition rules.
    pub fn rules(&self) -> &tz::TimeZone {
        &self.0
    }

    /// Returns the zone's UTC offsets around `now`: 400 days back and 500 ahead.
    pub fn utc_offsets(&self, now: Timestamp) -> UtcOffsets {
        let day = SignedDuration::from_secs(DAY_S);
        let instant = instant(now);
        let from =
            instant.saturating_sub(day * i32::try_from(OFFSETS_BACK_DAYS).unwrap_or(0)).unwrap_or(instant);
        let until = now.saturating_add_ms(OFFSETS_AHEAD_DAYS * DAY_S * 1000);
        let mut packed = Vec::new();
        let mut push = |second: i64, ahead: i32| {
            packed.extend_from_slice(&second.max(0).to_be_bytes()[3..]);
            packed.extend_from_slice(&ahead.to_be_bytes());
        };
        push(0, self.0.to_offset(from).seconds());
        for change in
            self.0.following(from).take_while(|change| change.timestamp().as_millisecond() < until.as_ms())
        {
            push(change.timestamp().as_second(), change.offset().seconds());
        }
        UtcOffsets { packed, until }
    }

    /// Returns the calendar day at `at`, in days since 1970.
    pub fn day_of(&self, at: Timestamp) -> u32 {
        let days = instant(at).to_zoned(self.0.clone()).date() - civil::date(1970, 1, 1);
        u32::try_from(days.get_days()).unwrap_or(0)
    }

    /// Returns the start of the day after `day` (days since 1970 in this zone).
    pub fn day_end(&self, day: i64) -> Timestamp {
        date_of(day + 1)
            .and_then(|date| date.to_zoned(self.0.clone()).ok())
            .and_then(|midnight| Timestamp::from_ms(midnight.timestamp().as_millisecond()).ok())
            // A day after the year 9999 never ends.
            .unwrap_or_else(|| Timestamp::default().saturating_add_ms(i64::MAX))
    }
}

/// Formats `day` (days since 1970) as a calendar date, such as 2026-11-21.
pub fn day_text(day: i64) -> String {
    date_of(day).map_or_else(|| day.to_string(), |date| date.to_string())
}

fn date_of(day: i64) -> Option<civil::Date> {
    let days = jiff::Span::new().try_days(day).ok()?;
    civil::date(1970, 1, 1).checked_add(days).ok()
}

fn instant(at: Timestamp) -> jiff::Timestamp {
    jiff::Timestamp::from_millisecond(at.as_ms()).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn zone(name: &str) -> TimeZone {
        name.to_owned().try_into().unwrap()
    }

    #[test]
    fn the_offsets_of_new_york_have_both_changes_of_a_year() {
        let utc_offsets = zone("America/New_York").utc_offsets(at("2026-01-15T00:00:00Z"));
        let entries: Vec<(i64, i32)> = utc_offsets
            .packed
            .chunks(9)
            .map(|entry| {
                let mut second = [0; 8];
                second[3..].copy_from_slice(&entry[..5]);
                (i64::from_be_bytes(second), i32::from_be_bytes(entry[5..].try_into().unwrap()))
            })
            .collect();
        let spring = at("2026-03-08T07:00:00Z").as_ms() / 1000;
        let autumn = at("2026-11-01T06:00:00Z").as_ms() / 1000;
        assert!(
            entries.contains(&(spring, -4 * 3600)) && entries.contains(&(autumn, -5 * 3600)),
            "{entries:?}"
        );
        assert_eq!(entries[0].0, 0);
        assert!(utc_offsets.until >= at("2027-02-19T00:00:00Z"));
    }

    #[test]
    fn a_day_ends_at_local_midnight_even_if_the_clocks_change() {
        let new_york = zone("America/New_York");
        let day = |text: &str| {
            i64::from((text.parse::<civil::Date>().unwrap() - civil::date(1970, 1, 1)).get_days())
        };
        assert_eq!(new_york.day_end(day("2026-03-07")), at("2026-03-08T05:00:00Z"));
        assert_eq!(new_york.day_end(day("2026-03-08")), at("2026-03-09T04:00:00Z"));
        assert_eq!(zone("Asia/Shanghai").day_end(day("2026-11-21")), at("2026-11-21T16:00:00Z"));
    }

    #[test]
    fn a_day_is_the_local_date_in_the_time_zone() {
        for (name, text, day) in [
            ("UTC", "1970-01-01T23:59:59Z", 0),
            ("Asia/Shanghai", "1970-01-01T15:59:59Z", 0),
            ("Asia/Shanghai", "1970-01-01T16:00:00Z", 1),
            ("America/New_York", "2026-03-08T04:59:59Z", 20_519),
            ("America/New_York", "2026-03-08T05:00:00Z", 20_520),
        ] {
            assert_eq!(zone(name).day_of(at(text)), day, "{name} {text}");
        }
    }

    #[test]
    fn zones_are_names_of_the_time_zone_database() {
        for good in ["UTC", "Asia/Shanghai", "America/New_York"] {
            assert_eq!(zone(good).name(), good);
        }
        for bad in ["", "Mars/Olympus", "asia/shanghai", "+08:00", "../etc/passwd"] {
            assert!(TimeZone::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_nearest_zone_is_suggested() {
        for (name, meant) in [
            ("Shanghai", Some("Asia/Shanghai")),
            ("asia/shanghai", Some("Asia/Shanghai")),
            ("Europe/Berln", Some("Europe/Berlin")),
            ("utc", Some("UTC")),
            ("New York", Some("America/New_York")),
            ("Mars/Olympus", None),
            ("CST", None),
            ("+08:00", None),
        ] {
            let error = name.parse::<TimeZone>().unwrap_err();
            assert_eq!(error.near.as_deref(), meant, "{name}: {error}");
        }
    }
}
