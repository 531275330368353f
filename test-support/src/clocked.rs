//! A core whose Redis has a clock that the test moves, so that holds, days and windows end when the test says so.

use crate::clock::Clock;
use crate::{Core, CoreOptions, Servers};

/// A core on its own servers. Core itself is on the machine's clock: all decisions are made by that of Redis.
#[derive(Debug)]
pub struct ClockedCore {
    /// The core.
    pub core: Core,
    /// The core's Redis.
    pub redis: Servers,
    /// The clock of Redis.
    pub clock: Clock,
}

impl ClockedCore {
    /// Starts the servers and core.
    pub async fn start(options: CoreOptions) -> Self {
        let clock = Clock::new();
        let redis = Servers::start_on(&clock).await;
        let core = options.with("CLAIMGATE_REDIS_URL", redis.url()).start().await;
        Self { core, redis, clock }
    }

    /// Sets the offset of Redis' clock from the real time.
    pub async fn move_by_hours(&self, hours: i64) {
        self.redis.move_clock(&self.clock, hours * 3_600_000).await;
    }
}
