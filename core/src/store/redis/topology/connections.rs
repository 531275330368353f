//! Connections to Redis: opened when needed, dropped when they break.
//!
//! Each thread that decides claims has its own connection. With a cluster, it has its own connection to each
//! node.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::RwLock;
use redis::RedisError;
use tokio::time::timeout;

use super::cluster::{Cluster, NodeAddress, is_redirect};
use super::primary::{Mode, NoPrimary, Primary};
use super::sentinel::Sentinels;
use super::server::{Connection, Server, ServerLocator, Session};
use super::slot::Slot;
use crate::redis_address::RedisAddress;

/// Timeout for connecting to one server when all servers are contacted.
const SESSION_MAX: Duration = Duration::from_secs(1);

/// The connections of one thread.
#[derive(Debug)]
pub(in crate::store::redis) enum Connections {
    /// The connection to the single server that has all keys.
    One(Connection),
    /// The connections to the nodes of a cluster, each opened on first use.
    Cluster { cluster: Arc<Cluster>, nodes: RwLock<HashMap<NodeAddress, Arc<Connection>>> },
}

impl Connections {
    pub(in crate::store::redis) fn new(address: RedisAddress) -> Self {
        match Servers::at(address) {
            Servers::One(locator) => {
                Self::One(Connection::to(Arc::new(Server::new(locator, Arc::default()))))
            }
            Servers::Cluster(cluster) => {
                Self::Cluster { cluster: Arc::new(cluster), nodes: RwLock::default() }
            }
        }
    }

    /// Creates another set of connections to the same servers.
    pub(in crate::store::redis) fn another(&self) -> Self {
        match self {
            Self::One(connection) => Self::One(connection.another()),
            Self::Cluster { cluster, .. } => {
                Self::Cluster { cluster: Arc::clone(cluster), nodes: RwLock::default() }
            }
        }
    }

    /// Returns the current session with the server that has `slot`, or a new one.
    pub(in crate::store::redis) async fn session(&self, slot: Slot) -> Result<Session, NoPrimary> {
        let (cluster, nodes) = match self {
            Self::One(connection) => return connection.session().await,
            Self::Cluster { cluster, nodes } => (cluster, nodes),
        };
        let address = cluster.primary_of(slot).await?;
        let session = node(cluster, nodes, &address)?.session().await;
        let Err(error) = session else { return session };
        // The slot may have moved to another node.
        cluster.refresh().await?;
        let now = cluster.primary_of(slot).await?;
        if now == address { Err(error) } else { node(cluster, nodes, &now)?.session().await }
    }

    /// Returns a session with each server that has any of the `slots`, with the indexes of these slots in the
    /// list.
    pub(in crate::store::redis) async fn sessions(
        &self,
        slots: &[Slot],
    ) -> Vec<(Result<Session, NoPrimary>, Vec<usize>)> {
        let Self::Cluster { cluster, .. } = self else {
            return match slots.first() {
                Some(first) => vec![(self.session(*first).await, (0..slots.len()).collect())],
                None => vec![],
            };
        };
        let mut by_address: HashMap<_, (Slot, Vec<usize>)> = HashMap::new();
        for (at, slot) in slots.iter().enumerate() {
            let address = cluster.primary_of(*slot).await.ok();
            by_address.entry(address).or_insert_with(|| (*slot, vec![])).1.push(at);
        }
        let sessions =
            by_address.into_values().map(|(slot, at)| async move { (self.session(slot).await, at) });
        join_all(sessions).await
    }

    /// Returns a session with each server, by its address. With a cluster, each connection attempt is limited
    /// to [`SESSION_MAX`].
    pub(in crate::store::redis) async fn all(
        &self,
    ) -> Result<Vec<(String, Result<Session, NoPrimary>)>, NoPrimary> {
        let (cluster, nodes) = match self {
            Self::One(connection) => {
                let session = connection.session().await?;
                return Ok(vec![(session.address(), Ok(session))]);
            }
            Self::Cluster { cluster, nodes } => (cluster, nodes),
        };
        let addresses = cluster.primaries().await?;
        let sessions = addresses.iter().map(|address| async move {
            let session =
                timeout(SESSION_MAX, async { node(cluster, nodes, address)?.session().await }).await;
            let late = |_| Err(RedisError::from(io::Error::from(io::ErrorKind::TimedOut)).into());
            (format!("{}:{}", address.0, address.1), session.unwrap_or_else(late))
        });
        let sessions = join_all(sessions).await;
        if sessions.iter().any(|(_, session)| session.is_err()) {
            // If that also fails, calls to the nodes that answered still work with the current map.
            let _ = cluster.refresh().await;
        }
        Ok(sessions)
    }

    /// Waits until a server becomes usable: a new connection was made, or replicas confirm writes again.
    pub(in crate::store::redis) async fn wait_until_usable(&self) {
        match self {
            Self::One(connection) => connection.generations().wait_until_usable().await,
            Self::Cluster { cluster, .. } => cluster.generations().wait_until_usable().await,
        }
    }

    /// Rereads a cluster's map, which stays unchanged if no node answers.
    pub(in crate::store::redis) async fn refresh(&self) {
        if let Self::Cluster { cluster, .. } = self {
            let _ = cluster.refresh().await;
        }
    }

    /// Returns whether the server of `session` has `slot`, and the first slot of that server, by the current
    /// map.
    pub(in crate::store::redis) fn slots_of(
        &self,
        session: &Session,
        slot: Option<Slot>,
    ) -> (bool, Option<Slot>) {
        match self {
            Self::One(_) => (true, Some(Slot::FIRST)),
            Self::Cluster { cluster, .. } => cluster.slots_of(&session.name, slot),
        }
    }

    /// Returns a hash tag whose slot the server of `session` owns; empty without a cluster.
    pub(in crate::store::redis) fn tag_of(&self, session: &Session) -> String {
        match self {
            Self::One(_) => String::new(),
            Self::Cluster { .. } => self.slots_of(session, None).1.unwrap_or(Slot::FIRST).tag(),
        }
    }

    /// Ends the generation of `session` if `error` shows a broken connection or a demoted server. Rereads the
    /// cluster's map if the map seems outdated.
    pub(in crate::store::redis) async fn note_error(&self, error: &RedisError, session: &Session) {
        let ended = session.note_error(error);
        if let Self::Cluster { cluster, .. } = self
            && (ended || is_redirect(error))
        {
            // If the refresh fails, the error of the call itself is reported.
            let _ = cluster.refresh().await;
        }
    }
}

/// Returns the connection to the node at `address`.
fn node(
    cluster: &Cluster,
    nodes: &RwLock<HashMap<NodeAddress, Arc<Connection>>>,
    address: &NodeAddress,
) -> Result<Arc<Connection>, RedisError> {
    if let Some(connection) = nodes.read().get(address) {
        return Ok(Arc::clone(connection));
    }
    let connection = Arc::new(Connection::to(cluster.server(address)?));
    let mut nodes = nodes.write();
    Ok(Arc::clone(nodes.entry(address.clone()).or_insert(connection)))
}

/// The server or cluster at an address.
enum Servers {
    One(ServerLocator),
    Cluster(Cluster),
}

impl Servers {
    fn at(address: RedisAddress) -> Self {
        match address {
            RedisAddress::Server(client) => Self::One(ServerLocator::Direct(client, Mode::Standalone)),
            RedisAddress::Sentinel(address) => Self::One(ServerLocator::Sentinel(Sentinels::new(address))),
            RedisAddress::Cluster(seeds) => Self::Cluster(Cluster::new(seeds)),
        }
    }
}

/// Connections to primaries, by name.
pub type NamedPrimaries = Vec<(String, Result<Primary, NoPrimary>)>;

/// Connects to every primary of `address`. The name of a cluster's node is its address; a single server has
/// no name.
///
/// # Errors
/// If no node of the cluster answers.
pub async fn primaries(
    address: &RedisAddress,
    response_timeout: Duration,
) -> Result<NamedPrimaries, NoPrimary> {
    match Servers::at(address.clone()) {
        Servers::One(locator) => Ok(vec![(String::new(), locator.connect(response_timeout).await)]),
        Servers::Cluster(cluster) => {
            let connected = cluster.clients().await?.into_iter().map(|client| async move {
                let name = client.get_connection_info().addr().to_string();
                (name, Primary::connect(client, Mode::Cluster, response_timeout).await)
            });
            Ok(join_all(connected).await)
        }
    }
}
