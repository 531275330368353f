//! The user-id scheme that a database is pinned to, and why a claim does not match it.

use std::fmt;

use claimgate_shared::user_id::Scheme;
use claimgate_shared::{CampaignId, Timestamp, Window};

/// The scheme that a database is pinned to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedScheme {
    /// The scheme.
    pub scheme: Scheme,
    /// When it was pinned; rises with each change. All campaigns had ended then, unless it was the first one.
    pub since: Timestamp,
}

impl PinnedScheme {
    /// Returns whether a campaign may get the window `after` instead of `before`. A campaign that had ended at
    /// [`Self::since`] stays ended, because its users may have claims under former ids. This also forbids an end that
    /// has passed since: a later change could not detect that the campaign had ended.
    pub fn allows_window(&self, before: Window, after: Window) -> bool {
        let was_over = |window: Window| window.ends_at().is_some_and(|end| end <= self.since);
        !was_over(before) || was_over(after)
    }
}

/// A difference between the user ids of a caller and those of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserIdsDiffer {
    /// The edge's scheme is not the pinned one.
    Edge {
        /// The edge's scheme.
        edge: Scheme,
        /// The pinned scheme.
        pinned: Scheme,
    },
    /// A caller sends a user id that is not of the pinned scheme.
    Id {
        /// The pinned scheme.
        pinned: Scheme,
    },
    /// The scheme of the first edge cannot be pinned: a campaign has claims under other user ids.
    EarlierClaims {
        /// The edge's scheme.
        edge: Scheme,
        /// The campaign.
        campaign: CampaignId,
    },
}

impl fmt::Display for UserIdsDiffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Edge { edge, pinned } => write!(
                f,
                "this edge has user ids {edge}, but this database has {pinned}; give the edge the form, claim, key and issuer \
                 of {pinned}, or change the database with `claimgate user-ids set` once all campaigns have ended"
            ),
            Self::Id { pinned } => write!(
                f,
                "user_id is not one of {pinned}, which all callers must use; compute it as `claimgate user-id` does"
            ),
            Self::EarlierClaims { edge, campaign } => write!(
                f,
                "this edge has user ids {edge}, but campaign {campaign} has claims under other user ids; set USER_ID_FORM to \
                 verbatim, or end the campaign"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: i64) -> Timestamp {
        Timestamp::from_ms(s * 1_000).unwrap()
    }

    #[test]
    fn a_campaign_that_was_over_at_the_pin_stays_over() {
        let pinned = PinnedScheme { scheme: "hmac:uGhVXL".parse().unwrap(), since: at(100) };
        let until = |end: Option<i64>| Window::new(at(1), end.map(at)).unwrap();
        for (before, after, allowed) in [
            (Some(99), Some(100), true),
            (Some(100), Some(50), true),
            (Some(100), Some(101), false),
            (Some(100), None, false),
            (Some(101), None, true),
            (Some(101), Some(50), true),
            (None, Some(99), true),
        ] {
            assert_eq!(pinned.allows_window(until(before), until(after)), allowed, "{before:?} to {after:?}");
        }
    }
}
