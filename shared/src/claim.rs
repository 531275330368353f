//! A claim: one user takes some units of a campaign.

use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{CampaignId, ClaimCode, ClaimId, Timestamp, UserId};

/// Units requested or taken: 1 to 2^32 - 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = u32, minimum = 1))]
#[serde(transparent)]
pub struct Quantity(NonZeroU32);

impl Quantity {
    /// One unit.
    pub const ONE: Self = Self(NonZeroU32::MIN);

    /// Returns the number of units.
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl TryFrom<u32> for Quantity {
    type Error = std::num::TryFromIntError;
    fn try_from(units: u32) -> Result<Self, Self::Error> {
        NonZeroU32::try_from(units).map(Self)
    }
}

/// The status of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ClaimStatus {
    /// Granted to the user.
    Granted,
    /// Reserved until `expires_at`, for confirmation.
    Held,
    /// Returned by the caller.
    Returned,
    /// Held, but not confirmed in time.
    Expired,
    /// Lost with the Redis server that granted the claim. Another claim may have its units.
    Revoked,
}

impl ClaimStatus {
    const ALL: [Self; 5] = [Self::Granted, Self::Held, Self::Returned, Self::Expired, Self::Revoked];

    /// Returns the name used in JSON and SQL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Held => "held",
            Self::Returned => "returned",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        }
    }
}

impl FromStr for ClaimStatus {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|status| status.as_str() == text);
        found.ok_or("must be granted, held, returned, expired or revoked")
    }
}

/// A claim as callers see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Claim {
    /// The claim's id, the same for every retry.
    pub id: ClaimId,
    /// The campaign claimed from.
    pub campaign_id: CampaignId,
    /// The user who claimed.
    pub user_id: UserId,
    /// Units taken.
    pub quantity: Quantity,
    /// The current status.
    pub status: ClaimStatus,
    /// The claim's number in the order of the campaign's claims, from 1.
    pub sequence: u64,
    /// When the claim was decided.
    pub claimed_at: Timestamp,
    /// When a held claim expires unless it is confirmed.
    pub expires_at: Option<Timestamp>,
    /// Whether SQL has the claim in its current state; only in lookups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persisted: Option<bool>,
    /// The codes of a granted claim, one for each unit; only in lookups, and only if the campaign has codes.
    /// Empty until both stores have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codes: Option<Vec<ClaimCode>>,
}
