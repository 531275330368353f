//! The settings `USER_JWT_…`: the keys and algorithms of tokens. `rules_settings` reads their rules.

use std::rc::Rc;

use claimgate_shared::jwt::{Algorithm, UserTokens};
use claimgate_shared::signature::SecretKey;

use super::key_set::KeySet;
use super::key_source::KeySource;
use super::key_url::KeyUrl;
use super::public_key::{KeyKind, PublicKey};
use super::remote_keys::RemoteKeys;
use super::rules_settings;
use super::{Authenticator, PublicKeys, Verifier};
use crate::clock;
use crate::log::{self, KeyPurpose};
use crate::variables::{ConfigError, ConfigErrors, secret};

const ALGORITHM: &str = "USER_JWT_ALG";
const KEY: &str = "USER_JWT_KEY";
const KEY_SET: &str = "USER_JWT_JWKS";
const KEY_SET_URL: &str = "USER_JWT_JWKS_URL";
pub(crate) const ISSUER: &str = "USER_JWT_ISS";

/// The configured keys.
enum Keys {
    Secret(SecretKey),
    Public(PublicKeys),
}

/// Reads how user tokens are verified with `variable`, and imports the keys; `None` if a value is missing or wrong.
pub async fn authenticator(
    variable: impl Fn(&str) -> Option<String>,
    errors: &mut ConfigErrors,
) -> Option<Authenticator> {
    let Authenticator { header, verifier } = parsed(variable, errors)?;
    let verifier = match verifier {
        Verifier::Public(keys, rules) => Verifier::Public(errors.keep(keys.imported().await)?, rules),
        secret @ Verifier::Secret(_) => secret,
    };
    Some(Authenticator { header, verifier })
}

fn parsed(variable: impl Fn(&str) -> Option<String>, errors: &mut ConfigErrors) -> Option<Authenticator> {
    let rules = rules_settings::rules(&variable, errors);
    let header = errors.keep(rules_settings::header(&variable));
    let algorithms = errors.keep(algorithms(&variable));
    let keys = algorithms.and_then(|algorithms| errors.keep(keys(&variable, algorithms)));
    let (keys, rules) = (keys?, rules?);
    let verifier = match keys {
        Keys::Secret(key) => Verifier::Secret(UserTokens { key, rules }),
        Keys::Public(keys) => Verifier::Public(keys, rules),
    };
    Some(Authenticator { header: header?, verifier })
}

/// Reads the accepted algorithms; `None` if the keys decide.
fn algorithms(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Vec<Algorithm>>, ConfigError> {
    let Some(list) = variable(ALGORITHM) else { return Ok(None) };
    let parsed: Result<Vec<Algorithm>, _> = list.split(',').map(|name| name.trim().parse()).collect();
    let algorithms = parsed.map_err(|why| ConfigError::new(ALGORITHM, why))?;
    if algorithms.contains(&Algorithm::Hs256) && algorithms.len() > 1 {
        return Err(ConfigError::new(ALGORITHM, "must not list HS256 with others: its key is a secret"));
    }
    Ok(Some(algorithms))
}

/// Reads the keys from the one variable that sets them.
fn keys(
    variable: impl Fn(&str) -> Option<String>,
    algorithms: Option<Vec<Algorithm>>,
) -> Result<Keys, ConfigError> {
    let set: Vec<_> =
        [KEY, KEY_SET, KEY_SET_URL].into_iter().filter(|name| variable(name).is_some()).collect();
    if let [first, second, ..] = set[..] {
        return Err(ConfigError::new(first, format!("and {second} are both set; set only one")));
    }
    let issuer = variable(ISSUER).and_then(|issuer| KeyUrl::parse(&issuer).ok());
    let is_secret = match &algorithms {
        Some(algorithms) => algorithms[..] == [Algorithm::Hs256],
        None => set.is_empty() && issuer.is_none() || set == [KEY],
    };
    match (set.first().copied(), issuer) {
        (None | Some(KEY), _) if is_secret => secret(&variable, KEY).map(Keys::Secret),
        (Some(KEY), _) => one_key(&variable, algorithms.unwrap_or_default()).map(Keys::Public),
        _ if is_secret => Err(ConfigError::new(ALGORITHM, "must not be HS256 with a key set")),
        (Some(KEY_SET), _) => {
            let text = variable(KEY_SET).unwrap_or_default();
            let keys = key_set(KEY_SET, &text, algorithms.as_deref())?;
            Ok(Keys::Public(PublicKeys::Set(keys)))
        }
        (Some(_), _) => Ok(remote(KeySource::Url(key_set_url(&variable)?), algorithms)),
        (None, Some(issuer)) => Ok(remote(KeySource::Issuer(issuer), algorithms)),
        (None, None) => Err(ConfigError::new(KEY, "is not set")),
    }
}

fn remote(source: KeySource, algorithms: Option<Vec<Algorithm>>) -> Keys {
    Keys::Public(PublicKeys::Remote(RemoteKeys::new(source, algorithms)))
}

fn key_set_url(variable: impl Fn(&str) -> Option<String>) -> Result<KeyUrl, ConfigError> {
    let text = variable(KEY_SET_URL).unwrap_or_default();
    KeyUrl::parse(&text).map_err(|why| ConfigError::new(KEY_SET_URL, why))
}

/// Reads the one public key. A PEM file does not name its algorithm.
fn one_key(
    variable: impl Fn(&str) -> Option<String>,
    algorithms: Vec<Algorithm>,
) -> Result<PublicKeys, ConfigError> {
    let pem = variable(KEY).unwrap_or_default();
    let kind = algorithms.first().copied().and_then(KeyKind::of);
    let kind = kind.filter(|kind| algorithms.iter().all(|one| kind.algorithms().contains(one)));
    let kind =
        kind.ok_or_else(|| ConfigError::new(ALGORITHM, format!("must list algorithms of one key, {KEY}")))?;
    let key = PublicKey::from_pem(&pem, kind, algorithms).map_err(|why| ConfigError::new(KEY, why))?;
    Ok(PublicKeys::One(Rc::new(key)))
}

/// Parses the key set in the variable `name`.
pub(super) fn key_set(
    name: &'static str,
    text: &str,
    algorithms: Option<&[Algorithm]>,
) -> Result<KeySet, ConfigError> {
    let keys = KeySet::parse(text.as_bytes(), algorithms).map_err(|why| ConfigError::new(name, why))?;
    with_usable_key(name, keys)
}

fn with_usable_key(name: &'static str, keys: KeySet) -> Result<KeySet, ConfigError> {
    if keys.is_empty() {
        let why = keys.ignored().join("; ");
        return Err(ConfigError::new(name, format!("has no key that may verify tokens: {why}")));
    }
    Ok(keys)
}

/// Returns the set in the variable `name` without the keys that the runtime cannot import. Logs why keys of this
/// `purpose` are ignored.
pub(super) async fn imported_set(
    name: &'static str,
    purpose: KeyPurpose,
    keys: KeySet,
) -> Result<KeySet, ConfigError> {
    let keys = with_usable_key(name, keys.imported().await)?;
    if let Ok(now) = clock::now() {
        log::keys_ignored(purpose, keys.ignored(), now);
    }
    Ok(keys)
}

impl PublicKeys {
    /// Imports the configured keys: only the runtime can check them completely.
    pub(super) async fn imported(self) -> Result<Self, ConfigError> {
        match self {
            Self::One(key) => match key.import().await {
                Ok(()) => Ok(Self::One(key)),
                Err(why) => {
                    let kind = key.kind.name();
                    Err(ConfigError::new(KEY, format!("is not a public key of type {kind}: {why:?}")))
                }
            },
            Self::Set(keys) => Ok(Self::Set(imported_set(KEY_SET, KeyPurpose::User, keys).await?)),
            Self::Remote(keys) => Ok(Self::Remote(keys)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "YSBrZXkgZm9yIHRlc3RzLCBub3QgYWxsIHRoZSBzYW1l";
    const PEM: &str = "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
    const SET: &str =
        r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
    const URL: &str = "https://issuer.example/jwks";

    fn read(variables: &[(&str, &str)]) -> Result<Verifier, String> {
        let variable = |name: &str| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
        };
        let mut errors = ConfigErrors::default();
        let read = parsed(variable, &mut errors);
        read.map(|read| read.verifier).ok_or_else(|| errors.to_string())
    }

    fn source(variables: &[(&str, &str)]) -> String {
        match read(variables) {
            Ok(Verifier::Secret(_)) => "secret".to_owned(),
            Ok(Verifier::Public(PublicKeys::One(key), _)) => format!("{:?}", key.kind),
            Ok(Verifier::Public(PublicKeys::Set(_), _)) => "set".to_owned(),
            Ok(Verifier::Public(PublicKeys::Remote(keys), _)) => keys.source().variable().to_owned(),
            Err(error) => error,
        }
    }

    #[test]
    fn the_keys_are_read_from_the_one_variable_that_sets_them() {
        let issuer = ("USER_JWT_ISS", "https://issuer.example/");
        for (variables, expected) in [
            (vec![("USER_JWT_KEY", SECRET)], "secret"),
            (vec![("USER_JWT_KEY", SECRET), issuer], "secret"),
            (vec![("USER_JWT_KEY", SECRET), ("USER_JWT_ALG", "HS256")], "secret"),
            (vec![("USER_JWT_KEY", PEM), ("USER_JWT_ALG", "EdDSA")], "Ed25519"),
            (vec![("USER_JWT_KEY", PEM), ("USER_JWT_ALG", "RS256, PS256")], "Rsa"),
            (vec![("USER_JWT_JWKS", SET)], "set"),
            (vec![("USER_JWT_JWKS_URL", URL), issuer], "USER_JWT_JWKS_URL"),
            (vec![("USER_JWT_JWKS_URL", URL), ("USER_JWT_ALG", "RS256,ES256")], "USER_JWT_JWKS_URL"),
            (vec![issuer], "USER_JWT_ISS"),
            (vec![("USER_JWT_ISS", "http://127.0.0.1:9000")], "USER_JWT_ISS"),
            (vec![issuer, ("USER_JWT_ALG", "RS256")], "USER_JWT_ISS"),
        ] {
            assert_eq!(source(&variables), expected, "{variables:?}");
        }
    }

    #[test]
    fn contradictory_keys_are_rejected() {
        for (variables, expected) in [
            (vec![], "USER_JWT_KEY is not set"),
            (vec![("USER_JWT_ISS", "http://issuer.example")], "USER_JWT_KEY is not set"),
            (vec![("USER_JWT_ALG", "RS256")], "USER_JWT_KEY is not set"),
            (vec![("USER_JWT_ISS", URL), ("USER_JWT_ALG", "HS256")], "USER_JWT_KEY is not set"),
            (
                vec![("USER_JWT_KEY", SECRET), ("USER_JWT_JWKS_URL", URL)],
                "USER_JWT_KEY and USER_JWT_JWKS_URL are both set; set only one",
            ),
            (
                vec![("USER_JWT_JWKS", SET), ("USER_JWT_ALG", "HS256")],
                "USER_JWT_ALG must not be HS256 with a key set",
            ),
            (
                vec![("USER_JWT_JWKS_URL", URL), ("USER_JWT_ALG", "HS256,RS256")],
                "USER_JWT_ALG must not list HS256 with others: its key is a secret",
            ),
            (
                vec![("USER_JWT_KEY", PEM), ("USER_JWT_ALG", "RS256,ES256")],
                "USER_JWT_ALG must list algorithms of one key, USER_JWT_KEY",
            ),
            (
                vec![("USER_JWT_JWKS_URL", "http://issuer.example/jwks")],
                "USER_JWT_JWKS_URL must be https://HOST[:PORT][/PATH]; http only for a loopback address",
            ),
            (
                vec![("USER_JWT_JWKS", r#"{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}"#)],
                "USER_JWT_JWKS has no key that may verify tokens: key 1: a shared secret",
            ),
            (
                vec![("USER_JWT_JWKS", SET), ("USER_JWT_ALG", "RS256")],
                "USER_JWT_JWKS has no key that may verify tokens: key 1: USER_JWT_ALG does not list its algorithm",
            ),
        ] {
            assert_eq!(source(&variables), expected, "{variables:?}");
        }
        let error = source(&[("USER_JWT_JWKS", "c2VjcmV0")]);
        assert!(error.starts_with("USER_JWT_JWKS is not a JSON Web Key Set"), "{error}");
        assert!(!error.contains("c2VjcmV0"), "{error}");
    }
}
