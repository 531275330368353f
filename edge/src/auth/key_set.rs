//! A JSON Web Key Set (RFC 7517): which of its keys may verify tokens, and which one verifies a token.

use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claimgate_shared::jwt::{Algorithm, SignedToken, TokenError, TokenRejection};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::public_key::{KeyKind, KeyMaterial, PublicKey};

const RSA_BITS_MIN: usize = 2_048;
const RSA_BITS_MAX: usize = 4_096;
/// Maximum length of a key id in the log, in characters.
const KID_CHARS_MAX: usize = 64;
/// Number of ignored keys that [`KeySet::ignored`] explains.
const IGNORED_MAX: usize = 8;

/// The keys of an issuer that may verify tokens.
#[derive(Debug, Clone, Default)]
pub struct KeySet {
    keys: Vec<NamedKey>,
    /// One reason for each ignored key, at most [`IGNORED_MAX`].
    ignored: Vec<String>,
}

#[derive(Debug, Clone)]
struct NamedKey {
    /// The key's position in the set, from 1.
    number: usize,
    kid: Option<String>,
    key: Rc<PublicKey>,
}

impl NamedKey {
    /// Returns the key id as a bounded literal, for the log.
    fn bounded_kid(&self) -> String {
        format!("{:?}", self.kid.iter().flat_map(|kid| kid.chars().take(KID_CHARS_MAX)).collect::<String>())
    }

    /// Returns whether a token's header cannot distinguish the two keys.
    fn is_confusable_with(&self, other: &Self) -> bool {
        self.kid.is_some() && self.kid == other.kid && self.key.kind.kty() == other.key.kind.kty()
    }
}

/// The text is not a key set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is not a JSON Web Key Set with a list `keys`: {0}")]
pub struct KeySetError(String);

#[derive(Deserialize)]
struct Document<'a> {
    #[serde(borrow)]
    keys: Vec<&'a RawValue>,
}

/// The members of a key that matter here.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
    /// The private half.
    d: Option<IgnoredAny>,
}

impl KeySet {
    /// Parses a key set. Keys that may not verify tokens are ignored: a provider may publish others besides
    /// them. `allowed` lists the algorithms of `USER_JWT_ALG`, if that is set.
    pub fn parse(json: &[u8], allowed: Option<&[Algorithm]>) -> Result<Self, KeySetError> {
        let document: Document<'_> =
            serde_json::from_slice(json).map_err(|error| KeySetError(error.to_string()))?;
        let (mut keys, mut ignored) = (Vec::new(), Vec::new());
        for (number, json) in (1..).zip(document.keys) {
            match named_key(number, json.get(), allowed) {
                Ok(key) => keys.push(key),
                Err(why) => ignored.push(format!("key {number}: {why}")),
            }
        }
        let confusable =
            |key: &NamedKey| keys.iter().filter(|other| key.is_confusable_with(other)).count() > 1;
        let (twice, usable): (Vec<_>, Vec<_>) = keys.iter().cloned().partition(confusable);
        ignored.extend(twice.iter().map(|key| format!("kid {} occurs twice", key.bounded_kid())));
        ignored.truncate(IGNORED_MAX);
        Ok(Self { keys: usable, ignored })
    }

    /// Returns the set without the keys that the runtime cannot import, such as a point that is not on its curve.
    pub async fn imported(self) -> Self {
        let Self { keys: parsed, mut ignored } = self;
        let mut keys = Vec::with_capacity(parsed.len());
        for key in parsed {
            if key.key.import().await.is_ok() {
                keys.push(key);
            } else if ignored.len() < IGNORED_MAX {
                ignored.push(format!("key {}: not a valid key of its type", key.number));
            }
        }
        Self { keys, ignored }
    }

    /// Returns why keys of the set are ignored.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// Returns whether no key is usable.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns whether the public key `pem` is one of the set.
    pub fn contains(&self, pem: &str) -> bool {
        self.keys.iter().any(|named| named.key.is_in(pem))
    }

    /// Returns the key that must verify `token`.
    ///
    /// # Errors
    /// `UnknownKey` if the set has no key of this id, `NoKeyId` if the token names none and several fit,
    /// `Algorithm` if the key is for another algorithm.
    pub fn find(&self, token: &SignedToken<'_>) -> Result<Rc<PublicKey>, TokenRejection> {
        let named = |key: &&NamedKey| token.kid.is_none() || key.kid == token.kid;
        let mut fitting = self.keys.iter().filter(named).filter(|key| key.key.verifies(token.algorithm));
        match (fitting.next(), fitting.next()) {
            (Some(only), None) => Ok(Rc::clone(&only.key)),
            (Some(_), Some(_)) => Err(TokenError::NoKeyId.into()),
            (None, _) if self.keys.iter().any(|key| named(&key)) => {
                Err(TokenError::Algorithm.found(token.algorithm.as_str()))
            }
            (None, _) => Err(TokenError::UnknownKey.found(token.kid.as_deref().unwrap_or_default())),
        }
    }
}

fn named_key(number: usize, json: &str, allowed: Option<&[Algorithm]>) -> Result<NamedKey, &'static str> {
    let jwk: Jwk = serde_json::from_str(json).map_err(|_| "malformed")?;
    check_purpose(&jwk)?;
    let (kind, material) = public_members(&jwk)?;
    let algorithms = algorithms(kind, jwk.alg.as_deref(), allowed)?;
    Ok(NamedKey { number, kid: jwk.kid, key: Rc::new(PublicKey::new(kind, material, algorithms)) })
}

fn check_purpose(jwk: &Jwk) -> Result<(), &'static str> {
    if jwk.d.is_some() {
        return Err("its private half is published");
    }
    if jwk.usage.as_ref().is_some_and(|usage| usage != "sig") {
        return Err("`use` is not `sig`");
    }
    if jwk.key_ops.as_ref().is_some_and(|list| !list.iter().any(|one| one == "verify")) {
        return Err("`key_ops` lacks `verify`");
    }
    Ok(())
}

/// Returns the kind of the key and the members that Web Crypto imports.
fn public_members(jwk: &Jwk) -> Result<(KeyKind, KeyMaterial), &'static str> {
    let curve = jwk.crv.as_deref();
    let (kind, members) = match (jwk.kty.as_str(), curve) {
        ("RSA", _) => (KeyKind::Rsa, vec![("n", &jwk.n), ("e", &jwk.e)]),
        ("EC", Some("P-256")) => (KeyKind::P256, vec![("x", &jwk.x), ("y", &jwk.y)]),
        ("EC", Some("P-384")) => (KeyKind::P384, vec![("x", &jwk.x), ("y", &jwk.y)]),
        ("OKP", Some("Ed25519")) => (KeyKind::Ed25519, vec![("x", &jwk.x)]),
        ("oct", _) => return Err("a shared secret"),
        _ => return Err("neither RSA, P-256, P-384 nor Ed25519"),
    };
    let mut material = vec![("kty", jwk.kty.clone())];
    material.extend(curve.map(|curve| ("crv", curve.to_owned())));
    for (name, value) in members {
        let text = value.clone().ok_or("a member is missing")?;
        check_number(kind, name, &text)?;
        material.push((name, text));
    }
    Ok((kind, KeyMaterial::Jwk(material)))
}

/// Checks the size of a base64url number.
fn check_number(kind: KeyKind, name: &str, text: &str) -> Result<(), &'static str> {
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| "a number is not base64url")?;
    let first = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len());
    let number = &bytes[first..];
    let bits = number.first().map_or(0, |top| number.len() * 8 - top.leading_zeros() as usize);
    match (kind, name) {
        (KeyKind::Rsa, "n") if (RSA_BITS_MIN..=RSA_BITS_MAX).contains(&bits) => Ok(()),
        (KeyKind::Rsa, "n") => Err("an RSA key of fewer than 2048 or more than 4096 bits"),
        // With the exponent 1, every text is its own signature.
        (KeyKind::Rsa, _) if bits > 1 && bits <= 32 && number.last().is_some_and(|low| low % 2 == 1) => {
            Ok(())
        }
        (KeyKind::Rsa, _) => Err("an RSA exponent that is even, below 3 or above 32 bits"),
        _ if bytes.len() == kind.coordinate_bytes() => Ok(()),
        _ => Err("a coordinate of the wrong length"),
    }
}

/// Returns the algorithms that a key of this kind verifies.
fn algorithms(
    kind: KeyKind,
    alg: Option<&str>,
    allowed: Option<&[Algorithm]>,
) -> Result<Vec<Algorithm>, &'static str> {
    let of_kind = kind.algorithms();
    let named = match alg {
        Some(alg) => match of_kind.iter().find(|algorithm| algorithm.as_str() == alg) {
            Some(algorithm) => vec![*algorithm],
            None => return Err("alg does not fit the key, or is not supported"),
        },
        // Only for RSA is there a choice.
        None if allowed.is_some() => of_kind.to_vec(),
        None => of_kind[..1].to_vec(),
    };
    let is_allowed = |algorithm: &Algorithm| allowed.is_none_or(|allowed| allowed.contains(algorithm));
    let algorithms: Vec<_> = named.into_iter().filter(is_allowed).collect();
    if algorithms.is_empty() {
        return Err("USER_JWT_ALG does not list its algorithm");
    }
    Ok(algorithms)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const X: &str = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";

    fn okp(more: &Value) -> Value {
        merged(json!({"kty": "OKP", "crv": "Ed25519", "x": X}), more)
    }

    fn ec(curve: &str, bytes: usize, more: &Value) -> Value {
        let number = URL_SAFE_NO_PAD.encode(vec![7; bytes]);
        merged(json!({"kty": "EC", "crv": curve, "x": number, "y": number}), more)
    }

    fn rsa(bits: usize, more: &Value) -> Value {
        let mut number = vec![0xff; bits.div_ceil(8)];
        number[0] >>= number.len() * 8 - bits;
        merged(json!({"kty": "RSA", "n": URL_SAFE_NO_PAD.encode(number), "e": "AQAB"}), more)
    }

    fn merged(mut key: Value, more: &Value) -> Value {
        for (name, value) in more.as_object().unwrap() {
            key[name] = value.clone();
        }
        key
    }

    fn parse(keys: &[Value], allowed: Option<&[Algorithm]>) -> KeySet {
        KeySet::parse(json!({"keys": keys}).to_string().as_bytes(), allowed).unwrap()
    }

    /// Returns the algorithms of a set's only key, or why it is ignored.
    fn one(key: Value, allowed: Option<&[Algorithm]>) -> Result<Vec<Algorithm>, String> {
        let parsed = parse(&[key], allowed);
        match parsed.keys.first() {
            Some(named) => {
                Ok(Algorithm::ALL.into_iter().filter(|algorithm| named.key.verifies(*algorithm)).collect())
            }
            None => Err(parsed.ignored[0].trim_start_matches("key 1: ").to_owned()),
        }
    }

    fn find(keys: &[Value], header: &Value) -> Result<KeyKind, TokenRejection> {
        let token = format!("{}.e30.AAAA", URL_SAFE_NO_PAD.encode(header.to_string()));
        let token = SignedToken::parse(&token).unwrap();
        parse(keys, None).find(&token).map(|key| key.kind)
    }

    #[test]
    fn a_keys_type_and_alg_decide_its_algorithms() {
        use Algorithm::{EdDsa, Es256, Es384, Ps256, Rs256, Rs384, Rs512};
        let (none, listed) = (json!({}), &[Rs256, Ps256, Es256][..]);
        for (key, allowed, algorithms) in [
            (rsa(2_048, &none), None, vec![Rs256]),
            (rsa(4_096, &none), Some(listed), vec![Rs256, Ps256]),
            (rsa(2_048, &json!({"alg": "PS256"})), None, vec![Ps256]),
            (rsa(2_048, &json!({"alg": "RS384", "use": "sig"})), None, vec![Rs384]),
            (rsa(2_048, &json!({"alg": "RS512", "key_ops": ["sign", "verify"]})), None, vec![Rs512]),
            (rsa(2_048, &json!({"e": "Aw"})), None, vec![Rs256]),
            (ec("P-256", 32, &none), None, vec![Es256]),
            (ec("P-384", 48, &json!({"alg": "ES384"})), None, vec![Es384]),
            (okp(&none), None, vec![EdDsa]),
            (okp(&json!({"x5c": ["…"], "ext": true, "unknown": {}})), None, vec![EdDsa]),
        ] {
            assert_eq!(one(key.clone(), allowed), Ok(algorithms), "{key}");
        }
    }

    #[test]
    fn unsuitable_keys_are_ignored_with_a_reason() {
        let (none, size) = (json!({}), "an RSA key of fewer than 2048 or more than 4096 bits");
        let exponent = "an RSA exponent that is even, below 3 or above 32 bits";
        for (key, reason) in [
            (rsa(2_047, &none), size),
            (rsa(1_024, &none), size),
            (rsa(4_097, &none), size),
            (rsa(2_048, &json!({"e": "AQ"})), exponent),
            (rsa(2_048, &json!({"e": "BA"})), exponent),
            (rsa(2_048, &json!({"e": ""})), exponent),
            (rsa(2_048, &json!({"e": "AQAAAAE"})), exponent),
            (rsa(2_048, &json!({"n": "+/=="})), "a number is not base64url"),
            (rsa(2_048, &json!({"n": null})), "a member is missing"),
            (rsa(2_048, &json!({"use": "enc"})), "`use` is not `sig`"),
            (rsa(2_048, &json!({"key_ops": ["encrypt"]})), "`key_ops` lacks `verify`"),
            (rsa(2_048, &json!({"key_ops": []})), "`key_ops` lacks `verify`"),
            (rsa(2_048, &json!({"d": "AQAB"})), "its private half is published"),
            (rsa(2_048, &json!({"alg": "ES256"})), "alg does not fit the key, or is not supported"),
            (rsa(2_048, &json!({"alg": "RSA-OAEP"})), "alg does not fit the key, or is not supported"),
            (rsa(2_048, &json!({"alg": "HS256"})), "alg does not fit the key, or is not supported"),
            (ec("P-256", 33, &none), "a coordinate of the wrong length"),
            (ec("P-384", 32, &none), "a coordinate of the wrong length"),
            (ec("P-521", 66, &none), "neither RSA, P-256, P-384 nor Ed25519"),
            (ec("secp256k1", 32, &none), "neither RSA, P-256, P-384 nor Ed25519"),
            (okp(&json!({"crv": "X25519"})), "neither RSA, P-256, P-384 nor Ed25519"),
            (json!({"kty": "oct", "k": X, "alg": "HS256"}), "a shared secret"),
            (json!({"kty": 1}), "malformed"),
            (json!("key"), "malformed"),
        ] {
            assert_eq!(one(key.clone(), None), Err(reason.to_owned()), "{key}");
        }
        let listed = one(okp(&json!({})), Some(&[Algorithm::Rs256]));
        assert_eq!(listed, Err("USER_JWT_ALG does not list its algorithm".to_owned()));
    }

    #[test]
    fn of_two_keys_with_one_kid_and_type_neither_is_used() {
        let (a, b) = (json!({"kid": "a"}), json!({"kid": "b"}));
        let parsed = parse(&[rsa(2_048, &a), rsa(3_072, &a), okp(&a), rsa(2_048, &b)], None);
        assert_eq!(parsed.keys.len(), 2, "{parsed:?}");
        assert_eq!(parsed.ignored, [r#"kid "a" occurs twice"#; 2]);
        let encrypts = rsa(2_048, &json!({"kid": "a", "use": "enc"}));
        assert_eq!(parse(&[encrypts, rsa(2_048, &a)], None).keys.len(), 1, "an ignored key does not count");
    }

    #[test]
    fn a_token_finds_its_key_by_kid_and_algorithm() {
        let keys = [
            rsa(2_048, &json!({"kid": "a"})),
            okp(&json!({"kid": "a"})),
            rsa(2_048, &json!({"kid": "b", "alg": "PS256"})),
            ec("P-256", 32, &json!({})),
        ];
        for (header, found) in [
            (json!({"alg": "RS256", "kid": "a"}), Ok(KeyKind::Rsa)),
            (json!({"alg": "EdDSA", "kid": "a"}), Ok(KeyKind::Ed25519)),
            (json!({"alg": "PS256", "kid": "b"}), Ok(KeyKind::Rsa)),
            (json!({"alg": "RS256", "kid": "b"}), Err(TokenError::Algorithm.found("RS256"))),
            (json!({"alg": "PS256", "kid": "a"}), Err(TokenError::Algorithm.found("PS256"))),
            (json!({"alg": "HS256", "kid": "a"}), Err(TokenError::Algorithm.found("HS256"))),
            (json!({"alg": "RS256", "kid": "c"}), Err(TokenError::UnknownKey.found("c"))),
            (json!({"alg": "RS256", "kid": ""}), Err(TokenError::UnknownKey.found(""))),
            (json!({"alg": "ES256", "kid": "a"}), Err(TokenError::Algorithm.found("ES256"))),
            (json!({"alg": "ES256"}), Ok(KeyKind::P256)),
            (json!({"alg": "RS256"}), Ok(KeyKind::Rsa)),
            (json!({"alg": "RS384"}), Err(TokenError::Algorithm.found("RS384"))),
        ] {
            assert_eq!(find(&keys, &header), found, "{header}");
        }
        let two = [okp(&json!({"kid": "a"})), okp(&json!({"kid": "b"}))];
        assert_eq!(find(&two, &json!({"alg": "EdDSA"})), Err(TokenError::NoKeyId.into()));
    }

    #[test]
    fn a_malformed_key_set_is_rejected() {
        for text in ["", "{}", "[]", r#"{"keys":{}}"#, r#"{"keys":[]"#, r#"{"keys":[],"keys":[]}"#, "<html>"]
        {
            assert!(KeySet::parse(text.as_bytes(), None).is_err(), "{text}");
        }
        assert!(KeySet::parse(br#"{"keys":[]}"#, None).unwrap().is_empty());
    }
}
