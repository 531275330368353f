//! The Worker in a real Worker runtime, in front of a real core with a real Redis.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use support::core_client::campaign;
use support::edge::{EXECUTOR, TURN, World};
use support::times::from_now;
use support::wait::holds;
use support::{Reply, SOON, eventually, heavy};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use super::RUNTIME;

/// As the tests' environment has it: no limits on the rate.
pub async fn open_world() -> &'static World {
    static WORLD: OnceCell<World> = OnceCell::const_new();
    WORLD.get_or_init(|| async { World::start(RUNTIME, "edge-open", "test", &[]).await }).await
}

/// As production has it: limits on the rate, here with one other origin let in. One test at a time, so that it may
/// break things.
async fn strict_world() -> MutexGuard<'static, World> {
    static WORLD: OnceCell<Mutex<World>> = OnceCell::const_new();
    let start = || async {
        let variables = [("CORS_ORIGINS", "https://shop.example")];
        Mutex::new(World::start(RUNTIME, "edge-strict", "production", &variables).await)
    };
    let mut world = WORLD.get_or_init(start).await.lock().await;
    world.heal().await;
    world
}

/// Runs `test` beside others.
pub fn run(test: impl Future<Output = ()>) {
    EXECUTOR.block_on(async {
        let _turn = TURN.read().await;
        test.await;
    });
}

/// Runs `test` by itself: a crowd would make the others' calls take longer than the edge waits.
pub fn run_alone(test: impl Future<Output = ()>) {
    EXECUTOR.block_on(async {
        let _turn = TURN.write().await;
        let _machine = heavy().await;
        test.await;
    });
}

/// What the edge sent to core to have this claim decided.
fn claims_passed_on(world: &World, reply: &Reply) -> Vec<String> {
    let mut said = world.passed_on(reply);
    said.retain(|text| text.starts_with("POST /internal/v1/claims "));
    said
}

/// A first try is refused with `code`, and soon by the edge alone.
async fn refused_early(world: &World, campaign: &str, code: &str) -> Reply {
    eventually(SOON, || async {
        let _ = world.view(campaign).await;
        let keyless = world.send(world.claim_request(campaign, "early")).await;
        let marked = world.first_try(campaign, "early", "k").await;
        assert_eq!((keyless.code().as_str(), marked.code().as_str()), (code, code));
        let reached = claims_passed_on(world, &keyless).len() + claims_passed_on(world, &marked).len();
        holds(reached == 0, || format!("{reached} of 2 claims reached core")).map(|()| marked)
    })
    .await
}

// -------------------------------------------------------------------------------------------------- claims and views

#[test]
fn a_claim_is_granted_once_and_shown_to_its_user_only() {
    run(async {
        let world = open_world().await;
        world.core.create("flow", json!({"total": 5, "per_claim": 2})).await;
        let granted = world.claim("flow", "alice", "k1").await.expect(201);
        let claim = &granted.json()["claim"];
        assert_eq!((&claim["status"], &claim["sequence"]), (&json!("granted"), &json!(1)));
        assert_eq!(granted.json()["remaining"], 4);
        assert_eq!(granted.header("cache-control"), "no-store");
        let id = claim["id"].as_str().unwrap();

        let again = world.claim("flow", "alice", "k1").await.expect(200);
        assert_eq!(again.header("idempotent-replayed"), "true");
        assert_eq!(again.json()["claim"], *claim);
        let two = world.claim_request("flow", "alice").json(&json!({"quantity": 2}));
        let reused = world.send(two.header("Idempotency-Key", "k1")).await;
        let _ = reused.refused(422, "idempotency_key_reused");

        let own = world.look_up(id, "alice").await.expect(200);
        assert_eq!(own.json()["claim"]["id"], *id);
        let others = world.look_up(id, "bob").await.refused(404, "claim_not_found");
        let missing =
            world.look_up("flow.bob.AAAAAAAAAAAAAAAAAAAAAA", "bob").await.refused(404, "claim_not_found");
        assert_eq!(others.json()["title"], missing.json()["title"]);
        assert_eq!(world.core.sql().await.until("flow", 1).await[0].id, *id);
    });
}

#[test]
fn anothers_key_is_never_anothers_claim() {
    run(async {
        let world = open_world().await;
        world.core.create("keys", json!({"total": 5})).await;
        let alices = world.claim("keys", "alice", "same").await.expect(201).json();
        let bobs = world.claim("keys", "bob", "same").await.expect(201).json();
        assert_ne!(alices["claim"]["id"], bobs["claim"]["id"]);
        // Without a key every request is a claim of its own.
        for _ in 0..2 {
            let _ = world.send(world.claim_request("keys", "carol")).await.expect(201);
        }
    });
}

#[test]
fn a_winners_retry_meets_the_claim_whatever_has_become_of_the_campaign() {
    run(async {
        let world = open_world().await;
        for (id, verb, state, code) in [
            ("late-sold-out", "", "sold_out", "sold_out"),
            ("late-paused", "pause", "paused", "paused"),
            ("late-ended", "end", "ended", "ended"),
        ] {
            world.core.create(id, json!({"total": 1})).await;
            let won = world.claim(id, "winner", "k").await.expect(201).json();
            if !verb.is_empty() {
                let _ = world.core.switch(id, verb).await.expect(200);
            }
            world.until_seen(id, state).await;
            let _ = refused_early(world, id, code).await;
            let retried = world.claim(id, "winner", "k").await.expect(200);
            assert_eq!(retried.json()["claim"], won["claim"], "{id}");
            let loser = world.claim(id, "loser", "k").await;
            assert_eq!(loser.code(), code, "a keyed request may be a retry");
            assert_eq!(claims_passed_on(world, &loser).len(), 1);
        }
    });
}

#[test]
fn a_first_try_that_cannot_win_is_refused_without_asking_core() {
    run(async {
        let world = open_world().await;
        let (starts_at, ended_at) = (from_now(3600), from_now(-5));
        for (id, starts, ends, code, status) in [
            ("early-not-started", &starts_at, None, "not_started", 403),
            ("early-ended", &from_now(-60), Some(&ended_at), "ended", 403),
        ] {
            let rules = json!({"id": id, "name": id, "starts_at": starts, "ends_at": ends, "limits": {}});
            world.core.create_with(rules).await;
            let refused = refused_early(world, id, code).await.expect(status);
            let retry_after = refused.header("retry-after").parse::<u64>().ok();
            assert_eq!(
                retry_after.is_some_and(|s| (3_500..=3_600).contains(&s)),
                ends.is_none(),
                "{retry_after:?}"
            );
            let refused = refused.json();
            let (member, instant) =
                if ends.is_some() { ("ends_at", &ended_at) } else { ("starts_at", &starts_at) };
            assert_eq!(support::times::ms(refused[member].as_str().unwrap()), support::times::ms(instant));
            assert_eq!(refused["version"], 1);
        }
        let _ = refused_early(world, "early-unknown", "campaign_not_found").await.expect(404);
        world.core.create("early-sold-out", json!({"total": 1})).await;
        let _ = world.claim("early-sold-out", "winner", "k").await.expect(201);
        world.until_seen("early-sold-out", "sold_out").await;
        let refused = refused_early(world, "early-sold-out", "sold_out").await.expect(409).json();
        assert_eq!((&refused["limit"], &refused["remaining"]), (&json!("total"), &json!(0)));
    });
}

#[test]
fn cores_denials_pass_through_with_what_they_say() {
    run(async {
        let world = open_world().await;
        let limits = json!({"total": 9, "per_user": 2, "per_user_per_day": 1, "per_claim": 2});
        world.core.create("denials", limits).await;
        let _ = world.claim("denials", "alice", "k1").await.expect(201);
        let daily =
            world.claim("denials", "alice", "k2").await.refused(409, "user_daily_limit_reached").json();
        assert_eq!((&daily["limit"], &daily["remaining"]), (&json!("per_user_per_day"), &json!(0)));
        assert!(support::times::ms(daily["resets_at"].as_str().unwrap()) > support::times::now_ms());
        let _ = world
            .core
            .patch("denials", json!({"limits": {"per_user_per_day": null, "per_user": 1}}))
            .await
            .expect(200);
        let _ = world.claim("denials", "alice", "k2").await.refused(409, "user_limit_reached");
        let three = world.claim_request("denials", "bob").json(&json!({"quantity": 3}));
        let _ = world.send(three).await.refused(422, "quantity_out_of_range");
    });
}

#[test]
fn the_view_is_cached_by_its_etag() {
    run(async {
        let world = open_world().await;
        world.core.create("views", json!({"total": 3})).await;
        let first = world.view("views").await.expect(200);
        let view = first.json();
        assert_eq!(
            (&view["state"], &view["remaining"], &view["version"]),
            (&json!("open"), &json!(3), &json!(1))
        );
        assert_eq!(first.header("cache-control"), "public, max-age=1");
        let etag = first.header("etag").to_owned();
        let same = world.request("GET", "/v1/campaigns/views").header("If-None-Match", &etag);
        let same = world.send(same).await.expect(304);
        assert_eq!((same.header("etag"), same.body.len()), (etag.as_str(), 0));
        let head = world.send(world.request("HEAD", "/v1/campaigns/views")).await.expect(200);
        assert_eq!(head.header("etag"), etag);

        let _ = world.claim("views", "alice", "k1").await.expect(201);
        eventually(Duration::from_secs(3), || async {
            let request = world.request("GET", "/v1/campaigns/views").header("If-None-Match", &etag);
            let reply = world.send(request).await;
            holds(reply.status == 200, || format!("still {}", reply.status))
        })
        .await;
        for id in ["views-none", "a.b", "a%00b", "..", "%7B%7D", "*", &"c".repeat(65)] {
            let _ = world.view(id).await.expect(404);
        }
    });
}

#[test]
fn health_touches_nothing_and_what_is_not_there_is_not_found() {
    run(async {
        let world = open_world().await;
        let live = world.send(world.request("GET", "/livez")).await.expect(200);
        assert!(world.passed_on(&live).is_empty());
        for path in ["/v1/claims", "/v1/other", "/internal/v1/claims", "/admin/v1/campaigns", "/metrics"] {
            let missing = world.send(world.request("GET", path)).await.expect(404);
            assert!(world.passed_on(&missing).is_empty(), "{path}");
        }
        for (method, path, allow) in [
            ("GET", "/v1/campaigns/flow/claims", "POST"),
            ("DELETE", "/v1/campaigns/flow", "GET, HEAD"),
            ("PUT", "/v1/claims/a.b.c", "GET, HEAD"),
            ("PATCH", "/livez", "GET, HEAD"),
        ] {
            let refused = world.send(world.request(method, path)).await.refused(405, "method_not_allowed");
            assert_eq!(refused.header("allow"), allow, "{method} {path}");
        }
    });
}

// ------------------------------------------------------------------------------------------- what every answer carries

#[test]
fn every_answer_carries_its_id_and_the_security_headers() {
    run(async {
        let world = open_world().await;
        world.core.create("headers", json!({"total": 1})).await;
        let mut ids = BTreeSet::new();
        for (reply, is_stored) in [
            (world.view("headers").await.expect(200), true),
            (world.view("headers-none").await.expect(404), false),
            (world.claim("headers", "alice", "k").await.expect(201), false),
            (world.claim("headers", "bob", "k").await.expect(409), false),
            (world.send(world.request("POST", "/v1/campaigns/headers/claims")).await.expect(415), false),
            (world.send(world.request("GET", "/livez")).await.expect(200), false),
        ] {
            let id = reply.header("x-request-id");
            assert_eq!(id.len(), 22, "{id}");
            assert!(ids.insert(id.to_owned()), "{id} twice");
            assert_eq!(reply.header("x-content-type-options"), "nosniff");
            assert_eq!(reply.header("x-frame-options"), "DENY");
            assert_eq!(reply.header("referrer-policy"), "no-referrer");
            assert!(reply.header("content-security-policy").starts_with("default-src 'none'"));
            assert!(reply.header("strict-transport-security").starts_with("max-age="));
            assert_eq!(reply.header("cache-control") == "no-store", !is_stored);
            if reply.status >= 400 {
                assert_eq!(reply.header("content-type"), "application/problem+json");
                let problem = reply.json();
                assert_eq!((&problem["instance"], &problem["status"]), (&json!(id), &json!(reply.status)));
                let slug = reply.code().replace('_', "-");
                assert_eq!(problem["type"], format!("/problems/{slug}"));
            }
        }
    });
}

#[test]
fn the_page_comes_with_a_strict_policy() {
    run(async {
        let world = open_world().await;
        for (path, kind) in [("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")] {
            let reply = world.send(world.request("GET", path)).await.expect(200);
            assert!(
                reply.header("content-type").starts_with(kind),
                "{path}: {}",
                reply.header("content-type")
            );
            let policy = reply.header("content-security-policy");
            assert!(
                policy.starts_with("default-src 'none'") && !policy.contains("unsafe"),
                "{path}: {policy}"
            );
            assert_eq!(reply.header("x-content-type-options"), "nosniff");
        }
    });
}

#[test]
fn only_the_listed_origin_is_let_in() {
    run(async {
        let world = strict_world().await;
        world.core.create("cors", json!({"total": 1})).await;
        let path = "/v1/campaigns/cors/claims";
        for (origin, is_let_in) in
            [("https://shop.example", true), ("https://shop.example.evil", false), ("null", false)]
        {
            let preflight = world
                .request("OPTIONS", path)
                .header("Origin", origin)
                .header("Access-Control-Request-Method", "POST")
                .header("Access-Control-Request-Headers", "authorization,idempotency-key");
            let preflight = world.send(preflight).await;
            assert_eq!(preflight.status, if is_let_in { 204 } else { 405 }, "{origin}");
            let claim =
                world.claim_request("cors", "alice").header("Origin", origin).header("Idempotency-Key", "k");
            let claim = world.send(claim).await;
            assert!(claim.status < 300, "CORS is for browsers: the answer is the same");
            for reply in [&preflight, &claim] {
                let allowed = reply.header("access-control-allow-origin");
                assert_eq!(allowed, if is_let_in { origin } else { "" });
                assert_eq!(reply.header("access-control-allow-credentials"), "");
                assert_eq!(reply.header("vary"), "Origin");
            }
        }
        drop(world);
        let world = open_world().await;
        let foreign = world.request("GET", "/livez").header("Origin", "https://shop.example");
        assert_eq!(world.send(foreign).await.header("access-control-allow-origin"), "", "no list, no origin");
    });
}

#[test]
fn the_demo_route_is_not_there_without_its_flag() {
    run(async {
        let strict = strict_world().await;
        for world in [open_world().await, &*strict] {
            let request = world.request("POST", "/demo/token").json(&json!({"user_id": "alice"}));
            let _ = world.send(request).await.refused(404, "not_found");
        }
    });
}

// --------------------------------------------------------------------------------------------------------------- rates

/// Requests one after the other until one is refused; how many were let through, and the refusal.
async fn until_refused<F: Future<Output = Reply>>(mut ask: impl FnMut(usize) -> F) -> (usize, Reply) {
    for count in 0..200 {
        let reply = ask(count).await;
        if reply.status == 429 {
            return (count, reply);
        }
    }
    panic!("200 requests and none too many");
}

#[test]
fn who_asks_too_often_has_to_wait() {
    run(async {
        let world = strict_world().await;
        world.core.create("rates", json!({})).await;
        let claim = |user: String, address: String| {
            let request = world.claim_request("rates", &user).header("CF-Connecting-IP", address);
            world.send(request)
        };
        // The limiter counts by its own clock's periods, so a run may straddle two of them.
        let (count, refused) = until_refused(|n| claim("hasty".into(), format!("192.0.2.{n}"))).await;
        assert!((20..=40).contains(&count), "one user: {count}");
        let refused = refused.refused(429, "rate_limited");
        assert_eq!(refused.header("retry-after"), "10");
        assert!(claims_passed_on(&world, &refused).is_empty());

        let (count, refused) = until_refused(|n| claim(format!("u{n}"), "198.51.100.1".into())).await;
        assert!((60..=120).contains(&count), "one address: {count}");
        let _ = refused.refused(429, "rate_limited");
        let (count, _) = until_refused(|n| claim(format!("v{n}"), format!("2001:db8:0:1::{n:x}"))).await;
        assert!((60..=120).contains(&count), "one household: {count}");
        let _ = claim("patient".into(), "2001:db8:0:2::1".into()).await.expect(201);
    });
}

#[test]
fn a_flood_of_bad_tokens_is_counted_before_anybody_looks_at_a_token() {
    run(async {
        let world = strict_world().await;
        world.core.create("flood", json!({})).await;
        let forged = format!("{}A", world.token("victim"));
        let claim = |token: &str, address: String| {
            let request = world.request("POST", "/v1/campaigns/flood/claims").json(&json!({}));
            world.send(request.bearer_auth(token).header("CF-Connecting-IP", address))
        };
        let look_up = |token: &str, address: &str| {
            let request = world.request("GET", "/v1/claims/flood.victim.AAAAAAAAAAAAAAAAAAAAAA");
            world.send(request.bearer_auth(token).header("CF-Connecting-IP", address))
        };
        let flood = "203.0.113.1";
        let (count, refused) = until_refused(|_| claim(&forged, flood.into())).await;
        assert!((60..=120).contains(&count), "claims: {count}");
        let _ = refused.refused(429, "rate_limited");
        // Good or bad, no token is looked at any more.
        let _ = claim(&world.token("neighbour"), flood.into()).await.refused(429, "rate_limited");
        let (count, refused) = until_refused(|_| look_up(&forged, flood)).await;
        assert!((60..=120).contains(&count), "look-ups: {count}");
        let _ = refused.refused(429, "rate_limited");
        // A user named in a bad token is not counted for it, and callers from elsewhere are not affected.
        for n in 0..45 {
            let _ = claim(&forged, format!("2001:db8:f100:{n:x}::1")).await.refused(401, "unauthenticated");
        }
        let _ = claim(&world.token("victim"), "203.0.113.2".into()).await.expect(201);
    });
}

#[test]
fn a_refusal_from_memory_is_not_counted() {
    run(async {
        let world = strict_world().await;
        world.core.create("free", json!({"total": 1})).await;
        let _ = world.claim("free", "winner", "k").await.expect(201);
        world.until_seen("free", "sold_out").await;
        let mut refused = 0;
        for n in 0..400 {
            let request = world.first_try_request("free", &format!("u{n}"), "k");
            let reply = world.send(request.header("CF-Connecting-IP", "203.0.113.3")).await;
            let _ = reply.clone().refused(409, "sold_out");
            refused += usize::from(claims_passed_on(&world, &reply).is_empty());
        }
        assert!(refused > 240, "{refused} of 400 were refused from memory: too few to tell");
    });
}

// -------------------------------------------------------------------------------------------------------------- faults

#[test]
fn a_lost_answer_is_asked_for_again_and_is_one_claim() {
    run(async {
        let world = strict_world().await;
        world.core.create("lost", json!({"total": 5})).await;
        world.proxy.lose_answers(1);
        let first = world.claim("lost", "alice", "k1").await;
        assert!(matches!(first.status, 200 | 201), "the edge asks again: {}", first.text());
        world.proxy.lose_all_answers(true);
        let unknown = world.claim("lost", "bob", "k1").await.refused(503, "unavailable");
        assert_eq!(unknown.header("retry-after"), "1");
        world.proxy.lose_all_answers(false);
        let known = world.claim("lost", "bob", "k1").await.expect(200);
        assert_eq!(known.json()["claim"]["sequence"], 2);
        assert_eq!(world.core.sql().await.until("lost", 2).await.len(), 2);
    });
}

/// Core may answer a first try from its memory, which a retry of the edge's own must not meet: the first asking may have won.
#[test]
fn the_mark_of_a_first_try_goes_on_to_core_once() {
    run(async {
        let world = strict_world().await;
        world.core.create("marked", json!({"total": 9})).await;
        let marks = |reply: &Reply| -> Vec<bool> {
            let said = claims_passed_on(&world, reply).into_iter();
            said.map(|text| text.to_lowercase().contains("\r\nclaimgate-attempt: 1\r\n")).collect()
        };
        let first_try = world.first_try("marked", "alice", "k").await.expect(201);
        assert_eq!(marks(&first_try), [true]);
        let keyless = world.send(world.claim_request("marked", "bob")).await.expect(201);
        assert_eq!(marks(&keyless), [true], "its key is the edge's own");
        let unmarked = world.claim("marked", "alice", "k").await.expect(200);
        assert_eq!(marks(&unmarked), [false]);
        let retry = world.claim_request("marked", "alice").header("Idempotency-Key", "k");
        let retry = world.send(retry.header("Claimgate-Attempt", "2")).await.expect(200);
        assert_eq!(marks(&retry), [false]);
        world.proxy.lose_answers(1);
        let lost = world.first_try("marked", "carol", "k").await;
        assert!(matches!(lost.status, 200 | 201), "{}", lost.text());
        assert_eq!(marks(&lost), [true, false], "it may have won");
    });
}

#[test]
fn a_dead_core_is_said_to_be_unavailable_and_claims_flow_when_it_is_back() {
    run(async {
        let mut world = strict_world().await;
        world.core.create("dead", json!({"total": 5})).await;
        let won = world.claim("dead", "alice", "k1").await.expect(201).json();
        world.core.kill();
        for key in ["k1", "k2"] {
            let began = Instant::now();
            let refused = world.claim("dead", "alice", key).await.refused(503, "unavailable");
            assert!(began.elapsed() < Duration::from_millis(2500), "{:?}", began.elapsed());
            assert_eq!(refused.header("retry-after"), "1");
        }
        let id = won["claim"]["id"].as_str().unwrap();
        let _ = world.look_up(id, "alice").await.refused(503, "unavailable");
        let _ = world.view("dead-unseen").await.refused(503, "unavailable");
        world.restart_core().await;
        let asked = AtomicUsize::new(0);
        eventually(Duration::from_secs(5), || async {
            // Each time another user from elsewhere: the limiters also count callers whom a dead core keeps waiting.
            let n = asked.fetch_add(1, Ordering::SeqCst);
            let claim = world.claim_request("dead", &format!("bob{n}"));
            let reply = world.send(claim.header("CF-Connecting-IP", format!("2001:db8:dead:{n:x}::1"))).await;
            holds(reply.status == 201, || reply.text())
        })
        .await;
        assert_eq!(world.claim("dead", "alice", "k1").await.expect(200).json()["claim"], won["claim"]);
        let taken = usize::try_from(world.core.redis().await.counter("dead", "taken").await).unwrap();
        assert_eq!(world.core.sql().await.until("dead", taken).await.len(), taken);
    });
}

// ------------------------------------------------------------------------------------------------------------ the crowd

/// Asks until there is an answer to count on, as the page does.
async fn ask_until_known(world: &World, user: String, key: &str) -> Reply {
    for attempt in 1..30_u32 {
        let request = world.claim_request("crowd", &user).header("Idempotency-Key", key);
        let reply = world.send(request.header("Claimgate-Attempt", attempt)).await;
        if reply.status != 503 {
            return reply;
        }
        tokio::time::sleep(Duration::from_millis(200) * attempt.min(10)).await;
    }
    panic!("{user} {key} never had an answer");
}

#[test]
fn a_hundred_of_two_thousand_claims_are_granted() {
    run_alone(async {
        let world = open_world().await;
        let limits = json!({"total": 100, "per_user": 3, "per_user_per_day": 1, "per_claim": 1});
        world.core.create_with(campaign("crowd", limits)).await;
        let claims = (0..2000).map(|n| (format!("u{}", n % 1000), if n < 1000 { "a" } else { "b" }));
        let began = Instant::now();
        let replies: Vec<Reply> = stream::iter(claims)
            .map(|(user, key)| ask_until_known(world, user, key))
            .buffer_unordered(2000)
            .collect()
            .await;
        let took = began.elapsed();
        let said = world.proxy.said("POST /internal/v1/claims ").concat();
        let reached = replies.iter().filter(|reply| said.contains(reply.header("x-request-id"))).count();
        println!("2,000 claims in {took:?}, {reached} of them reached core");

        let won: Vec<Value> = replies.iter().filter(|reply| reply.status < 300).map(Reply::json).collect();
        let members =
            |name: &str| won.iter().map(|reply| reply["claim"][name].to_string()).collect::<BTreeSet<_>>();
        assert_eq!((won.len(), members("id").len(), members("user_id").len()), (100, 100, 100));
        for reply in replies.iter().filter(|reply| reply.status >= 300) {
            assert!(
                matches!(reply.code().as_str(), "sold_out" | "user_daily_limit_reached"),
                "{}",
                reply.text()
            );
        }
        let rows = world.core.sql().await.until("crowd", 100).await;
        assert!(rows.iter().map(|row| row.sequence).eq(1..=100));
        assert_eq!(rows.iter().map(|row| &row.user_id).collect::<BTreeSet<_>>().len(), 100);
    });
}
