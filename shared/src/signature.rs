//! Signatures of requests from the edge to core: HMAC-SHA256 (RFC 2104) over everything that core acts on.
//!
//! Test vector, computed independently (see the test `signatures_match_the_test_vector`): key = the bytes
//! 0x00 … 0x1f, kid `k1`, timestamp `1700000000000`, `POST /internal/v1/claims`, `application/json`, body
//! `{}`, user `alice`, client `192.0.2.1`, idempotency key `key-1` →
//! `lBSki68EzMKottqDKCKzFOU_MjBLjDpjctYnGxcispk`. With `Claimgate-Attempt: 1`, whose value is then one more
//! field → `48eN84Qk4129Fd4I9UPaaI0o1hm5cjwLl1OK1uAg0e0`. With `X-Claimgate-User-Ids: hmac:VR1TK4` and no
//! mark, one more field is `user-ids:hmac:VR1TK4` → `gif4TS1PKgEeHSlAXz9OpSKwZPwooVWjW1KCLeETcg0`. With both,
//! the mark is the field before → `ccm084IlOiC86Ae81o0QENnY6WjegfpljSy9Jadlv3s`. With `X-Claimgate-Pass: shown:1`,
//! the last field is `pass:shown:1`: without the others → `kLt3OUi3OYjIGNMWbX_gD4rg6VMAEaeBA9ZwUarVBms`, after the
//! mark → `CCusfe28Ih55KKvuHhKZTDSloDK4y1UzGP2sr_2AA68`, after the user ids →
//! `keKMcyPrNgth7luhm_ZzfaeMUfFH6ecVjzsmC-3Qljc`, after both → `qYVryg7QQgQIj0CgNugycR4wff9pR1RhQ7EqMkaxEcI`.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

use crate::{Attempt, Timestamp};

/// The id of the signing key.
pub const KEY_HEADER: &str = "x-claimgate-key";
/// When the request was signed, in milliseconds since 1970.
pub const TIMESTAMP_HEADER: &str = "x-claimgate-timestamp";
/// The user that the edge authenticated; empty if there is none.
pub const USER_HEADER: &str = "x-claimgate-user";
/// The client's address.
pub const CLIENT_IP_HEADER: &str = "x-claimgate-client-ip";
/// The [`BodyHash`] of the body. The hash lets core verify the signature before it reads the body.
pub const CONTENT_SHA256_HEADER: &str = "x-claimgate-content-sha256";
/// A claim's idempotency key, which is also in the body.
pub const IDEMPOTENCY_KEY_HEADER: &str = "x-claimgate-idempotency-key";
/// The scheme of the edge's user ids, a [`crate::user_id::Scheme`]; only with a user.
pub const USER_IDS_HEADER: &str = "x-claimgate-user-ids";
/// The pass that the edge verified, a [`crate::ShownPass`]; absent if the claim has none.
pub const PASS_HEADER: &str = "x-claimgate-pass";
/// The signature, base64url without padding.
pub const SIGNATURE_HEADER: &str = "x-claimgate-signature";

/// Allowed difference between the signer's and the verifier's clocks, in milliseconds.
pub const WINDOW_MS: i64 = 30_000;

const VERSION: &str = "1";
/// The name of the field with the scheme of user ids.
const USER_IDS_FIELD: &str = "user-ids:";
/// The name of the field with the pass.
const PASS_FIELD: &str = "pass:";
const KEY_BYTES_MIN: usize = 32;

/// A secret of at least 32 bytes. Its `Debug` output hides it.
#[derive(Clone)]
pub struct SecretKey(Vec<u8>);

/// The reason why a string is not a valid [`SecretKey`] or [`NamedKey`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not base64url.
    #[error("must be base64url without padding")]
    Encoding,
    /// Too short.
    #[error("must be at least 32 bytes (43 characters of base64url)")]
    Short,
    /// Published in the documentation.
    #[error(
        "is a sample from the documentation: generate one with `openssl rand -base64 32 | tr '+/' '-_' | tr -d =`"
    )]
    Sample,
    /// Without a valid key id.
    #[error("must be kid:base64url-key, where kid is 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'")]
    Kid,
}

impl SecretKey {
    /// Creates a key from `bytes`. Fails if it is too short or a known sample (0, 1, 2 … or all zeros).
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

    /// Returns the key as written in the configuration.
    pub fn expose_base64url(&self) -> String {
        URL_SAFE_NO_PAD.encode(&self.0)
    }

    /// Derives a key for another `purpose`: the HMAC of the purpose, in base64url.
    #[must_use]
    pub fn derived(&self, purpose: &str) -> Self {
        Self(URL_SAFE_NO_PAD.encode(self.mac(purpose.as_bytes())).into_bytes())
    }

    /// Returns the HMAC-SHA256 of `bytes`.
    pub fn mac(&self, bytes: &[u8]) -> [u8; 32] {
        let mut mac = self.hmac();
        mac.update(bytes);
        mac.finalize().into_bytes().into()
    }

    /// Returns whether `mac` is the HMAC-SHA256 of `bytes`, in constant time.
    pub fn has_mac(&self, bytes: &[u8], mac: &[u8]) -> bool {
        let mut expected = self.hmac();
        expected.update(bytes);
        expected.verify_slice(mac).is_ok()
    }

    /// Starts an HMAC-SHA256 with this key.
    pub(crate) fn hmac(&self) -> Hmac<Sha256> {
        // HMAC accepts keys of any length; only the signature is fallible.
        #[allow(clippy::expect_used)]
        Hmac::new_from_slice(&self.0).expect("HMAC accepts keys of any length")
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

/// A signing key of the edge with its id: `kid:base64url-key`.
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

/// The SHA-256 of a request's body, written as base64url without padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyHash([u8; 32]);

impl BodyHash {
    /// Hashes `body`.
    pub fn of(body: &[u8]) -> Self {
        Self(Sha256::digest(body).into())
    }
}

impl fmt::Display for BodyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl FromStr for BodyHash {
    type Err = SignatureError;
    fn from_str(text: &str) -> Result<Self, SignatureError> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or(SignatureError::Malformed)
    }
}

/// The parts of a request that are signed.
#[derive(Debug, Clone, Copy)]
pub struct SignedParts<'a> {
    /// `GET` or `POST`.
    pub method: &'a str,
    /// Path and query as sent.
    pub path_and_query: &'a str,
    /// `Content-Type`; empty if there is none.
    pub content_type: &'a str,
    /// The body's hash.
    pub body: BodyHash,
    /// The authenticated user; empty if there is none.
    pub user: &'a str,
    /// The client's address.
    pub client_ip: &'a str,
    /// The claim's idempotency key; empty for other requests.
    pub idempotency_key: &'a str,
    /// Whether the request is marked as a first try. The signature covers only a mark that is present.
    pub attempt: Attempt,
    /// The scheme of the user's id; empty if there is no user. Edges before user ids had schemes send none.
    pub user_ids: &'a str,
    /// The pass that the edge verified; empty if there is none. Edges before passes send none.
    pub pass: &'a str,
}

impl SignedParts<'_> {
    fn mac(&self, key: &SecretKey, kid: &str, timestamp: &str) -> Hmac<Sha256> {
        let mut mac = key.hmac();
        let fields = [
            VERSION.as_bytes(),
            kid.as_bytes(),
            timestamp.as_bytes(),
            self.method.as_bytes(),
            self.path_and_query.as_bytes(),
            self.content_type.as_bytes(),
            &self.body.0,
            self.user.as_bytes(),
            self.client_ip.as_bytes(),
            self.idempotency_key.as_bytes(),
        ];
        let mark = (self.attempt == Attempt::First).then_some(Attempt::FIRST.as_bytes());
        // The fields from here on may be absent. Each begins with its name, so no field can be mistaken for
        // another. Only the first-try mark has no name: it was defined earlier.
        let user_ids = (!self.user_ids.is_empty()).then(|| [USER_IDS_FIELD, self.user_ids].concat());
        let pass = (!self.pass.is_empty()).then(|| [PASS_FIELD, self.pass].concat());
        let named = [user_ids.as_deref(), pass.as_deref()].into_iter().flatten().map(str::as_bytes);
        for field in fields.into_iter().chain(mark).chain(named) {
            crate::feed_field(|bytes| mac.update(bytes), field);
        }
        mac
    }

    /// Signs the request at `now` and returns the value of `X-Claimgate-Signature`.
    pub fn sign(&self, key: &NamedKey, now: Timestamp) -> String {
        let timestamp = now.as_ms().to_string();
        URL_SAFE_NO_PAD.encode(self.mac(&key.key, &key.kid, &timestamp).finalize().into_bytes())
    }

    /// Verifies, in constant time, that one of `keys` signed the request within 30 s of `now`. Returns the
    /// signed attempt: a first-try mark that the signature does not cover is ignored. The error is for
    /// the log, never for the client.
    pub fn verify(
        &self,
        keys: &[NamedKey],
        kid: &str,
        timestamp: &str,
        signature: &str,
        now: Timestamp,
    ) -> Result<Attempt, SignatureError> {
        let key = keys.iter().find(|key| key.kid == kid).ok_or(SignatureError::UnknownKey)?;
        // The timestamp's text is signed as sent, so a different spelling of the number does not verify.
        let signed_at: i64 = timestamp.parse().map_err(|_| SignatureError::Malformed)?;
        if signed_at.abs_diff(now.as_ms()) > WINDOW_MS.unsigned_abs() {
            return Err(SignatureError::OutsideWindow);
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| SignatureError::Malformed)?;
        let is_signed = |parts: &Self| parts.mac(&key.key, kid, timestamp).verify_slice(&signature).is_ok();
        if is_signed(self) {
            return Ok(self.attempt);
        }
        // The mark may have been added in transit: ignore it if the rest of the request verifies.
        let unmarked = Self { attempt: Attempt::Unknown, ..*self };
        if self.attempt == Attempt::First && is_signed(&unmarked) {
            return Ok(Attempt::Unknown);
        }
        Err(SignatureError::Mismatch)
    }
}

/// Why a signature is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// No configured key has this id.
    #[error("unknown key id")]
    UnknownKey,
    /// A header is not a timestamp, a hash or base64url.
    #[error("malformed signature headers")]
    Malformed,
    /// Signed more than 30 s from the verifier's clock.
    #[error("signed more than 30 s from this clock")]
    OutsideWindow,
    /// Signed with a different key, or for a different request.
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
            body: BodyHash::of(b"{}"),
            user: "alice",
            client_ip: "192.0.2.1",
            idempotency_key: "key-1",
            attempt: Attempt::Unknown,
            user_ids: "",
            pass: "",
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
    fn signatures_match_the_test_vector() {
        assert_eq!(parts().sign(&key(), at(SIGNED_AT)), "lBSki68EzMKottqDKCKzFOU_MjBLjDpjctYnGxcispk");
        assert_eq!(marked().sign(&key(), at(SIGNED_AT)), "48eN84Qk4129Fd4I9UPaaI0o1hm5cjwLl1OK1uAg0e0");
        let (user_ids, pass) = ("hmac:VR1TK4", "shown:1");
        for (parts, signature) in [
            (SignedParts { user_ids, ..parts() }, "gif4TS1PKgEeHSlAXz9OpSKwZPwooVWjW1KCLeETcg0"),
            (SignedParts { user_ids, ..marked() }, "ccm084IlOiC86Ae81o0QENnY6WjegfpljSy9Jadlv3s"),
            (SignedParts { pass, ..parts() }, "kLt3OUi3OYjIGNMWbX_gD4rg6VMAEaeBA9ZwUarVBms"),
            (SignedParts { pass, ..marked() }, "CCusfe28Ih55KKvuHhKZTDSloDK4y1UzGP2sr_2AA68"),
            (SignedParts { user_ids, pass, ..parts() }, "keKMcyPrNgth7luhm_ZzfaeMUfFH6ecVjzsmC-3Qljc"),
            (SignedParts { user_ids, pass, ..marked() }, "qYVryg7QQgQIj0CgNugycR4wff9pR1RhQ7EqMkaxEcI"),
        ] {
            assert_eq!(parts.sign(&key(), at(SIGNED_AT)), signature);
        }
    }

    #[test]
    fn a_body_hash_round_trips() {
        // `printf '{}' | openssl dgst -sha256 -binary | basenc --base64url`
        let text = "RBNvo1WzZ4oRRq0W9-hknpT7T8If536DEMBg9hyq_4o";
        assert_eq!(BodyHash::of(b"{}").to_string(), text);
        assert_eq!(text.parse(), Ok(BodyHash::of(b"{}")));
        for bad in
            ["", "AAAA", &text[1..], &format!("{text}="), &text.replace('-', "+"), &format!("{text}AAAA")]
        {
            assert_eq!(bad.parse::<BodyHash>(), Err(SignatureError::Malformed), "{bad}");
        }
    }

    #[test]
    fn an_unsigned_first_try_mark_is_ignored() {
        let [plain, mark] = [parts(), marked()].map(|parts| parts.sign(&key(), at(SIGNED_AT)));
        assert_eq!(verify(&parts(), &plain, SIGNED_AT), Ok(Attempt::Unknown));
        assert_eq!(verify(&marked(), &mark, SIGNED_AT), Ok(Attempt::First));
        assert_eq!(verify(&marked(), &plain, SIGNED_AT), Ok(Attempt::Unknown), "added in transit");
        assert_eq!(verify(&parts(), &mark, SIGNED_AT), Err(SignatureError::Mismatch), "removed in transit");
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
            SignedParts { body: BodyHash::of(b"{ }"), ..parts() },
            SignedParts { user: "bob", ..parts() },
            SignedParts { client_ip: "192.0.2.2", ..parts() },
            SignedParts { idempotency_key: "key-2", ..parts() },
            SignedParts { user_ids: "hmac:VR1TK4", ..parts() },
            SignedParts { pass: "shown", ..parts() },
        ];
        for attempt in [Attempt::First, Attempt::Unknown] {
            let signature = SignedParts { attempt, ..parts() }.sign(&key(), at(SIGNED_AT));
            for parts in changed.map(|parts| SignedParts { attempt, ..parts }) {
                assert_eq!(verify(&parts, &signature, SIGNED_AT), Err(SignatureError::Mismatch), "{parts:?}");
            }
        }
    }

    /// Each combination of mark, scheme and pass has a distinct meaning. The strings include those of other fields.
    #[test]
    fn no_request_with_one_meaning_verifies_as_another() {
        let schemes = ["", "1", "hmac:VR1TK4", "verbatim:VR1TK4", "user-ids:hmac:VR1TK4", "hmac:VR1TK4\u{0}"];
        let passes = ["", "1", "shown", "shown:1", "pass:shown", "user-ids:hmac:VR1TK4"];
        let all = [Attempt::First, Attempt::Unknown].into_iter().flat_map(|attempt| {
            schemes.into_iter().flat_map(move |user_ids| {
                passes.into_iter().map(move |pass| SignedParts { attempt, user_ids, pass, ..parts() })
            })
        });
        let meaning = |parts: &SignedParts<'static>| (parts.attempt, parts.user_ids, parts.pass);
        for signed in all.clone() {
            let signature = signed.sign(&key(), at(SIGNED_AT));
            for sent in all.clone() {
                let verified = verify(&sent, &signature, SIGNED_AT);
                // A mark that was added in transit is ignored, so the request keeps the meaning that was signed.
                let meant = verified.map(|attempt| (attempt, sent.user_ids, sent.pass));
                let is_readable = (sent.user_ids, sent.pass) == (signed.user_ids, signed.pass)
                    && (sent.attempt == signed.attempt || sent.attempt == Attempt::First);
                let expected = if is_readable { Ok(meaning(&signed)) } else { Err(SignatureError::Mismatch) };
                assert_eq!(meant, expected, "signed {:?}, sent {:?}", meaning(&signed), meaning(&sent));
            }
        }
    }

    #[test]
    fn sample_short_and_malformed_keys_are_rejected() {
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
        fn verifying_a_signature_never_panics(kid in any::<String>(), time in any::<String>(), signature in any::<String>()) {
            prop_assert!(parts().verify(&[key()], &kid, &time, &signature, at(SIGNED_AT)).is_err());
        }

        #[test]
        fn moving_bytes_between_fields_changes_the_signature(user in "[a-z]{2,8}", ip in "[0-9.]{2,8}") {
            let whole = SignedParts { user: &user, client_ip: &ip, ..parts() };
            let joined = format!("{user}{ip}");
            let (left, right) = joined.split_at(user.len() - 1);
            let moved = SignedParts { user: left, client_ip: right, ..parts() };
            prop_assert_ne!(whole.sign(&key(), at(SIGNED_AT)), moved.sign(&key(), at(SIGNED_AT)));
        }
    }
}
