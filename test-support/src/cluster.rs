//! A Redis or Valkey Cluster: three primaries with one replica each.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use futures_util::future::join_all;

use crate::network::{Network, Port};
use crate::process::free_address;
use crate::redis_server::Kind;
use crate::time_limits::SOON;
use crate::wait::{eventually, holds};
use crate::{RedisServer, RedisView};

/// Number of primaries at the start; each has one replica.
const PRIMARIES: usize = 3;
const SLOTS: usize = 16384;
/// Silence after which nodes consider another node failed; long enough for a busy machine.
const NODE_TIMEOUT_MS: &str = "2000";

/// Setting with which nodes never consider another node failed: the longest time, in milliseconds.
pub(crate) const WITHOUT_FAILOVERS: (&str, &str) = ("cluster-node-timeout", "2147483647000");

/// Options of a cluster.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClusterOptions<'a> {
    /// The network between the nodes.
    pub network: Option<&'a Network>,
    /// Additional settings of the nodes, which override the cluster's own.
    pub settings: &'a [(&'a str, &'a str)],
    /// Environment variables of the nodes.
    pub environment: &'a [(&'a str, PathBuf)],
}

/// Six nodes. The first three are the initial primaries; the replica of node `n` is node `n + 3`.
#[derive(Debug)]
pub struct ClusterSet {
    /// The nodes.
    pub nodes: Vec<RedisServer>,
    addresses: Vec<SocketAddr>,
}

impl ClusterSet {
    /// Starts a cluster; waits until all slots are served and all replicas follow.
    pub async fn start(kind: Kind) -> Self {
        Self::start_with(kind, ClusterOptions::default()).await
    }

    /// Starts a cluster whose nodes never fail over, for tests that do not test the detection of a failure.
    pub async fn start_without_failovers(kind: Kind) -> Self {
        let options = ClusterOptions { settings: &[WITHOUT_FAILOVERS], ..ClusterOptions::default() };
        Self::start_with(kind, options).await
    }

    /// Starts a cluster with options.
    pub async fn start_with(kind: Kind, options: ClusterOptions<'_>) -> Self {
        let nodes_at = join_all((0..2 * PRIMARIES).map(|at| NodeAddresses::new(at, options.network))).await;
        let nodes = join_all(nodes_at.iter().map(|place| place.start(kind, options))).await;
        let buses: Vec<_> = nodes_at.iter().map(|place| place.announced[1].port().to_string()).collect();
        let set = Self { nodes, addresses: nodes_at.iter().map(|place| place.announced[0]).collect() };
        for at in 0..set.nodes.len() {
            let view = set.view(at).await;
            view.query::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]).await;
            if at < PRIMARIES {
                let (first, next) = (SLOTS * at / PRIMARIES, SLOTS * (at + 1) / PRIMARIES);
                let range = [first.to_string(), (next - 1).to_string()];
                view.query::<()>(&["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]).await;
            }
            let (ip, port) = (set.addresses[0].ip().to_string(), set.addresses[0].port().to_string());
            if at > 0 {
                view.query::<()>(&["CLUSTER", "MEET", &ip, &port, &buses[0]]).await;
            }
        }
        for at in PRIMARIES..set.nodes.len() {
            let primary: String = set.view(at - PRIMARIES).await.query(&["CLUSTER", "MYID"]).await;
            let view = set.view(at).await;
            eventually(SOON, || async {
                view.try_query::<String>(&["CLUSTER", "REPLICATE", &primary]).await
            })
            .await;
        }
        set.settled().await;
        set
    }

    /// Returns the value for `CLAIMGATE_REDIS_URL`.
    pub fn url(&self) -> String {
        self.url_with("")
    }

    /// Returns the URL with credentials (`user:password@`).
    pub fn url_with(&self, user: &str) -> String {
        let nodes: Vec<_> = self.addresses.iter().take(PRIMARIES).map(ToString::to_string).collect();
        format!("redis+cluster://{user}{}", nodes.join(","))
    }

    /// Returns the address that node `node` announces.
    pub fn address(&self, node: usize) -> SocketAddr {
        self.addresses[node]
    }

    /// Opens a connection to a node, bypassing core.
    pub async fn view(&self, node: usize) -> RedisView {
        self.nodes[node].view().await
    }

    /// Returns the id of a node.
    pub async fn id(&self, node: usize) -> String {
        self.view(node).await.query(&["CLUSTER", "MYID"]).await
    }

    /// Returns the index of the primary that has the keys of `campaign`, according to node `observer`. During a
    /// failover no node may have them: waits until one does.
    pub async fn primary_of(&self, campaign: &str, observer: usize) -> usize {
        let view = self.view(observer).await;
        let key = crate::inspect::key(campaign, "campaign");
        let slot: usize = view.query(&["CLUSTER", "KEYSLOT", &key]).await;
        let holds = |line: &&str| {
            line.split(' ').skip(8).filter(|range| !range.starts_with('[')).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                (first.parse().unwrap()..=last.parse().unwrap()).contains(&slot)
            })
        };
        eventually(SOON, || async {
            let nodes: String = view.query(&["CLUSTER", "NODES"]).await;
            let line = nodes.lines().find(holds).ok_or(format!("no node has slot {slot}: {nodes}"))?;
            let address = line.split(' ').nth(1).and_then(|at| at.split('@').next()).unwrap_or_default();
            let place = self.addresses.iter().position(|at| at.to_string() == address);
            place.ok_or(format!("{address} is not one of the nodes"))
        })
        .await
    }

    /// Waits until node `observer` reports a primary of `campaign` other than node `before`; returns its index.
    pub async fn promoted_after(&self, campaign: &str, before: usize, observer: usize) -> usize {
        eventually(SOON, || async {
            let now = self.primary_of(campaign, observer).await;
            holds(now != before, || format!("node {before} is still the primary")).map(|()| now)
        })
        .await
    }

    /// Waits until every node reports a complete cluster and each replica follows its primary.
    pub async fn settled(&self) {
        for at in 0..self.nodes.len() {
            let view = self.view(at).await;
            eventually(SOON, || async {
                let info: String = view.query(&["CLUSTER", "INFO"]).await;
                let known = format!("cluster_known_nodes:{}", self.nodes.len());
                let whole = info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384");
                holds(whole && info.contains(&known), || info.clone())?;
                let nodes: String = view.query(&["CLUSTER", "NODES"]).await;
                holds(!nodes.contains("fail") && nodes.matches("slave").count() == PRIMARIES, || {
                    nodes.clone()
                })?;
                let info: String = view.query(&["INFO", "replication"]).await;
                let follows = info.contains("role:master") || info.contains("master_link_status:up");
                holds(follows, || info.clone())
            })
            .await;
        }
    }

    /// Moves the slot of `campaign` to primary `to` in one step, which Valkey supports since version 9.
    pub async fn migrate_slot(&self, campaign: &str, from: usize, to: usize) {
        let source = self.view(from).await;
        let key = crate::inspect::key(campaign, "campaign");
        let slot: u64 = source.query(&["CLUSTER", "KEYSLOT", &key]).await;
        let (slot, id) = (slot.to_string(), self.id(to).await);
        source.query::<()>(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &slot, &slot, "NODE", &id]).await;
        for observer in [from, to] {
            eventually(SOON, || async {
                let now = self.primary_of(campaign, observer).await;
                holds(now == to, || format!("node {observer} still reports it on node {now}"))
            })
            .await;
        }
    }

    /// Moves the slot of `campaign` to primary `to` key by key, as `redis-cli --cluster reshard` does.
    pub async fn move_slot(&self, campaign: &str, from: usize, to: usize) {
        let (source, target) = (self.view(from).await, self.view(to).await);
        let key = crate::inspect::key(campaign, "campaign");
        let slot: u64 = source.query(&["CLUSTER", "KEYSLOT", &key]).await;
        let (slot, ids) = (slot.to_string(), (self.id(from).await, self.id(to).await));
        target.query::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids.0]).await;
        source.query::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids.1]).await;
        let (ip, port) = (self.addresses[to].ip().to_string(), self.addresses[to].port().to_string());
        loop {
            let keys: Vec<String> = source.query(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).await;
            if keys.is_empty() {
                break;
            }
            for key in &keys {
                source.query::<String>(&["MIGRATE", &ip, &port, key, "0", "5000"]).await;
            }
        }
        for view in [&target, &source] {
            view.query::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &ids.1]).await;
        }
    }
}

/// The addresses on which a node listens for clients and for other nodes, and those it announces.
struct NodeAddresses {
    listens: [SocketAddr; 2],
    announced: [SocketAddr; 2],
    /// The source address of its own connections.
    source: Option<IpAddr>,
}

impl NodeAddresses {
    async fn new(at: usize, network: Option<&Network>) -> Self {
        let listens = [free_address(), free_address()];
        let Some(network) = network else { return Self { listens, announced: listens, source: None } };
        let clients = network.proxy(at, Port::Clients, listens[0]).await;
        let bus = network.proxy(at, Port::Bus, listens[1]).await;
        Self { listens, announced: [clients, bus], source: Some(Network::source_of(at)) }
    }

    async fn start(&self, kind: Kind, options: ClusterOptions<'_>) -> RedisServer {
        let ip = self.listens[0].ip().to_string();
        let ports = [self.listens, self.announced].concat();
        let [port, bus, announced, announced_bus] =
            [0, 1, 2, 3].map(|at: usize| ports[at].port().to_string());
        let mut settings = vec![
            ("bind", ip.clone()),
            ("port", port),
            ("protected-mode", "no".to_owned()),
            ("cluster-enabled", "yes".to_owned()),
            ("cluster-port", bus),
            ("cluster-announce-ip", ip.clone()),
            ("cluster-announce-port", announced.clone()),
            ("cluster-announce-bus-port", announced_bus),
            ("replica-announce-ip", ip),
            ("replica-announce-port", announced),
            ("cluster-node-timeout", NODE_TIMEOUT_MS.to_owned()),
            // Healthy nodes continue if another one dies, and a replica stays with its primary.
            ("cluster-require-full-coverage", "no".to_owned()),
            ("cluster-allow-replica-migration", "no".to_owned()),
            // A resync starts immediately instead of after five seconds.
            ("repl-diskless-sync-delay", "0".to_owned()),
        ];
        settings.extend(self.source.map(|source| ("bind-source-addr", source.to_string())));
        let settings = settings.iter().map(|(name, value)| (*name, value.as_str()));
        let settings: Vec<_> = settings.chain(options.settings.iter().copied()).collect();
        RedisServer::start_as(kind, &settings, options.environment).await
    }
}
