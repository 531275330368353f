//! Two cores on one Redis and one PostgreSQL, at addresses that outlast their restarts, and an edge before both.

use std::path::PathBuf;

use reqwest::{Method, RequestBuilder};
use serde_json::json;

use crate::client::{Client, client};
use crate::edge::{Edge, Runtime, token};
use crate::fault_proxy::FaultProxy;
use crate::postgres::Postgres;
use crate::process::{fast_disk, free_address};
use crate::{Core, CoreOptions, RedisServer, Sql};

/// Both cores and the edge have them.
const EDGE_KEY: &str = "k1:YSBrZXkgZm9yIHR3byBjb3JlcywgYW5kIG5vbmUgZWxzZQ";
const USER_JWT_KEY: &str = "YSBrZXkgZm9yIHRoZSB1c2VycyBvZiB0d28gb2YgdGhlbQ";

/// Two cores, and what they stand on, which ends after them.
#[derive(Debug)]
pub struct Pair {
    /// The cores.
    pub cores: [Core; 2],
    /// On the first core's way to Redis.
    pub proxy: FaultProxy,
    /// Their Redis, on a fast disk: a slow one would hold both up.
    pub server: RedisServer,
    /// Their database.
    pub sql: Sql,
    _postgres: Postgres,
}

impl Pair {
    /// Two cores with `options`, ready; `Err` where there is no PostgreSQL.
    pub async fn start(options: CoreOptions) -> Result<Self, String> {
        let postgres = Postgres::start().await?;
        let url = postgres.database("claimgate").await;
        let server = RedisServer::start_with(&[], &fast_disk()).await;
        let socket = PathBuf::from(server.url().trim_start_matches("unix://"));
        let proxy = FaultProxy::start(socket).await;
        let start = |redis: String| {
            let options =
                options.clone().with("CLAIMGATE_DATABASE_URL", &url).with("CLAIMGATE_REDIS_URL", redis);
            let options =
                options.with("CLAIMGATE_EDGE_KEYS", EDGE_KEY).with("CLAIMGATE_USER_JWT_KEY", USER_JWT_KEY);
            options.listen_at(free_address()).start()
        };
        let cores = [start(proxy.url()).await, start(server.url()).await];
        Ok(Self { cores, proxy, server, sql: Sql::open(&url), _postgres: postgres })
    }

    /// An edge that has both cores.
    pub async fn edge(&self, runtime: Runtime, name: &str) -> PairEdge {
        let urls = self.cores.each_ref().map(|core| format!("http://{}", core.listen())).join(",");
        let variables = [("CORE_URL", urls.as_str()), ("EDGE_KEY", EDGE_KEY), ("USER_JWT_KEY", USER_JWT_KEY)];
        PairEdge { edge: Edge::start(runtime, name, "test", &variables).await, client: client() }
    }
}

/// An edge before both cores.
#[derive(Debug)]
pub struct PairEdge {
    /// It.
    pub edge: Edge,
    /// For calls to it.
    pub client: Client,
}

impl PairEdge {
    /// A claim of one unit by a key, to be marked and sent.
    pub fn claim_request(&self, campaign: &str, user: &str, key: &str) -> RequestBuilder {
        let url = self.edge.url(&format!("/v1/campaigns/{campaign}/claims"));
        let request = self.client.request(Method::POST, &url).bearer_auth(token(USER_JWT_KEY, user));
        request.header("Idempotency-Key", key).json(&json!({}))
    }
}
