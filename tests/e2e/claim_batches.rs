//! In a batch, each claim has the same outcome as in a separate request.

use std::cell::Cell;

use futures_util::future::{join_all, select_all};
use reqwest::Method;
use serde_json::{Value, json};
use support::client::client;
use support::core_client::API_TOKEN;
use support::events::record;
use support::signing::Signed;
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, Sql, claim_body, eventually};

use crate::on_postgres::on_postgres;

const PATH: &str = "/internal/v1/claims/batch";

/// Returns the status of each result, and the code of a problem.
fn outcomes(reply: &Reply) -> Vec<(u64, String)> {
    let results = reply.json()["results"].as_array().expect("results").clone();
    let outcome = |result: &Value| {
        let code = result["body"]["code"].as_str().unwrap_or_default();
        (result["status"].as_u64().expect("a status"), code.to_owned())
    };
    results.iter().map(outcome).collect()
}

fn outcome(status: u64, code: &str) -> (u64, String) {
    (status, code.to_owned())
}

/// Checks each result. In a resent batch, a claim may have been granted by the first request.
fn check(reply: &Reply, expected: &[(u64, String)]) {
    let mut found = outcomes(reply);
    for (found, expected) in found.iter_mut().zip(expected) {
        if reply.repeats > 0 && (found.0, expected.0) == (200, 201) {
            found.0 = 201;
        }
    }
    assert_eq!(found, expected);
}

/// Returns the number of claims that the batch has made.
fn granted(reply: &Reply) -> usize {
    outcomes(reply)
        .iter()
        .filter(|(status, _)| *status == 201 || (reply.repeats > 0 && *status == 200))
        .count()
}

#[tokio::test]
async fn each_claim_has_its_own_outcome_in_request_order() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 3, "per_user": 1})).await;
    core.create("other", json!({"total": 1})).await;
    let claims = [
        claim_body("demo", "alice", "k", 1),
        json!({"campaign_id": "demo", "user_id": 7}),
        claim_body("nowhere", "alice", "k", 1),
        claim_body("demo", "bob", "k", 0),
        claim_body("other", "bob", "k", 1),
        claim_body("demo", "carol", "k", 2),
    ];
    let reply = core.claim_batch(&claims).await.expect(200);
    let expected = [
        outcome(201, ""),
        outcome(400, "invalid_request"),
        outcome(404, "campaign_not_found"),
        outcome(422, "quantity_out_of_range"),
        outcome(201, ""),
        outcome(409, "user_limit_reached"),
    ];
    check(&reply, &expected);
    let results = reply.json()["results"].clone();
    let alone = core.claim("demo", "alice", "k").await.expect(200).json();
    assert_eq!(results[0]["body"]["claim"], alone["claim"], "the body equals the one of a single claim");
    assert_eq!(results[1]["body"]["instance"], reply.header("x-request-id"));
    assert_eq!(results[1]["body"]["field"], "user_id");
    assert_eq!(core.sql().until("demo", 1).await.len(), 1);
}

#[tokio::test]
async fn equal_keys_are_decided_in_request_order() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 100})).await;
    let twice = [
        claim_body("demo", "alice", "k", 2),
        claim_body("demo", "bob", "k", 1),
        claim_body("demo", "alice", "k", 2),
        claim_body("demo", "alice", "k", 5),
    ];
    let reply = core.claim_batch(&twice).await.expect(200);
    let expected =
        [outcome(201, ""), outcome(201, ""), outcome(200, ""), outcome(422, "idempotency_key_reused")];
    check(&reply, &expected);
    let results = reply.json()["results"].clone();
    assert_eq!(results[0]["body"]["claim"], results[2]["body"]["claim"]);
}

#[tokio::test]
async fn concurrent_batches_grant_exactly_the_total() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 700})).await;
    let batches = (0..4).map(|batch| {
        let claims: Vec<_> = (0..256).map(|n| claim_body("demo", &format!("u{batch}-{n}"), "k", 1)).collect();
        let core = &core;
        async move { core.claim_batch(&claims).await.expect(200) }
    });
    let replies = join_all(batches).await;
    let all: Vec<_> = replies.iter().flat_map(outcomes).collect();
    let sold_out = all.iter().filter(|(_, code)| code == "sold_out").count();
    assert_eq!((all.len(), replies.iter().map(granted).sum(), sold_out), (1024, 700, 324));
    assert_eq!(core.sql().until("demo", 700).await.len(), 700);
}

/// The batches of one campaign, and its total, which they exceed.
const BATCHES: usize = 40;
const TOTAL: usize = 8_000;

fn batch(campaign: &str, number: usize) -> Vec<Value> {
    (0..256).map(|at| claim_body(campaign, &format!("u{number}-{at}"), "k", 1)).collect()
}

/// Resends batches whose responses were lost when core was killed, and checks that each claim counts once. On a
/// slow machine core may answer all batches before the kill: then the next campaign follows.
async fn resent_batches_count_once(mut core: Core, sql: &Sql) {
    for round in 0..5 {
        let campaign = format!("demo{round}");
        core.create(&campaign, json!({"total": TOTAL})).await;
        let first_answers = kill_during_batches(&mut core, &campaign).await;
        core = core.restart().await;
        assert_each_claim_counts_once(&core, sql, &campaign, &first_answers).await;
        if first_answers.iter().any(Option::is_none) {
            return;
        }
    }
    panic!("every batch was answered before each kill");
}

/// Kills core when it has answered one of the campaign's batches. Returns each batch's response; `None` if it
/// was lost.
async fn kill_during_batches(core: &mut Core, campaign: &str) -> Vec<Option<Reply>> {
    let client = client().once();
    let calls: Vec<_> = (0..BATCHES)
        .map(|number| {
            let body = json!({"claims": batch(campaign, number)});
            let request = client.request(Method::POST, &core.url(PATH)).bearer_auth(API_TOKEN).json(&body);
            let client = client.clone();
            tokio::spawn(async move { (number, client.send(request).await.ok()) })
        })
        .collect();
    // When the first response arrives, the other batches are in flight.
    let (first, _, others) = select_all(calls).await;
    core.kill();
    let mut first_answers: Vec<_> =
        join_all(others).await.into_iter().chain([first]).map(Result::unwrap).collect();
    first_answers.sort_by_key(|(number, _)| *number);
    first_answers.into_iter().map(|(_, first_answer)| first_answer).collect()
}

async fn assert_each_claim_counts_once(
    core: &Core,
    sql: &Sql,
    campaign: &str,
    first_answers: &[Option<Reply>],
) {
    let mut active = 0;
    for (number, first_answer) in first_answers.iter().enumerate() {
        let again = outcomes(&core.claim_batch(&batch(campaign, number)).await.expect(200));
        active += again.iter().filter(|(status, _)| [200, 201].contains(status)).count();
        let before = first_answer.as_ref().map(outcomes).unwrap_or_default();
        for (before, after) in before.iter().zip(&again) {
            assert!(before.0 != 201 || after.0 == 200, "{before:?}, then {after:?}");
        }
    }
    assert_eq!(active, TOTAL);
    assert_eq!(sql.until(campaign, TOTAL).await.len(), TOTAL);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resent_batches_count_once_on_sqlite() {
    let core = Core::start().await;
    let sql = core.sql();
    resent_batches_count_once(core, &sql).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resent_batches_count_once_on_postgres() {
    if let Some((core, sql, _postgres)) = on_postgres("batches on PostgreSQL", CoreOptions::default()).await {
        resent_batches_count_once(core, &sql).await;
    }
}

#[tokio::test]
async fn an_invalid_batch_is_rejected_as_a_whole() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 5})).await;
    core.claim_batch(&[]).await.refused(400, "invalid_request");
    let many: Vec<_> = (0..257).map(|n| claim_body("demo", &format!("u{n}"), "k", 1)).collect();
    core.claim_batch(&many).await.refused(400, "invalid_request");
    for body in [json!({"claims": {}}), json!([]), json!({"claims": [], "more": 1}), json!({})] {
        let reply = core.client().call(Method::POST, &core.url(PATH), API_TOKEN, &body).await;
        reply.refused(400, "invalid_request");
    }
    let large = json!({"claims": [claim_body("demo", "a", "k", 1)], "padding": "x".repeat(128 * 1024)});
    let reply = core.client().call(Method::POST, &core.url(PATH), API_TOKEN, &large).await;
    reply.refused(413, "payload_too_large");
    // None of these claims was decided.
    assert_eq!(core.campaign("demo").await["remaining"], 5);
}

#[tokio::test]
async fn only_back_ends_and_admins_may_send_batches() {
    let core = Core::start().await;
    core.create("demo", json!({"total": 5})).await;
    let body = json!({"claims": [claim_body("demo", "alice", "k", 1)]});
    let without = core.client().call(Method::POST, &core.url(PATH), "", &body).await;
    without.refused(401, "unauthenticated");
    let signed = Signed {
        path: PATH.to_owned(),
        body: body.to_string(),
        idempotency_key: String::new(),
        ..Signed::claim(&core, "demo", "alice", "k")
    };
    signed.send(&core).await.refused(403, "forbidden");
    signed.send_signed(&core, "AAAA").await.refused(401, "unauthenticated");
    let calls = Cell::new(0);
    let results = eventually(SOON, || async {
        let admin = core.client().call(Method::POST, &core.url(PATH), &core.admin_token(), &body).await;
        calls.set(calls.get() + 1 + admin.repeats);
        let results = outcomes(&admin.clone().expect(200));
        let is_decided = results[0].0 != 503;
        if !is_decided {
            record(&format!("{PATH} 200 {}", results[0].1));
        }
        holds(is_decided, || admin.text()).map(|()| results)
    })
    .await;
    // 200 after a claim that was undecided at first.
    let is_replay = calls.get() > 1 && results == [outcome(200, "")];
    assert!(is_replay || results == [outcome(201, "")], "{results:?} in {} calls", calls.get());
}
