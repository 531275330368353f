//! Who a browser's user is: a JWT (RFC 7519) signed with the one algorithm of a deployment (RFC 7518, 3.1; RFC 8037).
//!
//! Only the compact form with exactly this algorithm is read, so nothing a token says can choose how it is verified.

use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::Mac as _;
use serde::{Deserialize, Serialize};

use crate::signature::SecretKey;
use crate::{Timestamp, UserId};

/// How far the issuer's clock may be ahead of or behind ours.
pub const LEEWAY_S: i64 = 5;

/// The longest token that is looked at, in bytes.
pub const TOKEN_BYTES_MAX: usize = 2048;

/// How a deployment's tokens are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// HMAC with SHA-256: who verifies could sign as well.
    Hs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// Ed25519.
    EdDsa,
}

impl Algorithm {
    /// As in a token's `alg`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hs256 => "HS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
        }
    }
}

/// A text that names no [`Algorithm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be HS256, ES256 or EdDSA")]
pub struct AlgorithmError;

impl FromStr for Algorithm {
    type Err = AlgorithmError;
    fn from_str(text: &str) -> Result<Self, AlgorithmError> {
        let all = [Self::Hs256, Self::Es256, Self::EdDsa];
        all.into_iter().find(|algorithm| algorithm.as_str() == text).ok_or(AlgorithmError)
    }
}

/// What a token of this deployment must say, however it is signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRules {
    /// The required `iss`.
    pub issuer: String,
    /// The required `aud`.
    pub audience: String,
}

/// Tokens signed with a secret.
#[derive(Debug, Clone)]
pub struct UserTokens {
    /// The HS256 secret.
    pub key: SecretKey,
    /// What they must say.
    pub rules: TokenRules,
}

/// Why a token is refused; for logs, never for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not three parts of base64url JSON with the members needed.
    #[error("malformed token")]
    Malformed,
    /// Not the deployment's.
    #[error("wrong algorithm")]
    Algorithm,
    /// Signed by another key, or changed.
    #[error("wrong signature")]
    Signature,
    /// `exp` has passed.
    #[error("expired")]
    Expired,
    /// `nbf` is ahead.
    #[error("not valid yet")]
    NotYet,
    /// Another `iss`.
    #[error("wrong issuer")]
    Issuer,
    /// Another `aud`.
    #[error("wrong audience")]
    Audience,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    /// Extensions the verifier must understand (RFC 7515, 4.1.11): none here.
    crit: Option<serde_json::Value>,
}

#[derive(Serialize, Deserialize)]
struct Payload {
    iss: String,
    aud: Audience,
    sub: UserId,
    exp: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    nbf: Option<f64>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Audience {
    fn contains(&self, wanted: &str) -> bool {
        match self {
            Self::One(one) => one == wanted,
            Self::Many(many) => many.iter().any(|one| one == wanted),
        }
    }
}

impl UserTokens {
    /// A token for `user` that is good for `ttl_s` seconds from `now` on.
    ///
    /// # Errors
    /// None in practice: all that a token says can be written as JSON.
    pub fn mint(&self, user: &UserId, now: Timestamp, ttl_s: u32) -> Result<String, serde_json::Error> {
        let payload = Payload {
            iss: self.rules.issuer.clone(),
            aud: Audience::One(self.rules.audience.clone()),
            sub: user.clone(),
            exp: seconds(now).floor() + f64::from(ttl_s),
            nbf: None,
        };
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","typ":"JWT"}"#);
        let payload = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&payload)?);
        let mut mac = self.key.hmac();
        mac.update(format!("{header}.{payload}").as_bytes());
        let signature = URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes());
        Ok(format!("{header}.{payload}.{signature}"))
    }

    /// The user that `token` speaks for at `now`.
    ///
    /// # Errors
    /// [`TokenError`] when the token is malformed, of another algorithm, wrongly signed, for another issuer or
    /// audience, or not good at `now`.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<UserId, TokenError> {
        let token = SignedToken::parse(token, Algorithm::Hs256)?;
        let mut mac = self.key.hmac();
        mac.update(token.signed);
        mac.verify_slice(&token.signature).map_err(|_| TokenError::Signature)?;
        token.user(&self.rules, now)
    }
}

/// A token taken apart. Nothing that it says is to be believed before its signature has been verified.
#[derive(Debug)]
pub struct SignedToken<'a> {
    /// What is signed.
    pub signed: &'a [u8],
    /// The signature's bytes.
    pub signature: Vec<u8>,
    payload: &'a str,
}

impl<'a> SignedToken<'a> {
    /// Takes `token` apart; refused unless it names `algorithm`.
    ///
    /// # Errors
    /// [`TokenError::Algorithm`] for another algorithm or a `crit` header, [`TokenError::Malformed`] for what is no
    /// token or too long.
    pub fn parse(token: &'a str, algorithm: Algorithm) -> Result<Self, TokenError> {
        let mut parts = token.split('.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(TokenError::Malformed);
        };
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::Malformed);
        }
        let read: Header = decode(header)?;
        if read.alg != algorithm.as_str() || read.crit.is_some() {
            return Err(TokenError::Algorithm);
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| TokenError::Malformed)?;
        let signed = &token.as_bytes()[..header.len() + 1 + payload.len()];
        Ok(Self { signed, signature, payload })
    }

    /// The user that the token speaks for at `now`; only to be asked once the signature has been verified.
    ///
    /// # Errors
    /// [`TokenError`] when the token is not for this issuer and audience, or not good at `now`.
    #[allow(clippy::cast_precision_loss)] // 5 is exact
    pub fn user(&self, rules: &TokenRules, now: Timestamp) -> Result<UserId, TokenError> {
        let (payload, now_s): (Payload, f64) = (decode(self.payload)?, seconds(now));
        if now_s >= payload.exp + LEEWAY_S as f64 {
            Err(TokenError::Expired)
        } else if payload.nbf.is_some_and(|from| now_s + (LEEWAY_S as f64) < from) {
            Err(TokenError::NotYet)
        } else if payload.iss != rules.issuer {
            Err(TokenError::Issuer)
        } else if !payload.aud.contains(&rules.audience) {
            Err(TokenError::Audience)
        } else {
            Ok(payload.sub)
        }
    }
}

/// JWT's `NumericDate` may have a fraction, hence floating point; milliseconds up to the year 9999 are exact enough.
#[allow(clippy::cast_precision_loss)]
fn seconds(at: Timestamp) -> f64 {
    at.as_ms() as f64 / 1000.0
}

fn decode<T: serde::de::DeserializeOwned>(part: &str) -> Result<T, TokenError> {
    let json = URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Malformed)?;
    serde_json::from_slice(&json).map_err(|_| TokenError::Malformed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW_MS: i64 = 1_700_000_000_000;

    fn tokens() -> UserTokens {
        UserTokens {
            key: SecretKey::from_bytes(b"a key for tests, not all the same".to_vec()).unwrap(),
            rules: TokenRules { issuer: "claimgate".to_owned(), audience: "claimgate".to_owned() },
        }
    }

    fn now() -> Timestamp {
        Timestamp::from_ms(NOW_MS).unwrap()
    }

    /// A token with any header and payload, well signed.
    fn signed(header: &str, payload: &str) -> String {
        let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
        let mut mac = tokens().key.hmac();
        mac.update(text.as_bytes());
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
    }

    fn hs256(payload: &str) -> Result<UserId, TokenError> {
        tokens().verify(&signed(r#"{"alg":"HS256"}"#, payload), now())
    }

    #[test]
    fn a_minted_token_speaks_for_its_user_until_it_expires() {
        let alice: UserId = "alice".parse().unwrap();
        let token = tokens().mint(&alice, now(), 60).unwrap();
        assert_eq!(tokens().verify(&token, now()), Ok(alice));
        assert!(tokens().verify(&token, now().saturating_add_ms(64_999)).is_ok());
        assert_eq!(tokens().verify(&token, now().saturating_add_ms(65_000)), Err(TokenError::Expired));
        let other = UserTokens {
            key: SecretKey::from_bytes(b"another key, also 32 bytes or more".to_vec()).unwrap(),
            ..tokens()
        };
        assert_eq!(other.verify(&token, now()), Err(TokenError::Signature));
    }

    #[test]
    fn the_token_cannot_choose_its_algorithm() {
        let payload = r#"{"iss":"claimgate","aud":"claimgate","sub":"a","exp":1800000000}"#;
        for header in [
            r#"{"alg":"none"}"#,
            r#"{"alg":"HS512"}"#,
            r#"{"alg":"RS256"}"#,
            r#"{"alg":"hs256"}"#,
            r#"{"alg":"HS256","crit":["exp"]}"#,
        ] {
            assert_eq!(
                tokens().verify(&signed(header, payload), now()),
                Err(TokenError::Algorithm),
                "{header}"
            );
        }
        let unsigned =
            format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#), URL_SAFE_NO_PAD.encode(payload));
        assert_eq!(tokens().verify(&unsigned, now()), Err(TokenError::Signature));
    }

    #[test]
    fn every_member_is_checked() {
        let good =
            r#"{"iss":"claimgate","aud":["x","claimgate"],"sub":"a","exp":1700000060,"nbf":1700000004.5}"#;
        assert!(hs256(good).is_ok());
        for (payload, error) in [
            (r#"{"iss":"claimgate","aud":"claimgate","sub":"a"}"#, TokenError::Malformed),
            (r#"{"iss":"claimgate","aud":"claimgate","exp":1700000060}"#, TokenError::Malformed),
            (r#"{"iss":"claimgate","aud":"claimgate","sub":"a b","exp":1700000060}"#, TokenError::Malformed),
            (r#"{"iss":"claimgate","sub":"a","exp":1700000060}"#, TokenError::Malformed),
            (
                r#"{"iss":"claimgate","aud":"claimgate","sub":"a","sub":"b","exp":1700000060}"#,
                TokenError::Malformed,
            ),
            (r#"{"iss":"claimgate","aud":"claimgate","sub":"a","exp":1699999994}"#, TokenError::Expired),
            (
                r#"{"iss":"claimgate","aud":"claimgate","sub":"a","exp":1700000060,"nbf":1700000006}"#,
                TokenError::NotYet,
            ),
            (r#"{"iss":"other","aud":"claimgate","sub":"a","exp":1700000060}"#, TokenError::Issuer),
            (r#"{"iss":"claimgate","aud":"other","sub":"a","exp":1700000060}"#, TokenError::Audience),
        ] {
            assert_eq!(hs256(payload), Err(error), "{payload}");
        }
    }

    #[test]
    fn an_algorithm_has_one_name() {
        for algorithm in [Algorithm::Hs256, Algorithm::Es256, Algorithm::EdDsa] {
            assert_eq!(algorithm.as_str().parse(), Ok(algorithm));
            assert_eq!(algorithm.as_str().to_lowercase().parse::<Algorithm>(), Err(AlgorithmError));
            let named = signed(&format!(r#"{{"alg":"{}"}}"#, algorithm.as_str()), "{}");
            assert!(SignedToken::parse(&named, algorithm).is_ok());
            assert_eq!(SignedToken::parse(&named, Algorithm::Hs256).is_ok(), algorithm == Algorithm::Hs256);
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_verifying_panic(token in any::<String>()) {
            prop_assert!(tokens().verify(&token, now()).is_err());
        }
    }
}
