//! The parts of a token, parsed before its signature is verified.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::Mac as _;
use serde::de::{Deserialize, Deserializer, IgnoredAny};

use super::TOKEN_BYTES_MAX;
use super::algorithm::Algorithm;
use super::rejection::{TokenError, TokenRejection};
use super::rules::TokenRules;
use crate::json_member::object;
use crate::signature::SecretKey;
use crate::user_id::{self, UserIdRule};
use crate::{Timestamp, UserId};

/// The `typ` of a pass.
pub(super) const PASS_TYPE: &str = "claimgate-pass+jwt";
/// The prefix that a media type may have in `typ` (RFC 7515, 4.1.9).
const MEDIA_TYPE_PREFIX: &str = "application/";

/// The members that decide how the token is verified. Keys and their addresses in the header (`jku`, `jwk`,
/// `x5u`, `x5c`) are ignored: a token must not name the key that verifies it.
#[derive(serde::Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
    /// Whether the header lists extensions that the verifier must understand (RFC 7515, 4.1.11).
    #[serde(default, deserialize_with = "is_present")]
    crit: bool,
}

fn is_present<'de, D: Deserializer<'de>>(member: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(member).map(|_| true)
}

/// A parsed token. Its contents are not trusted until the signature has been verified.
#[derive(Debug)]
pub struct SignedToken<'a> {
    /// The algorithm that the token claims to be signed with. The verifier must check it against the key.
    pub algorithm: Algorithm,
    /// The id of the key that the token claims to be signed with.
    pub kid: Option<String>,
    /// The bytes that are signed: header, dot and payload.
    pub signed: &'a [u8],
    /// The signature's bytes.
    pub signature: Vec<u8>,
    payload: &'a str,
}

impl<'a> SignedToken<'a> {
    /// Parses a user's `token`, without its payload.
    ///
    /// # Errors
    /// `TooLong`, `Malformed`, `Critical`, `Type` for a pass, or `Algorithm` if no such algorithm is supported.
    pub fn parse(token: &'a str) -> Result<Self, TokenRejection> {
        Self::parse_as(token, false)
    }

    /// Parses a `pass`, without its payload.
    ///
    /// # Errors
    /// As for [`parse`](Self::parse), but `Type` for a user's token.
    pub(super) fn parse_pass(pass: &'a str) -> Result<Self, TokenRejection> {
        Self::parse_as(pass, true)
    }

    fn parse_as(token: &'a str, is_pass: bool) -> Result<Self, TokenRejection> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::TooLong.into());
        }
        let mut parts = token.split('.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(TokenError::Malformed.into());
        };
        let read: Header = object(&decode(header)?).map_err(|_| TokenError::Malformed)?;
        if read.crit {
            return Err(TokenError::Critical.into());
        }
        let typ = read.typ.unwrap_or_default();
        if is_pass_type(&typ) != is_pass {
            return Err(TokenError::Type.found(&typ));
        }
        let algorithm = read.alg.parse().map_err(|_| TokenError::Algorithm.found(&read.alg))?;
        let signed = &token.as_bytes()[..header.len() + 1 + payload.len()];
        Ok(Self { algorithm, kid: read.kid, signed, signature: decode(signature)?, payload })
    }

    /// Returns whether the token is an HS256 token signed with `key`.
    pub fn is_signed_with(&self, key: &SecretKey) -> bool {
        let mut mac = key.hmac();
        mac.update(self.signed);
        self.algorithm == Algorithm::Hs256 && mac.verify_slice(&self.signature).is_ok()
    }

    /// Decodes the payload.
    pub(super) fn payload(&self) -> Result<Vec<u8>, TokenError> {
        decode(self.payload)
    }

    /// Checks the payload by `rules` at `now`. A token that passes may still be signed by anyone.
    pub fn check(&self, rules: &TokenRules, now: Timestamp) -> Result<(), TokenRejection> {
        rules.check(&self.payload()?, now).map(|_| ())
    }

    /// Checks the payload by `rules` at `now`, and returns the user, whose id `user_ids` derives. Trust the result
    /// only if the signature is verified too.
    ///
    /// # Errors
    /// The first rule that the payload breaks. The user id is checked last.
    pub fn user(
        &self,
        rules: &TokenRules,
        user_ids: &UserIdRule,
        now: Timestamp,
    ) -> Result<UserId, TokenRejection> {
        let payload = self.payload()?;
        let subject = rules.check(&payload, now)?;
        let value = if user_ids.claim() == user_id::DEFAULT_CLAIM {
            subject.ok_or(TokenError::Members)?
        } else {
            user_ids.claim_value(&payload).ok_or(TokenError::UserClaim)?
        };
        user_ids.user_id(&value).map_err(|_| TokenError::Subject.into())
    }
}

/// Returns whether `typ` is that of a pass. Media types ignore case.
fn is_pass_type(typ: &str) -> bool {
    let typ = typ.to_ascii_lowercase();
    typ.strip_prefix(MEDIA_TYPE_PREFIX).unwrap_or(&typ) == PASS_TYPE
}

fn decode(part: &str) -> Result<Vec<u8>, TokenError> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(token: &str) -> Option<TokenError> {
        SignedToken::parse(token).err().map(|rejected| rejected.reason)
    }

    fn with_header(header: &str) -> String {
        format!("{}.e30.AAAA", URL_SAFE_NO_PAD.encode(header))
    }

    #[test]
    fn the_header_names_algorithm_and_key() {
        for algorithm in Algorithm::ALL {
            let token = with_header(&format!(r#"{{"alg":"{}","kid":"k 1"}}"#, algorithm.as_str()));
            let parsed = SignedToken::parse(&token).unwrap();
            assert_eq!((parsed.algorithm, parsed.kid.as_deref()), (algorithm, Some("k 1")));
        }
    }

    #[test]
    fn keys_in_the_header_are_ignored() {
        let header = r#"{"alg":"ES256","jku":"https://evil.example","jwk":{"kty":"oct"},"x5u":1,"x5c":[]}"#;
        assert_eq!(reason(&with_header(header)), None);
    }

    #[test]
    fn wrong_headers_are_rejected() {
        for (header, error) in [
            (r#"{"alg":"none"}"#, TokenError::Algorithm),
            (r#"{"alg":"hs256"}"#, TokenError::Algorithm),
            (r#"{"alg":"HS512"}"#, TokenError::Algorithm),
            (r#"{"alg":"HS256","crit":["exp"]}"#, TokenError::Critical),
            (r#"{"alg":"HS256","crit":null}"#, TokenError::Critical),
            (r#"{"alg":"HS256","b64":false,"crit":["b64"]}"#, TokenError::Critical),
            (r#"{"alg":"HS256","alg":"none"}"#, TokenError::Malformed),
            (r#"{"alg":"HS256","kid":42}"#, TokenError::Malformed),
            (r#"{"alg":"HS256","typ":42}"#, TokenError::Malformed),
            (r#"{"alg":"HS256","typ":"JWT","typ":"claimgate-pass+jwt"}"#, TokenError::Malformed),
            (r#"{"alg":["HS256"]}"#, TokenError::Malformed),
            (r#"{"typ":"JWT"}"#, TokenError::Malformed),
            (r#"["HS256"]"#, TokenError::Malformed),
            (r#" ["HS256","kid"]"#, TokenError::Malformed),
        ] {
            assert_eq!(reason(&with_header(header)), Some(error), "{header}");
        }
        let rejected = SignedToken::parse(&with_header(r#"{"alg":"none"}"#)).unwrap_err();
        assert_eq!(rejected, TokenError::Algorithm.found("none"));
    }

    #[test]
    fn tokens_beyond_the_maximum_length_are_not_parsed() {
        let padded = |bytes: usize| format!("{}{}", ".".repeat(2), "A".repeat(bytes - 2));
        assert_eq!(reason(&padded(TOKEN_BYTES_MAX)), Some(TokenError::Malformed));
        assert_eq!(reason(&padded(TOKEN_BYTES_MAX + 1)), Some(TokenError::TooLong));
    }
}
