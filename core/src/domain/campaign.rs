//! A campaign: its rules, its version, its epoch.

use std::fmt;
use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claimgate_shared::campaign::AdminState;
use claimgate_shared::user_claims::Allowance;
use claimgate_shared::{
    CampaignId, CampaignState, CampaignView, Code, Limits, Problem, Timestamp, Version, Window,
};
use serde::{Deserialize, Serialize};

use super::claim_record::UserCounters;
use super::counters::{Epoch, FencingToken};
use super::high_water_mark::HighWaterMark;
use super::utc_offsets::TimeZone;

const NAME_CHARS_MAX: usize = 200;

/// A campaign as the database has it: its rules, and the state that belongs to them.
#[derive(Debug, Clone, PartialEq)]
pub struct Campaign {
    /// Its id, which never changes.
    pub id: CampaignId,
    /// Its name, for people.
    pub name: Name,
    /// The time in which claims are granted.
    pub window: Window,
    /// The time zone whose calendar days count; never changes.
    pub zone: TimeZone,
    /// How much may be claimed.
    pub limits: Limits,
    /// For how long a claim is held before it must be confirmed; `None` grants at once.
    pub hold_seconds: Option<NonZeroU32>,
    /// Whether an admin has paused or ended it.
    pub admin_state: AdminState,
    /// Raised by every change.
    pub version: Version,
    /// Raised by every load, 0 before the first: what an older epoch still wants to write is refused.
    pub epoch: Epoch,
    /// The last fencing token drawn, for suspending the campaign in Redis: what is written there under an older one is
    /// refused.
    pub token: FencingToken,
    /// The register it belongs to: Redis may hold another register's campaign of the same name.
    pub register_id: RegisterId,
    /// Its high-water mark, as far as SQL knows it.
    pub high_water_mark: HighWaterMark,
    /// When an admin last changed it.
    pub changed_at: Timestamp,
    /// Its final counters, once it is evicted.
    pub evicted: Option<Evicted>,
    /// The file whose import is unfinished, by the digest of its bytes: the campaign is evicted, and nothing is decided.
    pub unfinished_import: Option<String>,
}

/// The rules that Redis decides by: all of a campaign's but its name and its time zone, which never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppliedRules {
    /// Whether an admin has paused or ended the campaign.
    pub admin_state: AdminState,
    /// The time in which claims are granted.
    pub window: Window,
    /// How much may be claimed.
    pub limits: Limits,
    /// For how long a claim is held; `None` grants at once.
    pub hold_seconds: Option<NonZeroU32>,
    /// The version of these rules.
    pub version: Version,
}

impl AppliedRules {
    /// `campaign` by these rules.
    pub fn of(&self, campaign: &Campaign) -> Campaign {
        let Self { admin_state, window, limits, hold_seconds, version } = *self;
        Campaign { window, limits, hold_seconds, admin_state, version, ..campaign.clone() }
    }
}

/// Tells a campaign from all others of the same name: drawn at its creation, kept in its row and in its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisterId(String);

impl RegisterId {
    /// A random id that no other campaign has.
    pub(crate) fn random() -> Result<Self, Problem> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|_| {
            Problem::new(Code::Unavailable, "the system has no randomness; nothing was tried")
        })?;
        Ok(Self(URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// The id as SQL and Redis store it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for RegisterId {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// The final counters of an evicted campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evicted {
    /// Units taken.
    pub taken: u64,
    /// The last sequence given.
    pub sequence: u64,
}

impl Campaign {
    /// The view that callers get when `taken` units are taken at `now`.
    pub fn view(&self, taken: u64, now: Timestamp) -> CampaignView {
        let remaining = self.remaining(taken);
        CampaignView {
            id: self.id.clone(),
            name: self.name.0.clone(),
            state: CampaignState::at(now, self.admin_state, self.window, remaining),
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
        let total = u64::from(self.limits.total?);
        u32::try_from(total.saturating_sub(taken)).ok()
    }

    /// What is left to a user who has taken `user`, when `taken` units are taken in all, on the day `today` (days since 1970 in
    /// the campaign's time zone).
    pub fn allowance(&self, taken: u64, user: &UserCounters, today: u32) -> Allowance {
        let limits = self.limits;
        // As the script judges it: never a day before the user's last one, whatever the clock does.
        let day = today.max(user.day);
        let on_day = if user.day == day { user.on_day } else { 0 };
        let left = |limit: NonZeroU32, used: u64| {
            u32::try_from(u64::from(limit.get()).saturating_sub(used)).unwrap_or(u32::MAX)
        };
        Allowance {
            per_claim: limits.per_claim.map(NonZeroU32::get),
            per_user_per_day: limits.per_user_per_day.map(|limit| left(limit, on_day)),
            resets_at: limits.per_user_per_day.map(|_| self.zone.day_end(day.into())),
            per_user: limits.per_user.map(|limit| left(limit, user.ever)),
            total: self.remaining(taken),
        }
    }

    /// Since when no claim can be granted any more; `None` while one still can, or may again.
    pub fn over_since(&self, now: Timestamp) -> Option<Timestamp> {
        match self.admin_state {
            AdminState::Ended => Some(self.changed_at),
            AdminState::On | AdminState::Paused => {
                self.window.ends_at().filter(|end| *end <= now).map(|end| end.max(self.changed_at))
            }
        }
    }

    /// Whether claims on `other` are decided by the same rules.
    pub fn decides_as(&self, other: &Self) -> bool {
        self.same_rules(other) && self.admin_state == other.admin_state
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
