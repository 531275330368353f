//! Two cores on one PostgreSQL, and replicated servers with a network between them that can be broken.

use std::fmt;

use serde_json::Value;
use support::cluster::{ClusterSet, Further};
use support::network::Network;
use support::postgres::Postgres;
use support::process::fast_disk;
use support::redis_server::Kind;
use support::sentinel::{Access, SERVICE, SentinelSet};
use support::sql::Sql;
use support::wait::holds;
use support::{Core, CoreOptions, RedisServer, RedisView, SOON, eventually};

/// How long a server is silent before it is taken for down: less than elsewhere, since a false alarm is one failover more.
const DOWN_AFTER_MS: &str = "1000";
/// How long one try of Sentinel may take; the next one comes after twice as long.
const TRY_MS: &str = "3000";

/// How the servers are kept together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A primary, two replicas, three sentinels.
    Sentinel,
    /// Three primaries with a replica each.
    Cluster,
}

/// The servers, some of which may be down.
pub enum Topology {
    Sentinel(SentinelSet),
    Cluster(ClusterSet),
}

/// All of it. Cores end before what they stand on.
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
    /// With so many replicas demanded by both cores, which count once this returns; `Err` where there is no PostgreSQL.
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

    /// Waits until every replica is one that counts: another one that is promoted stays closed.
    pub async fn all_replicas_count(&self) {
        let (primaries, replicas) = match self.topology {
            Topology::Sentinel(_) => (1, 2),
            Topology::Cluster(_) => (3, 1),
        };
        eventually(2 * SOON, || async {
            let told = self.cores[0].admin_get("/admin/v1/replication").await.json();
            let sets = told["primaries"].as_array().cloned().unwrap_or_default();
            let count = |set: &Value, which: &str| set["set"][which].as_array().map(Vec::len);
            let is_whole =
                |set: &Value| count(set, "members") == Some(replicas) && count(set, "joining") == Some(0);
            holds(sets.len() == primaries && sets.iter().all(is_whole), || format!("{told:#}"))
        })
        .await;
    }

    /// The server that has `campaign`, past core.
    pub async fn redis(&self, campaign: &str) -> RedisView {
        self.topology.view(self.topology.primary_of(campaign).await).await
    }
}

impl Topology {
    async fn start(shape: Shape, kind: Kind, network: &Network) -> Self {
        // By a slow one servers would be taken for down that no event has hit.
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
                let further = Further { network: Some(network), environment, ..Further::default() };
                let set = ClusterSet::start_with(kind, further).await;
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

    /// The server at this place.
    pub fn server(&mut self, place: usize) -> &mut RedisServer {
        match self {
            Self::Sentinel(set) => &mut set.servers[place],
            Self::Cluster(set) => &mut set.nodes[place],
        }
    }

    /// A connection to the server at this place, past core and the network.
    pub async fn view(&self, place: usize) -> RedisView {
        match self {
            Self::Sentinel(set) => set.view(place).await,
            Self::Cluster(set) => set.view(place).await,
        }
    }

    /// The place of the primary that has `campaign`, while all servers are there.
    pub async fn primary_of(&self, campaign: &str) -> usize {
        match self {
            Self::Sentinel(set) => set.named_by(&set.sentinels[0]).await,
            Self::Cluster(set) => set.primary_of(campaign, 0).await,
        }
    }

    /// The places of the replicas of the primary at this place.
    pub fn replicas_of(&self, primary: usize) -> Vec<usize> {
        match self {
            Self::Sentinel(set) => (0..set.servers.len()).filter(|place| *place != primary).collect(),
            Self::Cluster(set) => vec![partner(set, primary)],
        }
    }

    /// Waits until all that decide about it take another server than the one at `before` for the primary of `campaign`.
    pub async fn promoted_after(&self, campaign: &str, before: usize) -> usize {
        match self {
            Self::Sentinel(set) => set.promoted_after(before).await,
            // A neighbour is neither that node nor its replica.
            Self::Cluster(set) => set.promoted_after(campaign, before, (before + 1) % set.nodes.len()).await,
        }
    }

    /// Asks for a failover, as an operator does, and waits until it is done. With `force` a Cluster's primary is not waited
    /// for; Sentinel never waits for it.
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

    /// Waits until all servers are there, and each replica follows its primary.
    pub async fn settled(&self) {
        match self {
            Self::Sentinel(set) => set.settled().await,
            Self::Cluster(set) => set.settled().await,
        }
    }
}

/// The other one of two nodes of which one is the other's replica.
fn partner(set: &ClusterSet, node: usize) -> usize {
    (node + set.nodes.len() / 2) % set.nodes.len()
}
