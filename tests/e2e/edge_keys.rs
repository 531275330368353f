//! Keys: the users' public keys, and the edge's own while it is changed under load.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use futures_util::future::join_all;
use hmac::{Hmac, KeyInit as _, Mac as _};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use sha2::Sha256;
use support::edge::{Edge, Runtime, World, payload};
use support::process::{Signal, signal_pid};
use support::times::now_ms;
use support::wait::holds;
use support::{SOON, eventually};

use super::edge::run;
use super::edge_cores::{is_granted, unavailable};

// ------------------------------------------------------------------------------------------------- users' public keys

/// Who issues users' tokens.
enum Issuer {
    Es256(EcdsaKeyPair),
    EdDsa(Ed25519KeyPair),
}

impl Issuer {
    fn es256() -> Self {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random);
        Self::Es256(pair.unwrap())
    }

    fn eddsa() -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::EdDsa(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap())
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Self::Es256(_) => "ES256",
            Self::EdDsa(_) => "EdDSA",
        }
    }

    /// `SubjectPublicKeyInfo` in base64, as PEM has it between its two lines.
    fn public_key(&self) -> String {
        let (head, key) = match self {
            Self::Es256(pair) => {
                (&b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00"[..], pair.public_key().as_ref())
            }
            Self::EdDsa(pair) => {
                (&b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00"[..], pair.public_key().as_ref())
            }
        };
        STANDARD.encode([head, key].concat())
    }

    fn sign(&self, text: &str) -> Vec<u8> {
        match self {
            Self::Es256(pair) => pair.sign(&SystemRandom::new(), text.as_bytes()).unwrap().as_ref().to_vec(),
            Self::EdDsa(pair) => pair.sign(text.as_bytes()).as_ref().to_vec(),
        }
    }

    fn token(&self, payload: &Value) -> String {
        let signed = unsigned(self.algorithm(), payload);
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(self.sign(&signed)))
    }

    /// Tokens that look as good as any, and are not.
    fn bad_tokens(&self, other: &Self) -> Vec<(&'static str, String)> {
        let (good, now_s) = (payload("alice"), now_ms() / 1000);
        let with = |name: &str, value: Value| {
            let mut changed = good.clone();
            changed[name] = value;
            self.token(&changed)
        };
        let token = self.token(&good);
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let confused = unsigned("HS256", &good);
        let by_secret = |secret: &[u8]| {
            let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
            mac.update(confused.as_bytes());
            format!("{confused}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
        };
        let none = unsigned("none", &good);
        vec![
            ("HS256 with the public key's text", by_secret(self.public_key().as_bytes())),
            ("HS256 with the public key's bytes", by_secret(&STANDARD.decode(self.public_key()).unwrap())),
            ("alg none", format!("{none}.")),
            ("alg none, signed", format!("{none}.{}", URL_SAFE_NO_PAD.encode(self.sign(&none)))),
            ("another issuer's key", other.token(&good)),
            ("the other algorithm's name", {
                let name = if self.algorithm() == "ES256" { "EdDSA" } else { "ES256" };
                let signed = unsigned(name, &good);
                format!("{signed}.{}", URL_SAFE_NO_PAD.encode(self.sign(&signed)))
            }),
            ("no signature", format!("{signed}.")),
            ("half a signature", format!("{signed}.{}", &signature[..43])),
            ("a signature of zeros", format!("{signed}.{}", URL_SAFE_NO_PAD.encode([0; 64]))),
            ("another's payload", {
                let others = unsigned(self.algorithm(), &payload("mallory"));
                format!("{others}.{signature}")
            }),
            ("expired", with("exp", json!(now_s - 6))),
            ("missing exp", with("exp", Value::Null)),
            ("nbf ahead", with("nbf", json!(now_s + 60))),
            ("wrong aud", with("aud", json!("others"))),
            ("wrong iss", with("iss", json!("others"))),
            ("sub is no id", with("sub", json!("a b"))),
        ]
    }
}

fn unsigned(algorithm: &str, payload: &Value) -> String {
    let part = |json: &Value| URL_SAFE_NO_PAD.encode(json.to_string());
    format!("{}.{}", part(&json!({"alg": algorithm, "typ": "JWT"})), part(payload))
}

async fn users_come_in_by(issuer: Issuer, other: Issuer) {
    let (algorithm, key) = (issuer.algorithm(), issuer.public_key());
    let variables = [("USER_JWT_ALG", algorithm), ("USER_JWT_KEY", key.as_str())];
    let world = World::start(Runtime::asked(), &format!("edge-{algorithm}"), "test", &variables).await;
    world.core.create("signed", json!({"total": 5})).await;
    let claim = |token: String| {
        let request = world.request("POST", "/v1/campaigns/signed/claims");
        world.send(request.bearer_auth(token).json(&json!({})))
    };
    let granted = claim(issuer.token(&payload("alice"))).await.expect(201).json();
    assert_eq!(granted["claim"]["user_id"], "alice");
    let mut late = payload("bob");
    late["exp"] = json!(now_ms() / 1000 - 2);
    let _ = claim(issuer.token(&late)).await.expect(201);
    let hs256 = world.token("alice");
    for (what, token) in issuer.bad_tokens(&other).into_iter().chain([("HS256 of core's secret", hs256)]) {
        let refused = claim(token).await;
        assert_eq!((refused.status, refused.code().as_str()), (401, "unauthenticated"), "{what}");
        assert!(
            world.passed_on(&refused).iter().all(|said| said.starts_with("GET /internal/v1/campaigns/")),
            "{what} reached core"
        );
    }
    assert_eq!(world.core.campaign("signed").await["remaining"], 3);
}

#[test]
fn users_come_in_by_es256() {
    run(users_come_in_by(Issuer::es256(), Issuer::es256()));
}

#[test]
fn users_come_in_by_eddsa() {
    run(users_come_in_by(Issuer::eddsa(), Issuer::eddsa()));
}

// ------------------------------------------------------------------------------------------------------- the edge's key

const NEW_KEY: &str = "k2:bmV3IGtleSBmb3IgdGhlIGVkZ2UsIG5vdCBhbGwgdGhlIHNhbWU";

/// Has core read its keys again, and waits until it has.
async fn give_keys(world: &World, keys: &str, kids: &str) {
    let read = |world: &World| world.core.log().matches("credentials were read again").count();
    let before = read(world);
    fs::write(world.core.data_dir().join("edge.key"), keys).unwrap();
    signal_pid(world.core.pid(), Signal::HUP);
    eventually(SOON, || async { holds(read(world) > before, || world.core.log()) }).await;
    assert!(world.core.log().contains(kids), "{kids}");
}

#[test]
fn the_edges_key_is_changed_under_load_and_no_claim_is_refused() {
    run(async {
        let world = World::start(Runtime::asked(), "edge-rotation", "test", &[]).await;
        world.core.create("rotation", json!({"total": 1_000_000})).await;
        let old_key = world.core.data_file("edge.key");
        let core_url = format!("http://{}", world.proxy.listen);
        let user_jwt_key = world.core.data_file("user-jwt.key");
        let variables =
            [("CORE_URL", core_url.as_str()), ("EDGE_KEY", NEW_KEY), ("USER_JWT_KEY", user_jwt_key.as_str())];
        let new_edge = Edge::start(Runtime::asked(), "edge-rotation-new", "test", &variables).await;
        let (is_new, is_over, claims) = (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
        // A refused key is not core's own 503.
        let before = unavailable(&world.core).await;
        let (asked, undecided) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let claims_on = || async {
            while !is_over.load(Ordering::SeqCst) {
                let user = format!("u{}", asked.fetch_add(1, Ordering::SeqCst));
                let edge = if is_new.load(Ordering::SeqCst) { &new_edge } else { &world.edge };
                let request = world.claim_request_at(edge, "rotation", &user);
                let reply = world.send_once(request.header("Idempotency-Key", "k")).await;
                if is_granted(&reply) {
                    claims.fetch_add(1, Ordering::SeqCst);
                } else {
                    undecided.fetch_add(1, Ordering::SeqCst);
                }
            }
        };
        let more = async |count: usize| {
            let until = claims.load(Ordering::SeqCst) + count;
            eventually(SOON, || async {
                holds(claims.load(Ordering::SeqCst) >= until, || "no more claims".to_owned())
            })
            .await;
        };
        let rotation = async {
            more(50).await;
            give_keys(&world, &format!("{old_key},{NEW_KEY}"), r#"["k1", "k2"]"#).await;
            more(50).await;
            is_new.store(true, Ordering::SeqCst);
            // Until the last one of the old edge is through.
            more(50).await;
            give_keys(&world, NEW_KEY, r#"["k2"]"#).await;
            more(50).await;
            is_over.store(true, Ordering::SeqCst);
        };
        tokio::join!(join_all((0..4).map(|_| claims_on())), rotation);
        let (undecided, by_core) = (undecided.into_inner(), unavailable(&world.core).await - before);
        assert!(undecided <= by_core, "{undecided} are undecided, {by_core} by core");
        println!("{} claims while the key was changed, none refused", claims.into_inner());
        // The old key is worth nothing any more, and that is not the user's fault.
        let _ = world.claim_once("rotation", "late", "k").await.refused(503, "unavailable");
    });
}

#[test]
fn keys_that_are_wrong_change_nothing() {
    run(async {
        let world = World::start(Runtime::asked(), "edge-wrong-keys", "test", &[]).await;
        world.core.create("wrong-keys", json!({"total": 5})).await;
        fs::write(world.core.data_dir().join("edge.key"), "k1:short").unwrap();
        signal_pid(world.core.pid(), Signal::HUP);
        eventually(SOON, || async {
            holds(world.core.log().contains("credentials stay as they were"), || world.core.log())
        })
        .await;
        let _ = world.claim("wrong-keys", "alice", "k").await.expect(201);
        assert!(!world.core.log().contains("k1:short"));
    });
}
