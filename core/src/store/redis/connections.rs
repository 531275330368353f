//! Connections to Redis: made when needed, dropped when they break.
//!
//! Each thread that decides claims has one of its own, of a cluster one to each node.

use std::collections::HashMap;
use std::future::pending;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::join_all;
use redis::RedisError;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::cluster::{Cluster, Place, is_redirect};
use super::primary::{Mode, NoPrimary, Primary};
use super::sentinel::Sentinels;
use super::server::{Connection, Server, Session, Way};
use super::slot::Slot;
use crate::redis_address::RedisAddress;

/// The longest that a connection to one of several servers is waited for where all are asked.
const SESSION_MAX: Duration = Duration::from_secs(1);

/// The connections of one thread.
#[derive(Debug)]
pub(super) enum Connections {
    /// To the one server that has all keys.
    One(Connection),
    /// To the nodes of a cluster, each made when it is first needed.
    Cluster { cluster: Arc<Cluster>, nodes: RwLock<HashMap<Place, Arc<Connection>>> },
}

impl Connections {
    pub(super) fn new(address: RedisAddress) -> Self {
        match Servers::at(address) {
            Servers::One(way) => Self::One(Connection::to(Arc::new(Server::new(way, Arc::default())))),
            Servers::Cluster(cluster) => {
                Self::Cluster { cluster: Arc::new(cluster), nodes: RwLock::default() }
            }
        }
    }

    /// Further connections to the same servers.
    pub(super) fn another(&self) -> Self {
        match self {
            Self::One(connection) => Self::One(connection.another()),
            Self::Cluster { cluster, .. } => {
                Self::Cluster { cluster: Arc::clone(cluster), nodes: RwLock::default() }
            }
        }
    }

    /// The current session with the server that has `slot`, or a new one.
    pub(super) async fn session(&self, slot: Slot) -> Result<Session, NoPrimary> {
        let (cluster, nodes) = match self {
            Self::One(connection) => return connection.session().await,
            Self::Cluster { cluster, nodes } => (cluster, nodes),
        };
        let place = cluster.primary_of(slot).await?;
        let session = node(cluster, nodes, &place)?.session().await;
        let Err(error) = session else { return session };
        // Another node may have taken its place.
        cluster.refresh().await?;
        let now = cluster.primary_of(slot).await?;
        if now == place { Err(error) } else { node(cluster, nodes, &now)?.session().await }
    }

    /// A session with each server that has one of the `slots`, and the places of those in the list.
    pub(super) async fn sessions(&self, slots: &[Slot]) -> Vec<(Result<Session, NoPrimary>, Vec<usize>)> {
        let Self::Cluster { cluster, .. } = self else {
            return match slots.first() {
                Some(first) => vec![(self.session(*first).await, (0..slots.len()).collect())],
                None => vec![],
            };
        };
        let mut by_place: HashMap<_, (Slot, Vec<usize>)> = HashMap::new();
        for (at, slot) in slots.iter().enumerate() {
            let place = cluster.primary_of(*slot).await.ok();
            by_place.entry(place).or_insert_with(|| (*slot, vec![])).1.push(at);
        }
        let sessions = by_place.into_values().map(|(slot, at)| async move { (self.session(slot).await, at) });
        join_all(sessions).await
    }

    /// A session with each server, by its address. Of several each is waited for for [`SESSION_MAX`].
    pub(super) async fn all(&self) -> Result<Vec<(String, Result<Session, NoPrimary>)>, NoPrimary> {
        let (cluster, nodes) = match self {
            Self::One(connection) => {
                let session = connection.session().await?;
                return Ok(vec![(session.address(), Ok(session))]);
            }
            Self::Cluster { cluster, nodes } => (cluster, nodes),
        };
        let places = cluster.primaries().await?;
        let sessions = places.iter().map(|place| async move {
            let session = timeout(SESSION_MAX, async { node(cluster, nodes, place)?.session().await }).await;
            let late = |_| Err(RedisError::from(io::Error::from(io::ErrorKind::TimedOut)).into());
            (format!("{}:{}", place.0, place.1), session.unwrap_or_else(late))
        });
        let sessions = join_all(sessions).await;
        if sessions.iter().any(|(_, session)| session.is_err()) {
            // The nodes that answer go on by the map there is.
            let _ = cluster.refresh().await;
        }
        Ok(sessions)
    }

    /// Waits until a server can be worked with that could not be: another one, or one that replicas confirm.
    pub(super) async fn usable(&self) {
        match self {
            Self::One(connection) => connection.generations().usable().await,
            Self::Cluster { cluster, .. } => cluster.generations().usable().await,
        }
    }

    /// Reads a cluster's map again; without an answer it stays as it was.
    pub(super) async fn refresh(&self) {
        if let Self::Cluster { cluster, .. } = self {
            let _ = cluster.refresh().await;
        }
    }

    /// Whether the server of `session` has `slot`, and the first slot that it has, as far as is known.
    pub(super) fn slots_of(&self, session: &Session, slot: Option<Slot>) -> (bool, Option<Slot>) {
        match self {
            Self::One(_) => (true, Some(Slot::FIRST)),
            Self::Cluster { cluster, .. } => cluster.slots_of(&session.name, slot),
        }
    }

    /// Ends the generation of `session` if `error` shows that it is broken or leads to a server that is no primary any more,
    /// and reads the cluster's map again where that seems to be outdated.
    pub(super) async fn note(&self, error: &RedisError, session: &Session) {
        let ended = session.note(error);
        if let Self::Cluster { cluster, .. } = self
            && (ended || is_redirect(error))
        {
            // Without an answer the call's own error is the one that counts.
            let _ = cluster.refresh().await;
        }
    }

    /// Ends the generation whenever Sentinel names another server than it leads to, also when that one is silent only or
    /// answers still. Never returns.
    pub(super) async fn follow_switches(&self) {
        let Self::One(connection) = self else { return pending().await };
        let Some(sentinels) = connection.sentinels() else { return pending().await };
        let (heard, mut primaries) = mpsc::unbounded_channel();
        let end = async {
            while let Some(primary) = primaries.recv().await {
                connection.leave_unless_at(&primary).await;
            }
        };
        tokio::join!(sentinels.listen(&heard), end);
    }
}

/// The connection to the node at `place`.
fn node(
    cluster: &Cluster,
    nodes: &RwLock<HashMap<Place, Arc<Connection>>>,
    place: &Place,
) -> Result<Arc<Connection>, RedisError> {
    if let Some(connection) = nodes.read().unwrap_or_else(PoisonError::into_inner).get(place) {
        return Ok(Arc::clone(connection));
    }
    let connection = Arc::new(Connection::to(cluster.server(place)?));
    let mut nodes = nodes.write().unwrap_or_else(PoisonError::into_inner);
    Ok(Arc::clone(nodes.entry(place.clone()).or_insert(connection)))
}

/// What an address leads to.
enum Servers {
    One(Way),
    Cluster(Cluster),
}

impl Servers {
    fn at(address: RedisAddress) -> Self {
        match address {
            RedisAddress::Server(client) => Self::One(Way::Straight(client, Mode::Alone)),
            RedisAddress::Sentinel(address) => Self::One(Way::Sentinel(Sentinels::new(address))),
            RedisAddress::Cluster(seeds) => Self::Cluster(Cluster::new(seeds)),
        }
    }
}

/// Primaries by their names.
pub type Connected = Vec<(String, Result<Primary, NoPrimary>)>;

/// Connects to every primary of `address`: of a cluster each with its address, else the one there is, with none.
///
/// # Errors
/// When no node of the cluster answers.
pub async fn primaries(address: &RedisAddress, response_timeout: Duration) -> Result<Connected, NoPrimary> {
    match Servers::at(address.clone()) {
        Servers::One(way) => Ok(vec![(String::new(), way.connect(response_timeout).await)]),
        Servers::Cluster(cluster) => {
            let connected = cluster.clients().await?.into_iter().map(|client| async move {
                let name = client.get_connection_info().addr().to_string();
                (name, Primary::connect(client, Mode::Cluster, response_timeout).await)
            });
            Ok(join_all(connected).await)
        }
    }
}
