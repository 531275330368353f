//! What one user has of a campaign: claims, and what is left.

use serde::{Deserialize, Serialize};

use crate::{Claim, Timestamp};

/// What each limit of a campaign leaves one user, in units; `None` is unlimited. What can be claimed at once is the least of
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Allowance {
    /// The most that one claim may ask for.
    pub per_claim: Option<u32>,
    /// Left of the user's current day.
    pub per_user_per_day: Option<u32>,
    /// When that day ends; `null` without a limit per day.
    pub resets_at: Option<Timestamp>,
    /// Left to the user over the whole campaign.
    pub per_user: Option<u32>,
    /// Left to all users together.
    pub total: Option<u32>,
}

/// A page of a user's claims of one campaign, and what is left to the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UserClaims {
    /// The claims, newest first, without `persisted`.
    pub items: Vec<Claim>,
    /// The `cursor` of the next page; `null` on the last.
    pub next_cursor: Option<String>,
    /// What is left to the user.
    pub allowance: Allowance,
}
