//! Rejected user tokens: the caller learns which rule the token breaks, and the log names each reason at a
//! bounded rate.

use std::time::Instant;

use futures_util::future::join_all;
use serde_json::{Value, json};
use support::clock::FrozenClock;
use support::edge::{Runtime, World, payload, signed};
use support::issuer::Issuer;
use support::times::now_ms;
use support::wait::holds;
use support::{Reply, SOON, eventually};

use super::key_sets::{claim_decided, world_on_clock};
use super::run;
use super::wrong_passes::USER_SECRET;

/// At most one line is logged per reason in this period.
const LOG_PERIOD_S: u64 = 10;

pub const SUBJECT: &str = "the user's id must be 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'";
pub const MEMBERS: &str = "iss, aud, sub or exp is missing or has the wrong type";

fn header() -> Value {
    json!({"alg": "HS256", "typ": "JWT"})
}

/// Returns a correctly signed token whose member `name` is `value`.
fn with(world: &World, name: &str, value: Value) -> String {
    let mut changed = payload("tokens-user");
    changed[name] = value;
    world.token_of(&header(), &changed)
}

/// Returns one invalid token for each reason, with what the log says besides it.
fn refused_tokens(world: &World) -> Vec<(&'static str, &'static str, String)> {
    let now_s = now_ms() / 1000;
    let unsigned = |token: String| format!("{}.{}", token.rsplit_once('.').unwrap().0, "A".repeat(43));
    vec![
        ("malformed token", "", "nonsense".to_owned()),
        ("token longer than 8192 bytes", "", with(world, "more", json!("x".repeat(8_000)))),
        (
            "wrong algorithm",
            r#": the token has "RS256""#,
            world.token_of(&json!({"alg": "RS256"}), &payload("tokens-user")),
        ),
        (
            "the header crit is not supported",
            "",
            world.token_of(&json!({"alg": "HS256", "crit": ["exp"]}), &payload("tokens-user")),
        ),
        ("wrong signature", "", unsigned(world.token("tokens-user"))),
        (MEMBERS, "", with(world, "sub", json!(42))),
        ("expired", "", with(world, "exp", json!(now_s - 60))),
        ("not valid yet", "", with(world, "nbf", json!(now_s + 60))),
        ("wrong issuer", r#": the token has "another-issuer""#, with(world, "iss", json!("another-issuer"))),
        (
            "wrong audience",
            r#": the token has "another,audience""#,
            with(world, "aud", json!(["another", "audience"])),
        ),
        (SUBJECT, "; USER_ID_FORM=hmac accepts other values", with(world, "sub", json!("anna@example.com"))),
    ]
}

async fn claim_with(world: &World, token: &str) -> Reply {
    let request = world.request("POST", "/v1/campaigns/tokens/claims").json(&json!({}));
    world.send(request.bearer_auth(token)).await.refused(401, "unauthenticated")
}

async fn until_logged(world: &World, line: &str) {
    eventually(SOON, || async {
        let log = world.edge.log();
        holds(log.contains(line), || format!("no {line:?} in {log}"))
    })
    .await;
}

#[test]
fn a_rejected_token_is_logged_by_reason_without_the_token() {
    run(async {
        let world = World::start(Runtime::from_env(), "edge-tokens", "test", &[]).await;
        for (reason, found, token) in refused_tokens(&world) {
            let refused = claim_with(&world, &token).await;
            let id = refused.header("x-request-id");
            until_logged(&world, &format!("{id} token rejected: {reason}{found}")).await;
            let detail = refused.json()["detail"].as_str().unwrap().to_owned();
            assert!(detail.ends_with(reason), "{detail:?} does not say only {reason:?}");
        }
        let log = world.edge.log();
        // "eyJ" is the prefix of every token.
        for held in ["eyJ", "tokens-user", "anna@example.com"] {
            assert!(!log.contains(held), "{held} is in the log:\n{log}");
        }
    });
}

#[test]
fn rejected_tokens_are_logged_once_per_reason_and_period() {
    run(async {
        let world = World::start(Runtime::from_env(), "edge-token-flood", "test", &[]).await;
        let wrong = with(&world, "iss", json!("another-issuer"));
        let began = Instant::now();
        for _ in 0..10 {
            join_all((0..30).map(|_| claim_with(&world, &wrong))).await;
        }
        let periods = 1 + began.elapsed().as_secs() / LOG_PERIOD_S;
        // A different reason is still logged during the flood.
        let expired = claim_with(&world, &with(&world, "exp", json!(now_ms() / 1000 - 60))).await;
        until_logged(&world, &format!("{} token rejected: expired", expired.header("x-request-id"))).await;
        let lines = world.edge.log().matches("token rejected: wrong issuer").count() as u64;
        assert!((1..=periods).contains(&lines), "{lines} lines for 300 rejections in {periods} periods");
    });
}

/// Checks that an edge with these keys accepts a token of `sign` until 5 s after its `exp`, and from 5 s before its
/// `nbf`, exactly.
async fn check_leeway(name: &str, keys: &[(&str, &str)], sign: impl Fn(&Value) -> String) {
    let clock = FrozenClock::at(now_ms());
    let frozen_s = clock.now_ms() / 1000;
    let world = world_on_clock(&clock.environment(), name, keys).await;
    for (member, at_s, is_accepted) in [
        ("exp", frozen_s - 4, true),
        ("exp", frozen_s - 5, false),
        ("nbf", frozen_s + 5, true),
        ("nbf", frozen_s + 6, false),
    ] {
        let mut claims = payload("alice");
        claims[member] = json!(at_s);
        let reply = claim_decided(&world, &sign(&claims)).await;
        assert_eq!(reply.status == 401, !is_accepted, "{member} {at_s} at {frozen_s}: {}", reply.text());
        assert!(reply.status == 401 || reply.is_created(), "{}", reply.text());
    }
}

#[test]
fn a_token_within_the_leeway_is_accepted() {
    run(async {
        let keys = [("USER_JWT_KEY", USER_SECRET)];
        check_leeway("edge-leeway", &keys, |claims| signed(USER_SECRET, &header(), claims)).await;
        let issuer = Issuer::p256();
        let key = issuer.pem_body();
        let keys = [("USER_JWT_ALG", issuer.algorithm()), ("USER_JWT_KEY", key.as_str())];
        check_leeway("edge-leeway-public", &keys, |claims| issuer.token(&json!({}), claims)).await;
    });
}

#[test]
fn audience_claims_leeway_and_header_are_configurable() {
    run(async {
        let variables = [
            ("USER_JWT_AUD", "none"),
            ("USER_JWT_REQUIRE", "client_id=7g4, token_use=access"),
            ("USER_JWT_LEEWAY_S", "60"),
            ("USER_JWT_HEADER", "Cf-Access-Jwt-Assertion"),
        ];
        let world = World::start(Runtime::from_env(), "edge-token-rules", "test", &variables).await;
        world.core.create("tokens", json!({"total": 5})).await;
        let mut claims = payload("alice");
        claims.as_object_mut().unwrap().remove("aud");
        claims["exp"] = json!(now_ms() / 1000 - 30);
        (claims["client_id"], claims["token_use"]) = (json!("7g4"), json!("access"));
        let claim = |claims: &Value, key: &str| {
            let request = world.request("POST", "/v1/campaigns/tokens/claims").header("Idempotency-Key", key);
            let token = world.token_of(&header(), claims);
            world.send(request.header("Cf-Access-Jwt-Assertion", token).json(&json!({})))
        };
        let _ = claim(&claims, "k1").await.expect(201);
        // 8,000 bytes of groups fit.
        claims["groups"] = json!("g".repeat(5_800));
        let _ = claim(&claims, "k2").await.expect(201);
        claims["token_use"] = json!("id");
        let refused = claim(&claims, "k3").await.refused(401, "unauthenticated");
        let line = r#"has a different value: the token has "token_use=id""#;
        until_logged(&world, &format!("token rejected: a required token claim is missing or {line}")).await;
        assert!(!refused.json()["detail"].as_str().unwrap().contains("token_use"));
        let request = world.request("POST", "/v1/campaigns/tokens/claims").json(&json!({}));
        let bearer = world.send(request.bearer_auth(world.token("alice"))).await;
        let detail = bearer.refused(401, "unauthenticated").json()["detail"].to_string();
        assert!(detail.contains("Cf-Access-Jwt-Assertion"), "{detail}");
    });
}

#[test]
fn tokens_for_each_listed_audience_are_accepted() {
    run(async {
        let variables = [("USER_JWT_AUD", "shop, app")];
        let world = World::start(Runtime::from_env(), "edge-token-audiences", "test", &variables).await;
        world.core.create("tokens", json!({"total": 10})).await;
        let listed = [json!("shop"), json!("app"), json!(["app"]), json!(["other", "shop"])];
        for (key, aud) in ["k1", "k2", "k3", "k4"].into_iter().zip(listed) {
            let request = world.request("POST", "/v1/campaigns/tokens/claims").json(&json!({}));
            let request = request.header("Idempotency-Key", key);
            let token = with(&world, "aud", aud.clone());
            let reply = world.send(request.bearer_auth(token)).await;
            assert!(reply.is_created(), "{aud}: {}", reply.text());
        }
        for (aud, found) in [
            (json!("claimgate"), "claimgate"),
            (json!("shop, app"), "shop, app"),
            (json!(["other", "shop-2"]), "other,shop-2"),
            (json!([]), ""),
        ] {
            let refused = claim_with(&world, &with(&world, "aud", aud)).await;
            let detail = refused.json()["detail"].as_str().unwrap().to_owned();
            assert!(detail.ends_with("wrong audience"), "{found}: {detail}");
        }
        until_logged(&world, r#"token rejected: wrong audience: the token has "claimgate""#).await;
    });
}
