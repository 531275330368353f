//! The servers of the topology that the tests run on, for one test.

use std::path::PathBuf;

use futures_util::future::join_all;

use crate::clock::{Clock, FrozenClock};
use crate::cluster::{ClusterSet, Further};
use crate::redis_server::Kind;
use crate::sentinel::{Access, SERVICE, SentinelSet};
use crate::times::now_ms;
use crate::topology::Topology;
use crate::wait::{SOON, eventually, holds};
use crate::{RedisServer, RedisView};

/// No server is taken for failed, whatever the machine is busy with and wherever a test moves the clock: failovers have
/// tests of their own. In seconds: the longest that a replica may be told to wait.
const NEVER_S: &str = "2147483647";
const NEVER_MS: &str = "2147483647000";
/// The same for a sentinel, which is on the machine's clock.
const SENTINEL_NEVER_MS: &str = "3600000";

/// One server, or a set of them. Without failovers the first server of a set and the first three nodes of a cluster stay
/// the primaries.
#[derive(Debug)]
pub enum Servers {
    /// Also where core would run its own, and the test wants one that is not core's.
    One(RedisServer),
    /// Watched by sentinels.
    Sentinel(SentinelSet),
    /// Sharing the slots.
    Cluster(ClusterSet),
}

impl Servers {
    /// With fsync on every write, on the machine's clock.
    pub async fn start() -> Self {
        Self::start_with(&[], &[]).await
    }

    /// The same on `clock`.
    pub async fn start_on(clock: &Clock) -> Self {
        Self::start_with(&[], &clock.environment()).await
    }

    /// The same on a clock that stands still.
    pub async fn start_frozen(clock: &FrozenClock) -> Self {
        let environment = clock.environment();
        let starting = Self::start_with(&[], &environment);
        if Topology::asked() == Topology::Cluster {
            clock.running_behind(starting).await
        } else {
            starting.await
        }
    }

    /// With further settings (`("appendfsync", "everysec")`) and variables.
    pub async fn start_with(settings: &[(&str, &str)], environment: &[(&str, PathBuf)]) -> Self {
        let kind = Kind::asked();
        let patient = [settings, &[("repl-timeout", NEVER_S)]].concat();
        match Topology::asked() {
            Topology::Own | Topology::Primary => {
                Self::One(RedisServer::start_as(kind, settings, environment).await)
            }
            Topology::Sentinel => {
                let access = Access { kind, settings: &patient, environment, ..Access::default() };
                let set = SentinelSet::start_with(access).await;
                for sentinel in &set.sentinels {
                    let set = ["SENTINEL", "SET", SERVICE, "down-after-milliseconds", SENTINEL_NEVER_MS];
                    sentinel.view().await.query::<()>(&set).await;
                }
                Self::Sentinel(set)
            }
            Topology::Cluster => {
                let patient = [&patient[..], &[("cluster-node-timeout", NEVER_MS)]].concat();
                let further = Further { settings: &patient, environment, ..Further::default() };
                Self::Cluster(ClusterSet::start_with(kind, further).await)
            }
        }
    }

    /// For `CLAIMGATE_REDIS_URL`.
    pub fn url(&self) -> String {
        match self {
            Self::One(server) => server.url(),
            Self::Sentinel(set) => set.url(),
            Self::Cluster(set) => set.url(),
        }
    }

    /// The server, on a topology with one: [`only_on!`](crate::only_on) `(ONE_SERVER, …)`.
    pub fn one(&mut self) -> &mut RedisServer {
        match self {
            Self::One(server) => server,
            set => panic!("the test has not said that it wants one server, and got {set:?}"),
        }
    }

    /// A connection to the servers that have the keys, past core.
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

    /// The process ids of the primaries.
    pub fn pids(&self) -> Vec<u32> {
        self.primaries().into_iter().map(RedisServer::pid).collect()
    }

    /// Moves `clock`, on which they run, by milliseconds from the real time, and waits until every primary has heard: a Valkey
    /// takes the time of the first command after a rest from before it.
    pub async fn move_clock(&self, clock: &Clock, ms: i64) {
        // They round it.
        let first = now_ms() + ms - 5;
        clock.move_by_ms(ms);
        self.have_time(|time| (first..=now_ms() + ms + 5).contains(&time)).await;
    }

    /// The same for servers that were started on this clock, which stands still.
    pub async fn set_frozen_clock(&self, clock: &mut FrozenClock, now_ms: i64) {
        clock.set_ms(now_ms);
        self.have_time(|time| time == now_ms).await;
    }

    /// Waits until every primary has a time, in milliseconds since 1970, that is right.
    async fn have_time(&self, is_right: impl Fn(i64) -> bool) {
        let view = self.view().await;
        eventually(SOON, || async {
            let told: Vec<(i64, i64)> = view.query_all(&["TIME"]).await;
            holds(told.iter().all(|(s, us)| is_right(s * 1000 + us / 1000)), || format!("{told:?}"))
        })
        .await;
    }

    /// `kill -9` of every primary.
    pub fn kill(&mut self) {
        for server in self.primaries_mut() {
            server.process().kill();
        }
    }

    /// `kill -9` of every primary, then the same servers again on the same files; waits until they serve.
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

    /// The same for servers that were started on this clock.
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
