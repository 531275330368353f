//! Who signed a request from the edge to core: HMAC-SHA256 (RFC 2104) over everything core acts on.
//!
//! Test vector, computed apart from this code (see the test `the_vector_holds`): key = the bytes 0x00 … 0x1f,
//! kid `k1`, timestamp `1700000000000`, `POST /internal/v1/claims`, `application/json`, body `{}`, user `alice`,
//! client `192.0.2.1`, idempotency key `key-1` → `lBSki68EzMKottqDKCKzFOU_MjBLjDpjctYnGxcispk`; the same marked
//! `Claimgate-Attempt: 1`, whose value is then one more field → `48eN84Qk4129Fd4I9UPaaI0o1hm5cjwLl1OK1uAg0e0`.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

use crate::{Attempt, Timestamp};

/// Id of the key that signed.
pub const KEY_HEADER: &str = "x-claimgate-key";
/// When it was signed, in milliseconds since 1970.
pub const TIMESTAMP_HEADER: &str = "x-claimgate-timestamp";
/// The user the edge has authenticated; empty for none.
pub const USER_HEADER: &str = "x-claimgate-user";
/// The address the request came from.
pub const CLIENT_IP_HEADER: &str = "x-claimgate-client-ip";
/// The signature, base64url without padding.
pub const SIGNATURE_HEADER: &str = "x-claimgate-signature";

/// How far the signer's clock may be from the verifier's, either way.
pub const WINDOW_MS: i64 = 30_000;

const VERSION: &str = "1";
const KEY_BYTES_MIN: usize = 32;

/// A secret of at least 32 bytes that never shows itself.
#[derive(Clone)]
pub struct SecretKey(Vec<u8>);

/// Why a text is no [`SecretKey`] or [`NamedKey`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not base64url.
    #[error("must be base64url without padding")]
    Encoding,
    /// Too short to be a secret.
    #[error("must be at least 32 bytes (43 characters of base64url)")]
    Short,
    /// Publicly known.
    #[error(
        "is a sample from the documentation: make your own with `openssl rand -base64 32 | tr '+/' '-_' | tr -d =`"
    )]
    Sample,
    /// Without a name.
    #[error("must be kid:base64url-key, the kid 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'")]
    Kid,
}

impl SecretKey {
    /// The key's bytes; refused when short, or one that stands in this documentation or in none: 0, 1, 2 … or zeros.
    ///
    /// # Errors
    /// [`KeyError`]: which of these it is.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, KeyError> {
        if bytes.len() < KEY_BYTES_MIN {
            return Err(KeyError::Short);
        }
        let counts_up = bytes[0] == 0 && bytes.windows(2).all(|pair| pair[1].wrapping_sub(pair[0]) == 1);
        if counts_up || bytes.iter().all(|byte| *byte == 0) {
            return Err(KeyError::Sample);
        }
        Ok(Self(bytes))
    }

    /// As configuration writes it.
    pub fn expose_base64url(&self) -> String {
        URL_SAFE_NO_PAD.encode(&self.0)
    }

    /// HMAC-SHA256 under this key, to be fed.
    pub(crate) fn hmac(&self) -> Hmac<Sha256> {
        // HMAC takes a key of any length; the type just cannot say so.
        #[allow(clippy::expect_used)]
        Hmac::new_from_slice(&self.0).expect("HMAC takes a key of any length")
    }
}

impl FromStr for SecretKey {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::from_bytes(URL_SAFE_NO_PAD.decode(text).map_err(|_| KeyError::Encoding)?)
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(…)")
    }
}

/// A key of the edge with its id: `kid:base64url-key`.
#[derive(Debug, Clone)]
pub struct NamedKey {
    /// The key's id.
    pub kid: String,
    /// The key.
    pub key: SecretKey,
}

impl FromStr for NamedKey {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        let (kid, key) = text.split_once(':').ok_or(KeyError::Kid)?;
        kid.parse::<crate::UserId>().map_err(|_| KeyError::Kid)?;
        Ok(Self { kid: kid.to_owned(), key: key.parse()? })
    }
}

/// Everything that is signed.
#[derive(Debug, Clone, Copy)]
pub struct SignedParts<'a> {
    /// `GET` or `POST`.
    pub method: &'a str,
    /// Path and query as sent.
    pub path_and_query: &'a str,
    /// `Content-Type`; empty for none.
    pub content_type: &'a str,
    /// The body's bytes.
    pub body: &'a [u8],
    /// The authenticated user; empty for none.
    pub user: &'a str,
    /// The client's address.
    pub client_ip: &'a str,
    /// The claim's idempotency key; empty where there is none.
    pub idempotency_key: &'a str,
    /// Whether the request is marked as a claim's first try. The mark is signed, the lack of one is not.
    pub attempt: Attempt,
}

impl SignedParts<'_> {
    fn mac(&self, key: &SecretKey, kid: &str, timestamp: &str) -> Hmac<Sha256> {
        let body_hash = Sha256::digest(self.body);
        let mut mac = key.hmac();
        let fields = [
            VERSION.as_bytes(),
            kid.as_bytes(),
            timestamp.as_bytes(),
            self.method.as_bytes(),
            self.path_and_query.as_bytes(),
            self.content_type.as_bytes(),
            &body_hash,
            self.user.as_bytes(),
            self.client_ip.as_bytes(),
            self.idempotency_key.as_bytes(),
        ];
        let mark = (self.attempt == Attempt::First).then_some(Attempt::FIRST.as_bytes());
        for field in fields.into_iter().chain(mark) {
            crate::feed_field(|bytes| mac.update(bytes), field);
        }
        mac
    }

    /// The value of `X-Claimgate-Signature` for a request signed at `now`.
    pub fn sign(&self, key: &NamedKey, now: Timestamp) -> String {
        let timestamp = now.as_ms().to_string();
        URL_SAFE_NO_PAD.encode(self.mac(&key.key, &key.kid, &timestamp).finalize().into_bytes())
    }

    /// Whether one of `keys` signed this within 30 s of `now`, and which attempt it vouches for: a mark that the
    /// signature does not cover counts for nothing. Compared in constant time; why it does not hold is for the caller's
    /// log, never for the client.
    ///
    /// # Errors
    /// [`SignatureError`]: the key is unknown, the time is malformed or too far from `now`, or the signature is
    /// another's.
    pub fn verify(
        &self,
        keys: &[NamedKey],
        kid: &str,
        timestamp: &str,
        signature: &str,
        now: Timestamp,
    ) -> Result<Attempt, SignatureError> {
        let key = keys.iter().find(|key| key.kid == kid).ok_or(SignatureError::UnknownKey)?;
        // The signed text is what was sent; only its one canonical spelling is a timestamp.
        let signed_at: i64 = timestamp.parse().map_err(|_| SignatureError::Malformed)?;
        if signed_at.abs_diff(now.as_ms()) > WINDOW_MS.unsigned_abs() {
            return Err(SignatureError::OutsideWindow);
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| SignatureError::Malformed)?;
        let covers = |parts: &Self| parts.mac(&key.key, kid, timestamp).verify_slice(&signature).is_ok();
        if covers(self) {
            return Ok(self.attempt);
        }
        // Without its mark a request means less, so that is taken, too.
        let unmarked = Self { attempt: Attempt::Unknown, ..*self };
        if self.attempt == Attempt::First && covers(&unmarked) {
            return Ok(Attempt::Unknown);
        }
        Err(SignatureError::Mismatch)
    }
}

/// Why a signature does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// No live key has that id.
    #[error("unknown key id")]
    UnknownKey,
    /// A header that is no timestamp or no base64url.
    #[error("malformed signature headers")]
    Malformed,
    /// More than 30 s away from the verifier's clock.
    #[error("signed outside the window of 30 s")]
    OutsideWindow,
    /// Another key, or another request.
    #[error("signature does not match")]
    Mismatch,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIGNED_AT: i64 = 1_700_000_000_000;

    fn key() -> NamedKey {
        NamedKey { kid: "k1".to_owned(), key: SecretKey((0..32).collect()) }
    }

    fn parts() -> SignedParts<'static> {
        SignedParts {
            method: "POST",
            path_and_query: "/internal/v1/claims",
            content_type: "application/json",
            body: b"{}",
            user: "alice",
            client_ip: "192.0.2.1",
            idempotency_key: "key-1",
            attempt: Attempt::Unknown,
        }
    }

    fn marked() -> SignedParts<'static> {
        SignedParts { attempt: Attempt::First, ..parts() }
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(ms).unwrap()
    }

    fn verify(parts: &SignedParts<'_>, signature: &str, now_ms: i64) -> Result<Attempt, SignatureError> {
        parts.verify(&[key()], "k1", &SIGNED_AT.to_string(), signature, at(now_ms))
    }

    #[test]
    fn the_vector_holds() {
        assert_eq!(parts().sign(&key(), at(SIGNED_AT)), "lBSki68EzMKottqDKCKzFOU_MjBLjDpjctYnGxcispk");
        assert_eq!(marked().sign(&key(), at(SIGNED_AT)), "48eN84Qk4129Fd4I9UPaaI0o1hm5cjwLl1OK1uAg0e0");
    }

    #[test]
    fn a_mark_counts_only_when_it_is_signed() {
        let [plain, mark] = [parts(), marked()].map(|parts| parts.sign(&key(), at(SIGNED_AT)));
        assert_eq!(verify(&parts(), &plain, SIGNED_AT), Ok(Attempt::Unknown));
        assert_eq!(verify(&marked(), &mark, SIGNED_AT), Ok(Attempt::First));
        assert_eq!(verify(&marked(), &plain, SIGNED_AT), Ok(Attempt::Unknown), "added on the way");
        assert_eq!(
            verify(&parts(), &mark, SIGNED_AT),
            Err(SignatureError::Mismatch),
            "taken away on the way"
        );
    }

    #[test]
    fn the_window_is_thirty_seconds_either_way() {
        let signature = parts().sign(&key(), at(SIGNED_AT));
        for (shift, good) in [(-30_001, false), (-30_000, true), (0, true), (30_000, true), (30_001, false)] {
            assert_eq!(verify(&parts(), &signature, SIGNED_AT + shift).is_ok(), good, "{shift}");
        }
    }

    #[test]
    fn every_part_is_signed() {
        let changed = [
            SignedParts { method: "GET", ..parts() },
            SignedParts { path_and_query: "/internal/v1/claims?x", ..parts() },
            SignedParts { content_type: "text/plain", ..parts() },
            SignedParts { body: b"{ }", ..parts() },
            SignedParts { user: "bob", ..parts() },
            SignedParts { client_ip: "192.0.2.2", ..parts() },
            SignedParts { idempotency_key: "key-2", ..parts() },
        ];
        for attempt in [Attempt::First, Attempt::Unknown] {
            let signature = SignedParts { attempt, ..parts() }.sign(&key(), at(SIGNED_AT));
            for parts in changed.map(|parts| SignedParts { attempt, ..parts }) {
                assert_eq!(verify(&parts, &signature, SIGNED_AT), Err(SignatureError::Mismatch), "{parts:?}");
            }
        }
    }

    #[test]
    fn known_keys_are_refused() {
        let sample: Vec<u8> = (0..32).collect();
        assert_eq!(SecretKey::from_bytes(sample).unwrap_err(), KeyError::Sample);
        assert_eq!(SecretKey::from_bytes(vec![0; 40]).unwrap_err(), KeyError::Sample);
        assert_eq!(SecretKey::from_bytes(vec![1, 7, 3]).unwrap_err(), KeyError::Short);
        assert_eq!("no colon".parse::<NamedKey>().unwrap_err(), KeyError::Kid);
        assert_eq!("k1:c2hvcnQ".parse::<NamedKey>().unwrap_err(), KeyError::Short);
        assert_eq!(format!("{:?}", key().key), "SecretKey(…)");
    }

    proptest! {
        #[test]
        fn no_headers_make_verifying_panic(kid in any::<String>(), time in any::<String>(), signature in any::<String>()) {
            prop_assert!(parts().verify(&[key()], &kid, &time, &signature, at(SIGNED_AT)).is_err());
        }

        #[test]
        fn moving_bytes_between_fields_breaks_it(user in "[a-z]{2,8}", ip in "[0-9.]{2,8}") {
            let whole = SignedParts { user: &user, client_ip: &ip, ..parts() };
            let joined = format!("{user}{ip}");
            let (left, right) = joined.split_at(user.len() - 1);
            let moved = SignedParts { user: left, client_ip: right, ..parts() };
            prop_assert_ne!(whole.sign(&key(), at(SIGNED_AT)), moved.sign(&key(), at(SIGNED_AT)));
        }
    }
}
