//! Two cores on one Redis and one PostgreSQL, with addresses that survive restarts, and an edge in front of
//! both.

use std::path::PathBuf;

use reqwest::{Method, RequestBuilder};
use serde_json::json;

use crate::client::{Client, client};
use crate::edge::{Edge, Runtime, token};
use crate::fault_proxy::FaultProxy;
use crate::postgres::Postgres;
use crate::process::{fast_disk, free_address};
use crate::{Core, CoreOptions, RedisServer, Sql};

/// Shared by both cores and the edge.
pub const EDGE_KEY: &str = "k1:YSBrZXkgZm9yIHR3byBjb3JlcywgYW5kIG5vbmUgZWxzZQ";
const USER_JWT_KEY: &str = "YSBrZXkgZm9yIHRoZSB1c2VycyBvZiB0d28gb2YgdGhlbQ";

/// Two cores and their servers, which are stopped after the cores.
#[derive(Debug)]
pub struct Pair {
    /// The cores.
    pub cores: [Core; 2],
    /// The proxy between the first core and Redis.
    pub proxy: FaultProxy,
    /// The cores' Redis server, on a fast disk because a slow one would delay both cores.
    pub server: RedisServer,
    /// The cores' database.
    pub sql: Sql,
    _postgres: Postgres,
}

impl Pair {
    /// Starts two cores with `options` and waits until they are ready; `Err` if there is no PostgreSQL.
    pub async fn start(options: CoreOptions) -> Result<Self, String> {
        Self::start_each([options.clone(), options]).await
    }

    /// Starts two cores like [`Self::start`], each with its own options.
    pub async fn start_each([first, second]: [CoreOptions; 2]) -> Result<Self, String> {
        let postgres = Postgres::start().await?;
        let url = postgres.database("claimgate").await;
        let server = RedisServer::start_with(&[], &fast_disk()).await;
        let socket = PathBuf::from(server.url().trim_start_matches("unix://"));
        let proxy = FaultProxy::start(socket).await;
        let start = |options: CoreOptions, redis: String| {
            let options = options.with("CLAIMGATE_DATABASE_URL", &url).with("CLAIMGATE_REDIS_URL", redis);
            let options =
                options.with("CLAIMGATE_EDGE_KEYS", EDGE_KEY).with("CLAIMGATE_USER_JWT_KEY", USER_JWT_KEY);
            options.listen_at(free_address()).start()
        };
        let cores = [start(first, proxy.url()).await, start(second, server.url()).await];
        Ok(Self { cores, proxy, server, sql: Sql::open(&url), _postgres: postgres })
    }

    /// Starts an edge in front of both cores.
    pub async fn edge(&self, runtime: Runtime, name: &str) -> PairEdge {
        let urls = self.urls();
        PairEdge { edge: Edge::start(runtime, name, "test", &settings(&urls)).await, client: client() }
    }

    /// Starts an edge in front of both cores, in workerd with the configuration `config`.
    pub async fn edge_with(&self, config: PathBuf, name: &str) -> PairEdge {
        let urls = self.urls();
        let edge = Edge::start_with(config, Runtime::Workerd, name, "test", &settings(&urls)).await;
        PairEdge { edge, client: client() }
    }

    /// Returns the value of `CORE_URL`.
    fn urls(&self) -> String {
        self.cores.each_ref().map(|core| format!("http://{}", core.listen())).join(",")
    }
}

fn settings(urls: &str) -> [(&str, &str); 3] {
    [("CORE_URL", urls), ("EDGE_KEY", EDGE_KEY), ("USER_JWT_KEY", USER_JWT_KEY)]
}

/// An edge in front of both cores.
#[derive(Debug)]
pub struct PairEdge {
    /// The edge.
    pub edge: Edge,
    /// The client for calls to the edge.
    pub client: Client,
}

impl PairEdge {
    /// Returns an unsent claim of one unit by a key, without a mark.
    pub fn claim_request(&self, campaign: &str, user: &str, key: &str) -> RequestBuilder {
        let url = self.edge.url(&format!("/v1/campaigns/{campaign}/claims"));
        let request = self.client.request(Method::POST, &url).bearer_auth(token(USER_JWT_KEY, user));
        request.header("Idempotency-Key", key).json(&json!({}))
    }
}
