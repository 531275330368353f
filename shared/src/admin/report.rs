//! The report on a campaign's demand.

use serde::{Deserialize, Serialize};

use crate::{CampaignId, ClaimStatus, Timestamp};

/// A campaign's taken units and refused claims over time, as far as SQL has them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DemandReport {
    /// The campaign's id.
    pub campaign_id: CampaignId,
    /// The campaign's name.
    pub name: String,
    /// When the report was made.
    pub at: Timestamp,
    /// When the campaign opened: its start, or its first claim if that was earlier.
    pub opened_at: Timestamp,
    /// When the last unit of the total was taken for the first time; `null` if it never was.
    pub sold_out_at: Option<Timestamp>,
    /// Seconds from `opened_at` to `sold_out_at`.
    pub sold_out_after_s: Option<f64>,
    /// Claims that were made.
    pub claims: ReportedClaims,
    /// Claims that were refused.
    pub refusals: ReportedRefusals,
    /// Claims and refusals over time, from the first to the last, in at most 240 slices.
    pub timeline: DemandTimeline,
    /// The same in slices of a second around the busiest second; `null` if `timeline` has slices of a second.
    pub busiest: Option<DemandTimeline>,
}

/// Claims that were made.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReportedClaims {
    /// Number of claims, in any status except revoked.
    pub made: u64,
    /// Number of users who made them.
    pub users: u64,
    /// Units of these claims, including those that were returned or expired since.
    pub units: u64,
    /// Units that are taken now.
    pub taken: u64,
    /// Number of claims by their current status.
    pub by_status: StatusCounts,
    /// The second with the most claims; `null` if there is no claim.
    pub peak: Option<Peak>,
}

/// Number of claims by status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StatusCounts {
    /// Granted claims.
    pub granted: u64,
    /// Held claims.
    pub held: u64,
    /// Returned claims.
    pub returned: u64,
    /// Expired claims.
    pub expired: u64,
    /// Revoked claims.
    pub revoked: u64,
}

impl StatusCounts {
    /// Returns the number of claims with `status`.
    pub fn of(&mut self, status: ClaimStatus) -> &mut u64 {
        match status {
            ClaimStatus::Granted => &mut self.granted,
            ClaimStatus::Held => &mut self.held,
            ClaimStatus::Returned => &mut self.returned,
            ClaimStatus::Expired => &mut self.expired,
            ClaimStatus::Revoked => &mut self.revoked,
        }
    }
}

/// Claims that were refused, within the last 90 days.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReportedRefusals {
    /// Number of refusals. A claim that was tried again counts each time.
    pub total: u64,
    /// Number of refusals by edges, without core.
    pub at_edges: u64,
    /// Number of refusals by core.
    pub at_core: u64,
    /// By reason.
    pub by_reason: Vec<ReasonCount>,
    /// The second with the most refusals; `null` if there is none.
    pub peak: Option<Peak>,
}

/// Refusals for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReasonCount {
    /// The problem's code, or `other`.
    pub reason: String,
    /// Refusals by edges, without core.
    pub at_edges: u64,
    /// Refusals by core.
    pub at_core: u64,
}

impl ReasonCount {
    /// Creates a count of 0.
    pub fn new(reason: String) -> Self {
        Self { reason, at_edges: 0, at_core: 0 }
    }
}

/// The busiest second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Peak {
    /// When the second began.
    pub at: Timestamp,
    /// The number in that second.
    pub per_s: u64,
}

/// Claims and refusals over time.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DemandTimeline {
    /// When the first slice begins.
    pub begins_at: Timestamp,
    /// The length of a slice, in seconds.
    pub slice_s: u32,
    /// The slices, without a gap.
    pub slices: Vec<DemandSlice>,
}

/// Claims and refusals in one slice of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DemandSlice {
    /// Claims that were made.
    pub claims: u64,
    /// Claims that edges refused, without core.
    pub refused_at_edges: u64,
    /// Claims that core refused.
    pub refused_at_core: u64,
}
