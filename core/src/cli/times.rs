//! Times on the command line, read and shown in the campaign's time zone.

use std::str::FromStr;

use claimgate_shared::Timestamp;
use jiff::civil::{DateTime, Time};
use jiff::tz::AmbiguousOffset;
use jiff::{Span, Zoned};
use serde_json::Value;

use crate::domain::days::TimeZone;

/// The accepted forms of a time, for error messages.
const FORMS: &str = "must be a time such as '2026-12-01 08:00' or 'tomorrow 08:00' in the campaign's time zone, \
                     2026-12-01T08:00:00+08:00, now, or +10m from now";

/// A time as given; its instant may depend on the campaign's time zone.
#[derive(Debug, Clone, Copy)]
pub enum TimeArg {
    /// An instant, given with its offset from UTC.
    At(Timestamp),
    /// A date and a time of day.
    Local(DateTime),
    /// A number of days from today, and a time of day.
    Day(i64, Time),
    /// A span from now.
    Later(Span),
}

impl FromStr for TimeArg {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "now" {
            return Ok(Self::Later(Span::new()));
        }
        if let Some(span) = text.strip_prefix('+') {
            return later(span).ok_or(FORMS);
        }
        let (first, rest) = text.split_once(' ').unwrap_or((text, ""));
        match first {
            "today" => time_of_day(rest).map(|time| Self::Day(0, time)),
            "tomorrow" => time_of_day(rest).map(|time| Self::Day(1, time)),
            _ => with_offset(text).map(Self::At).or_else(|| local(text).map(Self::Local)),
        }
        .ok_or(FORMS)
    }
}

fn later(span: &str) -> Option<TimeArg> {
    let span: Span = span.starts_with(|first: char| first.is_ascii_digit()).then(|| span.parse().ok())??;
    (!span.is_negative()).then_some(TimeArg::Later(span))
}

/// Parses an RFC 3339 time; the `T` may be a space, and seconds may be absent.
fn with_offset(text: &str) -> Option<Timestamp> {
    let at: jiff::Timestamp = text.parse().ok()?;
    Timestamp::from_ms(at.as_millisecond()).ok()
}

// Uses fixed formats: jiff's parser would also accept a date without a time, or ignore an offset.
fn local(text: &str) -> Option<DateTime> {
    let text = text.replacen('T', " ", 1);
    ["%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S"].iter().find_map(|form| DateTime::strptime(form, &text).ok())
}

fn time_of_day(text: &str) -> Option<Time> {
    ["%H:%M", "%H:%M:%S"].iter().find_map(|form| Time::strptime(form, text).ok())
}

impl TimeArg {
    /// Returns whether the instant depends on the time at which the command runs.
    pub fn is_relative(self) -> bool {
        matches!(self, Self::Day(..) | Self::Later(_))
    }

    /// Returns the time's instant in `zone`, with `now` rounded down to a second.
    ///
    /// # Errors
    /// A message if a clock change skips or repeats the time, or if it is outside the range of timestamps.
    pub fn instant(self, zone: &TimeZone, now: Timestamp) -> Result<Timestamp, String> {
        let today = zoned(now.saturating_add_ms(-(now.as_ms() % 1000)), zone);
        match self {
            Self::At(at) => Ok(at),
            Self::Local(local) => in_zone(local, zone),
            Self::Day(days, time) => {
                let day =
                    today.date().checked_add(Span::new().days(days)).map_err(|error| error.to_string())?;
                in_zone(day.to_datetime(time), zone)
            }
            Self::Later(span) => timestamp(&today.checked_add(span).map_err(|error| error.to_string())?),
        }
    }
}

fn in_zone(local: DateTime, zone: &TimeZone) -> Result<Timestamp, String> {
    let ambiguous = zone.rules().to_ambiguous_zoned(local);
    let (day, name) = (local.strftime("%Y-%m-%d %H:%M"), zone.name());
    match ambiguous.offset() {
        AmbiguousOffset::Unambiguous { .. } => {
            timestamp(&ambiguous.unambiguous().map_err(|error| error.to_string())?)
        }
        AmbiguousOffset::Gap { .. } => Err(format!(
            "{day} does not exist in {name}, because the clocks go forward then; give another time"
        )),
        AmbiguousOffset::Fold { before, after } => {
            let [before, after] =
                [before, after].map(|offset| local.to_zoned(offset.to_time_zone()).map(|at| shown_as(&at)));
            match (before, after) {
                (Ok(before), Ok(after)) => {
                    Err(format!("{day} occurs twice in {name}; give '{before}' or '{after}'"))
                }
                (Err(error), _) | (_, Err(error)) => Err(error.to_string()),
            }
        }
    }
}

fn timestamp(at: &Zoned) -> Result<Timestamp, String> {
    Timestamp::from_ms(at.timestamp().as_millisecond()).map_err(|_| "must be from 1970 to 9999".to_owned())
}

fn zoned(at: Timestamp, zone: &TimeZone) -> Zoned {
    let at = jiff::Timestamp::from_millisecond(at.as_ms()).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    at.to_zoned(zone.rules().clone())
}

/// Returns the time zone of a campaign from core's response; UTC if this version does not support the zone.
pub fn zone_of(campaign: &Value) -> TimeZone {
    campaign["time_zone"].as_str().and_then(|name| name.parse().ok()).unwrap_or_default()
}

/// Formats `at` in `zone` with its offset, such as `2026-12-01 08:00+08:00`, with seconds and milliseconds
/// only if they are not zero. Flags accept this form.
pub fn shown(at: Timestamp, zone: &TimeZone) -> String {
    shown_as(&zoned(at, zone))
}

fn shown_as(at: &Zoned) -> String {
    let form = match (at.second(), at.millisecond()) {
        (0, 0) => "%Y-%m-%d %H:%M%:z",
        (_, 0) => "%Y-%m-%d %H:%M:%S%:z",
        _ => "%Y-%m-%d %H:%M:%S%.3f%:z",
    };
    at.strftime(form).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-27 21:46:05.250 in Shanghai.
    const NOW: &str = "2026-11-27T13:46:05.250Z";

    fn instant(text: &str, zone: &str) -> Result<String, String> {
        let arg: TimeArg = text.parse().map_err(str::to_owned)?;
        let at = arg.instant(&zone.parse().unwrap(), NOW.parse().unwrap())?;
        Ok(at.to_string())
    }

    #[test]
    fn a_time_is_read_in_the_campaigns_zone() {
        for (text, zone, at) in [
            ("2026-12-01 08:00", "Asia/Shanghai", "2026-12-01T00:00:00.000Z"),
            ("2026-12-01T08:00:30", "Asia/Shanghai", "2026-12-01T00:00:30.000Z"),
            ("2026-12-01 08:00", "UTC", "2026-12-01T08:00:00.000Z"),
            ("tomorrow 08:00", "Asia/Shanghai", "2026-11-28T00:00:00.000Z"),
            ("tomorrow 08:00", "Pacific/Kiritimati", "2026-11-28T18:00:00.000Z"),
            ("today 23:30:15", "Asia/Shanghai", "2026-11-27T15:30:15.000Z"),
            ("now", "UTC", "2026-11-27T13:46:05.000Z"),
            ("+10m", "UTC", "2026-11-27T13:56:05.000Z"),
            ("+1h30m", "UTC", "2026-11-27T15:16:05.000Z"),
            ("+90s", "UTC", "2026-11-27T13:47:35.000Z"),
            ("+30d", "Asia/Shanghai", "2026-12-27T13:46:05.000Z"),
            // With an offset the zone does not matter.
            ("2026-12-01T08:00:00+08:00", "America/New_York", "2026-12-01T00:00:00.000Z"),
            ("2026-12-01T00:00:00.250Z", "Asia/Shanghai", "2026-12-01T00:00:00.250Z"),
            ("2026-12-01 08:00+08:00", "UTC", "2026-12-01T00:00:00.000Z"),
            ("2026-03-29 03:30", "Europe/Berlin", "2026-03-29T01:30:00.000Z"),
        ] {
            assert_eq!(instant(text, zone).as_deref(), Ok(at), "{text} in {zone}");
        }
    }

    #[test]
    fn malformed_times_are_rejected() {
        for text in [
            "",
            "soon",
            "2026-12-01",
            "08:00",
            "tomorrow",
            "tomorrow 8",
            "tomorrow 25:00",
            "+10",
            "+",
            "+-10m",
            "-10m",
            "+10m ago",
            "2026-02-29 08:00",
            "2026-12-01 08:00 ",
            "2026-12-01 24:00",
            "1763712000",
            "1969-12-31T00:00:00Z",
        ] {
            assert_eq!(instant(text, "UTC"), Err(FORMS.to_owned()), "{text}");
        }
        assert!(instant("1969-12-31 08:00", "UTC").unwrap_err().contains("from 1970 to 9999"));
        assert!(instant("+999999d", "UTC").is_ok());
        assert!(instant("+9999999d", "UTC").is_err());
    }

    #[test]
    fn skipped_and_repeated_local_times_are_rejected() {
        let gap = instant("2027-03-28 02:30", "Europe/Berlin").unwrap_err();
        assert!(gap.contains("2027-03-28 02:30 does not exist in Europe/Berlin"), "{gap}");
        let fold = instant("2027-10-31 02:30", "Europe/Berlin").unwrap_err();
        assert!(fold.contains("'2027-10-31 02:30+02:00' or '2027-10-31 02:30+01:00'"), "{fold}");
        for (text, at) in [
            ("2027-10-31 02:30+02:00", "2027-10-31T00:30:00.000Z"),
            ("2027-10-31 02:30+01:00", "2027-10-31T01:30:00.000Z"),
        ] {
            assert_eq!(instant(text, "Europe/Berlin").as_deref(), Ok(at));
        }
    }

    #[test]
    fn a_printed_time_is_accepted_as_a_flag_value() {
        for (at, zone, text) in [
            ("2026-12-01T00:00:00Z", "Asia/Shanghai", "2026-12-01 08:00+08:00"),
            ("2026-12-01T00:00:00Z", "UTC", "2026-12-01 00:00+00:00"),
            ("2026-12-01T00:00:05Z", "America/St_Johns", "2026-11-30 20:30:05-03:30"),
            (NOW, "Asia/Shanghai", "2026-11-27 21:46:05.250+08:00"),
        ] {
            let (at, zone): (Timestamp, TimeZone) = (at.parse().unwrap(), zone.parse().unwrap());
            assert_eq!(shown(at, &zone), text);
            assert!(matches!(text.parse(), Ok(TimeArg::At(read)) if read == at), "{text}");
        }
    }
}
