//! Webhooks with two cores: one core delivers, and the other takes over when the first is killed. No event is
//! skipped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::post;
use reqwest::Method;
use serde_json::{Value, json};
use support::clock::Clock;
use support::pair::Pair;
use support::process::free_address;
use support::wait::holds;
use support::{CoreOptions, SOON, eventually, promised};
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::tally::Row;

const CLAIMS: usize = 60;
/// Time limit of a takeover: the dead core's lease of 45 s must expire, and the other core must poll and deliver.
const TAKEOVER_MAX: Duration = Duration::from_secs(50);

/// Number of deliveries for each user's grant.
type Deliveries = Arc<Mutex<BTreeMap<String, usize>>>;

/// Starts a receiver that takes `answer_ms` for each response.
async fn receiver(answer_ms: u64) -> (String, Deliveries) {
    let deliveries = Deliveries::default();
    let seen = Arc::clone(&deliveries);
    let take = async move |body: Bytes| {
        let event: Value = serde_json::from_slice(&body).unwrap();
        let user = event["data"]["claim"]["user_id"].as_str().unwrap().to_owned();
        *seen.lock().unwrap().entry(user).or_insert(0) += 1;
        sleep(Duration::from_millis(answer_ms)).await;
        StatusCode::NO_CONTENT
    };
    let listener = TcpListener::bind(free_address()).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let routes = Router::new().route("/", post(take));
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    (url, deliveries)
}

async fn until_delivered(deliveries: &Deliveries, count: usize, within: Duration) {
    eventually(within, || async {
        let users = deliveries.lock().unwrap().len();
        holds(users == count, || format!("{users} of {count} claims were delivered"))
    })
    .await;
}

/// Checks that one core delivered. If SQL is too slow to record them, a few events are delivered again; two cores would
/// deliver nearly all events twice.
fn assert_one_core_delivered(deliveries: &Deliveries) {
    let deliveries = deliveries.lock().unwrap();
    let twice: Vec<_> = deliveries.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.len() < CLAIMS / 2, "delivered twice: {twice:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_continue_when_the_delivering_core_is_killed() {
    let row = Row::begin("webhooks: the delivering core killed");
    let (url, deliveries) = receiver(0).await;
    let options = CoreOptions::default().with("CLAIMGATE_WEBHOOK_HOSTS", &url);
    let Some(mut pair) = row.needs(Pair::start(options).await) else { return };
    pair.cores[0].create("demo", json!({"total": 10_000})).await;
    let body = json!({"url": format!("{url}/")});
    pair.cores[0].admin(Method::POST, "/admin/v1/webhooks", &body).await.expect(201);
    for n in 0..CLAIMS {
        pair.cores[n % 2].claim("demo", &format!("before{n}"), "k").await.expect(201);
    }
    until_delivered(&deliveries, CLAIMS, SOON).await;
    assert_one_core_delivered(&deliveries);
    // Each core is killed once, since either core may be delivering.
    for gone in [0, 1] {
        row.fault();
        pair.cores[gone].kill();
        for n in 0..CLAIMS {
            pair.cores[1 - gone].claim("demo", &format!("without{gone}-{n}"), "k").await.expect(201);
        }
        until_delivered(&deliveries, CLAIMS * (gone + 2), promised(TAKEOVER_MAX)).await;
        pair.cores[gone] = pair.cores[gone].restart().await;
    }
    row.passed(3 * CLAIMS, "every claim was delivered, whichever core was killed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_one_of_two_cores_with_the_same_id_delivers() {
    let row = Row::begin("two cores with the same core id");
    // So slow that a second delivering core would start before the first one records the accepted events.
    let (url, deliveries) = receiver(1000).await;
    let options = CoreOptions::default().with("CLAIMGATE_WEBHOOK_HOSTS", &url);
    let Some(mut pair) = row.needs(Pair::start(options).await) else { return };
    pair.cores[0].create("demo", json!({"total": 10_000})).await;
    row.fault();
    pair.cores[1].stop().await;
    let [original, copy] = pair.cores.each_ref().map(|core| core.data_dir().join("core.id"));
    std::fs::copy(original, copy).unwrap();
    pair.cores[1] = pair.cores[1].restart().await;
    let body = json!({"url": format!("{url}/")});
    pair.cores[0].admin(Method::POST, "/admin/v1/webhooks", &body).await.expect(201);
    for n in 0..CLAIMS {
        pair.cores[n % 2].claim("demo", &format!("user{n}"), "k").await.expect(201);
    }
    until_delivered(&deliveries, CLAIMS, SOON).await;
    assert_one_core_delivered(&deliveries);
    row.passed(CLAIMS, "only one core delivered");
}

/// The lease of a dead core ends by the database's clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_core_with_a_fast_clock_keeps_no_webhooks_after_its_death() {
    let row = Row::begin("webhooks: the delivering core, an hour ahead, killed");
    let (url, deliveries) = receiver(0).await;
    let options = CoreOptions::default().with("CLAIMGATE_WEBHOOK_HOSTS", &url);
    let clock = Clock::new();
    clock.move_by_ms(3_600_000);
    let ahead = clock
        .environment()
        .into_iter()
        .fold(options.clone(), |options, (name, value)| options.with(name, value.display().to_string()));
    let Some(mut pair) = row.needs(Pair::start_each([ahead, options]).await) else { return };
    pair.cores[1].stop().await;
    pair.cores[0].create("demo", json!({})).await;
    let body = json!({"url": format!("{url}/")});
    pair.cores[0].admin(Method::POST, "/admin/v1/webhooks", &body).await.expect(201);
    pair.cores[0].claim("demo", "before", "k").await.expect(201);
    until_delivered(&deliveries, 1, SOON).await;
    pair.cores[1] = pair.cores[1].restart().await;
    row.kill();
    pair.cores[0].kill();
    pair.cores[1].claim("demo", "after", "k").await.expect(201);
    // As if the lease's 45 s had passed.
    pair.sql.run("UPDATE webhooks SET held_until = held_until - 45000".to_owned()).await;
    until_delivered(&deliveries, 2, SOON).await;
    row.passed(2, "the other core delivered");
}
