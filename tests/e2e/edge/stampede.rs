//! Many callers at the edge, and how many of their calls reach core.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use support::Reply;
use support::core_client::campaign;
use support::edge::World;

use super::{open_world, run_alone};

const CROWD: usize = 10_000;
const CONNECTIONS: usize = 64;
const TOTAL: usize = 100;
/// Minimum time between two snapshots of one campaign.
const APART_MS_MIN: u128 = 300;
/// TTL in the edge's cache of a campaign that does not exist.
const UNKNOWN_MS: u128 = 1_000;

fn calls_to_core(world: &World, line: &str) -> usize {
    world.proxy.requests_with(line).iter().map(|text| text.matches(line).count()).sum()
}

#[test]
fn few_of_ten_thousand_first_tries_reach_core() {
    run_alone(async {
        let world = open_world().await;
        world.core.create("first-tries", json!({"total": TOTAL})).await;
        let claims = calls_to_core(world, "POST /internal/v1/claims ");
        let views = calls_to_core(world, "GET /internal/v1/campaigns/first-tries ");
        let began = Instant::now();
        let mut replies: Vec<(String, Reply)> = stream::iter((0..CROWD).map(|n| format!("u{n}")))
            .map(async |user| {
                let request = world.first_try_request("first-tries", &user, "k");
                (user, world.send_once(request).await)
            })
            .buffer_unordered(CONNECTIONS)
            .collect()
            .await;
        let took = began.elapsed();
        let claims = calls_to_core(world, "POST /internal/v1/claims ") - claims;
        let views = calls_to_core(world, "GET /internal/v1/campaigns/first-tries ") - views;
        println!(
            "{CROWD} first tries in {took:.1?}: {claims} of them reached core ({} per mille), and {views} \
             snapshots were requested",
            claims * 1000 / CROWD
        );
        assert!(claims * 100 <= CROWD * 3, "{claims} of {CROWD} reached core");
        // On a slow machine, some claims get a 503.
        let mut winners = 0;
        for (user, reply) in &mut replies {
            if reply.status == 503 {
                *reply = world.claim("first-tries", user, "k").await;
            }
            match (reply.status, reply.code().as_str()) {
                (200 | 201, _) => winners += 1,
                refused => assert_eq!(refused, (409, "sold_out"), "{user}"),
            }
        }
        assert_eq!(winners, TOTAL);
        assert_eq!(world.core.sql().until("first-tries", TOTAL).await.len(), TOTAL);
    });
}

#[test]
fn few_of_ten_thousand_views_reach_core() {
    run_alone(async {
        let world = open_world().await;
        world.core.create("looked-at", json!({"total": 7})).await;
        let line = "GET /internal/v1/campaigns/looked-at ";
        let before = calls_to_core(world, line);
        let began = Instant::now();
        let mut statuses = BTreeMap::<u16, usize>::new();
        // Half of the viewers have a cached copy.
        let etag = world.view("looked-at").await.expect(200).header("etag").to_owned();
        let views = (0..CROWD).map(|n| {
            let request = world.request("GET", "/v1/campaigns/looked-at");
            if n % 2 == 0 { request } else { request.header("If-None-Match", &etag) }
        });
        let mut replies =
            stream::iter(views).map(|request| world.send(request)).buffer_unordered(CONNECTIONS);
        while let Some(reply) = replies.next().await {
            *statuses.entry(reply.status).or_default() += 1;
        }
        let (took, calls) = (began.elapsed(), calls_to_core(world, line) - before);
        println!("{CROWD} views in {took:.1?}: {calls} calls to core");
        assert_eq!(statuses, BTreeMap::from([(200, CROWD / 2), (304, CROWD / 2)]));
        let most = 2 + took.as_millis() / APART_MS_MIN;
        assert!(u128::try_from(calls).unwrap() <= most, "{calls} snapshots in {took:?}");
    });
}

#[test]
fn a_cold_edge_fetches_a_campaign_once_for_many_viewers() {
    run_alone(async {
        let world = open_world().await;
        world.core.create("cold", json!({"total": 7})).await;
        let line = "GET /internal/v1/campaigns/cold ";
        let viewers = stream::iter(0..200).map(|_| world.view("cold")).buffer_unordered(200);
        let began = Instant::now();
        let statuses: Vec<u16> = viewers.map(|reply| reply.status).collect().await;
        let most = 1 + began.elapsed().as_millis() / APART_MS_MIN;
        assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
        let calls = calls_to_core(world, line);
        assert!(u128::try_from(calls).unwrap() <= most, "{calls} snapshots for 200 concurrent views");
    });
}

#[test]
fn each_unknown_campaign_reaches_core_once() {
    run_alone(async {
        let world = open_world().await;
        let before = calls_to_core(world, "/internal/v1/campaigns/made-up-");
        let mut most = 0;
        for n in 0..20 {
            let began = Instant::now();
            for _ in 0..3 {
                let _ = world.view(&format!("made-up-{n}")).await.refused(404, "campaign_not_found");
            }
            most += 1 + began.elapsed().as_millis() / UNKNOWN_MS;
        }
        let calls = calls_to_core(world, "/internal/v1/campaigns/made-up-") - before;
        assert!(u128::try_from(calls).unwrap() <= most, "{calls} calls to core for 20 made-up ids");
        // Without a token, not even the campaign is requested from core.
        let request = world.request("POST", "/v1/campaigns/made-up-claim/claims").json(&json!({}));
        let _ = world.send(request).await.refused(401, "unauthenticated");
        assert_eq!(calls_to_core(world, "made-up-claim"), 0);
    });
}

#[test]
fn exactly_a_hundred_of_two_thousand_claims_are_granted() {
    run_alone(async {
        let world = open_world().await;
        let limits = json!({"total": 100, "per_user": 3, "per_user_per_day": 1, "per_claim": 1});
        world.core.create_with(campaign("crowd", limits)).await;
        let claims = (0..2000).map(|n| (format!("u{}", n % 1000), if n < 1000 { "a" } else { "b" }));
        let began = Instant::now();
        let replies: Vec<Reply> = stream::iter(claims)
            .map(|(user, key)| async move { world.first_try("crowd", &user, key).await })
            .buffer_unordered(2000)
            .collect()
            .await;
        let took = began.elapsed();
        let forwarded = world.proxy.requests_with("POST /internal/v1/claims ").concat();
        let reached = replies.iter().filter(|reply| forwarded.contains(reply.header("x-request-id"))).count();
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
        let rows = world.core.sql().until("crowd", 100).await;
        assert!(rows.iter().map(|row| row.sequence).eq(1..=100));
        assert_eq!(rows.iter().map(|row| &row.user_id).collect::<BTreeSet<_>>().len(), 100);
    });
}
