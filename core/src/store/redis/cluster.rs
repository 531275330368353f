//! Redis Cluster: which node is the primary of which slot.
//!
//! The map is read when it is first needed, and again by the call that a node refuses as not its own, or does not answer:
//! calls on other nodes go on by the map there is. All nodes that are known are asked at once, and each is believed about
//! itself: it says which slots are its own, and by which configuration epoch it came by them. Where two nodes want a slot,
//! the later epoch has it, as in the cluster itself; a node that is cut off from the others has an older one.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Client, ConnectionAddr, RedisError, Value, from_redis_value};
use tokio::time::{Instant, timeout};

use super::primary::{Mode, NoPrimary, connect};
use super::server::{Generations, Server, Way};
use super::slot::{SLOTS, Slot};
use crate::redis_address::at;

/// The longest that one node is waited for.
const ASK_MAX: Duration = Duration::from_millis(300);
/// The map is not read again sooner.
const READ_PAUSE: Duration = Duration::from_millis(50);
/// Errors by which a node says that it did nothing, since the slot is not its own, or not yet.
const REDIRECTS: [&str; 5] = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN"];

/// A node's host and port.
pub(super) type Place = (String, u16);

/// A slot that no node serves.
const UNSERVED: u16 = u16::MAX;

/// Which node is the primary of which slot.
#[derive(Debug, Default)]
struct Map {
    primaries: Vec<Owner>,
    /// The place in `primaries` of each slot's; [`UNSERVED`] where there is none. Empty before the map is read.
    slots: Vec<u16>,
    /// All nodes, replicas too.
    places: BTreeSet<Place>,
}

/// A primary of some slots.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    id: String,
    place: Place,
    /// The configuration epoch by which it has its slots; 0 where only others told of it.
    epoch: u64,
}

/// What one node says.
#[derive(Debug)]
struct View {
    /// Where it was asked.
    at: Place,
    id: String,
    /// Its own configuration epoch.
    epoch: u64,
    ranges: Vec<Range>,
    /// All nodes that it knows of, replicas too.
    places: Vec<Place>,
}

/// Slots, and their primary as one node has it.
#[derive(Debug)]
struct Range {
    slots: RangeInclusive<u16>,
    id: String,
    place: Place,
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
    generations: Arc<Generations>,
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

    /// The generations of all nodes.
    pub(super) fn generations(&self) -> &Generations {
        &self.generations
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
        if self.map().slots.is_empty() {
            self.refresh().await?;
        }
        let places: BTreeSet<_> = self.map().primaries.iter().map(|owner| owner.place.clone()).collect();
        Ok(places.into_iter().collect())
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

    /// Whether the node of that name has `slot`, and the first slot that it has.
    pub(super) fn slots_of(&self, node: &str, slot: Option<Slot>) -> (bool, Option<Slot>) {
        let map = self.map();
        let is_its = |slot: Slot| {
            let place = map.primary_of(slot);
            place.is_some_and(|(host, port)| format!("{host}:{port}") == node)
        };
        (slot.is_some_and(is_its), (0..SLOTS).filter_map(Slot::new).find(|slot| is_its(*slot)))
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
        let result = self.ask_all(&known).await.map(|views| {
            let found = Arc::new(Map::of(&views, &known));
            *self.map.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&found);
            // A call that ends by this is made again at once, and must find the other server.
            self.leave_all_but(&found);
        });
        *read = Some((Instant::now(), result.clone()));
        result
    }

    /// Ends the generations of the servers that are no primaries any more: connections outlast a demotion, and a server that
    /// is promoted again has another history.
    fn leave_all_but(&self, map: &Map) {
        let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        for (place, server) in servers.iter() {
            if map.primaries.iter().all(|primary| primary.place != *place) {
                server.leave();
            }
        }
    }

    /// What each node says that answers: those that are known, and those that they know of.
    async fn ask_all(&self, known: &Map) -> Result<Vec<View>, NoPrimary> {
        let mut clients = self.seeds.clone();
        let mut told = known.places.clone();
        let (mut views, mut reasons, mut asked) = (Vec::new(), Vec::new(), 0);
        loop {
            for client in told.iter().map(|place| self.client(place)) {
                let client = client?;
                if clients.iter().all(|other| address_of(other) != address_of(&client)) {
                    clients.push(client);
                }
            }
            let new = &clients[asked..];
            for (client, answer) in new.iter().zip(join_all(new.iter().map(ask)).await) {
                match answer {
                    Ok(view) => {
                        told.extend(view.places.iter().cloned());
                        views.push(view);
                    }
                    Err(error) => reasons.push(format!("{}: {error}", address_of(client))),
                }
            }
            if new.is_empty() {
                break;
            }
            asked = clients.len();
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
    /// The map by what nodes say, and by what was `known` of those that say nothing.
    fn of(views: &[View], known: &Self) -> Self {
        let mut map = Self { slots: vec![UNSERVED; usize::from(SLOTS)], ..Self::default() };
        map.places = views.iter().flat_map(|view| view.places.iter().cloned()).collect();
        map.places.extend(known.primaries.iter().map(|owner| owner.place.clone()));
        let silent = |id: &str| views.iter().all(|view| view.id != id);
        for view in views {
            for range in view.ranges.iter().filter(|range| range.id == view.id) {
                let owner = Owner { id: view.id.clone(), place: range.place.clone(), epoch: view.epoch };
                map.give(range.slots.clone(), &owner);
            }
        }
        for view in views {
            for range in view.ranges.iter().filter(|range| silent(&range.id)) {
                let owner = Owner { id: range.id.clone(), place: range.place.clone(), epoch: 0 };
                map.give(range.slots.clone(), &owner);
            }
        }
        // An older claim to a slot does not count only because its primary is silent, unless that was replaced.
        let replaced = |owner: &Owner| views.iter().any(|view| view.at == owner.place && view.id != owner.id);
        for (slot, place) in (0..).zip(&known.slots) {
            if let Some(owner) = known.primaries.get(usize::from(*place))
                && silent(&owner.id)
                && !replaced(owner)
            {
                map.give(slot..=slot, owner);
            }
        }
        map.without_the_outdone()
    }

    /// Gives `owner` those of the `slots` that no node has by the same or a later epoch.
    fn give(&mut self, slots: RangeInclusive<u16>, owner: &Owner) {
        let at = self.primaries.iter().position(|other| other == owner).unwrap_or(self.primaries.len());
        if at == self.primaries.len() {
            self.primaries.push(owner.clone());
        }
        for slot in slots.map(usize::from).filter(|slot| *slot < usize::from(SLOTS)) {
            let before = self.primaries.get(usize::from(self.slots[slot]));
            if before.is_none_or(|before| before.epoch < owner.epoch) {
                self.slots[slot] = u16::try_from(at).unwrap_or(UNSERVED);
            }
        }
    }

    /// The same map without primaries that were left no slot.
    fn without_the_outdone(mut self) -> Self {
        let have: BTreeSet<u16> = self.slots.iter().copied().filter(|place| *place != UNSERVED).collect();
        let primaries = have.iter().map(|place| self.primaries[usize::from(*place)].clone()).collect();
        for place in &mut self.slots {
            if let Some(at) = have.iter().position(|other| other == place) {
                *place = u16::try_from(at).unwrap_or(UNSERVED);
            }
        }
        self.primaries = primaries;
        self
    }

    fn primary_of(&self, slot: Slot) -> Option<&Place> {
        let at = self.slots.get(usize::from(slot.get()))?;
        self.primaries.get(usize::from(*at)).map(|owner| &owner.place)
    }
}

impl View {
    /// What `CLUSTER SLOTS` replies, a range and its nodes each, the primary first; a node without a host is at that of `at`.
    fn read(id: String, epoch: u64, slots: Value, at: Place) -> Result<Self, RedisError> {
        let (mut ranges, mut places) = (Vec::new(), Vec::new());
        for range in from_redis_value::<Vec<Vec<Value>>>(slots)? {
            let mut parts = range.into_iter();
            let slots = number(parts.next())?..=number(parts.next())?;
            let mut nodes = parts.map(|told| node(told, &at.0)).collect::<Result<Vec<_>, _>>()?;
            places.extend(nodes.iter().map(|(place, _)| place.clone()));
            if !nodes.is_empty() {
                let (place, id) = nodes.swap_remove(0);
                ranges.push(Range { slots, id, place });
            }
        }
        Ok(Self { at, id, epoch, ranges, places })
    }
}

fn number(value: Option<Value>) -> Result<u16, RedisError> {
    Ok(from_redis_value(value.unwrap_or(Value::Nil))?)
}

/// A node's place and id.
fn node(told: Value, host: &str) -> Result<(Place, String), RedisError> {
    let mut parts = from_redis_value::<Vec<Value>>(told)?.into_iter();
    let named: Option<String> = from_redis_value(parts.next().unwrap_or(Value::Nil))?;
    let named = named.filter(|named| !named.is_empty() && named != "?");
    let place = (named.unwrap_or_else(|| host.to_owned()), number(parts.next())?);
    Ok((place, from_redis_value(parts.next().unwrap_or(Value::Nil))?))
}

/// What one node says.
async fn ask(client: &Client) -> Result<View, RedisError> {
    let asked = async {
        let mut connection = connect(client, ASK_MAX).await?;
        let mut all = redis::pipe();
        all.cmd("CLUSTER").arg("MYID").cmd("CLUSTER").arg("INFO").cmd("CLUSTER").arg("SLOTS");
        all.query_async::<(String, String, Value)>(&mut connection).await
    };
    let (id, info, slots) = timeout(ASK_MAX, asked).await.map_err(io::Error::from)??;
    let epoch = info.lines().find_map(|line| line.strip_prefix("cluster_my_epoch:"));
    let epoch = epoch.and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    let at = match address_of(client) {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => (host.clone(), *port),
        _ => (String::new(), 0),
    };
    View::read(id, epoch, slots, at)
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

    fn told(host: Value, port: i64, id: &str) -> Value {
        Value::Array(vec![host, Value::Int(port), text(id), Value::Array(vec![])])
    }

    fn place(port: u16) -> Place {
        ("h".to_owned(), port)
    }

    /// What the node `id` says by its epoch: a range's end and its primary each.
    fn view(id: u16, epoch: u64, ranges: &[(u16, u16)]) -> View {
        let mut first = 0;
        let ranges = ranges.iter().map(|(last, primary)| {
            let slots = first..=*last;
            first = last + 1;
            Range { slots, id: primary.to_string(), place: place(*primary) }
        });
        let ranges: Vec<_> = ranges.collect();
        let places = ranges.iter().map(|range| range.place.clone()).collect();
        View { at: place(id), id: id.to_string(), epoch, ranges, places }
    }

    /// The primaries of the first and of the last slot.
    fn ends(map: &Map) -> [Option<u16>; 2] {
        [0, usize::from(SLOTS) - 1]
            .map(|slot| map.primaries.get(usize::from(map.slots[slot])).map(|owner| owner.place.1))
    }

    #[test]
    fn the_first_node_of_a_range_is_its_primary_and_all_are_known() {
        let range = |first, last, nodes: [Value; 2]| {
            Value::Array([vec![Value::Int(first), Value::Int(last)], nodes.into()].concat())
        };
        let slots = Value::Array(vec![
            range(0, 100, [told(text("a"), 1, "one"), told(text("b"), 2, "two")]),
            range(101, 16383, [told(Value::Nil, 3, "three"), told(text(""), 1, "four")]),
        ]);
        let view = View::read("three".to_owned(), 7, slots, ("asked".to_owned(), 3)).unwrap();
        let map = Map::of(&[view], &Map::default());
        let of = |key| map.primary_of(Slot::of(key)).unwrap();
        assert_eq!((of("{}"), of("foo")), (&("asked".to_owned(), 3), &("asked".to_owned(), 3)));
        assert_eq!(of(""), &("a".to_owned(), 1), "slot 0");
        let places: Vec<_> = map.places.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        assert_eq!(places, ["a:1", "asked:1", "asked:3", "b:2"]);
        assert!(Map::default().primary_of(Slot::of("foo")).is_none());
    }

    #[test]
    fn a_node_is_believed_about_its_own_slots_and_the_later_epoch_has_a_slot_that_two_want() {
        // Slots moved from 1 to 2, and 3 has not heard of it yet.
        let moved = [view(3, 9, &[(16383, 1)]), view(1, 9, &[(100, 2), (16383, 1)]), view(2, 1, &[(100, 2)])];
        assert_eq!(ends(&Map::of(&moved, &Map::default())), [Some(2), Some(1)]);
        // 1 was cut off, and 2 promoted instead.
        let promoted = [view(1, 4, &[(16383, 1)]), view(2, 5, &[(16383, 2)])];
        let map = Map::of(&promoted, &Map::default());
        assert_eq!((ends(&map), map.primaries.len()), ([Some(2), Some(2)], 1));
    }

    #[test]
    fn a_silent_node_keeps_its_slots_against_an_older_claim_but_not_against_a_later_one() {
        let known = Map::of(&[view(2, 5, &[(16383, 2)])], &Map::default());
        assert_eq!(
            ends(&Map::of(&[view(1, 4, &[(16383, 1)])], &known)),
            [Some(2); 2],
            "1 was cut off before"
        );
        assert_eq!(ends(&Map::of(&[view(3, 6, &[(16383, 3)])], &known)), [Some(3); 2], "3 was promoted");
        assert_eq!(ends(&Map::of(&[view(3, 4, &[(16383, 2)])], &Map::default())), [Some(2); 2], "as 3 tells");
        let another = View { id: "another".to_owned(), ..view(2, 0, &[]) };
        let rebuilt = [another, view(1, 1, &[(16383, 1)])];
        assert_eq!(ends(&Map::of(&rebuilt, &known)), [Some(1); 2], "the cluster was made again");
    }

    #[test]
    fn slots_that_nobody_serves_have_no_primary() {
        let map = Map::of(&[view(1, 1, &[(100, 1)])], &Map::default());
        assert_eq!(ends(&map), [Some(1), None]);
    }
}
