//! CPU time of servers.

use std::fs;
use std::ops::Sub;

use support::RedisView;

use crate::redis;

/// The kernel counts in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds of CPU time of a process's threads, grouped by their names.
#[derive(Debug, Clone, Copy)]
pub struct Threads {
    /// The relay's thread and SQLite's.
    pub relay: f64,
    /// All other threads, which serve HTTP.
    pub others: f64,
}

impl Threads {
    /// Reads the CPU time so far of the running threads of process `pid`.
    pub fn of(pid: u32) -> Self {
        let mut found = Self { relay: 0.0, others: 0.0 };
        for (name, seconds) in threads(pid) {
            let is_relay = name == "relay" || name.starts_with("sqlx-sqlite");
            *if is_relay { &mut found.relay } else { &mut found.others } += seconds;
        }
        found
    }
}

/// Returns the seconds of CPU time so far of the threads of process `pid` that are called `wanted`.
pub fn thread_seconds(pid: u32, wanted: &str) -> f64 {
    threads(pid).filter(|(name, _)| name == wanted).map(|(_, seconds)| seconds).sum()
}

/// Returns the name of each running thread of process `pid`, and its seconds of CPU time so far.
fn threads(pid: u32) -> impl Iterator<Item = (String, f64)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        thread(&stat).map(|(name, seconds)| (name.to_owned(), seconds))
    })
}

/// Parses a thread's name and its seconds of CPU time, user and system.
fn thread(stat: &str) -> Option<(&str, f64)> {
    let (head, rest) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once('(')?;
    let mut ticks = rest.split(' ').skip(11).map_while(|word| word.parse::<f64>().ok());
    Some((name, (ticks.next()? + ticks.next()?) / TICKS_PER_SECOND))
}

/// Seconds of CPU time of a server and its Redis.
#[derive(Debug, Clone, Copy)]
pub struct CpuTime {
    /// The server's threads that serve HTTP.
    pub http: f64,
    /// The server's relay thread and SQLite's.
    pub relay: f64,
    /// Redis, without its child processes.
    pub redis: f64,
}

impl CpuTime {
    /// Reads the CPU time so far of process `pid` and of the Redis behind `view`.
    pub async fn of(pid: u32, view: &RedisView) -> anyhow::Result<Self> {
        let Threads { relay, others: http } = Threads::of(pid);
        Ok(Self { http, relay, redis: redis::cpu_seconds(view).await? })
    }

    /// Returns microseconds per claim.
    #[must_use]
    pub fn us_per_claim(self, claims: u64) -> Self {
        let each = |seconds: f64| seconds * 1e6 / claims as f64;
        Self { http: each(self.http), relay: each(self.relay), redis: each(self.redis) }
    }

    /// Returns the sum.
    pub fn total(self) -> f64 {
        self.http + self.relay + self.redis
    }
}

impl Sub for CpuTime {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            http: self.http - before.http,
            relay: self.relay - before.relay,
            redis: self.redis - before.redis,
        }
    }
}
