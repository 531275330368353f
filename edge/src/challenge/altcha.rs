//! ALTCHA: a proof of work that the edge issues and checks itself.
//!
//! Challenges are signed, so the edge stores none. The key to find is signed too, so checking a solution
//! derives no key. The code is the edge's own because ALTCHA's crate would make the Worker 43 KB larger;
//! tests compare both.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use claimgate_shared::altcha::{AltchaChallenge, AltchaData, AltchaParameters};
use claimgate_shared::signature::SecretKey;
use claimgate_shared::{Code, Problem, Timestamp};
use serde_json::Value;
use wasm_bindgen::{JsCast as _, JsValue};
use web_sys::CryptoKey;
use worker::js_sys::futures::JsFuture;
use worker::js_sys::{Array, ArrayBuffer, Uint8Array};

use crate::web_crypto::{object, subtle};

/// The key derivation function. Browsers and this runtime have it in Web Crypto.
const ALGORITHM: &str = "PBKDF2/SHA-256";
/// Number of iterations of one derivation. The edge derives one key for each challenge.
const COST: u32 = 5_000;
/// Length of a key, in bytes.
const KEY_BYTES: u32 = 32;
/// Number of bytes of the key that the browser has to find: too many to find a different key by chance.
const PREFIX_BYTES: usize = 16;

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Altcha {
    /// `CHALLENGE_SECONDS`: how long a challenge is valid.
    pub(super) valid_s: u32,
    /// `ALTCHA_ATTEMPTS`: the maximum number of keys that a browser derives for a solution.
    pub(super) attempts: u32,
}

/// The random parts of a challenge.
struct Drawn {
    nonce: [u8; 16],
    salt: [u8; 16],
    counter: u32,
}

impl Altcha {
    /// Issues a challenge at `now`.
    ///
    /// # Errors
    /// `unavailable` if the runtime fails.
    pub(super) async fn issue(
        &self,
        secrets: &AltchaSecrets,
        data: AltchaData,
        now: Timestamp,
    ) -> Result<AltchaChallenge, Problem> {
        let failed = || Problem::new(Code::Unavailable, "the challenge could not be created: retry");
        let drawn = self.draw().ok_or_else(failed)?;
        let key = drawn.key().await.map_err(|error| {
            worker::console_error!("no key could be derived for a challenge: {error:?}");
            failed()
        })?;
        let parameters = AltchaParameters {
            algorithm: ALGORITHM.to_owned(),
            cost: COST,
            data,
            expires_at: now.as_ms() / 1000 + i64::from(self.valid_s),
            key_length: KEY_BYTES,
            key_prefix: String::new(),
            key_signature: String::new(),
            nonce: hex(&drawn.nonce),
            salt: hex(&drawn.salt),
        };
        secrets.sign(parameters, &key).map_err(|_| failed())
    }

    fn draw(self) -> Option<Drawn> {
        let mut drawn = Drawn { nonce: [0; 16], salt: [0; 16], counter: 0 };
        let mut random = [0; 4];
        getrandom::fill(&mut drawn.nonce).and(getrandom::fill(&mut drawn.salt)).ok()?;
        getrandom::fill(&mut random).ok()?;
        drawn.counter = self.counter(u32::from_be_bytes(random));
        Some(drawn)
    }

    /// Returns a counter in the upper half of the attempts, so that every solution takes about the same time.
    fn counter(self, random: u32) -> u32 {
        let least = self.attempts / 2;
        least + random % (self.attempts - least)
    }
}

impl Drawn {
    /// Derives the key to find, with Web Crypto: in the Worker's own code it would take several times as long.
    async fn key(&self) -> Result<Vec<u8>, JsValue> {
        let password = [&self.nonce[..], &self.counter.to_be_bytes()].concat();
        let usages = Array::of1(&"deriveBits".into());
        let material = Uint8Array::from(&password[..]);
        let imported = subtle()?.import_key_with_str("raw", &material, "PBKDF2", false, &usages)?;
        let imported: CryptoKey = JsFuture::from(imported).await?.dyn_into()?;
        let parameters = object(&[
            ("name", "PBKDF2".into()),
            ("hash", "SHA-256".into()),
            ("salt", Uint8Array::from(&self.salt[..]).into()),
            ("iterations", COST.into()),
        ])?;
        let derived = subtle()?.derive_bits_with_object(&parameters, &imported, KEY_BYTES * 8)?;
        let derived: ArrayBuffer = JsFuture::from(derived).await?.dyn_into()?;
        Ok(Uint8Array::new(&derived).to_vec())
    }
}

/// Why a solution is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum AltchaError {
    /// After `expiresAt`.
    #[error("the challenge has expired")]
    Expired,
    /// Not a challenge and a solution as JSON in base64.
    #[error("the payload is malformed")]
    Malformed,
    /// Changed, or issued with a different key.
    #[error("the challenge was not issued by this edge")]
    Signature,
    /// Issued for another user or campaign.
    #[error("the challenge was issued for another user or campaign")]
    Data,
    /// Not the key to find.
    #[error("the solution is wrong")]
    Solution,
}

/// The secrets that sign challenges and their keys, derived from the key that signs passes.
#[derive(Debug)]
pub(super) struct AltchaSecrets {
    challenge: SecretKey,
    solution: SecretKey,
}

impl AltchaSecrets {
    /// Derives the secrets.
    pub(super) fn of(key: &SecretKey) -> Self {
        Self { challenge: key.derived("altcha challenge"), solution: key.derived("altcha solution") }
    }

    /// Signs a challenge to find `key`. Sets the key's beginning and its signature.
    pub(super) fn sign(
        &self,
        mut parameters: AltchaParameters,
        key: &[u8],
    ) -> Result<AltchaChallenge, serde_json::Error> {
        parameters.key_prefix = hex(&key[..PREFIX_BYTES.min(key.len())]);
        parameters.key_signature = hex(&self.solution.mac(key));
        let signed = serde_json::to_vec(&parameters)?;
        let signature = hex(&self.challenge.mac(&signed));
        Ok(AltchaChallenge { parameters, signature })
    }

    /// Checks at `now` that `payload`, as ALTCHA's solvers send it, solves a challenge that was issued for `data`.
    pub(super) fn check(&self, payload: &str, data: &AltchaData, now: Timestamp) -> Result<(), AltchaError> {
        let json = STANDARD.decode(payload).map_err(|_| AltchaError::Malformed)?;
        // Code that parses the types would make the Worker several kilobytes larger. The members of a `Value` are in
        // alphabetical order, as in what was signed.
        let payload: Value = serde_json::from_slice(&json).map_err(|_| AltchaError::Malformed)?;
        let text = |pointer| payload.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let parameters = &payload["challenge"]["parameters"];
        let signed = serde_json::to_vec(parameters).map_err(|_| AltchaError::Malformed)?;
        let is_signed = |secret: &SecretKey, bytes: &[u8], signature: &str| {
            unhex(signature).is_some_and(|signature| secret.has_mac(bytes, &signature))
        };
        if !is_signed(&self.challenge, &signed, text("/challenge/signature")) {
            return Err(AltchaError::Signature);
        }
        let is_for = |name: &str, id: &str| parameters["data"][name] == *id;
        if !is_for("campaign", data.campaign.as_str()) || !is_for("user", data.user.as_str()) {
            return Err(AltchaError::Data);
        }
        let expires_at = parameters["expiresAt"].as_i64().unwrap_or_default();
        if now.as_ms() > expires_at.saturating_mul(1000) {
            return Err(AltchaError::Expired);
        }
        let key = unhex(text("/solution/derivedKey")).ok_or(AltchaError::Solution)?;
        if !is_signed(&self.solution, &key, text("/challenge/parameters/keySignature")) {
            return Err(AltchaError::Solution);
        }
        Ok(())
    }
}

/// Returns `bytes` in lower-case hexadecimal.
fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const NOW_S: i64 = 4_000_000_000;

    fn secrets() -> AltchaSecrets {
        AltchaSecrets::of(&SecretKey::from_bytes(b"a key for tests, not all the same".to_vec()).unwrap())
    }

    /// Returns a secret as ALTCHA's own library takes it.
    fn text(secret: &SecretKey) -> String {
        String::from_utf8(base64_decoded(&secret.expose_base64url())).unwrap()
    }

    fn base64_decoded(text: &str) -> Vec<u8> {
        base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(text).unwrap()
    }

    fn data(campaign: &str, user: &str) -> AltchaData {
        AltchaData { campaign: campaign.parse().unwrap(), user: user.parse().unwrap() }
    }

    /// Returns a challenge of ALTCHA's own library with its solution.
    fn theirs() -> Value {
        let data =
            BTreeMap::from([("campaign".to_owned(), json!("spring")), ("user".to_owned(), json!("alice"))]);
        let challenge = altcha::create_challenge(altcha::CreateChallengeOptions {
            algorithm: ALGORITHM.to_owned(),
            cost: 10,
            counter: Some(7),
            data: Some(data),
            expires_at: Some(NOW_S),
            hmac_signature_secret: Some(text(&secrets().challenge)),
            hmac_key_signature_secret: Some(text(&secrets().solution)),
            ..altcha::CreateChallengeOptions::default()
        });
        let challenge = challenge.unwrap();
        let solution =
            altcha::solve_challenge(altcha::SolveChallengeOptions::new(&challenge)).unwrap().unwrap();
        assert_eq!(solution.counter, 7);
        json!({"challenge": challenge, "solution": solution})
    }

    fn check_at(payload: &Value, data: &AltchaData, ms: i64) -> Result<(), AltchaError> {
        let now = Timestamp::from_ms(NOW_S * 1000 + ms).unwrap();
        secrets().check(&STANDARD.encode(payload.to_string()), data, now)
    }

    #[test]
    fn challenges_equal_those_of_altchas_library() {
        let theirs = theirs();
        assert_eq!(check_at(&theirs, &data("spring", "alice"), 0), Ok(()));
        let challenge: AltchaChallenge = serde_json::from_value(theirs["challenge"].clone()).unwrap();
        let key = unhex(theirs["solution"]["derivedKey"].as_str().unwrap()).unwrap();
        let blank = AltchaParameters {
            key_prefix: String::new(),
            key_signature: String::new(),
            ..challenge.parameters.clone()
        };
        assert_eq!(secrets().sign(blank, &key).unwrap(), challenge);
        assert_eq!(challenge.parameters.key_prefix.len(), 2 * PREFIX_BYTES);
        assert_eq!(challenge.parameters.key_length, KEY_BYTES);
    }

    #[test]
    fn the_order_of_members_does_not_matter() {
        let theirs = theirs();
        let members = theirs["challenge"]["parameters"].as_object().unwrap();
        let reversed: Vec<_> =
            members.iter().rev().map(|(name, value)| format!("{name:?}:{value}")).collect();
        let (signature, solution) = (&theirs["challenge"]["signature"], &theirs["solution"]);
        let text = format!(
            r#"{{"solution":{solution},"challenge":{{"signature":{signature},"parameters":{{{}}}}}}}"#,
            reversed.join(",")
        );
        let now = Timestamp::from_ms(NOW_S * 1000).unwrap();
        assert_eq!(secrets().check(&STANDARD.encode(text), &data("spring", "alice"), now), Ok(()));
    }

    #[test]
    fn a_solution_is_checked_completely() {
        let alice = data("spring", "alice");
        for (pointer, value, error) in [
            ("/challenge", Value::Null, AltchaError::Signature),
            ("/challenge/parameters", Value::Null, AltchaError::Signature),
            ("/challenge/parameters/cost", json!(1), AltchaError::Signature),
            ("/challenge/parameters/expiresAt", json!(NOW_S + 1), AltchaError::Signature),
            ("/challenge/parameters/data/user", json!("bob"), AltchaError::Signature),
            ("/challenge/parameters/keyPrefix", json!(""), AltchaError::Signature),
            ("/challenge/parameters/keySignature", json!(""), AltchaError::Signature),
            ("/challenge/signature", json!(""), AltchaError::Signature),
            ("/challenge/signature", json!(7), AltchaError::Signature),
            ("/challenge/signature", json!("0"), AltchaError::Signature),
            ("/solution", Value::Null, AltchaError::Solution),
            ("/solution/derivedKey", json!(""), AltchaError::Solution),
            ("/solution/derivedKey", json!("zz"), AltchaError::Solution),
            ("/solution/derivedKey", json!("00".repeat(32)), AltchaError::Solution),
        ] {
            let mut payload = theirs();
            *payload.pointer_mut(pointer).unwrap() = value;
            assert_eq!(check_at(&payload, &alice, 0), Err(error), "{pointer}");
        }
        let payload = theirs();
        assert_eq!(check_at(&payload, &alice, 0), Ok(()));
        assert_eq!(check_at(&payload, &alice, 1), Err(AltchaError::Expired));
        for other in [data("autumn", "alice"), data("spring", "bob")] {
            assert_eq!(check_at(&payload, &other, 0), Err(AltchaError::Data), "{other:?}");
        }
        let other = SecretKey::from_bytes(b"another key, also 32 bytes or more".to_vec()).unwrap();
        let (text, now) = (STANDARD.encode(payload.to_string()), Timestamp::from_ms(0).unwrap());
        assert_eq!(AltchaSecrets::of(&other).check(&text, &alice, now), Err(AltchaError::Signature));
        for wrong in ["", "e30", "bm8=", "{}"] {
            assert_eq!(secrets().check(wrong, &alice, now), Err(AltchaError::Malformed), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn checking_a_payload_never_panics(payload in any::<String>()) {
            let (alice, now) = (data("spring", "alice"), Timestamp::from_ms(0).unwrap());
            for text in [STANDARD.encode(&payload), payload] {
                prop_assert!(secrets().check(&text, &alice, now).is_err());
            }
        }
    }

    #[test]
    fn hexadecimal_round_trips() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(hex(&bytes[250..]), "fafbfcfdfeff");
        assert_eq!(unhex(&hex(&bytes)), Some(bytes));
        for wrong in ["0", "0g", "é", " 0"] {
            assert_eq!(unhex(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_solution_takes_half_to_all_attempts() {
        for (attempts, least, most) in [(1, 0, 0), (2, 1, 1), (3, 1, 2), (1_000, 500, 999)] {
            let altcha = Altcha { valid_s: 600, attempts };
            let counters: Vec<_> = (0..2_000).map(|random| altcha.counter(random)).collect();
            let bounds = (counters.iter().min().copied(), counters.iter().max().copied());
            assert_eq!(bounds, (Some(least), Some(most)), "{attempts}");
        }
    }
}
