//! The report on a campaign's demand: what it counts, its forms, and who may send what it is made of.

use reqwest::Method;
use serde_json::{Value, json};
use support::available::available;
use support::clock::FrozenClock;
use support::core_client::{API_TOKEN, campaign};
use support::pair::{EDGE_KEY, Pair};
use support::signing::Signed;
use support::times::now_ms;
use support::wait::{holds, until_status};
use support::{Core, CoreOptions, Reply, SOON, Servers, eventually};

use crate::command_line::run_against;

/// Returns the report on a campaign.
pub(crate) async fn report(core: &Core, campaign: &str) -> Value {
    core.admin_get(&format!("/admin/v1/campaigns/{campaign}/report")).await.expect(200).json()
}

/// Returns the refusals of a report for `reason`: at edges, and at core.
pub(crate) fn refused(report: &Value, reason: &str) -> [u64; 2] {
    let reasons = report["refusals"]["by_reason"].as_array().unwrap();
    let count = reasons.iter().find(|count| count["reason"] == reason);
    ["at_edges", "at_core"].map(|name| count.map_or(0, |count| count[name].as_u64().unwrap()))
}

/// Returns the report in another media type.
async fn report_as(core: &Core, campaign: &str, media_type: &str) -> Reply {
    let url = core.admin_url(&format!("/admin/v1/campaigns/{campaign}/report"));
    let request = core.client().request(Method::GET, &url).bearer_auth(core.admin_token());
    core.client().send(request.header("Accept", media_type)).await.expect("an answer").expect(200)
}

fn refusal(campaign: &str, reason: &str, count: u32) -> Value {
    json!({"campaign_id": campaign, "reason": reason, "at_s": now_ms() / 1_000, "count": count})
}

fn body(number: u64, refusals: &[Value]) -> Value {
    json!({"reporter": "an-isolate", "number": number, "refusals": refusals})
}

/// Starts a core with a small sale: of 3 units in 2 claims, with 4 refusals by core and 5 by an edge. Core
/// also counts each 503 as a refusal, so another core is started if a claim was repeated.
async fn small_sale() -> Core {
    for _ in 0..5 {
        let core = Core::start().await;
        if sell(&core).await == 0 {
            return core;
        }
    }
    panic!("calls were repeated on each of five cores");
}

/// Makes the sale, and returns the number of repeated calls. If there are none, the report is complete.
async fn sell(core: &Core) -> u32 {
    core.create_with(campaign("sale", json!({"total": 3, "per_user": 2, "per_claim": 2}))).await;
    let replies = [
        core.claim_units("sale", "alice", "a", 2).await.expect(201),
        core.claim_units("sale", "alice", "b", 1).await.refused(409, "user_limit_reached"),
        core.claim("sale", "bob", "a").await.expect(201),
        core.claim("sale", "carol", "a").await.refused(409, "sold_out"),
        core.claim("sale", "dave", "a").await.refused(409, "sold_out"),
        core.claim_units("sale", "eve", "a", 9).await.refused(422, "quantity_out_of_range"),
    ];
    let repeats: u32 = replies.iter().map(|reply| reply.repeats).sum();
    if repeats > 0 {
        return repeats;
    }
    let edges = body(1, &[refusal("sale", "rate_limited", 4), refusal("sale", "sold_out", 1)]);
    Signed::report(&core.data_file("edge.key"), &edges).send(core).await.expect(200);
    core.sql().until("sale", 2).await;
    eventually(SOON, || async {
        let reported = report(core, "sale").await;
        holds(reported["refusals"]["at_core"] == 4, || reported["refusals"].to_string())
    })
    .await;
    0
}

#[tokio::test]
async fn the_report_of_a_small_sale_equals_a_count_by_hand() {
    let core = small_sale().await;
    let reported = report(&core, "sale").await;
    let claims = &reported["claims"];
    assert_eq!(
        (&claims["made"], &claims["users"], &claims["units"], &claims["taken"]),
        (&json!(2), &json!(2), &json!(3), &json!(3))
    );
    assert_eq!(
        reported["refusals"]["by_reason"],
        json!([
            {"reason": "quantity_out_of_range", "at_edges": 0, "at_core": 1},
            {"reason": "rate_limited", "at_edges": 4, "at_core": 0},
            {"reason": "sold_out", "at_edges": 1, "at_core": 2},
            {"reason": "user_limit_reached", "at_edges": 0, "at_core": 1},
        ])
    );
    assert_eq!(reported["refusals"]["total"], 9);
    let rows = core.sql().claims("sale").await;
    let sold_out_ms = support::times::ms(reported["sold_out_at"].as_str().unwrap());
    assert_eq!(sold_out_ms, rows[1].claimed_at, "bob took the last unit");
    let opened_ms = support::times::ms(reported["opened_at"].as_str().unwrap());
    #[allow(clippy::cast_precision_loss)] // seconds
    let after_s = (sold_out_ms - opened_ms) as f64 / 1_000.0;
    assert_eq!(reported["sold_out_after_s"], json!(after_s));
    let sum = |timeline: &Value, name: &str| -> u64 {
        timeline["slices"].as_array().unwrap().iter().map(|slice| slice[name].as_u64().unwrap()).sum()
    };
    let timeline = &reported["timeline"];
    assert_eq!(
        ["claims", "refused_at_edges", "refused_at_core"].map(|name| sum(timeline, name)),
        [2, 5, 4],
        "{timeline:#}"
    );
    // A returned claim stays a claim that was made, but its units are free.
    let id = core.sql().claims("sale").await[1].id.clone();
    core.transition(&id, "return").await.expect(200);
    eventually(SOON, || async {
        let reported = report(&core, "sale").await;
        let claims = &reported["claims"];
        let is_returned = claims["by_status"]["returned"] == 1 && claims["taken"] == 2 && claims["made"] == 2;
        holds(is_returned && reported["sold_out_at"].is_string(), || claims.to_string())
    })
    .await;
}

#[tokio::test]
async fn the_peak_of_a_small_sale_equals_a_count_by_hand() {
    let begins_ms = now_ms() / 1_000 * 1_000;
    let mut clock = FrozenClock::at(begins_ms);
    let servers = Servers::start_frozen(&clock).await;
    let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", servers.url()).start().await;
    core.create("sale", json!({"total": 6})).await;
    // One claim in the first second, three in the next, two in the last.
    for (user, after_ms) in [999, 1_000, 1_500, 1_999, 2_000, 2_001].into_iter().enumerate() {
        servers.set_frozen_clock(&mut clock, begins_ms + after_ms).await;
        core.claim("sale", &format!("u{user}"), "k").await.expect(201);
    }
    core.sql().until("sale", 6).await;
    let reported = report(&core, "sale").await;
    let peak = &reported["claims"]["peak"];
    assert_eq!(peak["per_s"], 3, "{reported:#}");
    assert_eq!(support::times::ms(peak["at"].as_str().unwrap()), begins_ms + 1_000);
}

#[tokio::test]
async fn the_report_has_all_forms() {
    let core = small_sale().await;
    let csv = report_as(&core, "sale", "text/csv").await;
    assert_eq!(csv.header("content-type"), "text/csv; charset=utf-8");
    let text = csv.text();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("at,seconds,claims,units,refused_at_edges,refused_at_core"));
    let mut sums = [0_u64; 4];
    for line in lines {
        let cells: Vec<_> = line.split(',').collect();
        assert_eq!(cells.len(), 6, "{line}");
        let at: claimgate_shared::Timestamp = cells[0].parse().unwrap();
        assert_eq!(at.as_ms() % 1000, 0, "{line}");
        assert_eq!(cells[1], "1");
        for (sum, cell) in sums.iter_mut().zip(&cells[2..]) {
            *sum += cell.parse::<u64>().unwrap();
        }
    }
    assert_eq!(sums, [2, 3, 5, 4], "{text}");
    let page = report_as(&core, "sale", "text/html").await;
    assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
    assert!(page.text().contains("<svg") && page.text().contains("rate_limited"), "{}", page.text());
    // Generated clients accept every type.
    let all = report_as(&core, "sale", "application/json, text/csv, text/html").await;
    assert_eq!(all.json()["campaign_id"], "sale");
}

#[tokio::test]
async fn a_campaign_without_claims_has_an_empty_report() {
    let core = Core::start().await;
    core.create("quiet", json!({"total": 3})).await;
    let reported = report(&core, "quiet").await;
    assert_eq!((&reported["claims"]["made"], &reported["refusals"]["total"]), (&json!(0), &json!(0)));
    assert_eq!((&reported["sold_out_at"], &reported["timeline"]["slices"]), (&Value::Null, &json!([])));
    assert_eq!(report_as(&core, "quiet", "text/csv").await.text().lines().count(), 1);
    assert!(report_as(&core, "quiet", "text/html").await.text().contains("No claim was made"));
    core.admin_get("/admin/v1/campaigns/none/report").await.refused(404, "campaign_not_found");
}

#[tokio::test]
async fn the_command_prints_the_report_in_eighty_columns() {
    let core = small_sale().await;
    let text = run_against(&core, &["report", "sale"]).await.ended(0).out;
    for part in ["refused for", "rate_limited", "most claims a second", "Sold out"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let width = text.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(width <= 80, "{width} columns:\n{text}");
    println!("{text}");
    let json = run_against(&core, &["report", "sale", "--json"]).await.ended(0).json();
    assert_eq!(json["refusals"]["total"], 9);
    let csv = run_against(&core, &["report", "sale", "--csv"]).await.ended(0).out;
    assert!(csv.starts_with("at,seconds,claims") && !csv.ends_with("\n\n"), "{csv}");
    let file = core.data_dir().join("report.html");
    let written = run_against(&core, &["report", "sale", "--page", file.to_str().unwrap()]).await.ended(0);
    assert!(written.out.contains("refused for"), "{written:?}");
    assert!(std::fs::read_to_string(&file).unwrap().contains("<svg"));
    run_against(&core, &["report", "sale", "--page", file.to_str().unwrap()])
        .await
        .ended(2)
        .one_line("report.html");
    run_against(&core, &["report", "sal"]).await.ended(1).one_line("there is no campaign sal");
}

#[tokio::test]
async fn only_the_edge_may_report_refusals() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 3})).await;
    let good = body(1, &[refusal("demo", "sold_out", 5)]);
    let signed = Signed::report(&core.data_file("edge.key"), &good);
    for token in [API_TOKEN.to_owned(), core.admin_token()] {
        let url = core.url("/internal/v1/refusals");
        core.client().call(Method::POST, &url, &token, &good).await.refused(403, "forbidden");
    }
    let forged = Signed { key: vec![7; 32], ..signed.clone() };
    forged.send(&core).await.refused(401, "unauthenticated");
    let other = Signed { body: body(1, &[refusal("demo", "sold_out", 6)]).to_string(), ..signed.clone() };
    other.send_signed(&core, &signed.signature()).await.refused(401, "unauthenticated");
    other
        .send_with_hash(&core, &signed.signature(), &signed.body_hash())
        .await
        .refused(401, "unauthenticated");
    let long: Vec<_> = (0..100).map(|n| refusal(&format!("c{n}"), "sold_out", 1)).collect();
    let long = Signed::report(&core.data_file("edge.key"), &body(1, &long));
    long.send(&core).await.refused(413, "payload_too_large");
    for bad in [
        json!({}),
        json!({"reporter": "r", "number": -1, "refusals": []}),
        json!({"reporter": "a b", "number": 1, "refusals": []}),
        body(1, &[json!({"campaign_id": "demo", "reason": "sold_out", "at_s": 1})]),
        body(1, &[refusal("a b", "sold_out", 1)]),
        body(1, &[json!({"campaign_id": "demo", "reason": "sold_out", "at_s": 1, "count": -1})]),
    ] {
        let signed = Signed::report(&core.data_file("edge.key"), &bad);
        signed.send(&core).await.refused(400, "invalid_request");
    }
    let reported = report(&core, "demo").await;
    assert_eq!(reported["refusals"]["total"], 0, "a rejected report was counted");
}

#[tokio::test]
async fn a_report_that_is_sent_again_counts_once_through_any_core() {
    let pair = Pair::start(CoreOptions::default()).await;
    let Some(pair) = available("a report sent to two cores", pair) else { return };
    let [one, other] = &pair.cores;
    one.create("demo", json!({"total": 3})).await;
    // Metrics name only campaigns that the core knows.
    other.campaign("demo").await;
    let signed = Signed::report(EDGE_KEY, &body(1, &[refusal("demo", "sold_out", 5)]));
    for core in [one, one, other, other, one] {
        until_status(SOON, &[200], async || signed.send(core).await).await;
    }
    // At once: of two transactions with the same number, one waits for the other.
    let next =
        Signed::report(EDGE_KEY, &body(2, &[refusal("demo", "sold_out", 7), refusal("none", "paused", 9)]));
    let sent = futures_util::future::join_all((0..20).map(|n| next.send(&pair.cores[n % 2]))).await;
    assert!(sent.iter().all(|reply| reply.status == 200), "{sent:?}");
    for core in &pair.cores {
        let reported = report(core, "demo").await;
        assert_eq!(refused(&reported, "sold_out"), [12, 0]);
        assert_eq!(reported["refusals"]["total"], 12, "only the campaign's own");
    }
    let mut metrics = [0_u64; 2];
    for core in &pair.cores {
        for (sum, campaign) in metrics.iter_mut().zip(["demo", "(unknown)"]) {
            let reason = if campaign == "demo" { "sold_out" } else { "paused" };
            let name = format!(r#"claimgate_edge_refusals_total{{campaign="{campaign}",reason="{reason}"}}"#);
            *sum += core.metric::<u64>(&name).await.unwrap_or(0);
        }
    }
    assert_eq!(metrics, [12, 9], "over both cores");
}

#[tokio::test]
async fn refusals_of_the_distant_past_and_the_future_are_bounded() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 3})).await;
    let at = |offset_s: i64, count: u32| json!({"campaign_id": "demo", "reason": "paused", "at_s": now_ms() / 1_000 + offset_s, "count": count});
    let refusals = [at(-3_400, 1), at(-3_000, 2), at(900, 4)];
    Signed::report(&core.data_file("edge.key"), &body(1, &refusals)).send(&core).await.expect(200);
    let reported = report(&core, "demo").await;
    assert_eq!(refused(&reported, "paused"), [6, 0], "too old to be recognized if it is sent again");
    let begins = support::times::ms(reported["timeline"]["begins_at"].as_str().unwrap());
    assert!((now_ms() - begins).abs() < 3_200_000, "{reported:#}");
}
