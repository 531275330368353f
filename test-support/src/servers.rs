//! The Redis servers of the configured topology, for one test.

use std::path::PathBuf;

use futures_util::future::join_all;

use crate::clock::{Clock, FrozenClock};
use crate::cluster::{ClusterOptions, ClusterSet, WITHOUT_FAILOVERS};
use crate::redis_server::Kind;
use crate::sentinel::{Access, SentinelSet};
use crate::time_limits::SOON;
use crate::times::now_ms;
use crate::topology::Topology;
use crate::wait::{eventually, holds};
use crate::{RedisServer, RedisView};

/// Timeout of a replica that never expires, regardless of load and the test's clock, because separate tests cover
/// failovers: the maximum, in seconds.
const NEVER_S: &str = "2147483647";

/// One server or a set of servers. Without failovers the first server of a set and the first three nodes of a
/// cluster stay primaries.
#[derive(Debug)]
pub enum Servers {
    /// One server. Also used if core would run its own Redis but the test needs an external server.
    One(RedisServer),
    /// Servers watched by sentinels.
    Sentinel(SentinelSet),
    /// Nodes that share the slots.
    Cluster(ClusterSet),
}

impl Servers {
    /// Starts servers with fsync on every write, on the system clock.
    pub async fn start() -> Self {
        Self::start_with(&[], &[]).await
    }

    /// Starts servers on `clock`.
    pub async fn start_on(clock: &Clock) -> Self {
        Self::start_with(&[], &clock.environment()).await
    }

    /// Starts servers on a frozen clock.
    pub async fn start_frozen(clock: &FrozenClock) -> Self {
        let environment = clock.environment();
        let starting = Self::start_with(&[], &environment);
        if Topology::from_env() == Topology::Cluster {
            clock.running_behind(starting).await
        } else {
            starting.await
        }
    }

    /// Starts servers with additional settings (`("appendfsync", "everysec")`) and variables.
    pub async fn start_with(settings: &[(&str, &str)], environment: &[(&str, PathBuf)]) -> Self {
        let kind = Kind::from_env();
        let patient = [settings, &[("repl-timeout", NEVER_S)]].concat();
        match Topology::from_env() {
            Topology::Own | Topology::Primary => {
                Self::One(RedisServer::start_as(kind, settings, environment).await)
            }
            Topology::Sentinel => {
                let access = Access { kind, settings: &patient, environment, ..Access::default() };
                let set = SentinelSet::start_with(access).await;
                set.never_fail_over().await;
                Self::Sentinel(set)
            }
            Topology::Cluster => {
                let patient = [&patient[..], &[WITHOUT_FAILOVERS]].concat();
                let options = ClusterOptions { settings: &patient, environment, ..ClusterOptions::default() };
                Self::Cluster(ClusterSet::start_with(kind, options).await)
            }
        }
    }

    /// Returns the value for `CLAIMGATE_REDIS_URL`.
    pub fn url(&self) -> String {
        match self {
            Self::One(server) => server.url(),
            Self::Sentinel(set) => set.url(),
            Self::Cluster(set) => set.url(),
        }
    }

    /// Returns the only server, for tests with [`only_on!`](crate::only_on) `(ONE_SERVER, …)`.
    pub fn one(&mut self) -> &mut RedisServer {
        match self {
            Self::One(server) => server,
            set => panic!("the test needs `only_on!(ONE_SERVER, …)`, but got {set:?}"),
        }
    }

    /// Opens a connection to the servers that have the keys, bypassing core.
    pub async fn view(&self) -> RedisView {
        match self {
            Self::One(server) => server.view().await,
            Self::Sentinel(set) => set.view(0).await,
            Self::Cluster(set) => {
                let views =
                    self.primaries().into_iter().enumerate().map(|(at, server)| async move {
                        (set.address(at).to_string(), server.view().await)
                    });
                RedisView::of_cluster(join_all(views).await)
            }
        }
    }

    /// Returns the process ids of the primaries.
    pub fn pids(&self) -> Vec<u32> {
        self.primaries().into_iter().map(RedisServer::pid).collect()
    }

    /// Sets the offset of `clock`, on which the servers run, and waits until every primary shows the new
    /// time. After an idle period Valkey still uses the old time for its first command.
    pub async fn move_clock(&self, clock: &Clock, ms: i64) {
        // Servers round the time.
        let first = now_ms() + ms - 5;
        clock.move_by_ms(ms);
        self.have_time(|time| (first..=now_ms() + ms + 5).contains(&time)).await;
    }

    /// Sets the servers' frozen clock, and waits until every primary shows the new time.
    pub async fn set_frozen_clock(&self, clock: &mut FrozenClock, now_ms: i64) {
        clock.set_ms(now_ms);
        self.have_time(|time| time == now_ms).await;
    }

    /// Waits until every primary has a time, in milliseconds since 1970, for which `is_right` holds.
    async fn have_time(&self, is_right: impl Fn(i64) -> bool) {
        let view = self.view().await;
        eventually(SOON, || async {
            let times: Vec<(i64, i64)> = view.query_all(&["TIME"]).await;
            holds(times.iter().all(|(s, us)| is_right(s * 1000 + us / 1000)), || format!("{times:?}"))
        })
        .await;
    }

    /// Sends SIGKILL to every primary.
    pub fn kill(&mut self) {
        for server in self.primaries_mut() {
            server.process().kill();
        }
    }

    /// Sends SIGKILL to every primary, then starts the same servers on the same files; waits until they
    /// serve.
    pub async fn kill_and_restart(&mut self) {
        self.kill();
        join_all(self.primaries_mut().iter_mut().map(RedisServer::kill_and_restart)).await;
        let Self::Cluster(set) = self else { return };
        for server in &set.nodes {
            let view = server.view().await;
            eventually(SOON, || async {
                let info: String = view.query(&["CLUSTER", "INFO"]).await;
                holds(info.contains("cluster_state:ok"), || info.clone())
            })
            .await;
        }
    }

    /// Sends SIGKILL to every primary on a frozen clock, then restarts the same servers.
    pub async fn kill_and_restart_frozen(&mut self, clock: &FrozenClock) {
        if matches!(self, Self::Cluster(_)) {
            clock.running_behind(self.kill_and_restart()).await;
        } else {
            self.kill_and_restart().await;
        }
    }

    fn primaries(&self) -> Vec<&RedisServer> {
        match self {
            Self::One(server) => vec![server],
            Self::Sentinel(set) => vec![&set.servers[0]],
            Self::Cluster(set) => set.nodes.iter().take(set.nodes.len() / 2).collect(),
        }
    }

    fn primaries_mut(&mut self) -> &mut [RedisServer] {
        match self {
            Self::One(server) => std::slice::from_mut(server),
            Self::Sentinel(set) => &mut set.servers[..1],
            Self::Cluster(set) => {
                let half = set.nodes.len() / 2;
                &mut set.nodes[..half]
            }
        }
    }
}
