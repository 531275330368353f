//! A receiver of webhooks that accepts every event.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::post;
use claimgate_core::engine::webhooks::sender::WebhookSender;
use serde_json::Value;
use tokio::net::TcpListener;

/// The states in which each claim was received, by claim id: status and revision.
type States = Arc<Mutex<BTreeMap<String, BTreeSet<(String, u64)>>>>;

/// A receiver, and the sender that may call it.
#[derive(Debug)]
pub struct Receiver {
    pub url: String,
    pub sender: WebhookSender,
    states: States,
}

impl Receiver {
    /// Starts a receiver on the current runtime.
    pub async fn start() -> Self {
        let received = States::default();
        let states = Arc::clone(&received);
        let take = async move |body: Bytes| {
            let event: Value = serde_json::from_slice(&body).expect("an event");
            let claim = &event["data"]["claim"];
            let id = claim["id"].as_str().expect("an id").to_owned();
            let revision = event["data"]["revision"].as_u64().expect("a revision");
            let state = (claim["status"].as_str().expect("a status").to_owned(), revision);
            received.lock().unwrap().entry(id).or_default().insert(state);
            StatusCode::NO_CONTENT
        };
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let routes = Router::new().route("/", post(take));
        tokio::spawn(async move { axum::serve(listener, routes).await.expect("a server") });
        let sender = WebhookSender::new(url.parse().expect("a listed host")).expect("a sender");
        Self { url, sender, states }
    }

    /// Returns the states in which the claim `id` was received.
    pub fn states_of(&self, id: &str) -> BTreeSet<(String, u64)> {
        self.states.lock().unwrap().get(id).cloned().unwrap_or_default()
    }
}
