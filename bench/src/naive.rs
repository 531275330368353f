//! Baseline (e): the server that anybody would write. An axum route that reads JSON, calls the plain script with the
//! campaign's keys through redis-rs, one `EVALSHA` a request, and answers JSON. No credentials, no replay, no outbox,
//! no SQL. A process of its own, as core is, with a Redis of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, RedisResult, Script};
use anyhow::{Context as _, ensure};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::serve::ListenerExt as _;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use support::{RedisServer, RedisView};
use tokio::net::TcpListener;

use crate::campaigns::Campaigns;
use crate::child::Child;
use crate::client::{self, Load, Pace, Tally};
use crate::plain;
use crate::processor::Spent;
use crate::redis::{self, Fsync, ask};
use crate::session::Session;

/// As much as the campaigns of the benchmark allow.
const PER_USER_PER_DAY: u32 = 5;
const PER_USER: u32 = 5;
const TOTAL: u32 = 1_000_000_000;
/// Longer than a disk takes at its worst: a claim without an answer could not be asked for again.
const REDIS_WAIT: Duration = Duration::from_secs(5);

/// A running server.
#[derive(Debug)]
pub struct Naive {
    /// In lines of progress.
    pub name: String,
    process: Child,
    view: RedisView,
    _redis: RedisServer,
    campaigns: u32,
}

/// What a load of claims came to, all of them granted and found in Redis.
#[derive(Debug)]
pub struct Claims {
    /// The load's own count.
    pub tally: Tally,
    /// Microseconds of processor time a claim.
    pub cpu_us: Spent,
}

impl Naive {
    /// Starts this program again as the server, before a new Redis.
    pub async fn start(fsync: Fsync) -> anyhow::Result<Self> {
        let redis = redis::start(fsync).await;
        let process = Child::start("naive", &["--redis", &redis.url()]).await?;
        let view = redis.view().await;
        Ok(Self { name: format!("(e) naive server, {fsync}"), process, view, _redis: redis, campaigns: 0 })
    }

    /// 1,000 campaigns that have granted nothing yet.
    pub fn thousand(&mut self) -> Campaigns {
        self.campaigns += 1;
        Campaigns::thousand(&format!("bench-{}", self.campaigns))
    }

    /// Measures claims by users who have none yet, from a fresh campaign, and checks them.
    pub async fn claims(
        &mut self,
        session: &mut Session,
        connections: usize,
        pace: Pace,
    ) -> anyhow::Result<Claims> {
        self.campaigns += 1;
        let mut campaigns = Campaigns::one(format!("bench-{}", self.campaigns));
        self.claims_of(session, &mut campaigns, connections, pace).await
    }

    /// The same from `campaigns`.
    pub async fn claims_of(
        &self,
        session: &mut Session,
        campaigns: &mut Campaigns,
        connections: usize,
        pace: Pace,
    ) -> anyhow::Result<Claims> {
        let load = Load {
            address: self.process.address,
            connections,
            request: campaigns.request.clone(),
            seed: session.seed(),
            pace,
        };
        let before = Spent::by(self.process.pid(), &self.view).await?;
        let tally = session.measure(client::run(load)).await.with_context(|| self.name.clone())?;
        let spent = Spent::by(self.process.pid(), &self.view).await? - before;
        let granted = tally.all(201).with_context(|| self.name.clone())?;
        campaigns.add(granted);
        self.check(campaigns).await?;
        Ok(Claims { tally, cpu_us: spent.us_a_claim(granted) })
    }

    /// Whether what was granted is what Redis has taken.
    async fn check(&self, campaigns: &Campaigns) -> anyhow::Result<()> {
        for (id, granted) in campaigns.granted() {
            let taken: Option<u64> = ask(&self.view, &["HGET", &campaign_key(id), "taken"]).await?;
            let taken = taken.unwrap_or(0);
            ensure!(taken == granted, "{}: {id} granted {granted}, Redis has taken {taken}", self.name);
        }
        Ok(())
    }
}

#[derive(Debug, Clone)]
struct Shared {
    redis: MultiplexedConnection,
    script: Arc<Script>,
}

#[derive(Debug, Deserialize)]
struct Request {
    campaign_id: String,
    user_id: String,
}

#[derive(Debug, Serialize)]
struct Reply {
    campaign_id: String,
    user_id: String,
    status: &'static str,
}

/// Serves until killed.
pub async fn listen(address: SocketAddr, redis_url: &str) -> anyhow::Result<()> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(REDIS_WAIT));
    let redis = Client::open(redis_url)?.get_multiplexed_async_connection_with_config(&config).await?;
    let shared = Shared { redis, script: Arc::new(Script::new(plain::SCRIPT)) };
    let router = Router::new().route("/internal/v1/claims", post(claim)).with_state(shared);
    let listener = TcpListener::bind(address).await?.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    Ok(axum::serve(listener, router).await?)
}

async fn claim(State(shared): State<Shared>, Json(request): Json<Request>) -> Response {
    match is_granted(shared, &request).await {
        Ok(is_granted) => {
            let (code, status) =
                if is_granted { (StatusCode::CREATED, "granted") } else { (StatusCode::CONFLICT, "refused") };
            let Request { campaign_id, user_id } = request;
            (code, Json(Reply { campaign_id, user_id, status })).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn is_granted(mut shared: Shared, request: &Request) -> RedisResult<bool> {
    let id = &request.campaign_id;
    let mut call = shared.script.key(format!("naive:{{{id}}}:day:{}", today()));
    call.key(format!("naive:{{{id}}}:user")).key(campaign_key(id));
    call.arg(&request.user_id).arg(PER_USER_PER_DAY).arg(PER_USER).arg(TOTAL);
    call.invoke_async(&mut shared.redis).await
}

fn campaign_key(id: &str) -> String {
    format!("naive:{{{id}}}:campaign")
}

/// Days since 1970.
fn today() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 86_400
}
