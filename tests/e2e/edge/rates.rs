//! Rate limits of the edge per address and per user.

use std::future::Future;
use std::time::Instant;

use futures_util::future::join_all;
use serde_json::json;
use support::{Reply, SOON};

use super::challenges::{altcha_world, create_with_pass, get_challenges_until_refused};
use super::own_claims::look_up_until_refused;
use super::{claims_sent_to_core, run, strict_world};

/// Sends requests until one is rate limited. Returns the number of accepted requests, and the rejection. One
/// after another, they would stay below the limit on a slow machine.
pub async fn until_refused<F: Future<Output = Reply>>(mut send: impl FnMut(usize) -> F) -> (usize, Reply) {
    let (began, mut count, mut burst) = (Instant::now(), 0, 0);
    while began.elapsed() < SOON {
        let replies = join_all((burst * 40..(burst + 1) * 40).map(&mut send)).await;
        count += replies.iter().filter(|reply| reply.status != 429).count();
        if let Some(refused) = replies.into_iter().find(|reply| reply.status == 429) {
            return (count, refused);
        }
        burst += 1;
    }
    panic!("none of {count} requests was rate limited");
}

#[test]
fn users_and_addresses_are_rate_limited() {
    run(async {
        let world = strict_world().await;
        world.core.create("rates", json!({})).await;
        let claim = |user: String, address: String| {
            let request = world.claim_request("rates", &user).header("CF-Connecting-IP", address);
            world.send(request)
        };
        // A run may span two periods of the limiter.
        let (count, refused) = until_refused(|n| claim("hasty".into(), format!("192.0.2.{n}"))).await;
        assert!((20..=40).contains(&count), "one user: {count}");
        let refused = refused.refused(429, "rate_limited");
        assert_eq!(refused.header("retry-after"), "10");
        assert!(claims_sent_to_core(&world, &refused).is_empty());

        let (count, refused) = until_refused(|n| claim(format!("u{n}"), "198.51.100.1".into())).await;
        assert!((60..=120).contains(&count), "one address: {count}");
        let _ = refused.refused(429, "rate_limited");
        let (count, _) = until_refused(|n| claim(format!("v{n}"), format!("2001:db8:0:1::{n:x}"))).await;
        assert!((60..=120).contains(&count), "one household: {count}");
        let _ = claim("patient".into(), "2001:db8:0:2::1".into()).await.expect(201);
    });
}

#[test]
fn lookups_and_challenges_of_a_user_are_rate_limited() {
    run(async {
        let world = altcha_world("edge-user-rates", "production").await;
        create_with_pass(&world, "user-rates").await;
        // A run may span two periods of the limiter.
        let (count, _) = look_up_until_refused(&world, "user-rates").await;
        assert!((20..=40).contains(&count), "lookups: {count}");
        let (count, _) = get_challenges_until_refused(&world, "user-rates").await;
        assert!((20..=40).contains(&count), "challenges: {count}");
    });
}

#[test]
fn bad_tokens_are_rate_limited_before_they_are_verified() {
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
        // Until the period ends, no token is verified, valid or not.
        let mut periods = 1;
        while claim(&world.token("neighbour"), flood.into()).await.status != 429 {
            assert!(periods < 4, "a valid token was verified in {periods} periods");
            periods += 1;
            until_refused(|_| claim(&forged, flood.into())).await;
        }
        let (count, refused) = until_refused(|_| look_up(&forged, flood)).await;
        assert!((60..=120).contains(&count), "lookups: {count}");
        let _ = refused.refused(429, "rate_limited");
        // An invalid token does not count against the user it names, and other addresses are not affected.
        for n in 0..45 {
            let _ = claim(&forged, format!("2001:db8:f100:{n:x}::1")).await.refused(401, "unauthenticated");
        }
        let _ = claim(&world.token("victim"), "203.0.113.2".into()).await.expect(201);
    });
}

#[test]
fn a_rejection_from_the_cache_is_not_counted() {
    run(async {
        let world = strict_world().await;
        world.core.create("free", json!({"total": 1})).await;
        let _ = world.claim("free", "winner", "k").await.expect(201);
        world.until_edge_shows("free", "sold_out").await;
        let mut refused = 0;
        for n in 0..400 {
            let request = world.first_try_request("free", &format!("u{n}"), "k");
            let reply = world.send(request.header("CF-Connecting-IP", "203.0.113.3")).await;
            let _ = reply.clone().refused(409, "sold_out");
            refused += usize::from(claims_sent_to_core(&world, &reply).is_empty());
        }
        assert!(refused > 240, "only {refused} of 400 were rejected from the cache: too few for this test");
    });
}
