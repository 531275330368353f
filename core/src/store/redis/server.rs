//! A server, and the generations of the connections to it.
//!
//! Connections that are proven to lead to the same run of the same server are of one generation, which ends for all of them
//! when one breaks, or when another server takes its place.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, ConnectionAddr, ErrorKind, RedisError, ServerErrorKind};
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;

use super::barrier::Barrier;
use super::primary::{Mode, NoPrimary, Primary, Run, connect};
use super::sentinel::Sentinels;
use crate::domain::counters::Generation;
use crate::redis_address::at;
use crate::step;

/// The longest a call waits for Redis; the edge gives core 2 s in all.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// After a failed attempt to connect, calls fail at once for this long, without a further attempt.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);

/// How a server is found.
#[derive(Debug)]
pub(super) enum Way {
    /// It is the one at this address.
    Straight(Client, Mode),
    /// It is the one that Sentinel names.
    Sentinel(Sentinels),
}

impl Way {
    /// Connects to the server, whose replies are waited for for `response_timeout` at most.
    pub(super) async fn connect(&self, response_timeout: Duration) -> Result<Primary, NoPrimary> {
        match self {
            Self::Straight(client, mode) => Primary::connect(client.clone(), *mode, response_timeout).await,
            Self::Sentinel(sentinels) => sentinels.connect(response_timeout).await,
        }
    }
}

/// A connection and its generation: the first is 1.
#[derive(Debug, Clone)]
pub struct Session {
    pub(super) connection: MultiplexedConnection,
    pub(super) generation: Generation,
    /// The server's replication id, which changes when it is promoted.
    pub(super) replication_id: Arc<str>,
    /// The server's address, as other servers know it.
    pub(super) name: Arc<str>,
    client: Arc<Client>,
    pub(super) server: Arc<Server>,
}

impl Session {
    /// The connection's generation: behind a connection of another generation may be another server.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Where its server is.
    pub(super) fn address(&self) -> String {
        self.client.get_connection_info().addr().to_string()
    }

    /// Whether calls are still made on connections of its generation.
    pub(super) fn is_current(&self) -> bool {
        self.server.current.load(Ordering::Acquire) == self.generation.get()
    }

    /// What `call` answers on its connection, which is the step `name`; an error once another server has become the primary, as
    /// [`Server::unless_replaced`] says.
    pub(super) async fn ask<T>(
        &mut self,
        name: &'static str,
        call: impl AsyncFnOnce(&mut MultiplexedConnection) -> Result<T, RedisError>,
    ) -> Result<T, RedisError> {
        step::before(name).await;
        let answer = self.server.unless_replaced(self.generation, call(&mut self.connection)).await;
        step::after(answer)
    }

    /// A client of another server, spoken to as this one is; `None` for a name that is not `host:port`.
    pub(super) fn client_of(&self, server: &str) -> Option<Client> {
        let (host, port) = server.rsplit_once(':')?;
        let known = self.client.get_connection_info();
        let address = at(known.addr(), host.to_owned(), port.parse().ok()?);
        Client::open(known.clone().set_addr(address)).ok()
    }

    /// Its server's barrier, which the sessions of all threads share.
    pub(super) fn barrier(&self) -> &Barrier {
        &self.server.barrier
    }

    /// Tells those who wait that what its server says can be acknowledged.
    pub(super) fn is_usable(&self) {
        self.server.generations.usable.notify_one();
    }

    /// A further session with the same server, over a connection of its own. It is of another generation if the server has
    /// restarted or was replaced.
    pub(super) async fn join(&self) -> Result<Self, NoPrimary> {
        let mut state = self.server.state.lock().await;
        let primary = self.server.way.connect(RESPONSE_TIMEOUT).await?;
        Ok(self.server.begin_or_join(&mut state, primary))
    }

    /// Ends its generation: the server is not what it was. What is on its way may be answered yet.
    pub(super) fn end(&self) {
        let generation = self.generation.get();
        let _ = self.server.current.compare_exchange(generation, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// The same session over a connection of its own, so that its large replies hold up no other call.
    pub(super) async fn apart(self) -> Result<Self, RedisError> {
        let connection = connect(&self.client, RESPONSE_TIMEOUT).await?;
        Ok(Self { connection, ..self })
    }

    /// Ends its generation, if `error` shows that a connection of it is broken or leads to a server that is no primary any
    /// more. All connections are then made again. Returns whether it shows so.
    pub(super) fn note(&self, error: &RedisError) -> bool {
        let of_redis = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension);
        if of_redis && error.kind() != ErrorKind::Server(ServerErrorKind::ReadOnly) {
            return false;
        }
        self.end();
        true
    }
}

/// Counts the generations of all servers, and tells when a server can be worked with that could not be.
#[derive(Debug, Default)]
pub(super) struct Generations {
    last: AtomicU64,
    usable: Notify,
}

impl Generations {
    /// The number of a further generation.
    fn begin(&self) -> Generation {
        self.usable.notify_one();
        Generation::new(1 + self.last.fetch_add(1, Ordering::Relaxed))
    }

    /// Waits until a generation has begun, or has passed its first barrier, since the last wait.
    pub(super) async fn usable(&self) {
        self.usable.notified().await;
    }
}

/// What all connections to a server share.
#[derive(Debug)]
pub(super) struct Server {
    way: Way,
    /// The last generation that has begun.
    begun: AtomicU64,
    /// The current one; 0 while there is none.
    current: AtomicU64,
    /// The last one whose calls have ended, since another server is the primary.
    replaced: AtomicU64,
    /// Told when that changes.
    replacing: Notify,
    generations: Arc<Generations>,
    state: Mutex<State>,
    barrier: Barrier,
}

#[derive(Debug, Default)]
struct State {
    /// What the connections of the last generation lead to.
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
    /// The server found by `way`, whose generations are counted with those of others by `generations`.
    pub(super) fn new(way: Way, generations: Arc<Generations>) -> Self {
        Self {
            way,
            begun: AtomicU64::new(0),
            current: AtomicU64::new(0),
            replaced: AtomicU64::new(0),
            replacing: Notify::new(),
            generations,
            state: Mutex::default(),
            barrier: Barrier::default(),
        }
    }

    /// The session of a new connection: of the current generation if it leads to the same run, of a new one otherwise.
    fn begin_or_join(self: &Arc<Self>, state: &mut State, primary: Primary) -> Session {
        let Primary { connection, client, replication_id, run } = primary;
        let at = client.get_connection_info().addr();
        // Without its run, another server is known by its address alone.
        let (is_same, is_other) = match (&state.target, &run) {
            (Some(Target::Run(last)), Some(run)) => (last == run, last != run),
            _ => (false, state.at.as_ref().is_some_and(|last| last != at)),
        };
        if is_other {
            self.leave();
        }
        let joins = is_same && self.current.load(Ordering::Acquire) != 0;
        let generation = if joins {
            Generation::new(self.begun.load(Ordering::Acquire))
        } else {
            self.generations.begin()
        };
        state.at = Some(at.clone());
        let server = Arc::clone(self);
        let name = at.to_string().into();
        let session = Session { connection, generation, replication_id, name, client, server };
        if !joins {
            state.target = Some(run.map_or_else(|| Target::Unknown(session.clone()), Target::Run));
            self.begun.store(generation.get(), Ordering::Release);
            self.current.store(generation.get(), Ordering::Release);
        }
        session
    }

    /// Ends the last generation and its calls, since another server is the primary now, without waiting for an attempt to
    /// connect: the next connection begins another one.
    pub(super) fn leave(&self) {
        self.current.store(0, Ordering::Release);
        self.replaced.fetch_max(self.begun.load(Ordering::Acquire), Ordering::AcqRel);
        self.replacing.notify_waiters();
    }

    /// What `call` on a connection of `generation` answers; an error as of a broken connection, once another server has become
    /// the primary: this one may be silent for long.
    pub(super) async fn unless_replaced<T>(
        &self,
        generation: Generation,
        call: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        let replacing = self.replacing.notified();
        if self.replaced.load(Ordering::Acquire) < generation.get() {
            tokio::select! {
                biased;
                answer = call => return answer,
                () = replacing => {}
            }
        }
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, "another server has become the primary").into())
    }
}

/// The connection of one thread to one server.
#[derive(Debug)]
pub(super) struct Connection {
    server: Arc<Server>,
    /// The last session, which counts as long as its generation is current.
    session: RwLock<Option<Session>>,
}

impl Connection {
    pub(super) fn to(server: Arc<Server>) -> Self {
        Self { server, session: RwLock::default() }
    }

    /// A further connection to the same server.
    pub(super) fn another(&self) -> Self {
        Self::to(Arc::clone(&self.server))
    }

    /// The generations of the server, and of others that are counted with it.
    pub(super) fn generations(&self) -> &Generations {
        &self.server.generations
    }

    /// The Sentinels that name the server, if they do.
    pub(super) fn sentinels(&self) -> Option<&Sentinels> {
        match &self.server.way {
            Way::Sentinel(sentinels) => Some(sentinels),
            Way::Straight(..) => None,
        }
    }

    /// Ends the last generation and its calls, unless it is of the server at `primary`.
    pub(super) async fn leave_unless_at(&self, primary: &ConnectionAddr) {
        let state = self.server.state.lock().await;
        if state.at.as_ref().is_some_and(|at| at != primary) {
            if self.server.current.load(Ordering::Acquire) != 0 {
                tracing::warn!(%primary, "Sentinel names another primary; connecting to it");
            }
            self.server.leave();
        }
    }

    /// The current session, or a new one. Callers of all connections wait for the attempt in progress.
    pub(super) async fn session(&self) -> Result<Session, NoPrimary> {
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
        match self.server.way.connect(RESPONSE_TIMEOUT).await {
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
