//! Makes every call of openapi.json on both databases: correctly, with invalid input, without permission,
//! twice, and interrupted by a crash of core. Each call has its own fixture, whose state shows what the call
//! has done.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{Method, RequestBuilder};
use serde_json::Value;
use support::core_client::API_TOKEN;
use support::only_on;
use support::process::free_address;
use support::rng::Rng;
use support::topology::OWN;
use support::wait::holds;
use support::{Core, CoreOptions, Reply, SOON, Sql, eventually, heavy};

use self::place::Fixture;
use self::table::{Answer, Body, CALLS, Call, CallRequest, ELSEWHERE};
use crate::on_postgres::on_postgres;
use crate::openapi::{calls, document};

pub mod place;
pub mod table;

/// Maximum delays before core is killed in microseconds, used one after the other: from no call answered to all calls
/// answered.
const KILL_DELAYS_US: [u64; 3] = [500, 3_000, 20_000];

/// Maximum number of rounds. After this many, some call always completes before the kill.
const ROUNDS_MAX: usize = 40;

/// Duration of SQL's lock: calls that need no SQL complete in this time, and all other calls are in
/// progress.
const HOLD_TIME: Duration = Duration::from_secs(1);

/// Returns the options of a core that may call one webhook receiver, and the receiver's address, at which no
/// server listens.
pub fn options_with_receiver() -> (CoreOptions, String) {
    let receiver = format!("http://{}", free_address());
    (CoreOptions::default().with("CLAIMGATE_WEBHOOK_HOSTS", &receiver), receiver)
}

async fn on_sqlite() -> (Core, Sql, String) {
    let (options, receiver) = options_with_receiver();
    let core = options.start().await;
    let sql = core.sql();
    (core, sql, receiver)
}

fn request_builder(core: &Core, call_request: &CallRequest, token: &str) -> RequestBuilder {
    let url = if call_request.path.starts_with("/admin/") {
        core.admin_url(&call_request.path)
    } else {
        core.url(&call_request.path)
    };
    let request = core.client().request(call_request.method.clone(), &url);
    let request = if token.is_empty() { request } else { request.bearer_auth(token) };
    match &call_request.body {
        Body::None => request,
        Body::Json(body) => request.json(body),
        Body::Csv(text) => request.header("content-type", "text/csv").body(*text),
        Body::Raw(kind, text) => request.header("content-type", *kind).body(*text),
    }
}

pub async fn send(core: &Core, call_request: &CallRequest, token: &str) -> Reply {
    let reply = core.client().send(request_builder(core, call_request, token)).await;
    let reply = reply.unwrap_or_else(|error| panic!("{call_request:?}: {error:?}"));
    if call_request.method == Method::PATCH && reply.code() == "unavailable" {
        return patch_again(core, call_request, token).await;
    }
    reply
}

/// Retries a patch until the outcome is known. The version in the patch makes it count only once.
async fn patch_again(core: &Core, call_request: &CallRequest, token: &str) -> Reply {
    let reply = eventually(SOON, || async {
        let reply = core
            .client()
            .send(request_builder(core, call_request, token))
            .await
            .map_err(|error| error.to_string())?;
        holds(reply.status != 503, || reply.text()).map(|()| reply)
    })
    .await;
    Reply { repeats: reply.repeats + 1, ..reply }
}

/// Checks that the response is that of a first call. A retried call may be answered like a second one.
fn assert_first_answer(reply: &Reply, call: &Call) {
    let is_second = || reply.repeats > 0 && answer(reply) == (call.again.0, call.again.1.to_owned());
    assert!(reply.status == call.answer || is_second(), "{}: {} {}", call.name, reply.status, reply.text());
}

fn answer(reply: &Reply) -> (u16, String) {
    (reply.status, reply.code())
}

#[test]
fn every_documented_call_is_in_the_table() {
    let document = document();
    let mut documented: Vec<_> = calls(&document).into_iter().map(|(call, _)| call).collect();
    let listed = CALLS.iter().map(|call| call.name).chain(ELSEWHERE.iter().map(|(name, _)| *name));
    let mut listed: Vec<_> = listed.map(str::to_owned).collect();
    documented.sort();
    listed.sort();
    assert_eq!(listed, documented);
}

#[test]
fn every_tested_problem_is_in_openapi_json() {
    let document = document();
    let operations: BTreeMap<_, _> = calls(&document).into_iter().collect();
    for call in CALLS {
        let bad = call.bad.iter().map(|(_, answer)| *answer);
        for (status, code) in bad.chain([call.again]).filter(|(status, _)| *status >= 400) {
            let codes = &operations[call.name]["responses"][status.to_string()]["x-codes"];
            let is_named = codes.as_array().is_some_and(|codes| codes.contains(&code.into()));
            assert!(is_named, "{}: {status} {code} is not one of {codes}", call.name);
        }
    }
}

/// Returns invalid variants of `call` with the expected responses: its own rows, and those common to its kind.
fn bad_requests(call: &Call, fixture: &Fixture) -> Vec<(CallRequest, Answer)> {
    let good = call.request(fixture);
    let mut all = Vec::new();
    for (what, answer) in call.bad {
        let mut bad = good.clone();
        match &good.body {
            Body::Csv(_) => bad.body = Body::Csv(what),
            Body::Json(_) => bad.body = Body::Raw("application/json", what),
            _ => bad.path = fixture.fill(call.template()) + what,
        }
        all.push((bad, *answer));
    }
    if matches!(good.body, Body::Json(_)) {
        for text in ["", "{", "[]", "null", "{\"\u{0}\":1}"] {
            let body = Body::Raw("application/json", text);
            all.push((CallRequest { body, ..good.clone() }, (400, "invalid_request")));
        }
        let body = Body::Raw("text/plain", "{}");
        all.push((CallRequest { body, ..good.clone() }, (415, "unsupported_media_type")));
    }
    for (name, code) in [
        ("/campaigns/{id}", "campaign_not_found"),
        ("/webhooks/{id}", "webhook_not_found"),
        ("/claims/{claim_id}", "claim_not_found"),
    ] {
        if call.template().contains(name) {
            let (what, _) = name.split_once('{').expect("a name in braces");
            let path = fixture.fill(&call.template().replace(name, &format!("{what}none")));
            all.push((CallRequest { path, ..good.clone() }, (404, code)));
        }
    }
    all.push((CallRequest { method: Method::PUT, ..good }, (405, "method_not_allowed")));
    all
}

async fn each_call_is_answered_as_expected(core: Core, sql: Sql, receiver: &str) {
    for (at, call) in CALLS.iter().enumerate() {
        let fixture = Fixture::make(&core, format!("c{at}"), receiver, call).await;
        let good = call.request(&fixture);
        let before = fixture.state(&core, &sql).await;
        for token in ["", "a-token-that-is-not-known-but-long-enough"] {
            let refused = send(&core, &good, token).await;
            assert_eq!(answer(&refused), (401, "unauthenticated".to_owned()), "{}", call.name);
        }
        if good.path.starts_with("/admin/") {
            send(&core, &good, API_TOKEN).await.refused(403, "forbidden");
        }
        for (bad, (status, code)) in bad_requests(call, &fixture) {
            let refused = send(&core, &bad, &core.admin_token()).await;
            assert_eq!(answer(&refused), (status, code.to_owned()), "{bad:?}: {}", refused.text());
        }
        assert_eq!(
            fixture.state(&core, &sql).await,
            before,
            "{}: a rejected call changed something",
            call.name
        );
        let first_reply = send(&core, &good, &core.admin_token()).await;
        assert_first_answer(&first_reply, call);
        let after = fixture.state(&core, &sql).await;
        if call.reads() {
            assert_eq!(after, before, "{} is a read, but changed something", call.name);
        }
        let again = send(&core, &good, &core.admin_token()).await;
        assert_eq!(
            answer(&again),
            (call.again.0, call.again.1.to_owned()),
            "{}: {}",
            call.name,
            again.text()
        );
        if !call.counts_again {
            assert_eq!(fixture.state(&core, &sql).await, after, "{} counted twice", call.name);
        }
        fixture.clean_up(&core).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_is_answered_as_expected_on_sqlite() {
    only_on!(OWN, "only core's own Redis rejects settings of replicas");
    let (core, sql, receiver) = on_sqlite().await;
    each_call_is_answered_as_expected(core, sql, &receiver).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_is_answered_as_expected_on_postgres() {
    only_on!(OWN, "only core's own Redis rejects settings of replicas");
    let (options, receiver) = options_with_receiver();
    if let Some((core, sql, _postgres)) = on_postgres("every call on PostgreSQL", options).await {
        each_call_is_answered_as_expected(core, sql, &receiver).await;
    }
}

/// Makes all calls concurrently and kills core after `moment`. Returns each call's response; `None` for a call
/// without one.
async fn cut_off(core: &mut Core, requests: Vec<CallRequest>, moment: Duration) -> Vec<Option<Reply>> {
    let calls = requests.into_iter().map(|call_request| {
        let (client, request) =
            (core.client().clone(), request_builder(core, &call_request, &core.admin_token()));
        async move { client.send(request).await.ok() }
    });
    let replies = tokio::spawn(join_all(calls));
    tokio::time::sleep(moment).await;
    core.kill();
    replies.await.expect("the calls have ended")
}

/// Returns the state that an undisturbed call leaves after it was made once, and twice.
async fn baseline(core: &Core, sql: &Sql, call: &Call, fixture: &Fixture) -> [Value; 2] {
    let call_request = call.request(fixture);
    let first_reply = send(core, &call_request, &core.admin_token()).await;
    assert_first_answer(&first_reply, call);
    let once = fixture.state(core, sql).await;
    send(core, &call_request, &core.admin_token()).await.expect(call.again.0);
    [once, fixture.state(core, sql).await]
}

/// Retries `call` after the crash. Checks that the fixture is in the state that one uninterrupted call
/// leaves, or two if the call `counts_again`. `first_reply` is the reply before the crash, if it
/// reported an outcome.
async fn assert_counts_once(
    core: &Core,
    sql: &Sql,
    call: &Call,
    fixture: &Fixture,
    first_reply: Option<&Reply>,
    expected_states: &[Value; 2],
) {
    let again = send(core, &call.request(fixture), &core.admin_token()).await;
    let is_done = answer(&again) == (call.again.0, call.again.1.to_owned());
    if let Some(first_reply) = first_reply {
        assert_first_answer(first_reply, call);
        assert!(is_done, "{} was acknowledged, but its retry returned: {}", call.name, again.text());
    }
    assert!(is_done || again.status == call.answer, "{}: {}", call.name, again.text());
    let state = fixture.state(core, sql).await;
    let [once, twice] = expected_states;
    assert!(
        state == *once || (call.counts_again && state == *twice),
        "{}: {state:#}, not {once:#}",
        call.name
    );
}

async fn fixtures(core: &Core, receiver: &str, round: &str) -> Vec<Fixture> {
    let make = |(at, call)| Fixture::make(core, format!("{round}-{at}"), receiver, call);
    join_all(CALLS.iter().enumerate().map(make)).await
}

async fn clean_up(core: &Core, fixtures: Vec<Fixture>) {
    join_all(fixtures.into_iter().map(|fixture| fixture.clean_up(core))).await;
}

/// Kills core during all calls, retries them, and checks that each call leaves the state of an uninterrupted
/// call.
async fn each_call_counts_once_despite_a_crash(mut core: Core, sql: Sql, receiver: &str) {
    let _turn = heavy().await;
    let first = fixtures(&core, receiver, "undisturbed").await;
    let expected_states =
        join_all(CALLS.iter().zip(&first).map(|(call, fixture)| baseline(&core, &sql, call, fixture))).await;
    clean_up(&core, first).await;
    let mut rng = Rng::seeded("every_call");
    let mut cut: BTreeMap<_, usize> =
        CALLS.iter().filter(|call| !call.reads()).map(|call| (call.name, 0)).collect();
    let mut round = 0;
    while round <= KILL_DELAYS_US.len() || cut.values().any(|times| *times == 0) {
        assert!(round < ROUNDS_MAX, "some calls are never interrupted: {cut:?}");
        let fixtures = fixtures(&core, receiver, &format!("round{round}")).await;
        let requests: Vec<_> =
            CALLS.iter().zip(&fixtures).map(|(call, fixture)| call.request(fixture)).collect();
        let first_replies = if round == 0 {
            let held = sql.hold().await;
            let replies = cut_off(&mut core, requests, HOLD_TIME).await;
            held.release().await;
            replies
        } else {
            let most = KILL_DELAYS_US[(round - 1) % KILL_DELAYS_US.len()];
            cut_off(&mut core, requests, Duration::from_micros(rng.within(0, most))).await
        };
        core = core.restart().await;
        // In the first round SQL is held, so core may answer `unavailable`: the outcome is unknown.
        let is_known = |reply: &&Reply| round > 0 || reply.code() != "unavailable";
        let all = CALLS.iter().zip(&fixtures).zip(&first_replies).zip(&expected_states);
        let checks = all.map(|(((call, fixture), first_reply), expected_states)| {
            let first_reply = first_reply.as_ref().filter(is_known);
            assert_counts_once(&core, &sql, call, fixture, first_reply, expected_states)
        });
        join_all(checks).await;
        for (call, _) in CALLS.iter().zip(&first_replies).filter(|(_, first_reply)| first_reply.is_none()) {
            cut.entry(call.name).and_modify(|times| *times += 1);
        }
        clean_up(&core, fixtures).await;
        round += 1;
    }
    println!("{round} rounds; interrupted without an answer: {cut:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_counts_once_despite_a_crash_on_sqlite() {
    let (core, sql, receiver) = on_sqlite().await;
    each_call_counts_once_despite_a_crash(core, sql, &receiver).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_counts_once_despite_a_crash_on_postgres() {
    let (options, receiver) = options_with_receiver();
    if let Some((core, sql, _postgres)) = on_postgres("calls interrupted on PostgreSQL", options).await {
        each_call_counts_once_despite_a_crash(core, sql, &receiver).await;
    }
}

/// If a newer version of core adds columns, the prepared statements of this version must stay valid on
/// PostgreSQL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_work_after_a_newer_version_added_columns() {
    let (options, receiver) = options_with_receiver();
    let Some((core, sql, _postgres)) = on_postgres("columns of a later version", options).await else {
        return;
    };
    for round in ["before", "after"] {
        // Concurrently, so that statements are prepared on several connections.
        let fixtures = fixtures(&core, &receiver, round).await;
        join_all(CALLS.iter().zip(&fixtures).map(|(call, fixture)| baseline(&core, &sql, call, fixture)))
            .await;
        clean_up(&core, fixtures).await;
        if round == "before" {
            sql.add_columns_of_a_newer_version().await;
        }
    }
    assert!(!core.log().contains("cached plan"), "{}", core.log());
}
