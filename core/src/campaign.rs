//! A campaign as the register keeps it: its rules, its version, its epoch; and its calendar.

use std::fmt;
use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claimgate_shared::campaign::Switch;
use claimgate_shared::problem::{object, parse_json};
use claimgate_shared::{CampaignId, CampaignState, CampaignView, Code, Limits, Problem, Timestamp, Window};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, civil};
use serde::{Deserialize, Deserializer, Serialize};

use crate::clock;

/// How far ahead the calendar of a campaign is laid out in Redis, in days; past it nothing is decided.
const CALENDAR_AHEAD_DAYS: i64 = 500;
/// How far back, so that a clock set back still finds its day.
const CALENDAR_BACK_DAYS: i64 = 400;
const NAME_CHARS_MAX: usize = 200;
const DAY_S: i64 = 86_400;

/// The rules of a campaign and what else the register knows of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Campaign {
    /// Its id, for ever.
    pub id: CampaignId,
    /// Its name, for people.
    pub name: Name,
    /// When claims are decided.
    pub window: Window,
    /// Whose calendar days count; never changes.
    pub zone: Zone,
    /// How much may be claimed.
    pub limits: Limits,
    /// For how long a claim is held before it must be confirmed; `None` grants at once.
    pub hold_seconds: Option<NonZeroU32>,
    /// What an admin has set by hand.
    pub switch: Switch,
    /// Raised by every change.
    pub version: u64,
    /// Raised by every load, 0 before the first: what an older epoch still wants to write is refused.
    pub epoch: u64,
    /// Raised by everyone who is about to suspend the campaign in Redis: what is written there under an older one is
    /// refused.
    pub token: u64,
    /// Which register's campaign it is: Redis may hold another one's of the same name.
    pub register_id: RegisterId,
    /// How far SQL knows it to have come.
    pub reached: Reached,
    /// When an admin last changed it.
    pub changed_at: Timestamp,
    /// Set once the campaign is over and has left Redis.
    pub archived: Option<Archived>,
}

/// How far a campaign is known to have come in Redis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reached {
    /// The last sequence given.
    pub sequence: u64,
    /// Grants, confirmations, returns and expiries so far: a Redis with fewer has lost some.
    pub events: u64,
}

impl Reached {
    /// As far as the further of the two, in each count.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { sequence: self.sequence.max(other.sequence), events: self.events.max(other.events) }
    }
}

/// Told from all others that ever had the same name: drawn at a campaign's creation, kept in its row and in its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisterId(String);

impl RegisterId {
    /// One that no other campaign has.
    fn random() -> Result<Self, Problem> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|_| {
            Problem::new(Code::Unavailable, "the system has no randomness; nothing was tried")
        })?;
        Ok(Self(URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// As SQL and Redis have it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for RegisterId {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// What a campaign came to before it left Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Archived {
    /// Units taken.
    pub taken: u64,
    /// The last sequence given.
    pub sequence: u64,
}

impl Campaign {
    /// The view of it when `taken` units are taken at `now`.
    pub fn view(&self, taken: u64, now: Timestamp) -> CampaignView {
        let remaining = self.remaining(taken);
        CampaignView {
            id: self.id.clone(),
            name: self.name.0.clone(),
            state: CampaignState::at(now, self.switch, self.window, remaining),
            window: self.window,
            time_zone: self.zone.name().to_owned(),
            limits: self.limits,
            remaining,
            version: self.version,
            server_time: now,
        }
    }

    /// Units left of `total` when `taken` are taken; never below 0, `None` when unlimited.
    pub fn remaining(&self, taken: u64) -> Option<u32> {
        let total = u64::from(self.limits.total?.get());
        u32::try_from(total.saturating_sub(taken)).ok()
    }

    /// Since when no claim can be granted any more; `None` while one still can, or may again.
    pub fn over_since(&self, now: Timestamp) -> Option<Timestamp> {
        match self.switch {
            Switch::Ended => Some(self.changed_at),
            Switch::On | Switch::Paused => {
                self.window.ends_at().filter(|end| *end <= now).map(|end| end.max(self.changed_at))
            }
        }
    }

    /// Whether `other` has the same rules: name, window, zone, limits and hold.
    pub fn same_rules(&self, other: &Self) -> bool {
        (&self.name, self.window, &self.zone, self.limits, self.hold_seconds)
            == (&other.name, other.window, &other.zone, other.limits, other.hold_seconds)
    }
}

/// A campaign's name: 1 to 200 characters, none of them a control character.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Name(String);

impl TryFrom<String> for Name {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        let count = text.chars().count();
        if (1..=NAME_CHARS_MAX).contains(&count) && !text.chars().any(char::is_control) {
            Ok(Self(text))
        } else {
            Err("must be 1 to 200 characters, without control characters")
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An IANA time zone of the zone data built into core.
#[derive(Debug, Clone, PartialEq)]
pub struct Zone(TimeZone);

impl TryFrom<String> for Zone {
    type Error = &'static str;
    fn try_from(name: String) -> Result<Self, Self::Error> {
        let zone = TimeZone::get(&name).map_err(|_| "must be an IANA time zone, such as Asia/Shanghai")?;
        // `get` does not mind upper and lower case; the register does.
        match zone.iana_name() {
            Some(iana) if iana == name => Ok(Self(zone)),
            _ => Err("must be an IANA time zone, spelt as in the database, such as Asia/Shanghai"),
        }
    }
}

impl Default for Zone {
    fn default() -> Self {
        Self(TimeZone::UTC)
    }
}

impl<'de> Deserialize<'de> for Zone {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.try_into().map_err(serde::de::Error::custom)
    }
}

/// The offsets of a zone from UTC, as the script reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calendar {
    /// Pairs of (first second since 1970: 5 bytes, seconds ahead of UTC: 4 bytes, signed), big endian.
    pub offsets: Vec<u8>,
    /// The first instant that is not covered.
    pub until: Timestamp,
}

impl Zone {
    /// The zone's IANA name.
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// The zone's offsets around `now`: 400 days back and 500 ahead.
    pub fn calendar(&self, now: Timestamp) -> Calendar {
        let day = SignedDuration::from_secs(DAY_S);
        let instant = instant(now);
        let from =
            instant.saturating_sub(day * i32::try_from(CALENDAR_BACK_DAYS).unwrap_or(0)).unwrap_or(instant);
        let until = now.saturating_add_ms(CALENDAR_AHEAD_DAYS * DAY_S * 1000);
        let mut offsets = Vec::new();
        let mut push = |second: i64, ahead: i32| {
            offsets.extend_from_slice(&second.max(0).to_be_bytes()[3..]);
            offsets.extend_from_slice(&ahead.to_be_bytes());
        };
        push(0, self.0.to_offset(from).seconds());
        for change in
            self.0.following(from).take_while(|change| change.timestamp().as_millisecond() < until.as_ms())
        {
            push(change.timestamp().as_second(), change.offset().seconds());
        }
        Calendar { offsets, until }
    }

    /// When the day after `day` (days since 1970 in this zone) begins.
    pub fn day_end(&self, day: i64) -> Timestamp {
        date_of(day + 1)
            .and_then(|date| date.to_zoned(self.0.clone()).ok())
            .and_then(|midnight| Timestamp::from_ms(midnight.timestamp().as_millisecond()).ok())
            // A day past the year 9999 does not come back.
            .unwrap_or_else(|| Timestamp::default().saturating_add_ms(i64::MAX))
    }
}

/// `day` (days since 1970) as a calendar date, such as 2026-11-21.
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

/// `POST /admin/v1/campaigns`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCampaign {
    id: CampaignId,
    #[schema(value_type = String, min_length = 1, max_length = 200)]
    name: Name,
    starts_at: Timestamp,
    #[serde(default)]
    ends_at: Option<Timestamp>,
    #[serde(default)]
    #[schema(value_type = String, default = "UTC", example = "Asia/Shanghai")]
    time_zone: Zone,
    #[serde(default, deserialize_with = "object")]
    limits: Limits,
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 1)]
    hold_seconds: Option<NonZeroU32>,
}

impl NewCampaign {
    /// Reads the body; a problem names the field that is wrong.
    pub fn parse(body: &[u8]) -> Result<Campaign, Problem> {
        let new: Self = parse_json(body)?;
        Ok(Campaign {
            id: new.id,
            name: new.name,
            window: window(new.starts_at, new.ends_at)?,
            zone: new.time_zone,
            limits: new.limits,
            hold_seconds: new.hold_seconds,
            switch: Switch::On,
            version: 1,
            epoch: 0,
            token: 0,
            register_id: RegisterId::random()?,
            reached: Reached::default(),
            changed_at: clock::now(),
            archived: None,
        })
    }
}

/// `PATCH /admin/v1/campaigns/{id}`: what is left out stays as it is; `null` takes a limit or the end away.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(clippy::option_option)] // left out, null and a time are three things here
pub struct CampaignPatch {
    /// The version this change was made against.
    pub version: u64,
    #[schema(value_type = Option<String>)]
    name: Option<Name>,
    starts_at: Option<Timestamp>,
    #[serde(default, deserialize_with = "given")]
    ends_at: Option<Option<Timestamp>>,
    #[serde(default, deserialize_with = "object")]
    limits: LimitsPatch,
}

/// The limits of a [`CampaignPatch`].
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(clippy::option_option)] // left out, null and a number are three things here
pub struct LimitsPatch {
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    total: Option<Option<NonZeroU32>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    per_user: Option<Option<NonZeroU32>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    per_user_per_day: Option<Option<NonZeroU32>>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    per_claim: Option<Option<NonZeroU32>>,
}

/// Tells `null` (given) from left out (not given).
#[allow(clippy::option_option)]
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl CampaignPatch {
    /// Reads the body; a problem names the field that is wrong.
    pub fn parse(body: &[u8]) -> Result<Self, Problem> {
        parse_json(body)
    }

    /// `campaign` with this change made and its version raised.
    pub fn apply(self, campaign: &Campaign) -> Result<Campaign, Problem> {
        let starts_at = self.starts_at.unwrap_or_else(|| campaign.window.starts_at());
        let ends_at = self.ends_at.unwrap_or_else(|| campaign.window.ends_at());
        let now = campaign.limits;
        Ok(Campaign {
            name: self.name.unwrap_or_else(|| campaign.name.clone()),
            window: window(starts_at, ends_at)?,
            limits: Limits {
                total: self.limits.total.unwrap_or(now.total),
                per_user: self.limits.per_user.unwrap_or(now.per_user),
                per_user_per_day: self.limits.per_user_per_day.unwrap_or(now.per_user_per_day),
                per_claim: self.limits.per_claim.unwrap_or(now.per_claim),
            },
            version: campaign.version + 1,
            archived: None,
            ..campaign.clone()
        })
    }
}

fn window(starts_at: Timestamp, ends_at: Option<Timestamp>) -> Result<Window, Problem> {
    Window::new(starts_at, ends_at).map_err(|backwards| Problem::invalid("ends_at", backwards))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn zone(name: &str) -> Zone {
        name.to_owned().try_into().unwrap()
    }

    #[test]
    fn the_calendar_of_new_york_has_both_steps_of_a_year() {
        let calendar = zone("America/New_York").calendar(at("2026-01-15T00:00:00Z"));
        let entries: Vec<(i64, i32)> = calendar
            .offsets
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
        assert!(calendar.until >= at("2027-02-19T00:00:00Z"));
    }

    #[test]
    fn a_day_ends_at_local_midnight_also_when_the_clocks_change() {
        let new_york = zone("America/New_York");
        let day = |text: &str| {
            i64::from((text.parse::<civil::Date>().unwrap() - civil::date(1970, 1, 1)).get_days())
        };
        assert_eq!(new_york.day_end(day("2026-03-07")), at("2026-03-08T05:00:00Z"));
        assert_eq!(new_york.day_end(day("2026-03-08")), at("2026-03-09T04:00:00Z"));
        assert_eq!(zone("Asia/Shanghai").day_end(day("2026-11-21")), at("2026-11-21T16:00:00Z"));
    }

    #[test]
    fn zones_are_names_of_the_database() {
        for good in ["UTC", "Asia/Shanghai", "America/New_York"] {
            assert_eq!(zone(good).name(), good);
        }
        for bad in ["", "Mars/Olympus", "asia/shanghai", "+08:00", "../etc/passwd"] {
            assert!(Zone::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_patch_keeps_what_it_leaves_out() {
        let body =
            br#"{"id":"d","name":"D","starts_at":"2026-01-01T00:00:00Z","ends_at":"2026-02-01T00:00:00Z",
            "limits":{"total":10,"per_user":2}}"#;
        let campaign = NewCampaign::parse(body).unwrap();
        let patch =
            |body: &str| CampaignPatch::parse(body.as_bytes()).and_then(|patch| patch.apply(&campaign));
        let changed = patch(r#"{"version":1,"ends_at":null,"limits":{"total":null,"per_claim":1}}"#).unwrap();
        assert_eq!(changed.window.ends_at(), None);
        assert_eq!((changed.limits.total, changed.limits.per_user), (None, NonZeroU32::new(2)));
        assert_eq!((changed.limits.per_claim, changed.version), (NonZeroU32::new(1), 2));
        for (body, field) in [
            (r#"{"version":1,"time_zone":"UTC"}"#, "time_zone"),
            (r#"{"version":1,"limits":{"total":0}}"#, "limits.total"),
            (r#"{"version":1,"limits":[1,2,3,4]}"#, "limits"),
            (r#"{"version":1,"starts_at":"2026-03-01T00:00:00Z"}"#, "ends_at"),
            ("{}", "body"),
        ] {
            assert_eq!(patch(body).unwrap_err().members.field.as_deref(), Some(field), "{body}");
        }
    }
}
