//! A user's claims from a campaign, and the user's allowance.

use serde::{Deserialize, Serialize};

use crate::{Claim, Timestamp};

/// Units that each limit of a campaign leaves one user; `None` is unlimited. The smallest number is the
/// maximum for one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Allowance {
    /// Maximum units in one claim.
    pub per_claim: Option<u32>,
    /// Units left to the user today.
    pub per_user_per_day: Option<u32>,
    /// When the daily limit resets; `null` without a daily limit.
    pub resets_at: Option<Timestamp>,
    /// Units left to the user in the whole campaign.
    pub per_user: Option<u32>,
    /// Units left for all users together.
    pub total: Option<u32>,
}

/// A page of a user's claims from one campaign, and the user's allowance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UserClaims {
    /// The claims, newest first, without `persisted`.
    pub items: Vec<Claim>,
    /// The `cursor` of the next page; `null` on the last page.
    pub next_cursor: Option<String>,
    /// The units that the user may still claim.
    pub allowance: Allowance,
}
