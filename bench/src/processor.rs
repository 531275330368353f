//! Processor time that servers use.

use std::fs;
use std::ops::Sub;

use support::RedisView;

use crate::redis;

/// The kernel counts in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds of processor time of a process, its threads told apart by their names.
#[derive(Debug, Clone, Copy)]
pub struct Threads {
    /// Of the relay's thread and SQLite's.
    pub relay: f64,
    /// Of all others, which serve HTTP.
    pub others: f64,
}

impl Threads {
    /// What the threads of the process `pid` that still run have used so far.
    pub fn of(pid: u32) -> Self {
        let mut found = Self { relay: 0.0, others: 0.0 };
        for entry in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let Some((name, seconds)) = thread(&stat) else { continue };
            let is_relay = name == "relay" || name.starts_with("sqlx-sqlite");
            *if is_relay { &mut found.relay } else { &mut found.others } += seconds;
        }
        found
    }
}

/// A thread's name and its seconds of processor time, own and in the kernel.
fn thread(stat: &str) -> Option<(&str, f64)> {
    let (head, rest) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once('(')?;
    let mut ticks = rest.split(' ').skip(11).map_while(|word| word.parse::<f64>().ok());
    Some((name, (ticks.next()? + ticks.next()?) / TICKS_PER_SECOND))
}

/// Seconds of processor time of a server and of its Redis.
#[derive(Debug, Clone, Copy)]
pub struct Spent {
    /// Of the server's threads that serve HTTP.
    pub http: f64,
    /// Of its relay's thread and SQLite's.
    pub relay: f64,
    /// Of Redis, without its children.
    pub redis: f64,
}

impl Spent {
    /// So far, by the process `pid` and the Redis that `view` looks at.
    pub async fn by(pid: u32, view: &RedisView) -> anyhow::Result<Self> {
        let Threads { relay, others: http } = Threads::of(pid);
        Ok(Self { http, relay, redis: redis::cpu_seconds(view).await? })
    }

    /// Microseconds each of `claims` has taken.
    #[must_use]
    pub fn us_a_claim(self, claims: u64) -> Self {
        let each = |seconds: f64| seconds * 1e6 / claims as f64;
        Self { http: each(self.http), relay: each(self.relay), redis: each(self.redis) }
    }

    /// All of it together.
    pub fn together(self) -> f64 {
        self.http + self.relay + self.redis
    }
}

impl Sub for Spent {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            http: self.http - before.http,
            relay: self.relay - before.relay,
            redis: self.redis - before.redis,
        }
    }
}
