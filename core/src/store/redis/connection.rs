//! Connections to Redis: made when needed, dropped when they break, counted by generations.
//!
//! Each thread that decides claims has one of its own, of a cluster to each node. Those that are proven to lead to the same
//! run of the same server are of one generation, which ends for all of them when one breaks, or when Sentinel names another
//! server.

use std::collections::HashMap;
use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Client, ConnectionAddr, ErrorKind, RedisError, ServerErrorKind};
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;

use super::address::Address;
use super::cluster::{Cluster, Place, is_redirect};
use super::primary::{NoPrimary, Primary, Run, connect};
use super::slot::Slot;
use crate::domain::counters::Generation;

/// The longest a call waits for Redis; the edge gives core 2 s in all.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// After a failed attempt to connect, calls fail at once for this long, without a further attempt.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);

/// A connection and its generation: the first is 1.
#[derive(Debug, Clone)]
pub struct Session {
    pub(super) connection: MultiplexedConnection,
    pub(super) generation: Generation,
    /// The server's replication id, which changes when it is promoted.
    pub(super) replication_id: Arc<str>,
    client: Arc<Client>,
    server: Arc<Server>,
}

impl Session {
    /// The connection's generation: behind a connection of another generation may be another server.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether calls are still made on connections of its generation.
    pub(super) fn is_current(&self) -> bool {
        self.server.current.load(Ordering::Acquire) == self.generation.get()
    }

    /// A separate connection to the same server, for calls that wait.
    pub(super) async fn another(&self) -> Result<MultiplexedConnection, RedisError> {
        connect(&self.client, RESPONSE_TIMEOUT).await
    }
}

/// The connections of one thread.
#[derive(Debug)]
pub(super) enum Connections {
    /// To the one server that has all keys.
    One(Connection),
    /// To the nodes of a cluster, each made when it is first needed.
    Cluster { cluster: Arc<Cluster>, nodes: RwLock<HashMap<Place, Arc<Connection>>> },
}

impl Connections {
    pub(super) fn new(address: Address) -> Self {
        match address {
            Address::Cluster(seeds) => {
                Self::Cluster { cluster: Arc::new(Cluster::new(seeds)), nodes: RwLock::default() }
            }
            address => Self::One(Connection::to(Arc::new(Server::new(address, Arc::default())))),
        }
    }

    /// Further connections to the same servers.
    pub(super) fn another(&self) -> Self {
        match self {
            Self::One(connection) => Self::One(Connection::to(Arc::clone(&connection.server))),
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

    /// A session with each server.
    pub(super) async fn all(&self) -> Result<Vec<Result<Session, NoPrimary>>, NoPrimary> {
        match self {
            Self::One(connection) => Ok(vec![connection.session().await]),
            Self::Cluster { cluster, nodes } => {
                let places = cluster.primaries().await?;
                let sessions =
                    places.iter().map(|place| async move { node(cluster, nodes, place)?.session().await });
                let sessions = join_all(sessions).await;
                if sessions.iter().any(Result::is_err) {
                    // The nodes that answer go on by the map there is.
                    let _ = cluster.refresh().await;
                }
                Ok(sessions)
            }
        }
    }

    /// Ends the generation of `session` if `error` shows that it is broken or leads to a server that is no primary any more,
    /// and reads the cluster's map again where that seems to be outdated.
    pub(super) async fn note(&self, error: &RedisError, session: &Session) {
        let ended = session.server.note(error, session.generation).await;
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
        let Self::One(Connection { server, .. }) = self else { return pending().await };
        let Address::Sentinel(sentinels) = &server.address else { return pending().await };
        let (heard, mut primaries) = mpsc::unbounded_channel();
        let end = async {
            while let Some(primary) = primaries.recv().await {
                server.end_unless_at(&primary).await;
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

/// The connection of one thread to one server.
#[derive(Debug)]
pub(super) struct Connection {
    server: Arc<Server>,
    /// The last session, which counts as long as its generation is current.
    session: RwLock<Option<Session>>,
}

/// What all connections to a server share.
#[derive(Debug)]
pub(super) struct Server {
    address: Address,
    /// The current generation; 0 while there is none.
    current: AtomicU64,
    /// The last generation of any server.
    generations: Arc<AtomicU64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last generation of this server.
    generation: Generation,
    /// What the connections of the current generation lead to.
    target: Option<Target>,
    /// Where that is.
    at: Option<ConnectionAddr>,
    /// When the last attempt to connect failed, and its error.
    failed: Option<(Instant, NoPrimary)>,
}

/// What the connections of a generation lead to.
#[derive(Debug)]
enum Target {
    /// This run of a server; a further connection to it is of the same generation.
    Run(Run),
    /// A server that does not tell its run. Whether a further connection leads to the same one is unknown, so all share
    /// this one.
    Unknown(Session),
}

impl Server {
    /// The server at `address`, whose generations are counted with those of others by `generations`.
    pub(super) fn new(address: Address, generations: Arc<AtomicU64>) -> Self {
        Self { address, current: AtomicU64::new(0), generations, state: Mutex::default() }
    }

    /// The session of a new connection: of the current generation if it leads to the same run, of a new one otherwise.
    fn begin_or_join(self: &Arc<Self>, state: &mut State, primary: Primary) -> Session {
        let Primary { connection, client, replication_id, run } = primary;
        let joins = self.current.load(Ordering::Acquire) != 0
            && matches!((&state.target, &run), (Some(Target::Run(current)), Some(run)) if current == run);
        if !joins {
            state.generation = Generation::new(1 + self.generations.fetch_add(1, Ordering::Relaxed));
            state.at = Some(client.get_connection_info().addr().clone());
        }
        let (server, generation) = (Arc::clone(self), state.generation);
        let session = Session { connection, generation, replication_id, client, server };
        if !joins {
            state.target = Some(run.map_or_else(|| Target::Unknown(session.clone()), Target::Run));
            self.current.store(state.generation.get(), Ordering::Release);
        }
        session
    }

    /// Ends the current generation, if there is one.
    fn end(&self, state: &mut State) {
        self.leave();
        state.target = None;
    }

    /// Ends the current generation without waiting for an attempt to connect: the next connection begins another one.
    pub(super) fn leave(&self) {
        self.current.store(0, Ordering::Release);
    }

    /// Ends `generation`, if `error` shows that a connection of it is broken or leads to a server that is no primary any
    /// more. All connections are then made again. Returns whether it shows so.
    async fn note(&self, error: &RedisError, generation: Generation) -> bool {
        let of_redis = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension);
        if of_redis && error.kind() != ErrorKind::Server(ServerErrorKind::ReadOnly) {
            return false;
        }
        let mut state = self.state.lock().await;
        if state.generation == generation {
            self.end(&mut state);
        }
        true
    }

    /// Ends the current generation, unless it is of the server at `primary`.
    async fn end_unless_at(&self, primary: &ConnectionAddr) {
        let mut state = self.state.lock().await;
        if state.target.is_some() && state.at.as_ref() != Some(primary) {
            tracing::warn!(%primary, "Sentinel names another primary; connecting to it");
            self.end(&mut state);
        }
    }
}

impl Connection {
    fn to(server: Arc<Server>) -> Self {
        Self { server, session: RwLock::default() }
    }

    /// The current session, or a new one. Callers of all connections wait for the attempt in progress.
    async fn session(&self) -> Result<Session, NoPrimary> {
        if let Some(session) = self.current() {
            return Ok(session);
        }
        let mut state = self.server.state.lock().await;
        if let Some(session) = self.current() {
            return Ok(session);
        }
        if let Some(Target::Unknown(session)) = &state.target
            && session.is_current()
        {
            return Ok(self.keep(session));
        }
        if let Some((at, error)) = &state.failed
            && at.elapsed() < CONNECT_PAUSE
        {
            return Err(error.clone());
        }
        match self.server.address.connect(RESPONSE_TIMEOUT).await {
            Ok(primary) => {
                state.failed = None;
                Ok(self.keep(&self.server.begin_or_join(&mut state, primary)))
            }
            Err(error) => {
                state.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// The session, if it is of the current generation.
    fn current(&self) -> Option<Session> {
        let session = self.session.read().unwrap_or_else(PoisonError::into_inner);
        let generation = self.server.current.load(Ordering::Acquire);
        session.as_ref().filter(|session| session.generation.get() == generation).cloned()
    }

    fn keep(&self, session: &Session) -> Session {
        *self.session.write().unwrap_or_else(PoisonError::into_inner) = Some(session.clone());
        session.clone()
    }
}
