//! An issuer of users' tokens: keys of every algorithm, and the sets in which it publishes them.

use std::process::Command;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
    Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256,
    RsaEncoding, RsaKeyPair,
};
use serde_json::{Value, json};

/// A key pair that signs tokens.
#[derive(Debug)]
pub enum Issuer {
    /// RSA.
    Rsa(RsaKeyPair),
    /// An elliptic curve, P-256.
    P256(EcdsaKeyPair),
    /// An elliptic curve, P-384.
    P384(EcdsaKeyPair),
    /// Ed25519.
    Ed25519(Ed25519KeyPair),
}

impl Issuer {
    /// Generates an RSA key of 2,048 bits, which takes openssl a moment.
    pub fn rsa() -> Self {
        Self::rsa_of(2_048)
    }

    /// Generates an RSA key of this many bits.
    pub fn rsa_of(bits: usize) -> Self {
        let bits = format!("rsa_keygen_bits:{bits}");
        let made = Command::new("openssl")
            .args(["genpkey", "-algorithm", "RSA", "-pkeyopt", &bits, "-outform", "DER"])
            .output()
            .expect("openssl runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Self::Rsa(RsaKeyPair::from_der(&made.stdout).unwrap())
    }

    /// Returns the RSA key that tests share.
    pub fn shared_rsa() -> &'static Self {
        static SHARED: OnceLock<Issuer> = OnceLock::new();
        SHARED.get_or_init(Self::rsa)
    }

    /// Generates a P-256 key.
    pub fn p256() -> Self {
        Self::P256(ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING))
    }

    /// Generates a P-384 key.
    pub fn p384() -> Self {
        Self::P384(ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING))
    }

    /// Generates an Ed25519 key.
    pub fn ed25519() -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::Ed25519(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap())
    }

    /// Returns the key's usual algorithm.
    pub fn algorithm(&self) -> &'static str {
        match self {
            Self::Rsa(_) => "RS256",
            Self::P256(_) => "ES256",
            Self::P384(_) => "ES384",
            Self::Ed25519(_) => "EdDSA",
        }
    }

    /// Returns the public key as a JSON Web Key without `alg`, with these members in addition.
    pub fn jwk(&self, more: &Value) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let point = |curve: &str, pair: &EcdsaKeyPair| {
            let (x, y) = pair.public_key().as_ref()[1..].split_at((pair.public_key().as_ref().len() - 1) / 2);
            json!({"kty": "EC", "crv": curve, "x": text(x), "y": text(y)})
        };
        let mut key = match self {
            Self::Rsa(pair) => {
                let parts = PublicKeyComponents::<Vec<u8>>::from(pair.public_key());
                json!({"kty": "RSA", "n": text(&parts.n), "e": text(&parts.e)})
            }
            Self::P256(pair) => point("P-256", pair),
            Self::P384(pair) => point("P-384", pair),
            Self::Ed25519(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "x": text(pair.public_key().as_ref())})
            }
        };
        for (name, value) in more.as_object().unwrap() {
            key[name] = value.clone();
        }
        key
    }

    /// Returns the `SubjectPublicKeyInfo` in base64: the body of a PEM file.
    pub fn pem_body(&self) -> String {
        let (head, key): (&[u8], _) = match self {
            Self::Rsa(pair) => (RSA_HEAD, pair.public_key().as_ref()),
            Self::P256(pair) => (P256_HEAD, pair.public_key().as_ref()),
            Self::P384(pair) => (P384_HEAD, pair.public_key().as_ref()),
            Self::Ed25519(pair) => (ED25519_HEAD, pair.public_key().as_ref()),
        };
        STANDARD.encode([head, key].concat())
    }

    /// Signs `text` with an algorithm of this key.
    pub fn sign(&self, algorithm: &str, text: &str) -> Vec<u8> {
        let (random, text) = (SystemRandom::new(), text.as_bytes());
        match self {
            Self::Rsa(pair) => {
                let padding: &dyn RsaEncoding = match algorithm {
                    "RS384" => &RSA_PKCS1_SHA384,
                    "RS512" => &RSA_PKCS1_SHA512,
                    "PS256" => &RSA_PSS_SHA256,
                    _ => &RSA_PKCS1_SHA256,
                };
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(padding, &random, text, &mut signature).unwrap();
                signature
            }
            Self::P256(pair) | Self::P384(pair) => pair.sign(&random, text).unwrap().as_ref().to_vec(),
            Self::Ed25519(pair) => pair.sign(text).as_ref().to_vec(),
        }
    }

    /// Returns a token with this header, to which `alg` is added if it is missing.
    pub fn token(&self, header: &Value, payload: &Value) -> String {
        let mut header = header.clone();
        if header.get("alg").is_none() {
            header["alg"] = json!(self.algorithm());
        }
        let signed = unsigned(&header, payload);
        let signature = self.sign(header["alg"].as_str().unwrap_or_default(), &signed);
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// Returns header and payload of a token, without a signature.
pub fn unsigned(header: &Value, payload: &Value) -> String {
    let part = |json: &Value| URL_SAFE_NO_PAD.encode(json.to_string());
    format!("{}.{}", part(header), part(payload))
}

fn ecdsa(algorithm: &'static EcdsaSigningAlgorithm) -> EcdsaKeyPair {
    let random = SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
    EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).unwrap()
}

// The bytes before the key in a SubjectPublicKeyInfo (RFC 3279, RFC 5480, RFC 8410). Of RSA keys with 2,048 bits and an
// exponent of three bytes, all have the same.
const RSA_HEAD: &[u8] =
    b"\x30\x82\x01\x22\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00\x03\x82\x01\x0f\x00";
const P256_HEAD: &[u8] = b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
const P384_HEAD: &[u8] =
    b"\x30\x76\x30\x10\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x22\x03\x62\x00";
const ED25519_HEAD: &[u8] = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";
