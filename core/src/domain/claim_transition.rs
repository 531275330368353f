//! Claim transitions that a caller can request.

use std::num::NonZeroU32;
use std::time::Duration;

use claimgate_shared::{Claim, Timestamp};
use serde::Deserialize;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;

use super::campaign::Name;

/// The shortest extension in milliseconds. A smaller gain changes nothing. As in `transition.lua`.
const EXTENSION_MS_MIN: i64 = 10_000;
/// Maximum number of extensions of a hold. As in `transition.lua`.
const EXTENSIONS_MAX: u64 = 64;

/// A change to an existing claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimTransition {
    /// A held claim becomes granted.
    Confirm,
    /// The claim is returned, and its units can be claimed again.
    Return,
    /// A held claim expires later.
    Extend {
        /// Maximum time from the claim to the end of its extended hold.
        max: Duration,
    },
}

impl ClaimTransition {
    /// Returns the name that `transition.lua` expects.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Confirm => "confirm",
            Self::Return => "return",
            Self::Extend { .. } => "extend",
        }
    }

    /// Returns the maximum time from the claim to the end of its extended hold, in milliseconds.
    pub fn extension_max_ms(self) -> u64 {
        match self {
            Self::Confirm | Self::Return => 0,
            Self::Extend { max } => u64::try_from(max.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// The caller who requests a transition, for the audit.
#[derive(Debug, Clone, Copy)]
pub struct Requester<'a> {
    /// The name of the caller's token.
    pub name: &'a str,
    /// Why the caller returns the claim.
    pub reason: Option<&'a str>,
}

impl<'a> From<&'a str> for Requester<'a> {
    fn from(name: &'a str) -> Self {
        Self { name, reason: None }
    }
}

/// `POST /admin/v1/claims/{claim_id}/return`.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimReturn {
    /// Why the claim is returned; the audit records it.
    pub reason: Reason,
}

/// A reason, with the characters of a campaign's [`Name`].
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct Reason(Name);

impl Reason {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl utoipa::ToSchema for Reason {}

impl utoipa::PartialSchema for Reason {
    fn schema() -> RefOr<Schema> {
        <Name as utoipa::PartialSchema>::schema()
    }
}

/// The result of the rule of extensions for a held claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extension {
    /// The hold expires at this later time.
    Until(Timestamp),
    /// The gain is too small; nothing changes.
    Unchanged,
    /// The hold was extended [`EXTENSIONS_MAX`] times; nothing changes.
    TooOften,
}

impl Extension {
    /// Applies the rule to a held claim of this `revision` at `now`, as `transition.lua` does: the hold ends
    /// `hold_seconds` from now, but at most `max` after the claim.
    pub fn of(
        claim: &Claim,
        revision: u64,
        hold_seconds: Option<NonZeroU32>,
        max: Duration,
        now: Timestamp,
    ) -> Self {
        let max_ms = i64::try_from(max.as_millis()).unwrap_or(i64::MAX);
        let hold_ms = hold_seconds.map_or(0, |seconds| i64::from(seconds.get()) * 1000);
        let until = now.saturating_add_ms(hold_ms).min(claim.claimed_at.saturating_add_ms(max_ms));
        let gained_ms = claim.expires_at.map_or(0, |expires_at| until.as_ms() - expires_at.as_ms());
        if gained_ms < EXTENSION_MS_MIN {
            Self::Unchanged
        } else if revision > EXTENSIONS_MAX {
            // Only extensions raise the revision of a held claim, which starts at 1.
            Self::TooOften
        } else {
            Self::Until(until)
        }
    }
}

#[cfg(test)]
mod tests {
    use claimgate_shared::ClaimStatus;

    use super::*;

    const CLAIMED_MS: i64 = 1_800_000_000_000;
    const DAY: Duration = Duration::from_hours(24);

    /// A claim that was held for 60 s.
    fn held() -> Claim {
        let id: claimgate_shared::ClaimId = "demo.alice.7qS1suZRPTSNsAtig2V7tg".parse().unwrap();
        Claim {
            campaign_id: id.campaign.clone(),
            user_id: id.user.clone(),
            id,
            quantity: 1.try_into().unwrap(),
            status: ClaimStatus::Held,
            sequence: 1,
            claimed_at: at_s(0),
            expires_at: Some(at_s(60)),
            persisted: None,
            codes: None,
        }
    }

    /// Returns the instant `seconds` after the claim.
    fn at_s(seconds: i64) -> Timestamp {
        Timestamp::from_ms(CLAIMED_MS + seconds * 1000).unwrap()
    }

    fn extended(revision: u64, max: Duration, now_s: i64) -> Extension {
        Extension::of(&held(), revision, NonZeroU32::new(60), max, at_s(now_s))
    }

    #[test]
    fn a_hold_is_extended_up_to_its_maximum_by_at_least_ten_seconds() {
        assert_eq!(extended(1, DAY, 9), Extension::Unchanged);
        assert_eq!(extended(1, DAY, 10), Extension::Until(at_s(70)));
        assert_eq!(extended(1, DAY, -30), Extension::Unchanged, "the clock was set back");
        assert_eq!(extended(1, Duration::from_secs(80), 50), Extension::Until(at_s(80)));
        assert_eq!(extended(1, Duration::from_secs(69), 50), Extension::Unchanged);
        assert_eq!(extended(1, Duration::MAX, 50), Extension::Until(at_s(110)));
    }

    #[test]
    fn a_hold_is_extended_at_most_64_times() {
        assert_eq!(extended(64, DAY, 10), Extension::Until(at_s(70)));
        assert_eq!(extended(65, DAY, 10), Extension::TooOften);
        assert_eq!(extended(65, DAY, 9), Extension::Unchanged, "a retry succeeds");
    }

    #[test]
    fn a_hold_is_not_extended_once_the_campaign_holds_no_claims() {
        assert_eq!(Extension::of(&held(), 1, None, DAY, at_s(50)), Extension::Unchanged);
    }
}
