//! Invalid tokens: each is rejected with its reason, in the response and in the log, and none is logged
//! itself.

mod rows;

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::Sha256;
use support::clock::Clock;
use support::edge::{Edge, Runtime, World};
use support::{Reply, SOON, eventually, wait::holds};

use super::key_sets::{clocked_world, kid, lasting};
use super::run;
use support::issuer::{Issuer, unsigned};

/// Moves the clock past the period in which a reason is logged once.
const LOG_PERIOD_MS: i64 = 11_000;
/// Length from which a part of a token must not be in a log.
const PART_CHARS_MIN: usize = 12;

/// The edge that must reject a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    /// Verifies with the key set.
    KeySet,
    /// Verifies with a secret.
    Secret,
    /// Verifies with the key set, and requires `client_id` instead of an audience.
    Claims,
}

/// A token's defect, the edge that must reject it, the reason, and the token.
type Row = (String, By, &'static str, String);

/// The issuers whose keys are in the set, and the secret of [`By::Secret`].
struct Signers {
    rsa: &'static Issuer,
    p256: Issuer,
    p384: Issuer,
    ed25519: Issuer,
    secret: Vec<u8>,
}

impl Signers {
    fn key_set(&self) -> Value {
        json!({"keys": [
            self.rsa.jwk(&json!({"kid": "rsa", "alg": "RS256"})),
            self.rsa.jwk(&json!({"kid": "pss", "alg": "PS256"})),
            self.rsa.jwk(&json!({"kid": "enc", "use": "enc"})),
            self.p256.jwk(&kid("p256")),
            self.p256.jwk(&kid("second")),
            self.p256.jwk(&kid("twice")),
            Issuer::p256().jwk(&kid("twice")),
            self.p384.jwk(&kid("p384")),
            self.ed25519.jwk(&kid("ed25519")),
            json!({"kty": "oct", "kid": "secret", "alg": "HS256", "k": URL_SAFE_NO_PAD.encode(&self.secret)}),
        ]})
    }

    /// Returns a token of the RSA key with this header and payload, which need not be JSON objects.
    fn by_rsa(&self, header: &str, payload: impl AsRef<[u8]>) -> String {
        signed(&text(header, payload), |text| self.rsa.sign("RS256", text))
    }

    /// Returns a token of the RSA key with a valid header.
    fn with_payload(&self, payload: impl AsRef<[u8]>) -> String {
        self.by_rsa(r#"{"alg":"RS256","kid":"rsa"}"#, payload)
    }

    /// Returns a token of the RSA key with `name` changed in its claims.
    fn with(&self, name: &str, value: Value) -> String {
        self.with_payload(changed(name, value).to_string())
    }

    /// Returns a valid token for the P-256 key with a signature that `change` derives from the valid
    /// signature.
    fn with_signature(&self, change: impl Fn(&[u8]) -> Vec<u8>) -> String {
        let text = unsigned(&json!({"alg": "ES256", "kid": "p256"}), &lasting("alice"));
        signed(&text, |text| change(&self.p256.sign("ES256", text)))
    }

    fn with_ed25519_signature(&self, change: impl Fn(Vec<u8>) -> Vec<u8>) -> String {
        let text = unsigned(&json!({"alg": "EdDSA", "kid": "ed25519"}), &lasting("alice"));
        signed(&text, |text| change(self.ed25519.sign("EdDSA", text)))
    }
}

fn text(header: &str, payload: impl AsRef<[u8]>) -> String {
    format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload))
}

fn signed(text: &str, sign: impl FnOnce(&str) -> Vec<u8>) -> String {
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(sign(text)))
}

fn by_hmac(secret: &[u8], header: &Value, payload: &Value) -> String {
    signed(&unsigned(header, payload), |text| mac(secret, text))
}

fn mac(secret: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// Returns valid claims with this member; `null` removes it.
fn changed(name: &str, value: Value) -> Value {
    let mut claims = lasting("alice");
    if value.is_null() {
        claims.as_object_mut().unwrap().remove(name);
    } else {
        claims[name] = value;
    }
    claims
}

/// The edges, which share a core.
struct Edges {
    world: World,
    secret: Edge,
    claims: Edge,
}

impl Edges {
    async fn start(signers: &Signers) -> (Self, Clock) {
        let set = signers.key_set().to_string();
        let (world, clock) = clocked_world("edge-wrong-tokens", &[("USER_JWT_JWKS", &set)]).await;
        let core_url = format!("http://{}", world.core.listen());
        let (edge_key, key) = (world.core.data_file("edge.key"), URL_SAFE_NO_PAD.encode(&signers.secret));
        let environment = clock.environment();
        let environment = environment.each_ref().map(|(name, value)| (*name, value.to_str().unwrap()));
        let common = [&[("CORE_URL", core_url.as_str()), ("EDGE_KEY", &edge_key)], &environment[..]].concat();
        let start = async |name: &str, variables: &[(&str, &str)]| {
            Edge::start(Runtime::Workerd, name, "test", &[&common, variables].concat()).await
        };
        let without_aud = [
            ("USER_JWT_JWKS", set.as_str()),
            ("USER_JWT_AUD", "none"),
            ("USER_JWT_REQUIRE", "client_id=7g4"),
        ];
        let edges = Self {
            secret: start("edge-wrong-tokens-secret", &[("USER_JWT_KEY", &key)]).await,
            claims: start("edge-wrong-tokens-claims", &without_aud).await,
            world,
        };
        (edges, clock)
    }

    /// Returns the logs of the edges and of core.
    fn logs(&self) -> String {
        [self.world.edge.log(), self.secret.log(), self.claims.log(), self.world.core.log()].concat()
    }

    fn of(&self, by: By) -> &Edge {
        match by {
            By::KeySet => &self.world.edge,
            By::Secret => &self.secret,
            By::Claims => &self.claims,
        }
    }

    async fn claim(&self, by: By, token: &str) -> Reply {
        let url = self.of(by).url("/v1/campaigns/keys/claims");
        let request = self.world.core.client().request(Method::POST, &url).bearer_auth(token);
        self.world.send_once(request.json(&json!({}))).await
    }
}

/// Returns the valid tokens from which the invalid tokens are derived.
fn right_tokens(signers: &Signers) -> [(By, String); 6] {
    let mut own = changed("aud", Value::Null);
    own["client_id"] = json!("7g4");
    [
        (By::KeySet, signers.with_payload(lasting("alice").to_string())),
        (By::KeySet, signers.with_signature(<[u8]>::to_vec)),
        (By::KeySet, signers.with_ed25519_signature(|signature| signature)),
        (By::KeySet, signers.with("exp", json!(4_000_000_000.5))),
        (By::Claims, signers.with_payload(own.to_string())),
        (By::Secret, by_hmac(&signers.secret, &json!({"alg": "HS256"}), &lasting("alice"))),
    ]
}

#[test]
fn wrong_tokens_are_rejected_with_their_reason() {
    run(async {
        let secret = b"a secret for tests, at least 32 bytes".to_vec();
        let (p256, p384, ed25519) = (Issuer::p256(), Issuer::p384(), Issuer::ed25519());
        let signers = Signers { rsa: Issuer::shared_rsa(), p256, p384, ed25519, secret };
        let (edges, clock) = Edges::start(&signers).await;
        for (by, token) in right_tokens(&signers) {
            let reply = edges.claim(by, &token).await;
            assert_eq!(reply.status, 201, "{by:?}: {}", reply.text());
        }
        let remaining = edges.world.core.campaign("keys").await["remaining"].clone();

        let rows = rows::all(&signers);
        let names: BTreeSet<_> = rows.iter().map(|(what, ..)| what).collect();
        assert!(names.len() == rows.len() && rows.len() >= 60, "{} rows", rows.len());
        println!("{} invalid tokens", rows.len());
        let mut wrong = Vec::new();
        for (at, (what, by, reason, token)) in (1..).zip(&rows) {
            // Each reason may be logged again.
            clock.move_by_ms(at * LOG_PERIOD_MS);
            let reply = edges.claim(*by, token).await;
            let detail = reply.json()["detail"].as_str().unwrap_or_default().to_owned();
            if reply.status != 401 || !detail.ends_with(&format!(": {reason}")) {
                wrong.push(format!("{what}: {} {detail}", reply.status));
                continue;
            }
            let line = format!("{} token rejected: {reason}", reply.header("x-request-id"));
            eventually(SOON, || async {
                let log = edges.of(*by).log();
                holds(log.contains(&line), || format!("{what}: no {line:?} in {log}"))
            })
            .await;
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert_eq!(edges.world.core.campaign("keys").await["remaining"], remaining);

        let logs = edges.logs();
        for (what, _, _, token) in &rows {
            let parts = token.split(['.', ' ', '"']).filter(|part| part.len() >= PART_CHARS_MIN);
            for part in parts.filter(|part| !part.starts_with('{')) {
                assert!(!logs.contains(part), "{what}: {part} is in a log");
            }
        }
    });
}
