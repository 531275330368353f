//! Webhooks with two cores: one delivers, and when it is killed the other goes on; nothing is left out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::post;
use reqwest::Method;
use serde_json::{Value, json};
use support::pair::Pair;
use support::process::free_address;
use support::wait::holds;
use support::{CoreOptions, SOON, eventually};
use tokio::net::TcpListener;

use crate::tally::Row;

const CLAIMS: usize = 60;
/// A lease of a core that is gone, and the time of a busy machine.
const TAKEN_OVER: Duration = Duration::from_secs(90);

/// How often each user's grant was told.
type Told = Arc<Mutex<BTreeMap<String, usize>>>;

async fn receiver() -> (String, Told) {
    let told = Told::default();
    let seen = Arc::clone(&told);
    let take = async move |body: Bytes| {
        let event: Value = serde_json::from_slice(&body).unwrap();
        let user = event["data"]["claim"]["user_id"].as_str().unwrap().to_owned();
        *seen.lock().unwrap().entry(user).or_insert(0) += 1;
        StatusCode::NO_CONTENT
    };
    let listener = TcpListener::bind(free_address()).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let routes = Router::new().route("/", post(take));
    tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
    (url, told)
}

async fn all_told(told: &Told, count: usize, within: Duration) {
    eventually(within, || async {
        let users = told.lock().unwrap().len();
        holds(users == count, || format!("{users} of {count} claims were told"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_core_that_delivers_is_killed() {
    let row = Row::begin("the core that delivers to a webhook killed");
    let (url, told) = receiver().await;
    let options = CoreOptions::default().with("CLAIMGATE_WEBHOOK_HOSTS", &url);
    let mut pair = match Pair::start(options).await {
        Ok(pair) => pair,
        Err(why) => return row.skip(&why),
    };
    pair.cores[0].create("demo", json!({"total": 10_000})).await;
    let body = json!({"url": format!("{url}/")});
    pair.cores[0].admin(Method::POST, "/admin/v1/webhooks", &body).await.expect(201);
    for n in 0..CLAIMS {
        pair.cores[n % 2].claim("demo", &format!("before{n}"), "k").await.expect(201);
    }
    all_told(&told, CLAIMS, 2 * SOON).await;
    let twice: Vec<_> =
        told.lock().unwrap().iter().filter(|(_, times)| **times > 1).map(|(user, _)| user.clone()).collect();
    assert!(twice.is_empty(), "two cores have delivered: {twice:?}");
    // Whichever of them it was: the one is killed, later the other.
    for gone in [0, 1] {
        row.fault();
        pair.cores[gone].kill();
        for n in 0..CLAIMS {
            pair.cores[1 - gone].claim("demo", &format!("without{gone}-{n}"), "k").await.expect(201);
        }
        all_told(&told, CLAIMS * (gone + 2), TAKEN_OVER).await;
        pair.cores[gone] = pair.cores[gone].restart().await;
    }
    row.passed(3 * CLAIMS, "every claim was told, whichever core was killed");
}
