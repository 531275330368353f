//! The public part of a campaign.

use serde::{Deserialize, Serialize};

use crate::window::Position;
use crate::{CampaignId, Limits, PassRule, Timestamp, Version, Window};

/// Whether an admin has paused or ended the campaign. Independent of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminState {
    /// The window and the limits decide claims.
    On,
    /// No claims until an admin resumes the campaign.
    Paused,
    /// No more claims.
    Ended,
}

/// The state of a campaign, as callers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CampaignState {
    /// Before its window.
    Scheduled,
    /// Claims are being decided.
    Open,
    /// Paused by an admin.
    Paused,
    /// After its window, or ended by an admin.
    Ended,
    /// No units of `total` left.
    SoldOut,
}

impl CampaignState {
    /// Returns the state at `now`. As in a claim's decision, the admin state comes first, then window, then
    /// total.
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
    /// The campaign's id.
    pub id: CampaignId,
    /// The display name.
    pub name: String,
    /// The state at `server_time`.
    pub state: CampaignState,
    /// When the campaign opens and, unless `null`, closes.
    #[serde(flatten)]
    #[cfg_attr(feature = "openapi", schema(value_type = WindowSchema))]
    pub window: Window,
    /// IANA time zone of the daily limit's calendar days.
    pub time_zone: String,
    /// The limits.
    pub limits: Limits,
    /// When claims need a pass; `null` if they never do.
    #[serde(default)]
    pub pass: Option<PassRule>,
    /// Whether each unit of a granted claim has a code.
    #[serde(default)]
    pub codes: bool,
    /// Units left of `total`; `null` if the total is unlimited.
    pub remaining: Option<u32>,
    /// Incremented by every change an admin makes, and by nothing else.
    #[cfg_attr(feature = "openapi", schema(value_type = u64))]
    pub version: Version,
    /// The time of this view, by the clock that decides claims.
    pub server_time: Timestamp,
}

/// [`Window`] in the OpenAPI description.
#[cfg(feature = "openapi")]
#[derive(utoipa::ToSchema)]
pub struct WindowSchema {
    /// The first instant of the window.
    pub starts_at: Timestamp,
    /// The first instant after the window; `null` if the window has no end.
    pub ends_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_state_outranks_the_window_which_outranks_the_stock() {
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
}
