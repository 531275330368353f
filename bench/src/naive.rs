//! Baseline (e): the simplest server for the task. An axum route reads JSON, calls the plain script for the
//! campaign through redis-rs, one `EVALSHA` per request, and responds with JSON. It has no credentials,
//! replay, outbox or SQL. Like core, it runs in its own process, with its own Redis.

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
use crate::client::{self, Pace, Tally};
use crate::plain;
use crate::processor::CpuTime;
use crate::redis::{self, Fsync, query};
use crate::session::Session;

/// Equal to the limits of the benchmark's campaigns.
const PER_USER_PER_DAY: u32 = 5;
const PER_USER: u32 = 5;
const TOTAL: u32 = 1_000_000_000;
/// Timeout of a call, longer than the slowest disk sync: this server cannot retry a claim with an unknown
/// outcome.
const REDIS_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Naive {
    /// Name shown in progress lines.
    pub name: String,
    process: Child,
    view: RedisView,
    _redis: RedisServer,
    campaigns: u32,
}

/// The result of a load of claims, which were all granted and verified in Redis.
#[derive(Debug)]
pub struct Claims {
    /// The load's own count.
    pub tally: Tally,
    /// Microseconds of CPU time per claim.
    pub cpu_us: CpuTime,
}

impl Naive {
    /// Runs this program as the server, with a new Redis server.
    pub async fn start(fsync: Fsync) -> anyhow::Result<Self> {
        let redis = redis::start(fsync).await;
        let process = Child::start("naive", &["--redis", &redis.url()]).await?;
        let view = redis.view().await;
        Ok(Self { name: format!("(e) naive server, {fsync}"), process, view, _redis: redis, campaigns: 0 })
    }

    /// Returns 1,000 new campaigns.
    pub fn thousand_campaigns(&mut self) -> Campaigns {
        self.campaigns += 1;
        Campaigns::thousand_campaigns(&format!("bench-{}", self.campaigns))
    }

    /// Measures claims of one new campaign by new users, and checks them.
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

    /// Measures claims of `campaigns` by new users, and checks them.
    pub async fn claims_of(
        &self,
        session: &mut Session,
        campaigns: &mut Campaigns,
        connections: usize,
        pace: Pace,
    ) -> anyhow::Result<Claims> {
        let load = session.load(self.process.address, connections, campaigns.request.clone(), pace);
        let before = CpuTime::of(self.process.pid(), &self.view).await?;
        let tally = session.measure(client::run(load)).await.with_context(|| self.name.clone())?;
        let cpu_time = CpuTime::of(self.process.pid(), &self.view).await? - before;
        let granted = tally.all(201).with_context(|| self.name.clone())?;
        campaigns.add(granted);
        self.check(campaigns).await?;
        Ok(Claims { tally, cpu_us: cpu_time.us_per_claim(granted) })
    }

    /// Checks that Redis has exactly the granted claims.
    async fn check(&self, campaigns: &Campaigns) -> anyhow::Result<()> {
        for (id, granted) in campaigns.granted() {
            let taken: Option<u64> = query(&self.view, &["HGET", &campaign_key(id), "taken"]).await?;
            let taken = taken.unwrap_or(0);
            ensure!(
                taken == granted,
                "{}: {granted} units of {id} granted, but Redis counts {taken} taken",
                self.name
            );
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
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(REDIS_TIMEOUT));
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
                if is_granted { (StatusCode::CREATED, "granted") } else { (StatusCode::CONFLICT, "denied") };
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

/// Returns the days since 1970.
fn today() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 86_400
}
