//! What only admins see.

use serde::{Deserialize, Serialize};

use crate::{CampaignView, ClaimStatus, Timestamp};

/// A page of a list.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Page<T> {
    /// The items of the page.
    pub items: Vec<T>,
    /// The `cursor` of the next page; `null` on the last.
    pub next_cursor: Option<String>,
}

/// A campaign with what only admins see.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AdminView {
    /// What all callers see.
    #[serde(flatten)]
    pub campaign: CampaignView,
    /// For how long claims are held before they must be confirmed; `null` grants at once.
    pub hold_seconds: Option<u32>,
    /// Whether claims can be decided; without it the counters are `null`, and so is `remaining`.
    pub ready: bool,
    /// Units taken.
    pub taken: Option<u64>,
    /// The last sequence given.
    pub sequence: Option<u64>,
    /// Raised by every rebuild of the counters.
    pub epoch: u64,
    /// Events that wait for SQL.
    pub backlog: Option<u64>,
    /// Whether an import of past claims is unfinished: until the same file has completed it, nothing is decided.
    pub import_unfinished: bool,
}

/// A claim in a list.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimItem {
    /// The claim's id.
    pub id: String,
    /// Who claimed.
    pub user_id: String,
    /// Units.
    pub quantity: u32,
    /// Its status.
    pub status: ClaimStatus,
    /// Its place.
    pub sequence: u64,
    /// The calendar day it counts on, in the campaign's time zone.
    pub day: String,
    /// When it was decided.
    pub claimed_at: Timestamp,
    /// When it got its status.
    pub updated_at: Timestamp,
}
