//! ALTCHA's proof of work, version 2, in its deterministic mode: the edge derives a key from a counter that
//! it draws, and the browser tries counters until it derives a key with the same prefix.

use serde::{Deserialize, Serialize};

use crate::{CampaignId, UserId};

/// A proof of work, signed by the edge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AltchaChallenge {
    /// The parameters.
    pub parameters: AltchaParameters,
    /// The HMAC-SHA256 of the parameters, in hexadecimal.
    pub signature: String,
}

/// The parameters of a proof of work: find the counter whose derived key begins with `keyPrefix`. The members are in
/// alphabetical order, which is the order that is signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct AltchaParameters {
    /// The key derivation function, always `PBKDF2/SHA-256`.
    pub algorithm: String,
    /// Iterations of one derivation.
    pub cost: u32,
    /// The user and campaign of the challenge.
    pub data: AltchaData,
    /// Last second at which a solution is accepted, as a Unix timestamp.
    pub expires_at: i64,
    /// Length of a key, in bytes.
    pub key_length: u32,
    /// The beginning of the key to find, in hexadecimal.
    pub key_prefix: String,
    /// The HMAC-SHA256 of the key to find, in hexadecimal.
    pub key_signature: String,
    /// A random number, in hexadecimal.
    pub nonce: String,
    /// A random number, in hexadecimal.
    pub salt: String,
}

/// Whom a proof of work is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AltchaData {
    /// The campaign.
    pub campaign: CampaignId,
    /// The user.
    pub user: UserId,
}
