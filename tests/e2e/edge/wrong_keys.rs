//! Key sets with an invalid key: it is ignored with a reason in the log, and the others work.

use std::io::Write as _;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use support::client::client;
use support::edge::{Edge, Runtime, World};
use support::{SOON, eventually, wait::holds};
use tempfile::TempDir;

use super::key_server::{Answer, JWKS, KeyServer};
use super::key_sets::{claim, claim_decided, clocked_world, kid, lasting, until_logged, world};
use super::run;
use support::issuer::{Issuer, unsigned};

/// Moves the clock past the time in which an unknown key causes no fetch and a reason is logged once.
const FETCH_MS: i64 = 31_000;

const SIZE: &str = "an RSA key of fewer than 2048 or more than 4096 bits";
const EXPONENT: &str = "an RSA exponent that is even, below 3 or above 32 bits";
const TYPE: &str = "neither RSA, P-256, P-384 nor Ed25519";
const INVALID: &str = "not a valid key of its type";
const NUMBER: &str = "a number is not base64url";
const MISSING: &str = "a member is missing";
const LENGTH: &str = "a coordinate of the wrong length";
const ALG: &str = "alg does not fit the key, or is not supported";

const UNKNOWN: &str = "unknown key";
const ALGORITHM: &str = "wrong algorithm";

/// An invalid key: what is wrong, the reason in the log, the key, and a token of it with the reason of its
/// rejection.
struct Row {
    what: &'static str,
    ignored: &'static str,
    key: Value,
    token: String,
    rejected: &'static str,
}

/// An RSA key of openssl: ring signs with no key as small or large.
struct OpensslRsa {
    directory: TempDir,
}

impl OpensslRsa {
    fn generate(bits: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let key = Self { directory };
        let bits = format!("rsa_keygen_bits:{bits}");
        key.openssl(&["genpkey", "-algorithm", "RSA", "-pkeyopt", &bits, "-out"], &[]);
        key
    }

    /// Runs openssl with the key's file as the last argument, and returns its output.
    fn openssl(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let mut openssl = Command::new("openssl");
        openssl.args(arguments).arg(self.directory.path().join("key.pem"));
        openssl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = openssl.spawn().expect("openssl");
        running.stdin.take().unwrap().write_all(input).unwrap();
        let ended = running.wait_with_output().unwrap();
        assert!(ended.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ended.stderr));
        ended.stdout
    }

    fn jwk(&self) -> Value {
        let line = String::from_utf8(self.openssl(&["rsa", "-noout", "-modulus", "-in"], &[])).unwrap();
        let digits = line.trim().strip_prefix("Modulus=").unwrap();
        let pairs =
            (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap());
        json!({"kty": "RSA", "kid": "wrong", "n": URL_SAFE_NO_PAD.encode(pairs.collect::<Vec<_>>()), "e": "AQAB"})
    }

    /// Returns the public key.
    fn pem(&self) -> String {
        String::from_utf8(self.openssl(&["pkey", "-pubout", "-in"], &[])).unwrap().replace('\n', "\\n")
    }

    fn token(&self) -> String {
        let text = unsigned(&json!({"alg": "RS256", "kid": "wrong"}), &lasting("mallory"));
        let signature = self.openssl(&["dgst", "-sha256", "-sign"], text.as_bytes());
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// Returns a token signed without a private key: with the exponent 1, the padded hash is the signature (RFC 8017, 9.2).
fn token_for_exponent_1() -> String {
    let text = unsigned(&json!({"alg": "RS256", "kid": "wrong"}), &lasting("mallory"));
    let sha256 = b"\x30\x31\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x01\x05\x00\x04\x20";
    let hash = [&sha256[..], &Sha256::digest(&text)].concat();
    let padding = vec![0xff; 256 - 3 - hash.len()];
    let signature = [&[0, 1], &padding[..], &[0], &hash].concat();
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn token_by_hmac(secret: &[u8]) -> String {
    let text = unsigned(&json!({"alg": "HS256", "kid": "wrong"}), &lasting("mallory"));
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
    mac.update(text.as_bytes());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}

fn wrong_rsa() -> Vec<Row> {
    let (small, large, rsa) =
        (OpensslRsa::generate(1_024), OpensslRsa::generate(4_104), Issuer::shared_rsa());
    let token = || rsa.token(&kid("wrong"), &lasting("mallory"));
    let row = |what, ignored, more: Value| {
        let mut key = rsa.jwk(&kid("wrong"));
        for (name, value) in more.as_object().unwrap() {
            key[name] = value.clone();
        }
        Row { what, ignored, key, token: token(), rejected: UNKNOWN }
    };
    let modulus = rsa.jwk(&json!({}))["n"].as_str().unwrap().to_owned();
    vec![
        Row { what: "1,024 bits", ignored: SIZE, key: small.jwk(), token: small.token(), rejected: UNKNOWN },
        Row { what: "4,104 bits", ignored: SIZE, key: large.jwk(), token: large.token(), rejected: UNKNOWN },
        Row { token: token_for_exponent_1(), ..row("exponent 1", EXPONENT, json!({"e": "AQ"})) },
        row("an even exponent", EXPONENT, json!({"e": "BA"})),
        row("no exponent", MISSING, json!({"e": null})),
        row("no modulus", MISSING, json!({"n": null})),
        row("a modulus in standard base64", NUMBER, json!({"n": modulus.replace('-', "+") + "="})),
        row("use enc", "`use` is not `sig`", json!({"use": "enc"})),
        row("use in another case", "`use` is not `sig`", json!({"use": "SIG"})),
        row("key_ops without verify", "`key_ops` lacks `verify`", json!({"key_ops": ["sign", "encrypt"]})),
        row("empty key_ops", "`key_ops` lacks `verify`", json!({"key_ops": []})),
        row("key_ops as text", "malformed", json!({"key_ops": "verify"})),
        row("a published private key", "its private half is published", json!({"d": "AQAB"})),
        row("alg of another type", ALG, json!({"alg": "ES256"})),
        row("alg of an encryption", ALG, json!({"alg": "RSA-OAEP"})),
        row("alg none", ALG, json!({"alg": "none"})),
        Row {
            token: token_by_hmac(&URL_SAFE_NO_PAD.decode(&modulus).unwrap()),
            rejected: ALGORITHM,
            ..row("alg HS256", ALG, json!({"alg": "HS256"}))
        },
        row("kty in lower case", TYPE, json!({"kty": "rsa"})),
        row("no kty", "malformed", json!({"kty": null})),
        row("a number as kid", "malformed", json!({"kid": 7})),
    ]
}

fn wrong_curves() -> Vec<Row> {
    let (p256, p384, ed25519) = (Issuer::p256(), Issuer::p384(), Issuer::ed25519());
    let (one, long) = (URL_SAFE_NO_PAD.encode([1; 32]), URL_SAFE_NO_PAD.encode([1; 66]));
    let row = |issuer: &Issuer, what, ignored, more: Value| {
        let mut key = issuer.jwk(&kid("wrong"));
        for (name, value) in more.as_object().unwrap() {
            key[name] = value.clone();
        }
        Row { what, ignored, key, token: issuer.token(&kid("wrong"), &lasting("mallory")), rejected: UNKNOWN }
    };
    let one_48 = URL_SAFE_NO_PAD.encode([1; 48]);
    vec![
        row(&p256, "a point that is not on P-256", INVALID, json!({"x": one, "y": one})),
        row(&p384, "a point that is not on P-384", INVALID, json!({"x": one_48, "y": one_48})),
        row(&p256, "a coordinate above the field", INVALID, json!({"x": URL_SAFE_NO_PAD.encode([0xff; 32])})),
        row(&p256, "P-521", TYPE, json!({"crv": "P-521", "x": long, "y": long})),
        row(&p256, "secp256k1", TYPE, json!({"crv": "secp256k1"})),
        row(&p256, "no curve", TYPE, json!({"crv": null})),
        row(&p256, "P-256 named P-384", LENGTH, json!({"crv": "P-384"})),
        row(&p256, "no y", MISSING, json!({"y": null})),
        row(&p256, "y in hexadecimal", LENGTH, json!({"y": "0".repeat(64)})),
        row(&p256, "padded x", NUMBER, json!({"x": format!("{one}=")})),
        row(&ed25519, "no x", MISSING, json!({"x": null})),
        row(&ed25519, "Ed448", TYPE, json!({"crv": "Ed448"})),
        row(&ed25519, "X25519", TYPE, json!({"crv": "X25519"})),
        row(&ed25519, "Ed25519 as EC", TYPE, json!({"kty": "EC"})),
    ]
}

fn other_keys() -> Vec<Row> {
    let issuer = Issuer::p256();
    let token = || issuer.token(&kid("wrong"), &lasting("mallory"));
    let row = |what, ignored, key| Row { what, ignored, key, token: token(), rejected: UNKNOWN };
    let secret = b"a secret for tests, at least 32 bytes";
    let oct = json!({"kty": "oct", "kid": "wrong", "alg": "HS256", "k": URL_SAFE_NO_PAD.encode(secret)});
    vec![
        Row {
            token: token_by_hmac(secret),
            rejected: ALGORITHM,
            ..row("a shared secret", "a shared secret", oct)
        },
        row("a certificate only", "malformed", json!({"kid": "wrong", "x5c": [issuer.pem_body()]})),
        row("a string", "malformed", json!(issuer.pem_body())),
        row("null", "malformed", Value::Null),
        row("an empty object", "malformed", json!({})),
    ]
}

#[test]
fn a_wrong_key_is_ignored_and_the_others_work() {
    run(async {
        let server = KeyServer::start(Answer::Closed);
        let (world, clock) =
            clocked_world("edge-wrong-keys", &[("USER_JWT_JWKS_URL", &server.url(JWKS))]).await;
        let rows: Vec<_> = [wrong_rsa(), wrong_curves(), other_keys()].into_iter().flatten().collect();
        assert!(rows.len() >= 30, "{} rows", rows.len());
        for (at, row) in rows.iter().enumerate() {
            // Each set has a new good key, so that the edge must fetch the set.
            let (good, name) = (Issuer::p256(), format!("good-{at}"));
            server.answer(JWKS, Answer::keys(&[row.key.clone(), good.jwk(&kid(&name))]));
            clock.move_by_ms((i64::try_from(at).unwrap() + 1) * FETCH_MS);
            accepts_good_and_rejects_wrong(&world, row, &good, &name).await;
            until_logged(&world, &format!("user keys ignored: key 1: {}", row.ignored)).await;
            assert_eq!(server.requests(JWKS), at + 1, "{}", row.what);
        }
    });
}

async fn accepts_good_and_rejects_wrong(world: &World, row: &Row, good: &Issuer, name: &str) {
    // A token without `kid` is accepted because only one key fits.
    for header in [kid(name), json!({})] {
        let reply = claim_decided(world, &good.token(&header, &lasting("alice"))).await;
        assert!(reply.is_created(), "{}, {header}: {}", row.what, reply.text());
    }
    let reply = claim(world, &row.token).await;
    let detail = reply.json()["detail"].as_str().unwrap_or_default().to_owned();
    assert!(
        reply.status == 401 && detail.ends_with(&format!(": {}", row.rejected)),
        "{}: {detail}",
        row.what
    );
}

#[test]
fn of_two_keys_with_one_kid_neither_verifies() {
    run(async {
        let (one, two, other, good) = (Issuer::p256(), Issuer::p256(), Issuer::ed25519(), Issuer::p384());
        let keys = [
            one.jwk(&kid("a")),
            two.jwk(&kid("a")),
            // The same id with another type is distinct.
            other.jwk(&kid("a")),
            good.jwk(&kid("b")),
        ];
        let server = KeyServer::start(Answer::keys(&keys));
        let world = world("edge-kid-twice", &[("USER_JWT_JWKS_URL", &server.url(JWKS))]).await;
        for (issuer, name, status) in
            [(&one, "a", 401), (&two, "a", 401), (&other, "a", 201), (&good, "b", 201)]
        {
            let reply = claim_decided(&world, &issuer.token(&kid(name), &lasting("alice"))).await;
            let found = if reply.is_created() { 201 } else { reply.status };
            assert_eq!(found, status, "{} {name}: {}", issuer.algorithm(), reply.text());
        }
        until_logged(&world, r#"user keys ignored: kid "a" occurs twice; kid "a" occurs twice"#).await;
    });
}

#[test]
fn wrong_keys_of_an_inline_set_are_ignored_and_logged() {
    run(async {
        let good = Issuer::p256();
        let mut keys: Vec<_> =
            [wrong_curves(), other_keys()].into_iter().flatten().map(|row| row.key).collect();
        keys.push(good.jwk(&kid("good")));
        let set = json!({"keys": keys}).to_string();
        let inline = world("edge-inline-wrong", &[("USER_JWT_JWKS", &set)]).await;
        for header in [kid("good"), json!({})] {
            let _ = claim_decided(&inline, &good.token(&header, &lasting("alice"))).await.expect(201);
        }
        until_logged(&inline, "user keys ignored: key 4: neither RSA").await;

        let off_curve = wrong_curves().swap_remove(0);
        let set = json!({"keys": [off_curve.key]}).to_string();
        let variables = [("CORE_URL", "http://127.0.0.1:9"), ("EDGE_KEY", ""), ("USER_JWT_JWKS", &set)];
        let edge = Edge::start(Runtime::from_env(), "edge-inline-none", "test", &variables).await;
        let ready = client().once().try_get(&edge.url("/readyz"), "").await.unwrap();
        let ready = ready.refused(503, "not_configured").json();
        assert_eq!(ready["detail"], "not ready: EDGE_KEY, USER_JWT_JWKS");
        let _ = client().once().try_get(&edge.url("/v1/campaigns/demo"), "").await.unwrap();
        eventually(SOON, || async {
            let line = "USER_JWT_JWKS has no key that may verify tokens: key 1: not a valid key of its type";
            holds(edge.log().contains(line), || edge.log())
        })
        .await;
    });
}

/// The runtime imports the key before the edge serves its first request.
#[test]
fn a_wrong_public_key_is_reported_as_a_configuration_error() {
    run(async {
        let (p256, ed25519) = (Issuer::p256().pem_body(), Issuer::ed25519().pem_body());
        let small = OpensslRsa::generate(1_024).pem();
        for (name, algorithm, key, kind) in [
            ("a P-256 key for RS256", "RS256", p256.as_str(), "RSA"),
            ("a P-256 key for ES384", "ES384", &p256, "P-384"),
            ("an Ed25519 key for ES256", "ES256", &ed25519, "P-256"),
            ("half a key", "EdDSA", &ed25519[..40], "Ed25519"),
            ("no key", "ES256", "bm8ga2V5", "P-256"),
            ("RSA of 1,024 bits", "RS256", &small, "RSA"),
        ] {
            let variables = [
                ("CORE_URL", "http://127.0.0.1:9"),
                ("EDGE_KEY", ""),
                ("USER_JWT_ALG", algorithm),
                ("USER_JWT_KEY", key),
            ];
            let directory = format!("edge-key-{}", name.replace([' ', ','], "-"));
            let edge = Edge::start(Runtime::from_env(), &directory, "test", &variables).await;
            let get = async |path: &str| client().once().try_get(&edge.url(path), "").await.unwrap();
            let ready = get("/readyz").await.refused(503, "not_configured").json();
            assert_eq!(ready["detail"], "not ready: EDGE_KEY, USER_JWT_KEY", "{name}");
            let _ = get("/v1/campaigns/demo").await.refused(503, "not_configured");
            eventually(SOON, || async {
                let line = format!("EDGE_KEY is not set; USER_JWT_KEY is not a public key of type {kind}: ");
                holds(edge.log().contains(&line), || format!("{name}: {}", edge.log()))
            })
            .await;
            assert!(!edge.log().contains(key), "{name}: the log has the key");
        }
    });
}
