//! Passes at the real edge: who may claim from a campaign that requires one, and when the rule ends.

use claimgate_client::{ClaimCall, Edge as EdgeClient, NamedKey, Pass, UserIdRule};
use claimgate_shared::{Code, Quantity, Timestamp};
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use support::clock::Clock;
use support::core_client::campaign;
use support::edge::{Edge, Runtime, World, payload};
use support::issuer::Issuer;
use support::stand_in::{Canned, StandIn};
use support::times::{from_now, ms, now_ms};
use support::wait::{holds, until_status};
use support::{CoreOptions, Reply, SOON, Servers, eventually};

use super::{claims_sent_to_core, run, until_rejected_early};
use crate::command_line;

const SHOP: &str = "shop:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA";
const HOUR_MS: i64 = 3_600_000;

/// Starts an edge with the shop's key and these variables, before a core with the campaign `members`.
async fn shop_world(name: &str, variables: &[(&str, &str)]) -> World {
    let variables = [&[("PASS_KEYS", SHOP)], variables].concat();
    let world = World::start(Runtime::from_env(), name, "test", &variables).await;
    create(&world, "members", json!({"total": 1000}), json!({"required": "always"})).await;
    world
}

async fn create(world: &World, id: &str, limits: Value, pass: Value) {
    let mut body = campaign(id, limits);
    body["pass"] = pass;
    world.core.create_with(body).await;
}

/// Returns the user's pass, valid for an hour.
fn pass(campaign: &str, user: &str, units: Option<u32>) -> String {
    let expires_at = Timestamp::from_ms(now_ms() + HOUR_MS).unwrap();
    let units = units.map(|units| units.try_into().unwrap());
    let (user, campaign) = (user.parse().unwrap(), campaign.parse().unwrap());
    let key: NamedKey = SHOP.parse().unwrap();
    Pass { user, campaign, expires_at, not_before: None, units }.sign(&key).unwrap()
}

fn expired(campaign: &str, user: &str) -> String {
    let expires_at = Timestamp::from_ms(now_ms() - HOUR_MS).unwrap();
    let (user, campaign) = (user.parse().unwrap(), campaign.parse().unwrap());
    let key: NamedKey = SHOP.parse().unwrap();
    Pass { user, campaign, expires_at, not_before: None, units: None }.sign(&key).unwrap()
}

trait WithPass {
    fn pass(self, pass: &str) -> Self;
}

impl WithPass for RequestBuilder {
    fn pass(self, pass: &str) -> Self {
        self.header("Claimgate-Pass", pass)
    }
}

async fn claim(world: &World, campaign: &str, user: &str, key: &str, pass: &str) -> Reply {
    world.send(world.keyed_request(campaign, user, key).pass(pass)).await
}

/// Returns the words about passes that the edge sent to core for this reply.
fn words(world: &World, reply: &Reply) -> Vec<String> {
    let requests = claims_sent_to_core(world, reply).join("\n").to_lowercase();
    let lines = requests.lines().filter_map(|line| line.strip_prefix("x-claimgate-pass:"));
    lines.map(|word| word.trim().to_owned()).collect()
}

#[test]
fn a_pass_admits_its_user_as_often_as_the_limits_allow() {
    run(async {
        let world = shop_world("edge-passes", &[]).await;
        create(&world, "two", json!({"per_user": 2, "per_claim": 2}), json!({"required": "always"})).await;
        let alices = pass("two", "alice", None);
        for key in ["k1", "k2"] {
            let made = claim(&world, "two", "alice", key, &alices).await.expect(201);
            assert_eq!(words(&world, &made), ["shown"]);
        }
        claim(&world, "two", "alice", "k3", &alices).await.refused(409, "user_limit_reached");
        for bobs in [&alices, &pass("members", "bob", None), &expired("two", "bob")] {
            let refused = claim(&world, "two", "bob", "k", bobs).await.refused(403, "pass_required");
            assert_eq!(words(&world, &refused), [""; 0]);
        }
        assert_eq!(world.core.campaign("two").await["pass"], json!({"required": "always"}));
        assert_eq!(world.view("two").await.expect(200).json()["pass"], json!({"required": "always"}));
    });
}

#[test]
fn the_units_of_a_pass_lower_the_users_limit() {
    run(async {
        let world = shop_world("edge-passes-units", &[]).await;
        create(&world, "units", json!({"per_user": 3, "per_claim": 3}), json!({"required": "always"})).await;
        let one = pass("units", "alice", Some(1));
        let made = claim(&world, "units", "alice", "k1", &one).await.expect(201);
        assert_eq!(words(&world, &made), ["shown:1"]);
        let refused = claim(&world, "units", "alice", "k2", &one).await.refused(409, "user_limit_reached");
        assert_eq!((&refused.json()["limit"], &refused.json()["remaining"]), (&json!("per_user"), &json!(0)));
        // Another pass of the same user allows more, but no more than the campaign.
        let many = pass("units", "alice", Some(u32::MAX));
        for key in ["k3", "k4"] {
            claim(&world, "units", "alice", key, &many).await.expect(201);
        }
        claim(&world, "units", "alice", "k5", &many).await.refused(409, "user_limit_reached");
        // A pass for fewer units than were taken returns nothing.
        let refused = claim(&world, "units", "alice", "k6", &one).await.refused(409, "user_limit_reached");
        assert_eq!(refused.json()["remaining"], 0);
        let two = pass("units", "bob", Some(2));
        let three = world.keyed_request("units", "bob", "k1").json(&json!({"quantity": 3}));
        let refused = world.send(three.pass(&two)).await.refused(409, "user_limit_reached").json();
        assert_eq!(refused["remaining"], 2);
    });
}

#[test]
fn a_first_try_without_a_pass_is_refused_from_the_cache() {
    run(async {
        let world = shop_world("edge-passes-cache", &[]).await;
        let early = until_rejected_early(&world, "members", "pass_required").await;
        let by_core = world.claim("members", "early", "k").await.refused(403, "pass_required");
        assert_eq!(claims_sent_to_core(&world, &by_core).len(), 1, "an unmarked claim reaches core");
        let timeless = |reply: &Reply| {
            let mut body = reply.json();
            body["instance"] = json!("");
            body
        };
        assert_eq!(timeless(&early), timeless(&by_core));
        assert_eq!(early.json()["detail"], "claims need a pass");
        assert_eq!((early.header("retry-after"), by_core.header("retry-after")), ("", ""));

        // Before the body is read and the token is verified, after state and window.
        let _ = world.view("members").await.expect(200);
        let bad = world.request("POST", "/v1/campaigns/members/claims").body("not JSON");
        let bad = bad.header("Content-Type", "application/json");
        world.send(bad).await.refused(403, "pass_required");
        let mut later = campaign("later", json!({}));
        (later["starts_at"], later["pass"]) = (json!(from_now(3600)), json!({"required": "always"}));
        world.core.create_with(later).await;
        until_rejected_early(&world, "later", "not_started").await;
        world.core.set_admin_state("members", "pause").await.expect(200);
        world.until_edge_shows("members", "paused").await;
        until_rejected_early(&world, "members", "paused").await;
    });
}

#[test]
fn a_winner_finds_the_claim_after_the_pass_has_expired() {
    run(async {
        let world = shop_world("edge-passes-retry", &[]).await;
        let made = claim(&world, "members", "alice", "k", &pass("members", "alice", None)).await.expect(201);
        for retry in [
            world.keyed_request("members", "alice", "k"),
            world.keyed_request("members", "alice", "k").pass(&expired("members", "alice")),
            world.keyed_request("members", "alice", "k").pass("nonsense"),
        ] {
            let again = world.send(retry).await.expect(200);
            assert_eq!(again.json()["claim"], made.json()["claim"]);
        }
        // A refused claim is made later with a pass and the same key.
        let refused = world.first_try("members", "bob", "k").await.refused(403, "pass_required");
        assert_eq!(refused.json()["limit"], Value::Null);
        let bobs = pass("members", "bob", None);
        assert_eq!(
            claim(&world, "members", "bob", "k", &bobs).await.expect(201).json()["claim"]["user_id"],
            "bob"
        );
    });
}

/// Checks that Alice finds her claim through `edge`, where Bob gets `denial`.
async fn alice_has_won(world: &World, edge: &Edge, won: &Value, denial: &str) {
    let unmarked = |user: &str| world.claim_request_at(edge, "members", user).header("Idempotency-Key", "k");
    for retry in [unmarked("alice"), unmarked("alice").pass(&expired("members", "alice"))] {
        assert_eq!(world.send(retry).await.expect(200).json()["claim"], *won);
    }
    world.send(unmarked("bob")).await.refused(403, denial);
}

#[test]
fn a_winner_finds_the_claim_through_another_edge() {
    run(async {
        let core = CoreOptions::default().with("CLAIMGATE_ARCHIVE_AFTER_S", "1").start().await;
        let variables = [("PASS_KEYS", SHOP)];
        let world = World::before(core, Runtime::from_env(), "edge-passes-first", "test", &variables).await;
        create(&world, "members", json!({"total": 1000}), json!({"required": "always"})).await;
        // The other edge verifies no passes.
        let core_url = format!("http://{}", world.core.listen());
        let (edge_key, user_key) = (world.core.data_file("edge.key"), world.core.data_file("user-jwt.key"));
        let variables =
            [("CORE_URL", core_url.as_str()), ("EDGE_KEY", &edge_key), ("USER_JWT_KEY", &user_key)];
        let other = Edge::start(Runtime::from_env(), "edge-passes-other", "test", &variables).await;

        let made = claim(&world, "members", "alice", "k", &pass("members", "alice", None)).await.expect(201);
        let won = made.json()["claim"].clone();
        for edge in [&world.edge, &other] {
            alice_has_won(&world, edge, &won, "pass_required").await;
        }
        // The end must follow the first claim, which pins the user ids: an earlier end could not be removed.
        world.core.patch("members", json!({"ends_at": from_now(0)})).await.expect(200);
        world.core.redis().await.evicted("members").await;
        for edge in [&world.edge, &other] {
            alice_has_won(&world, edge, &won, "ended").await;
        }
        let reopen = json!({"ends_at": null});
        until_status(SOON, &[200], async || world.core.patch("members", reopen.clone()).await).await;
        for edge in [&world.edge, &other] {
            alice_has_won(&world, edge, &won, "pass_required").await;
        }
        assert_eq!(world.core.sql().claims("members").await.len(), 1);
    });
}

#[test]
fn no_pass_is_a_users_token() {
    run(async {
        let world = shop_world("edge-passes-typ", &[]).await;
        let user_secret = world.core.data_file("user-jwt.key");
        let bearer = async |token: &str| {
            let request = world.request("POST", "/v1/campaigns/members/claims").json(&json!({}));
            let keyed = request.header("Idempotency-Key", "k").bearer_auth(token);
            world.send(keyed.pass(&pass("members", "alice", None))).await
        };
        for typ in ["claimgate-pass+jwt", "Claimgate-Pass+JWT", "application/claimgate-pass+jwt"] {
            let signed =
                support::edge::signed(&user_secret, &json!({"alg": "HS256", "typ": typ}), &payload("alice"));
            let refused = bearer(&signed).await.refused(401, "unauthenticated");
            assert_eq!(refused.json()["detail"], "the bearer token is invalid: wrong typ");
        }
        bearer(&pass("members", "alice", None)).await.refused(401, "unauthenticated");
        // The token as a pass, and the pass as a pass of the same user.
        let token = world.token("alice");
        claim(&world, "members", "alice", "k", &token).await.refused(403, "pass_required");
        bearer(&token).await.expect(201);
    });
}

#[test]
fn a_presale_opens_by_the_clock_of_redis() {
    run(async {
        let clock = Clock::new();
        let redis = Servers::start_on(&clock).await;
        let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", redis.url()).start().await;
        let variables = [("PASS_KEYS", SHOP)];
        let world = World::before(core, Runtime::from_env(), "edge-presale", "test", &variables).await;
        let until = from_now(3600);
        create(&world, "presale", json!({}), json!({"required": "until", "until": until})).await;
        let refused = until_rejected_early(&world, "presale", "pass_required").await;
        assert_eq!(refused.json()["until"].as_str().map(ms), Some(ms(&until)));
        let seconds: u32 = refused.header("retry-after").parse().unwrap();
        assert!((3500..=3600).contains(&seconds), "{seconds}");
        claim(&world, "presale", "alice", "k", &pass("presale", "alice", None)).await.expect(201);

        redis.move_clock(&clock, HOUR_MS + 1000).await;
        world.claim("presale", "bob", "k").await.expect(201);
        eventually(SOON, || async {
            let first = world.first_try("presale", "carol", "k").await;
            holds(first.is_created() || first.status == 200, || first.text())
        })
        .await;
        // The units of a pass no longer matter.
        let one = pass("presale", "dave", Some(1));
        for key in ["k", "k2"] {
            claim(&world, "presale", "dave", key, &one).await.expect(201);
        }
    });
}

#[test]
fn a_campaign_without_the_rule_ignores_passes() {
    run(async {
        let world = shop_world("edge-passes-ignored", &[]).await;
        world.core.create("open", json!({})).await;
        let _ = world.view("open").await.expect(200);
        for (key, sent) in [("k1", pass("open", "alice", Some(1))), ("k2", "nonsense".to_owned())] {
            let made = world.send(world.keyed_request("open", "alice", key).pass(&sent)).await.expect(201);
            assert_eq!(words(&world, &made), [""; 0]);
        }
        assert!(!world.edge.log().contains("pass rejected"), "{}", world.edge.log());
    });
}

#[test]
fn a_pass_is_mentioned_only_to_a_core_that_has_a_rule() {
    run(async {
        let variables = [("PASS_KEYS", SHOP)];
        let world = World::start(Runtime::from_env(), "edge-passes-old-core", "test", &variables).await;
        let old = StandIn::start();
        world.proxy.forward_to(old.listen);
        let view = |id: &str, more: Value| {
            let mut view = json!({
                "id": id, "name": id, "state": "open", "starts_at": "2026-01-01T00:00:00.000Z", "ends_at": null,
                "time_zone": "UTC", "limits": {"total": null}, "remaining": null, "version": 3,
                "server_time": from_now(0),
            });
            view.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            view
        };
        for (id, more, expected) in [
            ("old", json!({}), vec![]),
            ("none", json!({"pass": null}), vec![]),
            ("newer", json!({"pass": {"required": "by lottery"}}), vec!["shown:1"]),
        ] {
            old.answers(&format!("GET /internal/v1/campaigns/{id} "), Canned::json(200, &view(id, more)));
            let granted = json!({"claim": {"id": format!("{id}.alice.x")}, "remaining": 1, "version": 3});
            old.answers(&format!("\"campaign_id\":\"{id}\""), Canned::json(201, &granted));
            let _ = world.view(id).await.expect(200);
            let first = world.first_try_request(id, "alice", "k").pass(&pass(id, "alice", Some(1)));
            assert_eq!(words(&world, &world.send(first).await.expect(201)), expected, "{id}");
        }
    });
}

#[test]
fn a_pass_names_the_id_that_claims_have() {
    run(async {
        let secret = "YSBrZXkgZm9yIHRlc3RzLCBub3QgYWxsIHRoZSBzYW1l";
        let variables = [("USER_ID_FORM", "hmac"), ("USER_ID_KEY", secret)];
        let world = shop_world("edge-passes-hmac", &variables).await;
        let id = UserIdRule::hmac("sub", "claimgate", secret.parse().unwrap()).user_id("alice").unwrap();
        claim(&world, "members", "alice", "k", &pass("members", id.as_str(), None)).await.expect(201);
        let refused = claim(&world, "members", "alice", "k2", &pass("members", "alice", None)).await;
        let refused = refused.refused(403, "pass_required");
        let line = format!(
            "{} pass rejected: for another user; sub must be the user's id in claims",
            refused.header("x-request-id")
        );
        eventually(SOON, || async { holds(world.edge.log().contains(&line), || world.edge.log()) }).await;
    });
}

#[test]
fn no_issuer_of_passes_may_have_the_key_of_tokens() {
    run(async {
        let world = shop_world("edge-passes-keys", &[]).await;
        let core_url = format!("http://{}", world.core.listen());
        let (edge_key, user_key) = (world.core.data_file("edge.key"), world.core.data_file("user-jwt.key"));
        let issuer = Issuer::p256();
        let set = json!({"keys": [issuer.jwk(&json!({}))]}).to_string();
        let own = format!("{SHOP},users:{user_key}");
        for (name, user_key, algorithm, pass_keys) in [
            ("secret", user_key.clone(), "HS256", own.as_str()),
            ("public", issuer.pem_body(), "ES256", set.as_str()),
        ] {
            let variables = [
                ("CORE_URL", core_url.as_str()),
                ("EDGE_KEY", &edge_key),
                ("USER_JWT_KEY", &user_key),
                ("USER_JWT_ALG", algorithm),
                ("PASS_KEYS", pass_keys),
            ];
            let name = format!("edge-passes-keys-{name}");
            let edge = Edge::start(Runtime::from_env(), &name, "test", &variables).await;
            let client = support::client::client();
            let refused = client.once().try_get(&edge.url("/readyz"), "").await.unwrap();
            let refused = refused.refused(503, "not_configured");
            assert_eq!(refused.json()["detail"], "not ready: PASS_KEYS");
            let line = "configuration: PASS_KEYS contains the key of USER_JWT_KEY";
            eventually(SOON, || async {
                // The readiness check logs nothing.
                let _ = client.once().try_get(&edge.url("/v1/campaigns/members"), "").await.unwrap();
                holds(edge.log().contains(line), || edge.log())
            })
            .await;
            assert!(!edge.log().contains(&user_key), "{}", edge.log());
        }
    });
}

#[test]
fn the_command_line_issues_passes() {
    run(async {
        let world = shop_world("edge-passes-cli", &[]).await;
        let directory = world.core.data_dir();
        let file = directory.join("pass.key");
        std::fs::write(&file, format!("{SHOP}\n")).unwrap();
        let issue = ["pass", "--user", "alice", "--campaign", "members"];
        let run = async |more: &[&str], key: &[(&str, &str)]| {
            command_line::run(&[&issue, more].concat(), key, &directory).await
        };
        let by_value = [("CLAIMGATE_PASS_KEY", SHOP)];
        let by_file = [("CLAIMGATE_PASS_KEY_FILE", file.to_str().unwrap())];
        for (at, key) in (1..).zip([&by_value, &by_file]) {
            let issued = run(&[], key).await.ended(0).out;
            claim(&world, "members", "alice", &format!("k{at}"), issued.trim()).await.expect(201);
        }
        let issued = run(&["--units", "2", "--ttl", "600", "--json"], &by_value).await.ended(0).json();
        assert_eq!(issued["user_id"], "alice");
        let refused = claim(&world, "members", "alice", "k3", issued["pass"].as_str().unwrap()).await;
        refused.refused(409, "user_limit_reached");
        let later =
            run(&["--not-before", "2099-01-01T08:00:00+08:00", "--json"], &by_value).await.ended(0).json();
        assert_eq!(later["expires_at"], "2099-01-01T01:00:00.000Z");
        let refused = claim(&world, "members", "alice", "k4", later["pass"].as_str().unwrap()).await;
        let detail = refused.refused(403, "pass_required").json()["detail"].clone();
        assert_eq!(detail, "claims need a pass; the pass sent is invalid: not valid yet");

        run(&[], &[]).await.ended(2).one_line("CLAIMGATE_PASS_KEY: is not set");
        let wrong = run(&[], &[("CLAIMGATE_PASS_KEY", "c2hvcnQ")]).await.ended(2);
        wrong.one_line("CLAIMGATE_PASS_KEY: must be kid:base64url-key");
        assert!(!wrong.err.contains("c2hvcnQ"), "{wrong:?}");
        for bad in [["--units", "0"], ["--units", "4294967296"], ["--ttl", "0"], ["--not-before", "tomorrow"]]
        {
            run(&bad, &by_value).await.ended(2);
        }
    });
}

#[test]
fn the_rust_client_sends_a_new_pass_with_the_same_claim() {
    run(async {
        let world = shop_world("edge-passes-client", &[]).await;
        let edge = EdgeClient::new(&world.edge.url("")).unwrap();
        let mut call =
            ClaimCall::new("members".parse().unwrap(), "alice".parse().unwrap(), Quantity::ONE).unwrap();
        let refused = edge.claim(&world.token("alice"), &mut call).await.unwrap_err();
        assert!(refused.is(Code::PassRequired), "{refused}");
        call.set_pass(pass("members", "alice", None));
        let made = edge.claim(&world.token("alice"), &mut call).await.unwrap();
        assert!(!made.replayed);
        assert_eq!(made.read().unwrap().claim.id, call.claim_id());
    });
}
