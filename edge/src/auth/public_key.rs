//! A public key of the tokens' issuer, used through the runtime's Web Crypto.

use std::cell::RefCell;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use claimgate_shared::jwt::{Algorithm, SignedToken};
use wasm_bindgen::{JsCast as _, JsValue};
use web_sys::CryptoKey;
use worker::js_sys::futures::JsFuture;
use worker::js_sys::{Array, Object, Reflect, Uint8Array};

use crate::web_crypto::{object, subtle};

/// The kind of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// RSA.
    Rsa,
    /// An elliptic curve, P-256.
    P256,
    /// An elliptic curve, P-384.
    P384,
    /// Ed25519.
    Ed25519,
}

impl KeyKind {
    const ALL: [Self; 4] = [Self::Rsa, Self::P256, Self::P384, Self::Ed25519];

    /// Returns the algorithms of such a key, the usual one first.
    pub fn algorithms(self) -> &'static [Algorithm] {
        match self {
            Self::Rsa => &[Algorithm::Rs256, Algorithm::Rs384, Algorithm::Rs512, Algorithm::Ps256],
            Self::P256 => &[Algorithm::Es256],
            Self::P384 => &[Algorithm::Es384],
            Self::Ed25519 => &[Algorithm::EdDsa],
        }
    }

    /// Returns the kind of the keys for `algorithm`; `None` for a symmetric one.
    pub fn of(algorithm: Algorithm) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.algorithms().contains(&algorithm))
    }

    /// Returns the name used in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rsa => "RSA",
            Self::P256 => "P-256",
            Self::P384 => "P-384",
            Self::Ed25519 => "Ed25519",
        }
    }

    /// Returns the key type of RFC 7517.
    pub(super) fn kty(self) -> &'static str {
        match self {
            Self::Rsa => "RSA",
            Self::P256 | Self::P384 => "EC",
            Self::Ed25519 => "OKP",
        }
    }

    /// Returns the length of a point's coordinate; 0 for RSA.
    pub(super) fn coordinate_bytes(self) -> usize {
        match self {
            Self::Rsa => 0,
            Self::P256 | Self::Ed25519 => 32,
            Self::P384 => 48,
        }
    }
}

/// A key as it was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyMaterial {
    /// The public members of a JSON Web Key.
    Jwk(Vec<(&'static str, String)>),
    /// A DER `SubjectPublicKeyInfo`, the content of a PEM file.
    Spki(Vec<u8>),
}

/// A public key with the algorithms that it may verify.
#[derive(Debug)]
pub struct PublicKey {
    /// The key's kind.
    pub kind: KeyKind,
    algorithms: Vec<Algorithm>,
    material: KeyMaterial,
    /// The key as imported, for each algorithm that a token has used.
    imported: RefCell<Vec<Imported>>,
}

/// A key that Web Crypto has imported for one algorithm.
#[derive(Debug, Clone)]
struct Imported {
    algorithm: Algorithm,
    parameters: Object,
    key: CryptoKey,
}

impl Imported {
    async fn has_signed(&self, token: &SignedToken<'_>) -> Result<bool, JsValue> {
        let verified = subtle()?.verify_with_object_and_js_u8_array_and_js_u8_array(
            &self.parameters,
            &self.key,
            &Uint8Array::from(token.signature.as_slice()),
            &Uint8Array::from(token.signed),
        )?;
        Ok(JsFuture::from(verified).await?.is_truthy())
    }
}

/// The text is not base64 between the PEM lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be a public key in PEM (-----BEGIN PUBLIC KEY-----), or only its base64 part")]
pub struct PemError;

impl PublicKey {
    /// Creates a key of `kind` that verifies `algorithms`.
    pub fn new(kind: KeyKind, material: KeyMaterial, algorithms: Vec<Algorithm>) -> Self {
        Self { kind, algorithms, material, imported: RefCell::default() }
    }

    /// Parses a key of `kind` for `algorithms`. The BEGIN and END lines may be missing and line breaks may be
    /// written as `\n`, because an environment variable is often one line. Only
    /// [`import`](Self::import) checks the key itself.
    pub fn from_pem(pem: &str, kind: KeyKind, algorithms: Vec<Algorithm>) -> Result<Self, PemError> {
        Ok(Self::new(kind, KeyMaterial::Spki(spki(pem)?), algorithms))
    }

    /// Returns whether `pem` is this key, which must be a JSON Web Key.
    pub(super) fn is_in(&self, pem: &str) -> bool {
        let (KeyMaterial::Jwk(members), Ok(spki)) = (&self.material, spki(pem)) else { return false };
        // A modulus or a coordinate is the same bytes in both formats.
        let number = members.iter().find(|(name, _)| ["n", "x"].contains(name));
        let number = number.and_then(|(_, text)| URL_SAFE_NO_PAD.decode(text).ok());
        number.is_some_and(|number| spki.windows(number.len().max(1)).any(|bytes| bytes == number))
    }

    /// Returns whether the key may verify tokens of `algorithm`.
    pub fn verifies(&self, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }

    /// Returns whether `token` is signed with this key. A signature that the runtime refuses to check,
    /// because its length is wrong, is invalid.
    ///
    /// # Errors
    /// The runtime's error if the key cannot be imported.
    pub async fn has_signed(&self, token: &SignedToken<'_>) -> Result<bool, JsValue> {
        let imported = self.imported(token.algorithm).await?;
        Ok(imported.has_signed(token).await.unwrap_or_default())
    }

    /// Imports the key, to find out whether it is one of its kind.
    ///
    /// # Errors
    /// The runtime's error.
    pub async fn import(&self) -> Result<(), JsValue> {
        match self.algorithms.first() {
            Some(algorithm) => self.imported(*algorithm).await.map(|_| ()),
            None => Ok(()),
        }
    }

    async fn imported(&self, algorithm: Algorithm) -> Result<Imported, JsValue> {
        let known = self.imported.borrow().iter().find(|one| one.algorithm == algorithm).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let parameters = parameters(algorithm)?;
        let (format, material) = self.material.to_js()?;
        let usages = Array::of1(&"verify".into());
        let importing = subtle()?.import_key_with_object(format, &material, &parameters, false, &usages)?;
        let key: CryptoKey = JsFuture::from(importing).await?.dyn_into()?;
        check_rsa_bits(&key)?;
        let imported = Imported { algorithm, parameters, key };
        self.imported.borrow_mut().push(imported.clone());
        Ok(imported)
    }
}

/// Decodes a PEM to its DER.
fn spki(pem: &str) -> Result<Vec<u8>, PemError> {
    let body: String = pem
        .replace("-----BEGIN PUBLIC KEY-----", "")
        .replace("-----END PUBLIC KEY-----", "")
        .replace("\\n", "\n")
        .split_whitespace()
        .collect();
    STANDARD.decode(body).map_err(|_| PemError)
}

impl KeyMaterial {
    /// Returns Web Crypto's name of the format, and the key in it.
    fn to_js(&self) -> Result<(&'static str, Object), JsValue> {
        match self {
            Self::Spki(bytes) => Ok(("spki", Uint8Array::from(bytes.as_slice()).into())),
            Self::Jwk(members) => {
                let members: Vec<_> =
                    members.iter().map(|(name, value)| (*name, value.as_str().into())).collect();
                Ok(("jwk", object(&members)?))
            }
        }
    }
}

/// Returns Web Crypto's parameters of `algorithm`, for importing and verifying.
fn parameters(algorithm: Algorithm) -> Result<Object, JsValue> {
    let rsa = "RSASSA-PKCS1-v1_5";
    let (name, hash, more): (&str, &str, Option<(&str, JsValue)>) = match algorithm {
        Algorithm::Rs256 => (rsa, "SHA-256", None),
        Algorithm::Rs384 => (rsa, "SHA-384", None),
        Algorithm::Rs512 => (rsa, "SHA-512", None),
        Algorithm::Ps256 => ("RSA-PSS", "SHA-256", Some(("saltLength", 32.into()))),
        Algorithm::Es256 => ("ECDSA", "SHA-256", Some(("namedCurve", "P-256".into()))),
        Algorithm::Es384 => ("ECDSA", "SHA-384", Some(("namedCurve", "P-384".into()))),
        Algorithm::EdDsa => return object(&[("name", "Ed25519".into())]),
        Algorithm::Hs256 => return Err("a public key cannot verify HS256".into()),
    };
    let members: Vec<_> = [("name", name.into()), ("hash", hash.into())].into_iter().chain(more).collect();
    object(&members)
}

/// Checks the size of an RSA key: that of a PEM file is known only now.
fn check_rsa_bits(key: &CryptoKey) -> Result<(), JsValue> {
    let bits = Reflect::get(&key.algorithm()?.into(), &"modulusLength".into())?.as_f64();
    match bits {
        Some(bits) if !(2_048.0..=4_096.0).contains(&bits) => {
            Err("an RSA key of fewer than 2048 or more than 4096 bits".into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The sample key of RFC 8037 (A.2) in the format of `openssl pkey -pubout`.
    const ED25519: &str = "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";

    fn read(pem: &str) -> Result<KeyMaterial, PemError> {
        let key = PublicKey::from_pem(pem, KeyKind::Ed25519, vec![Algorithm::EdDsa]);
        key.map(|key| key.material)
    }

    #[test]
    fn a_public_key_is_parsed_with_or_without_pem_lines() {
        let bare = read(ED25519).unwrap();
        for newline in ["\n", "\r\n", "\\n"] {
            let (first, last) = ED25519.split_at(32);
            let pem =
                ["-----BEGIN PUBLIC KEY-----", first, last, "-----END PUBLIC KEY-----", ""].join(newline);
            assert_eq!(read(&pem), Ok(bare.clone()), "{pem:?}");
        }
    }

    #[test]
    fn other_text_is_rejected_as_a_public_key() {
        for text in ["-----BEGIN PRIVATE KEY-----", "{\"kty\":\"OKP\"}", "a b-c_"] {
            assert_eq!(read(text), Err(PemError), "{text}");
        }
    }

    #[test]
    fn every_asymmetric_algorithm_has_one_kind_of_key() {
        for algorithm in Algorithm::ALL {
            let kinds = KeyKind::ALL.into_iter().filter(|kind| kind.algorithms().contains(&algorithm));
            assert_eq!(kinds.count(), usize::from(algorithm != Algorithm::Hs256), "{algorithm:?}");
        }
        assert_eq!(KeyKind::of(Algorithm::Hs256), None);
        assert_eq!(KeyKind::of(Algorithm::Ps256), Some(KeyKind::Rsa));
    }
}
