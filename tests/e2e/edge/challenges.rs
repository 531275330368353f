//! Passes for solved challenges: ALTCHA's proof of work with ALTCHA's own library, and Turnstile against a stand-in.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use claimgate_shared::challenge::Challenge;
use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use sha2::Sha256;
use support::edge::{Runtime, World};
use support::times::{from_now, ms, now_ms};
use support::turnstile::{self, Fault, Turnstile};
use support::{Reply, promised};

use super::key_sets::until_logged;
use super::rates::until_refused;
use super::run;

/// The edge's key.
pub const SIGNING_KEY: &str = "edge:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA";
/// Default of the edge's `PASS_SECONDS`.
const PASS_SECONDS: i64 = 3_600;

/// Starts a world whose edge issues passes for proofs of work that a test solves immediately.
pub async fn altcha_world(name: &str, environment: &str) -> World {
    let variables = [("CHALLENGE", "altcha"), ("PASS_SIGNING_KEY", SIGNING_KEY), ("ALTCHA_ATTEMPTS", "8")];
    World::start(Runtime::from_env(), name, environment, &variables).await
}

async fn turnstile_world(name: &str, service: &Turnstile, on_failure: &str) -> World {
    let mut variables = service.variables();
    variables.extend([
        ("PASS_SIGNING_KEY", SIGNING_KEY.to_owned()),
        ("CHALLENGE_ON_FAILURE", on_failure.to_owned()),
    ]);
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    World::start(Runtime::from_env(), name, "test", &variables).await
}

/// Creates a campaign whose claims always need a pass.
pub async fn create_with_pass(world: &World, campaign: &str) {
    let rules = json!({"id": campaign, "name": campaign, "starts_at": from_now(-60), "limits": {"total": 10},
        "pass": {"required": "always"}});
    world.core.create_with(rules).await;
}

/// Returns `exp` of a pass.
fn expiry_s(pass: &str) -> i64 {
    let payload = URL_SAFE_NO_PAD.decode(pass.split('.').nth(1).unwrap()).unwrap();
    serde_json::from_slice::<Value>(&payload).unwrap()["exp"].as_i64().unwrap()
}

fn challenge_request(world: &World, campaign: &str, user: &str) -> RequestBuilder {
    world.request("GET", &format!("/v1/campaigns/{campaign}/challenge")).bearer_auth(world.token(user))
}

fn pass_request(world: &World, campaign: &str, user: &str, solved: &Value) -> RequestBuilder {
    let request = world.request("POST", &format!("/v1/campaigns/{campaign}/pass"));
    request.bearer_auth(world.token(user)).json(solved)
}

/// Returns a proof of work for the user, solved by ALTCHA's own library.
async fn solved(world: &World, campaign: &str, user: &str) -> Value {
    let issued = world.send(challenge_request(world, campaign, user)).await.expect(200).json();
    assert!(serde_json::from_value::<Challenge>(issued.clone()).is_ok(), "not as documented: {issued}");
    solve(&issued["altcha"])
}

fn solve(challenge: &Value) -> Value {
    let parsed: altcha::Challenge = serde_json::from_value(challenge.clone()).expect("ALTCHA's form");
    let solution = altcha::solve_challenge(altcha::SolveChallengeOptions::new(&parsed)).unwrap();
    json!({"challenge": challenge, "solution": solution.expect("a solution")})
}

/// Returns the body with this challenge and solution.
fn body(payload: &Value) -> Value {
    json!({"altcha": STANDARD.encode(payload.to_string())})
}

async fn send(world: &World, campaign: &str, user: &str, solved: &Value) -> Reply {
    world.send(pass_request(world, campaign, user, solved)).await
}

async fn claim_with(world: &World, campaign: &str, user: &str, pass: &str) -> Reply {
    world.send(world.first_try_request(campaign, user, "k").header("Claimgate-Pass", pass)).await
}

#[test]
fn a_solved_challenge_gives_a_pass_for_its_user_and_campaign() {
    run(async {
        let world = altcha_world("edge-altcha", "test").await;
        for campaign in ["altcha", "altcha-2"] {
            create_with_pass(&world, campaign).await;
        }
        let _ = world.first_try("altcha", "alice", "k").await.refused(403, "pass_required");
        let solved = body(&solved(&world, "altcha", "alice").await);
        let before_s = now_ms() / 1_000;
        let given = send(&world, "altcha", "alice", &solved).await.expect(200);
        let issued_s = before_s..=now_ms() / 1_000;
        assert_eq!(given.header("cache-control"), "no-store");
        let pass = given.json()["pass"].as_str().unwrap().to_owned();
        let expires_ms = ms(given.json()["expires_at"].as_str().unwrap());
        assert_eq!(expires_ms, expiry_s(&pass) * 1_000, "the answer and the pass agree");
        assert!(issued_s.contains(&(expires_ms / 1_000 - PASS_SECONDS)), "{expires_ms}, issued {issued_s:?}");
        let _ = claim_with(&world, "altcha", "bob", &pass).await.refused(403, "pass_required");
        let _ = claim_with(&world, "altcha-2", "alice", &pass).await.refused(403, "pass_required");
        let _ = claim_with(&world, "altcha", "alice", &pass).await.expect(201);

        // A replay renews the same user's pass.
        let again = send(&world, "altcha", "alice", &solved).await.expect(200).json();
        assert!(again["expires_at"].as_str() >= given.json()["expires_at"].as_str(), "{again}");
        let _ = claim_with(&world, "altcha", "alice", again["pass"].as_str().unwrap()).await.expect(200);
    });
}

#[test]
fn a_wrong_or_foreign_solution_gets_an_error() {
    run(async {
        let world = altcha_world("edge-altcha-wrong", "test").await;
        for campaign in ["altcha", "altcha-2"] {
            create_with_pass(&world, campaign).await;
        }
        let right = solved(&world, "altcha", "alice").await;
        let changed = |path: &str, value: Value| {
            let mut solved = right.clone();
            *solved.pointer_mut(path).unwrap() = value;
            solved
        };
        let parameters = "/challenge/parameters";
        let work = |path: &str, value: Value| changed(&format!("{parameters}/{path}"), value);
        let valid = &right["challenge"]["parameters"]["expiresAt"];
        assert_eq!(signed(&right, SIGNING_KEY, valid), right, "the test signs like the edge");
        let expired = signed(&right, SIGNING_KEY, &json!(1_700_000_000));
        let foreign = signed(&right, "edge:BQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA", valid);
        let failed = "challenge_failed";
        for (what, payload, campaign, user, code) in [
            ("another user", right.clone(), "altcha", "bob", failed),
            ("another campaign", right.clone(), "altcha-2", "alice", failed),
            ("expired", expired, "altcha", "alice", failed),
            ("another edge", foreign, "altcha", "alice", failed),
            ("less work", work("cost", json!(1)), "altcha", "alice", failed),
            ("later", work("expiresAt", json!(4_000_000_000_i64)), "altcha", "alice", failed),
            ("its user", work("data/user", json!("bob")), "altcha", "bob", failed),
            (
                "another key",
                changed("/solution/derivedKey", json!("00".repeat(32))),
                "altcha",
                "alice",
                failed,
            ),
            ("no key", changed("/solution/derivedKey", json!("")), "altcha", "alice", failed),
            ("no challenge", changed("/challenge", Value::Null), "altcha", "alice", failed),
            ("no campaign", right.clone(), "a.b", "alice", "campaign_not_found"),
        ] {
            let reply = send(&world, campaign, user, &body(&payload)).await;
            assert_eq!(reply.code(), code, "{what}: {}", reply.text());
        }
        let both = json!({"altcha": body(&right)["altcha"], "turnstile": "token"});
        for solved in [json!({}), json!({"turnstile": "token"}), json!({"altcha": right}), both] {
            let _ = send(&world, "altcha", "alice", &solved).await.refused(400, "invalid_request");
        }
        let _ = send(&world, "altcha", "alice", &body(&right)).await.expect(200);
        for request in [
            world.request("GET", "/v1/campaigns/altcha/challenge"),
            world.request("POST", "/v1/campaigns/altcha/pass").json(&body(&right)),
        ] {
            let _ = world.send(request).await.refused(401, "unauthenticated");
        }
    });
}

/// Returns the same work with this expiry, signed with `key` as the edge signs.
fn signed(solved: &Value, key: &str, expires_at: &Value) -> Value {
    let mac = |key: &[u8], text: &[u8]| {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        mac.update(text);
        mac.finalize().into_bytes()
    };
    let digit = |value: u8| char::from_digit(value.into(), 16).unwrap();
    let hex =
        |bytes: &[u8]| bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(digit).collect::<String>();
    let key = URL_SAFE_NO_PAD.decode(key.split_once(':').unwrap().1).unwrap();
    let secret = |purpose: &str| URL_SAFE_NO_PAD.encode(mac(&key, purpose.as_bytes())).into_bytes();
    let key_to_find: Vec<_> = {
        let text = solved["solution"]["derivedKey"].as_str().unwrap();
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    };
    let mut parameters = solved["challenge"]["parameters"].clone();
    parameters["expiresAt"] = expires_at.clone();
    parameters["keySignature"] = json!(hex(&mac(&secret("altcha solution"), &key_to_find)));
    let signature = hex(&mac(&secret("altcha challenge"), parameters.to_string().as_bytes()));
    json!({"challenge": {"parameters": parameters, "signature": signature}, "solution": solved["solution"]})
}

/// Gets challenges for a user until one is rate limited.
pub async fn get_challenges_until_refused(world: &World, campaign: &str) -> (usize, Reply) {
    let get = |n: usize| {
        let request = challenge_request(world, campaign, "hasty");
        world.send(request.header("CF-Connecting-IP", format!("10.0.{}.{}", n / 256, n % 256)))
    };
    until_refused(get).await
}

#[test]
fn challenges_are_rate_limited_by_user() {
    run(async {
        let world = altcha_world("edge-altcha-rates", "production").await;
        create_with_pass(&world, "altcha").await;
        let (count, refused) = get_challenges_until_refused(&world, "altcha").await;
        assert!(count >= 20, "only {count} were accepted");
        let _ = refused.refused(429, "rate_limited");
    });
}

#[test]
fn an_edge_without_challenges_issues_no_passes() {
    run(async {
        let world = super::open_world().await;
        world.core.create("no-challenge", json!({"total": 1})).await;
        let _ = world.send(challenge_request(world, "no-challenge", "alice")).await.refused(404, "not_found");
        let solved = json!({"turnstile": "token"});
        let _ = send(world, "no-challenge", "alice", &solved).await.refused(404, "not_found");
    });
}

#[test]
fn turnstile_decides_about_a_token() {
    run(async {
        let service = Turnstile::start();
        let world = turnstile_world("edge-turnstile", &service, "closed").await;
        create_with_pass(&world, "turnstile").await;
        let widget = world.send(challenge_request(&world, "turnstile", "alice")).await.expect(200).json();
        let script = format!("{}/api.js?render=explicit", service.url());
        let expected = json!({"site_key": turnstile::SITE_KEY, "action": "claimgate", "script": script});
        assert_eq!(widget, json!({"turnstile": expected}));

        let token = |hostname: &str, action: &str| turnstile::token(hostname, action, "1");
        for (token, code, log) in [
            (token("evil.example", "claimgate"), "challenge_failed", r#"solved on "evil.example""#),
            (token("127.0.0.1", "login"), "challenge_failed", ""),
            ("expired|127.0.0.1|claimgate|1".to_owned(), "challenge_failed", ""),
            ("made up".to_owned(), "challenge_failed", ""),
            (String::new(), "invalid_request", ""),
            ("x".repeat(2_049), "invalid_request", ""),
        ] {
            let reply = send(&world, "turnstile", "alice", &json!({"turnstile": token})).await;
            assert_eq!(reply.code(), code, "{token}: {}", reply.text());
            until_logged(&world, log).await;
        }
        let right = json!({"turnstile": token("127.0.0.1", "claimgate")});
        let request =
            pass_request(&world, "turnstile", "alice", &right).header("CF-Connecting-IP", "192.0.2.7");
        let given = world.send_once(request).await.expect(200).json();
        let _ = claim_with(&world, "turnstile", "alice", given["pass"].as_str().unwrap()).await.expect(201);
        let again = send(&world, "turnstile", "alice", &right).await.refused(403, "challenge_failed");
        assert!(!again.text().contains("timeout-or-duplicate"), "only the log has the service's words");
        let asked =
            json!({"secret": turnstile::SECRET, "response": right["turnstile"], "remoteip": "192.0.2.7"});
        assert!(service.questions().contains(&asked), "{:?}", service.questions());
        assert!(!world.edge.log().contains(turnstile::SECRET), "the secret is in the log");
    });
}

/// Each failure with the result if it counts against the user, and if it does not.
fn failures(service: &Turnstile) -> Vec<(&'static str, Fault, &'static str, &'static str)> {
    let answer = |status, body: &str| Fault::Answer(status, String::new(), body.to_owned());
    let elsewhere = format!("Location: {}/elsewhere\r\n", service.url());
    let success = r#"{"success":true,"hostname":"127.0.0.1","action":"claimgate"}"#;
    let refused = r#"{"success":false,"error-codes":["internal-error"]}"#;
    vec![
        ("no answer within 2 s", Fault::Silence, "unavailable", ""),
        ("a closed connection", Fault::Closed, "unavailable", ""),
        ("half an answer", Fault::Cut, "unavailable", ""),
        ("status 500", answer(500, success), "unavailable", ""),
        ("status 503", answer(503, ""), "unavailable", ""),
        ("success: false", answer(200, refused), "challenge_failed", "challenge_failed"),
        ("a redirect", Fault::Answer(302, elsewhere, String::new()), "unavailable", "unavailable"),
        ("garbage", answer(200, "<html>"), "unavailable", "unavailable"),
        ("nothing", answer(200, ""), "unavailable", "unavailable"),
        ("status 429", answer(429, ""), "unavailable", "unavailable"),
        ("success with status 400", answer(400, success), "unavailable", "unavailable"),
    ]
}

#[test]
fn an_outage_of_turnstile_gives_passes_only_if_configured() {
    run(async {
        let service = Turnstile::start();
        let closed = turnstile_world("edge-turnstile-closed", &service, "closed").await;
        let open = turnstile_world("edge-turnstile-open", &service, "open").await;
        for (what, fault, if_closed, if_open) in failures(&service) {
            service.fail(Some(fault));
            for (world, code) in [(&closed, if_closed), (&open, if_open)] {
                let solved = json!({"turnstile": turnstile::token("127.0.0.1", "claimgate", what)});
                let started = Instant::now();
                let reply = world.send_once(pass_request(world, "any", "alice", &solved)).await;
                let expected =
                    if code.is_empty() { 200 } else { 403 + 100 * u16::from(code == "unavailable") };
                let code = if code.is_empty() { None } else { Some(code) };
                assert_eq!(reply.json()["code"].as_str(), code, "{what}: {}", reply.text());
                assert_eq!(reply.status, expected, "{what}: {}", reply.text());
                // The limit is 2 s.
                assert!(
                    started.elapsed() < promised(Duration::from_secs(5)),
                    "{what}: {:?}",
                    started.elapsed()
                );
            }
        }
        until_logged(&closed, "Turnstile token not checked, the user gets no pass").await;
        until_logged(&open, "Turnstile token not checked, the user gets a pass").await;
        service.fail(None);
        let solved = json!({"turnstile": turnstile::token("127.0.0.1", "claimgate", "after")});
        let _ = send(&closed, "any", "alice", &solved).await.expect(200);
    });
}
