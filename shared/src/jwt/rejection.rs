//! Why a token is rejected: a rule for the caller, and the value that differs for the log.

use std::fmt;

use super::TOKEN_BYTES_MAX;
use crate::ids::IdError;

/// The rule that a token or a pass breaks. The messages contain no part of the token or the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not three base64url parts, or one of the first two parts is not JSON.
    #[error("malformed token")]
    Malformed,
    /// Longer than [`TOKEN_BYTES_MAX`].
    #[error("token longer than {} bytes", TOKEN_BYTES_MAX)]
    TooLong,
    /// An `alg` that the deployment or the key does not allow.
    #[error("wrong algorithm")]
    Algorithm,
    /// A pass sent as a user's token, or a user's token sent as a pass.
    #[error("wrong typ")]
    Type,
    /// A `crit` header.
    #[error("the header crit is not supported")]
    Critical,
    /// The key set has no such key.
    #[error("unknown key")]
    UnknownKey,
    /// No `kid`, and not exactly one key fits.
    #[error("kid is missing, and not exactly one key fits")]
    NoKeyId,
    /// A required member is missing, duplicated or of the wrong type.
    #[error("iss, aud, sub or exp is missing or has the wrong type")]
    Members,
    /// A required member of a pass is missing, or a member is duplicated or of the wrong type.
    #[error("sub, campaign or exp is missing, or a member has the wrong type")]
    PassMembers,
    /// Signed with a different key, or modified.
    #[error("wrong signature")]
    Signature,
    /// `exp` has passed.
    #[error("expired")]
    Expired,
    /// `nbf` is in the future.
    #[error("not valid yet")]
    NotYet,
    /// The wrong `iss`.
    #[error("wrong issuer")]
    Issuer,
    /// The wrong `aud`.
    #[error("wrong audience")]
    Audience,
    /// A required token claim is missing or has a different value.
    #[error("a required token claim is missing or has a different value")]
    Required,
    /// A pass for another campaign.
    #[error("for another campaign")]
    Campaign,
    /// A pass for another user.
    #[error("for another user")]
    User,
    /// The value of the claim that user ids are derived from gives no user id.
    #[error("the user's id {}", IdError::Shape)]
    Subject,
    /// The claim that user ids are derived from is missing, duplicated or not a string.
    #[error("the claim with the user's id is missing or has the wrong type")]
    UserClaim,
}

/// Maximum length of the differing value in the log, in characters.
const FOUND_CHARS_MAX: usize = 120;

/// A broken rule with the token's value that differs. Only the log gets the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRejection {
    /// The rule.
    pub reason: TokenError,
    /// The value, as a bounded literal: the client chose its content.
    found: Option<String>,
}

impl TokenError {
    /// Returns the rejection with the value that differs.
    pub fn found(self, value: &str) -> TokenRejection {
        let cut = value.char_indices().nth(FOUND_CHARS_MAX).map_or(value.len(), |(at, _)| at);
        let more = if cut < value.len() { "…" } else { "" };
        TokenRejection { reason: self, found: Some(format!("{:?}{more}", &value[..cut])) }
    }
}

impl From<TokenError> for TokenRejection {
    fn from(reason: TokenError) -> Self {
        Self { reason, found: None }
    }
}

impl fmt::Display for TokenRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found {
            Some(found) => write!(f, "{}: the token has {found}", self.reason),
            None => self.reason.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_differing_value_is_one_bounded_literal() {
        let found = |value: &str| TokenError::Issuer.found(value).to_string();
        assert_eq!(found("https://a"), r#"wrong issuer: the token has "https://a""#);
        assert_eq!(found("a\nb\u{1b}\"c"), r#"wrong issuer: the token has "a\nb\u{1b}\"c""#);
        let long = found(&"ü".repeat(5_000));
        assert_eq!(long, format!("wrong issuer: the token has \"{}\"…", "ü".repeat(120)));
        assert_eq!(TokenRejection::from(TokenError::Expired).to_string(), "expired");
    }
}
