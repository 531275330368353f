//! The rules that a token's claims must meet.

use std::str::FromStr;

use serde::Deserialize;

use super::rejection::{TokenError, TokenRejection};
use crate::Timestamp;
use crate::json_member::{member, object};

/// Default of [`TokenRules::leeway_s`].
pub const LEEWAY_S: u32 = 5;
/// Maximum of [`TokenRules::leeway_s`].
pub const LEEWAY_S_MAX: u32 = 60;

/// The values that a deployment's tokens must have, with any algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRules {
    /// The required `iss`.
    pub issuer: String,
    /// The accepted values of `aud`. If empty, `aud` is not checked.
    pub audiences: Vec<String>,
    /// Further required claims.
    pub required: Vec<RequiredClaim>,
    /// Allowed difference between the issuer's clock and the verifier's, in seconds.
    pub leeway_s: u32,
}

/// A token claim and the value that it must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredClaim {
    /// The claim's name.
    pub name: String,
    /// Its value: a string unchanged, any other value as JSON (`true`).
    pub value: String,
}

/// The text is not a [`RequiredClaim`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must list claims as NAME=VALUE, separated by commas, each name once")]
pub struct RequiredClaimError;

impl FromStr for RequiredClaim {
    type Err = RequiredClaimError;
    fn from_str(text: &str) -> Result<Self, RequiredClaimError> {
        let (name, value) = text.split_once('=').ok_or(RequiredClaimError)?;
        let (name, value) = (name.trim(), value.trim());
        if name.is_empty() || value.is_empty() {
            return Err(RequiredClaimError);
        }
        Ok(Self { name: name.to_owned(), value: value.to_owned() })
    }
}

#[derive(Deserialize)]
struct Payload {
    iss: String,
    aud: Option<Audience>,
    sub: Option<String>,
    exp: f64,
    nbf: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Audience {
    fn as_slice(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

impl TokenRules {
    /// Creates rules with one audience and the default leeway.
    pub fn new(issuer: String, audience: String) -> Self {
        Self { issuer, audiences: vec![audience], required: Vec::new(), leeway_s: LEEWAY_S }
    }

    /// Checks the JSON `payload` at `now` and returns its `sub`, if it has one.
    pub(super) fn check(&self, payload: &[u8], now: Timestamp) -> Result<Option<String>, TokenRejection> {
        let claims: Payload = object(payload).map_err(|why| unreadable(&why))?;
        check_times(claims.exp, claims.nbf, self.leeway_s, now)?;
        if claims.iss != self.issuer {
            return Err(TokenError::Issuer.found(&claims.iss));
        }
        if !self.audiences.is_empty() {
            self.check_audience(claims.aud.as_ref().ok_or(TokenError::Members)?)?;
        }
        if !self.required.is_empty() {
            self.check_required(payload)?;
        }
        Ok(claims.sub)
    }

    fn check_audience(&self, audience: &Audience) -> Result<(), TokenRejection> {
        let found = audience.as_slice();
        if found.iter().any(|one| self.audiences.contains(one)) {
            return Ok(());
        }
        Err(TokenError::Audience.found(&found.join(",")))
    }

    fn check_required(&self, payload: &[u8]) -> Result<(), TokenRejection> {
        for required in &self.required {
            let Some(found) = member(payload, &required.name).map_err(|why| unreadable(&why))? else {
                return Err(TokenError::Required.found(&format!("no {}", required.name)));
            };
            // A string is compared unchanged, any other value as JSON.
            let found = serde_json::from_str(found.get()).unwrap_or_else(|_| found.get().to_owned());
            if found != required.value {
                return Err(TokenError::Required.found(&format!("{}={found}", required.name)));
            }
        }
        Ok(())
    }
}

/// Checks that `now` is in the time from `nbf` to `exp`, extended by the leeway on both sides.
pub(super) fn check_times(
    exp: f64,
    nbf: Option<f64>,
    leeway_s: u32,
    now: Timestamp,
) -> Result<(), TokenError> {
    let (now_s, leeway_s) = (seconds(now), f64::from(leeway_s));
    if now_s >= exp + leeway_s {
        return Err(TokenError::Expired);
    }
    if nbf.is_some_and(|from| now_s + leeway_s < from) {
        return Err(TokenError::NotYet);
    }
    Ok(())
}

/// Converts to a JWT `NumericDate`, which may have a fraction. `f64` is exact enough for milliseconds up to
/// 9999.
#[allow(clippy::cast_precision_loss)]
fn seconds(at: Timestamp) -> f64 {
    at.as_ms() as f64 / 1000.0
}

fn unreadable(why: &serde_json::Error) -> TokenError {
    if why.is_data() { TokenError::Members } else { TokenError::Malformed }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: i64 = 1_700_000_000_000;

    fn rules() -> TokenRules {
        TokenRules::new("claimgate".to_owned(), "claimgate".to_owned())
    }

    fn now() -> Timestamp {
        Timestamp::from_ms(NOW_MS).unwrap()
    }

    fn reason(rules: &TokenRules, payload: &str) -> Option<TokenError> {
        rules.check(payload.as_bytes(), now()).err().map(|rejected| rejected.reason)
    }

    #[test]
    fn every_required_member_is_checked() {
        let good =
            r#"{"iss":"claimgate","aud":["x","claimgate"],"sub":"a","exp":1700000060,"nbf":1700000004.5}"#;
        assert_eq!(reason(&rules(), good), None);
        for (payload, error) in [
            (r#"{"iss":"claimgate","aud":"claimgate","sub":"a"}"#, TokenError::Members),
            (r#"{"iss":"claimgate","aud":"claimgate","sub":42,"exp":1700000060}"#, TokenError::Members),
            (r#"{"iss":"claimgate","sub":"a","exp":1700000060}"#, TokenError::Members),
            (r#"{"iss":"claimgate","aud":null,"sub":"a","exp":1700000060}"#, TokenError::Members),
            (r#"{"iss":"claimgate","aud":{"claimgate":1},"sub":"a","exp":1700000060}"#, TokenError::Members),
            (r#"{"iss":"claimgate","aud":"claimgate","sub":"a","exp":"1700000060"}"#, TokenError::Members),
            (r#"{"iss":"claimgate","aud":"claimgate","sub":"a","exp":1e999}"#, TokenError::Malformed),
            (r#"{"iss":"claimgate""#, TokenError::Malformed),
            (
                r#"{"iss":"claimgate","aud":"claimgate","sub":"a","sub":"b","exp":1700000060}"#,
                TokenError::Members,
            ),
            (r#"{"iss":"claimgate","aud":"claimgate","sub":"a","exp":1699999994}"#, TokenError::Expired),
            (
                r#"{"iss":"claimgate","aud":"claimgate","sub":"a","exp":1700000060,"nbf":1700000006}"#,
                TokenError::NotYet,
            ),
            (r#"{"iss":"other","aud":"claimgate","sub":"a","exp":1700000060}"#, TokenError::Issuer),
            (r#"{"iss":"claimgate","aud":"other","sub":"a","exp":1700000060}"#, TokenError::Audience),
            (r#"{"iss":"claimgate","aud":[],"sub":"a","exp":1700000060}"#, TokenError::Audience),
            (r#"["claimgate","claimgate","a",1700000060,null]"#, TokenError::Members),
        ] {
            assert_eq!(reason(&rules(), payload), Some(error), "{payload}");
        }
    }

    #[test]
    fn one_of_several_audiences_is_enough() {
        let rules = TokenRules { audiences: vec!["app".to_owned(), "shop".to_owned()], ..rules() };
        let payload = |aud: &str| format!(r#"{{"iss":"claimgate","aud":{aud},"sub":"a","exp":1700000060}}"#);
        assert_eq!(reason(&rules, &payload(r#""shop""#)), None);
        assert_eq!(reason(&rules, &payload(r#"["x","app"]"#)), None);
        let wrong = rules.check(payload(r#"["x","y"]"#).as_bytes(), now()).unwrap_err();
        assert_eq!(wrong, TokenError::Audience.found("x,y"));
    }

    #[test]
    fn without_audiences_the_required_claims_decide() {
        let required = ["client_id=7g4", "token_use=access", "email_verified=true"];
        let required = required.into_iter().map(|text| text.parse().unwrap()).collect();
        let rules = TokenRules { audiences: Vec::new(), required, ..rules() };
        let payload = |more: &str| format!(r#"{{"iss":"claimgate","sub":"a","exp":1700000060{more}}}"#);
        let good = r#","client_id":"7g4","token_use":"access","email_verified":true"#;
        assert_eq!(reason(&rules, &payload(good)), None);
        for (more, found) in [
            ("", "no client_id"),
            (r#","client_id":"other""#, "client_id=other"),
            (r#","client_id":["7g4"]"#, r#"client_id=["7g4"]"#),
            (r#","client_id":"7g4","token_use":"id""#, "token_use=id"),
        ] {
            let wrong = rules.check(payload(more).as_bytes(), now()).unwrap_err();
            assert_eq!(wrong, TokenError::Required.found(found), "{more}");
        }
        let twice = payload(&format!(r#","client_id":"other"{good}"#));
        assert_eq!(reason(&rules, &twice), Some(TokenError::Members));
    }

    #[test]
    fn the_leeway_is_configurable() {
        let payload = r#"{"iss":"claimgate","aud":"claimgate","sub":"a","exp":1699999970,"nbf":1700000030}"#;
        let with = |leeway_s| TokenRules { leeway_s, ..rules() };
        assert_eq!(reason(&with(31), payload), None);
        assert_eq!(reason(&with(30), payload), Some(TokenError::Expired));
        let only_nbf = payload.replace("1699999970", "1700000060");
        assert_eq!(reason(&with(30), &only_nbf), None);
        assert_eq!(reason(&with(29), &only_nbf), Some(TokenError::NotYet));
    }

    #[test]
    fn a_required_claim_has_a_name_and_a_value() {
        for wrong in ["", "azp", "azp=", "=x", " = "] {
            assert_eq!(wrong.parse::<RequiredClaim>(), Err(RequiredClaimError), "{wrong}");
        }
        let claim: RequiredClaim = " azp = https://a.example/?x=1".parse().unwrap();
        assert_eq!((claim.name.as_str(), claim.value.as_str()), ("azp", "https://a.example/?x=1"));
    }
}
