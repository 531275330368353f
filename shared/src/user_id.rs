//! Derives a user's id from the user's token.
//!
//! A deployment has one scheme: the form of its ids, the token claim that they are derived from, the tokens'
//! issuer, and the key. With a different scheme, every user gets a new id, and with it a second allowance. So
//! the edge names its scheme by a fingerprint, and core rejects claims under a different scheme.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::Mac as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};

use crate::UserId;
use crate::ids::IdError;
use crate::json_member::member;
use crate::signature::SecretKey;

/// The token claim that holds the user's id, unless the deployment names a different one.
pub const DEFAULT_CLAIM: &str = "sub";

/// Length of a fingerprint, in characters of base64url.
const FINGERPRINT_CHARACTERS: usize = 6;
/// Length of an HMAC-SHA256 in base64url without padding.
const MAC_CHARACTERS: usize = 43;

/// The form of a deployment's user ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The token claim's value, unchanged.
    Verbatim,
    /// An HMAC of the token claim's value: fits every provider, and hides the value.
    Hmac,
}

impl Form {
    /// Returns the name used in settings and in a [`Scheme`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Verbatim => "verbatim",
            Self::Hmac => "hmac",
        }
    }
}

/// The text is not the name of a [`Form`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be verbatim or hmac")]
pub struct FormError;

impl FromStr for Form {
    type Err = FormError;
    fn from_str(text: &str) -> Result<Self, FormError> {
        [Self::Verbatim, Self::Hmac].into_iter().find(|form| form.as_str() == text).ok_or(FormError)
    }
}

/// Names a deployment's [`UserIdRule`] without revealing its key: `verbatim:FFFFFF` or `hmac:FFFFFF`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheme {
    form: Form,
    /// ASCII, of base64url's alphabet.
    fingerprint: [u8; FINGERPRINT_CHARACTERS],
}

/// The text is not a [`Scheme`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be verbatim:FFFFFF or hmac:FFFFFF, where FFFFFF is the fingerprint of 6 characters")]
pub struct SchemeError;

impl Scheme {
    /// Length of an id by HMAC, in characters.
    pub const HMAC_ID_CHARACTERS: usize = FINGERPRINT_CHARACTERS + 1 + MAC_CHARACTERS;

    /// Returns the form of its ids.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Returns the fingerprint.
    pub fn fingerprint(&self) -> &str {
        // Only strings of base64url's alphabet become a fingerprint.
        str::from_utf8(&self.fingerprint).unwrap_or_default()
    }

    /// Returns the prefix of each id by HMAC.
    pub fn id_prefix(&self) -> String {
        format!("{}_", self.fingerprint())
    }

    /// Returns whether `user` can be an id of this scheme. Only ids by HMAC have a recognizable shape.
    pub fn admits(&self, user: &UserId) -> bool {
        match self.form {
            Form::Verbatim => true,
            Form::Hmac => {
                let mac =
                    user.as_str().strip_prefix(self.fingerprint()).and_then(|rest| rest.strip_prefix('_'));
                mac.is_some_and(|mac| mac.len() == MAC_CHARACTERS)
            }
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.form.as_str(), self.fingerprint())
    }
}

impl FromStr for Scheme {
    type Err = SchemeError;
    fn from_str(text: &str) -> Result<Self, SchemeError> {
        let (form, fingerprint) = text.split_once(':').ok_or(SchemeError)?;
        // The alphabet is that of ids.
        fingerprint.parse::<UserId>().map_err(|_| SchemeError)?;
        Ok(Self {
            form: form.parse().map_err(|_| SchemeError)?,
            fingerprint: fingerprint.as_bytes().try_into().map_err(|_| SchemeError)?,
        })
    }
}

impl Serialize for Scheme {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Scheme {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(feature = "openapi")]
mod schema {
    use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};

    impl utoipa::ToSchema for super::Scheme {
        fn name() -> std::borrow::Cow<'static, str> {
            "UserIdScheme".into()
        }
    }

    impl utoipa::PartialSchema for super::Scheme {
        fn schema() -> RefOr<Schema> {
            let text = ObjectBuilder::new().schema_type(Type::String);
            let text = text.pattern(Some("^(verbatim|hmac):[A-Za-z0-9_-]{6}$"));
            text.examples(["hmac:uGhVXL"]).build().into()
        }
    }
}

/// Derives user ids from the claims of verified tokens.
#[derive(Debug, Clone)]
pub struct UserIdRule {
    claim: String,
    issuer: String,
    /// `None` for ids that are the token claim's value.
    key: Option<SecretKey>,
    scheme: Scheme,
}

impl UserIdRule {
    /// A rule that takes the value of `claim` unchanged, from tokens of `issuer`.
    pub fn verbatim(claim: &str, issuer: &str) -> Self {
        Self::new(claim, issuer, None)
    }

    /// A rule that derives ids from the value of `claim` in tokens of `issuer` under `key`.
    pub fn hmac(claim: &str, issuer: &str, key: SecretKey) -> Self {
        Self::new(claim, issuer, Some(key))
    }

    fn new(claim: &str, issuer: &str, key: Option<SecretKey>) -> Self {
        let form = if key.is_some() { Form::Hmac } else { Form::Verbatim };
        let fingerprint = fingerprint(form, claim, issuer, key.as_ref());
        Self { claim: claim.to_owned(), issuer: issuer.to_owned(), key, scheme: Scheme { form, fingerprint } }
    }

    /// Returns the name of the token claim that ids are derived from.
    pub fn claim(&self) -> &str {
        &self.claim
    }

    /// Returns the scheme's name, for core.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the value of the claim in the JSON `payload` of a token; `None` unless it is there once and is a string.
    pub fn claim_value(&self, payload: &[u8]) -> Option<String> {
        serde_json::from_str(member(payload, &self.claim).ok()??.get()).ok()
    }

    /// Returns the id of the user whose verified token has `value` in the claim.
    ///
    /// # Errors
    /// [`IdError::Shape`] for an empty `value`, and under `verbatim` for a `value` that cannot be an id.
    pub fn user_id(&self, value: &str) -> Result<UserId, IdError> {
        match &self.key {
            Some(key) if !value.is_empty() => {
                let mut mac = key.hmac();
                for field in [&self.issuer, value] {
                    crate::feed_field(|bytes| mac.update(bytes), field.as_bytes());
                }
                let mac = URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes());
                (self.scheme.id_prefix() + &mac).try_into()
            }
            _ => value.parse(),
        }
    }
}

/// Returns the first characters of a hash over all that decides a user's id.
fn fingerprint(
    form: Form,
    claim: &str,
    issuer: &str,
    key: Option<&SecretKey>,
) -> [u8; FINGERPRINT_CHARACTERS] {
    let key_mark = key.map(|key| {
        let mut mac = key.hmac();
        // No id is an HMAC of this string: theirs begins with the issuer's length.
        mac.update(b"fingerprint");
        mac.finalize().into_bytes()
    });
    let mut hash = Sha256::new();
    for field in [form.as_str(), claim, issuer] {
        crate::feed_field(|bytes| hash.update(bytes), field.as_bytes());
    }
    crate::feed_field(|bytes| hash.update(bytes), key_mark.as_ref().map_or(&[], |mark| mark.as_slice()));
    let text = URL_SAFE_NO_PAD.encode(hash.finalize());
    let mut fingerprint = [0; FINGERPRINT_CHARACTERS];
    fingerprint.copy_from_slice(&text.as_bytes()[..FINGERPRINT_CHARACTERS]);
    fingerprint
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ISSUER: &str = "https://example.eu.auth0.com/";

    /// The bytes 0x01 … 0x20.
    fn key() -> SecretKey {
        "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA".parse().unwrap()
    }

    fn other_key() -> SecretKey {
        "YSBrZXkgZm9yIHRlc3RzLCBub3QgYWxsIHRoZSBzYW1l".parse().unwrap()
    }

    fn by_hmac() -> UserIdRule {
        UserIdRule::hmac("sub", ISSUER, key())
    }

    // Computed with Python's `hmac` and `hashlib`; `client/test/server.test.js` has the same vectors.
    #[test]
    fn ids_match_the_test_vectors() {
        for (rule, value, scheme, id) in [
            (UserIdRule::verbatim("sub", "claimgate"), "alice", "verbatim:VRBHvs", "alice"),
            (by_hmac(), "auth0|6512ab", "hmac:VR1TK4", "VR1TK4_EOYBS0Q3huZcMIdZCV7W7fd9cP4b-A0VjmlHPYacoMs"),
            (
                UserIdRule::hmac("email", ISSUER, key()),
                "zoë@example.com",
                "hmac:PBjTMm",
                "PBjTMm_jcavUUsMCScrcWRMMVwca2pCCTLo-gj0WrhUmL2aoiI",
            ),
        ] {
            assert_eq!(rule.scheme().to_string(), scheme);
            assert_eq!(rule.user_id(value).unwrap().as_str(), id);
        }
    }

    #[test]
    fn every_setting_changes_the_fingerprint() {
        let rules = [
            by_hmac(),
            UserIdRule::hmac("email", ISSUER, key()),
            UserIdRule::hmac("sub", "https://example.us.auth0.com/", key()),
            UserIdRule::hmac("sub", ISSUER, other_key()),
            UserIdRule::verbatim("sub", ISSUER),
            UserIdRule::verbatim("email", ISSUER),
            UserIdRule::verbatim("sub", "claimgate"),
        ];
        let mut fingerprints = rules.map(|rule| rule.scheme().fingerprint().to_owned());
        fingerprints.sort();
        assert!(fingerprints.windows(2).all(|two| two[0] != two[1]), "{fingerprints:?}");
    }

    #[test]
    fn verbatim_takes_ids_only_and_hmac_takes_any_value() {
        let verbatim = UserIdRule::verbatim("sub", ISSUER);
        assert_eq!(verbatim.user_id("auth0|6512ab"), Err(IdError::Shape));
        for rule in [verbatim, by_hmac()] {
            assert_eq!(rule.user_id(""), Err(IdError::Shape));
        }
        assert!(by_hmac().user_id(&"ü".repeat(4_000)).is_ok());
    }

    #[test]
    fn the_user_id_claim_must_occur_once_and_be_a_string() {
        let rule = UserIdRule::hmac("email", ISSUER, key());
        let value = |payload: &str| rule.claim_value(payload.as_bytes());
        assert_eq!(value(r#"{"sub":"a","email":"zo\u00eb@x","x":{"email":1}}"#), Some("zoë@x".to_owned()));
        for bad in [
            "",
            "[]",
            r#"{"sub":"a"}"#,
            r#"{"email":7}"#,
            r#"{"email":null}"#,
            r#"{"email":["a"]}"#,
            r#"{"email":"a","email":"b"}"#,
            r#"{"email":"a","em\u0061il":"b"}"#,
            r#"{"email":"a"} x"#,
            r#"{"email":"a""#,
        ] {
            assert_eq!(value(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_hmac_scheme_admits_only_ids_of_its_shape() {
        let id = by_hmac().user_id("alice").unwrap();
        let scheme = by_hmac().scheme();
        assert!(scheme.admits(&id));
        for other in
            ["alice", &id.as_str()[1..], &format!("{id}A"), &id.as_str().replace("VR1TK4_", "VR1TK4-")]
        {
            assert!(!scheme.admits(&other.parse().unwrap()), "{other}");
        }
        let of_another_key = UserIdRule::hmac("sub", ISSUER, other_key()).user_id("alice").unwrap();
        assert!(!scheme.admits(&of_another_key));
        assert!(UserIdRule::verbatim("sub", ISSUER).scheme().admits(&"alice".parse().unwrap()));
    }

    #[test]
    fn a_scheme_round_trips_and_no_other_text_is_one() {
        for rule in [by_hmac(), UserIdRule::verbatim("sub", ISSUER)] {
            assert_eq!(rule.scheme().to_string().parse(), Ok(rule.scheme()));
        }
        for bad in [
            "",
            "hmac",
            "hmac:",
            "VR1TK4",
            "hmac:VR1TK",
            "hmac:VR1TK44",
            "Hmac:VR1TK4",
            "hmac:VR1TK+",
            " hmac:VR1TK4",
        ] {
            assert_eq!(bad.parse::<Scheme>(), Err(SchemeError), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn every_value_has_one_id_that_fits(value in any::<String>(), other in any::<String>()) {
            prop_assume!(!value.is_empty() && !other.is_empty());
            let id = by_hmac().user_id(&value).unwrap();
            prop_assert!(by_hmac().scheme().admits(&id));
            prop_assert_eq!(id == by_hmac().user_id(&other).unwrap(), value == other);
        }

        #[test]
        fn no_text_makes_the_scheme_parser_panic(text in any::<String>()) {
            let _ = text.parse::<Scheme>();
        }
    }
}
