//! Who makes a request: the bearer token and its verification. A secret verifies here; a public key through the runtime's
//! Web Crypto, which does not add to the Worker's size as a library would.

use std::cell::OnceCell;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use claimgate_shared::jwt::{Algorithm, SignedToken, TokenError, TokenRules, UserTokens};
use claimgate_shared::{Code, Problem, Timestamp, UserId};
use wasm_bindgen::{JsCast as _, JsValue};
use web_sys::{CryptoKey, SubtleCrypto, WorkerGlobalScope};
use worker::js_sys::futures::JsFuture;
use worker::js_sys::{self, Array, Object, Reflect, Uint8Array};

/// The token in an `Authorization` header; the scheme's case is ignored.
///
/// # Errors
/// `unauthenticated` when the header is missing, or its scheme is not `Bearer`.
pub fn bearer(authorization: Option<&str>) -> Result<&str, Problem> {
    let (scheme, token) = authorization.and_then(|text| text.split_once(' ')).ok_or_else(unauthenticated)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(unauthenticated());
    }
    Ok(token.trim())
}

/// The refusal of a request without a valid token. It is the same for every reason, which only the log may name.
pub fn unauthenticated() -> Problem {
    Problem::new(Code::Unauthenticated, "a valid bearer token is needed")
}

/// Verifies user tokens, in the one way of this deployment.
#[derive(Debug, Clone)]
pub enum Authenticator {
    /// HS256.
    Secret(UserTokens),
    /// ES256 or `EdDSA`.
    PublicKey(PublicKey, TokenRules),
}

impl Authenticator {
    /// The user for whom `token` was issued, if it is valid at `now`.
    ///
    /// # Errors
    /// Why the token is refused: for logs, never for the client. A failure of Web Crypto is logged and counts as a signature
    /// that does not match.
    pub async fn user(&self, token: &str, now: Timestamp) -> Result<UserId, TokenError> {
        match self {
            Self::Secret(tokens) => tokens.verify(token, now),
            Self::PublicKey(key, rules) => {
                let token = SignedToken::parse(token, key.algorithm)?;
                match key.verifies(&token).await {
                    Ok(true) => token.user(rules, now),
                    Ok(false) => Err(TokenError::Signature),
                    Err(error) => {
                        worker::console_error!("Web Crypto: {error:?}");
                        Err(TokenError::Signature)
                    }
                }
            }
        }
    }
}

/// The issuer's public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    algorithm: Algorithm,
    /// The point in Web Crypto's `raw` format.
    point: Vec<u8>,
}

/// Why a text is not a [`PublicKey`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublicKeyError {
    /// Not base64 between the lines of PEM.
    #[error("must be a public key in PEM (-----BEGIN PUBLIC KEY-----), or what is between its two lines")]
    Encoding,
    /// A key for another algorithm.
    #[error("is not a public key for {}: make one with `openssl pkey -pubout`", .0.as_str())]
    WrongAlgorithm(Algorithm),
}

/// What precedes the point in a `SubjectPublicKeyInfo` (RFC 5480, RFC 8410): the same for every key of an algorithm.
const P256_PREFIX: &[u8] = b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
const P256_POINT_BYTES: usize = 65;
const ED25519_PREFIX: &[u8] = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";
const ED25519_POINT_BYTES: usize = 32;

thread_local! {
    // A deployment has one key, and an isolate's environment never changes.
    static IMPORTED: OnceCell<CryptoKey> = const { OnceCell::new() };
}

impl PublicKey {
    /// The key for `algorithm` in `pem`. The BEGIN and END lines may be missing, and line breaks may be written as `\n`: an
    /// environment variable is often one line.
    ///
    /// # Errors
    /// When the text is not base64, or not a key for `algorithm`.
    pub fn from_pem(pem: &str, algorithm: Algorithm) -> Result<Self, PublicKeyError> {
        let body: String = pem
            .replace("-----BEGIN PUBLIC KEY-----", "")
            .replace("-----END PUBLIC KEY-----", "")
            .replace("\\n", "\n")
            .split_whitespace()
            .collect();
        let spki = STANDARD.decode(body).map_err(|_| PublicKeyError::Encoding)?;
        let (prefix, length) = match algorithm {
            Algorithm::Es256 => (P256_PREFIX, P256_POINT_BYTES),
            Algorithm::EdDsa => (ED25519_PREFIX, ED25519_POINT_BYTES),
            Algorithm::Hs256 => return Err(PublicKeyError::WrongAlgorithm(algorithm)),
        };
        let point = spki.strip_prefix(prefix).filter(|point| point.len() == length);
        let point = point.ok_or(PublicKeyError::WrongAlgorithm(algorithm))?.to_vec();
        Ok(Self { algorithm, point })
    }

    async fn verifies(&self, token: &SignedToken<'_>) -> Result<bool, JsValue> {
        let (algorithm, key) = (self.web_crypto()?, self.imported().await?);
        let verified = subtle()?.verify_with_object_and_js_u8_array_and_js_u8_array(
            &algorithm,
            &key,
            &Uint8Array::from(token.signature.as_slice()),
            &Uint8Array::from(token.signed),
        )?;
        Ok(JsFuture::from(verified).await?.is_truthy())
    }

    async fn imported(&self) -> Result<CryptoKey, JsValue> {
        if let Some(key) = IMPORTED.with(|imported| imported.get().cloned()) {
            return Ok(key);
        }
        let (point, usages) = (Uint8Array::from(self.point.as_slice()), Array::of1(&"verify".into()));
        let importing =
            subtle()?.import_key_with_object("raw", &point, &self.web_crypto()?, false, &usages)?;
        let key: CryptoKey = JsFuture::from(importing).await?.dyn_into()?;
        Ok(IMPORTED.with(|imported| imported.get_or_init(|| key).clone()))
    }

    /// The algorithm as Web Crypto takes it, for importing and for verifying.
    fn web_crypto(&self) -> Result<Object, JsValue> {
        let members: &[(&str, &str)] = match self.algorithm {
            Algorithm::EdDsa => &[("name", "Ed25519")],
            Algorithm::Es256 | Algorithm::Hs256 => {
                &[("name", "ECDSA"), ("namedCurve", "P-256"), ("hash", "SHA-256")]
            }
        };
        let object = Object::new();
        for (name, value) in members {
            Reflect::set(&object, &(*name).into(), &(*value).into())?;
        }
        Ok(object)
    }
}

fn subtle() -> Result<SubtleCrypto, JsValue> {
    let global: WorkerGlobalScope = js_sys::global().unchecked_into();
    Ok(global.crypto()?.subtle())
}

#[cfg(test)]
mod tests {
    use super::*;

    // The sample keys of RFC 8037 (A.2) and RFC 7515 (A.3), as `openssl pkey -pubout` writes them.
    const ED25519: &str = "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
    const P256: &str = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEf83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEXH8UTNG72bfocs3+257rn0s2ldbqkLJK2KRiMohYjlrQ==";

    #[test]
    fn a_token_is_a_bearers() {
        for header in ["Bearer a.b.c", "bearer a.b.c", "BEARER  a.b.c "] {
            assert_eq!(bearer(Some(header)), Ok("a.b.c"), "{header}");
        }
        for header in [None, Some(""), Some("a.b.c"), Some("Basic a.b.c"), Some("Bearer")] {
            assert_eq!(bearer(header), Err(unauthenticated()), "{header:?}");
        }
    }

    #[test]
    fn a_key_is_read_with_its_armor_or_without() {
        for (text, algorithm) in [(ED25519, Algorithm::EdDsa), (P256, Algorithm::Es256)] {
            let bare = PublicKey::from_pem(text, algorithm).unwrap();
            for newline in ["\n", "\r\n", "\\n"] {
                let (first, last) = text.split_at(32);
                let pem =
                    ["-----BEGIN PUBLIC KEY-----", first, last, "-----END PUBLIC KEY-----", ""].join(newline);
                assert_eq!(PublicKey::from_pem(&pem, algorithm), Ok(bare.clone()), "{pem:?}");
            }
        }
    }

    #[test]
    fn a_key_of_another_kind_is_refused() {
        for (text, algorithm, error) in [
            (P256, Algorithm::EdDsa, PublicKeyError::WrongAlgorithm(Algorithm::EdDsa)),
            (ED25519, Algorithm::Es256, PublicKeyError::WrongAlgorithm(Algorithm::Es256)),
            (&P256[..80], Algorithm::Es256, PublicKeyError::WrongAlgorithm(Algorithm::Es256)),
            ("", Algorithm::Es256, PublicKeyError::WrongAlgorithm(Algorithm::Es256)),
            ("-----BEGIN PRIVATE KEY-----", Algorithm::Es256, PublicKeyError::Encoding),
            ("{\"kty\":\"OKP\"}", Algorithm::EdDsa, PublicKeyError::Encoding),
        ] {
            assert_eq!(PublicKey::from_pem(text, algorithm), Err(error), "{text}");
        }
    }
}
