//! Claims that the edge refuses without core appear in the report on their campaign, exactly.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use support::edge::{Edge, Runtime, World};
use support::times::{ms, now_ms};
use support::wait::holds;
use support::{SOON, eventually, promised};

use super::{claims_sent_to_core, open_world, run, run_alone, until_rejected_early};
use crate::dashboard::LiveStream;
use crate::report::{refused, report};

/// Default of `REFUSALS`.
const REFUSALS: usize = 10_000;
const CONNECTIONS: usize = 64;
/// Time limit until a storm is in the report and on the dashboard.
const REPORTED_WITHIN: Duration = Duration::from_secs(3);

/// Returns the claims refused with `code` that a live snapshot counts, and how many of them edges refused.
fn live(snapshot: &Value, code: &str) -> [u64; 2] {
    let reasons = snapshot["refusals"]["by_reason"].as_array().unwrap();
    let reason = reasons.iter().find(|reason| reason["code"] == code);
    ["count", "at_edges"].map(|name| reason.map_or(0, |reason| reason[name].as_u64().unwrap()))
}

/// Returns the claims refused as sold out once four snapshots in a row have the same number: the refusals of earlier
/// tests on the same edge are then reported.
async fn settled(stream: &mut LiveStream) -> [u64; 2] {
    let (mut last, mut repeated, began) = ([u64::MAX; 2], 0, Instant::now());
    while repeated < 3 {
        assert!(began.elapsed() < SOON, "not within {SOON:?}: still changing after {last:?}");
        let now = live(&stream.until("a snapshot", |_| true).await, "sold_out");
        repeated = if now == last { repeated + 1 } else { 0 };
        last = now;
    }
    last
}

/// Sends `count` first tries on a campaign; returns the responses by code, empty for a claim that was made.
async fn storm(world: &World, campaign: &str, count: usize) -> BTreeMap<String, u64> {
    let mut answers = BTreeMap::new();
    let mut replies = stream::iter(0..count)
        .map(|n| {
            world.send_once(world.first_try_request(campaign, &format!("u{}", n % 1_000), &format!("k{n}")))
        })
        .buffer_unordered(CONNECTIONS);
    while let Some(reply) = replies.next().await {
        let code = if reply.status < 300 { String::new() } else { reply.code() };
        *answers.entry(code).or_default() += 1;
    }
    answers
}

#[test]
fn a_storm_of_refusals_is_reported_exactly() {
    run_alone(async {
        let count = std::env::var("REFUSALS").map_or(REFUSALS, |count| count.parse().unwrap());
        let within = promised(REPORTED_WITHIN);
        let world = open_world().await;
        world.core.create("great-demand", json!({"total": 10})).await;
        for n in 0..10 {
            world.core.claim("great-demand", &format!("winner{n}"), "k").await.expect(201);
        }
        world.until_edge_shows("great-demand", "sold_out").await;
        let mut stream = LiveStream::open(&world.core, &world.core.admin_token()).await;
        let [refused_before, edges_before] = settled(&mut stream).await;

        let reports_sent = || world.proxy.requests_with("POST /internal/v1/refusals ").len();
        let reports_before = reports_sent();
        let began = Instant::now();
        let answers = storm(world, "great-demand", count).await;
        let reports = reports_sent() - reports_before;
        // The edge has one isolate, which sends at most one report a second.
        let reports_max = began.elapsed().as_secs() + 1;
        assert!(reports as u64 <= reports_max, "{reports} reports, at most {reports_max}");
        let (ended, ended_ms) = (Instant::now(), now_ms());
        // On a slow machine, core may decide a claim after the edge has answered that the outcome is unknown.
        let (sold_out, unknown) = (answers["sold_out"], answers.get("unavailable").copied().unwrap_or(0));
        assert_eq!(sold_out + unknown, count as u64, "{answers:?}");

        let reported = eventually(SOON, || async {
            let reported = report(&world.core, "great-demand").await;
            let [at_edges, at_core] = refused(&reported, "sold_out");
            holds(at_edges + at_core >= sold_out, || format!("{at_edges} + {at_core}")).map(|()| reported)
        })
        .await;
        let took = ended.elapsed();
        let [at_edges, at_core] = refused(&reported, "sold_out");
        assert!(
            (sold_out..=count as u64).contains(&(at_edges + at_core)),
            "not exact: {at_edges} + {at_core}"
        );
        println!(
            "{count} refusals in {:.1?}: {} at the edge, {} at core; reported {took:.2?} after the last",
            ended - began,
            at_edges,
            at_core
        );
        assert!(at_core < count as u64 / 10, "the edge refuses nearly all");
        assert!(took < within, "reported after {took:?}");

        let all = [refused_before + at_edges + at_core, edges_before + at_edges];
        let shown = stream.until("the storm", |snapshot| live(snapshot, "sold_out")[0] >= all[0]).await;
        assert_eq!(live(&shown, "sold_out"), all, "not exact on the dashboard");
        let took_ms = ms(shown["at"].as_str().unwrap()) - ended_ms;
        assert!(took_ms < within.as_millis().try_into().unwrap(), "on the dashboard after {took_ms} ms");
        let metric = r#"claimgate_edge_refusals_total{campaign="great-demand",reason="sold_out"}"#;
        assert_eq!(world.core.metric::<u64>(metric).await, Some(at_edges));

        // One more second than the storm took, since it may begin and end within a second.
        let peak = reported["refusals"]["peak"]["per_s"].as_u64().unwrap();
        let seconds = (ended - began).as_secs() + 2;
        assert!(peak * seconds >= at_edges + at_core, "at most {peak} a second in {seconds} s");
        let claims = &reported["claims"];
        assert_eq!(
            (&claims["made"], &claims["users"], &claims["taken"]),
            (&json!(10), &json!(10), &json!(10))
        );
        assert!(reported["sold_out_after_s"].as_f64().is_some(), "{reported:#}");
    });
}

#[test]
fn every_reason_of_the_edge_is_counted() {
    run(async {
        let world = open_world().await;
        world.core.create("many-reasons", json!({"total": 5})).await;
        let _ = world.view("many-reasons").await.expect(200);
        let no_token = world.request("POST", "/v1/campaigns/many-reasons/claims").json(&json!({}));
        let bad_body = world.claim_request("many-reasons", "u").body("{");
        let bad_type = world.claim_request("many-reasons", "u").header("Content-Type", "text/plain");
        for (count, request) in [(3, no_token), (2, bad_body), (1, bad_type)] {
            for _ in 0..count {
                let _ = world.send(request.try_clone().unwrap()).await;
            }
        }
        world.core.set_admin_state("many-reasons", "pause").await.expect(200);
        let _ = until_rejected_early(world, "many-reasons", "paused").await;
        let wanted = [("unauthenticated", 3), ("invalid_request", 2), ("unsupported_media_type", 1)];
        eventually(SOON, || async {
            let reported = report(&world.core, "many-reasons").await;
            let is_counted = wanted.iter().all(|(reason, count)| refused(&reported, reason)[0] == *count)
                && refused(&reported, "paused")[0] >= 2;
            holds(is_counted, || reported["refusals"].to_string())
        })
        .await;
    });
}

#[test]
fn made_up_ids_are_counted_together() {
    run(async {
        let world = open_world().await;
        let metric = r#"claimgate_edge_refusals_total{campaign="(unknown)",reason="unauthenticated"}"#;
        let before = world.core.metric::<u64>(metric).await.unwrap_or(0);
        for n in 0..300 {
            let path = format!("/v1/campaigns/made-up-demand-{n}/claims");
            let request = world.request("POST", &path).json(&json!({}));
            let _ = world.send(request).await.refused(401, "unauthenticated");
        }
        eventually(SOON, || async {
            let now = world.core.metric::<u64>(metric).await.unwrap_or(0);
            holds(now >= before + 300, || format!("{} of 300", now - before))
        })
        .await;
        let text = world.core.admin_get("/metrics").await.expect(200).text();
        assert!(!text.contains("made-up-demand"), "made-up ids are in the metrics");
        let rows = "SELECT COUNT(*) FROM refusals WHERE campaign_id LIKE $1 || '%'";
        assert_eq!(world.core.sql().number(rows, "made-up-demand").await, 0, "made-up ids are in SQL");
    });
}

#[test]
fn a_report_whose_answer_is_lost_counts_once() {
    run(async {
        let world = World::start(Runtime::from_env(), "edge-demand", "test", &[]).await;
        world.core.create("lossy", json!({"total": 5})).await;
        let request = world.request("POST", "/v1/campaigns/lossy/claims").json(&json!({}));
        world.proxy.lose_all_answers(true);
        for _ in 0..7 {
            let _ = world.send_once(request.try_clone().unwrap()).await.refused(401, "unauthenticated");
        }
        // Core has counted the first report, but the edge does not know. On a slow machine the last calls are
        // in a later report.
        eventually(SOON, || async {
            let reported = report(&world.core, "lossy").await;
            let [at_edges, at_core] = refused(&reported, "unauthenticated");
            holds(at_edges >= 1 && at_core == 0, || reported["refusals"].to_string())
        })
        .await;
        let _ = world.send_once(request).await.refused(401, "unauthenticated");
        world.proxy.lose_all_answers(false);
        let reported = eventually(SOON, || async {
            let reported = report(&world.core, "lossy").await;
            holds(refused(&reported, "unauthenticated")[0] >= 8, || reported["refusals"].to_string())
                .map(|()| reported)
        })
        .await;
        assert_eq!(refused(&reported, "unauthenticated"), [8, 0]);
        let sent = world.proxy.requests_with("POST /internal/v1/refusals ");
        let number =
            |text: &String| text.split_once(r#""number":"#).unwrap().1.split(',').next().map(str::to_owned);
        let numbers: Vec<_> =
            sent.iter().filter(|text| text.contains(r#""number":"#)).filter_map(number).collect();
        assert!(numbers.iter().filter(|number| *number == "1").count() > 1, "not sent again: {numbers:?}");
    });
}

/// Sends `count` claims to `edge` that it refuses as `invalid_request`.
async fn refuse(world: &World, edge: &Edge, campaign: &str, count: usize) {
    for _ in 0..count {
        let request = world.claim_request_at(edge, campaign, "u").body("{");
        let _ = world.send_once(request).await.refused(400, "invalid_request");
    }
}

#[test]
fn an_edge_that_stops_loses_only_what_it_has_not_reported() {
    run(async {
        let world = World::start(Runtime::from_env(), "edge-demand-first", "test", &[]).await;
        world.core.create("stopped", json!({"total": 5})).await;
        let core_url = format!("http://{}", world.core.listen());
        let (edge_key, user_key) = (world.core.data_file("edge.key"), world.core.data_file("user-jwt.key"));
        let variables =
            [("CORE_URL", core_url.as_str()), ("EDGE_KEY", &edge_key), ("USER_JWT_KEY", &user_key)];
        let start = || Edge::start(Runtime::from_env(), "edge-demand-second", "test", &variables);
        let edge = start().await;
        let until_counted = async |reason: &str, count: u64| {
            eventually(SOON, || async {
                let reported = report(&world.core, "stopped").await;
                let [at_edges, _] = refused(&reported, reason);
                holds(at_edges >= count, || format!("{at_edges} of {count}")).map(|()| reported)
            })
            .await
        };
        refuse(&world, &edge, "stopped", 50).await;
        let reported = until_counted("invalid_request", 50).await;
        assert_eq!(refused(&reported, "invalid_request"), [50, 0]);
        refuse(&world, &edge, "stopped", 7).await;
        drop(edge);

        let edge = start().await;
        for _ in 0..5 {
            let request = world.claim_request_at(&edge, "stopped", "u").header("Content-Type", "text/plain");
            let _ = world.send_once(request).await;
        }
        // Core writes reports in the order of their arrival.
        let reported = until_counted("unsupported_media_type", 5).await;
        assert_eq!(refused(&reported, "unsupported_media_type"), [5, 0]);
        let [at_edges, at_core] = refused(&reported, "invalid_request");
        assert!((50..=57).contains(&at_edges) && at_core == 0, "{at_edges} + {at_core}");
        println!("{} of 7 unreported refusals were lost", 57 - at_edges);
    });
}

#[test]
fn no_claim_waits_for_a_report() {
    run_alone(async {
        let world = World::start(Runtime::from_env(), "edge-demand-stalled", "test", &[]).await;
        for (campaign, total) in [("many", 1_000), ("none", 0)] {
            world.core.create(campaign, json!({"total": total})).await;
        }
        world.until_edge_shows("none", "sold_out").await;
        world.proxy.stall_reports(true);
        let mut sold_out = 0;
        // The second report is sent after the timeout of the first.
        for reports in 1..=2 {
            eventually(SOON, || async {
                refuse(&world, &world.edge, "many", 1).await;
                let stalled = world.proxy.stalled_reports();
                holds(stalled >= reports, || format!("{stalled} reports are stalled"))
            })
            .await;
            for n in 0..20 {
                let user = format!("u{reports}-{n}");
                let _ = world.send(world.keyed_request("many", &user, "k")).await.expect(201);
                let early = world.send_once(world.first_try_request("none", &user, "k")).await;
                let early = early.refused(409, "sold_out");
                sold_out += u64::from(claims_sent_to_core(&world, &early).is_empty());
            }
        }
        assert!(sold_out > 0, "the edge refuses without core");
        let reported = report(&world.core, "many").await;
        assert_eq!(refused(&reported, "invalid_request"), [0, 0], "reports were not stalled");
        world.proxy.stall_reports(false);
        // Core receives the first report several times.
        let reported = eventually(SOON, || async {
            refuse(&world, &world.edge, "many", 1).await;
            let reported = report(&world.core, "none").await;
            let [at_edges, _] = refused(&reported, "sold_out");
            holds(at_edges >= sold_out, || format!("{at_edges} of {sold_out}")).map(|()| reported)
        })
        .await;
        assert_eq!(refused(&reported, "sold_out")[0], sold_out);
    });
}
