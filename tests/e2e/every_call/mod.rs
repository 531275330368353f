//! Every call of openapi.json, on both databases: as it should be, wrong, by those who may not, once more, and cut off
//! in the middle by core's end. What a call has done is judged by the place that it was made in, and by no other.

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

use self::place::Place;
use self::table::{Answer, Ask, Body, CALLS, Call, ELSEWHERE};
use crate::on_postgres::on_postgres;

mod place;
mod table;

/// Core is killed so long after the calls at most, in microseconds, in one round after the other: the quickest call has
/// no answer then, or the slowest has one.
const MOMENTS_US: [u64; 3] = [500, 3_000, 20_000];

/// After so many rounds, something answers before it can be cut off.
const ROUNDS_MAX: usize = 40;

/// While SQL lets no one write, what needs no SQL is answered within this; the rest is in the middle.
const HELD: Duration = Duration::from_secs(1);

/// Options of a core that may call one receiver of webhooks, at which no one listens; and where that is.
fn with_a_receiver() -> (CoreOptions, String) {
    let receiver = format!("http://{}", free_address());
    (CoreOptions::default().with("CLAIMGATE_WEBHOOK_HOSTS", &receiver), receiver)
}

async fn on_sqlite() -> (Core, Sql, String) {
    let (options, receiver) = with_a_receiver();
    let core = options.start().await;
    let sql = core.sql();
    (core, sql, receiver)
}

fn request(core: &Core, ask: &Ask, token: &str) -> RequestBuilder {
    let url = if ask.path.starts_with("/admin/") { core.admin_url(&ask.path) } else { core.url(&ask.path) };
    let request = core.client().request(ask.method.clone(), &url);
    let request = if token.is_empty() { request } else { request.bearer_auth(token) };
    match &ask.body {
        Body::None => request,
        Body::Json(body) => request.json(body),
        Body::Csv(text) => request.header("content-type", "text/csv").body(*text),
        Body::Raw(kind, text) => request.header("content-type", *kind).body(*text),
    }
}

async fn send(core: &Core, ask: &Ask, token: &str) -> Reply {
    let reply = core.client().send(request(core, ask, token)).await;
    let reply = reply.unwrap_or_else(|error| panic!("{ask:?}: {error:?}"));
    if ask.method == Method::PATCH && reply.code() == "unavailable" {
        return patch_again(core, ask, token).await;
    }
    reply
}

/// Sends a patch until its outcome is known: its version lets it count once.
async fn patch_again(core: &Core, ask: &Ask, token: &str) -> Reply {
    let reply = eventually(SOON, || async {
        let reply = core.client().send(request(core, ask, token)).await.map_err(|error| error.to_string())?;
        holds(reply.status != 503, || reply.text()).map(|()| reply)
    })
    .await;
    Reply { repeats: reply.repeats + 1, ..reply }
}

/// Whether the answer is the one of a first call. One that was repeated may be answered as a second one.
fn is_made(reply: &Reply, call: &Call) -> bool {
    reply.status == call.answer
        || (reply.repeats > 0 && answer(reply) == (call.again.0, call.again.1.to_owned()))
}

fn answer(reply: &Reply) -> (u16, String) {
    (reply.status, reply.code())
}

#[test]
fn every_call_of_the_document_is_here() {
    let document = include_str!("../../../openapi.json");
    let document: Value = serde_json::from_str(document).unwrap();
    let mut said: Vec<String> = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        said.extend(
            methods.as_object().unwrap().keys().map(|method| format!("{} {path}", method.to_uppercase())),
        );
    }
    let here = CALLS.iter().map(|call| call.name).chain(ELSEWHERE.iter().map(|(name, _)| *name));
    let mut here: Vec<_> = here.map(str::to_owned).collect();
    said.sort();
    here.sort();
    assert_eq!(here, said);
}

/// What is wrong with the good call of `call`: what its own rows say, and what every call of its kind refuses.
fn wrong(call: &Call, place: &Place) -> Vec<(Ask, Answer)> {
    let good = call.ask(place);
    let mut all = Vec::new();
    for (what, answer) in call.bad {
        let mut bad = good.clone();
        match &good.body {
            Body::Csv(_) => bad.body = Body::Csv(what),
            Body::Json(_) => bad.body = Body::Raw("application/json", what),
            _ => bad.path = place.fill(call.template()) + what,
        }
        all.push((bad, *answer));
    }
    if matches!(good.body, Body::Json(_)) {
        for text in ["", "{", "[]", "null", "{\"\u{0}\":1}"] {
            let body = Body::Raw("application/json", text);
            all.push((Ask { body, ..good.clone() }, (400, "invalid_request")));
        }
        let body = Body::Raw("text/plain", "{}");
        all.push((Ask { body, ..good.clone() }, (415, "unsupported_media_type")));
    }
    for (name, code) in [
        ("/campaigns/{id}", "campaign_not_found"),
        ("/webhooks/{id}", "webhook_not_found"),
        ("/claims/{claim_id}", "claim_not_found"),
    ] {
        if call.template().contains(name) {
            let (what, _) = name.split_once('{').expect("a name in braces");
            let path = place.fill(&call.template().replace(name, &format!("{what}none")));
            all.push((Ask { path, ..good.clone() }, (404, code)));
        }
    }
    all.push((Ask { method: Method::PUT, ..good }, (405, "method_not_allowed")));
    all
}

async fn is_answered(core: Core, sql: Sql, receiver: &str) {
    for (at, call) in CALLS.iter().enumerate() {
        let place = Place::make(&core, format!("c{at}"), receiver, call).await;
        let good = call.ask(&place);
        let before = place.state(&core, &sql).await;
        for token in ["", "a-token-that-is-not-known-but-long-enough"] {
            let refused = send(&core, &good, token).await;
            assert_eq!(answer(&refused), (401, "unauthenticated".to_owned()), "{}", call.name);
        }
        if good.path.starts_with("/admin/") {
            send(&core, &good, API_TOKEN).await.refused(403, "forbidden");
        }
        for (bad, (status, code)) in wrong(call, &place) {
            let refused = send(&core, &bad, &core.admin_token()).await;
            assert_eq!(answer(&refused), (status, code.to_owned()), "{bad:?}: {}", refused.text());
        }
        assert_eq!(
            place.state(&core, &sql).await,
            before,
            "{}: refused, and yet something changed",
            call.name
        );
        let told = send(&core, &good, &core.admin_token()).await;
        assert!(is_made(&told, call), "{}: {} {}", call.name, told.status, told.text());
        let after = place.state(&core, &sql).await;
        if call.reads() {
            assert_eq!(after, before, "{} reads, and yet something changed", call.name);
        }
        let again = send(&core, &good, &core.admin_token()).await;
        assert_eq!(
            answer(&again),
            (call.again.0, call.again.1.to_owned()),
            "{}: {}",
            call.name,
            again.text()
        );
        if !call.adds_up {
            assert_eq!(place.state(&core, &sql).await, after, "{} counted twice", call.name);
        }
        place.leave(&core).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_is_answered_on_sqlite() {
    only_on!(OWN, "core's own Redis alone refuses to be told of replicas");
    let (core, sql, receiver) = on_sqlite().await;
    is_answered(core, sql, &receiver).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_is_answered_on_postgresql() {
    only_on!(OWN, "core's own Redis alone refuses to be told of replicas");
    let (options, receiver) = with_a_receiver();
    if let Some((core, sql, _postgres)) = on_postgres("every call on PostgreSQL", options).await {
        is_answered(core, sql, &receiver).await;
    }
}

/// Makes every call at once and kills core at that `moment` after it. What each was told by then; `None` for no answer.
async fn cut_off(core: &mut Core, asks: Vec<Ask>, moment: Duration) -> Vec<Option<Reply>> {
    let calls = asks.into_iter().map(|ask| {
        let (client, request) = (core.client().clone(), request(core, &ask, &core.admin_token()));
        async move { client.send(request).await.ok() }
    });
    let told = tokio::spawn(join_all(calls));
    tokio::time::sleep(moment).await;
    core.kill();
    told.await.expect("all have ended")
}

/// What a call leaves that is not disturbed: made once, and made twice.
async fn undisturbed(core: &Core, sql: &Sql, call: &Call, place: &Place) -> [Value; 2] {
    let ask = call.ask(place);
    let told = send(core, &ask, &core.admin_token()).await;
    assert!(is_made(&told, call), "{}: {} {}", call.name, told.status, told.text());
    let once = place.state(core, sql).await;
    send(core, &ask, &core.admin_token()).await.expect(call.again.0);
    [once, place.state(core, sql).await]
}

/// Makes `call`, which was `told` that before core was killed, again: its place is as an undisturbed one is `left`.
async fn stands(core: &Core, sql: &Sql, call: &Call, place: &Place, told: Option<&Reply>, left: &[Value; 2]) {
    let again = send(core, &call.ask(place), &core.admin_token()).await;
    let is_done = answer(&again) == (call.again.0, call.again.1.to_owned());
    if let Some(told) = told {
        assert_eq!(told.status, call.answer, "{}: {}", call.name, told.text());
        assert!(is_done, "{} was acknowledged, and then: {}", call.name, again.text());
    }
    assert!(is_done || again.status == call.answer, "{}: {}", call.name, again.text());
    let state = place.state(core, sql).await;
    let [once, twice] = left;
    assert!(state == *once || (call.adds_up && state == *twice), "{}: {state:#}, not {once:#}", call.name);
}

async fn places(core: &Core, receiver: &str, round: &str) -> Vec<Place> {
    let make = |(at, call)| Place::make(core, format!("{round}-{at}"), receiver, call);
    join_all(CALLS.iter().enumerate().map(make)).await
}

async fn leave(core: &Core, places: Vec<Place>) {
    join_all(places.into_iter().map(|place| place.leave(core))).await;
}

/// Made again after core was killed, each call leaves what one leaves that was not disturbed.
async fn counts_once(mut core: Core, sql: Sql, receiver: &str) {
    let _turn = heavy().await;
    let first = places(&core, receiver, "undisturbed").await;
    let left =
        join_all(CALLS.iter().zip(&first).map(|(call, place)| undisturbed(&core, &sql, call, place))).await;
    leave(&core, first).await;
    let mut rng = Rng::seeded("every_call");
    let mut cut: BTreeMap<_, usize> =
        CALLS.iter().filter(|call| !call.reads()).map(|call| (call.name, 0)).collect();
    let mut round = 0;
    while round <= MOMENTS_US.len() || cut.values().any(|times| *times == 0) {
        assert!(round < ROUNDS_MAX, "some are never cut off: {cut:?}");
        let places = places(&core, receiver, &format!("round{round}")).await;
        let asks: Vec<_> = CALLS.iter().zip(&places).map(|(call, place)| call.ask(place)).collect();
        let told = if round == 0 {
            let held = sql.hold().await;
            let told = cut_off(&mut core, asks, HELD).await;
            held.release().await;
            told
        } else {
            let most = MOMENTS_US[(round - 1) % MOMENTS_US.len()];
            cut_off(&mut core, asks, Duration::from_micros(rng.within(0, most))).await
        };
        core = core.restart().await;
        let all = CALLS.iter().zip(&places).zip(&told).zip(&left);
        let stand =
            all.map(|(((call, place), told), left)| stands(&core, &sql, call, place, told.as_ref(), left));
        join_all(stand).await;
        for (call, _) in CALLS.iter().zip(&told).filter(|(_, told)| told.is_none()) {
            cut.entry(call.name).and_modify(|times| *times += 1);
        }
        leave(&core, places).await;
        round += 1;
    }
    println!("{round} rounds; cut off without an answer: {cut:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_counts_once_though_core_is_killed_in_the_middle_on_sqlite() {
    let (core, sql, receiver) = on_sqlite().await;
    counts_once(core, sql, &receiver).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_counts_once_though_core_is_killed_in_the_middle_on_postgresql() {
    let (options, receiver) = with_a_receiver();
    if let Some((core, sql, _postgres)) = on_postgres("calls cut off on PostgreSQL", options).await {
        counts_once(core, sql, &receiver).await;
    }
}

/// A later version's core adds columns while this one runs: what PostgreSQL has prepared for this one stays valid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_is_answered_after_a_later_version_has_added_columns() {
    let (options, receiver) = with_a_receiver();
    let Some((core, sql, _postgres)) = on_postgres("columns of a later version", options).await else {
        return;
    };
    for round in ["before", "after"] {
        // At once, so that statements are prepared on several connections.
        let places = places(&core, &receiver, round).await;
        join_all(CALLS.iter().zip(&places).map(|(call, place)| undisturbed(&core, &sql, call, place))).await;
        leave(&core, places).await;
        if round == "before" {
            sql.add_columns_of_a_later_version().await;
        }
    }
    assert!(!core.log().contains("cached plan"), "{}", core.log());
}
