//! The edge's rate limits per address and user.

use std::future::Future;

use serde_json::json;
use support::Reply;

use super::{claims_passed_on, run, strict_world};

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
