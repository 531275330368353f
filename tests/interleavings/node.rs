//! One core for the schedules: its handlers run in the caller's task, its background work on demand.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{Method, Request};
use claimgate_core::credentials::{Caller, Credentials, Tokens};
use claimgate_core::engine::Engine;
use claimgate_core::engine::live::cores::{CoreRun, ThisCore};
use claimgate_core::engine::webhooks::sender::WebhookSender;
use claimgate_core::http::authentication::Authenticator;
use claimgate_core::http::listeners::{admin_router, internal_router};
use claimgate_core::http::state::AppState;
use claimgate_core::jobs::outbox_relay::OutboxRelay;
use claimgate_core::jobs::refresher::Refresher;
use claimgate_core::jobs::webhooks::{Round, Webhooks};
use claimgate_core::metrics;
use claimgate_core::store::sql::SqlStore;
use claimgate_shared::signature::{self, BodyHash, NamedKey, SignedParts};
use claimgate_shared::{Attempt, CampaignId};
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde_json::Value;
use tokio::sync::Mutex;

/// The edge's key.
const EDGE_KEY: &str = "edge:YSBrZXkgb2YgdGhlIGludGVybGVhdmluZ3MnIGVkZ2U";
const CLAIMS: &str = "/internal/v1/claims";
const TOKEN: &str = "the-token-of-the-interleavings-0123456789";
/// Period in which a webhook's event is retried; no schedule reaches its end.
const WEBHOOK_RETRY: Duration = Duration::from_hours(24);

/// An engine with its routes.
pub struct TestCore {
    pub engine: Arc<Engine>,
    relay: OutboxRelay,
    refresher: Mutex<Refresher>,
    webhooks: Webhooks,
    state: AppState,
    /// Created on first use, since most schedules call only one of the two routers.
    internal: OnceLock<Router>,
    admin: OnceLock<Router>,
}

/// An answer to a caller.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub body: Value,
}

impl Reply {
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }

    /// Returns a short description.
    pub fn brief(&self) -> String {
        let number = |name: &str| self.body[name].as_u64().or(self.body["claim"][name].as_u64());
        let sequence = number("sequence").map(|n| format!(" sequence {n}")).unwrap_or_default();
        let version = number("version").map(|n| format!(" version {n}")).unwrap_or_default();
        let state = self.body["state"].as_str().or(self.body["claim"]["status"].as_str()).unwrap_or_default();
        format!("{} {}{state}{sequence}{version}", self.status, self.code())
    }
}

impl TestCore {
    /// Starts a core with the id `core_id`, which sends the events of webhooks with `sender`.
    pub fn start(redis_url: &str, sql: &SqlStore, core_id: &str, sender: WebhookSender) -> Self {
        static METRICS: OnceLock<metrics::PrometheusHandle> = OnceLock::new();
        let metrics = METRICS.get_or_init(|| metrics::install().expect("one recorder")).clone();
        let mut tokens = Tokens::default();
        tokens.add(Caller::admin(), TOKEN);
        let engine = Engine::builder(sql.clone()).outbox_max(1000).archive_after(Duration::ZERO);
        let engine = engine.webhook_sender(sender).build(redis_url).expect("a Redis address");
        let engine = Arc::new(engine);
        let authenticator = Authenticator::new(Credentials { tokens, edge_keys: vec![edge_key()] });
        let state = AppState::new(&engine, authenticator, metrics.clone(), 1000);
        state.set_serving(true);
        let relay = OutboxRelay::new(&engine, core_id.to_owned());
        let run = CoreRun::new(core_id.to_owned()).expect("a number");
        let webhooks = Webhooks::new(Arc::clone(&engine), run.clone(), WEBHOOK_RETRY);
        let this = ThisCore::starting(run, core_id.to_owned(), engine.refusals.clone());
        let refresher = Mutex::new(Refresher::new(Arc::clone(&engine), metrics, this));
        let (internal, admin) = (OnceLock::new(), OnceLock::new());
        Self { engine, relay, refresher, webhooks, state, internal, admin }
    }

    /// Calls the admin listener.
    pub async fn admin(&self, method: Method, path: &str, body: Option<Value>) -> Reply {
        call(self.admin.get_or_init(|| admin_router(self.state.clone())), method, path, body).await
    }

    /// Adds a file of codes.
    pub async fn add_codes(&self, id: &str, file: String) -> Reply {
        self.send_file(&format!("/admin/v1/campaigns/{id}/codes"), file).await
    }

    /// Imports a file of past claims.
    pub async fn import(&self, id: &str, file: String) -> Reply {
        self.send_file(&format!("/admin/v1/campaigns/{id}/import"), file).await
    }

    async fn send_file(&self, path: &str, file: String) -> Reply {
        let request = Request::post(path)
            .header(AUTHORIZATION, format!("Bearer {TOKEN}"))
            .header(CONTENT_TYPE, "text/csv")
            .header(CONTENT_LENGTH, file.len());
        let request = request.body(Body::from(file)).expect("a request");
        answer(self.admin.get_or_init(|| admin_router(self.state.clone())), request).await
    }

    /// Calls the internal listener.
    pub async fn internal(&self, method: Method, path: &str, body: Option<Value>) -> Reply {
        call(self.internal.get_or_init(|| internal_router(self.state.clone())), method, path, body).await
    }

    /// Sends a claim that the edge has signed for `user`, to whom it was shown no pass.
    pub async fn claim_by_edge(&self, user: &str, key: &str, body: &Value) -> Reply {
        let (body, now) = (body.to_string(), claimgate_core::clock::now());
        let signed = SignedParts {
            method: "POST",
            path_and_query: CLAIMS,
            content_type: "application/json",
            body: BodyHash::of(body.as_bytes()),
            user,
            client_ip: "",
            idempotency_key: key,
            attempt: Attempt::Unknown,
            user_ids: "",
            pass: "",
        };
        let request = Request::post(CLAIMS)
            .header(CONTENT_TYPE, signed.content_type)
            .header(signature::KEY_HEADER, edge_key().kid)
            .header(signature::TIMESTAMP_HEADER, now.as_ms())
            .header(signature::USER_HEADER, user)
            .header(signature::CONTENT_SHA256_HEADER, signed.body.to_string())
            .header(signature::IDEMPOTENCY_KEY_HEADER, key)
            .header(signature::SIGNATURE_HEADER, signed.sign(&edge_key(), now));
        let request = request.body(Body::from(body)).expect("a request");
        answer(self.internal.get_or_init(|| internal_router(self.state.clone())), request).await
    }

    /// Reads the campaigns from SQL, as core does every second.
    pub async fn refresh(&self) -> String {
        format!("{:?}", self.refresher.lock().await.refresh().await)
    }

    /// Maintains a campaign, as core does every second, and immediately if the campaign is not ready.
    pub async fn maintain(&self, id: &CampaignId) -> String {
        let recovery = &self.engine.recovery;
        if let Err(error) = recovery.drop_evicted().await {
            return format!("{error:?}");
        }
        match self.engine.campaigns.find(id).await {
            Ok(handle) => format!("{:?}", recovery.maintain(&handle).await),
            Err(error) => format!("{error:?}"),
        }
    }

    /// Applies the rules of a campaign if they are due, as core does every second.
    ///
    /// # Errors
    /// If the rules may not be in force yet.
    pub async fn put_into_force(&self, id: &CampaignId) -> Result<(), String> {
        let handle = self.engine.campaigns.find(id).await.map_err(|error| format!("{error:?}"))?;
        if !handle.is_in_redis() || !handle.rules_are_due() {
            return Ok(());
        }
        self.engine.changes.put_into_force(&handle, None).await.map_err(|error| format!("{error:?}"))
    }

    /// Runs one round of the relay, which takes over the entries of all other cores.
    pub async fn relay(&self) -> String {
        format!("{:?}", self.relay.round(Duration::ZERO).await)
    }

    /// Runs one round of the relay without taking over entries of other cores.
    pub async fn relay_with_others(&self) -> String {
        format!("{:?}", self.relay.round(Duration::from_hours(1)).await)
    }

    /// Runs one round of deliveries to the webhook `id`; returns the number of events on its page of the feed, or why
    /// there is no page.
    pub async fn deliver(&self, id: &str) -> Result<usize, String> {
        match self.webhooks.round(id, &mut None).await {
            Ok(Round::Sent(page)) => Ok(page.items.len()),
            other => Err(format!("{other:?}")),
        }
    }

    /// Returns true if the campaign is evicted, or not known to this core yet: core reads evicted campaigns
    /// on demand.
    pub fn has_evicted(&self, id: &CampaignId) -> bool {
        self.engine.registry.get(id).is_none_or(|handle| handle.campaign().evicted.is_some())
    }

    /// Opens a new connection to Redis if the old one is broken.
    pub async fn reconnect(&self) {
        let redis = &self.engine.stores.redis;
        if redis.probe().await.outcome.is_err() {
            redis.probe().await.outcome.expect("Redis answers on a new connection");
        }
    }

    /// Drops the cached "sold out" state, which otherwise expires after 100 ms.
    pub fn forget(&self, id: &CampaignId) {
        self.engine.claims.batcher.invalidate(id);
    }
}

async fn call(router: &Router, method: Method, path: &str, body: Option<Value>) -> Reply {
    let request =
        Request::builder().method(method).uri(path).header(AUTHORIZATION, format!("Bearer {TOKEN}"));
    let request = match body {
        Some(body) => request.header(CONTENT_TYPE, "application/json").body(Body::from(body.to_string())),
        None => request.body(Body::empty()),
    };
    answer(router, request.expect("a request")).await
}

fn edge_key() -> NamedKey {
    EDGE_KEY.parse().expect("a key")
}

async fn answer(router: &Router, request: Request<Body>) -> Reply {
    let response = TowerToHyperService::new(router.clone()).call(request).await;
    let response = response.expect("an infallible route");
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    Reply { status, body: serde_json::from_slice(&bytes).unwrap_or(Value::Null) }
}
