//! Keys: users' public keys, and rotation of the edge's key under load.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use futures_util::future::join_all;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use support::edge::{Edge, Runtime, World, payload};
use support::issuer::{Issuer, unsigned};
use support::process::{Signal, signal_pid};
use support::times::now_ms;
use support::wait::holds;
use support::{SOON, eventually};

use super::several_cores::{is_granted, unavailable};
use super::{claims_sent_to_core, run};

// ------------------------------------------------------------------------------------------------- users' public keys

/// Returns well-formed tokens that must be rejected.
fn bad_tokens(issuer: &Issuer, other: &Issuer) -> Vec<(&'static str, String)> {
    let (good, now_s) = (payload("alice"), now_ms() / 1000);
    let with = |name: &str, value: Value| {
        let mut changed = good.clone();
        changed[name] = value;
        issuer.token(&json!({}), &changed)
    };
    let token = issuer.token(&json!({}), &good);
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let confused = unsigned(&json!({"alg": "HS256"}), &good);
    let by_secret = |secret: &[u8]| {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret).unwrap();
        mac.update(confused.as_bytes());
        format!("{confused}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
    };
    let none = unsigned(&json!({"alg": "none"}), &good);
    vec![
        ("HS256 with the public key's text", by_secret(issuer.pem_body().as_bytes())),
        ("HS256 with the public key's bytes", by_secret(&STANDARD.decode(issuer.pem_body()).unwrap())),
        ("alg none", format!("{none}.")),
        ("alg none, signed", format!("{none}.{}", URL_SAFE_NO_PAD.encode(issuer.sign("", &none)))),
        ("a different issuer's key", other.token(&json!({}), &good)),
        ("the other algorithm's name", {
            let name = if issuer.algorithm() == "ES256" { "EdDSA" } else { "ES256" };
            let signed = unsigned(&json!({"alg": name}), &good);
            format!("{signed}.{}", URL_SAFE_NO_PAD.encode(issuer.sign("", &signed)))
        }),
        ("no signature", format!("{signed}.")),
        ("half a signature", format!("{signed}.{}", &signature[..43])),
        ("a signature of zeros", format!("{signed}.{}", URL_SAFE_NO_PAD.encode([0; 64]))),
        ("a different token's payload", {
            let others = unsigned(&json!({"alg": issuer.algorithm()}), &payload("mallory"));
            format!("{others}.{signature}")
        }),
        ("expired", with("exp", json!(now_s - 6))),
        ("missing exp", with("exp", Value::Null)),
        ("nbf ahead", with("nbf", json!(now_s + 60))),
        ("wrong aud", with("aud", json!("others"))),
        ("wrong iss", with("iss", json!("others"))),
        ("sub is an invalid id", with("sub", json!("a b"))),
    ]
}

async fn users_are_authenticated_by(issuer: Issuer, other: Issuer) {
    let (algorithm, key) = (issuer.algorithm(), issuer.pem_body());
    let variables = [("USER_JWT_ALG", algorithm), ("USER_JWT_KEY", key.as_str())];
    let world = World::start(Runtime::from_env(), &format!("edge-{algorithm}"), "test", &variables).await;
    world.core.create("signed", json!({"total": 5})).await;
    let claim = |token: String| {
        let request = world.request("POST", "/v1/campaigns/signed/claims").header("Idempotency-Key", "k");
        world.send(request.bearer_auth(token).json(&json!({})))
    };
    let granted = claim(issuer.token(&json!({}), &payload("alice"))).await.expect(201).json();
    assert_eq!(granted["claim"]["user_id"], "alice");
    let hs256 = world.token("alice");
    for (what, token) in bad_tokens(&issuer, &other).into_iter().chain([("HS256 of core's secret", hs256)]) {
        let refused = claim(token).await;
        assert_eq!((refused.status, refused.code().as_str()), (401, "unauthenticated"), "{what}");
        assert!(
            world
                .forwarded(&refused)
                .iter()
                .all(|forwarded| forwarded.starts_with("GET /internal/v1/campaigns/")),
            "{what} reached core"
        );
    }
    assert_eq!(world.core.campaign("signed").await["remaining"], 4);
}

#[test]
fn users_are_authenticated_by_es256() {
    run(users_are_authenticated_by(Issuer::p256(), Issuer::p256()));
}

#[test]
fn users_are_authenticated_by_eddsa() {
    run(users_are_authenticated_by(Issuer::ed25519(), Issuer::ed25519()));
}

#[test]
fn users_are_authenticated_by_es384() {
    run(users_are_authenticated_by(Issuer::p384(), Issuer::p384()));
}

#[test]
fn users_are_authenticated_by_rs256() {
    run(users_are_authenticated_by(Issuer::rsa(), Issuer::rsa()));
}

// ------------------------------------------------------------------------------------------------------- the edge's key

/// The edge waits 2 s for core; a claim that took as long has no response of core.
const EDGE_WAITS: Duration = Duration::from_millis(1_900);
const NEW_KEY: &str = "k2:bmV3IGtleSBmb3IgdGhlIGVkZ2UsIG5vdCBhbGwgdGhlIHNhbWU";

/// Makes core reload its keys, and waits until it has.
async fn reload_keys(world: &World, keys: &str, kids: &str) {
    let read = |world: &World| world.core.log().matches("credentials were reloaded").count();
    let before = read(world);
    fs::write(world.core.data_dir().join("edge.key"), keys).unwrap();
    signal_pid(world.core.pid(), Signal::HUP);
    eventually(SOON, || async { holds(read(world) > before, || world.core.log()) }).await;
    assert!(world.core.log().contains(kids), "{kids}");
}

#[test]
fn claims_continue_while_the_edge_key_is_rotated() {
    run(async {
        let world = World::start(Runtime::from_env(), "edge-rotation", "test", &[]).await;
        world.core.create("rotation", json!({"total": 1_000_000})).await;
        let old_key = world.core.data_file("edge.key");
        let core_url = format!("http://{}", world.proxy.listen);
        let user_jwt_key = world.core.data_file("user-jwt.key");
        let variables =
            [("CORE_URL", core_url.as_str()), ("EDGE_KEY", NEW_KEY), ("USER_JWT_KEY", user_jwt_key.as_str())];
        let new_edge = Edge::start(Runtime::from_env(), "edge-rotation-new", "test", &variables).await;
        let (is_new, is_over, claims) = (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
        // Claims that core itself answered with 503 were not rejected because of the key. Neither were those
        // that an open circuit breaker kept from core.
        let before = unavailable(&world.core).await;
        let (sent, undecided) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let keep_claiming = || async {
            while !is_over.load(Ordering::SeqCst) {
                let user = format!("u{}", sent.fetch_add(1, Ordering::SeqCst));
                let edge = if is_new.load(Ordering::SeqCst) { &new_edge } else { &world.edge };
                let request = world.claim_request_at(edge, "rotation", &user);
                let sent = Instant::now();
                let reply = world.send_once(request.header("Idempotency-Key", "k")).await;
                if is_granted(&reply) {
                    claims.fetch_add(1, Ordering::SeqCst);
                } else if sent.elapsed() < EDGE_WAITS && !claims_sent_to_core(&world, &reply).is_empty() {
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
            reload_keys(&world, &format!("{old_key},{NEW_KEY}"), r#"["k1", "k2"]"#).await;
            more(50).await;
            is_new.store(true, Ordering::SeqCst);
            // Wait until the last claim of the old edge has been answered.
            more(50).await;
            reload_keys(&world, NEW_KEY, r#"["k2"]"#).await;
            more(50).await;
            is_over.store(true, Ordering::SeqCst);
        };
        tokio::join!(join_all((0..4).map(|_| keep_claiming())), rotation);
        let (undecided, by_core) = (undecided.into_inner(), unavailable(&world.core).await - before);
        assert!(
            undecided <= by_core,
            "{undecided} claims are undecided, but core answered only {by_core} with 503"
        );
        println!("{} claims during the rotation, none rejected", claims.into_inner());
        // The old key is no longer valid. The user gets a 503, as this is not the user's fault.
        let _ = world.claim_once("rotation", "late", "k").await.refused(503, "unavailable");
    });
}

#[test]
fn an_invalid_key_file_changes_nothing() {
    run(async {
        let world = World::start(Runtime::from_env(), "edge-wrong-keys", "test", &[]).await;
        world.core.create("wrong-keys", json!({"total": 5})).await;
        fs::write(world.core.data_dir().join("edge.key"), "k1:short").unwrap();
        signal_pid(world.core.pid(), Signal::HUP);
        world.core.until_logged(SOON, &["credentials were not reloaded"]).await;
        let _ = world.claim("wrong-keys", "alice", "k").await.expect(201);
        assert!(!world.core.log().contains("k1:short"));
    });
}
