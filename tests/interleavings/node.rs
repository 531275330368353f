//! One core as the schedules use it: its handlers, called in the task that calls them, and what it does by itself.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{Method, Request};
use claimgate_core::credentials::{Caller, Credentials, Tokens};
use claimgate_core::engine::Engine;
use claimgate_core::http::auth::Authenticator;
use claimgate_core::http::listeners::{admin_router, internal_router};
use claimgate_core::http::state::AppState;
use claimgate_core::jobs::outbox_relay::OutboxRelay;
use claimgate_core::jobs::refresher::Refresher;
use claimgate_core::metrics;
use claimgate_core::store::sql::SqlStore;
use claimgate_shared::CampaignId;
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde_json::Value;
use tokio::sync::Mutex;

const TOKEN: &str = "the-token-of-the-interleavings-0123456789";

/// An engine with its routes.
pub struct Node {
    pub engine: Arc<Engine>,
    relay: OutboxRelay,
    refresher: Mutex<Refresher>,
    state: AppState,
    /// Made when they are first called, since most schedules call one of them.
    internal: OnceLock<Router>,
    admin: OnceLock<Router>,
}

/// What a caller was told.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub body: Value,
}

impl Reply {
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }

    /// In a few words.
    pub fn brief(&self) -> String {
        let number = |name: &str| self.body[name].as_u64().or(self.body["claim"][name].as_u64());
        let sequence = number("sequence").map(|n| format!(" sequence {n}")).unwrap_or_default();
        let version = number("version").map(|n| format!(" version {n}")).unwrap_or_default();
        let state = self.body["state"].as_str().or(self.body["claim"]["status"].as_str()).unwrap_or_default();
        format!("{} {}{state}{sequence}{version}", self.status, self.code())
    }
}

impl Node {
    /// A core that has just started, under the name `core_id`.
    pub fn start(redis_url: &str, sql: &SqlStore, core_id: &str) -> Self {
        static METRICS: OnceLock<metrics::PrometheusHandle> = OnceLock::new();
        let metrics = METRICS.get_or_init(|| metrics::install().expect("one recorder")).clone();
        let mut tokens = Tokens::default();
        tokens.add(Caller::admin(), TOKEN);
        let engine = Engine::builder(sql.clone()).outbox_max(1000).archive_after(Duration::ZERO);
        let engine = Arc::new(engine.build(redis_url).expect("a Redis address"));
        let authenticator = Authenticator::new(Credentials { tokens, edge_keys: Vec::new() });
        let state = AppState::new(&engine, authenticator, metrics.clone(), 1000);
        state.set_serving(true);
        let relay = OutboxRelay::new(&engine, core_id.to_owned());
        let refresher = Mutex::new(Refresher::new(Arc::clone(&engine), metrics));
        Self { engine, relay, refresher, state, internal: OnceLock::new(), admin: OnceLock::new() }
    }

    /// A call to the admin's listener.
    pub async fn admin(&self, method: Method, path: &str, body: Option<Value>) -> Reply {
        call(self.admin.get_or_init(|| admin_router(self.state.clone())), method, path, body).await
    }

    /// A call to the other one.
    pub async fn internal(&self, method: Method, path: &str, body: Option<Value>) -> Reply {
        call(self.internal.get_or_init(|| internal_router(self.state.clone())), method, path, body).await
    }

    /// What core does every second: reads the campaigns from SQL.
    pub async fn refresh(&self) -> String {
        format!("{:?}", self.refresher.lock().await.refresh().await)
    }

    /// What core does every second, and at once for a campaign that is not ready.
    pub async fn maintain(&self, id: &CampaignId) -> String {
        let recovery = &self.engine.recovery;
        if let Err(error) = recovery.drop_evicted().await {
            return format!("{error:?}");
        }
        match self.engine.handle(id).await {
            Ok(handle) => format!("{:?}", recovery.maintain(&handle).await),
            Err(error) => format!("{error:?}"),
        }
    }

    /// One round of the relay; what any core has left lying counts as left behind.
    pub async fn relay(&self) -> String {
        format!("{:?}", self.relay.round(Duration::ZERO).await)
    }

    /// One round of the relay that leaves alone what another core has in hand.
    pub async fn relay_beside_others(&self) -> String {
        format!("{:?}", self.relay.round(Duration::from_hours(1)).await)
    }

    /// Whether this core answers for the campaign from SQL: evicted ones it reads when it is asked.
    pub fn has_evicted(&self, id: &CampaignId) -> bool {
        self.engine.registry.get(id).is_none_or(|handle| handle.campaign().evicted.is_some())
    }

    /// Speaks to Redis on a new connection, if the old one has broken.
    pub async fn reconnect(&self) {
        let redis = &self.engine.sync.redis;
        if redis.ping().await.is_err() {
            redis.ping().await.expect("Redis answers on a new connection");
        }
    }

    /// What is remembered of being sold out, up to 100 ms old, is forgotten, as time does.
    pub fn forget(&self, id: &CampaignId) {
        self.engine.batcher.invalidate(id);
    }
}

async fn call(router: &Router, method: Method, path: &str, body: Option<Value>) -> Reply {
    let request =
        Request::builder().method(method).uri(path).header(AUTHORIZATION, format!("Bearer {TOKEN}"));
    let request = match body {
        Some(body) => request.header(CONTENT_TYPE, "application/json").body(Body::from(body.to_string())),
        None => request.body(Body::empty()),
    };
    let response = TowerToHyperService::new(router.clone()).call(request.expect("a request")).await;
    let response = response.expect("routes do not fail");
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    Reply { status, body: serde_json::from_slice(&bytes).unwrap_or(Value::Null) }
}
