//! A caller's own claims in a campaign, and the caller's allowance.

use reqwest::RequestBuilder;
use serde_json::json;
use support::Reply;
use support::edge::World;

use super::rates::until_refused;
use super::{open_world, run, strict_world};

fn own_claims(world: &World, campaign: &str, user: &str) -> RequestBuilder {
    own_page(world, campaign, user, "")
}

fn own_page(world: &World, campaign: &str, user: &str, query: &str) -> RequestBuilder {
    let request = world.request("GET", &format!("/v1/campaigns/{campaign}/claims{query}"));
    request.bearer_auth(world.token(user))
}

#[test]
fn callers_see_their_own_claims_and_allowance() {
    run(async {
        let world = open_world().await;
        world.core.create("own", json!({"total": 9, "per_user": 3, "per_claim": 1})).await;
        let first = world.claim("own", "alice", "k1").await.expect(201).json();
        let second = world.claim("own", "alice", "k2").await.expect(201).json();
        let _ = world.claim("own", "bob", "k1").await.expect(201);
        let reply = world.send(own_claims(world, "own", "alice")).await.expect(200);
        assert_eq!(reply.header("cache-control"), "no-store");
        let expected = json!({
            "items": [second["claim"], first["claim"]],
            "next_cursor": null,
            "allowance": {"per_claim": 1, "per_user_per_day": null, "resets_at": null, "per_user": 1, "total": 6},
        });
        assert_eq!(reply.json(), expected);
        let page = world.send(own_page(world, "own", "alice", "?limit=1")).await.expect(200).json();
        assert_eq!(page["items"], json!([second["claim"]]));
        let cursor = page["next_cursor"].as_str().expect("another page");
        let next = own_page(world, "own", "alice", &format!("?limit=1&cursor={cursor}"));
        assert_eq!(world.send(next).await.expect(200).json()["items"], json!([first["claim"]]));
        let nothing = world.send(own_claims(world, "own", "carol")).await.expect(200).json();
        assert_eq!((&nothing["items"], &nothing["allowance"]["per_user"]), (&json!([]), &json!(3)));
        let head = world.request("HEAD", "/v1/campaigns/own/claims").bearer_auth(world.token("alice"));
        let _ = world.send(head).await.expect(200);
    });
}

#[test]
fn invalid_tokens_campaigns_and_queries_are_rejected() {
    run(async {
        let world = open_world().await;
        world.core.create("own-bad", json!({})).await;
        let path = "/v1/campaigns/own-bad/claims";
        for request in [
            world.request("GET", path),
            world.request("GET", path).bearer_auth("forged"),
            world.request("GET", "/v1/campaigns/own-none/claims"),
        ] {
            let refused = world.send(request).await.refused(401, "unauthenticated");
            assert!(world.forwarded(&refused).is_empty());
        }
        for campaign in ["own-none", "a.b", "a%00b"] {
            let _ = world.send(own_claims(world, campaign, "alice")).await.refused(404, "campaign_not_found");
        }
        for (query, field) in [
            ("user_id=bob", "query"),
            ("limit=0", "limit"),
            ("limit=%31", "limit"),
            ("cursor=x", "cursor"),
            ("cursor=%2F", "cursor"),
        ] {
            let request = world.request("GET", &format!("{path}?{query}")).bearer_auth(world.token("alice"));
            let refused = world.send(request).await.refused(400, "invalid_request");
            assert_eq!(refused.json()["field"], field, "{query}");
        }
    });
}

/// Looks up a user's own claims until a lookup is rate limited.
pub async fn look_up_until_refused(world: &World, campaign: &str) -> (usize, Reply) {
    let look_up = |n: usize| {
        let request = own_claims(world, campaign, "curious");
        world.send(request.header("CF-Connecting-IP", format!("10.0.{}.{}", n / 256, n % 256)))
    };
    until_refused(look_up).await
}

#[test]
fn rate_limited_lookups_leave_claims_unaffected() {
    run(async {
        let world = strict_world().await;
        world.core.create("own-rates", json!({})).await;
        let (count, refused) = look_up_until_refused(&world, "own-rates").await;
        assert!(count >= 20, "only {count} were accepted");
        let _ = refused.refused(429, "rate_limited");
        let claim =
            world.keyed_request("own-rates", "curious", "k").header("CF-Connecting-IP", "192.0.2.200");
        let _ = world.send(claim).await.expect(201);
    });
}
