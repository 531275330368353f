//! User ids by HMAC at the real edge: any provider's subject has one, and no other setting gives a second one.

use claimgate_client::UserIdRule;
use claimgate_shared::signature::SecretKey;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use support::edge::{Edge, Runtime, World, payload};
use support::issuer::Issuer;
use support::{SOON, claim_body};

use super::key_server::{Answer, JWKS, KeyServer};
use super::run;
use crate::command_line;
use crate::user_ids::import;

const SECRET: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA";
const OTHER_SECRET: &str = "YSBrZXkgZm9yIHRlc3RzLCBub3QgYWxsIHRoZSBzYW1l";
const SETTINGS: [(&str, &str); 2] = [("USER_ID_FORM", "hmac"), ("USER_ID_KEY", SECRET)];

fn rule() -> UserIdRule {
    UserIdRule::hmac("sub", "claimgate", SECRET.parse().expect("a key"))
}

/// A token of the user `sub`, which also has an e-mail address and an object id.
fn token(world: &World, issuer: &str, sub: &str) -> String {
    let mut payload = payload(sub);
    (payload["iss"], payload["email"]) = (json!(issuer), json!("ann@example.com"));
    payload["oid"] = json!("0d7e");
    world.token_of(&json!({"alg": "HS256"}), &payload)
}

fn claim(world: &World, edge: &Edge, token: &str, key: &str) -> RequestBuilder {
    let request = world.core.client().request(Method::POST, &edge.url("/v1/campaigns/demo/claims"));
    request.bearer_auth(token).header("Idempotency-Key", key).json(&json!({}))
}

#[test]
fn every_providers_subject_has_one_id_that_fits() {
    run(async {
        let world = World::start(Runtime::from_env(), "edge-user-ids", "test", &SETTINGS).await;
        world.core.create("demo", json!({"total": 100, "per_user": 1})).await;
        let long = "x".repeat(255);
        for sub in
            ["auth0|6512ab", "f:0d7e:zoë", "ann@example.com", "000000.a1b2.0001", "alice", long.as_str()]
        {
            let (token, id) = (token(&world, "claimgate", sub), rule().user_id(sub).expect("an id"));
            let made = world.send(claim(&world, &world.edge, &token, "k")).await.expect(201).json();
            assert_eq!(made["claim"]["user_id"], id.as_str(), "{sub}");
            let second = world.send(claim(&world, &world.edge, &token, "k2")).await;
            second.refused(409, "user_limit_reached");
            let read = |path: &str| world.request("GET", path).bearer_auth(&token);
            let own = world.send(read("/v1/campaigns/demo/claims")).await.expect(200).json();
            assert_eq!(own["items"][0]["id"], made["claim"]["id"]);
            let path = format!("/v1/claims/{}", made["claim"]["id"].as_str().expect("an id"));
            world.send(read(&path)).await.expect(200);
        }
        let empty = world.send(claim(&world, &world.edge, &token(&world, "claimgate", ""), "k")).await;
        empty.refused(401, "unauthenticated");
        let pinned = world.core.admin_get("/admin/v1/user-ids").await.expect(200).json();
        assert_eq!(pinned["user_ids"], json!(rule().scheme()));
    });
}

#[test]
fn a_providers_user_claims_with_a_key_set_and_finds_the_claim() {
    run(async {
        let issuer = Issuer::shared_rsa();
        let server = KeyServer::start(Answer::keys(&[issuer.jwk(&json!({"kid": "a"}))]));
        let issuer_url = "https://example.eu.auth0.com/";
        let url = server.url(JWKS);
        let keys = [("USER_JWT_KEY", ""), ("USER_JWT_JWKS_URL", url.as_str()), ("USER_JWT_ISS", issuer_url)];
        let variables = [&SETTINGS[..], &keys].concat();
        let world = World::start(Runtime::from_env(), "edge-user-ids-jwks", "test", &variables).await;
        world.core.create("demo", json!({"total": 10, "per_user": 1})).await;
        let token = |sub: &str| {
            let mut payload = payload(sub);
            payload["iss"] = json!(issuer_url);
            issuer.token(&json!({"kid": "a"}), &payload)
        };
        let ann = token("auth0|6512ab");
        let made = world.send(claim(&world, &world.edge, &ann, "k")).await.expect(201).json();
        // As the Rust client and `claimgate user-id` compute it from the same settings.
        assert_eq!(made["claim"]["user_id"], "VR1TK4_EOYBS0Q3huZcMIdZCV7W7fd9cP4b-A0VjmlHPYacoMs");
        let again = world.send(claim(&world, &world.edge, &ann, "k")).await.expect(200).json();
        assert_eq!(again["claim"]["id"], made["claim"]["id"]);
        let own = world.request("GET", "/v1/campaigns/demo/claims").bearer_auth(&ann);
        let own = world.send(own).await.expect(200).json();
        assert_eq!(own["items"][0]["id"], made["claim"]["id"]);
        let path = format!("/v1/claims/{}", made["claim"]["id"].as_str().expect("an id"));
        world.send(world.request("GET", &path).bearer_auth(&ann)).await.expect(200);
        let other = token("auth0|6512ac");
        world.send(world.request("GET", &path).bearer_auth(&other)).await.refused(404, "claim_not_found");
        world.send(claim(&world, &world.edge, &ann, "k2")).await.refused(409, "user_limit_reached");
        assert_eq!(
            world.core.admin_get("/admin/v1/user-ids").await.expect(200).json()["user_ids"],
            "hmac:VR1TK4"
        );
    });
}

/// Starts an edge with `settings`, by which a user has claimed from a live campaign that grants one unit per user.
async fn claimed(name: &str, settings: &[(&str, &str)]) -> World {
    let world = World::start(Runtime::from_env(), name, "test", settings).await;
    world.core.create("demo", json!({"total": 100, "per_user": 1})).await;
    let ann = token(&world, "claimgate", "ann");
    world.send(claim(&world, &world.edge, &ann, "k")).await.expect(201);
    world
}

async fn pinned(world: &World) -> String {
    let view = world.core.admin_get("/admin/v1/user-ids").await.expect(200).json();
    view["user_ids"].as_str().expect("a scheme").to_owned()
}

/// Checks that only the user of [`claimed`] has a claim, which the user finds, and that the user gets no other.
async fn grants_nothing_more(world: &World) {
    let demo = world.core.admin_get("/admin/v1/campaigns/demo").await.expect(200).json();
    assert_eq!(demo["taken"], 1);
    let ann = token(world, "claimgate", "ann");
    world.send(claim(world, &world.edge, &ann, "k")).await.expect(200);
    world.send(claim(world, &world.edge, &ann, "k2")).await.refused(409, "user_limit_reached");
}

/// Starts a second edge with the settings `changed` before the core of an edge with `settings`. It must be rejected by
/// name: in the response, in core's log, and in core's readiness.
async fn rejects_change(
    name: &str,
    settings: &[(&str, &str)],
    changed: &[(&str, &str)],
    issuer: &str,
    scheme: &str,
) {
    let world = claimed(&format!("user-ids-{name}"), settings).await;
    let pinned = pinned(&world).await;
    let core_url = format!("http://{}", world.proxy.listen);
    let (edge_key, user_jwt_key) = (world.core.data_file("edge.key"), world.core.data_file("user-jwt.key"));
    let common = [("CORE_URL", core_url.as_str()), ("EDGE_KEY", &edge_key), ("USER_JWT_KEY", &user_jwt_key)];
    let variables = [&common[..], changed].concat();
    let edge = Edge::start(Runtime::from_env(), &format!("user-ids-{name}-2"), "test", &variables).await;
    let token = token(&world, issuer, "ann");
    for key in ["k", "k2"] {
        let refused = world.send(claim(&world, &edge, &token, key)).await.refused(503, "user_ids_differ");
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(&pinned) && detail.contains(scheme), "{detail}");
    }
    let get = |path: &str| world.core.client().request(Method::GET, &edge.url(path));
    let list = get("/v1/campaigns/demo/claims").bearer_auth(&token);
    world.send(list).await.refused(503, "user_ids_differ");
    world.send(get("/v1/campaigns/demo")).await.expect(200);
    let ready = world.core.get("/readyz").await.expect(200).json()["user_ids_differ"].to_string();
    assert!(ready.contains(&pinned) && ready.contains(scheme), "{ready}");
    world.core.until_logged(SOON, &["rejected a caller's user ids", scheme, &pinned]).await;
    grants_nothing_more(&world).await;
}

#[test]
fn the_log_says_that_back_ends_must_send_the_ids_of_the_edge() {
    const ADVICE: &str = "back ends must send the same ids as the edge";
    run(async {
        let world = World::start(Runtime::from_env(), "user-ids-advice", "test", &[]).await;
        world.core.create("demo", json!({"total": 100})).await;
        assert!(!world.core.log().contains(ADVICE), "no edge has sent a claim");
        let ann = token(&world, "claimgate", "ann");
        let made = world.send(claim(&world, &world.edge, &ann, "k")).await.expect(201).json();
        assert_eq!(made["claim"]["user_id"], "ann");
        let scheme = UserIdRule::verbatim("sub", "claimgate").scheme().to_string();
        world.core.until_logged(SOON, &[ADVICE, &scheme]).await;
        world.send(claim(&world, &world.edge, &ann, "k2")).await.expect(201);
        assert_eq!(world.core.log().matches(ADVICE).count(), 1, "{}", world.core.log());
    });
}

fn key_of(secret: &str) -> SecretKey {
    secret.parse().expect("a key")
}

#[test]
fn hmac_after_verbatim_does_not_renew_the_allowance() {
    let scheme = rule().scheme().to_string();
    run(rejects_change("to-hmac", &[], &SETTINGS, "claimgate", &scheme));
}

#[test]
fn verbatim_after_hmac_does_not_renew_the_allowance() {
    let scheme = UserIdRule::verbatim("sub", "claimgate").scheme().to_string();
    run(rejects_change("to-verbatim", &SETTINGS, &[], "claimgate", &scheme));
}

#[test]
fn a_changed_token_claim_does_not_renew_the_allowance() {
    let changed = [&SETTINGS[..], &[("USER_ID_CLAIM", "email")]].concat();
    let scheme = UserIdRule::hmac("email", "claimgate", key_of(SECRET)).scheme().to_string();
    run(async { rejects_change("claim", &SETTINGS, &changed, "claimgate", &scheme).await });
}

#[test]
fn a_changed_verbatim_claim_does_not_renew_the_allowance() {
    let scheme = UserIdRule::verbatim("oid", "claimgate").scheme().to_string();
    run(rejects_change("verbatim-claim", &[], &[("USER_ID_CLAIM", "oid")], "claimgate", &scheme));
}

#[test]
fn a_changed_issuer_does_not_renew_the_allowance() {
    const ISSUER: &str = "https://other.example/";
    let changed = [&SETTINGS[..], &[("USER_JWT_ISS", ISSUER)]].concat();
    let scheme = UserIdRule::hmac("sub", ISSUER, key_of(SECRET)).scheme().to_string();
    run(async { rejects_change("issuer", &SETTINGS, &changed, ISSUER, &scheme).await });
}

#[test]
fn a_changed_user_id_key_does_not_renew_the_allowance() {
    let changed = [("USER_ID_FORM", "hmac"), ("USER_ID_KEY", OTHER_SECRET)];
    let scheme = UserIdRule::hmac("sub", "claimgate", key_of(OTHER_SECRET)).scheme().to_string();
    run(async { rejects_change("key", &SETTINGS, &changed, "claimgate", &scheme).await });
}

#[test]
fn verbatim_ids_of_a_back_end_do_not_renew_the_allowance() {
    run(async {
        let world = claimed("user-ids-back-end", &SETTINGS).await;
        let pinned = pinned(&world).await;
        let single = world.core.claim("demo", "ann", "k").await.refused(503, "user_ids_differ").json();
        let batch = [claim_body("demo", "ann", "b", 1), claim_body("demo", "bob", "b", 1)];
        let batch = world.core.claim_batch(&batch).await.expect(200).json();
        for problem in [&single, &batch["results"][0]["body"], &batch["results"][1]["body"]] {
            assert_eq!(problem["code"], "user_ids_differ", "{problem}");
            assert!(problem["detail"].as_str().unwrap().contains(&pinned), "{problem}");
        }
        grants_nothing_more(&world).await;
        // The back end that computes the same id finds the claim of the edge.
        let id = rule().user_id("ann").unwrap();
        world.core.claim("demo", id.as_str(), "k").await.expect(200);
    });
}

#[test]
fn imported_verbatim_ids_do_not_renew_the_allowance() {
    run(async {
        let world = claimed("user-ids-import", &SETTINGS).await;
        let pinned = pinned(&world).await;
        world.core.set_admin_state("demo", "pause").await.expect(200);
        let bob = rule().user_id("bob").unwrap();
        let csv = format!("user_id,quantity\n{bob},1\nann,1\n");
        let refused = import(&world.core, "demo", &csv).await.refused(503, "user_ids_differ").json();
        assert_eq!(refused["field"], "line 3", "{refused}");
        assert!(refused["detail"].as_str().unwrap().contains(&pinned), "{refused}");
        world.core.set_admin_state("demo", "resume").await.expect(200);
        grants_nothing_more(&world).await;
    });
}

#[test]
fn a_drill_through_the_edge_needs_the_user_id_key() {
    run(async {
        let world = World::start(Runtime::from_env(), "edge-user-ids-drill", "test", &SETTINGS).await;
        let (listen, admin) = (world.core.listen().to_string(), world.core.admin_listen().to_string());
        let (url, data) = (world.edge.url(""), world.core.data_dir());
        let drill = async |key: &str| {
            let mut environment = vec![
                ("CLAIMGATE_LISTEN", listen.as_str()),
                ("CLAIMGATE_ADMIN_LISTEN", admin.as_str()),
                ("CLAIMGATE_DATA_DIR", data.to_str().unwrap()),
            ];
            if !key.is_empty() {
                environment.push(("CLAIMGATE_USER_ID_KEY", key));
            }
            let arguments = ["drill", &url, "--units", "10", "--users", "30", "--json"];
            command_line::run(&arguments, &environment, &data).await
        };
        // The first drill's claims pin the edge's scheme.
        for key in ["", "", OTHER_SECRET] {
            let drill = drill(key).await.ended(2);
            drill.one_line("CLAIMGATE_USER_ID_KEY");
            drill.one_line(&rule().scheme().to_string());
        }
        let report = drill(SECRET).await.ended(0).json();
        assert_eq!((&report["passed"], &report["through"]), (&json!(true), &json!("edge")), "{report:#}");
    });
}

#[test]
fn a_demo_token_comes_with_the_id_of_its_claims() {
    run(async {
        let variables = [&SETTINGS[..], &[("DEMO", "1")]].concat();
        let world = World::start(Runtime::from_env(), "edge-user-ids-demo", "test", &variables).await;
        world.core.create("demo", json!({"total": 100})).await;
        let body = json!({"user_id": "alice"});
        let demo = world.send(world.request("POST", "/demo/token").json(&body)).await.expect(200).json();
        assert_eq!(demo["user_id"], rule().user_id("alice").unwrap().as_str());
        let token = demo["token"].as_str().unwrap();
        let made = world.send(claim(&world, &world.edge, token, "k")).await.expect(201).json();
        assert_eq!(made["claim"]["user_id"], demo["user_id"]);

        let variables = [&variables[..], &[("USER_ID_CLAIM", "email")]].concat();
        let world = World::start(Runtime::from_env(), "edge-user-ids-demo-email", "test", &variables).await;
        let refused = world.send(world.request("POST", "/demo/token").json(&body)).await;
        let refused = refused.refused(404, "not_found");
        assert!(refused.json()["detail"].as_str().unwrap().contains("USER_ID_CLAIM"), "{}", refused.text());
    });
}

#[test]
fn a_token_without_the_configured_claim_is_rejected() {
    run(async {
        let settings = [&SETTINGS[..], &[("USER_ID_CLAIM", "email")]].concat();
        let world = World::start(Runtime::from_env(), "edge-user-ids-claim", "test", &settings).await;
        world.core.create("demo", json!({"total": 100})).await;
        let with_email = token(&world, "claimgate", "ann");
        let made = world.send(claim(&world, &world.edge, &with_email, "k")).await.expect(201).json();
        let by_email = UserIdRule::hmac("email", "claimgate", SECRET.parse().expect("a key"));
        assert_eq!(made["claim"]["user_id"], by_email.user_id("ann@example.com").unwrap().as_str());
        let email_of = |email: Value| {
            let mut payload = payload("ann");
            payload["email"] = email;
            world.token_of(&json!({"alg": "HS256"}), &payload)
        };
        for bad in [world.token("ann"), email_of(json!(7)), email_of(json!("")), email_of(json!(["a"]))] {
            world.send(claim(&world, &world.edge, &bad, "k")).await.refused(401, "unauthenticated");
        }
    });
}
