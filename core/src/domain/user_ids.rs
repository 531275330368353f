//! The user-id scheme that a database is pinned to, and why a claim does not match it.

use std::fmt;

use claimgate_shared::user_id::{Form, Scheme};
use claimgate_shared::{CampaignId, Timestamp, Window};

use super::campaign::Campaign;

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

    /// Returns whether `campaign` may get claims under this scheme, but may have claims under other user ids.
    pub fn requires_check_of(&self, campaign: &Campaign) -> bool {
        self.scheme.form() == Form::Hmac
            && campaign.checked_user_ids != Some(self.scheme)
            && campaign.evicted.is_none()
            && campaign.ended_at(self.since).is_none()
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
    /// A campaign has claims under other user ids, which were decided while the scheme was pinned.
    Claims {
        /// The pinned scheme.
        pinned: Scheme,
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
            Self::Claims { pinned, campaign } => write!(
                f,
                "campaign {campaign} has claims under other user ids than {pinned}, so it accepts no further claims; end it, \
                 and create a new one"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use claimgate_shared::campaign::AdminState;

    use super::*;
    use crate::domain::campaign::Evicted;
    use crate::domain::campaign_change::NewCampaign;

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

    #[test]
    fn a_campaign_is_checked_unless_it_was_over_at_the_pin() {
        let [hmac, other, verbatim] =
            ["hmac:uGhVXL", "hmac:VR1TK4", "verbatim:VRBHvs"].map(|scheme| scheme.parse::<Scheme>().unwrap());
        let new = NewCampaign::parse(br#"{"id":"c","name":"x","starts_at":"2026-01-01T00:00:00Z"}"#).unwrap();
        let campaign = new.created_at(at(1)).unwrap();
        let until = |end| Campaign { window: Window::new(at(1), Some(at(end))).unwrap(), ..campaign.clone() };
        let of = |checked| Campaign { checked_user_ids: checked, ..campaign.clone() };
        let evicted = Some(Evicted { taken: 0, sequence: 0 });
        for (what, campaign, required) in [
            ("unchecked", of(None), true),
            ("checked", of(Some(hmac)), false),
            ("of another scheme", of(Some(other)), true),
            ("evicted", Campaign { evicted, ..campaign.clone() }, false),
            ("ended", Campaign { admin_state: AdminState::Ended, ..campaign.clone() }, false),
            ("over at the pin", until(100), false),
            ("over later", until(101), true),
        ] {
            let requires = |scheme| PinnedScheme { scheme, since: at(100) }.requires_check_of(&campaign);
            assert_eq!(requires(hmac), required, "{what}");
            assert!(!requires(verbatim), "{what}");
        }
    }
}
