//! A denial: a claim that a rule refuses. Data, not an error; it changes nothing.

use crate::problem::{Extensions, Limit};
use crate::{Code, Problem, Timestamp, Version};

/// Units come back, and a pause ends, at any time; asking sooner could meet what the edge remembers.
const CHANGE_S: u32 = 2;

/// The first rule that refuses, and what the caller can do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denial {
    /// The key was used for another quantity.
    IdempotencyKeyReused,
    /// Paused by an admin.
    Paused,
    /// Past the window, or ended by an admin (then without a time).
    Ended {
        /// When the window closed.
        ends_at: Option<Timestamp>,
    },
    /// Before the window.
    NotStarted {
        /// When it opens.
        starts_at: Timestamp,
    },
    /// More than `per_claim` at once.
    QuantityOutOfRange {
        /// The most that one claim may take.
        per_claim: u32,
    },
    /// More than the user may take today.
    UserDailyLimitReached {
        /// Units the user may still take today.
        remaining: u32,
        /// When the next day begins in the campaign's time zone.
        resets_at: Timestamp,
    },
    /// More than the user may take at all.
    UserLimitReached {
        /// Units the user may still take.
        remaining: u32,
    },
    /// More than is left.
    SoldOut {
        /// Units left for all users.
        remaining: u32,
    },
}

impl Denial {
    /// The code callers switch on.
    pub fn code(self) -> Code {
        match self {
            Self::IdempotencyKeyReused => Code::IdempotencyKeyReused,
            Self::Paused => Code::Paused,
            Self::Ended { .. } => Code::Ended,
            Self::NotStarted { .. } => Code::NotStarted,
            Self::QuantityOutOfRange { .. } => Code::QuantityOutOfRange,
            Self::UserDailyLimitReached { .. } => Code::UserDailyLimitReached,
            Self::UserLimitReached { .. } => Code::UserLimitReached,
            Self::SoldOut { .. } => Code::SoldOut,
        }
    }

    /// Seconds from `now` on after which the answer may be another one.
    fn retry_after_s(self, now: Timestamp) -> Option<u32> {
        let until = |at: Timestamp| {
            let wait_ms = at.as_ms().saturating_sub(now.as_ms()).max(1);
            u32::try_from((wait_ms + 999) / 1000).unwrap_or(u32::MAX)
        };
        match self {
            Self::NotStarted { starts_at } => Some(until(starts_at)),
            Self::UserDailyLimitReached { resets_at, .. } => Some(until(resets_at)),
            Self::Paused | Self::SoldOut { .. } => Some(CHANGE_S),
            Self::IdempotencyKeyReused
            | Self::Ended { .. }
            | Self::QuantityOutOfRange { .. }
            | Self::UserLimitReached { .. } => None,
        }
    }

    /// As callers see it at `now`, under the campaign's `version`.
    pub fn problem(self, version: Version, now: Timestamp) -> Problem {
        let mut extensions = Extensions { version: Some(version), ..Extensions::default() };
        let detail = match self {
            Self::IdempotencyKeyReused => "this idempotency key was used for another quantity".to_owned(),
            Self::Paused => "the campaign is paused".to_owned(),
            Self::Ended { ends_at } => {
                extensions.ends_at = ends_at;
                "the campaign has ended".to_owned()
            }
            Self::NotStarted { starts_at } => {
                extensions.starts_at = Some(starts_at);
                format!("the campaign opens at {starts_at}")
            }
            Self::QuantityOutOfRange { per_claim } => {
                extensions.field = Some("quantity".to_owned());
                format!("one claim may take at most {per_claim}")
            }
            Self::UserDailyLimitReached { remaining, resets_at } => {
                extensions.limit = Some(Limit::PerUserPerDay);
                extensions.remaining = Some(remaining);
                extensions.resets_at = Some(resets_at);
                format!("this user may take {remaining} more today; the day ends at {resets_at}")
            }
            Self::UserLimitReached { remaining } => {
                extensions.limit = Some(Limit::PerUser);
                extensions.remaining = Some(remaining);
                format!("this user may take {remaining} more in this campaign")
            }
            Self::SoldOut { remaining } => {
                extensions.limit = Some(Limit::Total);
                extensions.remaining = Some(remaining);
                format!("{remaining} left in this campaign")
            }
        };
        Problem { extensions, retry_after_s: self.retry_after_s(now), ..Problem::new(self.code(), detail) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_says_when_to_ask_again() {
        let at = |ms| Timestamp::from_ms(ms).unwrap();
        for (denial, seconds) in [
            (Denial::NotStarted { starts_at: at(10_001) }, Some(6)),
            (Denial::NotStarted { starts_at: at(10_000) }, Some(5)),
            (Denial::NotStarted { starts_at: at(4_000) }, Some(1)),
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
