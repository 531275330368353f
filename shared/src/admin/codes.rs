//! Counts of a campaign's codes.

use serde::{Deserialize, Serialize};

/// The result of adding a file of codes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AddedCodes {
    /// Codes that the campaign did not have.
    pub added: u64,
    /// Codes that the campaign had already.
    pub already: u64,
}

/// A campaign's codes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CodeCounts {
    /// Codes added.
    pub added: u64,
    /// Codes assigned to claims, including returned claims, whose codes are void. More than `added` if claims
    /// are without codes.
    pub assigned: u64,
    /// Granted claims whose codes are not there yet.
    pub claims_pending: u64,
}
