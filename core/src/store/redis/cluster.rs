//! Redis Cluster: which node is the primary of which slot.
//!
//! The map is read when it is first needed, and again by the call that a node refuses as not its own, or does not answer:
//! calls on other nodes go on by the map there is. All nodes that are known are asked at once, and the one that knows of the
//! latest configuration is believed: a node that is cut off from the others knows of an older one.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Client, ConnectionAddr, RedisError, Value, from_redis_value};
use tokio::time::{Instant, timeout};

use super::primary::{Mode, NoPrimary, connect};
use super::server::{Server, Way};
use super::slot::Slot;
use crate::redis_address::at;

/// The longest that one node is waited for.
const ASK_MAX: Duration = Duration::from_millis(300);
/// The map is not read again sooner.
const READ_PAUSE: Duration = Duration::from_millis(50);
/// Errors by which a node says that it did nothing, since the slot is not its own, or not yet.
const REDIRECTS: [&str; 5] = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN"];

/// A node's host and port.
pub(super) type Place = (String, u16);

/// Which node is the primary of which slot.
#[derive(Debug, Default)]
struct Map {
    /// The latest configuration that the node knew of that gave it.
    epoch: u64,
    /// The first and the last slot of each range, and its primary.
    ranges: Vec<(u16, u16, Place)>,
    /// All nodes, replicas too.
    places: Vec<Place>,
}

/// A cluster, as all threads know it.
#[derive(Debug)]
pub(super) struct Cluster {
    /// Nodes by which the others are found: at least one.
    seeds: Vec<Client>,
    map: RwLock<Arc<Map>>,
    /// When the map was last read, or could not be; held meanwhile.
    read: tokio::sync::Mutex<Option<(Instant, Result<(), NoPrimary>)>>,
    servers: Mutex<HashMap<Place, Arc<Server>>>,
    /// The last generation of any node.
    generations: Arc<AtomicU64>,
}

/// Whether `error` says that the call was not executed since the slot is another node's, or is moving there.
pub(super) fn is_redirect(error: &RedisError) -> bool {
    error.code().is_some_and(|code| REDIRECTS.contains(&code))
}

impl Cluster {
    pub(super) fn new(seeds: Vec<Client>) -> Self {
        Self {
            seeds,
            map: RwLock::default(),
            read: tokio::sync::Mutex::default(),
            servers: Mutex::default(),
            generations: Arc::default(),
        }
    }

    /// The primary of `slot`.
    ///
    /// # Errors
    /// When no node answers, or none serves the slot.
    pub(super) async fn primary_of(&self, slot: Slot) -> Result<Place, NoPrimary> {
        if let Some(place) = self.map().primary_of(slot) {
            return Ok(place.clone());
        }
        self.refresh().await?;
        let none =
            || NoPrimary::NotNamed(format!("no node of the cluster serves slot {}", slot.get()).into());
        self.map().primary_of(slot).cloned().ok_or_else(none)
    }

    /// The primaries of all slots, each once.
    ///
    /// # Errors
    /// When no node has ever answered.
    pub(super) async fn primaries(&self) -> Result<Vec<Place>, NoPrimary> {
        if self.map().ranges.is_empty() {
            self.refresh().await?;
        }
        let mut primaries: Vec<_> = self.map().ranges.iter().map(|(_, _, place)| place.clone()).collect();
        primaries.sort();
        primaries.dedup();
        Ok(primaries)
    }

    /// Clients of the primaries of all slots.
    pub(super) async fn clients(&self) -> Result<Vec<Client>, NoPrimary> {
        let primaries = self.primaries().await?;
        Ok(primaries.iter().map(|place| self.client(place)).collect::<Result<_, _>>()?)
    }

    /// What all threads know of the server at `place`.
    pub(super) fn server(&self, place: &Place) -> Result<Arc<Server>, RedisError> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = servers.get(place) {
            return Ok(Arc::clone(server));
        }
        let server =
            Server::new(Way::Straight(self.client(place)?, Mode::Cluster), Arc::clone(&self.generations));
        let server = Arc::new(server);
        servers.insert(place.clone(), Arc::clone(&server));
        Ok(server)
    }

    fn client(&self, (host, port): &Place) -> Result<Client, RedisError> {
        // All nodes are spoken to alike.
        let seed = self.seeds.first().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let seed = seed.get_connection_info();
        Client::open(seed.clone().set_addr(at(seed.addr(), host.clone(), *port)))
    }

    fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the map again, unless that was done just now.
    ///
    /// # Errors
    /// When no node answers: the map stays as it was.
    pub(super) async fn refresh(&self) -> Result<(), NoPrimary> {
        let mut read = self.read.lock().await;
        if let Some((at, result)) = &*read
            && at.elapsed() < READ_PAUSE
        {
            return result.clone();
        }
        let known = self.map();
        let result = self.ask_all(&known).await.map(|found| {
            if found.epoch >= known.epoch {
                self.leave_all_but(&found);
                *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(found);
            }
        });
        *read = Some((Instant::now(), result.clone()));
        result
    }

    /// Ends the generations of the servers that are no primaries any more: connections outlast a demotion, and a server that
    /// is promoted again has another history.
    fn leave_all_but(&self, map: &Map) {
        let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        for (place, server) in servers.iter() {
            if map.ranges.iter().all(|(_, _, primary)| primary != place) {
                server.leave();
            }
        }
    }

    /// The map of the node that knows of the latest configuration.
    async fn ask_all(&self, known: &Map) -> Result<Map, NoPrimary> {
        let mut clients = self.seeds.clone();
        for place in &known.places {
            let client = self.client(place)?;
            if clients.iter().all(|other| address_of(other) != address_of(&client)) {
                clients.push(client);
            }
        }
        let mut reasons = Vec::new();
        let mut latest: Option<Map> = None;
        for (client, answer) in clients.iter().zip(join_all(clients.iter().map(ask)).await) {
            match answer {
                // A node that was taken out of the cluster knows of no slots.
                Ok(map) if map.ranges.is_empty() => {}
                Ok(map) if latest.as_ref().is_none_or(|latest| latest.epoch < map.epoch) => {
                    latest = Some(map);
                }
                Ok(_) => {}
                Err(error) => reasons.push(format!("{}: {error}", address_of(client))),
            }
        }
        latest.ok_or_else(|| {
            if reasons.iter().all(|reason| reason.contains("cluster support disabled")) {
                NoPrimary::NotClustered
            } else {
                NoPrimary::NotNamed(reasons.join("; ").into())
            }
        })
    }
}

impl Map {
    fn primary_of(&self, slot: Slot) -> Option<&Place> {
        let holds = |(first, last, _): &&(u16, u16, Place)| (*first..=*last).contains(&slot.get());
        self.ranges.iter().find(holds).map(|(_, _, place)| place)
    }

    /// What `CLUSTER SLOTS` replies, a range and its nodes each, the primary first; a node without a host is at `host`.
    fn read(epoch: u64, slots: Value, host: &str) -> Result<Self, RedisError> {
        let mut map = Self { epoch, ..Self::default() };
        for range in from_redis_value::<Vec<Vec<Value>>>(slots)? {
            let mut parts = range.into_iter();
            let (first, last) = (number(parts.next())?, number(parts.next())?);
            let mut places = parts.map(|node| place(node, host)).collect::<Result<Vec<_>, _>>()?;
            map.ranges.extend(places.first().map(|primary| (first, last, primary.clone())));
            map.places.append(&mut places);
        }
        map.places.sort();
        map.places.dedup();
        Ok(map)
    }
}

fn number(value: Option<Value>) -> Result<u16, RedisError> {
    Ok(from_redis_value(value.unwrap_or(Value::Nil))?)
}

fn place(node: Value, host: &str) -> Result<Place, RedisError> {
    let mut parts = from_redis_value::<Vec<Value>>(node)?.into_iter();
    let named: Option<String> = from_redis_value(parts.next().unwrap_or(Value::Nil))?;
    let named = named.filter(|named| !named.is_empty() && named != "?");
    Ok((named.unwrap_or_else(|| host.to_owned()), number(parts.next())?))
}

/// One node's map.
async fn ask(client: &Client) -> Result<Map, RedisError> {
    let asked = async {
        let mut connection = connect(client, ASK_MAX).await?;
        let mut both = redis::pipe();
        both.cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
        both.query_async::<(String, Value)>(&mut connection).await
    };
    let (info, slots) = timeout(ASK_MAX, asked).await.map_err(io::Error::from)??;
    let epoch = info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"));
    let epoch = epoch.and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    let host = match address_of(client) {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
        _ => String::new(),
    };
    Map::read(epoch, slots, &host)
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

    fn node(host: Value, port: i64) -> Value {
        Value::Array(vec![host, Value::Int(port), text("its id"), Value::Array(vec![])])
    }

    #[test]
    fn the_first_node_of_a_range_is_its_primary_and_all_are_known() {
        let range = |first, last, nodes: [Value; 2]| {
            Value::Array([vec![Value::Int(first), Value::Int(last)], nodes.into()].concat())
        };
        let slots = Value::Array(vec![
            range(0, 100, [node(text("a"), 1), node(text("b"), 2)]),
            range(101, 16383, [node(Value::Nil, 3), node(text(""), 1)]),
        ]);
        let map = Map::read(7, slots, "asked").unwrap();
        let of = |key| map.primary_of(Slot::of(key)).unwrap();
        assert_eq!((of("{}"), of("foo")), (&("asked".to_owned(), 3), &("asked".to_owned(), 3)));
        assert_eq!(of(""), &("a".to_owned(), 1), "slot 0");
        let places: Vec<_> = map.places.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        assert_eq!(places, ["a:1", "asked:1", "asked:3", "b:2"]);
        assert!(Map::default().primary_of(Slot::of("foo")).is_none());
    }
}
