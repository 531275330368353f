//! Two cores on one PostgreSQL, and replicated servers on a network that can be broken.

use std::fmt;

use serde_json::Value;
use support::cluster::{ClusterOptions, ClusterSet};
use support::network::Network;
use support::postgres::Postgres;
use support::process::fast_disk;
use support::redis_server::Kind;
use support::sentinel::{Access, SERVICE, SentinelSet};
use support::sql::Sql;
use support::wait::holds;
use support::{Core, CoreOptions, RedisServer, RedisView, SOON, eventually};

/// Silence after which a server is considered down. The timeout is shorter than elsewhere, because a false
/// alarm only adds a failover.
const DOWN_AFTER_MS: &str = "1000";
/// Time limit of one failover attempt of Sentinel; the next one starts after twice as long.
const TRY_MS: &str = "3000";

/// The arrangement of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A primary, two replicas and three sentinels.
    Sentinel,
    /// Three primaries with one replica each.
    Cluster,
}

/// The servers, some of which may be down.
pub enum Topology {
    Sentinel(SentinelSet),
    Cluster(ClusterSet),
}

/// The whole installation. Cores end before their servers.
pub struct Installation {
    pub name: String,
    pub cores: [Core; 2],
    pub topology: Topology,
    pub network: Network,
    pub sql: Sql,
    _postgres: Postgres,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sentinel => "Sentinel",
            Self::Cluster => "Cluster",
        })
    }
}

impl Installation {
    /// Starts an installation whose cores require this number of replicas, which are in sync on return; `Err`
    /// if there is no PostgreSQL.
    pub async fn start(shape: Shape, kind: Kind, replicas: u32) -> Result<Self, String> {
        let postgres = Postgres::start().await?;
        let url = postgres.database("claimgate").await;
        let network = Network::default();
        let topology = Topology::start(shape, kind, &network).await;
        let start = || {
            let options = CoreOptions::default().with("CLAIMGATE_DATABASE_URL", &url);
            let options = options.with("CLAIMGATE_REDIS_REPLICAS", replicas.to_string());
            options.with("CLAIMGATE_REDIS_URL", topology.url()).start()
        };
        let cores = [start().await, start().await];
        let name = format!("{shape}, {kind:?}");
        let site = Self { name, cores, topology, network, sql: Sql::open(&url), _postgres: postgres };
        if replicas > 0 {
            site.all_replicas_count().await;
        }
        Ok(site)
    }

    /// Waits until every replica is a member of its set; a promoted server outside the set stays closed.
    pub async fn all_replicas_count(&self) {
        let (primaries, replicas) = match self.topology {
            Topology::Sentinel(_) => (1, 2),
            Topology::Cluster(_) => (3, 1),
        };
        eventually(SOON, || async {
            let report = self.cores[0].admin_get("/admin/v1/replication").await.json();
            let sets = report["primaries"].as_array().cloned().unwrap_or_default();
            let count = |set: &Value, which: &str| set["set"][which].as_array().map(Vec::len);
            let is_whole =
                |set: &Value| count(set, "members") == Some(replicas) && count(set, "joining") == Some(0);
            holds(sets.len() == primaries && sets.iter().all(is_whole), || format!("{report:#}"))
        })
        .await;
    }

    /// Opens a connection to the server that has `campaign`, bypassing core.
    pub async fn redis(&self, campaign: &str) -> RedisView {
        self.topology.view(self.topology.primary_of(campaign).await).await
    }
}

impl Topology {
    async fn start(shape: Shape, kind: Kind, network: &Network) -> Self {
        // A slow disk would make servers look down without a fault.
        let environment = &fast_disk();
        match shape {
            Shape::Sentinel => {
                let access = Access { kind, network: Some(network), environment, ..Access::default() };
                let set = SentinelSet::start_with(access).await;
                for sentinel in &set.sentinels {
                    let view = sentinel.view().await;
                    for (setting, ms) in
                        [("down-after-milliseconds", DOWN_AFTER_MS), ("failover-timeout", TRY_MS)]
                    {
                        view.query::<()>(&["SENTINEL", "SET", SERVICE, setting, ms]).await;
                    }
                }
                Self::Sentinel(set)
            }
            Shape::Cluster => {
                let options =
                    ClusterOptions { network: Some(network), environment, ..ClusterOptions::default() };
                let set = ClusterSet::start_with(kind, options).await;
                for node in &set.nodes {
                    let set = ["CONFIG", "SET", "cluster-node-timeout", DOWN_AFTER_MS];
                    node.view().await.query::<()>(&set).await;
                }
                Self::Cluster(set)
            }
        }
    }

    fn url(&self) -> String {
        match self {
            Self::Sentinel(set) => set.url(),
            Self::Cluster(set) => set.url(),
        }
    }

    /// Returns the server at this index.
    pub fn server(&mut self, place: usize) -> &mut RedisServer {
        match self {
            Self::Sentinel(set) => &mut set.servers[place],
            Self::Cluster(set) => &mut set.nodes[place],
        }
    }

    /// Opens a connection to the server at this index, bypassing core and the network.
    pub async fn view(&self, place: usize) -> RedisView {
        match self {
            Self::Sentinel(set) => set.view(place).await,
            Self::Cluster(set) => set.view(place).await,
        }
    }

    /// Returns the index of the primary that has `campaign`, while all servers run.
    pub async fn primary_of(&self, campaign: &str) -> usize {
        match self {
            Self::Sentinel(set) => set.named_by(&set.sentinels[0]).await,
            Self::Cluster(set) => set.primary_of(campaign, 0).await,
        }
    }

    /// Returns the indexes of a primary's replicas.
    pub fn replicas_of(&self, primary: usize) -> Vec<usize> {
        match self {
            Self::Sentinel(set) => (0..set.servers.len()).filter(|place| *place != primary).collect(),
            Self::Cluster(set) => vec![partner(set, primary)],
        }
    }

    /// Waits until all deciding servers report a primary of `campaign` other than `before`.
    pub async fn promoted_after(&self, campaign: &str, before: usize) -> usize {
        match self {
            Self::Sentinel(set) => set.promoted_after(before).await,
            // Query a neighbouring node that is neither the old primary nor its replica.
            Self::Cluster(set) => set.promoted_after(campaign, before, (before + 1) % set.nodes.len()).await,
        }
    }

    /// Requests a failover, as an operator does, and waits until it has completed. With `force` a Cluster
    /// does not wait for the primary; Sentinel never waits.
    pub async fn fail_over(&self, campaign: &str, primary: usize, force: bool) {
        if let Self::Cluster(set) = self {
            let words = ["CLUSTER", "FAILOVER", "FORCE"];
            let words = if force { &words[..] } else { &words[..2] };
            let replica = set.view(partner(set, primary)).await;
            eventually(SOON, || async { replica.try_query::<()>(words).await }).await;
            self.promoted_after(campaign, primary).await;
        } else if let Self::Sentinel(set) = self {
            set.fail_over().await;
        }
    }

    /// Waits until all servers run and each replica follows its primary.
    pub async fn settled(&self) {
        match self {
            Self::Sentinel(set) => set.settled().await,
            Self::Cluster(set) => set.settled().await,
        }
    }
}

/// Returns the replica of a primary, or the primary of a replica.
fn partner(set: &ClusterSet, node: usize) -> usize {
    (node + set.nodes.len() / 2) % set.nodes.len()
}
