//! What reaches Redis, by what Redis itself says.

use serde_json::json;

use crate::{Core, CoreOptions, RedisView, Servers};

/// A Redis that tells every command it gets.
#[derive(Debug)]
pub struct Watched {
    /// The way to it, past core.
    pub redis: RedisView,
    _servers: Servers,
}

impl Watched {
    /// Starts one, and on it a core with a campaign `demo`.
    pub async fn start() -> (Core, Self) {
        let slowlog = [("slowlog-log-slower-than", "0"), ("slowlog-max-len", "100000")];
        let servers = Servers::start_with(&slowlog, &[]).await;
        let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", servers.url()).start().await;
        core.create("demo", json!({"total": 1000})).await;
        let redis = servers.view().await;
        (core, Self { redis, _servers: servers })
    }

    /// Whether Redis has seen a script call that names `user`. (Core's own refresh calls scripts each second, so
    /// their number alone says nothing.)
    pub async fn asked_for(&self, user: &str) -> bool {
        let log: Vec<redis::Value> = self.redis.query_all(&["SLOWLOG", "GET", "-1"]).await;
        let text = format!("{log:?}");
        assert!(text.contains("EVALSHA") || text.contains("evalsha"), "the slow log shows no script at all");
        text.contains(user)
    }

    /// How many commands that write claims, counters or events Redis has counted.
    pub async fn writes(&self) -> u64 {
        self.redis.calls(&["hset", "hmset", "hincrby", "hdel", "xadd", "zadd", "zrem"]).await
    }
}
