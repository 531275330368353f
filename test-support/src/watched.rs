//! What reaches Redis, by what Redis itself says.

use redis::Value;
use serde_json::json;

use crate::{Core, CoreOptions, RedisServer, RedisView};

/// A Redis that tells every command it gets.
#[derive(Debug)]
pub struct Watched {
    /// The way to it, past core.
    pub redis: RedisView,
    _server: RedisServer,
}

impl Watched {
    /// Starts one, and on it a core with a campaign `demo`.
    pub async fn start() -> (Core, Self) {
        let slowlog = [("slowlog-log-slower-than", "0"), ("slowlog-max-len", "100000")];
        let server = RedisServer::start_with(&slowlog, &[]).await;
        let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", server.url()).start().await;
        core.create("demo", json!({"total": 1000})).await;
        let redis = server.view().await;
        (core, Self { redis, _server: server })
    }

    /// Whether Redis has seen a script call that names `user`. (Core's own refresh calls scripts each second, so
    /// their number alone says nothing.)
    pub async fn asked_for(&self, user: &str) -> bool {
        let log: Value = self.redis.query(&["SLOWLOG", "GET", "-1"]).await;
        let text = format!("{log:?}");
        assert!(text.contains("EVALSHA") || text.contains("evalsha"), "the slow log shows no script at all");
        text.contains(user)
    }

    /// How many commands that write claims, counters or events Redis has counted.
    pub async fn writes(&self) -> u64 {
        self.redis.calls(&["hset", "hmset", "hincrby", "hdel", "xadd", "zadd", "zrem"]).await
    }
}
