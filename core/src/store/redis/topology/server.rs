//! A server and the generations of the connections to it.
//!
//! Connections known to lead to the same run of the same server share a generation. The generation ends when
//! one of its connections breaks, or another server becomes the primary. Consecutive generations may lead to the
//! same run, since services close idle connections.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use redis::aio::MultiplexedConnection;
use redis::{Client, ConnectionAddr, ErrorKind, RedisError, ServerErrorKind};
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, timeout};

use super::primary::{Mode, NoPrimary, Primary, Run, connect};
use super::sentinel::{LEAVE_MAX, Sentinels};
use crate::domain::counters::Generation;
use crate::redis_address::same_scheme;
use crate::step;
use crate::store::redis::barrier::Barrier;

/// Timeout of a call to Redis; the edge's timeout for core is 2 s.
pub(in crate::store::redis) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Period after a failed connection attempt in which calls fail immediately, without another attempt.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// The same period while a thread that cannot connect shares the connection of another thread.
const SHARED_PAUSE: Duration = Duration::from_secs(1);
/// Time limit of `CLIENT PAUSE` on a primary that is being replaced: afterwards, Sentinel promotes the replica.
const PAUSE_TIMEOUT: Duration = Duration::from_millis(50);

/// The means of finding a server.
#[derive(Debug)]
pub(in crate::store::redis) enum ServerLocator {
    /// The server at this address.
    Direct(Client, Mode),
    /// The server that Sentinel names.
    Sentinel(Sentinels),
}

impl ServerLocator {
    /// Connects to the server; `response_timeout` limits the wait for each reply.
    pub(in crate::store::redis) async fn connect(
        &self,
        response_timeout: Duration,
    ) -> Result<Primary, NoPrimary> {
        match self {
            Self::Direct(client, mode) => Primary::connect(client.clone(), *mode, response_timeout).await,
            Self::Sentinel(sentinels) => sentinels.connect(response_timeout).await,
        }
    }
}

/// A connection with its generation; generations are numbered from 1.
#[derive(Debug, Clone)]
pub struct Session {
    pub(in crate::store::redis) connection: MultiplexedConnection,
    pub(in crate::store::redis) generation: Generation,
    /// The first generation that led to this run of the server.
    pub(in crate::store::redis) run: Generation,
    /// The server's replication id, which changes when it is promoted.
    pub(in crate::store::redis) replication_id: Arc<str>,
    /// The server's address as known to other servers.
    pub(in crate::store::redis) name: Arc<str>,
    client: Arc<Client>,
    /// Connects to the same server.
    pinned: Arc<Client>,
    pub(in crate::store::redis) server: Arc<Server>,
}

impl Session {
    /// Returns the connection's generation. A connection of a different generation may lead to a different
    /// server.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns the first generation that led to this run of the server. Since then no restart, promotion or other
    /// primary can have lost data.
    pub fn run(&self) -> Generation {
        self.run
    }

    /// Returns the server's address.
    pub(in crate::store::redis) fn address(&self) -> String {
        self.client.get_connection_info().addr().to_string()
    }

    /// Returns whether the session's generation is still current.
    pub(in crate::store::redis) fn is_current(&self) -> bool {
        self.server.current.load(Ordering::Acquire) == self.generation.get()
    }

    /// Makes a call on the session's connection as the step `name`. Fails as soon as another server becomes
    /// the primary, see [`Server::unless_replaced`].
    pub(in crate::store::redis) async fn query<T>(
        &mut self,
        name: &'static str,
        call: impl AsyncFnOnce(&mut MultiplexedConnection) -> Result<T, RedisError>,
    ) -> Result<T, RedisError> {
        step::before(name).await;
        let answer = self.server.unless_replaced(self.generation, call(&mut self.connection)).await;
        step::after(answer)
    }

    /// Creates a client for another server with the same settings; `None` if the name is not `host:port`.
    pub(in crate::store::redis) fn client_of(&self, server: &str) -> Option<Client> {
        let (host, port) = server.rsplit_once(':')?;
        let known = self.client.get_connection_info();
        let address = same_scheme(known.addr(), host.to_owned(), port.parse().ok()?);
        Client::open(known.clone().set_addr(address)).ok()
    }

    /// Returns the server's barrier, which the sessions of all threads share.
    pub(in crate::store::redis) fn barrier(&self) -> &Barrier {
        &self.server.barrier
    }

    /// Reports that replies of the server can be acknowledged again.
    pub(in crate::store::redis) fn notify_usable(&self) {
        self.server.generations.usable.notify_one();
    }

    /// Opens another session with the same server, over a new connection. Its generation differs if the
    /// server has restarted or was replaced.
    pub(in crate::store::redis) async fn open_another(&self) -> Result<Self, NoPrimary> {
        let mut state = self.server.state.lock().await;
        let primary = self.server.locator.connect(RESPONSE_TIMEOUT).await?;
        Ok(self.server.start_session(&mut state, primary))
    }

    /// Ends the session's generation, since the server has changed. Calls in flight may still get a reply.
    pub(in crate::store::redis) fn end(&self) {
        let generation = self.generation.get();
        let _ = self.server.current.compare_exchange(generation, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Moves the session to a new connection, so that large replies delay no other call. Returns the session unchanged
    /// if the server accepts no further connection.
    pub(in crate::store::redis) async fn with_own_connection(self) -> Self {
        match connect(&self.pinned, RESPONSE_TIMEOUT).await {
            Ok(connection) => Self { connection, ..self },
            Err(_) => self,
        }
    }

    /// Ends the session's generation if `error` shows that the connection is broken or that the server is no
    /// longer a primary; all connections are then made again. Returns whether the generation ended.
    pub(in crate::store::redis) fn note_error(&self, error: &RedisError) -> bool {
        let is_reply = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension);
        if is_reply && error.kind() != ErrorKind::Server(ServerErrorKind::ReadOnly) {
            return false;
        }
        self.end();
        true
    }
}

/// Numbers the generations of all servers and signals when a server becomes usable.
#[derive(Debug, Default)]
pub(in crate::store::redis) struct Generations {
    last: AtomicU64,
    usable: Notify,
}

impl Generations {
    /// Starts a new generation and returns its number.
    fn begin(&self) -> Generation {
        self.usable.notify_one();
        Generation::new(1 + self.last.fetch_add(1, Ordering::Relaxed))
    }

    /// Waits until a generation has started, or a barrier has succeeded again, since the last wait.
    pub(in crate::store::redis) async fn wait_until_usable(&self) {
        self.usable.notified().await;
    }
}

/// A server and the state that all connections to it share.
#[derive(Debug)]
pub(in crate::store::redis) struct Server {
    locator: ServerLocator,
    /// The last generation started.
    started: AtomicU64,
    /// The current generation; 0 while there is none.
    current: AtomicU64,
    /// The last generation whose calls were aborted because another server became the primary.
    replaced: AtomicU64,
    /// Notified when `replaced` changes.
    replacing: Notify,
    generations: Arc<Generations>,
    state: Mutex<State>,
    barrier: Barrier,
}

#[derive(Debug, Default)]
struct State {
    /// The target of the last generation's connections.
    target: Option<Target>,
    /// The first generation that led to the target.
    run: Generation,
    /// The target's address.
    address: Option<ConnectionAddr>,
    /// The last connection that was opened for a thread's calls.
    last: Option<LastConnection>,
    /// When the last connection attempt failed, and its error.
    failed: Option<(Instant, NoPrimary)>,
}

/// A connection: a [`Session`] without the server that has this value.
#[derive(Debug, Clone)]
struct LastConnection {
    connection: MultiplexedConnection,
    generation: Generation,
    replication_id: Arc<str>,
    name: Arc<str>,
    client: Arc<Client>,
    pinned: Arc<Client>,
}

/// The target of a generation's connections.
#[derive(Debug)]
enum Target {
    /// This run of a server; a new connection to the same run joins the generation.
    Run(Run),
    /// A server that does not report its run. A new connection might lead to a different server, so all
    /// callers share this session.
    Unknown(Session),
}

impl LastConnection {
    fn of(session: &Session) -> Self {
        let Session { connection, generation, run: _, replication_id, name, client, pinned, server: _ } =
            session.clone();
        Self { connection, generation, replication_id, name, client, pinned }
    }
}

impl Server {
    /// Creates the server found by `locator`. `generations` numbers the generations of all servers.
    pub(in crate::store::redis) fn new(locator: ServerLocator, generations: Arc<Generations>) -> Self {
        Self {
            locator,
            started: AtomicU64::new(0),
            current: AtomicU64::new(0),
            replaced: AtomicU64::new(0),
            replacing: Notify::new(),
            generations,
            state: Mutex::default(),
            barrier: Barrier::default(),
        }
    }

    /// Creates the session of a new connection: in the current generation if the connection leads to the same
    /// run, otherwise in a new generation.
    fn start_session(self: &Arc<Self>, state: &mut State, primary: Primary) -> Session {
        let Primary { connection, client, pinned, replication_id, run } = primary;
        let address = client.get_connection_info().addr();
        // If the run is unknown, only a different address shows that this is a different server.
        let (is_same, is_other) = match (&state.target, &run) {
            (Some(Target::Run(last)), Some(run)) => (last == run, last != run),
            _ => (false, state.address.as_ref().is_some_and(|last| last != address)),
        };
        if is_other {
            self.retire();
        }
        let last = self.started.load(Ordering::Acquire);
        let joins = is_same && self.current.load(Ordering::Acquire) != 0;
        let generation = if joins { Generation::new(last) } else { self.generations.begin() };
        // After another primary, this run may lack what was decided there.
        let is_continued = is_same && self.replaced.load(Ordering::Acquire) < last;
        if !is_continued {
            state.run = generation;
        }
        state.address = Some(address.clone());
        let name = address.to_string().into();
        let opened = LastConnection { connection, generation, replication_id, name, client, pinned };
        let session = self.session_on(opened, state.run);
        if !joins {
            state.target = Some(run.map_or_else(|| Target::Unknown(session.clone()), Target::Run));
            self.started.store(generation.get(), Ordering::Release);
            self.current.store(generation.get(), Ordering::Release);
        }
        session
    }

    fn session_on(self: &Arc<Self>, last: LastConnection, run: Generation) -> Session {
        let LastConnection { connection, generation, replication_id, name, client, pinned } = last;
        let server = Arc::clone(self);
        Session { connection, generation, run, replication_id, name, client, pinned, server }
    }

    /// Returns a session on the last connection that was opened for a thread's calls. It is for a thread that
    /// cannot connect: the server may have no connection left. Returns `None` if its generation has ended.
    fn shared_session(self: &Arc<Self>, state: &State) -> Option<Session> {
        let session = self.session_on(state.last.clone()?, state.run);
        session.is_current().then_some(session)
    }

    /// Ends the last generation and aborts its calls, since another server is the primary now. The next
    /// connection starts a new generation.
    pub(in crate::store::redis) fn retire(&self) {
        self.current.store(0, Ordering::Release);
        self.replaced.fetch_max(self.started.load(Ordering::Acquire), Ordering::AcqRel);
        self.replacing.notify_waiters();
    }

    /// Waits for `call` on a connection of `generation`. Fails like a broken connection as soon as another
    /// server becomes the primary, since the old server may not answer for a long time.
    pub(in crate::store::redis) async fn unless_replaced<T>(
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
pub(in crate::store::redis) struct Connection {
    server: Arc<Server>,
    /// The last session, valid as long as its generation is current.
    session: RwLock<Option<Session>>,
}

impl Connection {
    pub(in crate::store::redis) fn to(server: Arc<Server>) -> Self {
        Self { server, session: RwLock::default() }
    }

    /// Creates another connection to the same server.
    pub(in crate::store::redis) fn another(&self) -> Self {
        Self::to(Arc::clone(&self.server))
    }

    /// Returns the counter that numbers the server's generations.
    pub(in crate::store::redis) fn generations(&self) -> &Generations {
        &self.server.generations
    }

    /// Returns the Sentinels that name the server, if there are any.
    pub(in crate::store::redis) fn sentinels(&self) -> Option<&Sentinels> {
        match &self.server.locator {
            ServerLocator::Sentinel(sentinels) => Some(sentinels),
            ServerLocator::Direct(..) => None,
        }
    }

    /// Stays away, for [`LEAVE_MAX`], from the primary that Sentinel is replacing. If the last generation belongs to
    /// this server, pauses the server's writes, ends the generation and aborts its calls.
    pub(in crate::store::redis) async fn leave(&self, primary: &ConnectionAddr) {
        let Some(sentinels) = self.sentinels() else { return };
        let state = self.server.state.lock().await;
        sentinels.leave(primary.clone());
        if state.address.as_ref() != Some(primary) {
            return;
        }
        if let Some(session) = self.server.shared_session(&state) {
            tracing::warn!(%primary, "Sentinel is replacing the primary; waiting for its successor");
            pause_writes(session).await;
        }
        self.server.retire();
    }

    /// Ends the last generation and aborts its calls, unless it belongs to the server at `primary`.
    pub(in crate::store::redis) async fn retire_unless_at(&self, primary: &ConnectionAddr) {
        let state = self.server.state.lock().await;
        if state.address.as_ref().is_some_and(|address| address != primary) {
            if self.server.current.load(Ordering::Acquire) != 0 {
                tracing::warn!(%primary, "Sentinel names another primary; connecting to it");
            }
            self.server.retire();
        }
    }

    /// Returns the current session, or a new one. Callers on all threads share one connection attempt at a
    /// time. If it fails, they share the current connection of another thread, if there is one.
    pub(in crate::store::redis) async fn session(&self) -> Result<Session, NoPrimary> {
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
        self.drop_outdated(&mut state);
        let shared = self.server.shared_session(&state);
        let pause = if shared.is_some() { SHARED_PAUSE } else { CONNECT_PAUSE };
        if let Some((at, error)) = &state.failed
            && at.elapsed() < pause
        {
            return shared.ok_or_else(|| error.clone());
        }
        match self.server.locator.connect(RESPONSE_TIMEOUT).await {
            Ok(primary) => {
                state.failed = None;
                let session = self.server.start_session(&mut state, primary);
                state.last = Some(LastConnection::of(&session));
                Ok(self.keep(&session))
            }
            Err(error) => {
                state.failed = Some((Instant::now(), error.clone()));
                self.server.shared_session(&state).ok_or(error)
            }
        }
    }

    /// Returns the session if its generation is current.
    fn current(&self) -> Option<Session> {
        let session = self.session.read();
        let generation = self.server.current.load(Ordering::Acquire);
        session.as_ref().filter(|session| session.generation.get() == generation).cloned()
    }

    /// Drops the connections of a generation that has ended, so that their sockets are closed. The server may
    /// have no other connection left.
    fn drop_outdated(&self, state: &mut State) {
        *self.session.write() = None;
        if self.server.shared_session(state).is_none() {
            state.last = None;
        }
        // A new connection is never known to lead to the target of such a session.
        if matches!(state.target, Some(Target::Unknown(_))) {
            state.target = None;
        }
    }

    fn keep(&self, session: &Session) -> Session {
        *self.session.write() = Some(session.clone());
        session.clone()
    }
}

/// Pauses the writes of all clients of a primary that is being replaced. Without the pause, the greetings that
/// sentinels publish there would let the other replicas get ahead of the promoted one.
async fn pause_writes(mut session: Session) {
    let mut command = redis::cmd("CLIENT");
    command.arg("PAUSE").arg(LEAVE_MAX.as_millis().to_string()).arg("WRITE");
    match timeout(PAUSE_TIMEOUT, command.query_async::<()>(&mut session.connection)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(%error, "cannot pause the writes of the primary that is being replaced");
        }
        Err(_) => tracing::debug!("the primary that is being replaced does not answer"),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn calls_in_flight_end_with_their_generation() {
        let address = Client::open("redis://192.0.2.1").unwrap();
        let server = Server::new(ServerLocator::Direct(address, Mode::Standalone), Arc::default());
        server.started.store(1, Ordering::Release);
        let call = |generation| {
            Box::pin(server.unless_replaced(Generation::new(generation), pending::<Result<(), RedisError>>()))
        };
        let (mut replaced, mut next) = (call(1), call(2));
        assert!(replaced.as_mut().now_or_never().is_none());
        server.retire();
        let error = replaced.now_or_never().expect("no reply of the old server is awaited").unwrap_err();
        assert!(error.is_connection_dropped(), "another server may be called: {error}");
        assert!(next.as_mut().now_or_never().is_none());
    }
}
