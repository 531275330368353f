//! Denials: claims that a rule denies. A denial is data, not an error, and changes nothing.

use crate::problem::{Extensions, Limit};
use crate::{Code, Problem, Timestamp, Version};

/// `Retry-After` for denials that may change at any time (paused, sold out). An earlier retry could be
/// answered from the edge's cache.
const CHANGE_RETRY_S: u32 = 2;

/// The first rule that denies the claim, with the details for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denial {
    /// The key was already used with a different quantity.
    IdempotencyKeyReused,
    /// Paused by an admin.
    Paused,
    /// After the window, or ended by an admin (then without a time).
    Ended {
        /// When the window closed.
        ends_at: Option<Timestamp>,
    },
    /// Before the window.
    NotStarted {
        /// When the campaign opens.
        starts_at: Timestamp,
    },
    /// Without a pass, while the campaign requires one.
    PassRequired {
        /// When the campaign opens for all; `None` if it never does.
        until: Option<Timestamp>,
    },
    /// More than `per_claim` units in one claim.
    QuantityOutOfRange {
        /// Maximum units in one claim.
        per_claim: u32,
    },
    /// More units than the user may take today.
    UserDailyLimitReached {
        /// Units the user may still take today.
        remaining: u32,
        /// When the next day begins in the campaign's time zone.
        resets_at: Timestamp,
    },
    /// More units than the user may take in the whole campaign.
    UserLimitReached {
        /// Units the user may still take.
        remaining: u32,
    },
    /// More units than are left.
    SoldOut {
        /// Units left for all users.
        remaining: u32,
    },
}

impl Denial {
    /// Returns the problem code.
    pub fn code(self) -> Code {
        match self {
            Self::IdempotencyKeyReused => Code::IdempotencyKeyReused,
            Self::Paused => Code::Paused,
            Self::Ended { .. } => Code::Ended,
            Self::NotStarted { .. } => Code::NotStarted,
            Self::PassRequired { .. } => Code::PassRequired,
            Self::QuantityOutOfRange { .. } => Code::QuantityOutOfRange,
            Self::UserDailyLimitReached { .. } => Code::UserDailyLimitReached,
            Self::UserLimitReached { .. } => Code::UserLimitReached,
            Self::SoldOut { .. } => Code::SoldOut,
        }
    }

    /// Returns the seconds from `now` after which a retry may succeed.
    fn retry_after_s(self, now: Timestamp) -> Option<u32> {
        let seconds_until = |at: Timestamp| {
            let wait_ms = at.as_ms().saturating_sub(now.as_ms()).max(1);
            u32::try_from((wait_ms + 999) / 1000).unwrap_or(u32::MAX)
        };
        match self {
            Self::NotStarted { starts_at } => Some(seconds_until(starts_at)),
            Self::PassRequired { until } => until.map(seconds_until),
            Self::UserDailyLimitReached { resets_at, .. } => Some(seconds_until(resets_at)),
            Self::Paused | Self::SoldOut { .. } => Some(CHANGE_RETRY_S),
            Self::IdempotencyKeyReused
            | Self::Ended { .. }
            | Self::QuantityOutOfRange { .. }
            | Self::UserLimitReached { .. } => None,
        }
    }

    /// Returns the problem to send to the caller at `now`, decided under the campaign's `version`.
    pub fn problem(self, version: Version, now: Timestamp) -> Problem {
        let mut extensions = Extensions { version: Some(version), ..Extensions::default() };
        let detail = match self {
            Self::IdempotencyKeyReused => {
                "this idempotency key was already used with a different quantity; use a new key".to_owned()
            }
            Self::Paused => "the campaign is paused".to_owned(),
            Self::Ended { ends_at } => {
                extensions.ends_at = ends_at;
                "the campaign has ended".to_owned()
            }
            Self::NotStarted { starts_at } => {
                extensions.starts_at = Some(starts_at);
                format!("the campaign opens at {starts_at}")
            }
            Self::PassRequired { until } => {
                extensions.until = until;
                match until {
                    Some(until) => format!("claims need a pass until {until}"),
                    None => "claims need a pass".to_owned(),
                }
            }
            Self::QuantityOutOfRange { per_claim } => {
                extensions.field = Some("quantity".to_owned());
                format!("quantity must be at most {per_claim}, the campaign's limit per claim")
            }
            Self::UserDailyLimitReached { remaining, resets_at } => {
                extensions.limit = Some(Limit::PerUserPerDay);
                extensions.remaining = Some(remaining);
                extensions.resets_at = Some(resets_at);
                format!("this user may take {remaining} more today; the daily limit resets at {resets_at}")
            }
            Self::UserLimitReached { remaining } => {
                extensions.limit = Some(Limit::PerUser);
                extensions.remaining = Some(remaining);
                format!("this user may take {remaining} more in this campaign")
            }
            Self::SoldOut { remaining } => {
                extensions.limit = Some(Limit::Total);
                extensions.remaining = Some(remaining);
                format!("{remaining} units left in this campaign")
            }
        };
        Problem { extensions, retry_after_s: self.retry_after_s(now), ..Problem::new(self.code(), detail) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_says_when_to_retry() {
        let at = |ms| Timestamp::from_ms(ms).unwrap();
        for (denial, seconds) in [
            (Denial::NotStarted { starts_at: at(10_001) }, Some(6)),
            (Denial::NotStarted { starts_at: at(10_000) }, Some(5)),
            (Denial::NotStarted { starts_at: at(4_000) }, Some(1)),
            (Denial::PassRequired { until: Some(at(7_500)) }, Some(3)),
            (Denial::PassRequired { until: None }, None),
            (Denial::UserDailyLimitReached { remaining: 0, resets_at: at(65_000) }, Some(60)),
            (Denial::SoldOut { remaining: 0 }, Some(2)),
            (Denial::Paused, Some(2)),
            (Denial::Ended { ends_at: None }, None),
            (Denial::UserLimitReached { remaining: 0 }, None),
        ] {
            assert_eq!(denial.problem(Version::FIRST, at(5_000)).retry_after_s, seconds, "{denial:?}");
        }
    }
}
