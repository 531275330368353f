//! A crowd before the edge, and how much of it core gets to see.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use support::Reply;
use support::core_client::campaign;
use support::edge::World;

use super::edge::{open_world, run_alone};

const CROWD: usize = 10_000;
const CONNECTIONS: usize = 64;
const TOTAL: usize = 100;
/// Two snapshots of one campaign are asked for at least so far apart.
const APART_MS_MIN: u128 = 300;
/// How long the edge remembers that core does not know a campaign.
const UNKNOWN_MS: u128 = 1_000;

fn passed_on(world: &World, line: &str) -> usize {
    world.proxy.said(line).iter().map(|text| text.matches(line).count()).sum()
}

#[test]
fn of_ten_thousand_first_tries_core_sees_few() {
    run_alone(async {
        let world = open_world().await;
        world.core.create("first-tries", json!({"total": TOTAL})).await;
        let claims = passed_on(world, "POST /internal/v1/claims ");
        let views = passed_on(world, "GET /internal/v1/campaigns/first-tries ");
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
        let claims = passed_on(world, "POST /internal/v1/claims ") - claims;
        let views = passed_on(world, "GET /internal/v1/campaigns/first-tries ") - views;
        println!(
            "{CROWD} first tries in {took:.1?}: {claims} of them reached core ({} per mille), and {views} \
             snapshots were asked for",
            claims * 1000 / CROWD
        );
        assert!(claims * 100 <= CROWD * 3, "{claims} of {CROWD} reached core");
        // On a slow machine some are told to ask again.
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
fn of_ten_thousand_views_core_sees_a_few_snapshots() {
    run_alone(async {
        let world = open_world().await;
        world.core.create("looked-at", json!({"total": 7})).await;
        let line = "GET /internal/v1/campaigns/looked-at ";
        let before = passed_on(world, line);
        let began = Instant::now();
        let mut statuses = BTreeMap::<u16, usize>::new();
        // Half of them have seen the page before.
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
        let (took, asked) = (began.elapsed(), passed_on(world, line) - before);
        println!("{CROWD} views in {took:.1?}: core was asked {asked} times");
        assert_eq!(statuses, BTreeMap::from([(200, CROWD / 2), (304, CROWD / 2)]));
        let most = 2 + took.as_millis() / APART_MS_MIN;
        assert!(u128::try_from(asked).unwrap() <= most, "{asked} snapshots in {took:?}");
    });
}

#[test]
fn a_cold_edge_asks_for_a_campaign_once_however_many_look() {
    run_alone(async {
        let world = open_world().await;
        world.core.create("cold", json!({"total": 7})).await;
        let line = "GET /internal/v1/campaigns/cold ";
        let looks = stream::iter(0..200).map(|_| world.view("cold")).buffer_unordered(200);
        let began = Instant::now();
        let statuses: Vec<u16> = looks.map(|reply| reply.status).collect().await;
        let most = 1 + began.elapsed().as_millis() / APART_MS_MIN;
        assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
        let asked = passed_on(world, line);
        assert!(u128::try_from(asked).unwrap() <= most, "{asked} snapshots for 200 who look at once");
    });
}

#[test]
fn made_up_campaigns_reach_core_once_each() {
    run_alone(async {
        let world = open_world().await;
        let before = passed_on(world, "/internal/v1/campaigns/made-up-");
        let mut most = 0;
        for n in 0..20 {
            let began = Instant::now();
            for _ in 0..3 {
                let _ = world.view(&format!("made-up-{n}")).await.refused(404, "campaign_not_found");
            }
            most += 1 + began.elapsed().as_millis() / UNKNOWN_MS;
        }
        let asked = passed_on(world, "/internal/v1/campaigns/made-up-") - before;
        assert!(u128::try_from(asked).unwrap() <= most, "20 made-up ids were asked for {asked} times");
        // Without a token core is not even asked what the campaign is.
        let request = world.request("POST", "/v1/campaigns/made-up-claim/claims").json(&json!({}));
        let _ = world.send(request).await.refused(401, "unauthenticated");
        assert_eq!(passed_on(world, "made-up-claim"), 0);
    });
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
            .map(|(user, key)| async move { world.first_try("crowd", &user, key).await })
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
        let rows = world.core.sql().until("crowd", 100).await;
        assert!(rows.iter().map(|row| row.sequence).eq(1..=100));
        assert_eq!(rows.iter().map(|row| &row.user_id).collect::<BTreeSet<_>>().len(), 100);
    });
}
