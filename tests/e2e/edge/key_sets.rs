//! Users' tokens verified with the keys that their issuer publishes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use support::client::record_retry;
use support::clock::Clock;
use support::edge::{Runtime, World, payload};
use support::issuer::{Issuer, unsigned};
use support::wait::holds;
use support::{CoreOptions, Reply, SOON, eventually, promised};
use tokio::sync::RwLock;

use super::key_server::{Answer, DISCOVERY, JWKS, KeyServer};
use super::key_sources::{FETCH_MAX, NO_KEY_SET, bad_answers};
use super::run;

/// Moves the clock past the time in which an unknown key causes no fetch, past the refresh of a set, and past
/// the longest backoff.
const UNKNOWN_KEY_MS: i64 = 31_000;
const REFRESH_MS: i64 = 601_000;
const BACKOFF_MS_MAX: i64 = 31_000;

pub async fn world(name: &str, variables: &[(&str, &str)]) -> World {
    let variables = [&[("USER_JWT_KEY", "")], variables].concat();
    let world = World::start(Runtime::from_env(), name, "test", &variables).await;
    world.core.create("keys", json!({"total": 1_000})).await;
    world
}

pub async fn claim(world: &World, token: &str) -> Reply {
    let request = world.request("POST", "/v1/campaigns/keys/claims").json(&json!({}));
    world.send_once(request.bearer_auth(token)).await
}

/// Claims with a new key until the claim is decided: core or the edge may be slow. Returns a 503 that is
/// caused by the token's keys.
pub async fn claim_decided(world: &World, token: &str) -> Reply {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let key = format!("k{}", COUNT.fetch_add(1, SeqCst));
    let repeats = AtomicU32::new(0);
    eventually(SOON, || async {
        let request = world.request("POST", "/v1/campaigns/keys/claims").json(&json!({}));
        let reply = world.send_once(request.bearer_auth(token).header("Idempotency-Key", &key)).await;
        let text = reply.text();
        let is_of_keys = ["the issuer's keys", "the token's key"].iter().any(|keys| text.contains(keys));
        if reply.status == 503 && !is_of_keys {
            record_retry(&reply);
            repeats.fetch_add(1, SeqCst);
            return Err(text);
        }
        Ok(Reply { repeats: repeats.load(SeqCst), ..reply })
    })
    .await
}

pub async fn until_logged(world: &World, line: &str) {
    eventually(SOON, || async {
        let log = world.edge.log();
        holds(log.contains(line), || format!("no {line:?} in {log}"))
    })
    .await;
}

pub fn kid(kid: &str) -> Value {
    json!({"kid": kid})
}

#[test]
fn tokens_of_every_algorithm_are_verified_with_a_key_set() {
    run(async {
        let (p256, p384, ed25519, rsa) =
            (Issuer::p256(), Issuer::p384(), Issuer::ed25519(), Issuer::shared_rsa());
        let large = Issuer::rsa_of(4_096);
        let server = KeyServer::start(Answer::keys(&[
            p256.jwk(&kid("p256")),
            p384.jwk(&kid("p384")),
            ed25519.jwk(&kid("ed25519")),
            rsa.jwk(&kid("rsa")),
            rsa.jwk(&json!({"kid": "pss", "alg": "PS256"})),
            rsa.jwk(&json!({"kid": "rs384", "alg": "RS384"})),
            rsa.jwk(&json!({"kid": "rs512", "alg": "RS512"})),
            large.jwk(&kid("large")),
        ]));
        let world = world("edge-jwks", &[("USER_JWT_JWKS_URL", &server.url(JWKS))]).await;
        for (issuer, header) in [
            (&p256, kid("p256")),
            (&p384, kid("p384")),
            (&ed25519, kid("ed25519")),
            (rsa, kid("rsa")),
            (rsa, json!({"kid": "pss", "alg": "PS256"})),
            (rsa, json!({"kid": "rs384", "alg": "RS384"})),
            (rsa, json!({"kid": "rs512", "alg": "RS512"})),
            (&large, kid("large")),
            // Only one key fits.
            (&p256, json!({})),
        ] {
            let reply = claim_decided(&world, &issuer.token(&header, &payload("alice"))).await;
            assert!(reply.is_created(), "{header}: {}", reply.text());
        }
        assert_eq!(server.requests(JWKS), 1);
    });
}

#[test]
fn an_rsa_key_without_alg_verifies_the_listed_algorithms() {
    run(async {
        let rsa = Issuer::shared_rsa();
        let server = KeyServer::start(Answer::keys(&[rsa.jwk(&kid("rsa"))]));
        let variables = [("USER_JWT_JWKS_URL", &*server.url(JWKS)), ("USER_JWT_ALG", "RS256,PS256")];
        let world = world("edge-jwks-rsa-algorithms", &variables).await;
        let token = |algorithm: &str| rsa.token(&json!({"kid": "rsa", "alg": algorithm}), &payload("alice"));
        for algorithm in ["RS256", "PS256"] {
            let reply = claim_decided(&world, &token(algorithm)).await;
            assert!(reply.is_created(), "{algorithm}: {}", reply.text());
        }
        for algorithm in ["RS384", "RS512"] {
            let _ = claim(&world, &token(algorithm)).await.refused(401, "unauthenticated");
        }
        until_logged(&world, r#"token rejected: wrong algorithm: the token has "RS384""#).await;
    });
}

#[test]
fn the_key_set_is_found_by_discovery_or_set_inline() {
    run(async {
        let (issuer, key) = (Issuer::p256(), json!({"kid": "a", "use": "sig"}));
        let server = KeyServer::start(Answer::keys(&[issuer.jwk(&key)]));
        let url = server.url("");
        let world_of_url = world("edge-discovery", &[("USER_JWT_ISS", &url)]).await;
        let mut claims = payload("alice");
        claims["iss"] = json!(url);
        let _ = claim_decided(&world_of_url, &issuer.token(&kid("a"), &claims)).await.expect(201);
        assert_eq!((server.requests(DISCOVERY), server.requests(JWKS)), (1, 1));

        let set = json!({"keys": [issuer.jwk(&key)]}).to_string();
        let inline = world("edge-inline", &[("USER_JWT_JWKS", &set)]).await;
        let _ = claim_decided(&inline, &issuer.token(&kid("a"), &payload("alice"))).await.expect(201);
        let unknown = claim(&inline, &issuer.token(&kid("b"), &payload("alice"))).await;
        let _ = unknown.refused(401, "unauthenticated");
        until_logged(&inline, r#"token rejected: unknown key: the token has "b""#).await;
    });
}

/// Returns a world whose core and edge have the clock of `environment`. `variables` set the keys.
pub async fn world_on_clock(
    environment: &[(&'static str, PathBuf)],
    name: &str,
    variables: &[(&str, &str)],
) -> World {
    let core = CoreOptions::default().with_all(environment).start().await;
    let mut variables = [&[("USER_JWT_KEY", "")], variables].concat();
    variables.extend(environment.iter().map(|(name, value)| (*name, value.to_str().unwrap())));
    // Only workerd itself takes the clock; wrangler's variables are the Worker's.
    let world = World::before(core, Runtime::Workerd, name, "test", &variables).await;
    world.core.create("keys", json!({"total": 100_000})).await;
    world
}

/// Returns a world whose core and edge share a clock that the test moves. `variables` set the keys.
pub async fn clocked_world(name: &str, variables: &[(&str, &str)]) -> (World, Clock) {
    let clock = Clock::new();
    let world = world_on_clock(&clock.environment(), name, variables).await;
    (world, clock)
}

/// A payload that is valid for the whole test, however far the clock is moved.
pub fn lasting(user: &str) -> Value {
    let mut claims = payload(user);
    claims["exp"] = json!(4_000_000_000_u64);
    claims
}

#[test]
fn a_token_with_wrong_claims_causes_no_fetch() {
    run(async {
        let (old, new) = (Issuer::p256(), Issuer::ed25519());
        let server = KeyServer::start(Answer::keys(&[old.jwk(&kid("old"))]));
        let (world, clock) =
            clocked_world("edge-key-claims", &[("USER_JWT_JWKS_URL", &server.url(JWKS))]).await;
        let by_new = new.token(&kid("new"), &lasting("alice"));
        let _ = claim_decided(&world, &old.token(&kid("old"), &lasting("alice"))).await.expect(201);
        server.answer(JWKS, Answer::keys(&[old.jwk(&kid("old")), new.jwk(&kid("new"))]));
        // The set is recent, so the key does not exist.
        let _ = claim(&world, &by_new).await.refused(401, "unauthenticated");
        clock.move_by_ms(UNKNOWN_KEY_MS);
        for (name, value) in [("iss", json!("other")), ("aud", json!("other")), ("exp", json!(1))] {
            let mut claims = lasting("alice");
            claims[name] = value;
            let _ = claim(&world, &new.token(&kid("new"), &claims)).await.refused(401, "unauthenticated");
        }
        assert_eq!(server.requests(JWKS), 1);
        let _ = claim_decided(&world, &by_new).await.expect(201);
        assert_eq!(server.requests(JWKS), 2);
    });
}

/// Callers of a world whose clock moves only between their calls.
struct Crowd<'a> {
    world: &'a World,
    issuers: Vec<Issuer>,
    /// The index of the issuer that signs now.
    signs: AtomicUsize,
    is_over: AtomicBool,
    /// Number of granted claims, and of rejected tokens with invented key ids.
    granted: AtomicUsize,
    rejected: AtomicUsize,
    between_calls: RwLock<()>,
}

impl Crowd<'_> {
    fn token(&self, of: usize) -> String {
        self.issuers[of].token(&kid(&format!("key-{of}")), &lasting("alice"))
    }

    fn keys(&self, of: &[usize]) -> Answer {
        let keys: Vec<_> = of.iter().map(|of| self.issuers[*of].jwk(&kid(&format!("key-{of}")))).collect();
        Answer::Slow(Duration::from_millis(200), Box::new(Answer::keys(&keys)))
    }

    /// Sends claims with valid tokens until the end. Every third token has an invented key id.
    async fn claim_until_over(&self, caller: usize) {
        for call in 0.. {
            if self.is_over.load(SeqCst) {
                return;
            }
            let _call = self.between_calls.read().await;
            if call % 3 == caller % 3 {
                let header = json!({"alg": "ES256", "kid": format!("invented-{caller}-{call}")});
                let token = format!("{}.AAAA", unsigned(&header, &lasting("eve")));
                let _ = claim(self.world, &token).await.refused(401, "unauthenticated");
                self.rejected.fetch_add(1, SeqCst);
            } else {
                let of = self.signs.load(SeqCst);
                let reply = claim_decided(self.world, &self.token(of)).await;
                assert!(reply.is_created(), "key {of}: {}", reply.text());
                self.granted.fetch_add(1, SeqCst);
            }
        }
    }

    /// Waits for this many more granted and rejected calls.
    async fn more(&self, count: usize) {
        let calls = || [self.granted.load(SeqCst), self.rejected.load(SeqCst)];
        let before = calls();
        eventually(SOON, || async {
            let now = calls();
            holds(now[0] >= before[0] + count && now[1] >= before[1] + count / 2, || format!("{now:?}"))
        })
        .await;
    }
}

#[test]
fn keys_rotated_under_load_cause_no_wrong_rejection() {
    run(async {
        let issuers = vec![Issuer::p256(), Issuer::ed25519(), Issuer::p384(), Issuer::p256()];
        let server = KeyServer::start(Answer::Closed);
        let (world, clock) =
            clocked_world("edge-key-rotation", &[("USER_JWT_JWKS_URL", &server.url(JWKS))]).await;
        let (signs, is_over, granted, rejected, between_calls) = Default::default();
        let crowd = Crowd { world: &world, issuers, signs, is_over, granted, rejected, between_calls };
        server.answer(JWKS, crowd.keys(&[0]));
        let rotations = crowd.issuers.len() - 1;
        let began = Instant::now();
        let rotation = async {
            let mut at_ms = 0;
            let mut forward = async |ms: i64| {
                let _none = crowd.between_calls.write().await;
                at_ms += ms;
                clock.move_by_ms(at_ms);
            };
            crowd.more(60).await;
            for new in 1..=rotations {
                let old = crowd.token(new - 1);
                server.answer(JWKS, crowd.keys(&[new - 1, new]));
                forward(UNKNOWN_KEY_MS).await;
                crowd.signs.store(new, SeqCst);
                crowd.more(60).await;
                assert!(claim_decided(&world, &old).await.is_created(), "the old key is still published");
                // Withdrawn, it works until the set is refreshed.
                server.answer(JWKS, crowd.keys(&[new]));
                assert!(claim_decided(&world, &old).await.is_created(), "the set is not due");
                forward(REFRESH_MS).await;
                crowd.more(60).await;
                eventually(SOON, || async {
                    let reply = claim(&world, &old).await;
                    holds(reply.status == 401, || format!("withdrawn key {}: {}", new - 1, reply.text()))
                })
                .await;
            }
            crowd.is_over.store(true, SeqCst);
        };
        tokio::join!(join_all((0..12).map(|caller| crowd.claim_until_over(caller))), rotation);
        // The first fetch; for each rotation, one for the new key and one refresh. Invented keys add none, except that
        // they may cause one in 30 s of the test's own time.
        let expected = 1 + 2 * rotations;
        let added = usize::try_from(began.elapsed().as_secs() / 30).unwrap();
        let fetches = server.requests(JWKS);
        assert!((expected..=expected + added).contains(&fetches), "{fetches} fetches, expected {expected}");
        let (granted, rejected) = (crowd.granted.into_inner(), crowd.rejected.into_inner());
        println!(
            "{granted} claims and {rejected} invented keys during {rotations} rotations: {fetches} fetches"
        );
    });
}

/// No other token causes a fetch: only the refresh withdraws the key.
#[test]
fn a_withdrawn_key_is_rejected_after_the_refresh() {
    run(async {
        let (old, new) = (Issuer::p256(), Issuer::ed25519());
        let server = KeyServer::start(Answer::keys(&[old.jwk(&kid("old")), new.jwk(&kid("new"))]));
        let (world, clock) =
            clocked_world("edge-key-withdrawn", &[("USER_JWT_JWKS_URL", &server.url(JWKS))]).await;
        let by_old = old.token(&kid("old"), &lasting("alice"));
        let _ = claim_decided(&world, &by_old).await.expect(201);
        server.answer(JWKS, Answer::keys(&[new.jwk(&kid("new"))]));
        clock.move_by_ms(REFRESH_MS - 60_000);
        let _ = claim_decided(&world, &by_old).await.expect(201);
        assert_eq!(server.requests(JWKS), 1, "the set is not due");
        clock.move_by_ms(REFRESH_MS);
        eventually(SOON, || async {
            let reply = claim(&world, &by_old).await;
            holds(reply.status == 401, || reply.text())
        })
        .await;
        let _ = claim_decided(&world, &new.token(&kid("new"), &lasting("alice"))).await.expect(201);
        assert_eq!(server.requests(JWKS), 2);
    });
}

#[test]
fn known_keys_survive_every_bad_answer_of_their_source() {
    run(async {
        let issuer = Issuer::p256();
        let good = Answer::keys(&[issuer.jwk(&kid("a"))]);
        let server = KeyServer::start(good.clone());
        let (world, clock) =
            clocked_world("edge-keys-bad", &[("USER_JWT_JWKS_URL", &server.url(JWKS))]).await;
        let known = issuer.token(&kid("a"), &lasting("alice"));
        let unknown = issuer.token(&kid("b"), &lasting("alice"));
        let _ = claim_decided(&world, &known).await.expect(201);
        let mut at_ms = 0;
        let set = json!({"keys": [issuer.jwk(&kid("a"))]});
        for (name, answer, line) in bad_answers(&server, &set, NO_KEY_SET) {
            server.answer(JWKS, answer);
            at_ms += REFRESH_MS;
            clock.move_by_ms(at_ms);
            let _ = claim_decided(&world, &known).await.expect(201);
            let began = Instant::now();
            let refused = claim(&world, &unknown).await;
            assert_eq!((refused.status, refused.code().as_str()), (503, "unavailable"), "{name}");
            assert!(began.elapsed() < promised(FETCH_MAX), "{name}: {:?}", began.elapsed());
            until_logged(&world, line).await;
            let _ = claim_decided(&world, &known).await.expect(201);
            server.answer(JWKS, good.clone());
            // Past the backoff: the next fetch succeeds, and the key does not exist.
            at_ms += BACKOFF_MS_MAX;
            clock.move_by_ms(at_ms);
            let _ = claim(&world, &unknown).await.refused(401, "unauthenticated");
            let _ = claim_decided(&world, &known).await.expect(201);
        }
        assert_eq!(server.requests("/moved"), 0, "no redirect was followed");
    });
}

#[test]
fn known_keys_work_for_a_day_without_their_source() {
    run(async {
        let issuer = Issuer::p256();
        let server = KeyServer::start(Answer::keys(&[issuer.jwk(&kid("a"))]));
        let (world, clock) =
            clocked_world("edge-keys-away", &[("USER_JWT_JWKS_URL", &server.url(JWKS))]).await;
        let known = issuer.token(&kid("a"), &lasting("alice"));
        let unknown = issuer.token(&kid("b"), &lasting("alice"));
        let _ = claim_decided(&world, &known).await.expect(201);
        server.answer(JWKS, Answer::Closed);
        for hours in [1, 12, 23] {
            clock.move_by_ms(hours * 3_600_000);
            let _ = claim_decided(&world, &known).await.expect(201);
            let _ = claim(&world, &unknown).await.refused(503, "unavailable");
        }
        clock.move_by_ms(24 * 3_600_000 + 1_000);
        let _ = claim(&world, &known).await.refused(503, "unavailable");
    });
}
