//! Redis Cluster: finds the primary of each slot.
//!
//! The slot map is read on first use, and reread after a node redirects a call or does not answer; calls to
//! other nodes continue with the current map. All known nodes are queried in parallel. Each node is trusted
//! about its own slots and the configuration epoch under which it owns them. If two nodes claim a slot, the
//! later epoch wins, as in the cluster itself: a node that is partitioned from the cluster has an older epoch.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use redis::{Client, ConnectionAddr, RedisError, Value, from_redis_value};
use tokio::time::{Instant, timeout};

use super::primary::{Mode, NoPrimary, connect};
use super::server::{Generations, Server, ServerLocator};
use super::slot::{SLOTS, Slot};
use crate::redis_address::same_scheme;

/// Timeout for reading one node's view of the cluster.
const QUERY_TIMEOUT: Duration = Duration::from_millis(300);
/// Minimum time between two reads of the map.
const REFRESH_PAUSE: Duration = Duration::from_millis(50);
/// Error codes of a node that did not execute a call because it does not serve the slot (yet).
const REDIRECTS: [&str; 5] = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN"];

/// A node's host and port.
pub(in crate::store::redis) type NodeAddress = (String, u16);

/// A slot that no node serves.
const UNSERVED: u16 = u16::MAX;

/// The map from slots to their primaries.
#[derive(Debug, Default)]
struct Map {
    primaries: Vec<SlotOwner>,
    /// For each slot the index of its primary in `primaries`, or [`UNSERVED`]. Empty before the first read.
    slots: Vec<u16>,
    /// All nodes, including replicas.
    addresses: BTreeSet<NodeAddress>,
}

/// A primary of some slots.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SlotOwner {
    id: String,
    address: NodeAddress,
    /// The configuration epoch under which the node owns its slots; 0 if only other nodes have reported the
    /// node.
    epoch: u64,
}

/// The cluster as one node sees it.
#[derive(Debug)]
struct NodeView {
    /// The address at which the node was queried.
    queried_at: NodeAddress,
    id: String,
    /// The node's own configuration epoch.
    epoch: u64,
    ranges: Vec<Range>,
    /// All nodes known to this node, including replicas.
    addresses: Vec<NodeAddress>,
}

/// A range of slots, and their primary according to one node.
#[derive(Debug)]
struct Range {
    slots: RangeInclusive<u16>,
    id: String,
    address: NodeAddress,
}

/// A cluster, shared by all threads.
#[derive(Debug)]
pub(in crate::store::redis) struct Cluster {
    /// The nodes from the URL, at least one, through which all other nodes are found.
    seeds: Vec<Client>,
    map: RwLock<Arc<Map>>,
    /// When the map was last read, and the result. Locked during a read.
    last_read: tokio::sync::Mutex<Option<(Instant, Result<(), NoPrimary>)>>,
    servers: Mutex<HashMap<NodeAddress, Arc<Server>>>,
    generations: Arc<Generations>,
}

/// Returns whether `error` means that the call was not executed because another node serves the slot, or soon
/// will.
pub(in crate::store::redis) fn is_redirect(error: &RedisError) -> bool {
    error.code().is_some_and(|code| REDIRECTS.contains(&code))
}

impl Cluster {
    pub(in crate::store::redis) fn new(seeds: Vec<Client>) -> Self {
        Self {
            seeds,
            map: RwLock::default(),
            last_read: tokio::sync::Mutex::default(),
            servers: Mutex::default(),
            generations: Arc::default(),
        }
    }

    pub(in crate::store::redis) fn generations(&self) -> &Generations {
        &self.generations
    }

    pub(in crate::store::redis) async fn primary_of(&self, slot: Slot) -> Result<NodeAddress, NoPrimary> {
        if let Some(address) = self.map().primary_of(slot) {
            return Ok(address.clone());
        }
        self.refresh().await?;
        let none =
            || NoPrimary::NotNamed(format!("no node of the cluster serves slot {}", slot.get()).into());
        self.map().primary_of(slot).cloned().ok_or_else(none)
    }

    /// Returns the primaries of all slots, each once.
    ///
    /// # Errors
    /// If no node has ever answered.
    pub(in crate::store::redis) async fn primaries(&self) -> Result<Vec<NodeAddress>, NoPrimary> {
        if self.map().slots.is_empty() {
            self.refresh().await?;
        }
        let addresses: BTreeSet<_> = self.map().primaries.iter().map(|owner| owner.address.clone()).collect();
        Ok(addresses.into_iter().collect())
    }

    /// Creates clients for the primaries of all slots.
    pub(in crate::store::redis) async fn clients(&self) -> Result<Vec<Client>, NoPrimary> {
        let primaries = self.primaries().await?;
        Ok(primaries.iter().map(|address| self.client(address)).collect::<Result<_, _>>()?)
    }

    /// Returns the state that all threads share about the server at `address`.
    pub(in crate::store::redis) fn server(&self, address: &NodeAddress) -> Result<Arc<Server>, RedisError> {
        let mut servers = self.servers.lock();
        if let Some(server) = servers.get(address) {
            return Ok(Arc::clone(server));
        }
        let server = Server::new(
            ServerLocator::Direct(self.client(address)?, Mode::Cluster),
            Arc::clone(&self.generations),
        );
        let server = Arc::new(server);
        servers.insert(address.clone(), Arc::clone(&server));
        Ok(server)
    }

    fn client(&self, (host, port): &NodeAddress) -> Result<Client, RedisError> {
        // All nodes have the same connection settings.
        let seed = self.seeds.first().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let seed = seed.get_connection_info();
        Client::open(seed.clone().set_addr(same_scheme(seed.addr(), host.clone(), *port)))
    }

    /// Returns whether the node named `node` has `slot`, and the first slot of that node.
    pub(in crate::store::redis) fn slots_of(&self, node: &str, slot: Option<Slot>) -> (bool, Option<Slot>) {
        let map = self.map();
        let is_primary_of = |slot: Slot| {
            let address = map.primary_of(slot);
            address.is_some_and(|(host, port)| format!("{host}:{port}") == node)
        };
        (slot.is_some_and(is_primary_of), (0..SLOTS).filter_map(Slot::new).find(|slot| is_primary_of(*slot)))
    }

    fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read())
    }

    /// Rereads the map, unless it was read just now.
    ///
    /// # Errors
    /// If no node answers; the map is unchanged.
    pub(in crate::store::redis) async fn refresh(&self) -> Result<(), NoPrimary> {
        let mut last_read = self.last_read.lock().await;
        if let Some((at, result)) = &*last_read
            && at.elapsed() < REFRESH_PAUSE
        {
            return result.clone();
        }
        let known = self.map();
        let result = self.query_all(&known).await.map(|views| {
            let found = Arc::new(Map::of(&views, &known));
            *self.map.write() = Arc::clone(&found);
            // The new map must be in place first: calls aborted here are retried immediately and need the new
            // server.
            self.retire_servers_not_in(&found);
        });
        *last_read = Some((Instant::now(), result.clone()));
        result
    }

    /// Ends the generations of the servers that are no longer primaries: connections survive a demotion, and
    /// a server that is promoted again has another history.
    fn retire_servers_not_in(&self, map: &Map) {
        let servers = self.servers.lock();
        for (address, server) in servers.iter() {
            if map.primaries.iter().all(|primary| primary.address != *address) {
                server.retire();
            }
        }
    }

    /// Returns the views of all nodes that answer, including nodes that are known only to other nodes.
    async fn query_all(&self, known: &Map) -> Result<Vec<NodeView>, NoPrimary> {
        let mut clients = self.seeds.clone();
        let mut addresses = known.addresses.clone();
        let (mut views, mut reasons, mut queried) = (Vec::new(), Vec::new(), 0);
        loop {
            for client in addresses.iter().map(|address| self.client(address)) {
                let client = client?;
                if clients.iter().all(|other| address_of(other) != address_of(&client)) {
                    clients.push(client);
                }
            }
            let new = &clients[queried..];
            for (client, answer) in new.iter().zip(join_all(new.iter().map(query_view)).await) {
                match answer {
                    Ok(view) => {
                        addresses.extend(view.addresses.iter().cloned());
                        views.push(view);
                    }
                    Err(error) => reasons.push(format!("{}: {error}", address_of(client))),
                }
            }
            if new.is_empty() {
                break;
            }
            queried = clients.len();
        }
        if views.iter().any(|view| !view.ranges.is_empty()) {
            Ok(views)
        } else if !reasons.is_empty() && reasons.iter().all(|why| why.contains("cluster support disabled")) {
            Err(NoPrimary::NotClustered)
        } else if reasons.is_empty() {
            Err(NoPrimary::NotNamed("no node of the cluster has a slot".into()))
        } else {
            Err(NoPrimary::NotNamed(reasons.join("; ").into()))
        }
    }
}

impl Map {
    /// Builds the map from the nodes' views. For silent nodes, uses the `known` map.
    fn of(views: &[NodeView], known: &Self) -> Self {
        let mut map = Self { slots: vec![UNSERVED; usize::from(SLOTS)], ..Self::default() };
        map.addresses = views.iter().flat_map(|view| view.addresses.iter().cloned()).collect();
        map.addresses.extend(known.primaries.iter().map(|owner| owner.address.clone()));
        let is_silent = |id: &str| views.iter().all(|view| view.id != id);
        for view in views {
            for range in view.ranges.iter().filter(|range| range.id == view.id) {
                let owner =
                    SlotOwner { id: view.id.clone(), address: range.address.clone(), epoch: view.epoch };
                map.assign(range.slots.clone(), &owner);
            }
        }
        for view in views {
            for range in view.ranges.iter().filter(|range| is_silent(&range.id)) {
                let owner = SlotOwner { id: range.id.clone(), address: range.address.clone(), epoch: 0 };
                map.assign(range.slots.clone(), &owner);
            }
        }
        // A silent primary keeps its slots against older epochs, unless another node answers at its address.
        let is_replaced = |owner: &SlotOwner| {
            views.iter().any(|view| view.queried_at == owner.address && view.id != owner.id)
        };
        for (slot, index) in (0..).zip(&known.slots) {
            if let Some(owner) = known.primaries.get(usize::from(*index))
                && is_silent(&owner.id)
                && !is_replaced(owner)
            {
                map.assign(slot..=slot, owner);
            }
        }
        map.without_slotless_primaries()
    }

    /// Assigns to `owner` all `slots` that no node owns under the same or a later epoch.
    fn assign(&mut self, slots: RangeInclusive<u16>, owner: &SlotOwner) {
        let index = self.primaries.iter().position(|other| other == owner).unwrap_or(self.primaries.len());
        if index == self.primaries.len() {
            self.primaries.push(owner.clone());
        }
        for slot in slots.map(usize::from).filter(|slot| *slot < usize::from(SLOTS)) {
            let current = self.primaries.get(usize::from(self.slots[slot]));
            if current.is_none_or(|current| current.epoch < owner.epoch) {
                self.slots[slot] = u16::try_from(index).unwrap_or(UNSERVED);
            }
        }
    }

    /// Returns the map without primaries that have no slot.
    fn without_slotless_primaries(mut self) -> Self {
        let used: BTreeSet<u16> = self.slots.iter().copied().filter(|index| *index != UNSERVED).collect();
        let primaries = used.iter().map(|index| self.primaries[usize::from(*index)].clone()).collect();
        for index in &mut self.slots {
            if let Some(at) = used.iter().position(|other| other == index) {
                *index = u16::try_from(at).unwrap_or(UNSERVED);
            }
        }
        self.primaries = primaries;
        self
    }

    fn primary_of(&self, slot: Slot) -> Option<&NodeAddress> {
        let index = self.slots.get(usize::from(slot.get()))?;
        self.primaries.get(usize::from(*index)).map(|owner| &owner.address)
    }
}

impl NodeView {
    /// Parses the reply of `CLUSTER SLOTS`: ranges with their nodes, the primary first. A node without a host
    /// has the host of `queried_at`.
    fn read(id: String, epoch: u64, slots: Value, queried_at: NodeAddress) -> Result<Self, RedisError> {
        let (mut ranges, mut addresses) = (Vec::new(), Vec::new());
        for range in from_redis_value::<Vec<Vec<Value>>>(slots)? {
            let mut parts = range.into_iter();
            let slots = number(parts.next())?..=number(parts.next())?;
            let mut nodes = parts.map(|value| node(value, &queried_at.0)).collect::<Result<Vec<_>, _>>()?;
            addresses.extend(nodes.iter().map(|(address, _)| address.clone()));
            if !nodes.is_empty() {
                let (address, id) = nodes.swap_remove(0);
                ranges.push(Range { slots, id, address });
            }
        }
        Ok(Self { queried_at, id, epoch, ranges, addresses })
    }
}

fn number(value: Option<Value>) -> Result<u16, RedisError> {
    Ok(from_redis_value(value.unwrap_or(Value::Nil))?)
}

/// Parses a node's address and id; a node without a host has the host `default_host`.
fn node(value: Value, default_host: &str) -> Result<(NodeAddress, String), RedisError> {
    let mut parts = from_redis_value::<Vec<Value>>(value)?.into_iter();
    let host: Option<String> = from_redis_value(parts.next().unwrap_or(Value::Nil))?;
    let host = host.filter(|host| !host.is_empty() && host != "?");
    let address = (host.unwrap_or_else(|| default_host.to_owned()), number(parts.next())?);
    Ok((address, from_redis_value(parts.next().unwrap_or(Value::Nil))?))
}

/// Queries one node for its view of the cluster.
async fn query_view(client: &Client) -> Result<NodeView, RedisError> {
    let reply = async {
        let mut connection = connect(client, QUERY_TIMEOUT).await?;
        let mut all = redis::pipe();
        all.cmd("CLUSTER").arg("MYID").cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
        all.query_async::<(String, String, Value)>(&mut connection).await
    };
    let (id, info, slots) = timeout(QUERY_TIMEOUT, reply).await.map_err(io::Error::from)??;
    let epoch = info.lines().find_map(|line| line.strip_prefix("cluster_my_epoch:"));
    let epoch = epoch.and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    let queried_at = match address_of(client) {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => (host.clone(), *port),
        _ => (String::new(), 0),
    };
    NodeView::read(id, epoch, slots, queried_at)
}

fn address_of(client: &Client) -> &ConnectionAddr {
    client.get_connection_info().addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn node_value(host: Value, port: i64, id: &str) -> Value {
        Value::Array(vec![host, Value::Int(port), text(id), Value::Array(vec![])])
    }

    fn address(port: u16) -> NodeAddress {
        ("h".to_owned(), port)
    }

    /// Builds the view of the node `id`. Each range is given by its last slot and its primary.
    fn view(id: u16, epoch: u64, ranges: &[(u16, u16)]) -> NodeView {
        let mut first = 0;
        let ranges = ranges.iter().map(|(last, primary)| {
            let slots = first..=*last;
            first = last + 1;
            Range { slots, id: primary.to_string(), address: address(*primary) }
        });
        let ranges: Vec<_> = ranges.collect();
        let addresses = ranges.iter().map(|range| range.address.clone()).collect();
        NodeView { queried_at: address(id), id: id.to_string(), epoch, ranges, addresses }
    }

    /// Returns the primaries of the first and the last slot.
    fn ends(map: &Map) -> [Option<u16>; 2] {
        [0, usize::from(SLOTS) - 1]
            .map(|slot| map.primaries.get(usize::from(map.slots[slot])).map(|owner| owner.address.1))
    }

    #[test]
    fn the_first_node_of_a_range_is_its_primary() {
        let range = |first, last, nodes: [Value; 2]| {
            Value::Array([vec![Value::Int(first), Value::Int(last)], nodes.into()].concat())
        };
        let slots = Value::Array(vec![
            range(0, 100, [node_value(text("a"), 1, "one"), node_value(text("b"), 2, "two")]),
            range(101, 16383, [node_value(Value::Nil, 3, "three"), node_value(text(""), 1, "four")]),
        ]);
        let view = NodeView::read("three".to_owned(), 7, slots, ("asked".to_owned(), 3)).unwrap();
        let map = Map::of(&[view], &Map::default());
        let of = |key| map.primary_of(Slot::of(key)).unwrap();
        assert_eq!((of("{}"), of("foo")), (&("asked".to_owned(), 3), &("asked".to_owned(), 3)));
        assert_eq!(of(""), &("a".to_owned(), 1), "slot 0");
        let addresses: Vec<_> = map.addresses.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        assert_eq!(addresses, ["a:1", "asked:1", "asked:3", "b:2"]);
        assert!(Map::default().primary_of(Slot::of("foo")).is_none());
    }

    #[test]
    fn the_later_epoch_wins_a_slot_claimed_by_two_nodes() {
        // Slots have moved from node 1 to node 2, and node 3 has not been informed yet.
        let moved = [view(3, 9, &[(16383, 1)]), view(1, 9, &[(100, 2), (16383, 1)]), view(2, 1, &[(100, 2)])];
        assert_eq!(ends(&Map::of(&moved, &Map::default())), [Some(2), Some(1)]);
        // Node 1 was partitioned, and node 2 was promoted.
        let promoted = [view(1, 4, &[(16383, 1)]), view(2, 5, &[(16383, 2)])];
        let map = Map::of(&promoted, &Map::default());
        assert_eq!((ends(&map), map.primaries.len()), ([Some(2), Some(2)], 1));
    }

    #[test]
    fn an_unreachable_node_loses_slots_only_to_newer_epochs() {
        let known = Map::of(&[view(2, 5, &[(16383, 2)])], &Map::default());
        assert_eq!(
            ends(&Map::of(&[view(1, 4, &[(16383, 1)])], &known)),
            [Some(2); 2],
            "node 1 was partitioned earlier"
        );
        assert_eq!(ends(&Map::of(&[view(3, 6, &[(16383, 3)])], &known)), [Some(3); 2], "node 3 was promoted");
        assert_eq!(
            ends(&Map::of(&[view(3, 4, &[(16383, 2)])], &Map::default())),
            [Some(2); 2],
            "as node 3 reports"
        );
        let another = NodeView { id: "another".to_owned(), ..view(2, 0, &[]) };
        let rebuilt = [another, view(1, 1, &[(16383, 1)])];
        assert_eq!(ends(&Map::of(&rebuilt, &known)), [Some(1); 2], "the cluster was recreated");
    }

    #[test]
    fn an_unserved_slot_has_no_primary() {
        let map = Map::of(&[view(1, 1, &[(100, 1)])], &Map::default());
        assert_eq!(ends(&map), [Some(1), None]);
    }
}
