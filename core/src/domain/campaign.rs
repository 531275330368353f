//! Campaigns: rules, version and epoch.

use std::fmt;
use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claimgate_shared::campaign::AdminState;
use claimgate_shared::user_claims::Allowance;
use claimgate_shared::user_id::Scheme;
use claimgate_shared::{
    CampaignId, CampaignState, CampaignView, Code, Limits, PassRule, Problem, Timestamp, Version, Window,
};
use serde::{Deserialize, Serialize};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

use super::claim_record::UserCounters;
use super::codes::CodeStock;
use super::counters::{Epoch, FencingToken};
use super::days::TimeZone;
use super::free_text::{self, TextError};
use super::high_water_mark::HighWaterMark;

const NAME_CHARS_MAX: usize = 200;
/// Maximum number of units that a campaign can count, regardless of its limits: the scripts count in 5 bytes.
pub const UNITS_MAX: u64 = (1 << 40) - 1;

/// A campaign as stored in the database: rules and state.
#[derive(Debug, Clone, PartialEq)]
pub struct Campaign {
    /// The id, which never changes.
    pub id: CampaignId,
    /// The display name.
    pub name: Name,
    /// The time in which claims are granted.
    pub window: Window,
    /// The time zone of the daily limit's calendar days; it never changes.
    pub zone: TimeZone,
    /// The limits on units that may be claimed.
    pub limits: Limits,
    /// TTL of a hold that is not confirmed; `None` if claims are granted immediately.
    pub hold_seconds: Option<NonZeroU32>,
    /// When claims by browsers need a pass; `None` if they never do.
    pub pass: Option<PassRule>,
    /// The codes that claims get, as SQL had them when this was read; `None` for a campaign without codes,
    /// which never changes.
    pub codes: Option<CodeStock>,
    /// Whether an admin has paused or ended the campaign.
    pub admin_state: AdminState,
    /// Raised by every change.
    pub version: Version,
    /// Raised by every load into Redis; 0 before the first load. Writes of an older epoch are rejected.
    pub epoch: Epoch,
    /// The last fencing token issued for suspending the campaign in Redis, which rejects writes under older
    /// tokens.
    pub token: FencingToken,
    /// The identity of the database that the campaign belongs to. Redis may hold another database's campaign
    /// with the same id.
    pub register_id: RegisterId,
    /// The high-water mark that SQL has recorded.
    pub high_water_mark: HighWaterMark,
    /// The time of the last change by an admin.
    pub changed_at: Timestamp,
    /// The final counters of an evicted campaign.
    pub evicted: Option<Evicted>,
    /// The digest of the file whose import is unfinished. Until then the campaign is evicted, and no claim is
    /// decided.
    pub unfinished_import: Option<String>,
    /// Whether an admin has archived the campaign, as SQL had it when this was read: archiving raises neither version
    /// nor epoch. The mark counts only while the campaign is ended, see [`Self::is_archived`].
    pub archived: bool,
    /// The pinned scheme of user ids by HMAC that all claims had when the campaign was last loaded into Redis; `None` if
    /// there was none, or a claim had another id. It changes only with the epoch, under which cores send no claim
    /// with another id.
    pub checked_user_ids: Option<Scheme>,
}

/// The rules that Redis applies: all of a campaign's rules except the name and the time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppliedRules {
    /// Whether an admin has paused or ended the campaign.
    pub admin_state: AdminState,
    /// The time in which claims are granted.
    pub window: Window,
    /// The limits on units that may be claimed.
    pub limits: Limits,
    /// TTL of a hold that is not confirmed; `None` if claims are granted immediately.
    pub hold_seconds: Option<NonZeroU32>,
    /// When claims by browsers need a pass; `None` if they never do.
    pub pass: Option<PassRule>,
    /// The version of the rules.
    pub version: Version,
}

impl AppliedRules {
    /// Returns `campaign` with these rules.
    pub fn applied_to(&self, campaign: &Campaign) -> Campaign {
        let Self { admin_state, window, limits, hold_seconds, pass, version } = *self;
        Campaign { window, limits, hold_seconds, pass, admin_state, version, ..campaign.clone() }
    }
}

/// The progress of a campaign in Redis; all 0 if Redis does not have the campaign. The database must have all of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShownProgress {
    /// The version of the rules.
    pub version: Version,
    /// The epoch of the keys.
    pub epoch: Epoch,
    /// Number of events that have left the outbox.
    pub relayed: u64,
}

/// Returns the units that `total`, or [`UNITS_MAX`] without a `total`, leaves after `taken`; never below 0.
/// `None` if more units are left than a claim can request, which happens only without a `total`.
pub fn units_left(total: Option<u32>, taken: u64) -> Option<u32> {
    let total = total.map_or(UNITS_MAX, u64::from);
    u32::try_from(total.saturating_sub(taken)).ok()
}

/// The random id of one creation of a campaign. It distinguishes campaigns with the same id in different
/// databases, and is stored in the campaign's row and in its Redis keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisterId(String);

impl RegisterId {
    /// Returns a new random id.
    pub(crate) fn random() -> Result<Self, Problem> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|_| {
            Problem::new(
                Code::Unavailable,
                "the system returned no random bytes; the request was not processed",
            )
        })?;
        Ok(Self(URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// Returns the id as SQL and Redis store it.
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
    /// The last sequence number assigned.
    pub sequence: u64,
}

impl Campaign {
    /// Returns the campaign as callers see it at `now`, with `taken` units taken.
    pub fn view(&self, taken: u64, now: Timestamp) -> CampaignView {
        let remaining = self.remaining(taken);
        CampaignView {
            id: self.id.clone(),
            name: self.name.0.clone(),
            state: CampaignState::at(now, self.admin_state, self.window, remaining),
            window: self.window,
            time_zone: self.zone.name().to_owned(),
            limits: self.limits,
            pass: self.pass,
            codes: self.codes.is_some(),
            remaining,
            version: self.version,
            server_time: now,
        }
    }

    /// Checks whether the total may change to `total`: a campaign with codes needs a code for each unit.
    ///
    /// # Errors
    /// As for [`CodeStock::check_total`].
    pub(super) fn check_new_total(&self, total: Option<u32>) -> Result<(), Problem> {
        let is_raised = total.is_none_or(|total| self.limits.total.is_some_and(|now| total > now));
        self.codes.filter(|_| is_raised).map_or(Ok(()), |stock| stock.check_total(total))
    }

    /// Returns whether the database, which has this row, lacks a version or events that Redis shows.
    pub fn lacks(&self, shown: ShownProgress) -> bool {
        shown.version > self.version
            || shown.epoch == self.epoch && shown.relayed > self.high_water_mark.events
    }

    /// Returns the units left after `taken`, like [`units_left`].
    pub fn remaining(&self, taken: u64) -> Option<u32> {
        units_left(self.limits.total, taken)
    }

    /// Returns the allowance of a user with the counters `user`. `taken` is the number of units taken by all
    /// users; `today` is the day in the campaign's time zone, in days since 1970.
    pub fn allowance(&self, taken: u64, user: &UserCounters, today: u32) -> Allowance {
        let limits = self.limits;
        // Like the script, never use a day before the user's last one, unless a wrong clock set that day.
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

    /// Returns when the campaign ended, by an admin or its window; `None` if claims can be granted now or later.
    pub fn ended_at(&self, now: Timestamp) -> Option<Timestamp> {
        match self.admin_state {
            AdminState::Ended => Some(self.changed_at),
            AdminState::On | AdminState::Paused => {
                self.window.ends_at().filter(|end| *end <= now).map(|end| end.max(self.changed_at))
            }
        }
    }

    /// Returns whether lists leave the campaign out at `now`.
    pub fn is_archived(&self, now: Timestamp) -> bool {
        self.archived && self.ended_at(now).is_some()
    }

    /// Returns whether `other` has the same rules for claims.
    pub fn has_same_rules_as(&self, other: &Self) -> bool {
        let rules = |of: &Self| {
            (of.name.clone(), of.window, of.zone.clone(), of.limits, of.hold_seconds, of.pass, of.admin_state)
        };
        rules(self) == rules(other)
    }
}

/// A campaign's name: 1 to 200 characters that [do not mislead](free_text).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Name(String);

/// The reason why a string is not a valid [`Name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text is empty or too long.
    #[error("must be 1 to {NAME_CHARS_MAX} characters")]
    Length,
    /// The text has misleading characters or no visible one.
    #[error(transparent)]
    Text(#[from] TextError),
}

impl TryFrom<String> for Name {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        if !(1..=NAME_CHARS_MAX).contains(&text.chars().count()) {
            return Err(NameError::Length);
        }
        free_text::check(&text)?;
        Ok(Self(text))
    }
}

impl Name {
    /// Returns a name read from the database without checking it: earlier versions accepted more characters.
    pub(crate) fn stored(text: String) -> Self {
        Self(text)
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl utoipa::ToSchema for Name {}

impl utoipa::PartialSchema for Name {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new().schema_type(Type::String).pattern(Some(free_text::PATTERN));
        text.min_length(Some(1)).max_length(Some(NAME_CHARS_MAX)).build().into()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
