//! Observes the commands that reach Redis, using its slow log.

use serde_json::json;

use crate::{Core, CoreOptions, RedisView, Servers};

/// A Redis server that logs every command it receives.
#[derive(Debug)]
pub struct LoggedRedis {
    /// A connection to this server, bypassing core.
    pub redis: RedisView,
    _servers: Servers,
}

impl LoggedRedis {
    /// Starts a logging Redis and, on it, a core with a campaign `demo`.
    pub async fn start() -> (Core, Self) {
        let slowlog = [("slowlog-log-slower-than", "0"), ("slowlog-max-len", "100000")];
        let servers = Servers::start_with(&slowlog, &[]).await;
        let core = CoreOptions::default().with("CLAIMGATE_REDIS_URL", servers.url()).start().await;
        core.create("demo", json!({"total": 1000})).await;
        let redis = servers.view().await;
        (core, Self { redis, _servers: servers })
    }

    /// Returns whether Redis received a script call that names `user`. Core's own refresh calls scripts every
    /// second, so the number of calls proves nothing.
    pub async fn received_script_naming(&self, user: &str) -> bool {
        let log: Vec<redis::Value> = self.redis.query_all(&["SLOWLOG", "GET", "-1"]).await;
        let text = format!("{log:?}");
        assert!(text.contains("EVALSHA") || text.contains("evalsha"), "the slow log shows no script at all");
        text.contains(user)
    }

    /// Returns the number of commands so far that write claims, counters or events.
    pub async fn writes(&self) -> u64 {
        self.redis.calls(&["hset", "hmset", "hincrby", "hdel", "xadd", "zadd", "zrem"]).await
    }
}
