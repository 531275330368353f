//! A claim: one user taking some units of a campaign, once and for ever.

use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{CampaignId, ClaimId, Timestamp, UserId};

/// Units asked for or taken: 1 to 2^32 - 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = u32, minimum = 1))]
#[serde(transparent)]
pub struct Quantity(NonZeroU32);

impl Quantity {
    /// One unit.
    pub const ONE: Self = Self(NonZeroU32::MIN);

    /// The number of units.
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

/// Where a claim stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ClaimStatus {
    /// Won.
    Granted,
    /// Kept until `expires_at`, to be confirmed.
    Held,
    /// Given back.
    Returned,
    /// A hold that was not confirmed in time.
    Expired,
    /// Lost with the Redis that granted it; another may hold its units.
    Revoked,
}

impl ClaimStatus {
    /// All of them.
    const ALL: [Self; 5] = [Self::Granted, Self::Held, Self::Returned, Self::Expired, Self::Revoked];

    /// As in JSON and SQL.
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
    /// Its id, the same for every retry.
    pub id: ClaimId,
    /// Claimed from.
    pub campaign_id: CampaignId,
    /// Claimed by.
    pub user_id: UserId,
    /// Units taken.
    pub quantity: Quantity,
    /// Where it stands.
    pub status: ClaimStatus,
    /// Its place in the order of the campaign's claims, from 1.
    pub sequence: u64,
    /// When it was decided.
    pub claimed_at: Timestamp,
    /// Until when a held claim can be confirmed.
    pub expires_at: Option<Timestamp>,
    /// Whether SQL holds it as it stands here; only in a look-up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persisted: Option<bool>,
}
