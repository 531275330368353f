//! Types that only the admin API returns.

pub mod codes;
pub mod live;
pub mod reconciliation;
pub mod replication;
pub mod report;
pub mod user_ids;

use serde::{Deserialize, Serialize};

use crate::{CampaignView, ClaimCode, ClaimStatus, Timestamp};

/// A page of a list.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Page<T> {
    /// The page's items.
    pub items: Vec<T>,
    /// The `cursor` of the next page; `null` on the last page.
    pub next_cursor: Option<String>,
}

/// A campaign as admins see it.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AdminView {
    /// The view that all callers get.
    #[serde(flatten)]
    pub campaign: CampaignView,
    /// TTL of a hold that is not confirmed, in seconds; `null` grants claims immediately.
    pub hold_seconds: Option<u32>,
    /// Whether claims can be decided; if false, the counters and `remaining` are `null`.
    pub ready: bool,
    /// Units taken.
    pub taken: Option<u64>,
    /// The last sequence number assigned.
    pub sequence: Option<u64>,
    /// Incremented each time the counters are rebuilt.
    pub epoch: u64,
    /// Events not yet written to SQL.
    pub backlog: Option<u64>,
    /// Whether an import of past claims is unfinished. No claim is decided until the same file completes it.
    pub import_unfinished: bool,
    /// Whether the campaign has ended and is archived.
    #[serde(default)]
    pub archived: bool,
}

/// A claim in a list.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimItem {
    /// The claim's id.
    pub id: String,
    /// The user who made the claim.
    pub user_id: String,
    /// Units claimed.
    pub quantity: u32,
    /// The claim's status.
    pub status: ClaimStatus,
    /// The claim's sequence number.
    pub sequence: u64,
    /// The calendar day on which it counts, in the campaign's time zone.
    pub day: String,
    /// When the claim was decided.
    pub claimed_at: Timestamp,
    /// When its status last changed.
    pub updated_at: Timestamp,
    /// The codes of a granted claim, one for each unit; only with `codes=true`, and only if the campaign has
    /// codes. Empty until both stores have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codes: Option<Vec<ClaimCode>>,
}
