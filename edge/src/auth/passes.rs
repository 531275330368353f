//! Passes: verified with `PASS_KEYS`, secrets or a set of public keys.

use claimgate_shared::ShownPass;
use claimgate_shared::jwt::{Algorithm, PassCheck, SignedToken, TokenError, TokenRejection};
use claimgate_shared::signature::{NamedKey, SecretKey};

use super::key_set::KeySet;
use super::settings;
use crate::log::{self, KeyPurpose};
use crate::variables::{ConfigError, ConfigErrors};

const KEYS: &str = "PASS_KEYS";
/// The key of this edge's own passes, accepted like the others.
pub(crate) const SIGNING_KEY: &str = "PASS_SIGNING_KEY";
/// Variables with keys that no issuer of passes may have: who knows such a key could do more than issue passes.
const OTHER_KEYS: [&str; 2] = ["USER_JWT_KEY", "EDGE_KEY"];

/// The keys of the issuers of passes. With none, no pass is valid.
#[derive(Debug, Clone, Default)]
pub struct PassKeys {
    /// HS256 secrets, each `kid` once.
    secrets: Vec<NamedKey>,
    public: KeySet,
}

impl PassKeys {
    /// Reads the keys with `variable`, and imports public keys; `None` if a value is wrong.
    pub(crate) async fn read(
        variable: impl Fn(&str) -> Option<String>,
        errors: &mut ConfigErrors,
    ) -> Option<Self> {
        let keys = errors.keep(parsed(variable))?;
        if keys.public.is_empty() {
            return Some(keys);
        }
        let public = errors.keep(settings::imported_set(KEYS, KeyPurpose::Pass, keys.public).await)?;
        Some(Self { public, ..keys })
    }

    /// Verifies `pass`, sent with the claim that `check` describes.
    ///
    /// # Errors
    /// The broken rule; the pass's members are checked after the signature.
    pub async fn verify(&self, pass: &str, check: PassCheck<'_>) -> Result<ShownPass, TokenRejection> {
        let pass = PassCheck::parse(pass)?;
        let is_signed = match pass.algorithm {
            Algorithm::Hs256 => pass.is_signed_with(self.secret(&pass)?),
            _ => self.public.find(&pass)?.has_signed(&pass).await.unwrap_or_else(|error| {
                log::key_not_imported(KeyPurpose::Pass, &error, check.now);
                false
            }),
        };
        if !is_signed {
            return Err(TokenError::Signature.into());
        }
        check.shown(&pass)
    }

    /// Returns the secret that must verify `pass`, by the rules of [`KeySet::find`].
    fn secret(&self, pass: &SignedToken<'_>) -> Result<&SecretKey, TokenRejection> {
        let Some(kid) = &pass.kid else {
            return match &self.secrets[..] {
                [only] => Ok(&only.key),
                _ => Err(TokenError::NoKeyId.into()),
            };
        };
        let named = self.secrets.iter().find(|secret| secret.kid == *kid);
        named.map(|secret| &secret.key).ok_or_else(|| TokenError::UnknownKey.found(kid))
    }
}

fn parsed(variable: impl Fn(&str) -> Option<String>) -> Result<PassKeys, ConfigError> {
    // A malformed one is reported with the settings of challenges.
    let own: Option<NamedKey> = variable(SIGNING_KEY).and_then(|key| key.parse().ok());
    let mut secrets: Vec<NamedKey> = own.into_iter().collect();
    let Some(text) = variable(KEYS) else { return Ok(PassKeys { secrets, public: KeySet::default() }) };
    if text.starts_with('{') {
        let public = settings::key_set(KEYS, &text, None)?;
        return match variable("USER_JWT_KEY") {
            Some(key) if public.contains(&key) => Err(same_key("USER_JWT_KEY")),
            _ => Ok(PassKeys { secrets, public }),
        };
    }
    for one in text.split(',') {
        let secret: NamedKey = one.trim().parse().map_err(|why| {
            ConfigError::new(KEYS, format!("must be a JSON Web Key Set, or a comma-separated list: {why}"))
        })?;
        if secrets.iter().any(|other| other.kid == secret.kid) {
            return Err(ConfigError::new(KEYS, format!("lists the kid {} twice", secret.kid)));
        }
        secrets.push(secret);
    }
    if let Some(name) = secrets.iter().find_map(|secret| other_use(&variable, &secret.key)) {
        return Err(same_key(name));
    }
    Ok(PassKeys { secrets, public: KeySet::default() })
}

/// Returns the variable that has the key of an issuer of passes, although it must not.
pub(crate) fn other_use(
    variable: impl Fn(&str) -> Option<String>,
    secret: &SecretKey,
) -> Option<&'static str> {
    let secret = secret.expose_base64url();
    let has_it = |name: &&str| variable(name).is_some_and(|key| key.rsplit(':').next() == Some(&secret));
    OTHER_KEYS.into_iter().find(has_it)
}

fn same_key(other: &str) -> ConfigError {
    ConfigError::new(KEYS, format!("contains the key of {other}: issuers of passes need their own"))
}

#[cfg(test)]
mod tests {
    use claimgate_shared::jwt::Pass;
    use claimgate_shared::{CampaignId, Timestamp, UserId};
    use futures_util::FutureExt as _;

    use super::*;

    const ONE: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA";
    const TWO: &str = "YSBrZXkgZm9yIHRlc3RzLCBub3QgYWxsIHRoZSBzYW1l";
    const X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";

    fn read(set: &[(&str, &str)]) -> Result<PassKeys, String> {
        let variable =
            |name: &str| set.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned());
        parsed(variable).map_err(|error| error.to_string())
    }

    fn now() -> Timestamp {
        Timestamp::from_ms(1_700_000_000_000).unwrap()
    }

    fn signed(kid: &str, key: &str) -> String {
        let pass = Pass {
            user: "alice".parse().unwrap(),
            campaign: "spring".parse().unwrap(),
            expires_at: now().saturating_add_ms(60_000),
            not_before: None,
            units: None,
        };
        pass.sign(&format!("{kid}:{key}").parse().unwrap()).unwrap()
    }

    fn verify(keys: &PassKeys, pass: &str) -> Result<ShownPass, TokenRejection> {
        let user: UserId = "alice".parse().unwrap();
        let campaign: CampaignId = "spring".parse().unwrap();
        let check = PassCheck { user: &user, campaign: &campaign, leeway_s: 5, now: now() };
        keys.verify(pass, check).now_or_never().expect("no key to import")
    }

    #[test]
    fn the_kid_chooses_the_secret() {
        let keys = read(&[(KEYS, &format!("one:{ONE}, two:{TWO}"))]).unwrap();
        let shown = Ok(ShownPass { units: None });
        assert_eq!(verify(&keys, &signed("one", ONE)), shown);
        assert_eq!(verify(&keys, &signed("two", TWO)), shown);
        assert_eq!(verify(&keys, &signed("one", TWO)), Err(TokenError::Signature.into()));
        assert_eq!(verify(&keys, &signed("three", ONE)), Err(TokenError::UnknownKey.found("three")));
        assert_eq!(
            verify(&PassKeys::default(), &signed("one", ONE)),
            Err(TokenError::UnknownKey.found("one"))
        );
    }

    #[test]
    fn the_edges_own_passes_are_accepted() {
        let set = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{X}"}}]}}"#);
        for keys in ["", &format!("one:{ONE}"), &set] {
            let mut variables = vec![(SIGNING_KEY, "own:YSBrZXkgZm9yIHRlc3RzLCBub3QgYWxsIHRoZSBzYW1l")];
            variables.extend((!keys.is_empty()).then_some((KEYS, keys)));
            assert!(verify(&read(&variables).unwrap(), &signed("own", TWO)).is_ok(), "{keys}");
        }
    }

    #[test]
    fn wrong_keys_are_rejected() {
        let set = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{X}"}}]}}"#);
        let pem = "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
        let lines = format!("-----BEGIN PUBLIC KEY-----\\n{pem}\\n-----END PUBLIC KEY-----");
        let (one, two) = (format!("one:{ONE}"), format!("k1:{TWO}"));
        let twice = format!("{one},{one}");
        for (set, begin) in [
            (
                &[(KEYS, ONE)][..],
                "PASS_KEYS must be a JSON Web Key Set, or a comma-separated list: must be kid:",
            ),
            (
                &[(KEYS, "one:c2hvcnQ")],
                "PASS_KEYS must be a JSON Web Key Set, or a comma-separated list: must be at",
            ),
            (&[(KEYS, &format!("{one},"))], "PASS_KEYS must be a JSON Web Key Set"),
            (&[(KEYS, &twice)], "PASS_KEYS lists the kid one twice"),
            (&[(KEYS, "{")], "PASS_KEYS is not a JSON Web Key Set"),
            (&[(KEYS, r#"{"keys":[]}"#)], "PASS_KEYS has no key that may verify"),
            (
                &[(KEYS, &format!(r#"{{"keys":[{{"kty":"oct","k":"{ONE}"}}]}}"#))],
                "PASS_KEYS has no key that may",
            ),
            (&[(KEYS, &one), ("USER_JWT_KEY", ONE)], "PASS_KEYS contains the key of USER_JWT_KEY"),
            (&[(KEYS, &two), ("EDGE_KEY", &format!("edge:{TWO}"))], "PASS_KEYS contains the key of EDGE_KEY"),
            (&[(KEYS, &set), ("USER_JWT_KEY", pem)], "PASS_KEYS contains the key of USER_JWT_KEY"),
            (&[(KEYS, &set), ("USER_JWT_KEY", &lines)], "PASS_KEYS contains the key of USER_JWT_KEY"),
        ] {
            let error = read(set).unwrap_err();
            assert!(error.starts_with(begin), "{error}");
            assert!(!error.contains(ONE) && !error.contains(TWO) && !error.contains("c2hv"), "{error}");
        }
        let own = read(&[(KEYS, &one), (SIGNING_KEY, &one)]).unwrap_err();
        assert_eq!(own, "PASS_KEYS lists the kid one twice");
        assert!(read(&[]).is_ok());
        assert!(read(&[(KEYS, &one), ("USER_JWT_KEY", TWO), ("EDGE_KEY", &two)]).is_ok());
        assert!(read(&[(KEYS, &set), ("USER_JWT_KEY", TWO)]).is_ok());
    }
}
