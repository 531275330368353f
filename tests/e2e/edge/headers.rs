//! Headers of every response of the edge, and CORS.

use std::collections::BTreeSet;

use serde_json::json;

use super::{open_world, run, strict_world};

#[test]
fn every_answer_has_a_request_id_and_security_headers() {
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
            assert!(ids.insert(id.to_owned()), "request id {id} was used twice");
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
fn the_page_has_a_strict_content_security_policy() {
    run(async {
        let world = open_world().await;
        for (path, kind) in
            [("/?campaign=headers", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")]
        {
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
fn only_listed_origins_get_cors_headers() {
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
            assert!(claim.status < 300, "CORS only concerns browsers: the claim is made");
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
        assert_eq!(
            world.send(foreign).await.header("access-control-allow-origin"),
            "",
            "without a list, no origin is allowed"
        );
    });
}

#[test]
fn the_demo_route_exists_only_with_its_flag() {
    run(async {
        let strict = strict_world().await;
        for world in [open_world().await, &*strict] {
            let request = world.request("POST", "/demo/token").json(&json!({"user_id": "alice"}));
            let _ = world.send(request).await.refused(404, "not_found");
        }
    });
}
