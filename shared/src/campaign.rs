//! The parts of a campaign that every caller may see.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::window::Position;
use crate::{CampaignId, Timestamp, Version, Window};

/// How much may be claimed, in units; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// By all users together; 0 while there is nothing to give yet.
    pub total: Option<u32>,
    /// By one user, over the whole campaign.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u32>, minimum = 1))]
    pub per_user: Option<NonZeroU32>,
    /// By one user on one calendar day of the campaign's time zone.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u32>, minimum = 1))]
    pub per_user_per_day: Option<NonZeroU32>,
    /// In one claim.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<u32>, minimum = 1))]
    pub per_claim: Option<NonZeroU32>,
}

/// Whether an admin has paused or ended the campaign, apart from the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminState {
    /// Claims are judged by the window and the limits.
    On,
    /// No claims until resumed.
    Paused,
    /// No claims ever again.
    Ended,
}

/// What a caller can expect of a campaign now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CampaignState {
    /// Before its window.
    Scheduled,
    /// Claims are decided.
    Open,
    /// Stopped by an admin for a while.
    Paused,
    /// Past its window, or ended by an admin.
    Ended,
    /// Nothing left of `total`.
    SoldOut,
}

impl CampaignState {
    /// The state at `now`, in the order in which the rules refuse: admin's state, window, total.
    pub fn at(now: Timestamp, admin_state: AdminState, window: Window, remaining: Option<u32>) -> Self {
        match (admin_state, window.position(now)) {
            (AdminState::Ended, _) => Self::Ended,
            (AdminState::Paused, _) => Self::Paused,
            (AdminState::On, Position::Before) => Self::Scheduled,
            (AdminState::On, Position::After) => Self::Ended,
            (AdminState::On, Position::Inside) if remaining == Some(0) => Self::SoldOut,
            (AdminState::On, Position::Inside) => Self::Open,
        }
    }
}

/// A campaign as callers see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CampaignView {
    /// Its id.
    pub id: CampaignId,
    /// Its name, for people.
    pub name: String,
    /// Its state at `server_time`.
    pub state: CampaignState,
    /// When it opens and, unless `null`, closes.
    #[serde(flatten)]
    #[cfg_attr(feature = "openapi", schema(value_type = WindowSchema))]
    pub window: Window,
    /// IANA name of the zone whose calendar days count.
    pub time_zone: String,
    /// Its limits.
    pub limits: Limits,
    /// Units left of `total`; `null` when that is unlimited.
    pub remaining: Option<u32>,
    /// Raised by every change an admin makes, and by nothing else.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub version: Version,
    /// The deciding clock when this was read.
    pub server_time: Timestamp,
}

/// [`Window`] in the OpenAPI description.
#[cfg(feature = "openapi")]
#[derive(utoipa::ToSchema)]
pub struct WindowSchema {
    /// The first instant of the window.
    pub starts_at: Timestamp,
    /// The first instant after it; `null` when it stays open.
    pub ends_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hand_goes_before_the_window_and_the_window_before_the_stock() {
        let at = |ms| Timestamp::from_ms(ms).unwrap();
        let window = Window::new(at(10), Some(at(20))).unwrap();
        let state = |now, admin_state, left| CampaignState::at(at(now), admin_state, window, left);
        assert_eq!(state(5, AdminState::Paused, Some(0)), CampaignState::Paused);
        assert_eq!(state(25, AdminState::Ended, Some(1)), CampaignState::Ended);
        assert_eq!(state(5, AdminState::On, Some(0)), CampaignState::Scheduled);
        assert_eq!(state(15, AdminState::On, Some(0)), CampaignState::SoldOut);
        assert_eq!(state(15, AdminState::On, None), CampaignState::Open);
        assert_eq!(state(20, AdminState::On, None), CampaignState::Ended);
    }

    #[test]
    fn no_limit_is_past_32_bits_and_the_total_alone_may_be_zero() {
        for (json, good) in [
            ("1", true),
            ("4294967295", true),
            ("null", true),
            ("-1", false),
            ("-0", false),
            ("4294967296", false),
            ("1.0", false),
            ("\"1\"", false),
        ] {
            for limit in ["total", "per_user"] {
                let limits = serde_json::from_str::<Limits>(&format!("{{\"{limit}\":{json}}}"));
                assert_eq!(limits.is_ok(), good, "{limit} {json}");
            }
        }
        assert_eq!(serde_json::from_str::<Limits>("{\"total\":0}").unwrap().total, Some(0));
        for limit in ["per_user", "per_user_per_day", "per_claim"] {
            assert!(serde_json::from_str::<Limits>(&format!("{{\"{limit}\":0}}")).is_err(), "{limit}");
        }
    }
}
