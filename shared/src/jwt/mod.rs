//! User tokens and passes: JWTs (RFC 7519) in the compact form.
//!
//! `token` parses a token, `rules` checks its claims, `pass` signs and checks passes, `rejection` says why a
//! token is rejected. A token's header
//! only names the algorithm and the key; the deployment decides which algorithms it accepts. Tokens with a shared
//! secret are minted and verified here. The edge verifies the others with Web Crypto.

mod algorithm;
mod pass;
mod rejection;
mod rules;
mod token;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::Mac as _;
use serde::ser::{Serialize, SerializeMap as _, Serializer};

pub use self::algorithm::{Algorithm, AlgorithmError};
pub use self::pass::{Pass, PassCheck};
pub use self::rejection::{TokenError, TokenRejection};
pub use self::rules::{LEEWAY_S, LEEWAY_S_MAX, RequiredClaim, TokenRules};
pub use self::token::SignedToken;
use crate::signature::SecretKey;
use crate::user_id::UserIdRule;
use crate::{Timestamp, UserId};

/// Maximum length of a token, in bytes. Longer ones are not parsed. Tokens that list a user's groups exceed
/// 2 KB.
pub const TOKEN_BYTES_MAX: usize = 8_192;

/// Signs and verifies tokens with a shared secret.
#[derive(Debug, Clone)]
pub struct UserTokens {
    /// The HS256 secret.
    pub key: SecretKey,
    /// The required values.
    pub rules: TokenRules,
}

impl UserTokens {
    /// Mints a token for `user` that meets the rules and expires `ttl_s` seconds after `now`.
    pub fn mint(&self, user: &UserId, now: Timestamp, ttl_s: u32) -> Result<String, serde_json::Error> {
        let exp_s = now.as_ms() / 1000 + i64::from(ttl_s);
        let payload = serde_json::to_vec(&Claims { rules: &self.rules, user, exp_s })?;
        Ok(sign(r#"{"alg":"HS256","typ":"JWT"}"#.as_bytes(), &payload, &self.key))
    }

    /// Verifies `token` at `now` and returns its user, whose id `user_ids` derives.
    ///
    /// # Errors
    /// The first broken rule; the claims are checked only if the signature is valid.
    pub fn verify(
        &self,
        token: &str,
        user_ids: &UserIdRule,
        now: Timestamp,
    ) -> Result<UserId, TokenRejection> {
        let token = SignedToken::parse(token)?;
        if token.algorithm != Algorithm::Hs256 {
            return Err(TokenError::Algorithm.found(token.algorithm.as_str()));
        }
        if !token.is_signed_with(&self.key) {
            return Err(TokenError::Signature.into());
        }
        token.user(&self.rules, user_ids, now)
    }
}

/// Signs a token of this header and payload, both JSON, with HS256.
fn sign(header: &[u8], payload: &[u8], key: &SecretKey) -> String {
    let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
    let mut mac = key.hmac();
    mac.update(signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}

/// The payload of a minted token.
struct Claims<'a> {
    rules: &'a TokenRules,
    user: &'a UserId,
    exp_s: i64,
}

impl Serialize for Claims<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut claims = serializer.serialize_map(None)?;
        claims.serialize_entry("iss", &self.rules.issuer)?;
        if let Some(audience) = self.rules.audiences.first() {
            claims.serialize_entry("aud", audience)?;
        }
        claims.serialize_entry("sub", self.user)?;
        claims.serialize_entry("exp", &self.exp_s)?;
        for claim in &self.rules.required {
            claims.serialize_entry(&claim.name, &claim.value)?;
        }
        claims.end()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW_MS: i64 = 1_700_000_000_000;

    fn tokens() -> UserTokens {
        UserTokens {
            key: SecretKey::from_bytes(b"a key for tests, not all the same".to_vec()).unwrap(),
            rules: TokenRules::new("claimgate".to_owned(), "claimgate".to_owned()),
        }
    }

    fn now() -> Timestamp {
        Timestamp::from_ms(NOW_MS).unwrap()
    }

    /// Returns a correctly signed token with this header and payload.
    fn signed(header: &str, payload: &str) -> String {
        sign(header.as_bytes(), payload.as_bytes(), &tokens().key)
    }

    fn verify(tokens: &UserTokens, token: &str, now: Timestamp) -> Result<UserId, TokenRejection> {
        tokens.verify(token, &UserIdRule::verbatim("sub", &tokens.rules.issuer), now)
    }

    fn reason(tokens: &UserTokens, token: &str, now: Timestamp) -> Option<TokenError> {
        verify(tokens, token, now).err().map(|rejected| rejected.reason)
    }

    #[test]
    fn a_minted_token_is_valid_until_it_expires() {
        let alice: UserId = "alice".parse().unwrap();
        let token = tokens().mint(&alice, now(), 60).unwrap();
        assert_eq!(verify(&tokens(), &token, now()), Ok(alice));
        assert_eq!(reason(&tokens(), &token, now().saturating_add_ms(64_999)), None);
        assert_eq!(reason(&tokens(), &token, now().saturating_add_ms(65_000)), Some(TokenError::Expired));
        let other = UserTokens {
            key: SecretKey::from_bytes(b"another key, also 32 bytes or more".to_vec()).unwrap(),
            ..tokens()
        };
        assert_eq!(reason(&other, &token, now()), Some(TokenError::Signature));
    }

    #[test]
    fn a_minted_token_has_the_required_claims() {
        let rules = TokenRules {
            audiences: Vec::new(),
            required: vec!["azp=https://a.example".parse().unwrap()],
            ..tokens().rules
        };
        let tokens = UserTokens { rules, ..tokens() };
        let token = tokens.mint(&"alice".parse().unwrap(), now(), 60).unwrap();
        assert_eq!(reason(&tokens, &token, now()), None);
    }

    #[test]
    fn the_token_cannot_choose_its_algorithm() {
        let payload = r#"{"iss":"claimgate","aud":"claimgate","sub":"a","exp":1800000000}"#;
        for algorithm in ["none", "HS512", "RS256", "ES256", "hs256"] {
            let token = signed(&format!(r#"{{"alg":"{algorithm}"}}"#), payload);
            assert_eq!(verify(&tokens(), &token, now()), Err(TokenError::Algorithm.found(algorithm)));
        }
        let unsigned =
            format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#), URL_SAFE_NO_PAD.encode(payload));
        assert_eq!(reason(&tokens(), &unsigned, now()), Some(TokenError::Signature));
    }

    #[test]
    fn the_user_id_is_checked_last() {
        for (payload, error) in [
            (r#"{"iss":"claimgate","aud":"claimgate","sub":"a b","exp":1700000060}"#, TokenError::Subject),
            (r#"{"iss":"claimgate","aud":"claimgate","sub":"","exp":1700000060}"#, TokenError::Subject),
            (r#"{"iss":"claimgate","aud":"claimgate","exp":1700000060}"#, TokenError::Members),
            (r#"{"iss":"other","aud":"claimgate","exp":1700000060}"#, TokenError::Issuer),
            (r#"{"iss":"claimgate","aud":"claimgate","sub":"a b","exp":1699999994}"#, TokenError::Expired),
            (r#"{"iss":"other","aud":"claimgate","sub":"a b","exp":1700000060}"#, TokenError::Issuer),
        ] {
            let token = signed(r#"{"alg":"HS256"}"#, payload);
            assert_eq!(reason(&tokens(), &token, now()), Some(error), "{payload}");
        }
    }

    #[test]
    fn the_user_id_is_derived_from_the_configured_claim() {
        let user = |claim: &str, members: &str| {
            let payload = format!(r#"{{"iss":"claimgate","aud":"claimgate","exp":1700000060{members}}}"#);
            let user_ids = UserIdRule::verbatim(claim, "claimgate");
            tokens().verify(&signed(r#"{"alg":"HS256"}"#, &payload), &user_ids, now())
        };
        let b = Ok("b".parse().unwrap());
        assert_eq!(user("oid", r#","sub":"a","oid":"b""#), b);
        assert_eq!(user("oid", r#","oid":"b""#), b, "sub is not needed");
        assert_eq!(user("oid", r#","sub":"a b","oid":"b""#), b, "sub is not a user id");
        assert_eq!(user("sub", r#","sub":"b","oid":"a""#), b);
        assert_eq!(user("oid", r#","sub":"a","oid":"a b""#), Err(TokenError::Subject.into()));
        for wrong in ["", r#","oid":7"#, r#","oid":"b","oid":"b""#] {
            let members = format!(r#","sub":"a"{wrong}"#);
            assert_eq!(user("oid", &members), Err(TokenError::UserClaim.into()), "{wrong}");
        }
        assert_eq!(user("oid", r#","sub":7,"oid":"b""#), Err(TokenError::Members.into()));
    }

    proptest! {
        #[test]
        fn verifying_a_token_never_panics(token in any::<String>()) {
            prop_assert!(verify(&tokens(), &token, now()).is_err());
        }

        #[test]
        fn no_payload_makes_verifying_panic(payload in any::<String>()) {
            let token = signed(r#"{"alg":"HS256"}"#, &payload);
            prop_assert!(verify(&tokens(), &token, now()).is_err());
        }
    }
}
