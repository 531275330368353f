//! Passes: who may claim from a campaign that requires one.
//!
//! A pass is a JWT with a separate `typ`, so no user's token is a pass and no pass a user's token.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::rejection::{TokenError, TokenRejection};
use super::rules::check_times;
use super::token::{PASS_TYPE, SignedToken};
use crate::json_member::object;
use crate::signature::NamedKey;
use crate::{CampaignId, ShownPass, Timestamp, UserId};

/// A pass to sign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pass {
    /// The user's id in claims, after `USER_ID_FORM`.
    pub user: UserId,
    /// The campaign that the user may claim from.
    pub campaign: CampaignId,
    /// The first instant at which the pass is not valid, in whole seconds.
    pub expires_at: Timestamp,
    /// The first instant at which the pass is valid, in whole seconds; `None` for immediately.
    pub not_before: Option<Timestamp>,
    /// The most units that the user may take in the whole campaign; `None` if only the campaign's limits apply.
    pub units: Option<NonZeroU32>,
}

#[derive(Serialize)]
struct Header<'a> {
    alg: &'static str,
    typ: &'static str,
    kid: &'a str,
}

/// The members that are signed, in this order: other implementations sign the same bytes.
#[derive(Serialize)]
struct SignedMembers<'a> {
    sub: &'a UserId,
    campaign: &'a CampaignId,
    exp: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    nbf: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    units: Option<NonZeroU32>,
}

impl Pass {
    /// Signs the pass with HS256. Fractions of a second shorten its validity.
    pub fn sign(&self, key: &NamedKey) -> Result<String, serde_json::Error> {
        let header = Header { alg: "HS256", typ: PASS_TYPE, kid: &key.kid };
        let payload = SignedMembers {
            sub: &self.user,
            campaign: &self.campaign,
            exp: self.expires_at.as_ms().div_euclid(1000),
            nbf: self.not_before.map(|from| from.saturating_add_ms(999).as_ms().div_euclid(1000)),
            units: self.units,
        };
        Ok(super::sign(&serde_json::to_vec(&header)?, &serde_json::to_vec(&payload)?, &key.key))
    }
}

#[derive(Deserialize)]
struct Payload {
    sub: String,
    campaign: String,
    exp: f64,
    nbf: Option<f64>,
    units: Option<NonZeroU32>,
}

/// The claim that a pass is shown with.
#[derive(Debug, Clone, Copy)]
pub struct PassCheck<'a> {
    /// The claim's user, from a verified token.
    pub user: &'a UserId,
    /// The claim's campaign.
    pub campaign: &'a CampaignId,
    /// Allowed difference between the issuer's clock and the verifier's, in seconds.
    pub leeway_s: u32,
    /// The verifier's time.
    pub now: Timestamp,
}

impl PassCheck<'_> {
    /// Parses `pass`, without its payload. The caller verifies the signature, then calls [`shown`](Self::shown).
    ///
    /// # Errors
    /// `TooLong`, `Malformed`, `Critical`, `Type`, or `Algorithm` if no such algorithm is supported.
    pub fn parse(pass: &str) -> Result<SignedToken<'_>, TokenRejection> {
        SignedToken::parse_pass(pass)
    }

    /// Checks the payload of `pass`. Trust the result only if the signature is verified too.
    pub fn shown(&self, pass: &SignedToken<'_>) -> Result<ShownPass, TokenRejection> {
        let payload: Payload = object(&pass.payload()?)
            .map_err(|why| if why.is_data() { TokenError::PassMembers } else { TokenError::Malformed })?;
        if payload.campaign != self.campaign.as_str() {
            return Err(TokenError::Campaign.found(&payload.campaign));
        }
        // The log gets no other user's id.
        if payload.sub != self.user.as_str() {
            return Err(TokenError::User.into());
        }
        check_times(payload.exp, payload.nbf, self.leeway_s, self.now)?;
        Ok(ShownPass { units: payload.units })
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use proptest::prelude::*;

    use super::super::{UserTokens, sign};
    use super::*;
    use crate::jwt::TokenRules;
    use crate::user_id::UserIdRule;

    const NOW_S: i64 = 1_700_000_000;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_ms(seconds * 1000).unwrap()
    }

    /// The bytes 0x01 … 0x20.
    fn key() -> NamedKey {
        "shop:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA".parse().unwrap()
    }

    fn pass() -> Pass {
        Pass {
            user: "alice".parse().unwrap(),
            campaign: "spring".parse().unwrap(),
            expires_at: at(NOW_S + 60),
            not_before: None,
            units: None,
        }
    }

    fn shown_at(pass: &str, now: Timestamp) -> Result<ShownPass, TokenRejection> {
        let (user, campaign) = ("alice".parse().unwrap(), "spring".parse().unwrap());
        let check = PassCheck { user: &user, campaign: &campaign, leeway_s: 5, now };
        let token = PassCheck::parse(pass)?;
        if !token.is_signed_with(&key().key) {
            return Err(TokenError::Signature.into());
        }
        check.shown(&token)
    }

    fn reason(pass: &str) -> Option<TokenError> {
        shown_at(pass, at(NOW_S)).err().map(|rejected| rejected.reason)
    }

    fn with_payload(payload: &str) -> String {
        sign(br#"{"alg":"HS256","typ":"claimgate-pass+jwt"}"#, payload.as_bytes(), &key().key)
    }

    fn with_type(typ: &str, payload: &str) -> String {
        sign(format!(r#"{{"alg":"HS256"{typ}}}"#).as_bytes(), payload.as_bytes(), &key().key)
    }

    // Computed with Python's `hmac`; `client/test/server.test.js` has the same vectors.
    #[test]
    fn passes_match_the_test_vectors() {
        let header = "eyJhbGciOiJIUzI1NiIsInR5cCI6ImNsYWltZ2F0ZS1wYXNzK2p3dCIsImtpZCI6InNob3AifQ";
        let full = Pass { not_before: Some(at(NOW_S)), units: NonZeroU32::new(2), ..pass() };
        for (pass, payload, signature) in [
            (
                pass(),
                r#"{"sub":"alice","campaign":"spring","exp":1700000060}"#,
                "FysBx2mpaM17Qy_mweeMehmTLnCfzn7nu3yLwFCTyek",
            ),
            (
                full,
                r#"{"sub":"alice","campaign":"spring","exp":1700000060,"nbf":1700000000,"units":2}"#,
                "9KPscw8J5D_q8p8FuR7b2bKUuEWQLATe2fci1tA6Kfw",
            ),
        ] {
            let expected = format!("{header}.{}.{signature}", URL_SAFE_NO_PAD.encode(payload));
            assert_eq!(pass.sign(&key()).unwrap(), expected);
        }
    }

    #[test]
    fn a_pass_is_valid_from_nbf_until_exp_with_leeway() {
        let signed = Pass { not_before: Some(at(NOW_S + 20)), ..pass() }.sign(&key()).unwrap();
        let reason = |ms: i64| {
            let now = Timestamp::from_ms(NOW_S * 1000 + ms).unwrap();
            shown_at(&signed, now).err().map(|rejected| rejected.reason)
        };
        assert_eq!(reason(14_999), Some(TokenError::NotYet));
        assert_eq!(reason(15_000), None);
        assert_eq!(reason(64_999), None);
        assert_eq!(reason(65_000), Some(TokenError::Expired));
    }

    #[test]
    fn fractions_of_a_second_shorten_the_validity() {
        let fraction = |seconds: i64| Timestamp::from_ms(seconds * 1000 + 1).unwrap();
        let short = Pass { not_before: Some(fraction(NOW_S)), expires_at: fraction(NOW_S + 60), ..pass() };
        let whole = Pass { not_before: Some(at(NOW_S + 1)), ..pass() };
        assert_eq!(short.sign(&key()).unwrap(), whole.sign(&key()).unwrap());
    }

    #[test]
    fn units_are_shown() {
        for units in [None, NonZeroU32::new(1), NonZeroU32::new(u32::MAX)] {
            let signed = Pass { units, ..pass() }.sign(&key()).unwrap();
            assert_eq!(shown_at(&signed, at(NOW_S)), Ok(ShownPass { units }));
        }
    }

    #[test]
    fn a_pass_for_another_user_or_campaign_is_rejected() {
        let bob = Pass { user: "bob".parse().unwrap(), ..pass() }.sign(&key()).unwrap();
        assert_eq!(shown_at(&bob, at(NOW_S)), Err(TokenError::User.into()), "without the other user's id");
        let autumn = Pass { campaign: "autumn".parse().unwrap(), ..pass() }.sign(&key()).unwrap();
        assert_eq!(shown_at(&autumn, at(NOW_S)), Err(TokenError::Campaign.found("autumn")));
    }

    #[test]
    fn malformed_payloads_are_rejected() {
        for (payload, error) in [
            (r#"{"campaign":"spring","exp":1700000060}"#, TokenError::PassMembers),
            (r#"{"sub":"alice","exp":1700000060}"#, TokenError::PassMembers),
            (r#"{"sub":"alice","campaign":"spring"}"#, TokenError::PassMembers),
            (r#"{"sub":"alice","campaign":"spring","exp":"1700000060"}"#, TokenError::PassMembers),
            (r#"{"sub":["alice"],"campaign":"spring","exp":1700000060}"#, TokenError::PassMembers),
            (r#"{"sub":"alice","campaign":"spring","exp":1700000060,"nbf":"now"}"#, TokenError::PassMembers),
            (r#"{"sub":"alice","campaign":"spring","exp":1700000060,"units":0}"#, TokenError::PassMembers),
            (r#"{"sub":"alice","campaign":"spring","exp":1700000060,"units":1.5}"#, TokenError::PassMembers),
            (
                r#"{"sub":"alice","campaign":"spring","exp":1700000060,"units":4294967296}"#,
                TokenError::PassMembers,
            ),
            (r#"{"sub":"bob","sub":"alice","campaign":"spring","exp":1700000060}"#, TokenError::PassMembers),
            (r#"["alice","spring",1700000060,null,null]"#, TokenError::PassMembers),
            (r#"{"sub":"alice""#, TokenError::Malformed),
            ("", TokenError::Malformed),
        ] {
            assert_eq!(reason(&with_payload(payload)), Some(error), "{payload}");
        }
        let unknown = r#"{"sub":"alice","campaign":"spring","exp":1700000060,"iss":"shop","jti":"1"}"#;
        assert_eq!(reason(&with_payload(unknown)), None, "other members are ignored");
    }

    /// The payload is valid for both, so only `typ` decides.
    #[test]
    fn no_token_is_both_a_users_token_and_a_pass() {
        let rules = TokenRules::new("claimgate".to_owned(), "claimgate".to_owned());
        let tokens = UserTokens { key: key().key, rules };
        let payload =
            r#"{"iss":"claimgate","aud":"claimgate","sub":"alice","campaign":"spring","exp":1700000060}"#;
        for (typ, is_pass) in [
            (r#","typ":"claimgate-pass+jwt""#, true),
            (r#","typ":"Claimgate-Pass+JWT""#, true),
            (r#","typ":"application/claimgate-pass+jwt""#, true),
            (r#","typ":"APPLICATION/claimgate-pass+jwt""#, true),
            (r#","t\u0079p":"claimgate-pas\u0073+jwt""#, true),
            ("", false),
            (r#","typ":null"#, false),
            (r#","typ":"""#, false),
            (r#","typ":"JWT""#, false),
            (r#","typ":"at+jwt""#, false),
            (r#","typ":"claimgate-pass""#, false),
            (r#","typ":" claimgate-pass+jwt""#, false),
            (r#","typ":"text/claimgate-pass+jwt""#, false),
            (r#","typ":"application/application/claimgate-pass+jwt""#, false),
            (r#","typ":"application/ü""#, false),
            (r#","typ":"applicationü""#, false),
            (r#","cty":"claimgate-pass+jwt""#, false),
        ] {
            let token = with_type(typ, payload);
            let verified = tokens.verify(&token, &UserIdRule::verbatim("sub", "claimgate"), at(NOW_S));
            let as_user = verified.err().map(|rejected| rejected.reason);
            let (user_error, pass_error) =
                if is_pass { (Some(TokenError::Type), None) } else { (None, Some(TokenError::Type)) };
            assert_eq!(as_user, user_error, "{typ}");
            assert_eq!(reason(&token), pass_error, "{typ}");
        }
    }

    #[test]
    fn a_pass_of_another_algorithm_is_not_signed_with_the_secret() {
        let payload = r#"{"sub":"alice","campaign":"spring","exp":1700000060}"#;
        let header = r#"{"alg":"ES256","typ":"claimgate-pass+jwt"}"#;
        assert_eq!(
            reason(&sign(header.as_bytes(), payload.as_bytes(), &key().key)),
            Some(TokenError::Signature)
        );
    }

    proptest! {
        #[test]
        fn checking_a_pass_never_panics(pass in any::<String>(), payload in any::<String>()) {
            prop_assert!(reason(&pass).is_some());
            prop_assert!(reason(&with_payload(&payload)).is_some());
        }
    }
}
