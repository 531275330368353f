//! A Redis or Valkey Cluster: three primaries with a replica each.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use futures_util::future::join_all;

use crate::network::{Network, Port};
use crate::process::free_address;
use crate::redis_server::Kind;
use crate::wait::{SOON, eventually, holds};
use crate::{RedisServer, RedisView};

/// How many primaries there are at the start; as many replicas follow them.
const PRIMARIES: usize = 3;
/// How many slots a cluster has.
const SLOTS: usize = 16384;
/// How long a node is silent before the others take it for failed: not for being slow on a busy machine.
const NODE_TIMEOUT_MS: &str = "2000";

/// What a cluster is started with beside what it needs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Further<'a> {
    /// What lies between the nodes.
    pub network: Option<&'a Network>,
    /// Further settings of the nodes, which go before the cluster's own.
    pub settings: &'a [(&'a str, &'a str)],
    /// Variables of the nodes.
    pub environment: &'a [(&'a str, PathBuf)],
}

/// Six nodes. The first three are the primaries at the start; the replica of the one at `n` is at `n + 3`.
#[derive(Debug)]
pub struct ClusterSet {
    /// The nodes.
    pub nodes: Vec<RedisServer>,
    addresses: Vec<SocketAddr>,
}

impl ClusterSet {
    /// Waits until all slots are served and all replicas follow.
    pub async fn start(kind: Kind) -> Self {
        Self::start_with(kind, Further::default()).await
    }

    /// The same with what may be different.
    pub async fn start_with(kind: Kind, further: Further<'_>) -> Self {
        let places = join_all((0..2 * PRIMARIES).map(|at| Place::new(at, further.network))).await;
        let nodes = join_all(places.iter().map(|place| place.start(kind, further))).await;
        let buses: Vec<_> = places.iter().map(|place| place.announced[1].port().to_string()).collect();
        let set = Self { nodes, addresses: places.iter().map(|place| place.announced[0]).collect() };
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

    /// For `CLAIMGATE_REDIS_URL`.
    pub fn url(&self) -> String {
        self.url_with("")
    }

    /// The same with a user (`user:password@`).
    pub fn url_with(&self, user: &str) -> String {
        let nodes: Vec<_> = self.addresses.iter().take(PRIMARIES).map(ToString::to_string).collect();
        format!("redis+cluster://{user}{}", nodes.join(","))
    }

    /// Where the node at this place listens.
    pub fn address(&self, node: usize) -> SocketAddr {
        self.addresses[node]
    }

    /// A connection to the node at this place, past core.
    pub async fn view(&self, node: usize) -> RedisView {
        self.nodes[node].view().await
    }

    /// The id of the node at this place.
    pub async fn id(&self, node: usize) -> String {
        self.view(node).await.query(&["CLUSTER", "MYID"]).await
    }

    /// The place of the primary that has the keys of `campaign`, as the node at `asked` knows it. In the middle of a failover
    /// it knows none: waits until it does.
    pub async fn primary_of(&self, campaign: &str, asked: usize) -> usize {
        let view = self.view(asked).await;
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
            place.ok_or(format!("{address} is none of the nodes"))
        })
        .await
    }

    /// Waits until the node at `asked` knows of another primary of `campaign` than that at `before`. Returns its place.
    pub async fn promoted_after(&self, campaign: &str, before: usize, asked: usize) -> usize {
        eventually(2 * SOON, || async {
            let now = self.primary_of(campaign, asked).await;
            holds(now != before, || format!("it is still the node at {before}")).map(|()| now)
        })
        .await
    }

    /// Waits until every node takes the cluster for whole, and each replica follows its primary.
    pub async fn settled(&self) {
        for at in 0..self.nodes.len() {
            let view = self.view(at).await;
            eventually(2 * SOON, || async {
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

    /// Moves the slot of `campaign` to the primary at `to` at once, as Valkey does from version 9 on.
    pub async fn migrate_slot(&self, campaign: &str, from: usize, to: usize) {
        let source = self.view(from).await;
        let key = crate::inspect::key(campaign, "campaign");
        let slot: u64 = source.query(&["CLUSTER", "KEYSLOT", &key]).await;
        let (slot, id) = (slot.to_string(), self.id(to).await);
        source.query::<()>(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &slot, &slot, "NODE", &id]).await;
        for asked in [from, to] {
            eventually(SOON, || async {
                let now = self.primary_of(campaign, asked).await;
                holds(now == to, || format!("the node at {asked} has it at {now}"))
            })
            .await;
        }
    }

    /// Moves the slot of `campaign` to the primary at `to`, key by key, as `redis-cli --cluster reshard` does.
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

/// Where a node listens, for clients and for other nodes, and what it announces.
struct Place {
    listens: [SocketAddr; 2],
    announced: [SocketAddr; 2],
    /// Where its own connections come from.
    source: Option<IpAddr>,
}

impl Place {
    async fn new(at: usize, network: Option<&Network>) -> Self {
        let listens = [free_address(), free_address()];
        let Some(network) = network else { return Self { listens, announced: listens, source: None } };
        let clients = network.door(at, Port::Clients, listens[0]).await;
        let bus = network.door(at, Port::Bus, listens[1]).await;
        Self { listens, announced: [clients, bus], source: Some(Network::source_of(at)) }
    }

    async fn start(&self, kind: Kind, further: Further<'_>) -> RedisServer {
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
            // A healthy node goes on when another one has died, and a replica stays with its primary.
            ("cluster-require-full-coverage", "no".to_owned()),
            ("cluster-allow-replica-migration", "no".to_owned()),
            // A resync begins at once, not after five seconds.
            ("repl-diskless-sync-delay", "0".to_owned()),
        ];
        settings.extend(self.source.map(|source| ("bind-source-addr", source.to_string())));
        let settings = settings.iter().map(|(name, value)| (*name, value.as_str()));
        let settings: Vec<_> = settings.chain(further.settings.iter().copied()).collect();
        RedisServer::start_as(kind, &settings, further.environment).await
    }
}
